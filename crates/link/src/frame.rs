//! A frame that is to be sent: up to three parts, gathered by the kernel.

use isthmus_layout::NicId;
use isthmus_shm::Gather;

/// Bytes of an Ethernet header: two addresses and the ethertype.
pub const HEADER_BYTES: usize = 14;

/// What is sent as one Ethernet frame: its head, its data from wherever they lie, its padding.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Invariant: begins with an Ethernet header.
    head: &'a [u8],
    data: Gather<'a>,
    pad: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A frame that begins with `head`, which is ours and has the whole Ethernet header; `data` may be a peer's memory.
    ///
    /// # Panics
    ///
    /// If `head` is shorter than an Ethernet header.
    pub fn new(head: &'a [u8], data: impl Into<Gather<'a>>, pad: &'a [u8]) -> Self {
        assert!(head.len() >= HEADER_BYTES); // Ours: heads come from an engine.
        Self { head, data: data.into(), pad }
    }

    /// A frame that lies in one piece.
    ///
    /// # Panics
    ///
    /// If it is shorter than an Ethernet header.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Self::new(bytes, Gather::EMPTY, &[])
    }

    /// Bytes of all parts, the Ethernet header among them.
    #[expect(clippy::len_without_is_empty, reason = "it has an Ethernet header at least")]
    pub fn len(&self) -> usize {
        self.head.len() + self.data.len() + self.pad.len()
    }

    /// Whom it is for.
    pub fn destination(&self) -> NicId {
        nic(self.head, 0).expect("a frame begins with an Ethernet header")
    }

    /// Its parts in order; some may be empty.
    pub fn parts(&self) -> [Gather<'a>; 3] {
        [self.head.into(), self.data, self.pad.into()]
    }
}

/// An address as it stands in frames.
pub fn octets(nic: NicId) -> [u8; 6] {
    let [_, _, a, b, c, d, e, f] = nic.number().to_be_bytes();
    [a, b, c, d, e, f]
}

/// The address at a place of a frame, if the frame reaches so far.
pub(crate) fn nic(frame: &[u8], at: usize) -> Option<NicId> {
    let octets = frame.get(at..at + 6)?;
    Some(NicId::from_octets(octets.try_into().expect("six octets were taken")))
}

/// Whether frames for this address are for many: broadcast or multicast.
pub(crate) fn is_group(nic: NicId) -> bool {
    octets(nic)[0] & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_knows_its_length_and_whom_it_is_for() {
        let head = [2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 8, 0x86, 0xDF, 1, 2];
        let frame = Frame::new(&head, &[0; 20][..], &[0; 24]);
        assert_eq!((frame.len(), frame.destination()), (60, NicId::from_octets([2, 0, 0, 0, 0, 7])));
        assert_eq!(octets(frame.destination()), head[..6]);
        assert!(!is_group(frame.destination()) && is_group(NicId::from_octets([0xFF; 6])));
        assert_eq!((nic(&head, 6), nic(&head, 11)), (Some(NicId::from_octets([2, 0, 0, 0, 0, 8])), None));
    }
}
