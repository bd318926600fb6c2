//! The channels between pairs of domains, and the stage of each.
//!
//! ```text
//!            request                   listener accepts
//!   (none) ──────────► Offered ────────────────────────► Open
//!     ▲                   │ refused, no answer in time     │ closed, an end is gone
//!     └───────────────────┴────────────────────────────────┘
//!            after a restart:  Half (one end has shown it) ──► Open (both have)
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use isthmus_layout::channel::{Direction, SlabSize};
use isthmus_layout::control::Owner;
use isthmus_layout::control::{ReadyMapIndex, RequestSerial};
use isthmus_layout::ids::{ChannelId, DomainId};
use isthmus_layout::ready_map::ReadyBit;

use crate::places::Places;

/// One end of a channel, with the bit that announces messages to its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelEnd {
    /// The domain.
    pub domain: DomainId,
    /// The domain's ready map in which the other end sets a bit.
    pub ready_map: ReadyMapIndex,
    /// The bit in that ready map.
    pub ready_bit: ReadyBit,
}

/// The stage of a channel. Times are in nanoseconds of the caller's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelStage {
    /// The listener has not replied yet.
    Offered {
        /// The time at which the offer expires.
        until: u64,
        /// The attempt number, starting at 1.
        attempt: u8,
        /// The connector's request.
        serial: Option<RequestSerial>,
    },
    /// The channel is in use.
    Open,
}

/// A channel.
#[derive(Debug)]
pub struct ChannelEntry<M> {
    /// Its number.
    pub id: ChannelId,
    /// The end that sends on direction 0.
    pub connector: ChannelEnd,
    /// The end that sends on direction 1.
    pub listener: ChannelEnd,
    /// Bytes of each slab.
    pub slab: SlabSize,
    /// Its stage.
    pub stage: ChannelStage,
    /// The time at which it was created.
    pub since: u64,
    /// Its memory, for its counters; none if it could not be kept.
    pub memory: Option<M>,
    /// The ready maps of both ends, if they lie in a window.
    pub ready_maps: Vec<M>,
    /// The user that its memory counts for: that of the connector.
    pub account: Owner,
}

impl<M> ChannelEntry<M> {
    /// Returns the end of a domain, and the direction that it sends on.
    pub fn end(&self, domain: DomainId) -> Option<(ChannelEnd, Direction)> {
        match domain {
            _ if domain == self.connector.domain => Some((self.connector, Direction::Zero)),
            _ if domain == self.listener.domain => Some((self.listener, Direction::One)),
            _ => None,
        }
    }

    /// Returns the other end of a domain's channel.
    pub fn peer(&self, domain: DomainId) -> Option<ChannelEnd> {
        match self.end(domain)?.1 {
            Direction::Zero => Some(self.listener),
            Direction::One => Some(self.connector),
        }
    }
}

/// A channel from before a restart of which one end has resumed.
#[derive(Debug)]
pub struct Half<M> {
    /// The end that has resumed.
    pub end: ChannelEnd,
    /// The direction that this end sends on.
    pub direction: Direction,
    /// The domain at the end that has not resumed.
    pub peer: DomainId,
    /// The bit in the peer's ready map.
    pub peer_ready_bit: ReadyBit,
    /// Bytes of each slab.
    pub slab: SlabSize,
    /// The file of its memory: device and inode.
    pub file_id: (u64, u64),
    /// Its memory, for its counters; none if it could not be kept.
    pub memory: Option<M>,
    /// The time at which the peer counts as gone.
    pub until: u64,
    /// The user that its memory counts for.
    pub account: Owner,
}

impl<M> Half<M> {
    /// True if the two describe the same channel from both ends.
    pub fn matches(&self, other: &Self) -> bool {
        self.end.domain == other.peer
            && other.end.domain == self.peer
            && self.direction == other.direction.other()
            && self.slab == other.slab
            && self.end.ready_bit == other.peer_ready_bit
            && other.end.ready_bit == self.peer_ready_bit
    }
}

/// A reply or an end that did not arrive in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Overdue {
    /// A listener's reply.
    Offer(ChannelId),
    /// The other end of a channel that this domain has shown.
    Half(ChannelId, DomainId),
}

/// The halves that have to do with a domain.
#[derive(Debug, Default)]
struct DomainHalves {
    own: BTreeSet<ChannelId>,
    waiting: BTreeSet<(ChannelId, DomainId)>,
}

/// All channels.
#[derive(Debug)]
pub struct Channels<M> {
    table: BTreeMap<ChannelId, ChannelEntry<M>>,
    halves: BTreeMap<(ChannelId, DomainId), Half<M>>,
    /// The halves of each domain, and those that wait for it.
    halves_by: BTreeMap<DomainId, DomainHalves>,
    due: BTreeSet<(u64, Overdue)>,
    /// The channels and halves that have their memory kept.
    kept_memories: Places,
    next: u64,
}

impl<M> Channels<M> {
    /// Returns an empty table. Numbers begin at `first`, which no previous daemon has reached.
    pub fn new(first: u64) -> Self {
        Self {
            table: BTreeMap::new(),
            halves: BTreeMap::new(),
            halves_by: BTreeMap::new(),
            due: BTreeSet::new(),
            kept_memories: Places::default(),
            next: first,
        }
    }

    /// Returns a number that was not used before.
    pub fn allocate_id(&mut self) -> ChannelId {
        let id = ChannelId(self.next);
        self.next = self.next.wrapping_add(1);
        id
    }

