//! Times and limits of an endpoint (mxoe-wire 8.5, 8.6, 9.6). Each side chooses its own; a peer may have others.

use super::Time;

/// The tunable parameters of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointTuning {
    /// The maximum length of an eager message. Longer ones, and those that do not fit into the fragments, use
    /// rendezvous.
    pub eager_bytes_max: u32,
    /// The maximum time before an unacknowledged packet is retransmitted.
    pub resend_us: u64,
    /// The minimum of that time: longer than a peer may delay an acknowledgement.
    pub resend_us_min: u64,
    /// A peer is given up once it has acknowledged nothing for `resends_max` times `resend_us`.
    pub resends_max: u32,
    /// A partner that has a long message of ours to fetch is probed once it has been silent for `probe_us` microseconds.
    pub probe_us: u64,
    /// An acknowledgement is delayed by this many microseconds, because a packet may come that carries it.
    pub ack_delay_us: u64,
    /// The sender of an incomplete message gets a hint after this many microseconds without a packet of it.
    pub hint_us: u64,
    /// The number of unacknowledged messages from which on acknowledgements are sent at once.
    pub ack_at_once: u16,
    /// The longest time without a reply before frames are requested again.
    pub pull_idle_us: u64,
    /// The minimum of that time.
    pub pull_idle_us_min: u64,
    /// The number of blocks of one transfer that are requested at a time.
    pub blocks_in_flight: usize,
    /// The limit of the bytes that all transfers to one endpoint request at a time. Smaller buffers on the path lower
    /// it.
    pub fetch_bytes_max: u32,
    /// The maximum number of unacknowledged messages to one partner: at most 8191.
    pub window_messages: u16,
    /// The maximum number of their bytes, except those of rendezvous.
    pub window_bytes: u64,
    /// The maximum number of bytes of out-of-order messages that one endpoint keeps.
    pub early_bytes_max: u64,
    /// The maximum number of announced long messages that one endpoint has not fetched. Each partner may announce a few
    /// beyond that.
    pub announced_max: usize,
    /// The maximum number of partners of an endpoint.
    pub partners_max: usize,
}

impl Default for EndpointTuning {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl EndpointTuning {
    /// The defaults, which suit most wires and match the expectations of peers.
    pub const DEFAULT: Self = Self {
        eager_bytes_max: 32768,
        resend_us: 500_000,
        resend_us_min: 40_000,
        resends_max: 1000,
        probe_us: 5_000_000,
        ack_delay_us: 15_625,
        hint_us: 2_000,
        ack_at_once: 4,
        pull_idle_us: 1_000_000,
        pull_idle_us_min: 4_000,
        blocks_in_flight: 4,
        fetch_bytes_max: 4 << 20,
        window_messages: 8191,
        window_bytes: 1 << 20,
        early_bytes_max: 16 << 20,
        announced_max: 1 << 15,
        partners_max: 8192,
    };

    /// The time after which a silent peer is given up.
    pub(crate) fn give_up_us(&self) -> u64 {
        self.resend_us.saturating_mul(u64::from(self.resends_max))
    }
}

/// An estimate of the round trip: the smoothed mean and deviation, as in RFC 6298.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip {
    /// Eight times the mean.
    mean8: u64,
    /// Four times the deviation.
    deviation4: u64,
    /// The shortest.
    least: u64,
}

impl RoundTrip {
    /// Records a round trip from `sent` to `now`.
    pub(crate) fn sample(&mut self, sent: Time, now: Time) {
        let us = now.since_us(sent).max(1);
        if self.mean8 == 0 {
            (self.mean8, self.deviation4, self.least) = (8 * us, 2 * us, us);
            return;
        }
        self.least = self.least.min(us);
        let off = us.abs_diff(self.mean8 / 8);
        self.deviation4 = self.deviation4 - self.deviation4 / 4 + off;
        self.mean8 = self.mean8 - self.mean8 / 8 + us;
    }

    /// Returns the mean time until a reply. `None` before the first reply.
    pub(crate) fn mean_us(&self) -> Option<u64> {
        if self.mean8 == 0 { None } else { Some(self.mean8 / 8) }
    }

    /// Returns true if replies take twice the shortest time, so that they spend most of it in a queue.
    pub(crate) fn is_long(&self) -> bool {
        self.mean8 >= 16 * self.least
    }

    /// Returns the time after which a reply is overdue, in microseconds.
    pub(crate) fn overdue_us(&self, least: u64, most: u64) -> u64 {
        let us = if self.mean8 == 0 { 10 * least } else { self.mean8 / 8 + self.deviation4.max(least) };
        us.min(most).max(1)
    }
}
