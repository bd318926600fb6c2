//! The control messages of overlay networks: changes while the daemon runs.

use alloc::string::String;
use alloc::vec::Vec;

use crate::control::ToDaemon;
use crate::control::codec::{Field, FieldReader, MalformedControl, Width};
use crate::control::table::{FieldInfo, MessageInfo, concat_tables, messages, record};

messages! {
    /// A message about overlay networks, from a program to its daemon.
    OverlayToDaemon;

    /// Changes the overlay networks: as a whole, or not at all. Only root and the user of the daemon may change them, and no program of a
    /// guest. The connection is not attached. The change holds until the daemon restarts or reads its configuration again.
    64 OverlayChange since 4, reply "`QueryReply`, several until the last",
    descriptors ["the change as JSON: a memory file of at most 256 KiB, sealed against writing and resizing"] {}
}

impl From<OverlayChange> for ToDaemon {
    fn from(message: OverlayChange) -> Self {
        Self::Overlay(OverlayToDaemon::from(message))
    }
}
