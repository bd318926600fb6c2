//! What a domain did on its ring that no correct library does.

use isthmus_gateway::Misplaced;
use isthmus_layout::RegionId;
use isthmus_layout::limits::{ORDINARY_CREDIT_BYTES, ORDINARY_FRAGMENT_BYTES_MAX};
use isthmus_layout::reason::Reason;
use isthmus_shm::PeerFault;

/// A domain broke the contract of the ordinary path. Its ring is closed, and counted; nothing else happens because of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// In the ring's memory.
    #[error(transparent)]
    Ring(#[from] PeerFault),
    /// A record for nobody.
    #[error("a record names no domain that it is for")]
    NoPeer,
    /// Regions are granted to peers, not to the daemon in between.
    #[error("an announcement on the ordinary path names region {0} to be mapped")]
    Mapped(RegionId),
    /// More than one record may carry.
    #[error("a record carries {0} bytes of message, {ORDINARY_FRAGMENT_BYTES_MAX} at most may be")]
    PieceTooLong(u32),
    /// A piece without bytes.
    #[error("a record carries a piece of no bytes")]
    PieceEmpty,
    /// More under way than may be.
    #[error(
        "{outstanding} bytes are under way to one domain and {cost} more were sent, {ORDINARY_CREDIT_BYTES} may be"
    )]
    CreditExceeded {
        /// Before this record.
        outstanding: u32,
        /// What it costs.
        cost: u32,
    },
    /// Nothing was given back.
    #[error("a credit of no bytes")]
    CreditEmpty,
    /// More was given back than came.
    #[error("a credit of {given} bytes, after {delivered} were delivered")]
    CreditBeyond {
        /// Bytes given back.
        given: u32,
        /// Bytes that were delivered and not given back before.
        delivered: u32,
    },
    /// To somebody on another host.
    #[error(transparent)]
    Misplaced(#[from] Misplaced),
    /// Too much is held for it.
    #[error("{held} bytes are held for it and it does not read its ring")]
    NotReading {
        /// Bytes.
        held: u64,
    },
}

impl Breach {
    /// Its entry in the table of reasons.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Ring(fault) => match fault {
                PeerFault::Stamp { .. } => Reason::StampFault,
                PeerFault::HeadOverrun { .. } => Reason::HeadOverrun,
                PeerFault::SlabOverrun { .. } => Reason::SlabOverrun,
                PeerFault::PieceOutside(_) => Reason::PieceOutside,
                PeerFault::RecordTooLong(_) | PeerFault::Record(_) => Reason::MalformedRecord,
            },
            Self::NoPeer
            | Self::Mapped(_)
            | Self::PieceTooLong(_)
            | Self::PieceEmpty
            | Self::CreditEmpty
            | Self::CreditBeyond { .. }
            | Self::Misplaced(_) => Reason::RecordOutOfPlace,
            Self::CreditExceeded { .. } => Reason::CreditExceeded,
            Self::NotReading { .. } => Reason::NotReading,
        }
    }
}
