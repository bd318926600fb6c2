//! Violations of the daemon path's contract, which no correct library commits.

use isthmus_layout::RegionId;
use isthmus_layout::limits::{DAEMON_PATH_CREDIT_BYTES, DAEMON_PATH_FRAGMENT_BYTES_MAX};
use isthmus_layout::reason::Reason;
use isthmus_mx_transport::TransportViolation;
use isthmus_shm::PeerFault;

/// A domain broke the contract of the daemon path. Its ring is closed, and counted; nothing else happens because of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A violation in the ring's memory.
    #[error(transparent)]
    Ring(#[from] PeerFault),
    /// A record without a receiver.
    #[error("a record names no domain that it is for")]
    NoPeer,
    /// Regions are granted to peers, not to the daemon in between.
    #[error("an announcement on the daemon path names region {0} to be mapped")]
    MappedRecord(RegionId),
    /// More than one record may carry.
    #[error("a record carries {0} bytes of message, {DAEMON_PATH_FRAGMENT_BYTES_MAX} at most may be")]
    FragmentTooLong(u32),
    /// A fragment without bytes.
    #[error("a record carries a fragment of no bytes")]
    FragmentEmpty,
    /// More under way than may be.
    #[error(
        "{outstanding} bytes are under way to one domain and {cost} more were sent, {DAEMON_PATH_CREDIT_BYTES} may be"
    )]
    CreditExceeded {
        /// Before this record.
        outstanding: u32,
        /// The cost of this record.
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
    /// A violation in a record for a remote peer.
    #[error(transparent)]
    Transport(#[from] TransportViolation),
    /// The domain does not read its ring.
    #[error("{held} bytes are queued for the domain, because it does not read its ring")]
    NotReading {
        /// The cost of the queued records, in bytes.
        held: u64,
    },
}

impl Violation {
    /// Its entry in the table of reasons.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Ring(fault) => match fault {
                PeerFault::Stamp { .. } => Reason::CellStampInvalid,
                PeerFault::HeadOverrun { .. } => Reason::RingHeadInvalid,
                PeerFault::SlabOverrun { .. } => Reason::SlabHeadInvalid,
                PeerFault::FragmentOutside(_) => Reason::FragmentOutsideSlab,
                PeerFault::RecordTooLong(_) | PeerFault::Record(_) => Reason::MalformedRecord,
            },
            Self::NoPeer
            | Self::MappedRecord(_)
            | Self::FragmentTooLong(_)
            | Self::FragmentEmpty
            | Self::CreditEmpty
            | Self::CreditBeyond { .. }
            | Self::Transport(_) => Reason::RecordUnexpected,
            Self::CreditExceeded { .. } => Reason::CreditExceeded,
            Self::NotReading { .. } => Reason::RingNotRead,
        }
    }
}
