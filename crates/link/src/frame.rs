//! A frame to send: up to three parts, gathered by the kernel.

use isthmus_layout::NicId;
use isthmus_shm::Gather;

/// The size of an Ethernet header: two addresses and the ethertype.
pub const HEADER_BYTES: usize = 14;

/// An Ethernet frame to send: its head, its data from any memory, its padding.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Invariant: begins with an Ethernet header.
    head: &'a [u8],
    data: Gather<'a>,
    pad: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Creates a frame. `head` is our own memory and contains the whole Ethernet header; `data` may be a peer's memory.
    ///
    /// # Panics
    ///
    /// Panics if `head` is shorter than an Ethernet header.
    pub fn new(head: &'a [u8], data: impl Into<Gather<'a>>, pad: &'a [u8]) -> Self {
        assert!(head.len() >= HEADER_BYTES); // Heads come from an engine of this process.
        Self { head, data: data.into(), pad }
    }

    /// Creates a frame from one contiguous slice.
    ///
    /// # Panics
    ///
    /// Panics if `bytes` is shorter than an Ethernet header.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Self::new(bytes, Gather::EMPTY, &[])
    }

    /// Returns the number of bytes of all parts, including the Ethernet header.
    #[expect(clippy::len_without_is_empty, reason = "it has an Ethernet header at least")]
    pub fn len(&self) -> usize {
        self.head.len() + self.data.len() + self.pad.len()
    }

    /// Returns the destination address.
    pub fn destination(&self) -> NicId {
        nic(self.head, 0).expect("a frame begins with an Ethernet header")
    }

    /// Returns the parts in order; some may be empty.
    pub fn parts(&self) -> [Gather<'a>; 3] {
        [self.head.into(), self.data, self.pad.into()]
    }
}

/// Returns the bytes of an address in a frame.
pub fn octets(nic: NicId) -> [u8; 6] {
    let [_, _, a, b, c, d, e, f] = nic.number().to_be_bytes();
    [a, b, c, d, e, f]
}

/// Returns the address at an offset of a frame, if the frame is long enough.
pub(crate) fn nic(frame: &[u8], at: usize) -> Option<NicId> {
    let octets = frame.get(at..at + 6)?;
    Some(NicId::from_octets(octets.try_into().expect("six octets were taken")))
}

/// Returns true if the address is a broadcast or multicast address.
pub(crate) fn is_group(nic: NicId) -> bool {
    octets(nic)[0] & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_has_a_length_and_a_destination() {
        let head = [2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 8, 0x86, 0xDF, 1, 2];
        let frame = Frame::new(&head, &[0; 20][..], &[0; 24]);
        assert_eq!((frame.len(), frame.destination()), (60, NicId::from_octets([2, 0, 0, 0, 0, 7])));
        assert_eq!(octets(frame.destination()), head[..6]);
        assert!(!is_group(frame.destination()) && is_group(NicId::from_octets([0xFF; 6])));
        assert_eq!((nic(&head, 6), nic(&head, 11)), (Some(NicId::from_octets([2, 0, 0, 0, 0, 8])), None));
    }
}
