//! What the header shows: fixed widths, no padding that nobody named, spare fields that are zero.
//!
//! The comments here are the header's.

use isthmus_client::{EndpointAddress, Reason, Refusal};
use std::ffi::{CStr, c_char, c_void};
use std::mem::{offset_of, size_of};

/// Major version of this header.
pub const ISTH_VERSION_MAJOR: u32 = 0;
/// Minor version of this header.
pub const ISTH_VERSION_MINOR: u32 = 1;
/// Version of this header, to be compared with what isth_version() says of the library.
pub const ISTH_VERSION: u32 = (ISTH_VERSION_MAJOR << 16) | ISTH_VERSION_MINOR;

/// isth_options.wait: as ISTHMUS_WAIT says, else adaptive.
pub const ISTH_WAIT_DEFAULT: u32 = 0;
/// isth_options.wait: looks for a while, then sleeps.
pub const ISTH_WAIT_ADAPTIVE: u32 = 1;
/// isth_options.wait: looks for ever; for a program with a processor to itself.
pub const ISTH_WAIT_SPIN: u32 = 2;
/// isth_options.wait: sleeps at once.
pub const ISTH_WAIT_SLEEP: u32 = 3;

/// isth_options.flags: where no daemon answers, none is started.
pub const ISTH_NO_AUTOSTART: u32 = 1;
/// isth_options.flags: no page of the program is ever moved onto shared memory.
pub const ISTH_NO_REGCACHE: u32 = 2;
/// isth_options.flags: all messages go through the daemon.
pub const ISTH_NO_CHANNELS: u32 = 4;

/// isth_open(): the lowest endpoint that is free.
pub const ISTH_ENDPOINT_ANY: u32 = 0xffff_ffff;

/// isth_completion.kind: the buffer may be used again; the message arrives, or the peer is gone.
pub const ISTH_SENT: u32 = 1;
/// isth_completion.kind: a message is in the buffer.
pub const ISTH_RECEIVED: u32 = 2;
/// isth_completion.kind: cancelled, or its endpoint closed, before anything happened.
pub const ISTH_CANCELLED: u32 = 3;
/// isth_completion.kind: it did not work; isth_completion.reason says why.
pub const ISTH_FAILED: u32 = 4;

/// Where a message can be sent: an endpoint of a domain.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IsthAddress {
    /// The domain's number, from isth_lookup() or from a message of it.
    pub domain: u32,
    /// The endpoint's number.
    pub endpoint: u32,
}

/// How to attach. isth_options_init() makes it say nothing; where it says nothing, the environment decides
/// (ISTHMUS_DOMAIN, ISTHMUS_SOCKET, ...).
#[repr(C)]
#[derive(Debug)]
pub struct IsthOptions {
    /// What the domain is called, up to 64 bytes of printable UTF-8 without '/'. Null: as ISTHMUS_DOMAIN says, else
    /// a name made of the program's and the process number.
    pub name: *const c_char,
    /// The daemon's socket. Null: as ISTHMUS_SOCKET says, else the first that answers of the usual ones.
    pub socket: *const c_char,
    /// ISTH_WAIT_...
    pub wait: u32,
    /// How long adaptive waiting looks before it sleeps, up to 1000 microseconds. 0: as ISTHMUS_SPIN_US says, else 50.
    pub spin_us: u32,
    /// ISTH_NO_..., or'ed. What the environment forbids stays forbidden.
    pub flags: u32,
    /// Zero.
    pub reserved0: u32,
    /// Zero.
    pub reserved: [u64; 4],
}

/// An operation is over, and its buffer the program's again.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IsthCompletion {
    /// What was given to isth_send() or isth_receive().
    pub context: *mut c_void,
    /// The operation.
    pub token: u64,
    /// ISTH_RECEIVED: the sender's word.
    pub tag: u64,
    /// ISTH_RECEIVED: bytes of the message. Where the buffer is shorter, it holds the first ones.
    pub len: u64,
    /// ISTH_RECEIVED: who sent it.
    pub from: IsthAddress,
    /// The endpoint it was posted to.
    pub endpoint: u32,
    /// ISTH_SENT, ISTH_RECEIVED, ISTH_CANCELLED or ISTH_FAILED.
    pub kind: u32,
    /// ISTH_FAILED: why, one of enum isth_reason. Otherwise 0.
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

// With other pointers the layout would be another one; nobody has asked for that yet.
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
