//! What an endpoint has carried, and how often it had to.

/// Since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Message bytes in packets that were sent, those sent again among them.
    pub sent_bytes: u64,
    /// Message bytes in packets that came and were not ignored.
    pub received_bytes: u64,
    /// Packets of messages that were sent again, because nobody had acknowledged them.
    pub sent_again: u64,
    /// Frames of long messages that were asked for again, because they had not come.
    pub asked_again: u64,
}

impl Carried {
    /// All counts by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("sent_bytes", self.sent_bytes),
            ("received_bytes", self.received_bytes),
            ("sent_again", self.sent_again),
            ("asked_again", self.asked_again),
        ]
        .into_iter()
    }

    /// Adds what another endpoint has carried.
    pub fn merge(&mut self, other: &Self) {
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.sent_again += other.sent_again;
        self.asked_again += other.asked_again;
    }
}
