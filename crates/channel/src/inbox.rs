//! All channels that one thread receives on.
//!
//! A channel is *hot* while records arrive: each poll checks its next cell directly. A channel that stays silent is *parked*:
//! its peer then sets a bit in our ready map instead, so that polling does not touch the channel. A poll therefore checks the
//! few hot channels and one word of each ready map. There is one ready map for each owner among the peers.
//! The number of silent peers does not matter.
//!
//! A peer may set any bit of a ready map that it shares. A bit without a channel is a *stray*: it is counted, and no memory is spent on it.
//! Nothing tells which peer has set it, so no channel ends because of strays. They cost time only, and that is limited: the ready map
//! is not looked at for a number of polls that grows with the bits that announced nothing. Hot channels, and the ready maps of other
//! owners, are polled meanwhile. A ready map without channels is not polled.

use crate::channel::Channel;
use isthmus_layout::SlotTable;
use isthmus_layout::ready_map::ReadyBit;
use isthmus_platform::Doorbell;
use isthmus_shm::{PeerFault, ReadyMap, RecordBuffer, SharedMapping};

/// Number of empty polls after which a channel is parked, while other channels are hot.
const PARK_AFTER_POLLS: u32 = 256;

/// Number of polls between checks of the ready maps while a hot channel always has a record. A flooding peer thus cannot block the others.
const MAP_POLL_INTERVAL: u64 = 64;

/// Maximum number of hot channels. When another one becomes hot, the one that was silent longest is parked.
const HOT_MAX: usize = 16;

/// Number of strays that cost as much time as a poll. A ready map is not looked at for as many polls as its strays have cost.
const STRAYS_PER_POLL: u64 = 4;

/// The key of a channel in its inbox. A key is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelKey {
    slot: u32,
    generation: u32,
}

impl ChannelKey {
    /// A small number that no other channel of the inbox has at the same time. Callers use it as an index into their own tables.
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// The index of a ready map in the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InboxMapIndex(pub u8);

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// A record of this channel is in the buffer.
    Record(ChannelKey),
    /// This channel's peer violated the protocol. The inbox does not poll the channel again; the owner closes it.
    Fault(ChannelKey, PeerFault),
    /// The daemon's bit was set in this ready map.
    Control(InboxMapIndex),
    /// No record, no bit and no fault.
    Nothing,
}

#[derive(Debug)]
struct InboxEntry {
    key: ChannelKey,
    channel: Channel,
    ready_map: InboxMapIndex,
    ready_bit: ReadyBit,
    empty_polls: u32,
    /// The slot is in `hot`.
    hot: bool,
    /// The channel is not polled until [`Inbox::unmute`], whatever bits its peer sets.
    muted: bool,
    /// A fault of the channel was reported. The channel is not polled any more.
    faulted: bool,
}

#[derive(Debug)]
struct MapSubscription {
    ready_map: ReadyMap<SharedMapping>,
    doorbell: Doorbell,
    /// The slot of the channel that each bit in use belongs to.
    slots_by_bit: Vec<Option<u32>>,
    /// The number of channels that have a bit in the map.
    channels: u32,
    /// The daemon's bit was set.
    control: bool,
    /// The number of strays so far.
    strays: u64,
    /// The map is not looked at before this poll, because of bits that announced nothing.
    paused_until: u64,
}

impl MapSubscription {
    fn is_any_set(&self) -> bool {
        self.channels > 0 && (self.control || self.ready_map.is_any_set())
    }
}

/// The channels of one receiver and the ready maps in which their peers set bits.
#[derive(Debug, Default)]
pub struct Inbox {
    maps: Vec<MapSubscription>,
    slots: SlotTable<InboxEntry>,
    /// Slots of hot channels.
    hot: Vec<u32>,
    /// The index in `hot` at which the next poll begins, so that a busy channel does not delay the others.
    next_hot: usize,
    /// Slots found while draining a ready map. The vector is kept to reuse its allocation.
    woken: Vec<u32>,
    polls: u64,
    next_generation: u32,
}

impl Inbox {
    /// Creates an inbox without channels and ready maps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a ready map and its doorbell.
    pub fn add_ready_map(&mut self, memory: SharedMapping, doorbell: Doorbell) -> InboxMapIndex {
        let ready_map = ReadyMap::new(memory);
        let slots_by_bit = Vec::new();
        let subscription = MapSubscription {
            ready_map,
            doorbell,
            slots_by_bit,
            channels: 0,
            control: false,
            strays: 0,
            paused_until: 0,
        };
        self.maps.push(subscription);
        InboxMapIndex((self.maps.len() - 1) as u8)
    }

    /// The doorbells to sleep on, in the order of their ready maps.
    pub fn doorbells(&self) -> impl Iterator<Item = &Doorbell> {
        self.maps.iter().map(|subscription| &subscription.doorbell)
    }

