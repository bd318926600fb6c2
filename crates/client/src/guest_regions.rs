//! Regions in a guest: the host daemon gives their memory, an extent of a window, and grants it to peers.
//!
//! ```text
//!   program                    daemon of the host                    peer, in this guest or one beside
//!   CreateRegion { peer } ──►  allocates an extent of their window
//!                              ── Granted ─────────────────────────►  may read it
//!   RegionCreated ◄─────────
//!   at the buffer's next use: moves it there, announces it ─────────►  copies straight out of it
//! ```
//!
//! The daemon may take a region away at any time, for instance because a channel needs the room. Its bytes stay; that it is not shared
//! any more is noticed at the next use.

use crate::core::Core;
use crate::matcher::Matcher;
use crate::peer::{GrantState, Outgoing, PeerIndex};
use isthmus_layout::control::{CreateRegion, RequestSerial, Revoke};
use isthmus_layout::ids::RegionId;
use isthmus_layout::reason::Reason;
use isthmus_shm::regcache::{MigrationTarget, Prepared, RegionKey, Warm};
use rustix::fd::OwnedFd;

impl<M: Matcher> Core<M> {
    /// True if the memory of this domain lies in the window of a guest.
    pub(crate) fn is_in_guest(&self) -> bool {
        self.ready_maps.first().is_some_and(|ready_map| ready_map.in_guest)
    }

    /// The message's buffer in a region that the peer has; otherwise sees to it that there will be one, where that can be.
    pub(crate) fn find_region_in_guest(&mut self, at: PeerIndex, message: &Outgoing) -> Result<Warm, Reason> {
        if let Some(reason) = self.guest_regions_off {
            return Err(reason);
        }
        if self.peers[at].id.is_remote() {
            return Err(Reason::NoSharedMemory); // The daemon that has the MX boards is in no guest.
        }
        let warm = match message.buffer.migrate(&self.registration_cache, MigrationTarget::Extents) {
            Prepared::Warm(warm) => warm,
            Prepared::Cold(cold) => return Err(cold.reason()),
            Prepared::NeedsExtent { region, bytes } => return Err(self.request_region(at, region, bytes)),
        };
        match self.peers[at].granted.get(&RegionId(warm.region.number())) {
            Some(GrantState::Yes) => Ok(warm),
            Some(GrantState::Asked(_)) => Err(Reason::BufferNew), // To the peer it is.
            Some(&GrantState::Refused(reason)) => Err(reason),
            None => match self.registration_cache.bytes_of(warm.region) {
                Some(bytes) => Err(self.request_region(at, warm.region, bytes)),
                None => Err(Reason::BufferNew),
            },
        }
    }

    /// Asks for a region, or that a peer gets one that is there. What stands in the way until then.
    fn request_region(&mut self, at: PeerIndex, region: RegionKey, bytes: u64) -> Reason {
        self.revoke_released(); // What is new often takes the place of something old.
        let (peer, id) = (self.peers[at].id, RegionId(region.number()));
        match self.try_send_request(CreateRegion { peer, region: id, bytes }.into(), &[]) {
            Ok(serial) => {
                self.peers[at].granted.insert(id, GrantState::Asked(serial));
                let shown = self.region_viewers.entry(id).or_default();
                shown.retain(|known| *known != peer);
                shown.push(peer);
                Reason::BufferNew
            }
            Err(reason) => {
                self.registration_cache.reject_extent(region, true);
                reason
            }
        }
    }

    /// The region's memory has come.
    pub(crate) fn handle_region_created(&mut self, serial: Option<RequestSerial>, region: RegionId, memory: OwnedFd) {
        self.handle_grant_reply(serial, GrantState::Yes);
        if let Some(key) = RegionKey::from_number(region.0) {
            self.registration_cache.provide_extent(key, memory);
        }
        self.revoke_released();
    }

    /// There is no memory for the region that was asked for.
    pub(crate) fn handle_region_refused(&mut self, serial: Option<RequestSerial>, reason: Reason) {
        let asked = serial.map(GrantState::Asked);
        let found = self.peers.indices().into_iter().find_map(|at| {
            let mut granted = self.peers[at].granted.iter();
            granted.find(|(_, state)| Some(**state) == asked).map(|(&region, _)| (at, region))
        });
        let Some((at, region, key)) = found.and_then(|(at, id)| Some((at, id, RegionKey::from_number(id.0)?))) else {
            return;
        };
        if !self.region_viewers.contains_key(&region) || self.registration_cache.bytes_of(key).is_some() {
            return; // It is there, and this peer does not get it.
        }
        self.region_viewers.remove(&region);
        self.peers[at].granted.remove(&region);
        self.peers[at].fragmented = Some(reason);
        self.publish_slow_path_reasons(at);
        self.registration_cache.reject_extent(key, !matches!(reason, Reason::RegionsFull | Reason::OutOfMemory));
        self.revoke_released();
    }

    /// Peers do not read a region any more that was given back. The host has kept it for as long as they might.
    pub(crate) fn hide_region(&mut self, region: RegionId) {
        for peer in self.region_viewers.remove(&region).unwrap_or_default() {
            if let Some(at) = self.find_peer(peer) {
                self.peers[at].granted.remove(&region);
                self.send_request(Revoke { peer, region }.into(), &[]);
            }
        }
    }
}
