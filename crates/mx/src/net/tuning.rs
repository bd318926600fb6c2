//! Times and limits: each end's own choice (mxoe-wire 8.5, 8.6, 9.6). A peer may have others.

use super::Time;

/// What an endpoint can be told to do otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointTuning {
    /// The longest message that is sent without being asked for. What fragments cannot carry is a rendezvous in any case.
    pub eager_bytes_max: u32,
    /// Longest time before something is sent again that was not acknowledged.
    pub resend_us: u64,
    /// Shortest such time, whatever the round trip: more than the time for which a peer may hold back an acknowledgement.
    pub resend_us_min: u64,
    /// A peer that acknowledges nothing for so many times `resend_us` is given up.
    pub resends_max: u32,
    /// A partner that has a long message of ours to fetch and says nothing for so long is asked whether it is still there.
    pub probe_us: u64,
    /// An acknowledgement is held back for so long, in the hope of a packet that carries it.
    pub ack_delay_us: u64,
    /// A message that is not whole and of which nothing came for so long: its sender is given a hint.
    pub hint_us: u64,
    /// With so many messages unacknowledged, nothing is held back.
    pub ack_at_once: u16,
    /// Longest time without a reply before frames are asked for again.
    pub pull_idle_us: u64,
    /// Shortest such time, whatever the round trip.
    pub pull_idle_us_min: u64,
    /// Blocks of one transfer that are asked for at a time.
    pub blocks_in_flight: usize,
    /// Bytes that all transfers to one endpoint ask for at a time, at most: less where the buffers on the way have less room.
    pub fetch_bytes_max: u32,
    /// Messages to one partner that may be unacknowledged: never more than 8191.
    pub window_messages: u16,
    /// Their bytes, except those of rendezvous.
    pub window_bytes: u64,
    /// Bytes of messages that came before their turn which one endpoint keeps.
    pub early_bytes_max: u64,
    /// Long messages that one endpoint was told of and does not have yet; each partner may announce a few beyond that.
    pub announced_max: usize,
    /// Partners of an endpoint.
    pub partners_max: usize,
}

impl Default for EndpointTuning {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl EndpointTuning {
    /// What suits most wires, and what peers expect.
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

    /// A peer from which nothing has been heard for so long is given up.
    pub(crate) fn give_up_us(&self) -> u64 {
        self.resend_us.saturating_mul(u64::from(self.resends_max))
    }
}

/// A round trip, smoothed, and how much it varies (as in RFC 6298).
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
    /// Something was sent then, and answered now.
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

    /// What an answer takes. None before the first.
    pub(crate) fn mean_us(&self) -> Option<u64> {
        if self.mean8 == 0 { None } else { Some(self.mean8 / 8) }
    }

    /// Whether answers take twice as long as they could: most of the time they wait in some queue.
    pub(crate) fn is_long(&self) -> bool {
        self.mean8 >= 16 * self.least
    }

    /// When an answer is overdue.
    pub(crate) fn overdue_us(&self, least: u64, most: u64) -> u64 {
        let us = if self.mean8 == 0 { 10 * least } else { self.mean8 / 8 + self.deviation4.max(least) };
        us.min(most).max(1)
    }
}