    /// Adds a channel; its peer sets `ready_bit` of `ready_map`. The channel starts muted: no record is taken from it before
    /// [`Self::unmute`], because the messages that its peer sent earlier by another path come first.
    pub fn add(&mut self, channel: Channel, ready_map: InboxMapIndex, ready_bit: ReadyBit) -> ChannelKey {
        let generation = self.next_generation;
        self.next_generation += 1;
        let slot = self.slots.insert_with(|slot| InboxEntry {
            key: ChannelKey { slot, generation },
            channel,
            ready_map,
            ready_bit,
            empty_polls: 0,
            hot: false,
            muted: true,
            faulted: false,
        });
        let key = ChannelKey { slot, generation };
        let subscription = &mut self.maps[usize::from(ready_map.0)];
        if subscription.channels == 0 {
            subscription.ready_map.drain(|_| {}); // Bits of earlier channels.
        }
        subscription.channels += 1;
        let slots = &mut subscription.slots_by_bit;
        let at = usize::from(ready_bit.number());
        if slots.len() <= at {
            slots.resize(at + 1, None);
        }
        slots[at] = Some(slot);
        key
    }

    /// Starts taking records from a channel.
    pub fn unmute(&mut self, key: ChannelKey) {
        if let Some(entry) = self.entry(key) {
            entry.muted = entry.faulted;
            self.mark_hot(key.slot);
        }
    }

    /// Takes no records from a channel until [`Self::unmute`].
    pub fn mute(&mut self, key: ChannelKey) {
        if let Some(entry) = self.entry(key) {
            (entry.muted, entry.hot) = (true, false);
            self.hot.retain(|&hot| hot != key.slot);
        }
    }

    /// Removes a channel.
    pub fn remove(&mut self, key: ChannelKey) -> Option<Channel> {
        self.entry(key)?;
        let entry = self.slots.remove(key.slot)?;
        self.hot.retain(|&hot| hot != key.slot);
        let subscription = &mut self.maps[usize::from(entry.ready_map.0)];
        subscription.channels -= 1;
        subscription.slots_by_bit[usize::from(entry.ready_bit.number())] = None;
        Some(entry.channel)
    }

    /// Returns the ready map of a channel.
    pub fn ready_map_of(&mut self, key: ChannelKey) -> Option<InboxMapIndex> {
        self.entry(key).map(|entry| entry.ready_map)
    }

    /// Returns true if a ready map has channels. The doorbell of another one need not be listened to.
    pub fn has_channels(&self, ready_map: InboxMapIndex) -> bool {
        self.maps[usize::from(ready_map.0)].channels > 0
    }

    /// Returns the number of strays in all ready maps.
    pub fn strays(&self) -> u64 {
        self.maps.iter().map(|subscription| subscription.strays).sum()
    }

    /// Returns the channel with this key.
    #[inline]
    pub fn channel(&mut self, key: ChannelKey) -> Option<&mut Channel> {
        self.entry(key).map(|entry| &mut entry.channel)
    }

    #[inline]
    fn entry(&mut self, key: ChannelKey) -> Option<&mut InboxEntry> {
        self.slots.get_mut(key.slot).filter(|entry| entry.key == key)
    }

    /// All channels.
    pub fn channels(&mut self) -> impl Iterator<Item = (ChannelKey, &mut Channel)> {
        self.slots.values_mut().map(|entry| (entry.key, &mut entry.channel))
    }

    /// Returns the number of channels, and the number of hot channels among them.
    pub fn count(&self) -> (usize, usize) {
        (self.slots.len(), self.hot.len())
    }

