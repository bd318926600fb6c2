//! What a peer wrote into shared memory and no correct peer would have.

use isthmus_layout::OutsideRegion;
use isthmus_layout::channel::RecordTooLong;
use isthmus_layout::record::MalformedRecord;

/// The peer broke the contract. Ends its channel, and counts; nothing else happens because of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerFault {
    /// A cell's stamp is neither of this lap nor of the one before.
    #[error("the cell at position {position} is stamped {found}")]
    Stamp {
        /// Free-running position of the cell.
        position: u32,
        /// What stood there.
        found: u32,
    },
    /// A record's header names more bytes than a record can have.
    #[error(transparent)]
    RecordTooLong(#[from] RecordTooLong),
    /// The consumer claims to have consumed what was never sent, or to have gone back.
    #[error("the head of the ring is {head}, but only {tail} cells were filled")]
    HeadOverrun {
        /// What the consumer wrote.
        head: u32,
        /// What we filled.
        tail: u32,
    },
    /// The same for the slab.
    #[error("the head of the slab is {head}, but only {tail} bytes were filled")]
    SlabOverrun {
        /// What the consumer wrote.
        head: u32,
        /// What we filled.
        tail: u32,
    },
    /// A fragment lies outside the slab.
    #[error(transparent)]
    FragmentOutside(#[from] OutsideRegion),
    /// A record that no correct library writes.
    #[error(transparent)]
    Record(#[from] MalformedRecord),
}
