//! Loop devices of the guest: frames for other guests of the host leave an interface by them.
//!
//! ```text
//!   interfaces that are up ──► Steering ──► LoopInterfaces to the host
//!   LoopPeers of the host  ──► loop devices, and routes of each Steering
//!   a frame for a peer without a device ──► LoopRequest to the host
//! ```
//!
//! The driver moves frames and steers them. All of it ends with the descriptors that this process holds. Frames take the standard path then,
//! and whenever a device has no carrier.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use isthmus_control::async_fd::register;
use isthmus_control::interfaces::AddressChanges;
use isthmus_layout::proxy::loops::{LoopInterfaces, LoopPeer, LoopRequest, LoopRequestKind, Mac};
use isthmus_layout::proxy::{ProxyFrameKind, ResourceRef, RevokedExtent, WindowId};
use isthmus_platform_kvm::{LoopDevice, LoopSetup, Route, Steering, hangs_up};
use rustix::event::epoll;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use super::device::GuestDevice;
use super::interfaces;
use super::resources::ResourceCache;

/// How often a steering is asked again to report frames for peers without rings.
const REPORT_AGAIN: Duration = Duration::from_secs(2);

/// How soon the interfaces are read again after they were read, or after one could not be steered.
const READ_AGAIN: Duration = Duration::from_millis(50);
const STEER_AGAIN: Duration = Duration::from_secs(10);

/// How often the counters of devices are read.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// How long a device may be unused before its rings are given back.
const UNUSED_AFTER: Duration = Duration::from_secs(60);

/// A frame to the host and its content.
pub(super) type LoopMessage = (ProxyFrameKind, Vec<u8>);

/// Changes that the host has sent.
#[derive(Default)]
pub(super) struct HostUpdate {
    /// The last list of peers.
    pub(super) peers: Option<Vec<LoopPeer>>,
    /// Extents that were revoked since.
    pub(super) revoked: Vec<RevokedExtent>,
    /// Whether the host has missed its heartbeats.
    pub(super) is_host_silent: bool,
}

impl HostUpdate {
    /// Returns the changes, and keeps whether the host is silent.
    pub(super) fn take(&mut self) -> Self {
        let kept = Self { is_host_silent: self.is_host_silent, ..Self::default() };
        std::mem::replace(self, kept)
    }
}

/// Rings: the number of the peer, the window, and the generation of the extent.
type Rings = (u32, u16, u32);

fn rings_of(peer: &LoopPeer) -> Rings {
    (peer.guest, peer.window, peer.generation)
}

/// An interface that is steered.
struct SteeredInterface {
    index: u32,
    steering: Steering,
    /// When the steering was last asked to report frames for peers without rings, if it has reported any since.
    reported: Option<Instant>,
}

/// The device for one peer.
struct MadeDevice {
    rings: Rings,
    own: Mac,
    mac: Mac,
    device: LoopDevice,
    /// The number of frames at the last look, and when it had changed.
    frames: (u64, Instant),
}

/// The loop devices and the steering of one session.
pub(super) struct GuestLoops {
    /// Readable when a steering, a device or an interface has changed.
    events: AsyncFd<OwnedFd>,
    changes: AddressChanges,
    steered: BTreeMap<Mac, SteeredInterface>,
    /// Interfaces that cannot be steered, and when that was tried. The reason was logged.
    refused: BTreeMap<(Mac, u32), Instant>,
    /// The devices, by the number of the peer.
    devices: BTreeMap<u32, MadeDevice>,
    peers: Vec<LoopPeer>,
    /// Rings that have served their device. The host still lists them.
    used: BTreeSet<Rings>,
    stated: Option<LoopInterfaces>,
    /// When the interfaces were read last, and whether they have to be read again.
    read: Option<Instant>,
    must_read: bool,
    /// When the counters of devices were read last.
    counted: Instant,
    routes_changed: bool,
    messages: Vec<LoopMessage>,
}

impl GuestLoops {
    pub(super) fn new() -> io::Result<Self> {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let changes = AddressChanges::new()?;
        watch(&events, changes.as_fd())?;
        Ok(Self {
            events: register(events)?,
            changes,
            steered: BTreeMap::new(),
            refused: BTreeMap::new(),
            devices: BTreeMap::new(),
            peers: Vec::new(),
            used: BTreeSet::new(),
            stated: None,
            read: None,
            must_read: true,
            counted: Instant::now(),
            routes_changed: false,
            messages: Vec::new(),
        })
    }

    /// Waits until a steering, a device or an interface may have changed.
    pub(super) async fn changed(&self) -> io::Result<()> {
        self.events.readable().await?.clear_ready();
        Ok(())
    }

