//! Regions in a guest: the host gives their memory, a piece of a window, and shows it to peers.
//!
//! ```text
//!   program                    daemon of the host                    peer, in this guest or one beside
//!   MakeRegion { peer } ────►  takes a piece of their window
//!                              ── Granted ─────────────────────────►  may read it
//!   RegionMade ◄────────────
//!   at the buffer's next use: moves it there, announces it ─────────►  copies straight out of it
//! ```
//!
//! The daemon may take a region away at any time, for instance because a channel needs the room. Its bytes stay; that it is not shared
//! any more is noticed at the next use.

use crate::core::Core;
use crate::matcher::Matcher;
use crate::peer::{Granted, Outgoing, PeerIndex};
use isthmus_layout::control::{MakeRegion, RequestSerial, Revoke};
use isthmus_layout::ids::RegionId;
use isthmus_layout::reason::Reason;
use isthmus_shm::rehome::{Onto, Prepared, RegionKey, Warm};
use rustix::fd::OwnedFd;

impl<M: Matcher> Core<M> {
    /// Whether what we have lies in the window of a guest.
    pub(crate) fn is_in_guest(&self) -> bool {
        self.boards.first().is_some_and(|board| board.in_guest)
    }

    /// The message's buffer in a region that the peer has; otherwise sees to it that there will be one, where that can be.
    pub(crate) fn find_warm_in_guest(&mut self, at: PeerIndex, message: &Outgoing) -> Result<Warm, Reason> {
        if let Some(reason) = self.no_guest_regions {
            return Err(reason);
        }
        if self.peers[at].id.is_remote() {
            return Err(Reason::NoCommonMemory); // The daemon that has the wire is in no guest.
        }
        let warm = match message.buffer.rehome(&self.rehome, Onto::Pieces) {
            Prepared::Warm(warm) => warm,
            Prepared::Cold(cold) => return Err(cold.reason()),
            Prepared::Wanted { region, bytes } => return Err(self.make_region(at, region, bytes)),
        };
        match self.peers[at].granted.get(&RegionId(warm.region.number())) {
            Some(Granted::Yes) => Ok(warm),
            Some(Granted::Asked(_)) => Err(Reason::BufferNew), // To the peer it is.
            Some(&Granted::Refused(reason)) => Err(reason),
            None => match self.rehome.bytes_of(warm.region) {
                Some(bytes) => Err(self.make_region(at, warm.region, bytes)),
                None => Err(Reason::BufferNew),
            },
        }
    }

    /// Asks for a region, or that a peer gets one that is there. What stands in the way until then.
    fn make_region(&mut self, at: PeerIndex, region: RegionKey, bytes: u64) -> Reason {
        self.revoke_released(); // What is new often takes the place of something old.
        let (peer, id) = (self.peers[at].id, RegionId(region.number()));
        match self.try_tell(MakeRegion { peer, region: id, bytes }.into(), &[]) {
            Ok(serial) => {
                self.peers[at].granted.insert(id, Granted::Asked(serial));
                let shown = self.shown.entry(id).or_default();
                shown.retain(|known| *known != peer);
                shown.push(peer);
                Reason::BufferNew
            }
            Err(reason) => {
                self.rehome.deny(region, true);
                reason
            }
        }
    }

    /// The region's memory has come.
    pub(crate) fn region_made(&mut self, serial: Option<RequestSerial>, region: RegionId, memory: OwnedFd) {
        self.grant_answered(serial, Granted::Yes);
        if let Some(key) = RegionKey::from_number(region.0) {
            self.rehome.give(key, memory);
        }
        self.revoke_released();
    }

    /// There is no memory for the region that was asked for.
    pub(crate) fn region_refused(&mut self, serial: Option<RequestSerial>, reason: Reason) {
        let asked = serial.map(Granted::Asked);
        let found = self.peers.indices().into_iter().find_map(|at| {
            let mut granted = self.peers[at].granted.iter();
            granted.find(|(_, state)| Some(**state) == asked).map(|(&region, _)| (at, region))
        });
        let Some((at, region, key)) = found.and_then(|(at, id)| Some((at, id, RegionKey::from_number(id.0)?))) else {
            return;
        };
        if !self.shown.contains_key(&region) || self.rehome.bytes_of(key).is_some() {
            return; // It is there, and this peer does not get it.
        }
        self.shown.remove(&region);
        self.peers[at].granted.remove(&region);
        self.peers[at].in_pieces = Some(reason);
        self.show_slower(at);
        self.rehome.deny(key, !matches!(reason, Reason::RegionsFull | Reason::OutOfMemory));
        self.revoke_released();
    }

    /// Peers do not read a region any more that was given back. The host has kept it for as long as they might.
    pub(crate) fn hide(&mut self, region: RegionId) {
        for peer in self.shown.remove(&region).unwrap_or_default() {
            if let Some(at) = self.known(peer) {
                self.peers[at].granted.remove(&region);
                self.tell(Revoke { peer, region }.into(), &[]);
            }
        }
    }
}
