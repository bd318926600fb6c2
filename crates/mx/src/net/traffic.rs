//! The traffic of an endpoint, and its retransmissions.

/// Since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounters {
    /// Message bytes in packets that were sent, those sent again among them.
    pub sent_bytes: u64,
    /// Message bytes in packets that came and were not ignored.
    pub received_bytes: u64,
    /// Packets of messages that were retransmitted, because no acknowledgement had come.
    pub retransmitted: u64,
    /// Frames of long messages that were asked for again, because they had not come.
    pub rerequested: u64,
}

impl TrafficCounters {
    /// All counts by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("sent_bytes", self.sent_bytes),
            ("received_bytes", self.received_bytes),
            ("retransmitted", self.retransmitted),
            ("rerequested", self.rerequested),
        ]
        .into_iter()
    }

    /// Adds what another endpoint has carried.
    pub fn merge(&mut self, other: &Self) {
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.retransmitted += other.retransmitted;
        self.rerequested += other.rerequested;
    }
}
