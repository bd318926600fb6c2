//! All channels that one thread receives on.
//!
//! A channel is *hot* while records come: its next cell is looked at directly. After a while of silence it is *parked*: its peer
//! sets a bit in our ready map instead, and looking costs nothing more. So a poll looks at the few hot channels and at one word of each ready map,
//! of which there is one for each owner among the peers, however many peers are silent.

use crate::channel::Channel;
use isthmus_layout::ready_map::ReadyBit;
use isthmus_platform::Doorbell;
use isthmus_shm::{PeerFault, ReadyMap, RecordBuffer, SharedMapping};

/// Empty looks at a channel before it is parked, while others are hot.
const PARK_AFTER_POLLS: u32 = 256;

/// Polls between looks at the ready maps while some hot channel always has a record: nobody who floods us keeps the others out.
const MAP_POLL_INTERVAL: u32 = 64;

/// Hot channels at once; the next one to become hot parks the one that was silent longest.
const HOT_MAX: usize = 16;

/// Names a channel in its inbox. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelKey {
    slot: u32,
    generation: u32,
}

impl ChannelKey {
    /// A small number that no other channel of the inbox has now: an index for tables of one's own.
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// Names a ready map of the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InboxMapIndex(pub u8);

/// What a poll found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// A record of this channel is in the buffer.
    Record(ChannelKey),
    /// This channel's peer broke the contract. The channel is parked for good; the owner closes it.
    Fault(ChannelKey, PeerFault),
    /// A bit that belongs to no channel was set: the daemon's, or one that a peer had no business with.
    ReadyBit(InboxMapIndex, ReadyBit),
    /// Nothing.
    Nothing,
}

#[derive(Debug)]
struct InboxEntry {
    key: ChannelKey,
    channel: Channel,
    ready_map: InboxMapIndex,
    ready_bit: ReadyBit,
    empty_polls: u32,
    /// Its slot stands in `hot`.
    hot: bool,
    /// Not looked at until [`Inbox::unmute`], whatever bits its peer sets.
    muted: bool,
}

#[derive(Debug)]
struct MapSubscription {
    ready_map: ReadyMap<SharedMapping>,
    doorbell: Doorbell,
    /// Slot of the channel of each bit, for the bits in use.
    slots_by_bit: Vec<Option<u32>>,
}

/// The channels of one receiver and the ready maps in which their peers set bits.
#[derive(Debug, Default)]
pub struct Inbox {
    maps: Vec<MapSubscription>,
    slots: Vec<Option<InboxEntry>>,
    free: Vec<u32>,
    /// Slots of hot channels.
    hot: Vec<u32>,
    /// Where the next poll begins in `hot`, so that a busy channel starves no other.
    next_hot: usize,
    other_bits: Vec<(InboxMapIndex, ReadyBit)>,
    /// Slots that a look at a ready map found; kept for its memory.
    woken: Vec<u32>,
    polls: u32,
    next_generation: u32,
}

impl Inbox {
    /// No channels, no ready maps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a ready map and the doorbell that goes with it.
    pub fn add_ready_map(&mut self, memory: SharedMapping, doorbell: Doorbell) -> InboxMapIndex {
        self.maps.push(MapSubscription { ready_map: ReadyMap::new(memory), doorbell, slots_by_bit: Vec::new() });
        InboxMapIndex((self.maps.len() - 1) as u8)
    }

    /// The doorbells, in the order of their ready maps: what to sleep on.
    pub fn doorbells(&self) -> impl Iterator<Item = &Doorbell> {
        self.maps.iter().map(|subscription| &subscription.doorbell)
    }

