//! What a transport has under way at the moment: for metrics, and for tests that want to see the end of everything.

use crate::MxTransport;

/// Levels, not sums: all are zero where nothing is under way, but for the remote peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportLevels {
    /// Endpoints of other hosts that the domain knows.
    pub remote_peers: usize,
    /// Messages of the domain's that are not over.
    pub sends: usize,
    /// What those cost that were taken with their bytes and are not acknowledged.
    pub unacked_bytes: u32,
    /// Bytes of those that are announced which are kept here.
    pub kept_bytes: usize,
    /// Messages that are being fetched from the domain in fragments.
    pub streams: usize,
    /// Messages that come in and that the domain does not have yet.
    pub incoming: usize,
    /// Bytes that are kept until the domain has room for them.
    pub held_bytes: usize,
    /// What the domain was given and has not given credit back for.
    pub unread_bytes: u64,
}

impl MxTransport {
    /// How many endpoints of other hosts the domain knows.
    pub fn remote_peers(&self) -> usize {
        self.remote_peers.len()
    }

    /// As of now.
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
