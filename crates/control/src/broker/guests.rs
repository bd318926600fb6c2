//! The state of guests as shown in reports. Requests of their programs arrive on connections, as those of other programs.

use std::collections::BTreeMap;
use std::sync::Arc;

use isthmus_layout::RegionSize;
use isthmus_layout::channel::ChannelGeometry;
use isthmus_layout::control::Name;
use isthmus_layout::proxy::HEARTBEAT_TIMEOUT_MS;
use isthmus_layout::proxy::addresses::InterfaceAddress;
use isthmus_layout::proxy::loops::Mac;

use super::Broker;
use isthmus_window::GuestWindow;

/// The sizes of regions that domains need.
#[derive(Clone, Copy, Debug)]
pub struct RegionSizes {
    /// The size of a domain's ring with its slabs.
    pub ring: RegionSize,
    /// The size of a channel.
    pub channel: RegionSize,
}

/// A guest of the configuration.
#[derive(Debug)]
pub struct GuestView {
    /// The owner of its domains.
    pub uid: u32,
    /// The name of its platform, `kvm` or `xen`.
    pub platform: &'static str,
    /// The socket on which QEMU finds the guest's device. For a guest of Xen, the place in XenStore where it announces itself.
    pub socket: String,
    /// The size of its window in bytes, as configured.
    pub window_bytes: u64,
    /// The number of vectors in each direction.
    pub vectors: u16,
    /// The socket of its monitor, if the daemon was given one.
    pub monitor: Option<String>,
    /// Bytes of a pair window with another guest.
    pub pair_window_bytes: u64,
    /// The network and the MAC address of each interface that may exchange frames with other guests through shared memory.
    pub loops: Vec<(String, Mac)>,
    /// Its window, while it has its device.
    pub guest_window: Option<Arc<GuestWindow>>,
    /// Whether the next daemon will find the device.
    pub is_stored: bool,
    /// The reason why the last connection for its device failed.
    pub last_error: Option<String>,
    /// Whether its guest daemon is connected.
    pub daemon: bool,
    /// The time of the last heartbeat; none if the guest daemon does not send any.
    pub last_seen: Option<u64>,
}

/// The state of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestState {
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
    /// The name of the state in reports.
    pub const fn name(self) -> &'static str {
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
    pub fn absent(platform: &'static str, uid: u32, window_bytes: u64, vectors: u16) -> Self {
        Self {
            uid,
            platform,
            socket: String::new(),
            window_bytes,
            vectors,
            monitor: None,
            pair_window_bytes: 0,
            loops: Vec::new(),
            guest_window: None,
            is_stored: false,
            last_error: None,
            daemon: false,
            last_seen: None,
        }
    }

    /// Nanoseconds since the last heartbeat of its guest daemon.
    pub fn silent_for(&self, now: u64) -> Option<u64> {
        self.last_seen.filter(|_| self.daemon).map(|heard| now.saturating_sub(heard))
    }

    /// Whether the next daemon will find its device, if it has one. A guest of Xen has no device and makes another window.
    pub fn device_is_stored(&self) -> Option<bool> {
        self.guest_window.as_ref().filter(|_| self.platform == "kvm").map(|_| self.is_stored)
    }

    /// The state at the time `now`.
    pub fn state(&self, now: u64) -> GuestState {
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
    /// Adds a guest of the configuration.
    pub fn add_guest(&mut self, name: Name, guest: GuestView) {
        self.core.has_guests = true;
        self.guests.insert(name, guest);
    }

    /// Returns the sizes of the extents that guests' windows need.
    pub fn sizes(&self) -> RegionSizes {
        let size = |slab| ChannelGeometry { slab }.size();
        RegionSizes { ring: size(self.core.settings.ring_slab), channel: size(self.core.settings.slab) }
    }

    /// The guests of the configuration, by their names.
    pub fn guests(&self) -> &BTreeMap<Name, GuestView> {
        &self.guests
    }

    /// Takes the addresses of the interfaces of the guest that has this window, or had it. They replace those that it had.
    pub fn set_guest_addresses(&mut self, window: &GuestWindow, addresses: &[InterfaceAddress]) {
        self.capabilities.set_guest_addresses(window, addresses);
    }

    /// The guest with this name.
    pub fn guest_mut(&mut self, name: &Name) -> Option<&mut GuestView> {
        self.guests.get_mut(name)
    }
}
