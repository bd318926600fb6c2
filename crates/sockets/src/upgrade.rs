//! When a connection is worth a stream.

/// The bytes in both directions after which a connection is upgraded.
const BYTES: u64 = 32 << 10;

/// The number of times that one direction starts after the other, at which a connection is upgraded. A connection of one request has one.
const TURNS: u32 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
enum Last {
    #[default]
    Nothing = 0,
    Sent = 1,
    Received = 2,
}

/// Counts what a connection has exchanged, until it is upgraded.
///
/// An upgrade costs a message with a descriptor and two mappings, so a connection that carries one request stays on TCP.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Upgrade {
    bytes: u64,
    sends: u32,
    receives: u32,
    last: Last,
}

impl Upgrade {
    /// Counts `bytes` that were sent. Returns true if the connection is worth a stream.
    pub fn sent(&mut self, bytes: u64) -> bool {
        if self.last != Last::Sent {
            self.sends = self.sends.saturating_add(1);
        }
        self.last = Last::Sent;
        self.count(bytes)
    }

    /// Counts `bytes` that were received. Returns true if the connection is worth a stream.
    pub fn received(&mut self, bytes: u64) -> bool {
        if self.last != Last::Received {
            self.receives = self.receives.saturating_add(1);
        }
        self.last = Last::Received;
        self.count(bytes)
    }

    fn count(&mut self, bytes: u64) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        self.sends >= TURNS || self.receives >= TURNS || self.bytes >= BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_is_not_worth_a_stream() {
        let mut client = Upgrade::default();
        assert!(!client.sent(100));
        assert!(!client.sent(100), "a request in two writes is one");
        assert!(!client.received(4000) && !client.received(4000));
        assert!(client.sent(100), "the second request is worth one");
    }

    #[test]
    fn server_sees_the_second_request_as_well() {
        let mut server = Upgrade::default();
        assert!(!server.received(100) && !server.sent(4000));
        assert!(server.received(1));
    }

    #[test]
    fn many_bytes_are_worth_a_stream_in_one_direction() {
        let mut sender = Upgrade::default();
        assert!(!sender.sent(BYTES - 1));
        assert!(sender.sent(1));
        assert!(Upgrade::default().received(BYTES));
        assert!(Upgrade { bytes: u64::MAX, ..Upgrade::default() }.sent(1), "the count does not wrap");
    }
}
