//! The reason why a request is not carried out: a code of the table of reasons, and a text with the details.

use isthmus_layout::reason::Reason;
use isthmus_platform::PlatformError;
use isthmus_shm::MapError;

/// A refusal with its text.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    pub(crate) text: String,
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self { reason, text: reason.summary().to_owned() }
    }
}

impl Refusal {
    pub(crate) fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }
}

impl From<PlatformError> for Refusal {
    fn from(error: PlatformError) -> Self {
        use rustix::io::Errno;
        let reason = match &error {
            PlatformError::Refused { source: Errno::MFILE | Errno::NFILE, .. } => Reason::DaemonOutOfFds,
            PlatformError::Refused { source: Errno::NOMEM | Errno::NOSPC | Errno::DQUOT, .. } => Reason::OutOfMemory,
            PlatformError::Refused { .. } => Reason::KernelRefused,
            PlatformError::Map(map) => return Self::from_map(map),
        };
        Self::new(reason, format!("{}: {error}", reason.summary()))
    }
}

impl Refusal {
    pub(crate) fn from_map(error: &MapError) -> Self {
        let reason = match error {
            MapError::NotSealed => Reason::RegionNotSealed,
            MapError::TooSmall { .. } => Reason::RegionTooSmall,
            MapError::Refused { source: rustix::io::Errno::ACCESS | rustix::io::Errno::PERM, .. } => {
                Reason::RequestInvalid
            }
            MapError::Refused { .. } => Reason::OutOfMemory,
        };
        Self::new(reason, error.to_string())
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
        PlatformError::Refused { operation: "copying a file descriptor", source: errno }.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn maps_kernel_errors_to_reasons() {
        let reason = |source| Refusal::from(PlatformError::Refused { operation: "test", source }).reason;
        assert_eq!([reason(Errno::MFILE), reason(Errno::NFILE)], [Reason::DaemonOutOfFds; 2]);
        assert_eq!([reason(Errno::NOMEM), reason(Errno::NOSPC)], [Reason::OutOfMemory; 2]);
        assert_eq!(reason(Errno::PERM), Reason::KernelRefused);
        let map = |source| Refusal::from_map(&MapError::Refused { bytes: 1, source }).reason;
        assert_eq!([map(Errno::NOMEM), map(Errno::ACCESS)], [Reason::OutOfMemory, Reason::RequestInvalid]);
        assert_eq!(Refusal::from_map(&MapError::NotSealed).reason, Reason::RegionNotSealed);
    }
}
