//! The channels between pairs of domains, and how far each one is.
//!
//! ```text
//!            request                   listener accepts
//!   (none) ──────────► Offered ────────────────────────► Open
//!     ▲                   │ refused, no answer in time     │ closed, an end is gone
//!     └───────────────────┴────────────────────────────────┘
//!            after a restart:  Half (one end has shown it) ──► Open (both have)
//! ```

use std::collections::{BTreeMap, BTreeSet};

use isthmus_layout::channel::{Direction, SlabSize};
use isthmus_layout::control::{ReadyMapIndex, RequestSerial};
use isthmus_layout::ids::{ChannelId, DomainId};
use isthmus_layout::ready_map::ReadyBit;

/// One end of a channel, as its domain receives on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelEnd {
    /// The domain.
    pub domain: DomainId,
    /// In which of its ready maps the other end sets a bit.
    pub ready_map: ReadyMapIndex,
    /// That bit.
    pub ready_bit: ReadyBit,
}

/// How far a channel is. Times are in nanoseconds of the caller's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelStage {
    /// The listener has not answered yet.
    Offered {
        /// When it counts as not answered.
        until: u64,
        /// The how-manieth try it is.
        attempt: u8,
        /// The connector's request.
        serial: Option<RequestSerial>,
    },
    /// In use.
    Open,
}

/// A channel.
#[derive(Debug)]
pub struct ChannelEntry<M> {
    /// Its number.
    pub id: ChannelId,
    /// Who sends on direction 0.
    pub connector: ChannelEnd,
    /// Who sends on direction 1.
    pub listener: ChannelEnd,
    /// Bytes of each slab.
    pub slab: SlabSize,
    /// How far it is.
    pub stage: ChannelStage,
    /// When it was made.
    pub since: u64,
    /// Its memory, for its counters; none if it could not be kept.
    pub memory: Option<M>,
}

impl<M> ChannelEntry<M> {
    /// The end of that domain, and the direction it sends on.
    pub fn end(&self, domain: DomainId) -> Option<(ChannelEnd, Direction)> {
        match domain {
            _ if domain == self.connector.domain => Some((self.connector, Direction::Zero)),
            _ if domain == self.listener.domain => Some((self.listener, Direction::One)),
            _ => None,
        }
    }

    /// The other end of that domain's channel.
    pub fn peer(&self, domain: DomainId) -> Option<ChannelEnd> {
        match self.end(domain)?.1 {
            Direction::Zero => Some(self.listener),
            Direction::One => Some(self.connector),
        }
    }
}

/// A channel from before a restart of which one end has come back.
#[derive(Debug)]
pub struct Half<M> {
    /// The end that is here.
    pub end: ChannelEnd,
    /// The direction it sends on.
    pub direction: Direction,
    /// Who has to come.
    pub peer: DomainId,
    /// The bit in the peer's ready map.
    pub peer_ready_bit: ReadyBit,
    /// Bytes of each slab.
    pub slab: SlabSize,
    /// Which file its memory is: device and inode.
    pub file_id: (u64, u64),
    /// Its memory, for its counters; none if it could not be kept.
    pub memory: Option<M>,
    /// When the peer counts as gone.
    pub until: u64,
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

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Overdue {
    /// A listener's answer.
    Offer(ChannelId),
    /// The other end of a channel which this domain has shown.
    Half(ChannelId, DomainId),
}

/// All channels.
#[derive(Debug)]
pub struct Channels<M> {
    table: BTreeMap<ChannelId, ChannelEntry<M>>,
    halves: BTreeMap<(ChannelId, DomainId), Half<M>>,
    due: BTreeSet<(u64, Overdue)>,
    kept_memories: usize,
    next: u64,
}

impl<M> Channels<M> {
    /// None yet. Numbers begin at `first`, which no daemon before has reached.
    pub fn new(first: u64) -> Self {
        Self { table: BTreeMap::new(), halves: BTreeMap::new(), due: BTreeSet::new(), kept_memories: 0, next: first }
    }

    /// A number that was not used before.
    pub fn allocate_id(&mut self) -> ChannelId {
        let id = ChannelId(self.next);
        self.next = self.next.wrapping_add(1);
        id
    }

