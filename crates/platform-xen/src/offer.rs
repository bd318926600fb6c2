//! The offer of a guest's daemon to its backend, part of its advertisement (docs/spec/xen.md): a window, and the port that wakes the guest.

use crate::grant::{XenGrant, XenGrantError};
use crate::{Domid, EvtchnPort};

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 16;

/// The offer of a window by a guest to its backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The backend to which this is offered.
    pub backend: Domid,
    /// The incarnation of the backend's daemon. A daemon of another incarnation ignores the offer.
    pub incarnation: u64,
    /// The port by which the backend notifies the guest.
    pub port: EvtchnPort,
    /// The window's head page.
    pub head: XenGrant,
    /// The window's proxy ring.
    pub proxy_ring: XenGrant,
}

/// Bytes that are not an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// The bytes are no offer, or one of another version.
    #[error("no offer that we can read")]
    Unknown,
    /// One of the grants is invalid.
    #[error(transparent)]
    Grant(#[from] XenGrantError),
}

impl Offer {
    /// Returns the encoded offer.
    pub fn emit(&self) -> Vec<u8> {
        let head = self.head.emit();
        let mut bytes = vec![b'W', VERSION];
        bytes.extend(self.backend.number().to_le_bytes());
        bytes.extend(self.incarnation.to_le_bytes());
        bytes.extend(self.port.0.to_le_bytes());
        bytes.push(head.len() as u8); // A grant with inline references has at most 72 bytes.
        bytes.extend(head);
        bytes.extend(self.proxy_ring.emit());
        bytes
    }

    /// Parses an offer of `from`.
    pub fn parse(bytes: &[u8], from: Domid) -> Result<Self, OfferError> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(OfferError::Unknown)?;
        let &[b'W', VERSION, backend0, backend1, ref numbers @ ..] = head else { return Err(OfferError::Unknown) };
        let backend = Domid::new(u16::from_le_bytes([backend0, backend1])).ok_or(OfferError::Unknown)?;
        let (incarnation, port) = numbers.split_at(8);
        let (Ok(incarnation), Ok(port)) = (incarnation.try_into(), port.try_into()) else {
            return Err(OfferError::Unknown);
        };
        let (&len, rest) = rest.split_first().ok_or(OfferError::Unknown)?;
        let (head, proxy_ring) = rest.split_at_checked(len.into()).ok_or(OfferError::Unknown)?;
        Ok(Self {
            backend,
            incarnation: u64::from_le_bytes(incarnation),
            port: EvtchnPort(u32::from_le_bytes(port)),
            head: XenGrant::parse(head, from)?,
            proxy_ring: XenGrant::parse(proxy_ring, from)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::OFFER_BYTES_MAX;
    use crate::{GrantRef, GrantRefs, INLINE_MAX};
    use isthmus_shm::Access;
    use proptest::prelude::*;

    fn offer() -> Offer {
        let from = Domid::new(7).unwrap();
        let grant = |pages, refs| XenGrant { from, access: Access::ReadWrite, pages, refs };
        Offer {
            backend: Domid::new(5).unwrap(),
            incarnation: 0x0102_0304_0506_0708,
            port: EvtchnPort(9),
            head: grant(1, GrantRefs::Inline(vec![GrantRef(11)])),
            proxy_ring: grant(70, GrantRefs::Listed(GrantRef(258))),
        }
    }

    #[test]
    fn an_offer_begins_as_the_specification_says() {
        let bytes = offer().emit();
        assert_eq!(bytes[..16], *b"W\x01\x05\0\x08\x07\x06\x05\x04\x03\x02\x01\x09\0\0\0");
        assert_eq!(bytes[16..18], *b"\x0cG");
        assert_eq!(Offer::parse(&bytes, Domid::new(7).unwrap()), Ok(offer()));
        let refs = GrantRefs::Inline(vec![GrantRef(u32::MAX); INLINE_MAX]);
        let largest = XenGrant { pages: INLINE_MAX as u32, refs, ..offer().head };
        let largest = Offer { head: largest.clone(), proxy_ring: largest, ..offer() };
        assert_eq!(Offer::parse(&largest.emit(), Domid::new(7).unwrap()), Ok(largest.clone()));
        assert!(largest.emit().len() <= OFFER_BYTES_MAX);
    }

    #[test]
    fn an_offer_cut_anywhere_is_refused() {
        let bytes = offer().emit();
        (0..bytes.len()).for_each(|cut| assert!(Offer::parse(&bytes[..cut], Domid::ZERO).is_err(), "{cut}"));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), honest in 0..30_usize) {
            let mut bytes = bytes;
            let head = offer().emit();
            let same = honest.min(bytes.len());
            bytes[..same].copy_from_slice(&head[..same]);
            if let Ok(offer) = Offer::parse(&bytes, Domid::ZERO) {
                prop_assert_eq!(offer.emit(), bytes);
            }
        }
    }
}
