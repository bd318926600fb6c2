//! What both ends of a wire agree on without a word: sizes (mxoe-wire 9.1, 9.2), and what each chooses for itself: times and limits
//! (9.6, 8.5).

/// Bytes of the head and the body of a MEDIUM before its data.
const MEDIUM_HEAD_BYTES: u32 = 48;
/// Bytes of the head and the body of a PULL_REPLY before its data.
const REPLY_HEAD_BYTES: u32 = 32;
/// A message of up to so many bytes is a TINY.
pub(crate) const TINY_BYTES_MAX: u32 = 32;
/// A message of up to so many bytes is a SMALL.
pub(crate) const SMALL_BYTES_MAX: u32 = 128;
/// Fragments of a message at most: a fragment's number has 8 bits.
pub(crate) const FRAGMENTS_MAX: u32 = 256;
/// Frames of a block at most: a block's frames are kept in one word.
pub(crate) const FRAMES_MAX: u32 = 64;

/// Sizes. The two ends of a wire have to have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// MX mode: fragments say their own size, a NOTIFY is acknowledged at once.
    pub(crate) mx: bool,
    /// F: data bytes of a fragment of a MEDIUM.
    pub(crate) fragment_bytes: u32,
    /// L: data bytes of a PULL_REPLY.
    pub(crate) frame_bytes: u32,
    /// N: frames of a block.
    pub(crate) block_frames: u32,
    /// The longest message that is sent without being asked for.
    pub(crate) eager_bytes_max: u32,
}

impl Shape {
    /// MX mode, which native MX hosts speak.
    pub const MX: Self =
        Self { mx: true, fragment_bytes: 4096, frame_bytes: 4096, block_frames: 8, eager_bytes_max: 32768 };

    /// Open-MX mode. The MTU counts the Ethernet header (9.2). None for one that has no room for a fragment, or beyond any link.
    pub const fn open_mx(mtu_bytes: u32) -> Option<Self> {
        if mtu_bytes < 256 || mtu_bytes > 65535 {
            return None;
        }
        let room = mtu_bytes - MEDIUM_HEAD_BYTES;
        let fragment_bytes = if room <= 4096 {
            room
        } else if room < 8192 {
            4096
        } else {
            8192
        };
        let frame_bytes = mtu_bytes - REPLY_HEAD_BYTES;
        let most = fragment_bytes * 32;
        let eager_bytes_max = if most < 32768 { most } else { 32768 };
        Some(Self { mx: false, fragment_bytes, frame_bytes, block_frames: 32, eager_bytes_max })
    }

    /// The same, with another length up to which messages are sent without being asked for; held to what fragments can carry.
    #[must_use]
    pub fn with_eager_bytes_max(self, bytes: u32) -> Self {
        let most = if self.mx { 32768 } else { self.fragment_bytes * 32 };
        Self { eager_bytes_max: bytes.clamp(SMALL_BYTES_MAX, most), ..self }
    }

    /// Data bytes of a pull reply.
    pub const fn frame_bytes(&self) -> u32 {
        self.frame_bytes
    }

    /// The longest message that is sent without being asked for.
    pub const fn eager_bytes_max(&self) -> u32 {
        self.eager_bytes_max
    }
}

/// Times and limits: each end's own choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Longest time before something is sent again that was not acknowledged.
    pub resend_us: u64,
    /// Shortest such time, whatever the round trip: more than the time for which a peer may hold back an acknowledgement.
    pub resend_us_min: u64,
    /// A peer that says nothing for so many times `resend_us` is given up.
    pub resends_max: u32,
    /// An acknowledgement is held back for so long, in the hope of a packet that carries it.
    pub ack_delay_us: u64,
    /// With so many messages unacknowledged, nothing is held back.
    pub ack_at_once: u16,
    /// Longest time without a reply before blocks are asked for again.
    pub pull_idle_us: u64,
    /// Shortest such time, whatever the round trip.
    pub pull_idle_us_min: u64,
    /// Blocks of one transfer that are asked for at a time.
    pub blocks_in_flight: usize,
    /// Messages to one partner that may be unacknowledged: at most 8191.
    pub window_messages: u16,
    /// Their bytes, except those of rendezvous.
    pub window_bytes: u64,
    /// Bytes of messages that came too early which one endpoint keeps.
    pub early_bytes_max: u64,
    /// Partners of an endpoint.
    pub partners_max: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            resend_us: 500_000,
            resend_us_min: 40_000,
            resends_max: 1000,
            ack_delay_us: 15_625,
            ack_at_once: 4,
            pull_idle_us: 1_000_000,
            pull_idle_us_min: 4_000,
            blocks_in_flight: 4,
            window_messages: 8191,
            window_bytes: 1 << 20,
            early_bytes_max: 16 << 20,
            partners_max: 8192,
        }
    }
}

impl Tuning {
    /// A peer from which nothing has been heard for so long is given up.
    pub(crate) const fn give_up_us(&self) -> u64 {
        self.resend_us.saturating_mul(self.resends_max as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_table() {
        let shape = |mtu| Shape::open_mx(mtu).unwrap();
        assert_eq!((shape(1500).fragment_bytes, shape(1500).frame_bytes), (1452, 1468));
        assert_eq!((shape(9000).fragment_bytes, shape(9000).frame_bytes), (8192, 8968));
        assert_eq!((shape(8239).fragment_bytes, shape(8240).fragment_bytes), (4096, 8192));
        assert_eq!(shape(1500).block_frames * shape(1500).frame_bytes, 46976);
        assert_eq!((Shape::open_mx(100), Shape::open_mx(70000)), (None, None));
        assert_eq!(Shape::MX.with_eager_bytes_max(1 << 20).eager_bytes_max, 32768);
    }
}
