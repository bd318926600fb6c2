//! Classifies records on the daemon path: which carry payload, which a bounce answers, and which are invalid there.

use crate::violation::Violation;
use isthmus_layout::DomainId;
use isthmus_layout::limits::DAEMON_PATH_FRAGMENT_BYTES_MAX;
use isthmus_layout::record::{Fragment, Record, Route, Serial};

/// Message bytes that a record carries, and where they are in its sender's slab.
pub(crate) fn payload_of(record: &Record<'_>) -> (u32, Option<Fragment>) {
    match *record {
        Record::Eager { len, .. } => (len, None),
        Record::FirstFragment { fragment, .. } | Record::NextFragment { fragment, .. } => {
            (fragment.len, Some(fragment))
        }
        // The ends of a message; its pages are in registered memory.
        Record::Announce { fragment, .. } if fragment.len > 0 => (fragment.len, Some(fragment)),
        _ => (0, None),
    }
}

/// The way back to the sender, from `peer`.
pub(crate) fn reply_route(route: Route, peer: Option<DomainId>) -> Route {
    Route { from: route.to, to: route.from, epoch: route.epoch, peer }
}

/// The serial that a bounce of this record carries; 0 if the record has none. None for records that are dropped without a bounce,
/// because they carry credit or report a failure themselves.
pub(crate) fn bounce_serial(record: &Record<'_>) -> Option<Serial> {
    match *record {
        Record::FirstFragment { serial, .. }
        | Record::Announce { serial, .. }
        | Record::NextFragment { serial, .. } => Some(serial),
        Record::Eager { .. } | Record::Pull { .. } | Record::Completed { .. } | Record::Switch => Some(Serial(0)),
        Record::Credit { .. } | Record::Bounce { .. } | Record::Abort { .. } => None,
    }
}

/// Returns whether a record replies to a message of the other side.
pub(crate) fn is_reply(record: &Record<'_>) -> bool {
    matches!(
        record,
        Record::Pull { .. } | Record::Completed { .. } | Record::Bounce { .. } | Record::Abort { .. } | Record::Switch
    )
}

/// Refuses records that no correct library sends to `peer` on the daemon path.
pub(crate) fn check_daemon_path(record: &Record<'_>, peer: DomainId) -> Result<(), Violation> {
    match *record {
        Record::Announce { fragment, .. } if fragment.len > DAEMON_PATH_FRAGMENT_BYTES_MAX => {
            Err(Violation::FragmentTooLong(fragment.len))
        }
        // The daemon itself may map pages that are for a remote peer.
        Record::Announce { mapped: Some(mapped), .. } if !peer.is_remote() => {
            Err(Violation::MappedRecord(mapped.region))
        }
        Record::FirstFragment { fragment, .. } | Record::NextFragment { fragment, .. } => match fragment.len {
            0 => Err(Violation::FragmentEmpty),
            1..=DAEMON_PATH_FRAGMENT_BYTES_MAX => Ok(()),
            len => Err(Violation::FragmentTooLong(len)),
        },
        _ => Ok(()),
    }
}

/// The record without its bytes and without its place in the sender's slab.
pub(crate) fn without_payload(record: &Record<'_>) -> Record<'static> {
    let nowhere = Fragment { offset: 0, len: 0 };
    match *record {
        Record::Eager { tag, len, .. } => Record::Eager { tag, len, words: &[] },
        Record::FirstFragment { tag, len, serial, .. } => Record::FirstFragment { tag, len, serial, fragment: nowhere },
        Record::NextFragment { serial, .. } => Record::NextFragment { serial, fragment: nowhere },
        Record::Announce { tag, len, serial, mapped, .. } => {
            Record::Announce { tag, len, serial, fragment: nowhere, mapped }
        }
        Record::Pull { serial, bytes } => Record::Pull { serial, bytes },
        Record::Completed { serial, outcome, bytes } => Record::Completed { serial, outcome, bytes },
        Record::Switch => Record::Switch,
        Record::Credit { bytes } => Record::Credit { bytes },
        Record::Bounce { serial, reason } => Record::Bounce { serial, reason },
        Record::Abort { serial, reason } => Record::Abort { serial, reason },
    }
}

/// The record with its bytes at another place.
pub(crate) fn with_fragment<'a>(record: &Record<'a>, fragment: Fragment) -> Record<'a> {
    match *record {
        Record::FirstFragment { tag, len, serial, .. } => Record::FirstFragment { tag, len, serial, fragment },
        Record::NextFragment { serial, .. } => Record::NextFragment { serial, fragment },
        other => other,
    }
}
