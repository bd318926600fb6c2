//! Frames and blocks of a large transfer (mxoe-wire 10.2).
//!
//! ```text
//!   region    |‥‥‥‥ o ▓▓▓|▓▓▓▓▓▓▓▓▓▓|▓▓▓▓▓▓▓▓▓▓|▓▓▓▓▓▓‥‥|        a frame: a slice of L bytes, counted from that of the first byte
//!   frames         0          1          2          3            the first is short by o, the last ends with the transfer
//!   blocks    └────────── 0 ─────────┘└───────── 1 ──────────┘   N frames each, except the last
//! ```

/// The division of a transfer into frames and blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransferLayout {
    /// L, the size of a frame's data in bytes.
    frame_bytes: u32,
    /// N, the number of frames in a block.
    block_frames: u32,
    /// o, the position of the first byte in its frame.
    first: u32,
    /// The length of the transfer in bytes.
    length: u32,
}

/// Consecutive frames, as a PULL requests them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRequest {
    pub(crate) frame_index: u32,
    pub(crate) first_frame_offset: u32,
    pub(crate) block_length: u32,
}

/// One frame of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameSlice {
    /// The offset in the transfer.
    pub(crate) msg_offset: u32,
    pub(crate) len: u32,
}

impl TransferLayout {
    pub(crate) const fn new(frame_bytes: u32, block_frames: u32, rdma_offset: u32, length: u32) -> Self {
        Self { frame_bytes, block_frames, first: rdma_offset % frame_bytes, length }
    }

    /// Returns the number of frames of the transfer.
    pub(crate) const fn frames(&self) -> u32 {
        ((self.first as u64 + self.length as u64).div_ceil(self.frame_bytes as u64)) as u32
    }

    /// Returns the number of blocks of the transfer.
    pub(crate) const fn blocks(&self) -> u32 {
        self.frames().div_ceil(self.block_frames)
    }

    /// Returns the first frame of a block, and the number of its frames.
    pub(crate) fn block(&self, block: u32) -> (u32, u32) {
        let first = block * self.block_frames;
        (first, self.block_frames.min(self.frames() - first))
    }

    /// Returns the offset and length of a frame of the transfer.
    pub(crate) fn slice(&self, frame: u32) -> FrameSlice {
        let start = (u64::from(frame) * u64::from(self.frame_bytes)).max(self.first.into()) - u64::from(self.first);
        let end = (u64::from(frame) + 1) * u64::from(self.frame_bytes) - u64::from(self.first);
        let end = end.min(self.length.into());
        // Both values are within the transfer, and its length has 32 bits.
        FrameSlice { msg_offset: start as u32, len: (end - start) as u32 }
    }

    /// Returns the request for `frames` consecutive frames, starting at `frame`.
    pub(crate) fn ask(&self, frame: u32, frames: u32) -> BlockRequest {
        let (first, last) = (self.slice(frame), self.slice(frame + frames - 1));
        BlockRequest {
            frame_index: frame,
            first_frame_offset: if frame == 0 { self.first } else { 0 },
            block_length: last.msg_offset + last.len - first.msg_offset,
        }
    }
}

/// The frames that a peer requested, as the owner of a region sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestedFrames {
    frame_bytes: u32,
    /// The number of the next frame.
    frame: u32,
    /// The number of bytes that the next frame lacks at its start.
    skip: u32,
    msg_offset: u32,
    remaining: u32,
}

impl RequestedFrames {
    /// Returns `None` if the request does not match the division: it covers more than a block, or is outside the
    /// region.
    pub(crate) fn new(
        ask: BlockRequest,
        frame_bytes: u32,
        block_frames: u32,
        rdma_offset: u32,
        region_bytes: u32,
    ) -> Option<Self> {
        if ask.first_frame_offset >= frame_bytes || ask.block_length == 0 {
            return None;
        }
        let frames = (u64::from(ask.first_frame_offset) + u64::from(ask.block_length)).div_ceil(u64::from(frame_bytes));
        if frames > u64::from(block_frames) {
            return None;
        }
        let start = u64::from(ask.frame_index) * u64::from(frame_bytes) + u64::from(ask.first_frame_offset);
        let msg_offset = start.checked_sub(u64::from(rdma_offset % frame_bytes))?;
        let end = u64::from(rdma_offset) + msg_offset + u64::from(ask.block_length);
        if end > u64::from(region_bytes) {
            return None;
        }
        Some(Self {
            frame_bytes,
            frame: ask.frame_index,
            skip: ask.first_frame_offset,
            msg_offset: u32::try_from(msg_offset).ok()?,
            remaining: ask.block_length,
        })
    }

