//! The offers of one guest to another guest with which it is to share a pair window (docs/spec/xen.md): first the window's head page, then
//! grant batches. Each comes with a port by which either guest wakes the other.

use crate::grant::{XenGrant, XenGrantError};
use crate::offer::OfferError;
use crate::{Domid, EvtchnPort};

const VERSION: u8 = 1;
const START_BYTES: usize = 8;

/// The beginning of a pair window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedHead {
    /// The port by which the peer's daemon notifies the daemon of the offering guest.
    pub port: EvtchnPort,
    /// The window's head page.
    pub head: XenGrant,
}

/// A grant batch of a pair window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedBatch {
    /// The offering guest's end of the batch's event channel, if it has one. It is never port 0, because no channel has that number.
    pub event_channel: Option<EvtchnPort>,
    /// The pages of the batch.
    pub pages: XenGrant,
}

impl SharedHead {
    /// Returns the encoded offer.
    pub fn emit(&self) -> Vec<u8> {
        emit(b'N', self.port.0, &self.head)
    }

    /// Parses an offer of `from`.
    pub fn parse(bytes: &[u8], from: Domid) -> Result<Self, OfferError> {
        let (port, head) = parse(b'N', bytes, from)?;
        if head.pages == 1 { Ok(Self { port: EvtchnPort(port), head }) } else { Err(XenGrantError::Length.into()) }
    }
}

impl SharedBatch {
    /// Returns the encoded batch.
    pub fn emit(&self) -> Vec<u8> {
        emit(b'L', self.event_channel.map_or(0, |port| port.0), &self.pages)
    }

    /// Parses a batch of `from`.
    pub fn parse(bytes: &[u8], from: Domid) -> Result<Self, OfferError> {
        let (port, pages) = parse(b'L', bytes, from)?;
        Ok(Self { event_channel: Some(EvtchnPort(port)).filter(|port| port.0 != 0), pages })
    }
}

fn emit(kind: u8, port: u32, grant: &XenGrant) -> Vec<u8> {
    let mut bytes = vec![kind, VERSION, 0, 0];
    bytes.extend(port.to_le_bytes());
    bytes.extend(grant.emit());
    bytes
}

fn parse(kind: u8, bytes: &[u8], from: Domid) -> Result<(u32, XenGrant), OfferError> {
    let (start, grant) = bytes.split_first_chunk::<START_BYTES>().ok_or(OfferError::Unknown)?;
    let &[is, VERSION, 0, 0, ref port @ ..] = start else { return Err(OfferError::Unknown) };
    if is != kind {
        return Err(OfferError::Unknown);
    }
    Ok((u32::from_le_bytes([port[0], port[1], port[2], port[3]]), XenGrant::parse(grant, from)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GrantRef, GrantRefs};
    use isthmus_shm::Access;
    use proptest::prelude::*;

    fn from() -> Domid {
        Domid::new(7).unwrap()
    }

    fn granted(pages: u32) -> XenGrant {
        let refs = (0..pages).map(|page| GrantRef(11 + page)).collect();
        XenGrant { from: from(), access: Access::ReadWrite, pages, refs: GrantRefs::Inline(refs) }
    }

    fn offered(pages: u32) -> SharedHead {
        SharedHead { port: EvtchnPort(9), head: granted(pages) }
    }

    #[test]
    fn shared_head_has_the_specified_bytes() {
        let bytes = offered(1).emit();
        assert_eq!(bytes, *b"N\x01\0\0\x09\0\0\0G\x01\x01\0\x01\0\0\0\x0b\0\0\0");
        assert_eq!(SharedHead::parse(&bytes, from()), Ok(offered(1)));
        (0..bytes.len()).for_each(|cut| assert!(SharedHead::parse(&bytes[..cut], from()).is_err(), "{cut}"));
    }

    #[test]
    fn batch_has_an_event_channel_or_none() {
        for (event_channel, port) in [(Some(EvtchnPort(9)), b"\x09\0\0\0"), (None, b"\0\0\0\0")] {
            let batch = SharedBatch { event_channel, pages: granted(2) };
            let bytes = batch.emit();
            assert_eq!((&bytes[..4], &bytes[4..8]), (&b"L\x01\0\0"[..], &port[..]));
            assert_eq!(SharedBatch::parse(&bytes, from()), Ok(batch));
            assert_eq!(SharedHead::parse(&bytes, from()), Err(OfferError::Unknown));
            (0..bytes.len()).for_each(|cut| assert!(SharedBatch::parse(&bytes[..cut], from()).is_err(), "{cut}"));
        }
    }

    #[test]
    fn rejects_a_head_of_more_than_one_page() {
        assert_eq!(SharedHead::parse(&offered(2).emit(), from()), Err(XenGrantError::Length.into()));
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
            if let Ok(batch) = SharedBatch::parse(&bytes, from()) {
                prop_assert_eq!(batch.emit(), bytes);
            }
        }
    }
}
