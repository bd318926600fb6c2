//! Windows that are made of *grant batches*: under Xen, pages are granted when they are allocated, so a window has no bytes that could become
//! something else.
//!
//! ```text
//!  offset 0        a grant batch of one page: the head page, with the words below in it
//!  offset 4096     a grant batch: the proxy ring
//!  above           a grant batch for each extent: the host requests it, the guest allocates and grants it, it is an extent once
//! ```
//!
//! Offsets of grant batches are names, chosen by the host, none twice. A revoked extent is gone with its grant batch. There is one event channel
//! between the daemons, so which vector was rung stands in the head page; the daemons pass rings on, of programs and of workers.

use alloc::vec::Vec;

use super::{PROXY_FRAME_BYTES_MAX, PROXY_RING, PROXY_RING_OFFSET, WindowId};
use crate::control::{Field, FieldReader, MalformedControl};
use crate::limits::PAGE_BYTES;

/// First word of the head page in which the host says which of the guest's vectors it has rung, a bit each.
pub const HOST_PENDING_WORD: u32 = 160;
/// First word of the head page in which the guest says which of the host's vectors it has rung, a bit each.
pub const GUEST_PENDING_WORD: u32 = 192;
/// Words of either.
pub const PENDING_WORDS: u32 = 4;
/// Vectors that there can be, each way.
pub const VECTORS_MAX: u16 = PENDING_WORDS as u16 * 32;

/// Word of the head page: 1 from when the guest offers the window; its kernel makes it 0 when the guest's daemon is gone.
pub const GUEST_PRESENT_WORD: u32 = 224;
/// Word of the head page: 1 from when the host has mapped the window; its kernel makes it 0 when the host's daemon maps it no longer.
pub const HOST_PRESENT_WORD: u32 = 256;
const _: () = assert!(4 * HOST_PRESENT_WORD < PAGE_BYTES);

/// Bytes of a grant batch are no more.
pub const GRANT_BATCH_BYTES_MAX: u64 = 16 << 20;

/// The first offset of a grant batch that is to be an extent.
pub const FIRST_GRANT_BATCH: u64 = (PROXY_RING_OFFSET + PROXY_RING.size().0).next_multiple_of(PAGE_BYTES as u64);

/// Bytes that describe to the other side how to map a grant batch are no more.
pub const GRANT_DESCRIPTION_BYTES_MAX: usize = 256;
const _: () = assert!(GRANT_DESCRIPTION_BYTES_MAX + 32 <= PROXY_FRAME_BYTES_MAX);

/// A request of the host for a grant batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantRequest {
    /// In which window.
    pub window: WindowId,
    /// Its offset.
    pub offset: u64,
    /// Its bytes, in whole pages.
    pub bytes: u64,
}

impl GrantRequest {
    /// Its bytes.
    pub fn emit(self) -> Vec<u8> {
        let mut out = Vec::new();
        [self.offset, self.bytes].iter().for_each(|number| number.emit(&mut out));
        self.window.0.emit(&mut out);
        out
    }

    /// Takes all of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, MalformedControl> {
        let mut from = FieldReader::new(bytes);
        let (offset, bytes) = (u64::parse(&mut from)?, u64::parse(&mut from)?);
        let request = Self { window: WindowId(u16::parse(&mut from)?), offset, bytes };
        from.end()?;
        Ok(request)
    }
}

/// The grant batch that the guest has allocated, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantReply<'a> {
    /// In which window.
    pub window: WindowId,
    /// Its offset.
    pub offset: u64,
    /// The description of the grant by the platform, for the side that maps it. Empty if the guest has no memory or no grants left.
    pub grant: &'a [u8],
}

impl<'a> GrantReply<'a> {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.offset.emit(&mut out);
        self.window.0.emit(&mut out);
        out.extend_from_slice(self.grant);
        out
    }

    /// Takes all of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MalformedControl> {
        let mut from = FieldReader::new(bytes);
        let (offset, window) = (u64::parse(&mut from)?, WindowId(u16::parse(&mut from)?));
        Ok(Self { window, offset, grant: parse_grant(from)? })
    }
}

/// Parses the rest of the content as a grant.
pub(super) fn parse_grant(from: FieldReader<'_>) -> Result<&[u8], MalformedControl> {
    let grant = from.rest();
    if grant.len() > GRANT_DESCRIPTION_BYTES_MAX { Err(MalformedControl::TooLong(grant.len())) } else { Ok(grant) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_returns_what_was_emitted() {
        let request = GrantRequest { window: WindowId(3), offset: FIRST_GRANT_BATCH, bytes: 4096 };
        assert_eq!(GrantRequest::parse(&request.emit()), Ok(request));
        let reply = GrantReply { window: WindowId(3), offset: FIRST_GRANT_BATCH, grant: b"G" };
        assert_eq!(GrantReply::parse(&reply.emit()), Ok(reply));
        let none = GrantReply { window: WindowId(3), offset: FIRST_GRANT_BATCH, grant: b"" };
        assert_eq!(GrantReply::parse(&none.emit()), Ok(none));
    }

    #[test]
    fn parse_refuses_wrong_lengths() {
        let request = GrantRequest { window: WindowId(3), offset: FIRST_GRANT_BATCH, bytes: 4096 }.emit();
        (0..request.len()).for_each(|cut| assert!(GrantRequest::parse(&request[..cut]).is_err(), "{cut}"));
        (0..10).for_each(|cut| assert!(GrantReply::parse(&request[..cut]).is_err(), "{cut}"));
        let long =
            GrantReply { window: WindowId(3), offset: FIRST_GRANT_BATCH, grant: &[0; GRANT_DESCRIPTION_BYTES_MAX + 1] }
                .emit();
        assert_eq!(GrantReply::parse(&long), Err(MalformedControl::TooLong(GRANT_DESCRIPTION_BYTES_MAX + 1)));
    }
}
