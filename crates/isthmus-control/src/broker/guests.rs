//! Guests, as far as reports show them; what they do comes by their programs' connections.

use std::collections::BTreeMap;
use std::sync::Arc;

use isthmus_layout::control::Name;

use super::Broker;
use crate::ground::Estate;

/// A guest of the configuration.
#[derive(Debug)]
pub(crate) struct GuestView {
    pub(crate) uid: u32,
    /// Where its QEMU finds its device.
    pub(crate) socket: String,
    pub(crate) window_bytes: u64,
    pub(crate) vectors: u16,
    /// Its monitor, if the daemon was given one.
    pub(crate) monitor: Option<String>,
    /// Bytes of a window that it has in common with another guest.
    pub(crate) common_bytes: u64,
    /// Its window, while it has its device.
    pub(crate) estate: Option<Arc<Estate>>,
    /// Whether its own daemon is there.
    pub(crate) daemon: bool,
}

impl Broker {
    pub(crate) fn add_guest(&mut self, name: Name, guest: GuestView) {
        self.guests.insert(name, guest);
    }

    pub(crate) fn guests(&self) -> &BTreeMap<Name, GuestView> {
        &self.guests
    }

    pub(crate) fn guest_mut(&mut self, name: &Name) -> Option<&mut GuestView> {
        self.guests.get_mut(name)
    }
}
