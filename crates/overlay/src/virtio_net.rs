//! The header of 12 bytes before each frame of a TAP: which checksum is missing, and how the frame is to be cut (virtio 1.2, 5.1.6).
//!
//! ```text
//!   0 flags   1 gso_type   2 hdr_len   4 gso_size   6 csum_start   8 csum_offset   10 num_buffers       little-endian
//! ```
//!
//! Guests and other hosts write it, so [`VirtioNetHeader::parse`] compares each field with the frame. What it permits, the kernel permits.

use core::num::NonZeroU16;

use thiserror::Error;

/// Bytes of the header.
pub const VIRTIO_NET_BYTES: usize = 12;
/// Bytes of an Ethernet header without tags.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of the longest frame: Ethernet with a VLAN tag, and the longest IPv4 packet.
pub const FRAME_BYTES_MAX: usize = ETHERNET_BYTES + 4 + 65_535;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// A header that agrees with its frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtioNetHeader {
    /// The state of the transport checksum.
    pub checksum: ChecksumState,
    /// How the frame is to be cut, if it is longer than a packet of its path.
    pub gso: Option<Gso>,
    /// The length of all headers as the sender states it. A hint; nothing here relies on it.
    pub hdr_len: u16,
}

/// The state of the transport checksum of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChecksumState {
    /// The frame holds a checksum that was not verified, or none.
    #[default]
    Unverified,
    /// The checksum field at `start + offset` holds the sum of the pseudo-header; the sum from `start` on is missing.
    Partial {
        /// Where the sum begins in the frame.
        start: u16,
        /// Where the checksum field is, from there.
        offset: u16,
    },
    /// The frame holds a checksum that was verified.
    Verified,
}

/// How a frame is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// The protocols.
    pub kind: GsoKind,
    /// Bytes of payload in each segment but the last.
    pub size: NonZeroU16,
    /// The first segment may have CWR (RFC 3168).
    pub ecn: bool,
}

/// The protocols of a frame that is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over either, a datagram for each segment.
    Udp,
}

/// Why a header does not fit its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum VirtioNetError {
    /// The frame has no Ethernet header.
    #[error("frame of {0} bytes has no Ethernet header")]
    FrameShort(usize),
    /// The frame is longer than [`FRAME_BYTES_MAX`].
    #[error("frame of {0} bytes is too long")]
    FrameLong(usize),
    /// A flag that was not negotiated.
    #[error("flags {0:#x} are not known")]
    FlagsUnknown(u8),
    /// A kind of segmentation that was not negotiated.
    #[error("gso_type {0:#x} is not known")]
    GsoUnknown(u8),
    /// Segments without payload.
    #[error("gso_size is 0")]
    GsoSizeZero,
    /// ECN for a protocol other than TCP.
    #[error("gso_type has ECN without TCP")]
    EcnWithoutTcp,
    /// The checksum starts in the Ethernet header, or its field lies outside of the frame.
    #[error("checksum from {start} at {offset} is not in a frame of {frame_len} bytes")]
    ChecksumOutside {
        /// As in [`ChecksumState::Partial`].
        start: u16,
        /// As in [`ChecksumState::Partial`].
        offset: u16,
        /// Bytes of the frame.
        frame_len: usize,
    },
    /// The headers are longer than the frame.
    #[error("hdr_len {hdr_len} exceeds a frame of {frame_len} bytes")]
    HeaderLong {
        /// As stated.
        hdr_len: u16,
        /// Bytes of the frame.
        frame_len: usize,
    },
}

impl VirtioNetHeader {
    /// Parses the header of a frame of `frame_len` bytes.
    ///
    /// # Errors
    /// The first field that does not fit.
    pub fn parse(bytes: &[u8; VIRTIO_NET_BYTES], frame_len: usize) -> Result<Self, VirtioNetError> {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        match frame_len {
            ..ETHERNET_BYTES => return Err(VirtioNetError::FrameShort(frame_len)),
            ETHERNET_BYTES..=FRAME_BYTES_MAX => {}
            _ => return Err(VirtioNetError::FrameLong(frame_len)),
        }
        let checksum = ChecksumState::parse(bytes[0], word(6), word(8), frame_len)?;
        let gso = Gso::parse(bytes[1], word(4))?;
        let hdr_len = word(2);
        if usize::from(hdr_len) > frame_len {
            return Err(VirtioNetError::HeaderLong { hdr_len, frame_len });
        }
        Ok(Self { checksum, gso, hdr_len })
    }

