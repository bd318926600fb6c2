//! The two dialects, and the sizes that all hosts of a network share (9.2, 13).

use super::ETHERTYPE;
use super::message::{FRAGMENT_HEAD_BYTES, MX_FRAGMENT_BYTES_MAX, SMALL_BYTES_MAX};
use super::pull::REPLY_HEAD_BYTES;

/// The protocol variant of a network. Packets do not contain it: it is configured for each board.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// MX mode: native Myricom hosts, and Open-MX that was built to speak with them.
    Mx,
    /// Open-MX mode: the default of Open-MX.
    OpenMx {
        /// The ethertype of the network, almost always [`ETHERTYPE`].
        ethertype: u16,
    },
}

impl Dialect {
    /// Open-MX mode with the usual ethertype.
    pub const OPEN_MX: Self = Self::OpenMx { ethertype: ETHERTYPE };

    /// Returns the ethertype of every frame.
    pub const fn ethertype(self) -> u16 {
        match self {
            Self::Mx => ETHERTYPE,
            Self::OpenMx { ethertype } => ethertype,
        }
    }
}

/// The sizes that are not negotiated: hosts that disagree about them cannot exchange long messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizes {
    frame_bytes_max: u32,
    fragment_bytes: u32,
    reply_bytes: u32,
    block_frames: u32,
    fragments_max: u32,
}

impl Sizes {
    /// MX mode.
    pub const MX: Self = Self {
        frame_bytes_max: (FRAGMENT_HEAD_BYTES + MX_FRAGMENT_BYTES_MAX) as u32,
        fragment_bytes: MX_FRAGMENT_BYTES_MAX as u32,
        reply_bytes: 4096,
        block_frames: 8,
        fragments_max: 8,
    };

    /// The minimum frame limit: a small message fits, and a fragment is no shorter than one.
    pub const FRAME_LIMIT_MIN: u32 = (FRAGMENT_HEAD_BYTES + SMALL_BYTES_MAX) as u32;

    /// The maximum frame limit: the length of a reply has 16 bits.
    pub const FRAME_LIMIT_MAX: u32 = u16::MAX as u32 + REPLY_HEAD_BYTES as u32;

    /// The default number of fragments of a message in Open-MX mode.
    const OPEN_MX_FRAGMENTS: u32 = 32;

    /// Returns the sizes of Open-MX mode for frames of at most `frame_bytes_max` bytes. Open-MX calls this limit the
    /// MTU; it includes the Ethernet header, unlike a link's MTU. Returns `None` for a limit that is too small or too
    /// large.
    pub const fn open_mx(frame_bytes_max: u32) -> Option<Self> {
        if frame_bytes_max < Self::FRAME_LIMIT_MIN || frame_bytes_max > Self::FRAME_LIMIT_MAX {
            return None;
        }
        let most = frame_bytes_max - FRAGMENT_HEAD_BYTES as u32;
        let fragment_bytes = match most {
            0..=4096 => most,
            4097..8192 => 4096,
            8192.. => 8192,
        };
        let reply_bytes = frame_bytes_max - REPLY_HEAD_BYTES as u32;
        let fragments_max = Self::OPEN_MX_FRAGMENTS;
        Some(Self { frame_bytes_max, fragment_bytes, reply_bytes, block_frames: 32, fragments_max })
    }

    /// Returns these sizes with another number of frames in a block. None unless it is a power of two up to 64.
    pub const fn with_block_frames(self, block_frames: u32) -> Option<Self> {
        if block_frames.is_power_of_two() && block_frames <= 64 { Some(Self { block_frames, ..self }) } else { None }
    }

    /// Returns the size of the longest frame in bytes, including its Ethernet header.
    pub const fn frame_bytes_max(self) -> u32 {
        self.frame_bytes_max
    }

    /// Returns the size of every sent fragment except the last of its message, in bytes (F).
    pub const fn fragment_bytes(self) -> u32 {
        self.fragment_bytes
    }

    /// Returns the size of the data in a PULL_REPLY in bytes (L). Regions are divided into frames of this size.
    pub const fn reply_bytes(self) -> u32 {
        self.reply_bytes
    }

    /// Returns the maximum number of frames in a PULL (N).
    pub const fn block_frames(self) -> u32 {
        self.block_frames
    }

    /// Returns the maximum number of bytes in a PULL.
    pub const fn block_bytes(self) -> u32 {
        self.reply_bytes * self.block_frames
    }

    /// Returns the maximum number of fragments of a message.
    pub const fn fragments_max(self) -> u32 {
        self.fragments_max
    }

    /// Returns the length of the longest message that fragments can carry, in bytes.
    pub const fn medium_bytes_max(self) -> u32 {
        self.fragment_bytes * self.fragments_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the sizes with the table of 9.2.
    #[test]
    fn sizes_follow_the_frame_limit() {
        let of = |limit: u32| Sizes::open_mx(limit).unwrap();
        let shown = |sizes: Sizes| (sizes.fragment_bytes(), sizes.reply_bytes(), sizes.block_bytes());
        assert_eq!(shown(Sizes::MX), (4096, 4096, 32768));
        assert_eq!((Sizes::MX.frame_bytes_max(), Sizes::MX.medium_bytes_max()), (4144, 32768));
        assert_eq!(shown(of(1500)), (1452, 1468, 46976));
        assert_eq!(shown(of(9000)), (8192, 8968, 286_976));
        assert_eq!(of(4144).fragment_bytes(), 4096);
        assert_eq!(of(4145).fragment_bytes(), 4096);
        assert_eq!(of(8239).fragment_bytes(), 4096);
        assert_eq!(of(8240).fragment_bytes(), 8192);
    }

    #[test]
    fn limits_that_cannot_work_are_refused() {
        assert!(Sizes::open_mx(Sizes::FRAME_LIMIT_MIN).is_some());
        assert_eq!(Sizes::open_mx(Sizes::FRAME_LIMIT_MIN - 1), None);
        assert!(Sizes::open_mx(Sizes::FRAME_LIMIT_MAX).is_some());
        assert_eq!(Sizes::open_mx(Sizes::FRAME_LIMIT_MAX + 1), None);
        assert_eq!([0, 3, 128].map(|frames| Sizes::MX.with_block_frames(frames)), [None; 3]);
        assert_eq!(Sizes::MX.with_block_frames(64).map(Sizes::block_frames), Some(64));
    }
}
