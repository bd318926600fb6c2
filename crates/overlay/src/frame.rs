//! The header of an Ethernet frame: addresses, VLAN tags and EtherType.
//!
//! ```text
//!   destination (6) │ source (6) │ tags (4 each: 0x8100 or 0x88a8, then priority and VID) │ EtherType (2) │ payload
//! ```
//!
//! A frame comes from a guest or from the network, so every length and every number of tags is possible.

use crate::mac::MacAddr;

/// Bytes of a header without tags.
pub const HEADER_BYTES: usize = 14;

/// The number of tags that [`FrameHeader::parse`] reads. Further ones count as payload, so a frame full of tags costs no more.
pub const TAGS_MAX: usize = 8;

const TAG_BYTES: usize = 4;
const TYPE_AT: usize = 12;
const TPID_802_1Q: u16 = 0x8100;
const TPID_802_1AD: u16 = 0x88a8;
const VID_MASK: u16 = 0x0fff;

/// The header of an Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The station or group that the frame is for.
    pub destination: MacAddr,
    /// The station that sent the frame.
    pub source: MacAddr,
    /// The VLAN of the outermost tag. `None` without tags, or if that tag carries a priority only (VID 0).
    pub vlan: Option<u16>,
    /// The EtherType behind the tags.
    pub ethertype: u16,
    /// The number of bytes before the payload.
    pub header_bytes: usize,
}

/// The reason why a frame has no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame ends before its EtherType.
    #[error("the frame has {have} bytes, which are less than an Ethernet header")]
    TooShort {
        /// The length of the frame.
        have: usize,
    },
    /// The frame ends inside a VLAN tag or before the EtherType that follows it.
    #[error("the frame of {have} bytes ends inside its VLAN tags")]
    TagCut {
        /// The length of the frame.
        have: usize,
    },
}

impl FrameHeader {
    /// Returns the header of a frame without tags and payload.
    pub const fn untagged(destination: MacAddr, source: MacAddr) -> Self {
        Self { destination, source, vlan: None, ethertype: 0, header_bytes: HEADER_BYTES }
    }

    /// Reads the header at the start of a frame.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<Self, FrameError> {
        let have = frame.len();
        let (addresses, _) = frame.split_first_chunk::<HEADER_BYTES>().ok_or(FrameError::TooShort { have })?;
        let [a, b, c, d, e, f, g, h, i, j, k, l, type_high, type_low] = *addresses;
        let mut header = Self {
            destination: MacAddr([a, b, c, d, e, f]),
            source: MacAddr([g, h, i, j, k, l]),
            vlan: None,
            ethertype: u16::from_be_bytes([type_high, type_low]),
            header_bytes: HEADER_BYTES,
        };
        if matches!(header.ethertype, TPID_802_1Q | TPID_802_1AD) {
            header.parse_tags(frame)?;
        }
        Ok(header)
    }

    fn parse_tags(&mut self, frame: &[u8]) -> Result<(), FrameError> {
        for tag in 0..TAGS_MAX {
            if !matches!(self.ethertype, TPID_802_1Q | TPID_802_1AD) {
                break;
            }
            let at = TYPE_AT + tag * TAG_BYTES + 2;
            let Some([control_high, control_low, type_high, type_low]) = frame.get(at..at + TAG_BYTES) else {
                return Err(FrameError::TagCut { have: frame.len() });
            };
            let vid = u16::from_be_bytes([*control_high, *control_low]) & VID_MASK;
            if tag == 0 && vid != 0 {
                self.vlan = Some(vid);
            }
            self.ethertype = u16::from_be_bytes([*type_high, *type_low]);
            self.header_bytes += TAG_BYTES;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const ADDRESSES: [u8; 12] = [0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2];

    fn frame(rest: &[u8]) -> Vec<u8> {
        [&ADDRESSES[..], rest].concat()
    }

    #[test]
    fn reads_a_frame_without_tags() {
        let header = FrameHeader::parse(&frame(&[0x08, 0x00, 0x45])).unwrap();
        assert_eq!(header.destination, MacAddr([0x02, 0, 0, 0, 0, 1]));
        assert_eq!(header.source, MacAddr([0x02, 0, 0, 0, 0, 2]));
        assert_eq!((header.vlan, header.ethertype, header.header_bytes), (None, 0x0800, 14));
    }

    #[test]
    fn reads_the_vid_of_the_outermost_tag_and_the_type_behind_all() {
        let header = FrameHeader::parse(&frame(&[0x88, 0xa8, 0xe1, 0x23, 0x81, 0x00, 0x00, 0x07, 0x86, 0xdd])).unwrap();
        assert_eq!((header.vlan, header.ethertype, header.header_bytes), (Some(0x123), 0x86dd, 22));
        let header = FrameHeader::parse(&frame(&[0x81, 0x00, 0xff, 0xff, 0x08, 0x06])).unwrap();
        assert_eq!((header.vlan, header.ethertype, header.header_bytes), (Some(0xfff), 0x0806, 18));
    }

    #[test]
    fn a_priority_tag_names_no_vlan() {
        let header = FrameHeader::parse(&frame(&[0x81, 0x00, 0xe0, 0x00, 0x08, 0x00])).unwrap();
        assert_eq!((header.vlan, header.ethertype, header.header_bytes), (None, 0x0800, 18));
        let header = FrameHeader::parse(&frame(&[0x81, 0x00, 0xe0, 0x00, 0x81, 0x00, 0, 5, 0x08, 0x00])).unwrap();
        assert_eq!((header.vlan, header.header_bytes), (None, 22), "the VLAN is that of the outermost tag");
    }

    #[test]
    fn names_the_cut_at_every_length() {
        let whole = frame(&[0x81, 0x00, 0, 1, 0x81, 0x00, 0, 2, 0x08, 0x00]);
        for have in 0..whole.len() {
            let expected = if have < 14 { FrameError::TooShort { have } } else { FrameError::TagCut { have } };
            assert_eq!(FrameHeader::parse(&whole[..have]), Err(expected));
        }
        assert!(FrameHeader::parse(&whole).is_ok());
    }

    #[test]
    fn reads_at_most_eight_tags() {
        let tags = |count: usize| frame(&[&[0x81, 0x00, 0, 1].repeat(count)[..], &[0x08, 0x00]].concat());
        let header = FrameHeader::parse(&tags(8)).unwrap();
        assert_eq!((header.ethertype, header.header_bytes), (0x0800, 46));
        let header = FrameHeader::parse(&tags(9)).unwrap();
        assert_eq!((header.ethertype, header.header_bytes), (0x8100, 46));
    }

    proptest! {
        #[test]
        fn never_panics_and_never_passes_the_end(bytes in prop::collection::vec(prop::sample::select(alloc::vec![0x81, 0, 0x88, 0xa8]), 0..64)) {
            if let Ok(header) = FrameHeader::parse(&bytes) {
                prop_assert!(header.header_bytes <= bytes.len());
            }
        }
    }
}
