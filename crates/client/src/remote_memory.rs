//! Memory that peers read and write directly: ours, which they are granted, and theirs.
//!
//! ```text
//!   owner                                          peer, of the same owner, with a channel
//!   Arena ── once for each channel ── Grant ─────►  ArenaMapping: looks up what is registered, copies, changes numbers
//!     ▲ registered and closed at any time
//! ```
//!
//! The daemon passes the arena on as it does a region; from then on neither it nor the owner is asked. A peer may access it while nothing
//! that was sent before is waiting, so that messages and accesses keep their order.

use crate::core::Core;
use crate::domain::Domain;
use crate::matcher::Matcher;
use crate::peer::{ChannelState, GrantState, Path, Peer, PeerIndex};
use isthmus_layout::DomainId;
use isthmus_layout::arena::{HEADER, REGION};
use isthmus_layout::control::Grant;
use isthmus_layout::reason::Reason;
use isthmus_shm::regcache::arena::{AccessRights, Arena, ArenaMapping};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;

impl<M: Matcher> Domain<M> {
    /// Grants an arena to each peer of our owner that there is a channel with, now or later.
    pub fn share_arena(&mut self, arena: &Arc<Arena>) {
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
    /// [`Self::channels`], and for the daemon's reports. `count` accesses are counted.
    pub fn record_assisted_accesses(&mut self, peer: DomainId, reason: Reason, count: u64) {
        let Some(at) = self.core.find_peer(peer) else { return };
        let owner = self.core.identity.owner;
        let known = &mut self.core.peers[at];
        let reason = match known.granted.get(&REGION) {
            _ if known.owner.is_some_and(|other| other != owner) => Reason::DifferentOwner,
            Some(&GrantState::Refused(refused)) if reason == Reason::MemoryNotReady => refused,
            _ => reason,
        };
        // That the memory was not ready says the least.
        if reason != Reason::MemoryNotReady || known.assisted.is_none() {
            known.assisted = Some(reason);
        }
        known.accesses.served += count;
        self.core.publish_slow_path_reasons(at);
        self.core.publish_accesses(at);
    }

    /// A peer named memory that it may not access, `count` times. For the daemon's reports.
    pub fn record_refused_accesses(&mut self, peer: DomainId, count: u64) {
        let Some(at) = self.core.find_peer(peer) else { return };
        self.core.peers[at].accesses.refused += count;
        self.core.publish_accesses(at);
    }

    /// Publishes the last accesses to arenas of peers for the daemon's reports. [`Self::peer_arena`] publishes only some of them.
    pub fn publish_accesses(&mut self) {
        let is_counted = |known: &Peer| known.arena_mapping.as_ref().is_some_and(|arena| arena.accesses() > 0);
        for at in self.core.peers.indices() {
            if is_counted(&self.core.peers[at]) {
                self.core.publish_accesses(at);
            }
        }
    }

    /// True if this process can access `len` bytes of a peer's arena, which the registration with this `key` calls `named`, as soon as
    /// [`Self::peer_arena`] returns the arena.
    pub fn has_mapped(&mut self, peer: DomainId, key: u64, named: u64, len: u64, rights: AccessRights) -> bool {
        let Some(at) = self.core.peers.find(peer) else { return false };
        self.core.check_for_arena_grant(at);
        let arena = self.core.peers[at].arena_mapping.as_mut();
        arena.is_some_and(|arena| arena.access(key, named, len, rights).is_some())
    }

    /// The arena of a peer, to be accessed at once. None where there is none, no channel, or where something that was sent to the
    /// peer still waits to go out.
    #[inline]
    pub fn peer_arena(&mut self, peer: DomainId) -> Option<&mut ArenaMapping> {
        self.core.check_alive().ok()?;
        let at = self.core.peers.find(peer)?;
        let known = &self.core.peers[at];
        if !matches!(known.path_out, Path::Channel(_)) || known.has_work() {
            return None;
        }
        self.core.check_for_arena_grant(at);
        let Peer { arena_mapping, accesses, .. } = &self.core.peers[at];
        let unpublished = arena_mapping.as_ref()?.accesses();
        if unpublished > 0 && unpublished >= accesses.direct.min(ACCESSES_PER_PUBLICATION) {
            self.core.publish_accesses(at);
        }
        self.core.peers[at].arena_mapping.as_mut()
    }
}

/// So often it is looked at once whether a peer has granted its arena, and later each time that this has been asked so often: a look is a
/// system call, and most arenas are granted before they are asked for, or never.
const ARENA_CHECK_INTERVAL: u32 = 64;

/// Accesses to a peer's arena after which the count is published, at most.
const ACCESSES_PER_PUBLICATION: u64 = 64;

impl<M: Matcher> Core<M> {
    /// Looks whether a peer has granted its arena, if there is none yet and it is time.
    #[inline]
    fn check_for_arena_grant(&mut self, at: PeerIndex) {
        if self.peers[at].arena_mapping.is_none() && self.should_check_for_arena_grant(at) {
            self.process_grants_of(at);
        }
    }

    /// Publishes the counts of accesses for the daemon's reports.
    #[cold]
    fn publish_accesses(&mut self, at: PeerIndex) {
        let Peer { channel_state, arena_mapping, accesses, .. } = &mut self.peers[at];
        accesses.direct += arena_mapping.as_mut().map_or(0, ArenaMapping::take_accesses);
        if let ChannelState::Made { key, .. } = *channel_state
            && let Some(channel) = self.inbox.channel(key)
        {
            channel.publish_accesses(*accesses);
        }
    }

    fn should_check_for_arena_grant(&mut self, at: PeerIndex) -> bool {
        let checks = &mut self.peers[at].arena_checks;
        *checks = checks.wrapping_add(1);
        *checks <= ARENA_CHECK_INTERVAL || checks.is_multiple_of(ARENA_CHECK_INTERVAL)
    }

    /// Asks the daemon to pass our arena on to a peer, if there is one and the peer may have it.
    pub(crate) fn grant_arena(&mut self, at: PeerIndex) {
        let peer = &self.peers[at];
        let there = matches!(peer.channel_state, ChannelState::Made { .. }) && peer.owner == Some(self.identity.owner);
        let retried = GrantState::Refused(Reason::RegionsFull); // It has taken some meanwhile, perhaps.
        if !there || peer.granted.get(&REGION).is_some_and(|granted| *granted != retried) {
            return;
        }
        let Some(Ok(file)) = self.arena.as_ref().map(|arena| arena.grant()) else { return };
        let message = Grant { peer: peer.id, region: REGION, start: 0, bytes: HEADER.0 };
        if let Some(serial) = self.send_request(message.into(), &[file.as_fd()]) {
            self.peers[at].granted.insert(REGION, GrantState::Asked(serial));
        }
    }

    /// A peer has granted its arena. One that cannot be mapped is one that was never granted: its owner is asked for everything.
    pub(crate) fn handle_arena_granted(&mut self, at: PeerIndex, file: OwnedFd) {
        self.publish_accesses(at);
        self.peers[at].arena_mapping = ArenaMapping::new(file, self.identity.domain).ok();
    }
}
