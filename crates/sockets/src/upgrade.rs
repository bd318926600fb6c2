//! When a connection is worth a stream.

/// The number of times that one direction starts after the other, at which a connection is upgraded. A connection of one request has one,
/// and one of PostgreSQL with one transaction has four.
const TURNS: u8 = 8;

/// The bytes are counted up to here. No limit is higher.
const BYTES_MAX: u64 = (1 << 40) - 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Direction {
    #[default]
    None,
    Sent,
    Received,
}

/// Counts what a connection has exchanged, until it is upgraded.
///
/// An upgrade costs a message with a descriptor and two mappings, and the first one of a process its session with the daemon. That is about
/// the gain of some exchanges, so a connection that ends after a few of them stays on TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Upgrade {
    bytes: u64,
    sends: u8,
    receives: u8,
    last: Direction,
}

impl Upgrade {
    /// Counts `bytes` that were sent. Returns true if the connection is worth a stream: it has enough exchanges, or `after`
    /// bytes.
    pub fn sent(&mut self, bytes: u64, after: u64) -> bool {
        if self.last != Direction::Sent {
            self.sends = self.sends.saturating_add(1);
        }
        self.last = Direction::Sent;
        self.count(bytes, after)
    }

    /// Counts `bytes` that were received. Returns true if the connection is worth a stream: it has enough exchanges, or `after`
    /// bytes.
    pub fn received(&mut self, bytes: u64, after: u64) -> bool {
        if self.last != Direction::Received {
            self.receives = self.receives.saturating_add(1);
        }
        self.last = Direction::Received;
        self.count(bytes, after)
    }

    fn count(&mut self, bytes: u64, after: u64) -> bool {
        self.bytes = self.bytes.saturating_add(bytes).min(BYTES_MAX);
        self.sends >= TURNS || self.receives >= TURNS || self.bytes >= after.min(BYTES_MAX)
    }

    /// Returns the counts as one word, which may lie in an atomic.
    pub fn word(self) -> u64 {
        self.bytes << 24 | u64::from(self.sends) << 16 | u64::from(self.receives) << 8 | self.last as u64
    }

    /// Returns the counts of a word.
    pub fn from_word(word: u64) -> Self {
        let last = match word as u8 {
            1 => Direction::Sent,
            2 => Direction::Received,
            _ => Direction::None,
        };
        Self { bytes: word >> 24, sends: (word >> 16) as u8, receives: (word >> 8) as u8, last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: u64 = 32 << 10;

    #[test]
    fn few_requests_are_not_worth_a_stream() {
        let mut client = Upgrade::default();
        for _ in 1..TURNS {
            assert!(!client.sent(100, AFTER));
            assert!(!client.sent(100, AFTER), "a request in two writes is one");
            assert!(!client.received(400, AFTER) && !client.received(400, AFTER));
        }
        assert!(client.sent(100, AFTER), "the next request is worth one");
    }

    #[test]
    fn server_sees_the_same_request() {
        let mut server = Upgrade::default();
        for _ in 1..TURNS {
            assert!(!server.received(100, AFTER) && !server.sent(400, AFTER));
        }
        assert!(server.received(1, AFTER));
    }

    #[test]
    fn many_bytes_are_worth_a_stream_in_one_direction() {
        let mut sender = Upgrade::default();
        assert!(!sender.sent(AFTER - 1, AFTER));
        assert!(sender.sent(1, AFTER));
        assert!(Upgrade::default().received(AFTER, AFTER));
        assert!(Upgrade::default().received(1, 0), "the first byte is enough");
        assert!(Upgrade::default().sent(u64::MAX, u64::MAX), "the count does not wrap");
    }

    #[test]
    fn word_keeps_the_counts() {
        let mut upgrade = Upgrade::default();
        assert_eq!(Upgrade::from_word(upgrade.word()), upgrade);
        upgrade.sent(12345, AFTER);
        assert_eq!(Upgrade::from_word(upgrade.word()), upgrade);
        upgrade.received(u64::MAX, AFTER);
        assert_eq!(Upgrade::from_word(upgrade.word()), upgrade);
    }
}
