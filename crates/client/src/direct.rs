//! Memory that peers read and write by themselves: ours, which they are granted, and theirs.
//!
//! ```text
//!   owner                                          peer, of the same owner, with a channel
//!   Arena ── once for each channel ── Grant ─────►  Visitor: looks up what is registered, copies, changes numbers
//!     ▲ registered and closed at any time
//! ```
//!
//! The daemon passes the arena on as it does a region; from then on neither it nor the owner is asked. A peer may visit where nothing
//! that was sent before is waiting, so that messages and visits keep their order.

use crate::core::Core;
use crate::domain::Domain;
use crate::matcher::Matcher;
use crate::peer::{Granted, Making, Path, PeerIndex};
use isthmus_layout::DomainId;
use isthmus_layout::arena::{FRONT, REGION};
use isthmus_layout::control::Grant;
use isthmus_layout::reason::Reason;
use isthmus_shm::rehome::arena::{Arena, Visitor};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;

impl<M: Matcher> Domain<M> {
    /// Grants an arena to each peer of our owner that there is a channel with, now or later.
    pub fn share(&mut self, arena: &Arc<Arena>) {
        if self.core.check_alive().is_err()
            || self.core.arena.as_ref().is_some_and(|shared| !Arc::ptr_eq(shared, arena))
        {
            return;
        }
        self.core.arena = Some(Arc::clone(arena));
        for at in self.core.peers.indices() {
            self.core.grant_arena(at);
        }
    }

    /// A peer had to ask for what it wanted of memory that is registered here: why, as far as that is to be seen from the memory. For
    /// [`Self::channels`], and for the daemon's reports.
    pub fn note_asked(&mut self, peer: DomainId, reason: Reason) {
        let Some(at) = self.core.known(peer) else { return };
        let owner = self.core.me.owner;
        let known = &mut self.core.peers[at];
        let reason = match known.granted.get(&REGION) {
            _ if known.owner.is_some_and(|other| other != owner) => Reason::OtherOwner,
            Some(&Granted::Refused(refused)) if reason == Reason::MemoryTurn => refused,
            _ => reason,
        };
        // That it was not its turn says the least.
        if reason != Reason::MemoryTurn || known.asked.is_none() {
            known.asked = Some(reason);
        }
        self.core.show_slower(at);
    }

    /// The arena of a peer, to be visited at once. None where there is none, no channel, or where something that was sent to the
    /// peer still waits to go out.
    #[inline]
    pub fn visit(&mut self, peer: DomainId) -> Option<&mut Visitor> {
        self.core.check_alive().ok()?;
        let at = self.core.known(peer)?;
        let known = &self.core.peers[at];
        if !matches!(known.out, Path::Channel(_)) || known.has_work() {
            return None;
        }
        if known.visitor.is_none() && self.core.looks_for_grants(at) {
            self.core.take_grants(at);
        }
        self.core.peers[at].visitor.as_mut()
    }
}

/// So often it is looked at once whether a peer has granted its arena, and later each time that this has been asked so often: a look is a
/// system call, and most arenas are granted before they are asked for, or never.
const LOOKS: u32 = 64;

impl<M: Matcher> Core<M> {
    fn looks_for_grants(&mut self, at: PeerIndex) -> bool {
        let looks = &mut self.peers[at].visitor_looks;
        *looks = looks.wrapping_add(1);
        *looks <= LOOKS || looks.is_multiple_of(LOOKS)
    }

    /// Asks the daemon to pass our arena on to a peer, if there is one and the peer may have it.
    pub(crate) fn grant_arena(&mut self, at: PeerIndex) {
        let peer = &self.peers[at];
        let there = matches!(peer.making, Making::Made { .. }) && peer.owner == Some(self.me.owner);
        let retried = Granted::Refused(Reason::RegionsFull); // It has taken some meanwhile, perhaps.
        if !there || peer.granted.get(&REGION).is_some_and(|granted| *granted != retried) {
            return;
        }
        let Some(Ok(file)) = self.arena.as_ref().map(|arena| arena.grant()) else { return };
        let message = Grant { peer: peer.id, region: REGION, start: 0, bytes: FRONT.0 };
        if let Some(serial) = self.tell(message.into(), &[file.as_fd()]) {
            self.peers[at].granted.insert(REGION, Granted::Asked(serial));
        }
    }

    /// A peer has granted its arena. One that cannot be mapped is one that was never granted: its owner is asked for everything.
    pub(crate) fn arena_granted(&mut self, at: PeerIndex, file: OwnedFd) {
        self.peers[at].visitor = Visitor::new(file, self.me.domain).ok();
    }
}
