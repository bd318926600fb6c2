//! Protocol violations of a peer in shared memory.

use isthmus_layout::OutsideRegion;
use isthmus_layout::channel::RecordTooLong;
use isthmus_layout::record::MalformedRecord;

/// The peer violated the protocol. The violation closes its channel and is counted; it has no other effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerFault {
    /// A cell's stamp is neither of this lap nor of the one before.
    #[error("the cell at position {position} is stamped {found}")]
    Stamp {
        /// Free-running position of the cell.
        position: u32,
        /// The stamp in the cell.
        found: u32,
    },
    /// A record's header names more bytes than a record can have.
    #[error(transparent)]
    RecordTooLong(#[from] RecordTooLong),
    /// The consumer claims to have consumed what was never sent, or to have gone back.
    #[error("the head of the ring is {head}, but only {tail} cells were filled")]
    HeadOverrun {
        /// The head that the consumer wrote.
        head: u32,
        /// The number of cells that we filled.
        tail: u32,
    },
    /// The consumer claims to have consumed slab bytes that were never filled, or to have gone back.
    #[error("the head of the slab is {head}, but only {tail} bytes were filled")]
    SlabOverrun {
        /// The head that the consumer wrote.
        head: u32,
        /// The number of bytes that we filled.
        tail: u32,
    },
    /// A fragment lies outside the slab.
    #[error(transparent)]
    FragmentOutside(#[from] OutsideRegion),
    /// A record that no correct library writes.
    #[error(transparent)]
    Record(#[from] MalformedRecord),
}
