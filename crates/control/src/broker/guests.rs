//! Guests, as far as reports show them; what they do comes by their programs' connections.

use std::collections::BTreeMap;
use std::sync::Arc;

use isthmus_layout::border::SILENT_AFTER_MS;
use isthmus_layout::channel::Geometry;
use isthmus_layout::control::Name;

use super::Broker;
use crate::ground::Estate;
use crate::xen::backend::Sizes;

/// A guest of the configuration.
#[derive(Debug)]
pub(crate) struct GuestView {
    pub(crate) uid: u32,
    pub(crate) platform: &'static str,
    /// Where its QEMU finds its device; of a guest of Xen, where it says in XenStore that it is there.
    pub(crate) socket: String,
    pub(crate) window_bytes: u64,
    pub(crate) vectors: u16,
    /// Its monitor, if the daemon was given one.
    pub(crate) monitor: Option<String>,
    /// Bytes of a window that it has in common with another guest.
    pub(crate) common_bytes: u64,
    /// Its window, while it has its device.
    pub(crate) estate: Option<Arc<Estate>>,
    /// Whether a daemon after this one will find it.
    pub(crate) kept: bool,
    /// Why the last connection for its device came to nothing.
    pub(crate) refused: Option<String>,
    /// Whether its own daemon is there.
    pub(crate) daemon: bool,
    /// When that was last heard of; none where it does not say regularly that it is there.
    pub(crate) heard: Option<u64>,
}

/// How a guest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuestState {
    /// It has no device.
    Absent,
    /// It has its device, and no daemon that speaks.
    Device,
    /// Its daemon is there and has not been heard for a while: it hangs, or the guest is paused.
    Silent,
    /// Its daemon is there.
    There,
}

impl GuestState {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Device => "device",
            Self::Silent => "silent",
            Self::There => "there",
        }
    }
}

impl GuestView {
    /// Of a guest that is not there.
    pub(crate) fn absent(platform: &'static str, uid: u32, window_bytes: u64, vectors: u16) -> Self {
        Self {
            uid,
            platform,
            socket: String::new(),
            window_bytes,
            vectors,
            monitor: None,
            common_bytes: 0,
            estate: None,
            kept: false,
            refused: None,
            daemon: false,
            heard: None,
        }
    }

    /// Nanoseconds since its daemon was heard.
    pub(crate) fn unheard_for(&self, now: u64) -> Option<u64> {
        self.heard.filter(|_| self.daemon).map(|heard| now.saturating_sub(heard))
    }

    /// Whether a daemon after this one will find its device, if it has one. A guest of Xen has none, and makes another window.
    pub(crate) fn device_is_kept(&self) -> Option<bool> {
        self.estate.as_ref().filter(|_| self.platform == "kvm").map(|_| self.kept)
    }

    pub(crate) fn state(&self, now: u64) -> GuestState {
        let silent = self.unheard_for(now).is_some_and(|unheard| unheard >= SILENT_NS);
        match (&self.estate, self.daemon) {
            (None, _) => GuestState::Absent,
            (Some(_), false) => GuestState::Device,
            (Some(_), true) if silent => GuestState::Silent,
            (Some(_), true) => GuestState::There,
        }
    }
}

const SILENT_NS: u64 = SILENT_AFTER_MS as u64 * 1_000_000;

impl Broker {
    pub(crate) fn add_guest(&mut self, name: Name, guest: GuestView) {
        self.guests.insert(name, guest);
    }

    /// What pieces of guests' windows are as large as.
    pub(crate) fn sizes(&self) -> Sizes {
        let size = |slab| Geometry { slab }.size();
        Sizes { ring: size(self.settings.ring_slab), channel: size(self.settings.slab) }
    }

    pub(crate) fn guests(&self) -> &BTreeMap<Name, GuestView> {
        &self.guests
    }

    pub(crate) fn guest_mut(&mut self, name: &Name) -> Option<&mut GuestView> {
        self.guests.get_mut(name)
    }
}
