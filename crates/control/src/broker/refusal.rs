//! The conversion of errors of the platform and of the kernel to refusals.

use std::io;

use isthmus_layout::Refusal;
use isthmus_layout::reason::Reason;
use isthmus_platform::PlatformError;
use isthmus_shm::MapError;
use rustix::io::Errno;

/// An error that refuses a request.
pub(crate) trait IntoRefusal {
    /// Returns the refusal with the reason of the error.
    fn into_refusal(self) -> Refusal;
}

/// A result with an error that refuses a request.
pub(crate) trait OrRefuse<T> {
    /// Replaces the error by the refusal.
    fn or_refuse(self) -> Result<T, Refusal>;
}

impl<T, E: IntoRefusal> OrRefuse<T> for Result<T, E> {
    fn or_refuse(self) -> Result<T, Refusal> {
        self.map_err(E::into_refusal)
    }
}

impl IntoRefusal for PlatformError {
    fn into_refusal(self) -> Refusal {
        let reason = match self {
            Self::Refused { source: Errno::MFILE | Errno::NFILE, .. } => Reason::DaemonOutOfFds,
            Self::Refused { source: Errno::NOMEM | Errno::NOSPC | Errno::DQUOT, .. } => Reason::OutOfMemory,
            Self::Refused { .. } => Reason::KernelRefused,
            Self::Map(map) => return map.into_refusal(),
        };
        Refusal::new(reason, format!("{}: {self}", reason.summary()))
    }
}

impl IntoRefusal for MapError {
    fn into_refusal(self) -> Refusal {
        let reason = match self {
            Self::NotSealed => Reason::RegionNotSealed,
            Self::TooSmall { .. } => Reason::RegionTooSmall,
            Self::Refused { source: Errno::ACCESS | Errno::PERM, .. } => Reason::RequestInvalid,
            Self::Refused { .. } => Reason::OutOfMemory,
        };
        Refusal::new(reason, self.to_string())
    }
}

impl IntoRefusal for io::Error {
    fn into_refusal(self) -> Refusal {
        let source = Errno::from_io_error(&self).unwrap_or(Errno::IO);
        PlatformError::Refused { operation: "copying a file descriptor", source }.into_refusal()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_kernel_errors_to_reasons() {
        let reason = |source| PlatformError::Refused { operation: "test", source }.into_refusal().reason;
        assert_eq!([reason(Errno::MFILE), reason(Errno::NFILE)], [Reason::DaemonOutOfFds; 2]);
        assert_eq!([reason(Errno::NOMEM), reason(Errno::NOSPC)], [Reason::OutOfMemory; 2]);
        assert_eq!(reason(Errno::PERM), Reason::KernelRefused);
        let map = |source| MapError::Refused { bytes: 1, source }.into_refusal().reason;
        assert_eq!([map(Errno::NOMEM), map(Errno::ACCESS)], [Reason::OutOfMemory, Reason::RequestInvalid]);
        assert_eq!(MapError::NotSealed.into_refusal().reason, Reason::RegionNotSealed);
        assert_eq!(io::Error::from(Errno::MFILE).into_refusal().reason, Reason::DaemonOutOfFds);
    }
}
