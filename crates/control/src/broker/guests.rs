//! The state of guests as shown in reports. Requests of their programs arrive on connections, as those of other programs.

use std::collections::BTreeMap;
use std::sync::Arc;

use isthmus_layout::channel::ChannelGeometry;
use isthmus_layout::control::Name;
use isthmus_layout::proxy::HEARTBEAT_TIMEOUT_MS;

use super::Broker;
use crate::allocator::GuestWindow;
use crate::xen::backend::RegionSizes;

/// A guest of the configuration.
#[derive(Debug)]
pub(crate) struct GuestView {
    pub(crate) uid: u32,
    pub(crate) platform: &'static str,
    /// The socket on which QEMU finds the guest's device. For a guest of Xen, the place in XenStore where it announces itself.
    pub(crate) socket: String,
    pub(crate) window_bytes: u64,
    pub(crate) vectors: u16,
    /// The socket of its monitor, if the daemon was given one.
    pub(crate) monitor: Option<String>,
    /// Bytes of a pair window with another guest.
    pub(crate) pair_window_bytes: u64,
    /// Its window, while it has its device.
    pub(crate) guest_window: Option<Arc<GuestWindow>>,
    /// Whether the next daemon will find the device.
    pub(crate) is_stored: bool,
    /// The reason why the last connection for its device failed.
    pub(crate) last_error: Option<String>,
    /// Whether its guest daemon is connected.
    pub(crate) daemon: bool,
    /// The time of the last heartbeat; none if the guest daemon does not send any.
    pub(crate) last_seen: Option<u64>,
}

/// The state of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuestState {
    /// The guest has no device.
    NoDevice,
    /// The guest has its device, but its guest daemon is not connected.
    WaitingForDaemon,
    /// The guest daemon is connected but has sent no heartbeat for a while. It hangs, or the guest is paused.
    NotResponding,
    /// The guest daemon is connected.
    Attached,
}

impl GuestState {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NoDevice => "no device",
            Self::WaitingForDaemon => "waiting for guest daemon",
            Self::NotResponding => "not responding",
            Self::Attached => "attached",
        }
    }
}

impl GuestView {
    /// Creates the view of a guest that is not connected.
    pub(crate) fn absent(platform: &'static str, uid: u32, window_bytes: u64, vectors: u16) -> Self {
        Self {
            uid,
            platform,
            socket: String::new(),
            window_bytes,
            vectors,
            monitor: None,
            pair_window_bytes: 0,
            guest_window: None,
            is_stored: false,
            last_error: None,
            daemon: false,
            last_seen: None,
        }
    }

    /// Nanoseconds since the last heartbeat of its guest daemon.
    pub(crate) fn silent_for(&self, now: u64) -> Option<u64> {
        self.last_seen.filter(|_| self.daemon).map(|heard| now.saturating_sub(heard))
    }

    /// Whether the next daemon will find its device, if it has one. A guest of Xen has no device and makes another window.
    pub(crate) fn device_is_stored(&self) -> Option<bool> {
        self.guest_window.as_ref().filter(|_| self.platform == "kvm").map(|_| self.is_stored)
    }

    pub(crate) fn state(&self, now: u64) -> GuestState {
        let silent = self.silent_for(now).is_some_and(|silent_ns| silent_ns >= SILENT_NS);
        match (&self.guest_window, self.daemon) {
            (None, _) => GuestState::NoDevice,
            (Some(_), false) => GuestState::WaitingForDaemon,
            (Some(_), true) if silent => GuestState::NotResponding,
            (Some(_), true) => GuestState::Attached,
        }
    }
}

const SILENT_NS: u64 = HEARTBEAT_TIMEOUT_MS as u64 * 1_000_000;

impl Broker {
    pub(crate) fn add_guest(&mut self, name: Name, guest: GuestView) {
        self.guests.insert(name, guest);
    }

    /// Returns the sizes of the extents that guests' windows need.
    pub(crate) fn sizes(&self) -> RegionSizes {
        let size = |slab| ChannelGeometry { slab }.size();
        RegionSizes { ring: size(self.settings.ring_slab), channel: size(self.settings.slab) }
    }

    pub(crate) fn guests(&self) -> &BTreeMap<Name, GuestView> {
        &self.guests
    }

    pub(crate) fn guest_mut(&mut self, name: &Name) -> Option<&mut GuestView> {
        self.guests.get_mut(name)
    }
}