    /// Brings devices and routes up to date, and returns messages for the host. Without a host that responds there are no devices. Requests for
    /// rings are left for later if there is no room for them.
    pub(super) fn update<D: GuestDevice>(
        &mut self,
        resources: &ResourceCache<D>,
        pending: HostUpdate,
        has_room: bool,
    ) -> Vec<LoopMessage> {
        let HostUpdate { peers, revoked, is_host_silent } = pending;
        if let Some(peers) = peers {
            self.peers = peers;
            self.routes_changed = true;
            let listed: BTreeSet<_> = self.peers.iter().map(rings_of).collect();
            self.used.retain(|rings| listed.contains(rings));
        }
        forget_revoked(&mut self.peers, &revoked);
        self.update_interfaces(resources);
        self.remove_devices(is_host_silent);
        if !is_host_silent {
            self.make_devices(resources);
        }
        self.set_routes();
        if has_room && !is_host_silent {
            self.give_back_unused();
            self.report_wanted();
        }
        std::mem::take(&mut self.messages)
    }

    /// Steers the interfaces that have come, and no longer those that have gone.
    fn update_interfaces<D: GuestDevice>(&mut self, resources: &ResourceCache<D>) {
        if self.changes.any() || self.refused.values().any(|tried| tried.elapsed() >= STEER_AGAIN) {
            self.must_read = true;
        }
        // Events come in bursts. The next heartbeat reads what is left out.
        if !self.must_read || self.read.is_some_and(|read| read.elapsed() < READ_AGAIN) {
            return;
        }
        (self.must_read, self.read) = (false, Some(Instant::now()));
        let there = interfaces::of_hardware();
        self.steered.retain(|mac, steered| there.get(mac) == Some(&steered.index) && !hangs_up(&steered.steering));
        self.refused.retain(|(mac, index), _| there.get(mac) == Some(index));
        for (mac, index) in there {
            let tried = self.refused.get(&(mac, index));
            if self.steered.contains_key(&mac) || tried.is_some_and(|tried| tried.elapsed() < STEER_AGAIN) {
                continue;
            }
            let steering = resources.device.steer(index).and_then(|steering| {
                watch(self.events.get_ref(), steering.as_fd())?;
                Ok(steering)
            });
            match steering {
                Ok(steering) => {
                    self.refused.remove(&(mac, index));
                    self.steered.insert(mac, SteeredInterface { index, steering, reported: None });
                }
                Err(error) => {
                    if self.refused.insert((mac, index), Instant::now()).is_none() {
                        tracing::warn!(%mac, "frames of an interface cannot go to other guests through shared memory: {error}");
                    }
                }
            }
        }
        self.routes_changed = true;
        let stated = LoopInterfaces::clip(self.steered.keys().copied().collect());
        if self.stated.as_ref() != Some(&stated) {
            self.messages.push((ProxyFrameKind::LoopInterfaces, stated.emit()));
            self.stated = Some(stated);
        }
    }

    /// Removes devices that have ended, or that the host does not list any more.
    fn remove_devices(&mut self, is_host_silent: bool) {
        let (peers, steered) = (&self.peers, &self.steered);
        let mut ended = Vec::new();
        self.devices.retain(|guest, made| {
            let is_listed = peers.iter().any(|peer| peer.guest == *guest && rings_of(peer) == made.rings);
            let is_good = !is_host_silent && !hangs_up(&made.device) && steered.contains_key(&made.own);
            if is_listed && !is_good {
                ended.push(made.rings);
            }
            is_listed && is_good
        });
        self.routes_changed |= !ended.is_empty();
        ended.into_iter().for_each(|rings| self.end(rings));
    }

    /// Tells the host that rings are of no use any more.
    fn end(&mut self, rings: Rings) {
        self.used.insert(rings);
        self.messages.push(about(LoopRequestKind::Ended, rings));
    }

    fn make_devices<D: GuestDevice>(&mut self, resources: &ResourceCache<D>) {
        for at in 0..self.peers.len() {
            let peer = &self.peers[at];
            let rings = rings_of(peer);
            let Some(extent) = peer.extent() else { continue };
            let Some(lower) = self.steered.get(&peer.own).map(|steered| steered.index) else { continue };
            if self.devices.contains_key(&peer.guest) || self.used.contains(&rings) {
                continue;
            }
            let made = make(resources, peer, extent, lower).and_then(|device| {
                watch(self.events.get_ref(), device.as_fd())?;
                Ok(device)
            });
            match made {
                Ok(device) => {
                    tracing::info!(peer = %peer.mac, "frames for another guest go through shared memory");
                    let (own, mac, frames) = (peer.own, peer.mac, (0, Instant::now()));
                    self.devices.insert(peer.guest, MadeDevice { rings, own, mac, device, frames });
                    self.routes_changed = true;
                }
                Err(error) => {
                    tracing::warn!(peer = %peer.mac, "a loop device cannot be made: {error}");
                    self.end(rings);
                }
            }
        }
    }

