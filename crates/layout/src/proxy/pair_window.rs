//! Pair windows that not even the host sees: one guest grants its pages to the other (under Xen).
//!
//! ```text
//!   guest that grants                         host                         guest that maps
//!     ◄─────────── PairInvite: with which one ─┤
//!     ├─ a head page, a port: PairOffer ──────►├──── PairInvite, PairOffer ───────────────►
//!     ├─ WindowAttached ──────────────────────►│◄───────────────────────── WindowAttached ─┤
//!     ◄────────── GrantRequest, a grant batch ─┤
//!     ├─ GrantReply: the grant ───────────────►├──── MapRequest: the grant ───────────────►
//!                                              │◄──────────────────── MapReply: it is one ─┤
//! ```
//!
//! The host decides which guests have one and which grant batch is an extent, and relays between the two. Its numbers and offsets are
//! trusted by both; what the guests say of one another is not.
//!
//! A grant batch of one page comes with an event channel of its own, an end in each guest. It is room for a ready map. Domains of the
//! other guest wake the domain of that ready map by it, without either daemon ([`ResourceRef::EventChannel`](super::ResourceRef::EventChannel)).

use alloc::vec::Vec;

use super::WindowId;
use super::grants::parse_grant;
use crate::control::{Field, FieldReader, MalformedControl};

/// The guest is to have a pair window with another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairInvite<'a> {
    /// The window, by the same number for both guests.
    pub window: WindowId,
    /// The hypervisor's number of the other guest.
    pub domid: u16,
    /// The offer of the other guest, for the platform. Empty in the message to the guest that makes the offer.
    pub offer: &'a [u8],
}

impl<'a> PairInvite<'a> {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        [self.window.0, self.domid].iter().for_each(|number| number.emit(&mut out));
        out.extend_from_slice(self.offer);
        out
    }

    /// Takes all of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MalformedControl> {
        let mut from = FieldReader::new(bytes);
        let (window, domid) = (WindowId(u16::parse(&mut from)?), u16::parse(&mut from)?);
        Ok(Self { window, domid, offer: parse_grant(from)? })
    }
}

/// The offer of a guest that was asked to make a pair window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairOffer<'a> {
    /// Which.
    pub window: WindowId,
    /// For the other guest's platform; nothing where it cannot be made, or cannot be mapped.
    pub offer: &'a [u8],
}

impl<'a> PairOffer<'a> {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.window.0.emit(&mut out);
        out.extend_from_slice(self.offer);
        out
    }

    /// Takes all of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MalformedControl> {
        let mut from = FieldReader::new(bytes);
        let window = WindowId(u16::parse(&mut from)?);
        Ok(Self { window, offer: parse_grant(from)? })
    }
}

/// A grant batch of the other guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapRequest<'a> {
    /// In which window.
    pub window: WindowId,
    /// Its offset.
    pub offset: u64,
    /// Its bytes, in whole pages.
    pub bytes: u64,
    /// The grant of the other guest.
    pub grant: &'a [u8],
}

impl<'a> MapRequest<'a> {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        [self.offset, self.bytes].iter().for_each(|number| number.emit(&mut out));
        self.window.0.emit(&mut out);
        out.extend_from_slice(self.grant);
        out
    }

    /// Takes all of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MalformedControl> {
        let mut from = FieldReader::new(bytes);
        let (offset, bytes) = (u64::parse(&mut from)?, u64::parse(&mut from)?);
        let window = WindowId(u16::parse(&mut from)?);
        Ok(Self { window, offset, bytes, grant: parse_grant(from)? })
    }
}

/// Whether a grant batch of the other guest can be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapReply {
    /// In which window.
    pub window: WindowId,
    /// Its offset.
    pub offset: u64,
    /// True if the grant batch can be mapped.
    pub mapped: bool,
}

impl MapReply {
    /// Its bytes.
    pub fn emit(self) -> Vec<u8> {
        let mut out = Vec::new();
        self.offset.emit(&mut out);
        self.window.0.emit(&mut out);
        u8::from(self.mapped).emit(&mut out);
        out
    }

    /// Takes all of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, MalformedControl> {
        let mut from = FieldReader::new(bytes);
        let (offset, window) = (u64::parse(&mut from)?, WindowId(u16::parse(&mut from)?));
        let mapped = match u8::parse(&mut from)? {
            0 => false,
            1 => true,
            other => return Err(MalformedControl::Reserved(other.into())),
        };
        from.end()?;
        Ok(Self { window, offset, mapped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::grants::{FIRST_GRANT_BATCH, GRANT_DESCRIPTION_BYTES_MAX};

    const WINDOW: WindowId = WindowId(0x102);

    #[test]
    fn parse_returns_what_was_emitted() {
        for offer in [&b""[..], b"N"] {
            let invite = PairInvite { window: WINDOW, domid: 7, offer };
            assert_eq!(PairInvite::parse(&invite.emit()), Ok(invite));
            let offer = PairOffer { window: WINDOW, offer };
            assert_eq!(PairOffer::parse(&offer.emit()), Ok(offer));
        }
        let request = MapRequest { window: WINDOW, offset: FIRST_GRANT_BATCH, bytes: 4096, grant: b"G" };
        assert_eq!(MapRequest::parse(&request.emit()), Ok(request));
        for mapped in [false, true] {
            let reply = MapReply { window: WINDOW, offset: FIRST_GRANT_BATCH, mapped };
            assert_eq!(MapReply::parse(&reply.emit()), Ok(reply));
        }
    }

    #[test]
    fn parse_refuses_wrong_lengths_and_flags() {
        let reply = MapReply { window: WINDOW, offset: FIRST_GRANT_BATCH, mapped: true }.emit();
        (0..reply.len()).for_each(|cut| assert!(MapReply::parse(&reply[..cut]).is_err(), "{cut}"));
        let mut maybe = reply;
        *maybe.last_mut().unwrap() = 2;
        assert_eq!(MapReply::parse(&maybe), Err(MalformedControl::Reserved(2)));
        let request = MapRequest { window: WINDOW, offset: FIRST_GRANT_BATCH, bytes: 4096, grant: b"" }.emit();
        (0..request.len()).for_each(|cut| assert!(MapRequest::parse(&request[..cut]).is_err(), "{cut}"));
        let much = [0; GRANT_DESCRIPTION_BYTES_MAX + 1];
        assert_eq!(
            PairOffer::parse(&PairOffer { window: WINDOW, offer: &much }.emit()),
            Err(MalformedControl::TooLong(GRANT_DESCRIPTION_BYTES_MAX + 1))
        );
        assert!(PairInvite::parse(&PairInvite { window: WINDOW, domid: 7, offer: &much }.emit()).is_err());
        assert!(MapRequest::parse(&MapRequest { window: WINDOW, offset: 0, bytes: 0, grant: &much }.emit()).is_err());
    }
}
