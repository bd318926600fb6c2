//! What a guest offers to another one, with which it is to have a window in common (docs/spec/xen.md): the window's head page, and lots
//! after that; each with a port by which either wakes the other.

use crate::grant::{Grant, GrantFault};
use crate::offer::OfferFault;
use crate::{Domid, EvtchnPort};

const VERSION: u8 = 1;
const START_BYTES: usize = 8;

/// The beginning of a window that two guests have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedHead {
    /// Where the daemon of who offers hears the other one's.
    pub port: EvtchnPort,
    /// The window's head page.
    pub head: Grant,
}

/// A lot of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedLot {
    /// The end here of the lot's line, if it has one. Never port 0: no channel has that.
    pub line: Option<EvtchnPort>,
    /// Its pages.
    pub pages: Grant,
}

impl SharedHead {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        emit(b'N', self.port.0, &self.head)
    }

    /// What `from` offers.
    pub fn parse(bytes: &[u8], from: Domid) -> Result<Self, OfferFault> {
        let (port, head) = parse(b'N', bytes, from)?;
        if head.pages == 1 { Ok(Self { port: EvtchnPort(port), head }) } else { Err(GrantFault::Length.into()) }
    }
}

impl SharedLot {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        emit(b'L', self.line.map_or(0, |port| port.0), &self.pages)
    }

    /// What `from` offers.
    pub fn parse(bytes: &[u8], from: Domid) -> Result<Self, OfferFault> {
        let (port, pages) = parse(b'L', bytes, from)?;
        Ok(Self { line: Some(EvtchnPort(port)).filter(|port| port.0 != 0), pages })
    }
}

fn emit(kind: u8, port: u32, grant: &Grant) -> Vec<u8> {
    let mut bytes = vec![kind, VERSION, 0, 0];
    bytes.extend(port.to_le_bytes());
    bytes.extend(grant.emit());
    bytes
}

fn parse(kind: u8, bytes: &[u8], from: Domid) -> Result<(u32, Grant), OfferFault> {
    let (start, grant) = bytes.split_first_chunk::<START_BYTES>().ok_or(OfferFault::Unknown)?;
    let &[is, VERSION, 0, 0, ref port @ ..] = start else { return Err(OfferFault::Unknown) };
    if is != kind {
        return Err(OfferFault::Unknown);
    }
    Ok((u32::from_le_bytes([port[0], port[1], port[2], port[3]]), Grant::parse(grant, from)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GrantRef, Names};
    use isthmus_shm::Access;
    use proptest::prelude::*;

    fn from() -> Domid {
        Domid::new(7).unwrap()
    }

    fn granted(pages: u32) -> Grant {
        let refs = (0..pages).map(|page| GrantRef(11 + page)).collect();
        Grant { from: from(), access: Access::ReadWrite, pages, names: Names::Inline(refs) }
    }

    fn offered(pages: u32) -> SharedHead {
        SharedHead { port: EvtchnPort(9), head: granted(pages) }
    }

    #[test]
    fn it_begins_as_the_specification_says() {
        let bytes = offered(1).emit();
        assert_eq!(bytes, *b"N\x01\0\0\x09\0\0\0G\x01\x01\0\x01\0\0\0\x0b\0\0\0");
        assert_eq!(SharedHead::parse(&bytes, from()), Ok(offered(1)));
        (0..bytes.len()).for_each(|cut| assert!(SharedHead::parse(&bytes[..cut], from()).is_err(), "{cut}"));
    }

    #[test]
    fn a_lot_has_a_line_or_none() {
        for (line, port) in [(Some(EvtchnPort(9)), b"\x09\0\0\0"), (None, b"\0\0\0\0")] {
            let lot = SharedLot { line, pages: granted(2) };
            let bytes = lot.emit();
            assert_eq!((&bytes[..4], &bytes[4..8]), (&b"L\x01\0\0"[..], &port[..]));
            assert_eq!(SharedLot::parse(&bytes, from()), Ok(lot));
            assert_eq!(SharedHead::parse(&bytes, from()), Err(OfferFault::Unknown));
            (0..bytes.len()).for_each(|cut| assert!(SharedLot::parse(&bytes[..cut], from()).is_err(), "{cut}"));
        }
    }

    #[test]
    fn a_head_of_more_than_a_page_is_refused() {
        assert_eq!(SharedHead::parse(&offered(2).emit(), from()), Err(GrantFault::Length.into()));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..40), honest in 0..20_usize) {
            let mut bytes = bytes;
            let head = offered(1).emit();
            let same = honest.min(bytes.len());
            bytes[..same].copy_from_slice(&head[..same]);
            if let Ok(offered) = SharedHead::parse(&bytes, from()) {
                prop_assert_eq!(offered.emit(), &*bytes);
            }
            bytes.iter_mut().take(1).for_each(|kind| *kind = b'L');
            if let Ok(lot) = SharedLot::parse(&bytes, from()) {
                prop_assert_eq!(lot.emit(), bytes);
            }
        }
    }
}