    /// The bytes of this header.
    pub fn emit(&self) -> [u8; VIRTIO_NET_BYTES] {
        let (flags, start, offset) = match self.checksum {
            ChecksumState::Unverified => (0, 0, 0),
            ChecksumState::Partial { start, offset } => (NEEDS_CSUM, start, offset),
            ChecksumState::Verified => (DATA_VALID, 0, 0),
        };
        let mut bytes = [0; VIRTIO_NET_BYTES];
        bytes[0] = flags;
        bytes[1] = self.gso.map_or(GSO_NONE, Gso::code);
        bytes[2..4].copy_from_slice(&self.hdr_len.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.gso.map_or(0, |gso| gso.size.get()).to_le_bytes());
        bytes[6..8].copy_from_slice(&start.to_le_bytes());
        bytes[8..10].copy_from_slice(&offset.to_le_bytes());
        bytes[10] = 1; // A frame is one buffer.
        bytes
    }
}

impl ChecksumState {
    fn parse(flags: u8, start: u16, offset: u16, frame_len: usize) -> Result<Self, VirtioNetError> {
        if flags & !(NEEDS_CSUM | DATA_VALID) != 0 {
            return Err(VirtioNetError::FlagsUnknown(flags));
        }
        if flags & NEEDS_CSUM == 0 {
            return Ok(if flags & DATA_VALID == 0 { Self::Unverified } else { Self::Verified });
        }
        let end = usize::from(start) + usize::from(offset) + 2;
        if usize::from(start) < ETHERNET_BYTES || end > frame_len {
            return Err(VirtioNetError::ChecksumOutside { start, offset, frame_len });
        }
        Ok(Self::Partial { start, offset })
    }
}

impl Gso {
    fn parse(code: u8, size: u16) -> Result<Option<Self>, VirtioNetError> {
        let ecn = code & GSO_ECN != 0;
        let kind = match code & !GSO_ECN {
            GSO_NONE if !ecn => return Ok(None),
            GSO_TCPV4 => GsoKind::Tcp4,
            GSO_TCPV6 => GsoKind::Tcp6,
            GSO_UDP_L4 if ecn => return Err(VirtioNetError::EcnWithoutTcp),
            GSO_UDP_L4 => GsoKind::Udp,
            _ => return Err(VirtioNetError::GsoUnknown(code)),
        };
        let size = NonZeroU16::new(size).ok_or(VirtioNetError::GsoSizeZero)?;
        Ok(Some(Self { kind, size, ecn }))
    }

    const fn code(self) -> u8 {
        let kind = match self.kind {
            GsoKind::Tcp4 => GSO_TCPV4,
            GsoKind::Tcp6 => GSO_TCPV6,
            GsoKind::Udp => GSO_UDP_L4,
        };
        if self.ecn { kind | GSO_ECN } else { kind }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The header of a frame of TCP over IPv4, as a TAP of Linux 6.18 gives it.
    const TCP4: [u8; 12] = [1, 1, 66, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0];

    fn refused(at: usize, value: u8) -> VirtioNetError {
        let mut bytes = TCP4;
        bytes[at] = value;
        VirtioNetHeader::parse(&bytes, 1000).expect_err("refused")
    }

    #[test]
    fn parses_what_a_tap_gives() {
        let header = VirtioNetHeader::parse(&TCP4, 65_226).expect("valid");
        assert_eq!(header.checksum, ChecksumState::Partial { start: 34, offset: 16 });
        let size = NonZeroU16::new(1448).expect("not zero");
        assert_eq!(header.gso, Some(Gso { kind: GsoKind::Tcp4, size, ecn: false }));
        assert_eq!(header.hdr_len, 66);
        assert_eq!(header.emit()[..10], TCP4[..10]);
    }

    #[test]
    fn refuses_each_lie_under_its_name() {
        use VirtioNetError as E;
        assert_eq!(refused(0, 5), E::FlagsUnknown(5));
        assert_eq!(refused(1, 3), E::GsoUnknown(3));
        assert_eq!(refused(1, 0x80), E::GsoUnknown(0x80));
        assert_eq!(refused(1, 0x85), E::EcnWithoutTcp);
        assert_eq!(refused(6, 13), E::ChecksumOutside { start: 13, offset: 16, frame_len: 1000 });
        assert_eq!(refused(9, 4), E::ChecksumOutside { start: 34, offset: 1040, frame_len: 1000 });
        assert_eq!(refused(3, 4), E::HeaderLong { hdr_len: 1090, frame_len: 1000 });
        assert_eq!(VirtioNetHeader::parse(&[1, 1, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0], 1000), Err(E::GsoSizeZero));
        assert_eq!(VirtioNetHeader::parse(&TCP4, 13), Err(E::FrameShort(13)));
        assert_eq!(VirtioNetHeader::parse(&TCP4, FRAME_BYTES_MAX + 1), Err(E::FrameLong(FRAME_BYTES_MAX + 1)));
    }

    proptest! {
        #[test]
        fn what_is_parsed_is_emitted_alike(bytes: [u8; 12], frame_len in 0_usize..70_000) {
            if let Ok(header) = VirtioNetHeader::parse(&bytes, frame_len) {
                prop_assert_eq!(VirtioNetHeader::parse(&header.emit(), frame_len), Ok(header));
            }
        }
    }
}