    fn give_back_unused(&mut self) {
        if self.counted.elapsed() < COUNT_INTERVAL {
            return;
        }
        self.counted = Instant::now();
        for made in self.devices.values_mut() {
            let frames = interfaces::frames(made.device.index()).unwrap_or(made.frames.0);
            if frames != made.frames.0 {
                made.frames = (frames, Instant::now());
            } else if made.frames.1.elapsed() >= UNUSED_AFTER {
                made.frames.1 = Instant::now(); // The host is asked once in a while.
                self.messages.push(about(LoopRequestKind::Unused, made.rings));
            }
        }
    }

    /// Sets the routes of all interfaces if they have changed, or have to report again.
    fn set_routes(&mut self) {
        let all = std::mem::take(&mut self.routes_changed);
        let mut failed = Vec::new();
        for (own, steered) in &mut self.steered {
            let reports_again = steered.reported.is_some_and(|reported| reported.elapsed() >= REPORT_AGAIN);
            if !all && !reports_again {
                continue;
            }
            let of_peer = |peer: &LoopPeer| self.devices.get(&peer.guest).map(|made| made.device.index());
            let peers = self.peers.iter().filter(|peer| peer.own == *own);
            let routes: Vec<_> = peers.map(|peer| Route { mac: peer.mac.octets(), device: of_peer(peer) }).collect();
            if let Err(error) = steered.steering.set_routes(&routes) {
                tracing::warn!(mac = %own, "frames of an interface cannot be steered: {error}");
                failed.push((*own, steered.index));
            }
            steered.reported = None;
        }
        for (own, index) in failed {
            self.steered.remove(&own);
            self.refused.insert((own, index), Instant::now());
            self.must_read = true; // The host has to learn that it is no longer steered.
        }
    }

    /// Asks the host for rings with peers for which frames were seen.
    fn report_wanted(&mut self) {
        for (own, steered) in &mut self.steered {
            for mac in steered.steering.wanted().unwrap_or_default() {
                steered.reported.get_or_insert_with(Instant::now);
                let peer = self.peers.iter().find(|peer| peer.own == *own && peer.mac.octets() == mac);
                if let Some(peer) = peer.filter(|peer| peer.extent().is_none()) {
                    self.messages.push(about(LoopRequestKind::FrameSeen, (peer.guest, 0, 0)));
                }
            }
        }
    }
}

impl Drop for GuestLoops {
    fn drop(&mut self) {
        for made in self.devices.values() {
            tracing::info!(peer = %made.mac, "frames for another guest take the standard path");
        }
    }
}

/// Takes revoked rings out of a list, which may be older: other programs may have their bytes.
fn forget_revoked(peers: &mut [LoopPeer], revoked: &[RevokedExtent]) {
    for peer in peers {
        let is_it = |revoked: &RevokedExtent| {
            (revoked.window.0, revoked.offset, revoked.generation) == (peer.window, peer.offset, peer.generation)
        };
        if revoked.iter().any(is_it) {
            peer.window = WindowId::OWN.0;
        }
    }
}

fn about(kind: LoopRequestKind, (guest, window, generation): Rings) -> LoopMessage {
    (ProxyFrameKind::LoopRequest, LoopRequest { kind, guest, window, generation }.emit())
}

fn make<D: GuestDevice>(
    resources: &ResourceCache<D>,
    peer: &LoopPeer,
    extent: ResourceRef,
    lower: u32,
) -> io::Result<LoopDevice> {
    let piece = resources.open(0, extent)?.file;
    let ringer = resources.device.doorbell_sender(peer.peer, peer.peer_vector)?;
    let (piece, ringer) = (piece.as_fd(), ringer.as_fd());
    resources.device.loop_device(&LoopSetup { piece, side: peer.side, ringer, vector: peer.vector, lower })
}

/// Has the set of descriptors tell of events of one more.
fn watch(events: &OwnedFd, of: impl std::os::fd::AsFd) -> io::Result<()> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::HUP;
    Ok(epoll::add(events, of, epoll::EventData::new_u64(0), flags)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revoked_rings_are_not_used_from_an_older_list() {
        let mac = Mac::new([2, 0, 0, 0, 0, 1]).unwrap();
        let peer = LoopPeer {
            guest: 7,
            own: mac,
            mac,
            window: 3,
            side: 0,
            generation: 9,
            offset: 4096,
            bytes: 8192,
            peer: 8,
            peer_vector: 1,
            vector: 1,
        };
        let revoked = RevokedExtent { window: WindowId(3), offset: 4096, generation: 9 };
        let others = [
            RevokedExtent { window: WindowId(4), ..revoked },
            RevokedExtent { offset: 0, ..revoked },
            RevokedExtent { generation: 8, ..revoked },
        ];
        let mut peers = [peer.clone()];
        forget_revoked(&mut peers, &others);
        assert_eq!(peers, [peer]);
        forget_revoked(&mut peers, &[others[0], revoked]);
        assert_eq!(peers[0].extent(), None);
    }
}
