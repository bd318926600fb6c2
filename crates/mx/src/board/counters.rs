//! The counters of a board: packets by type, and dropped frames by reason.

use crate::wire::{Malformed, PacketType};

macro_rules! dropped {
    ($($(#[$doc:meta])* $variant:ident $reason:literal $text:literal,)*) => {
        /// The reason why a frame was dropped. Each reason has a counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        pub enum Dropped {
            /// The frame is not a valid frame of this network. Counted under the reason of the parse error.
            #[error(transparent)]
            Malformed(#[from] Malformed),
            $($(#[$doc])* #[error($text)] $variant,)*
        }

        /// The board's own reasons, each with its meaning.
        const REASONS: &[(&str, &str)] = &[$(($reason, $text)),*];

        impl Dropped {
            /// Returns the index of the counter. The reasons of malformed frames come first.
            const fn index(&self) -> usize {
                #[repr(usize)]
                enum Place { $($variant),* }
                match self {
                    Self::Malformed(malformed) => malformed.index(),
                    $(Self::$variant => Malformed::REASONS.len() + Place::$variant as usize,)*
                }
            }

            /// Returns the name of this reason's counter.
            pub const fn reason(&self) -> &'static str {
                match self {
                    Self::Malformed(malformed) => malformed.reason(),
                    $(Self::$variant => $reason,)*
                }
            }
        }
    };
}

dropped! {
    /// The frame arrived on a link that the board does not have.
    NoSuchLink "no_such_link" "on a link that the board does not have",
    /// The frame is for another board, or a broadcast that is no announcement.
    NotForUs "not_for_us" "for another address",
    /// The source is an address of this host: the frame came back, or another host uses the address.
    OwnSource "own_source" "from an address of this host",
    /// Another host announces an address of this host.
    DuplicateAddress "duplicate_address" "an announcement of our address by another host",
    /// No board can have the source address.
    BadSource "bad_source" "from an address that no board has",
    /// The sender is not in the table.
    UnknownSource "unknown_source" "from an address that is not in the table",
    /// The sender is a peer that was forgotten.
    ForgottenSource "forgotten_source" "from a peer that was forgotten",
    /// The frame lacks our index of its sender.
    NoIndex "no_index" "without our number for its sender",
    /// The frame carries an index that no peer has.
    UnusedIndex "unused_index" "with a number that no peer has",
    /// The index belongs to another peer than the source address.
    IndexMismatch "index_mismatch" "with our number for another peer",
    /// The board cannot have an endpoint with this number.
    BadEndpoint "bad_endpoint" "for an endpoint that cannot be",
    /// The endpoint is not open.
    EndpointClosed "endpoint_closed" "for an endpoint that is not open",
    /// A raw packet arrived, and no program has opened the raw endpoint.
    NoRawEndpoint "no_raw_endpoint" "a raw packet without an open raw endpoint",
    /// The announced address is not the source address.
    AnnouncementMismatch "announcement_mismatch" "an announcement of another address than its source",
    /// The table is full.
    TableFull "table_full" "of a peer that the full table has no room for",
    /// New peers appear faster than in any real network.
    DiscoveryRateLimited "discovery_rate_limited" "one of too many new peers at a time",
    /// The peer restarts more often than a daemon can.
    RestartRateLimited "restart_rate_limited" "of a peer that starts anew too often",
    /// The reply matches no query, or one from before names were cleared.
    UnsolicitedReply "unsolicited_reply" "an answer to no question",
    /// Too many queries for our name arrived.
    QueryRateLimited "query_rate_limited" "one of too many questions for our name",
}

const COUNTS: usize = Malformed::REASONS.len() + REASONS.len();

/// The length of arrays by packet type, because all types are below 64.
const TYPES: usize = 64;
const _: () = assert!((PacketType::NackMcp.number() as usize) < TYPES);

/// The counters of a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoardCounters {
    dropped: [u64; COUNTS],
    received: [u64; TYPES],
    sent: [u64; TYPES],
    suppressed_nacks: u64,
    rejected_peers: u64,
}

impl Default for BoardCounters {
    fn default() -> Self {
        Self { dropped: [0; COUNTS], received: [0; TYPES], sent: [0; TYPES], suppressed_nacks: 0, rejected_peers: 0 }
    }
}

impl BoardCounters {
    /// Returns the number of frames dropped for one reason.
    pub const fn dropped(&self, reason: Dropped) -> u64 {
        self.dropped[reason.index()]
    }

    /// Returns all reasons with their counts.
    pub fn all_dropped(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Self::reasons().zip(self.dropped)
    }

    /// Returns the names of all reasons: those of malformed frames, then the board's own.
    pub fn reasons() -> impl Iterator<Item = &'static str> {
        Malformed::REASONS.iter().copied().chain(REASONS.iter().map(|(reason, _)| *reason))
    }

    /// Returns the board's own reasons, each with its meaning.
    pub const fn own_reasons() -> &'static [(&'static str, &'static str)] {
        REASONS
    }

    /// Returns the number of packets of a type for the board or one of its endpoints.
    pub const fn received(&self, kind: PacketType) -> u64 {
        self.received[kind.number() as usize]
    }

    /// Returns the number of packets of a type that the board itself sent. Packets of endpoints are not counted.
    pub const fn sent_by_board(&self, kind: PacketType) -> u64 {
        self.sent[kind.number() as usize]
    }

    /// Returns the number of negative acknowledgements that a rate limit suppressed.
    pub const fn withheld(&self) -> u64 {
        self.suppressed_nacks
    }

    /// Returns how many peers were rejected because the table was full, whatever their origin.
    pub const fn refused_peers(&self) -> u64 {
        self.rejected_peers
    }

    pub(super) fn add_dropped(&mut self, reason: Dropped) {
        self.dropped[reason.index()] += 1;
    }

    pub(super) fn add_received(&mut self, kind: PacketType) {
        self.received[usize::from(kind.number())] += 1;
    }

    pub(super) fn add_sent(&mut self, kind: PacketType) {
        self.sent[usize::from(kind.number())] += 1;
    }

    pub(super) fn add_suppressed_nack(&mut self) {
        self.suppressed_nacks += 1;
    }

    pub(super) fn add_rejected_peer(&mut self) {
        self.rejected_peers += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_names_are_unique() {
        let names: alloc::vec::Vec<_> = BoardCounters::reasons().collect();
        let distinct: alloc::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!((names.len(), distinct.len()), (COUNTS, COUNTS));
        for reason in [Dropped::NoSuchLink, Dropped::QueryRateLimited, Dropped::Malformed(Malformed::Type(9))] {
            assert_eq!(names[reason.index()], reason.reason());
        }
    }
}
