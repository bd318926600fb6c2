//! The error numbers of libfabric, and their conversion to negative results.

use isthmus_client::{AttachError, Reason, Refusal};
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An error number of libfabric, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const ACCES: Self = Self(13);
    pub(crate) const AGAIN: Self = Self(11);
    pub(crate) const BUSY: Self = Self(16);
    pub(crate) const IO: Self = Self(5);
    pub(crate) const INVAL: Self = Self(22);
    pub(crate) const MFILE: Self = Self(24);
    pub(crate) const NOMEM: Self = Self(12);
    pub(crate) const NODEV: Self = Self(19);
    pub(crate) const NOSYS: Self = Self(38);
    pub(crate) const NOMSG: Self = Self(42);
    pub(crate) const NODATA: Self = Self(61);
    pub(crate) const MSGSIZE: Self = Self(90);
    pub(crate) const NOPROTOOPT: Self = Self(92);
    pub(crate) const OPNOTSUPP: Self = Self(95);
    pub(crate) const CONNABORTED: Self = Self(103);
    pub(crate) const HOSTUNREACH: Self = Self(113);
    pub(crate) const CANCELED: Self = Self(125);
    pub(crate) const KEYREJECTED: Self = Self(129);
    pub(crate) const OTHER: Self = Self(256);
    pub(crate) const TOOSMALL: Self = Self(257);
    pub(crate) const OPBADSTATE: Self = Self(258);
    pub(crate) const AVAIL: Self = Self(259);
    pub(crate) const BADFLAGS: Self = Self(260);
    pub(crate) const NOCQ: Self = Self(263);
    pub(crate) const TRUNC: Self = Self(265);
    pub(crate) const NOKEY: Self = Self(266);
    pub(crate) const NOAV: Self = Self(267);
}

impl From<Reason> for Errno {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::OutOfMemory | Reason::OutOfAddressSpace => Self::NOMEM,
            Reason::OutOfFds => Self::MFILE,
            Reason::TalkForbidden | Reason::SocketDenied | Reason::MxBadKey => Self::ACCES,
            Reason::ClosedLocally => Self::CANCELED,
            Reason::EndpointClosed | Reason::PeerDetached | Reason::MessagesUndelivered | Reason::MxEndpointClosed => {
                Self::CONNABORTED
            }
            Reason::DaemonUnreachable | Reason::DaemonNotStarted => Self::NODEV,
            Reason::StillAttached => Self::OPBADSTATE,
            _ => Self::HOSTUNREACH,
        }
    }
}

impl From<Refusal> for Errno {
    fn from(refusal: Refusal) -> Self {
        refusal.reason.into()
    }
}

impl From<AttachError> for Errno {
    fn from(error: AttachError) -> Self {
        error.reason().map_or(Self::NOMEM, Self::from)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

/// Runs a call that returns 0 or a negative error.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    number(|| body().map(|()| 0)) as c_int
}

/// Runs a call that returns a number or a negative error. A panic becomes an error, so that it does not unwind into the
/// program.
#[inline]
pub(crate) fn number(body: impl FnOnce() -> Result<isize, Errno>) -> isize {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(number)) => number,
        Ok(Err(errno)) => -(errno.0 as isize),
        Err(_) => -(Errno::OTHER.0 as isize),
    }
}