    /// True for a number that [`Self::allocate_id`] will answer some day.
    pub fn is_unissued(&self, id: ChannelId) -> bool {
        id.0 >= self.next && id.0 >> 32 == self.next >> 32
    }

    /// Adds one.
    pub fn insert(&mut self, channel: ChannelEntry<M>) {
        if let ChannelStage::Offered { until, .. } = channel.stage {
            self.due.insert((until, Overdue::Offer(channel.id)));
        }
        self.kept_memories += usize::from(channel.memory.is_some());
        let before = self.table.insert(channel.id, channel);
        assert!(before.is_none()); // Ours: numbers are used once.
    }

    /// The channel with this number.
    pub fn get(&self, id: ChannelId) -> Option<&ChannelEntry<M>> {
        self.table.get(&id)
    }

    /// The listener has accepted. False if it had before.
    pub fn open(&mut self, id: ChannelId) -> bool {
        let Some(channel) = self.table.get_mut(&id) else { return false };
        let ChannelStage::Offered { until, .. } = channel.stage else { return false };
        channel.stage = ChannelStage::Open;
        self.due.remove(&(until, Overdue::Offer(id)))
    }

    /// Takes one out.
    pub fn remove(&mut self, id: ChannelId) -> Option<ChannelEntry<M>> {
        let channel = self.table.remove(&id)?;
        if let ChannelStage::Offered { until, .. } = channel.stage {
            self.due.remove(&(until, Overdue::Offer(id)));
        }
        self.kept_memories -= usize::from(channel.memory.is_some());
        Some(channel)
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &ChannelEntry<M>> {
        self.table.values()
    }

    /// How many have their memory kept.
    pub fn kept_memories(&self) -> usize {
        self.kept_memories
    }

    /// Adds what one end has shown; answers both ends if the other one had shown before what fits.
    pub fn adopt(&mut self, id: ChannelId, half: Half<M>) -> Option<(Half<M>, Half<M>)> {
        if self.halves.get(&(id, half.peer)).is_some_and(|other| other.matches(&half)) {
            let other = self.remove_half(id, half.peer).expect("looked at just now");
            return Some((half, other));
        }
        let key = (id, half.end.domain);
        self.kept_memories += usize::from(half.memory.is_some());
        self.due.insert((half.until, Overdue::Half(key.0, key.1)));
        self.halves.insert(key, half);
        None
    }

    /// True if that end was shown already, or the channel is there.
    pub fn has_end(&self, id: ChannelId, domain: DomainId) -> bool {
        self.table.contains_key(&id) || self.halves.contains_key(&(id, domain))
    }

    /// The halves of that domain, and those that wait for it.
    pub fn halves_involving(&self, domain: DomainId) -> Vec<(ChannelId, DomainId)> {
        let about =
            |(key, half): (&(ChannelId, DomainId), &Half<M>)| (key.1 == domain || half.peer == domain).then_some(*key);
        self.halves.iter().filter_map(about).collect()
    }

    /// How many halves a domain has shown that still wait for their other end.
    pub fn halves_of(&self, domain: DomainId) -> usize {
        self.halves.keys().filter(|(_, of)| *of == domain).count()
    }

    /// From now on what waits for `peer` waits until then.
    pub fn set_peer_deadline(&mut self, peer: DomainId, until: u64) {
        for ((id, of), half) in self.halves.iter_mut().filter(|(_, half)| half.peer == peer) {
            self.due.remove(&(half.until, Overdue::Half(*id, *of)));
            self.due.insert((until, Overdue::Half(*id, *of)));
            half.until = until;
        }
    }

    /// Takes a half out.
    pub fn remove_half(&mut self, id: ChannelId, domain: DomainId) -> Option<Half<M>> {
        let half = self.halves.remove(&(id, domain))?;
        self.kept_memories -= usize::from(half.memory.is_some());
        self.due.remove(&(half.until, Overdue::Half(id, domain)));
        Some(half)
    }

    /// The next moment at which something counts as not answered.
    pub fn deadline(&self) -> Option<u64> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Something that was not answered by `now`. It stays due until it is removed.
    pub fn overdue(&self, now: u64) -> Option<Overdue> {
        self.due.first().filter(|(until, _)| *until <= now).map(|(_, due)| *due)
    }
}