    /// True for a number of this epoch that [`Self::allocate_id`] has not returned yet.
    pub fn is_unissued(&self, id: ChannelId) -> bool {
        id.0 >= self.next && id.0 >> 32 == self.next >> 32
    }

    /// Adds a channel.
    pub fn insert(&mut self, channel: ChannelEntry<M>) {
        if let ChannelStage::Offered { until, .. } = channel.stage {
            self.due.insert((until, Overdue::Offer(channel.id)));
        }
        self.kept_memories.add(channel.account, usize::from(channel.memory.is_some()));
        let before = self.table.insert(channel.id, channel);
        assert!(before.is_none()); // Ours: numbers are used once.
    }

    /// The channel with this number.
    pub fn get(&self, id: ChannelId) -> Option<&ChannelEntry<M>> {
        self.table.get(&id)
    }

    /// Notes that the listener has accepted. Returns false if the channel is unknown or already open.
    pub fn open(&mut self, id: ChannelId) -> bool {
        let Some(channel) = self.table.get_mut(&id) else { return false };
        let ChannelStage::Offered { until, .. } = channel.stage else { return false };
        channel.stage = ChannelStage::Open;
        self.due.remove(&(until, Overdue::Offer(id)))
    }

    /// Removes a channel.
    pub fn remove(&mut self, id: ChannelId) -> Option<ChannelEntry<M>> {
        let channel = self.table.remove(&id)?;
        if let ChannelStage::Offered { until, .. } = channel.stage {
            self.due.remove(&(until, Overdue::Offer(id)));
        }
        self.kept_memories.give_back(channel.account, usize::from(channel.memory.is_some()));
        Some(channel)
    }

    /// All channels, by number.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &ChannelEntry<M>> {
        self.table.values()
    }

    /// The first channel with a number above another one, or of all.
    pub fn next_after(&self, after: Option<ChannelId>) -> Option<ChannelId> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.table.range((after, Bound::Unbounded)).next().map(|(id, _)| *id)
    }

    /// The channels and halves that have their memory kept, by user.
    pub(crate) fn kept_memories(&self) -> &Places {
        &self.kept_memories
    }

    /// Adds one end of a channel. Returns both ends if the other one was added before and the two match.
    pub fn adopt(&mut self, id: ChannelId, half: Half<M>) -> Option<(Half<M>, Half<M>)> {
        if self.halves.get(&(id, half.peer)).is_some_and(|other| other.matches(&half)) {
            let other = self.remove_half(id, half.peer).expect("looked at just now");
            return Some((half, other));
        }
        let key = (id, half.end.domain);
        self.kept_memories.add(half.account, usize::from(half.memory.is_some()));
        self.due.insert((half.until, Overdue::Half(key.0, key.1)));
        self.halves_by.entry(key.1).or_default().own.insert(id);
        self.halves_by.entry(half.peer).or_default().waiting.insert(key);
        self.halves.insert(key, half);
        None
    }

    /// True if this end was added already, or the channel exists.
    pub fn has_end(&self, id: ChannelId, domain: DomainId) -> bool {
        self.table.contains_key(&id) || self.halves.contains_key(&(id, domain))
    }

    /// The halves of a domain, and those that wait for it.
    pub fn halves_involving(&self, domain: DomainId) -> Vec<(ChannelId, DomainId)> {
        let Some(DomainHalves { own, waiting }) = self.halves_by.get(&domain) else { return Vec::new() };
        own.iter().map(|id| (*id, domain)).chain(waiting.iter().copied()).collect()
    }

    /// The number of halves of a domain that wait for their other end.
    pub fn halves_of(&self, domain: DomainId) -> usize {
        self.halves_by.get(&domain).map_or(0, |halves| halves.own.len())
    }

    /// Changes the deadline of all halves that wait for `peer`.
    pub fn set_peer_deadline(&mut self, peer: DomainId, until: u64) {
        for key in self.halves_by.get(&peer).into_iter().flat_map(|halves| &halves.waiting) {
            let Some(half) = self.halves.get_mut(key) else { continue };
            self.due.remove(&(half.until, Overdue::Half(key.0, key.1)));
            self.due.insert((until, Overdue::Half(key.0, key.1)));
            half.until = until;
        }
    }

    /// Removes a half.
    pub fn remove_half(&mut self, id: ChannelId, domain: DomainId) -> Option<Half<M>> {
        let half = self.halves.remove(&(id, domain))?;
        self.kept_memories.give_back(half.account, usize::from(half.memory.is_some()));
        self.due.remove(&(half.until, Overdue::Half(id, domain)));
        for (of, is_own) in [(domain, true), (half.peer, false)] {
            let Some(halves) = self.halves_by.get_mut(&of) else { continue };
            if is_own {
                halves.own.remove(&id)
            } else {
                halves.waiting.remove(&(id, domain))
            };
            if halves.own.is_empty() && halves.waiting.is_empty() {
                self.halves_by.remove(&of);
            }
        }
        Some(half)
    }

    /// The earliest deadline.
    pub fn deadline(&self) -> Option<u64> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Returns an entry that is due at `now`. The entry stays due until it is removed.
    pub fn overdue(&self, now: u64) -> Option<Overdue> {
        self.due.first().filter(|(until, _)| *until <= now).map(|(_, due)| *due)
    }
}