    /// Adds a channel; its peer sets `ready_bit` of `ready_map`. It starts muted: nothing is taken from it before
    /// [`Self::unmute`], because what its peer sent by another path before comes first.
    pub fn add(&mut self, channel: Channel, ready_map: InboxMapIndex, ready_bit: ReadyBit) -> ChannelKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        let key = ChannelKey { slot, generation: self.next_generation };
        self.next_generation += 1;
        self.slots[slot as usize] =
            Some(InboxEntry { key, channel, ready_map, ready_bit, empty_polls: 0, hot: false, muted: true });
        let slots = &mut self.maps[usize::from(ready_map.0)].slots_by_bit;
        let at = usize::from(ready_bit.number());
        if slots.len() <= at {
            slots.resize(at + 1, None);
        }
        slots[at] = Some(slot);
        key
    }

    /// Begins to take records from a channel.
    pub fn unmute(&mut self, key: ChannelKey) {
        if let Some(entry) = self.entry(key) {
            entry.muted = false;
            self.mark_hot(key.slot);
        }
    }

    /// Takes a channel out.
    pub fn remove(&mut self, key: ChannelKey) -> Option<Channel> {
        self.entry(key)?;
        let entry = self.slots[key.slot()].take()?;
        self.hot.retain(|&hot| hot != key.slot);
        let slots = &mut self.maps[usize::from(entry.ready_map.0)].slots_by_bit;
        slots[usize::from(entry.ready_bit.number())] = None;
        self.free.push(key.slot);
        Some(entry.channel)
    }

    /// A channel.
    #[inline]
    pub fn channel(&mut self, key: ChannelKey) -> Option<&mut Channel> {
        self.entry(key).map(|entry| &mut entry.channel)
    }

    #[inline]
    fn entry(&mut self, key: ChannelKey) -> Option<&mut InboxEntry> {
        self.slots.get_mut(key.slot()).and_then(Option::as_mut).filter(|entry| entry.key == key)
    }

    /// All channels.
    pub fn channels(&mut self) -> impl Iterator<Item = (ChannelKey, &mut Channel)> {
        self.slots.iter_mut().flatten().map(|entry| (entry.key, &mut entry.channel))
    }

    /// How many channels there are, and how many of them are looked at by each poll.
    pub fn count(&self) -> (usize, usize) {
        (self.slots.iter().flatten().count(), self.hot.len())
    }

    /// Looks once: takes a record into `record` if one waits, or says what else happened.
    #[inline]
    pub fn poll(&mut self, record: &mut RecordBuffer) -> Polled {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(MAP_POLL_INTERVAL) {
            self.drain_ready_maps();
        }
        for _ in 0..self.hot.len() {
            if self.next_hot >= self.hot.len() {
                self.next_hot = 0;
            }
            let slot = self.hot[self.next_hot];
            let entry = self.slots[slot as usize].as_mut().expect("hot channels are there");
            match entry.channel.receive(record) {
                Ok(true) => {
                    isthmus_shm::step!("poll");
                    entry.empty_polls = 0;
                    let key = entry.key;
                    self.next_hot += usize::from(self.hot.len() > 1);
                    return Polled::Record(key);
                }
                Ok(false) => self.count_empty_poll(slot),
                Err(fault) => return self.fault(slot, fault),
            }
        }
        self.poll_ready_maps()
    }

    /// True if a poll would find nothing and change nothing, as far as that is seen at a glance: with one hot channel, or none.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        let channel = |slot: u32| self.slots[slot as usize].as_ref().is_some_and(|entry| entry.channel.is_idle());
        let hot = match *self.hot.as_slice() {
            [] => true,
            [slot] => channel(slot),
            _ => false,
        };
        hot && self.other_bits.is_empty() && !self.maps.iter().any(|subscription| subscription.ready_map.is_any_set())
    }

    /// True if a poll would find something; cheap, for spinning.
    pub fn is_ready(&mut self) -> bool {
        self.maps.iter().any(|subscription| subscription.ready_map.is_any_set())
            || !self.other_bits.is_empty()
            || self.hot.iter().any(|&slot| {
                self.slots[slot as usize].as_ref().is_some_and(|entry| !matches!(entry.channel.has_record(), Ok(false)))
            })
    }

    /// Before sleeping: parks every channel and says so in every ready map. True if the receiver may sleep on its doorbells
    /// now; [`Self::end_sleep`] follows in any case.
    pub fn begin_sleep(&mut self) -> bool {
        while let Some(&slot) = self.hot.last() {
            let entry = self.slots[slot as usize].as_mut().expect("hot channels are there");
            entry.channel.flush();
            if !matches!(entry.channel.park(), Ok(true)) {
                return false;
            }
            entry.hot = false;
            self.hot.pop();
        }
        self.other_bits.is_empty() && self.maps.iter().all(|subscription| subscription.ready_map.begin_sleep())
    }

    /// After sleeping, or after deciding not to.
    pub fn end_sleep(&mut self) {
        for subscription in &self.maps {
            subscription.ready_map.end_sleep();
        }
    }

    #[inline]
    fn drain_ready_maps(&mut self) {
        for at in 0..self.maps.len() {
            if self.maps[at].ready_map.is_any_set() {
                self.drain_ready_map(InboxMapIndex(at as u8));
            }
        }
    }

    fn poll_ready_maps(&mut self) -> Polled {
        self.drain_ready_maps();
        match self.other_bits.pop() {
            Some((ready_map, ready_bit)) => Polled::ReadyBit(ready_map, ready_bit),
            None => Polled::Nothing,
        }
    }

    #[cold]
    fn drain_ready_map(&mut self, ready_map: InboxMapIndex) {
        isthmus_shm::step!("drain_ready_map");
        let mut woken = std::mem::take(&mut self.woken);
        let subscription = &self.maps[usize::from(ready_map.0)];
        subscription.ready_map.drain(|ready_bit| {
            match subscription.slots_by_bit.get(usize::from(ready_bit.number())).copied().flatten() {
                Some(slot) => woken.push(slot),
                None => self.other_bits.push((ready_map, ready_bit)),
            }
        });
        for slot in woken.drain(..) {
            self.mark_hot(slot);
        }
        self.woken = woken;
    }

    fn mark_hot(&mut self, slot: u32) {
        let entry = self.slots[slot as usize].as_mut().expect("ready bits name channels that are there");
        if entry.muted {
            return;
        }
        entry.channel.unpark();
        entry.empty_polls = 0;
        if !std::mem::replace(&mut entry.hot, true) {
            self.hot.push(slot);
            if self.hot.len() > HOT_MAX {
                self.park_least_active();
            }
        }
    }

    fn count_empty_poll(&mut self, slot: u32) {
        let entry = self.slots[slot as usize].as_mut().expect("hot channels are there");
        entry.empty_polls = entry.empty_polls.saturating_add(1);
        if entry.empty_polls >= PARK_AFTER_POLLS && self.hot.len() > 1 {
            self.park_channel(slot);
        } else {
            self.next_hot += 1;
        }
    }

    fn park_least_active(&mut self) {
        let silent = |slot: &&u32| self.slots[**slot as usize].as_ref().map_or(0, |entry| entry.empty_polls);
        let newest = self.hot.len() - 1;
        if let Some(&slot) = self.hot[..newest].iter().max_by_key(silent) {
            self.park_channel(slot);
        }
    }

    fn park_channel(&mut self, slot: u32) {
        let entry = self.slots[slot as usize].as_mut().expect("hot channels are there");
        entry.channel.flush();
        match entry.channel.park() {
            Ok(true) => {
                entry.hot = false;
                self.hot.retain(|&hot| hot != slot);
            }
            Ok(false) => entry.empty_polls = 0,
            Err(_) => {} // The next poll meets the same fault and reports it.
        }
    }

    #[cold]
    fn fault(&mut self, slot: u32, fault: PeerFault) -> Polled {
        let entry = self.slots[slot as usize].as_mut().expect("hot channels are there");
        entry.hot = false;
        entry.channel.record_fault();
        let key = entry.key;
        self.hot.retain(|&hot| hot != slot);
        Polled::Fault(key, fault)
    }
}

#[cfg(test)]
mod tests;
