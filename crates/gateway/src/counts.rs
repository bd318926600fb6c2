//! What a gateway has to do with at the moment: for metrics, and for tests that want to see the end of everything.

use crate::Gateway;

/// Levels, not sums: all are zero where nothing is under way, but for the strangers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Endpoints of other hosts that the domain knows.
    pub strangers: usize,
    /// Messages of the domain's that are not over.
    pub sends: usize,
    /// What those cost that were taken with their bytes and are not acknowledged.
    pub under_way_bytes: u32,
    /// Bytes of those that are announced which are kept here.
    pub kept_bytes: usize,
    /// Messages that are being fetched from the domain piece by piece.
    pub streams: usize,
    /// Messages that come in and that the domain does not have yet.
    pub incoming: usize,
    /// Bytes that are kept until the domain has room for them.
    pub held_bytes: usize,
    /// What the domain was given and has not given credit back for.
    pub unread_bytes: u64,
}

impl Gateway {
    /// How many endpoints of other hosts the domain knows.
    pub fn strangers(&self) -> usize {
        self.strangers.len()
    }

    /// As of now.
    pub fn counts(&self) -> Counts {
        Counts {
            strangers: self.strangers.all().count(),
            sends: self.sends.len(),
            under_way_bytes: self.under_way,
            kept_bytes: self.edges + self.streamed,
            streams: self.streams,
            incoming: self.incoming.len(),
            held_bytes: self.held + self.fetched,
            unread_bytes: self.strangers.all().map(|(_, stranger)| stranger.unread()).sum(),
        }
    }
}