    /// Polls once: takes a record into `record` if one waits, or returns what else happened.
    #[inline]
    pub fn poll(&mut self, record: &mut RecordBuffer) -> Polled {
        self.polls += 1;
        if self.polls.is_multiple_of(MAP_POLL_INTERVAL) {
            self.drain_ready_maps();
        }
        for _ in 0..self.hot.len() {
            if self.next_hot >= self.hot.len() {
                self.next_hot = 0;
            }
            let slot = self.hot[self.next_hot];
            let entry = &mut self.slots[slot];
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

    /// Returns true if a poll would find nothing and change nothing. The check is cheap and only covers up to one hot channel:
    /// with more of them it returns false.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        let channel = |slot: u32| self.slots.get(slot).is_some_and(|entry| entry.channel.is_idle());
        let hot = match *self.hot.as_slice() {
            [] => true,
            [slot] => channel(slot),
            _ => false,
        };
        hot && !self.maps.iter().any(MapSubscription::is_any_set)
    }

    /// Returns true if a poll would find something. Cheap enough for spinning.
    pub fn is_ready(&mut self) -> bool {
        self.maps.iter().any(MapSubscription::is_any_set)
            || self
                .hot
                .iter()
                .any(|&slot| self.slots.get(slot).is_some_and(|entry| !matches!(entry.channel.has_record(), Ok(false))))
    }

    /// Parks every channel and sets every ready map to sleeping. Returns true if the receiver may now sleep on its doorbells.
    /// The caller calls [`Self::end_sleep`] afterwards in either case.
    pub fn begin_sleep(&mut self) -> bool {
        // A receiver with nothing else to do need not save time.
        self.maps.iter_mut().for_each(|subscription| subscription.paused_until = 0);
        while let Some(&slot) = self.hot.last() {
            let entry = &mut self.slots[slot];
            entry.channel.flush();
            if !matches!(entry.channel.park(), Ok(true)) {
                return false;
            }
            entry.hot = false;
            self.hot.pop();
        }
        let sleeps = |subscription: &MapSubscription| {
            subscription.channels == 0 || !subscription.control && subscription.ready_map.begin_sleep()
        };
        self.maps.iter().all(sleeps)
    }

    /// Ends what [`Self::begin_sleep`] began, after sleeping or after deciding not to sleep.
    pub fn end_sleep(&mut self) {
        for subscription in &self.maps {
            subscription.ready_map.end_sleep();
        }
    }

    #[inline]
    fn drain_ready_maps(&mut self) {
        for at in 0..self.maps.len() {
            if self.maps[at].is_any_set() && self.polls >= self.maps[at].paused_until {
                self.drain_ready_map(InboxMapIndex(at as u8));
            }
        }
    }

    fn poll_ready_maps(&mut self) -> Polled {
        self.drain_ready_maps();
        let control = self.maps.iter_mut().position(|subscription| std::mem::take(&mut subscription.control));
        control.map_or(Polled::Nothing, |at| Polled::Control(InboxMapIndex(at as u8)))
    }

    #[cold]
    fn drain_ready_map(&mut self, ready_map: InboxMapIndex) {
        isthmus_shm::step!("drain_ready_map");
        let mut woken = std::mem::take(&mut self.woken);
        let MapSubscription { ready_map: map, slots_by_bit, control, .. } = &mut self.maps[usize::from(ready_map.0)];
        let mut strays = 0;
        map.drain(|ready_bit| match slots_by_bit.get(usize::from(ready_bit.number())).copied().flatten() {
            Some(slot) => woken.push(slot),
            None if ready_bit == ReadyBit::CONTROL => *control = true,
            None => strays += 1,
        });
        let mut paused = strays / STRAYS_PER_POLL;
        for slot in woken.drain(..) {
            paused += u64::from(self.mark_hot(slot));
        }
        self.woken = woken;
        let subscription = &mut self.maps[usize::from(ready_map.0)];
        subscription.strays += strays;
        if paused > 0 {
            subscription.paused_until = self.polls + 1 + paused;
        }
    }

    /// Starts polling a channel. Returns true if it has no record.
    fn mark_hot(&mut self, slot: u32) -> bool {
        let entry = &mut self.slots[slot];
        if entry.muted {
            return true;
        }
        let is_empty = matches!(entry.channel.has_record(), Ok(false));
        entry.channel.unpark();
        entry.empty_polls = 0;
        if !std::mem::replace(&mut entry.hot, true) {
            self.hot.push(slot);
            if self.hot.len() > HOT_MAX {
                self.park_least_active();
            }
        }
        is_empty
    }

    fn count_empty_poll(&mut self, slot: u32) {
        let entry = &mut self.slots[slot];
        entry.empty_polls = entry.empty_polls.saturating_add(1);
        if entry.empty_polls >= PARK_AFTER_POLLS && self.hot.len() > 1 {
            self.park_channel(slot);
        } else {
            self.next_hot += 1;
        }
    }

    fn park_least_active(&mut self) {
        let silent = |slot: &&u32| self.slots.get(**slot).map_or(0, |entry| entry.empty_polls);
        let newest = self.hot.len() - 1;
        if let Some(&slot) = self.hot[..newest].iter().max_by_key(silent) {
            self.park_channel(slot);
        }
    }

    fn park_channel(&mut self, slot: u32) {
        let entry = &mut self.slots[slot];
        entry.channel.flush();
        match entry.channel.park() {
            Ok(true) => {
                entry.hot = false;
                self.hot.retain(|&hot| hot != slot);
            }
            Ok(false) => entry.empty_polls = 0,
            Err(_) => {} // The next poll finds the same fault and reports it.
        }
    }

    #[cold]
    fn fault(&mut self, slot: u32, fault: PeerFault) -> Polled {
        let entry = &mut self.slots[slot];
        (entry.hot, entry.muted, entry.faulted) = (false, true, true);
        entry.channel.record_fault();
        let key = entry.key;
        self.hot.retain(|&hot| hot != slot);
        Polled::Fault(key, fault)
    }
}

#[cfg(test)]
mod tests;