    /// Returns the number and contents of the next frame.
    pub(crate) fn next(&mut self) -> Option<(u32, FrameSlice)> {
        if self.remaining == 0 {
            return None;
        }
        let len = (self.frame_bytes - self.skip).min(self.remaining);
        let next = (self.frame, FrameSlice { msg_offset: self.msg_offset, len });
        self.frame = self.frame.wrapping_add(1);
        self.skip = 0;
        self.msg_offset = self.msg_offset.wrapping_add(len);
        self.remaining -= len;
        Some(next)
    }

    /// Returns the end of the remaining bytes.
    pub(crate) const fn end(&self) -> u32 {
        self.msg_offset + self.remaining
    }

    /// Returns true if all frames have been sent.
    pub(crate) const fn is_over(&self) -> bool {
        self.remaining == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn blocks_are_those_of_the_examples() {
        // V12, V13, V14 and V15 of the specification.
        let layout = TransferLayout::new(4096, 8, 0, 1 << 20);
        assert_eq!(layout.ask(0, 8), BlockRequest { frame_index: 0, first_frame_offset: 0, block_length: 0x8000 });
        assert_eq!(layout.block(3), (24, 8));
        assert_eq!(layout.ask(24, 8), BlockRequest { frame_index: 24, first_frame_offset: 0, block_length: 0x8000 });
        let layout = TransferLayout::new(4096, 8, 0x0123, 1 << 20);
        assert_eq!(layout.ask(0, 8), BlockRequest { frame_index: 0, first_frame_offset: 0x123, block_length: 0x7edd });
        let layout = TransferLayout::new(8968, 32, 0, 1 << 20);
        let (first, frames) = layout.block(1);
        assert_eq!(
            layout.ask(first, frames),
            BlockRequest { frame_index: 32, first_frame_offset: 0, block_length: 0x46100 }
        );
    }

    #[test]
    fn nine_frames_are_refused() {
        let ask = BlockRequest { frame_index: 0, first_frame_offset: 0, block_length: 0x8001 };
        assert_eq!(RequestedFrames::new(ask, 4096, 8, 0, 1 << 20), None);
    }

    proptest! {
        #[test]
        fn requested_frames_are_exactly_those_sent(
            length in 1_u32..300_000, offset in 0_u32..10_000, frame_bytes in 1_u32..9000, from in any::<u32>(), run in 1_u32..64,
        ) {
            let layout = TransferLayout::new(frame_bytes, 64, offset, length);
            let from = from % layout.frames();
            let run = run.min(layout.frames() - from);
            let mut frames = RequestedFrames::new(layout.ask(from, run), frame_bytes, 64, offset, offset + length).unwrap();
            for frame in from..from + run {
                prop_assert_eq!(frames.next(), Some((frame, layout.slice(frame))));
            }
            prop_assert_eq!((frames.next(), frames.is_over()), (None, true));
            let whole: u64 = (0..layout.frames()).map(|frame| u64::from(layout.slice(frame).len)).sum();
            prop_assert_eq!(whole, u64::from(length));
        }

        #[test]
        fn no_request_reads_outside_the_region(
            frame_index in any::<u32>(), first in any::<u32>(), len in any::<u32>(), offset in any::<u32>(), region in any::<u32>(),
        ) {
            let ask = BlockRequest { frame_index, first_frame_offset: first, block_length: len };
            if let Some(mut frames) = RequestedFrames::new(ask, 4096, 8, offset, region) {
                while let Some((_, slice)) = frames.next() {
                    prop_assert!(u64::from(offset) + u64::from(slice.msg_offset) + u64::from(slice.len) <= u64::from(region));
                }
            }
        }
    }
}
