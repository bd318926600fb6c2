//! The traffic of an endpoint, and its retransmissions.

/// The traffic since the endpoint was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounters {
    /// Message bytes in sent packets, including retransmissions.
    pub sent_bytes: u64,
    /// Message bytes in received packets that had an effect.
    pub received_bytes: u64,
    /// Packets of messages that were retransmitted for lack of an acknowledgement.
    pub retransmitted: u64,
    /// Frames of long messages that were requested again because they had not arrived.
    pub rerequested: u64,
}

impl TrafficCounters {
    /// Returns all counts by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("sent_bytes", self.sent_bytes),
            ("received_bytes", self.received_bytes),
            ("retransmitted", self.retransmitted),
            ("rerequested", self.rerequested),
        ]
        .into_iter()
    }

    /// Adds the traffic of another endpoint.
    pub fn merge(&mut self, other: &Self) {
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.retransmitted += other.retransmitted;
        self.rerequested += other.rerequested;
    }
}
