//! Windows that are made of *lots*: under Xen, pages are granted when they are allocated, so a window has no bytes that could become
//! something else.
//!
//! ```text
//!  place 0         a lot of one page: the head page, with the words below in it
//!  place 4096      a lot: the crossing
//!  above           a lot for each piece: the host says what it wants, the guest allocates and grants it, it is a piece once
//! ```
//!
//! Places of lots are names, chosen by the host, none twice. A piece that is withdrawn is gone with its lot. There is one event channel
//! between the daemons, so which vector was rung stands in the head page; the daemons pass rings on, of programs and of workers.

use alloc::vec::Vec;

use super::{CROSSING, CROSSING_AT, FRAME_BYTES_MAX, WindowNumber};
use crate::control::{Field, MalformedControl, Reader};
use crate::limits::PAGE_BYTES;

/// First word of the head page in which the host says which of the guest's vectors it has rung, a bit each.
pub const HOST_RANG_WORD: u32 = 160;
/// First word of the head page in which the guest says which of the host's vectors it has rung, a bit each.
pub const GUEST_RANG_WORD: u32 = 192;
/// Words of either.
pub const RANG_WORDS: u32 = 4;
/// Vectors that there can be, each way.
pub const VECTORS_MAX: u16 = RANG_WORDS as u16 * 32;

/// Word of the head page: 1 from when the guest offers the window; its kernel makes it 0 when the guest's daemon is gone.
pub const GUEST_THERE_WORD: u32 = 224;
/// Word of the head page: 1 from when the host has mapped the window; its kernel makes it 0 when the host's daemon maps it no longer.
pub const HOST_THERE_WORD: u32 = 256;
const _: () = assert!(4 * HOST_THERE_WORD < PAGE_BYTES);

/// Bytes of a lot are no more.
pub const LOT_BYTES_MAX: u64 = 16 << 20;

/// The first place of a lot that is to be a piece.
pub const FIRST_LOT: u64 = (CROSSING_AT + CROSSING.size().0).next_multiple_of(PAGE_BYTES as u64);

/// Bytes that tell the other side how to map a lot are no more.
pub const GRANT_BYTES_MAX: usize = 256;
const _: () = assert!(GRANT_BYTES_MAX + 32 <= FRAME_BYTES_MAX);

/// A lot that the host wants to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// In which window.
    pub window: WindowNumber,
    /// Its place.
    pub place: u64,
    /// Its bytes, in whole pages.
    pub bytes: u64,
}

impl Wanted {
    /// Its bytes.
    pub fn emit(self) -> Vec<u8> {
        let mut out = Vec::new();
        [self.place, self.bytes].iter().for_each(|number| number.emit(&mut out));
        self.window.0.emit(&mut out);
        out
    }

    /// Takes all of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, MalformedControl> {
        let mut from = Reader::new(bytes);
        let (place, bytes) = (u64::parse(&mut from)?, u64::parse(&mut from)?);
        let wanted = Self { window: WindowNumber(u16::parse(&mut from)?), place, bytes };
        from.end()?;
        Ok(wanted)
    }
}

/// A lot that the guest has allocated, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lot<'a> {
    /// In which window.
    pub window: WindowNumber,
    /// Its place.
    pub place: u64,
    /// What the platform says of it, for whoever is to map it; nothing where the guest has no memory or no grants left.
    pub grant: &'a [u8],
}

impl<'a> Lot<'a> {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.place.emit(&mut out);
        self.window.0.emit(&mut out);
        out.extend_from_slice(self.grant);
        out
    }

    /// Takes all of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MalformedControl> {
        let mut from = Reader::new(bytes);
        let (place, window) = (u64::parse(&mut from)?, WindowNumber(u16::parse(&mut from)?));
        Ok(Self { window, place, grant: grant(from)? })
    }
}

/// What is left: a grant.
pub(super) fn grant(from: Reader<'_>) -> Result<&[u8], MalformedControl> {
    let grant = from.rest();
    if grant.len() > GRANT_BYTES_MAX { Err(MalformedControl::TooLong(grant.len())) } else { Ok(grant) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_emitted_is_parsed() {
        let wanted = Wanted { window: WindowNumber(3), place: FIRST_LOT, bytes: 4096 };
        assert_eq!(Wanted::parse(&wanted.emit()), Ok(wanted));
        let lot = Lot { window: WindowNumber(3), place: FIRST_LOT, grant: b"G" };
        assert_eq!(Lot::parse(&lot.emit()), Ok(lot));
        let none = Lot { window: WindowNumber(3), place: FIRST_LOT, grant: b"" };
        assert_eq!(Lot::parse(&none.emit()), Ok(none));
    }

    #[test]
    fn what_is_too_long_or_too_short_is_refused() {
        let wanted = Wanted { window: WindowNumber(3), place: FIRST_LOT, bytes: 4096 }.emit();
        (0..wanted.len()).for_each(|cut| assert!(Wanted::parse(&wanted[..cut]).is_err(), "{cut}"));
        (0..10).for_each(|cut| assert!(Lot::parse(&wanted[..cut]).is_err(), "{cut}"));
        let long = Lot { window: WindowNumber(3), place: FIRST_LOT, grant: &[0; GRANT_BYTES_MAX + 1] }.emit();
        assert_eq!(Lot::parse(&long), Err(MalformedControl::TooLong(GRANT_BYTES_MAX + 1)));
    }
}
