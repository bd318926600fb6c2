//! What a guest offers to another one, with which it is to have a window in common (docs/spec/xen.md): the window's head page, and the port
//! by which either wakes the other.

use crate::grant::{Grant, GrantFault};
use crate::offer::OfferFault;
use crate::{Domid, EvtchnPort};

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 8;

/// The beginning of a window that two guests have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedHead {
    /// Where who offers hears the other one.
    pub port: EvtchnPort,
    /// The window's head page.
    pub head: Grant,
}

impl SharedHead {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![b'N', VERSION, 0, 0];
        bytes.extend(self.port.0.to_le_bytes());
        bytes.extend(self.head.emit());
        bytes
    }

    /// What `from` offers.
    pub fn parse(bytes: &[u8], from: Domid) -> Result<Self, OfferFault> {
        let (start, head) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(OfferFault::Unknown)?;
        let &[b'N', VERSION, 0, 0, ref port @ ..] = start else { return Err(OfferFault::Unknown) };
        let port = EvtchnPort(u32::from_le_bytes([port[0], port[1], port[2], port[3]]));
        let head = Grant::parse(head, from)?;
        if head.pages == 1 { Ok(Self { port, head }) } else { Err(GrantFault::Length.into()) }
    }
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

    fn offered(pages: u32) -> SharedHead {
        let refs = (0..pages).map(|page| GrantRef(11 + page)).collect();
        let head = Grant { from: from(), access: Access::ReadWrite, pages, names: Names::Inline(refs) };
        SharedHead { port: EvtchnPort(9), head }
    }

    #[test]
    fn it_begins_as_the_specification_says() {
        let bytes = offered(1).emit();
        assert_eq!(bytes, *b"N\x01\0\0\x09\0\0\0G\x01\x01\0\x01\0\0\0\x0b\0\0\0");
        assert_eq!(SharedHead::parse(&bytes, from()), Ok(offered(1)));
        (0..bytes.len()).for_each(|cut| assert!(SharedHead::parse(&bytes[..cut], from()).is_err(), "{cut}"));
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
                prop_assert_eq!(offered.emit(), bytes);
            }
        }
    }
}
