//! What the data plane has to know of the kinds of records: which carry bytes, which begin a message, which cannot be here.

use crate::breach::Breach;
use isthmus_layout::DomainId;
use isthmus_layout::limits::ORDINARY_FRAGMENT_BYTES_MAX;
use isthmus_layout::record::{Piece, Record, Route, Serial};

/// Message bytes that a record carries, and where they are in its sender's slab.
pub(crate) fn payload(record: &Record<'_>) -> (u32, Option<Piece>) {
    match *record {
        Record::Eager { len, .. } => (len, None),
        Record::Start { piece, .. } | Record::More { piece, .. } => (piece.len, Some(piece)),
        // The ends of a message whose pages are somewhere else.
        Record::Announce { piece, .. } if piece.len > 0 => (piece.len, Some(piece)),
        _ => (0, None),
    }
}

/// The way back to the sender, from `peer`.
pub(crate) fn back(route: Route, peer: Option<DomainId>) -> Route {
    Route { from: route.to, to: route.from, epoch: route.epoch, peer }
}

/// What a bounce of this record says: the serial where the sender gave it. None for what is dropped without a word, because it is about
/// flow, or an answer of the same kind.
pub(crate) fn bounced(record: &Record<'_>) -> Option<Serial> {
    match *record {
        Record::Start { serial, .. } | Record::Announce { serial, .. } | Record::More { serial, .. } => Some(serial),
        Record::Eager { .. } | Record::Pull { .. } | Record::Taken { .. } | Record::Switch => Some(Serial(0)),
        Record::Credit { .. } | Record::Bounce { .. } | Record::Abort { .. } => None,
    }
}

/// True for records that only come because the other side began.
pub(crate) fn is_answer(record: &Record<'_>) -> bool {
    matches!(
        record,
        Record::Pull { .. } | Record::Taken { .. } | Record::Bounce { .. } | Record::Abort { .. } | Record::Switch
    )
}

/// Refuses what no correct library sends on the ordinary path, to `peer`.
pub(crate) fn check(record: &Record<'_>, peer: DomainId) -> Result<(), Breach> {
    match *record {
        Record::Announce { piece, .. } if piece.len > ORDINARY_FRAGMENT_BYTES_MAX => {
            Err(Breach::PieceTooLong(piece.len))
        }
        // The daemon itself may map pages that are for somebody on another host.
        Record::Announce { mapped: Some(mapped), .. } if !peer.is_remote() => Err(Breach::Mapped(mapped.region)),
        Record::Start { piece, .. } | Record::More { piece, .. } => match piece.len {
            0 => Err(Breach::PieceEmpty),
            1..=ORDINARY_FRAGMENT_BYTES_MAX => Ok(()),
            len => Err(Breach::PieceTooLong(len)),
        },
        _ => Ok(()),
    }
}

/// The record without its bytes and without its place in the sender's slab.
pub(crate) fn bare(record: &Record<'_>) -> Record<'static> {
    let nowhere = Piece { offset: 0, len: 0 };
    match *record {
        Record::Eager { tag, len, .. } => Record::Eager { tag, len, words: &[] },
        Record::Start { tag, len, serial, .. } => Record::Start { tag, len, serial, piece: nowhere },
        Record::More { serial, .. } => Record::More { serial, piece: nowhere },
        Record::Announce { tag, len, serial, mapped, .. } => {
            Record::Announce { tag, len, serial, piece: nowhere, mapped }
        }
        Record::Pull { serial, bytes } => Record::Pull { serial, bytes },
        Record::Taken { serial, outcome, bytes } => Record::Taken { serial, outcome, bytes },
        Record::Switch => Record::Switch,
        Record::Credit { bytes } => Record::Credit { bytes },
        Record::Bounce { serial, reason } => Record::Bounce { serial, reason },
        Record::Abort { serial, reason } => Record::Abort { serial, reason },
    }
}

/// The record with its bytes at another place.
pub(crate) fn placed<'a>(record: &Record<'a>, piece: Piece) -> Record<'a> {
    match *record {
        Record::Start { tag, len, serial, .. } => Record::Start { tag, len, serial, piece },
        Record::More { serial, .. } => Record::More { serial, piece },
        other => other,
    }
}
