//! Windows that two guests have in common and not even the host sees: one guest grants its pages to the other (under Xen).
//!
//! ```text
//!   guest that grants                         host                         guest that maps
//!     ◄──────────────── Share: with whom ──────┤
//!     ├─ a head page, a port: Offer ──────────►├──── Share, Offer ────────────────────────►
//!     ├─ Plugged ─────────────────────────────►│◄──────────────────────────────── Plugged ─┤
//!     ◄──────────────────────── Wanted, a lot ─┤
//!     ├─ Lot: the grant ──────────────────────►├──── Lend: the grant ─────────────────────►
//!                                              │◄────────────────────────── Lent: it is one ┤
//! ```
//!
//! The host decides who has one and which lot is a piece, and passes on what the one says to the other. Its numbers and places are
//! trusted by both; what the guests say of one another is not.
//!
//! A lot of one page comes with a line: an event channel of its own, an end in each guest. It is room for a board, and the domain whose
//! board it becomes hears those of the other guest by it without either daemon ([`Handed::Line`](super::Handed::Line)).

use alloc::vec::Vec;

use super::WindowNumber;
use super::lots::grant;
use crate::control::{Field, MalformedControl, Reader};

/// The guest is to have a window in common with another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share<'a> {
    /// What both call it.
    pub window: WindowNumber,
    /// Who the other one is, as the hypervisor counts domains.
    pub domain: u16,
    /// What the other one offers, for the platform; nothing for the guest that is to offer it.
    pub offer: &'a [u8],
}

impl<'a> Share<'a> {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        [self.window.0, self.domain].iter().for_each(|number| number.emit(&mut out));
        out.extend_from_slice(self.offer);
        out
    }

    /// Takes all of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MalformedControl> {
        let mut from = Reader::new(bytes);
        let (window, domain) = (WindowNumber(u16::parse(&mut from)?), u16::parse(&mut from)?);
        Ok(Self { window, domain, offer: grant(from)? })
    }
}

/// What a guest offers of a common window that it was to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer<'a> {
    /// Which.
    pub window: WindowNumber,
    /// For the other guest's platform; nothing where it cannot be made, or cannot be mapped.
    pub offer: &'a [u8],
}

impl<'a> Offer<'a> {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.window.0.emit(&mut out);
        out.extend_from_slice(self.offer);
        out
    }

    /// Takes all of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MalformedControl> {
        let mut from = Reader::new(bytes);
        let window = WindowNumber(u16::parse(&mut from)?);
        Ok(Self { window, offer: grant(from)? })
    }
}

/// A lot of the other guest's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lend<'a> {
    /// In which window.
    pub window: WindowNumber,
    /// Its place.
    pub place: u64,
    /// Its bytes, in whole pages.
    pub bytes: u64,
    /// What the other guest says of it.
    pub grant: &'a [u8],
}

impl<'a> Lend<'a> {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        [self.place, self.bytes].iter().for_each(|number| number.emit(&mut out));
        self.window.0.emit(&mut out);
        out.extend_from_slice(self.grant);
        out
    }

    /// Takes all of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MalformedControl> {
        let mut from = Reader::new(bytes);
        let (place, bytes) = (u64::parse(&mut from)?, u64::parse(&mut from)?);
        let window = WindowNumber(u16::parse(&mut from)?);
        Ok(Self { window, place, bytes, grant: grant(from)? })
    }
}

/// Whether a lot of the other guest's can be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// In which window.
    pub window: WindowNumber,
    /// Its place.
    pub place: u64,
    /// It can.
    pub good: bool,
}

impl Lent {
    /// Its bytes.
    pub fn emit(self) -> Vec<u8> {
        let mut out = Vec::new();
        self.place.emit(&mut out);
        self.window.0.emit(&mut out);
        u8::from(self.good).emit(&mut out);
        out
    }

    /// Takes all of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, MalformedControl> {
        let mut from = Reader::new(bytes);
        let (place, window) = (u64::parse(&mut from)?, WindowNumber(u16::parse(&mut from)?));
        let good = match u8::parse(&mut from)? {
            0 => false,
            1 => true,
            other => return Err(MalformedControl::Reserved(other.into())),
        };
        from.end()?;
        Ok(Self { window, place, good })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::border::lots::{FIRST_LOT, GRANT_BYTES_MAX};

    const WINDOW: WindowNumber = WindowNumber(0x102);

    #[test]
    fn what_is_emitted_is_parsed() {
        for offer in [&b""[..], b"N"] {
            let share = Share { window: WINDOW, domain: 7, offer };
            assert_eq!(Share::parse(&share.emit()), Ok(share));
            let offer = Offer { window: WINDOW, offer };
            assert_eq!(Offer::parse(&offer.emit()), Ok(offer));
        }
        let lend = Lend { window: WINDOW, place: FIRST_LOT, bytes: 4096, grant: b"G" };
        assert_eq!(Lend::parse(&lend.emit()), Ok(lend));
        for good in [false, true] {
            let lent = Lent { window: WINDOW, place: FIRST_LOT, good };
            assert_eq!(Lent::parse(&lent.emit()), Ok(lent));
        }
    }

    #[test]
    fn what_is_too_long_or_too_short_or_neither_yes_nor_no_is_refused() {
        let lent = Lent { window: WINDOW, place: FIRST_LOT, good: true }.emit();
        (0..lent.len()).for_each(|cut| assert!(Lent::parse(&lent[..cut]).is_err(), "{cut}"));
        let mut maybe = lent;
        *maybe.last_mut().unwrap() = 2;
        assert_eq!(Lent::parse(&maybe), Err(MalformedControl::Reserved(2)));
        let lend = Lend { window: WINDOW, place: FIRST_LOT, bytes: 4096, grant: b"" }.emit();
        (0..lend.len()).for_each(|cut| assert!(Lend::parse(&lend[..cut]).is_err(), "{cut}"));
        let much = [0; GRANT_BYTES_MAX + 1];
        assert_eq!(
            Offer::parse(&Offer { window: WINDOW, offer: &much }.emit()),
            Err(MalformedControl::TooLong(GRANT_BYTES_MAX + 1))
        );
        assert!(Share::parse(&Share { window: WINDOW, domain: 7, offer: &much }.emit()).is_err());
        assert!(Lend::parse(&Lend { window: WINDOW, place: 0, bytes: 0, grant: &much }.emit()).is_err());
    }
}
