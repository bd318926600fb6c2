//! The types of the header: fixed widths, no unnamed padding, spare fields that are zero.
//!
//! The comments here are the header's.

use isthmus_client::{EndpointAddress, Reason, Refusal};
use std::ffi::{CStr, c_char, c_void};
use std::mem::{offset_of, size_of};

/// Major version of this header.
pub const ISTH_VERSION_MAJOR: u32 = 0;
/// Minor version of this header.
pub const ISTH_VERSION_MINOR: u32 = 1;
/// Version of this header, to be compared with that of the library, isth_version().
pub const ISTH_VERSION: u32 = (ISTH_VERSION_MAJOR << 16) | ISTH_VERSION_MINOR;

/// isth_options.wait: as ISTHMUS_WAIT says, else adaptive.
pub const ISTH_WAIT_DEFAULT: u32 = 0;
/// isth_options.wait: spins for a while, then sleeps.
pub const ISTH_WAIT_ADAPTIVE: u32 = 1;
/// isth_options.wait: spins and never sleeps; for a program with a processor of its own.
pub const ISTH_WAIT_SPIN: u32 = 2;
/// isth_options.wait: sleeps at once.
pub const ISTH_WAIT_SLEEP: u32 = 3;

/// isth_options.flags: if no daemon answers, starts none.
pub const ISTH_NO_AUTOSTART: u32 = 1;
/// isth_options.flags: never moves a page of the program to shared memory.
pub const ISTH_NO_REGCACHE: u32 = 2;
/// isth_options.flags: sends all messages through the daemon.
pub const ISTH_NO_CHANNELS: u32 = 4;

/// isth_open(): the lowest endpoint that is free.
pub const ISTH_ENDPOINT_ANY: u32 = 0xffff_ffff;

/// isth_completion.kind: the buffer may be used again. The message arrives unless the peer is gone.
pub const ISTH_SENT: u32 = 1;
/// isth_completion.kind: a message is in the buffer.
pub const ISTH_RECEIVED: u32 = 2;
/// isth_completion.kind: the operation was cancelled, or its endpoint closed, before it began.
pub const ISTH_CANCELLED: u32 = 3;
/// isth_completion.kind: the operation failed, for the reason in isth_completion.reason.
pub const ISTH_FAILED: u32 = 4;

/// Where a message can be sent: an endpoint of a domain.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IsthAddress {
    /// The number of the domain, from isth_lookup() or from a message of the domain.
    pub domain: u32,
    /// The endpoint's number.
    pub endpoint: u32,
}

/// Options of isth_attach(). The environment (ISTHMUS_DOMAIN, ISTHMUS_SOCKET, ...) decides about all fields that are as
/// isth_options_init() leaves them.
#[repr(C)]
#[derive(Debug)]
pub struct IsthOptions {
    /// The name of the domain, up to 64 bytes of printable UTF-8 without '/'. Null: ISTHMUS_DOMAIN, or a name made
    /// of the program's name and the process number.
    pub name: *const c_char,
    /// The daemon's socket. Null: ISTHMUS_SOCKET, or the first of the usual sockets that answers.
    pub socket: *const c_char,
    /// ISTH_WAIT_...
    pub wait: u32,
    /// The time that adaptive waiting spins before it sleeps, up to 1000 microseconds. 0: ISTHMUS_SPIN_US, or 50.
    pub spin_us: u32,
    /// ISTH_NO_..., or'ed. The environment can forbid more, but permit nothing that is forbidden here.
    pub flags: u32,
    /// Zero.
    pub reserved0: u32,
    /// Zero.
    pub reserved: [u64; 4],
}

/// The end of an operation. Its buffer belongs to the program again.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IsthCompletion {
    /// The context that was given to isth_send() or isth_receive().
    pub context: *mut c_void,
    /// The token of the operation.
    pub token: u64,
    /// ISTH_RECEIVED: the tag that the sender gave.
    pub tag: u64,
    /// ISTH_RECEIVED: the length of the message. If the buffer is shorter, it holds the first bytes.
    pub len: u64,
    /// ISTH_RECEIVED: the sender.
    pub from: IsthAddress,
    /// The endpoint of the operation.
    pub endpoint: u32,
    /// ISTH_SENT, ISTH_RECEIVED, ISTH_CANCELLED or ISTH_FAILED.
    pub kind: u32,
    /// ISTH_FAILED: the reason, one of enum isth_reason. Otherwise 0.
    pub reason: u32,
    /// Zero.
    pub reserved0: u32,
    /// Zero.
    pub reserved: u64,
}

impl IsthOptions {
    /// Leaves everything to the environment.
    pub(crate) const DEFAULT: Self = Self {
        name: std::ptr::null(),
        socket: std::ptr::null(),
        wait: ISTH_WAIT_DEFAULT,
        spin_us: 0,
        flags: 0,
        reserved0: 0,
        reserved: [0; 4],
    };
}

impl IsthCompletion {
    /// Of nothing.
    pub(crate) const EMPTY: Self = Self {
        context: std::ptr::null_mut(),
        token: 0,
        tag: 0,
        len: 0,
        from: IsthAddress { domain: 0, endpoint: 0 },
        endpoint: 0,
        kind: 0,
        reason: 0,
        reserved0: 0,
        reserved: 0,
    };
}

impl From<EndpointAddress> for IsthAddress {
    fn from(address: EndpointAddress) -> Self {
        Self { domain: address.domain.number(), endpoint: u32::from(address.endpoint.number()) }
    }
}

/// A string of the program; None for null.
///
/// # Safety
///
/// `text` is null, or ends with a zero byte and does not change for as long as the result is used.
pub(crate) unsafe fn string<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: not null, so a string by the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// Names are UTF-8.
pub(crate) fn utf8(text: &CStr) -> Result<&str, Refusal> {
    text.to_str().map_err(|error| Refusal::new(Reason::NameInvalid, error.to_string()))
}

// With other pointers the layout would be another one, which no program has needed yet.
const _: () = assert!(size_of::<*const ()>() == 8);
const _: () = assert!(size_of::<IsthAddress>() == 8);
const _: () = assert!(size_of::<IsthOptions>() == 64 && offset_of!(IsthOptions, reserved) == 32);
const _: () = assert!(size_of::<IsthCompletion>() == 64 && offset_of!(IsthCompletion, reserved) == 56);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_packages_version() {
        let number = |text: &str| text.parse::<u32>().unwrap();
        assert_eq!(number(env!("CARGO_PKG_VERSION_MAJOR")), ISTH_VERSION_MAJOR);
        assert_eq!(number(env!("CARGO_PKG_VERSION_MINOR")), ISTH_VERSION_MINOR);
    }
}
