//! The levels of a transport: for metrics, and for tests that wait until nothing is in flight.

use crate::MxTransport;

/// The current levels of a transport. All except `remote_peers` are zero if nothing is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportLevels {
    /// Endpoints of other hosts that the domain knows.
    pub remote_peers: usize,
    /// Messages of the domain that are not over.
    pub sends: usize,
    /// The cost of messages that were taken with their bytes and are not acknowledged.
    pub unacked_bytes: u32,
    /// Bytes of announced messages that the transport keeps.
    pub kept_bytes: usize,
    /// Messages that are being fetched from the domain in fragments.
    pub streams: usize,
    /// Incoming messages that the domain does not have yet.
    pub incoming: usize,
    /// Bytes that are kept until the domain has room for them.
    pub held_bytes: usize,
    /// The cost of records that the domain was given and has not returned credit for.
    pub unread_bytes: u64,
}

impl MxTransport {
    /// The number of endpoints of other hosts that the domain knows.
    pub fn remote_peers(&self) -> usize {
        self.remote_peers.len()
    }

    /// Returns the current levels.
    pub fn levels(&self) -> TransportLevels {
        TransportLevels {
            remote_peers: self.remote_peers.all().count(),
            sends: self.sends.len(),
            unacked_bytes: self.unacked,
            kept_bytes: self.edges + self.streamed,
            streams: self.streams,
            incoming: self.incoming.len(),
            held_bytes: self.held + self.fetched,
            unread_bytes: self.remote_peers.all().map(|(_, remote_peer)| remote_peer.unread()).sum(),
        }
    }
}
