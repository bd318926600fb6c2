//! The domain rings of one worker: polling for records, and moving records and their bytes in and out.
//!
//! ```text
//!   owner ── ready map, its doorbell, an inbox ─┬─ ring of a domain ─► record, bytes ─► scratch buffer
//!   owner ── … ─────────────────────────────────┴─ ring of a domain ◄─ record, bytes ◄─┘
//! ```
//!
//! Fairness: after [`RECORDS_PER_ROUND`] records a domain is *paused* until all other domains with records, parked ones too, were
//! served. A domain that floods its ring therefore delays the others by one batch at most.

use crate::command::{NewDomain, WorkerReadyMapId};
use crate::counters::DomainCounters;
use crate::record_kinds::with_fragment;
use crate::router::Slot;
use isthmus_channel::{Channel, ChannelKey, ChannelSendError, Inbox, InboxMapIndex, Polled};
use isthmus_layout::record::{Record, Route};
use isthmus_platform::Doorbell;
use isthmus_shm::{PeerFault, RecordBuffer, SharedMapping};
use std::collections::HashMap;
use std::sync::Arc;

/// Records taken from one domain before all others are served.
pub(crate) const RECORDS_PER_ROUND: u32 = 64;

/// The number of slab bytes up to which an idle ring keeps its pages.
const TRIM_KEEP_BYTES: u32 = 4 << 10;

/// The number of attempts to trim an idle ring. The limit exists because a domain may never read its fragments.
const TRIM_ATTEMPTS: u8 = 4;

/// The result of one poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingPoll {
    /// A record of this domain is in the buffer.
    Record(Slot),
    /// This domain broke the contract.
    Fault(Slot, PeerFault),
    /// Nothing, from any domain that is not paused.
    Nothing,
}

/// The inbox and the doorbell that the domains of one owner share.
#[derive(Debug)]
struct OwnerInbox {
    ready_map: WorkerReadyMapId,
    doorbell: Doorbell,
    inbox: Inbox,
    /// The index of the ready map in the inbox, which has only this one.
    index: InboxMapIndex,
    slots: HashMap<ChannelKey, Slot>,
    /// The number of ready bits without a ring that were counted.
    strays: u64,
}

#[derive(Debug)]
struct Ring {
    owner_inbox: usize,
    key: ChannelKey,
    counters: Arc<DomainCounters>,
    /// Records taken in this round.
    served: u32,
    paused: bool,
    /// Something was pushed and not flushed.
    unflushed: bool,
    /// Attempts left to give pages back; zero: not on the list.
    trims: u8,
}

/// The domain rings of one worker.
#[derive(Debug)]
pub(crate) struct Rings {
    owner_inboxes: Vec<Option<OwnerInbox>>,
    rings: Vec<Option<Ring>>,
    /// The inbox that is polled, and for how many more records.
    current: usize,
    records_left: u32,
    served: Vec<Slot>,
    paused: Vec<Slot>,
    unflushed: Vec<Slot>,
    trims: Vec<Slot>,
}

fn channel<'a>(owner_inboxes: &'a mut [Option<OwnerInbox>], ring: &Ring) -> &'a mut Channel {
    let owner_inbox = owner_inboxes[ring.owner_inbox].as_mut().expect("rings have an owner inbox");
    owner_inbox.inbox.channel(ring.key).expect("rings are in their inbox")
}

impl Rings {
    pub(crate) fn new() -> Self {
        Self {
            owner_inboxes: Vec::new(),
            rings: Vec::new(),
            current: 0,
            records_left: RECORDS_PER_ROUND,
            served: Vec::new(),
            paused: Vec::new(),
            unflushed: Vec::new(),
            trims: Vec::new(),
        }
    }

    pub(crate) fn add_ready_map(&mut self, ready_map: WorkerReadyMapId, memory: SharedMapping, doorbell: Doorbell) {
        let mut inbox = Inbox::new();
        let index = inbox.add_ready_map(memory, doorbell.clone());
        let owner_inbox = Some(OwnerInbox { ready_map, doorbell, inbox, index, slots: HashMap::new(), strays: 0 });
        match self.owner_inboxes.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = owner_inbox,
            None => self.owner_inboxes.push(owner_inbox),
        }
    }

    /// Removes a ready map and returns its doorbell. None if there is no such ready map, or domains use it still.
    pub(crate) fn remove_ready_map(&mut self, ready_map: WorkerReadyMapId) -> Option<Doorbell> {
        let at = self.owner_inbox_of(ready_map)?;
        let unused = self.owner_inboxes[at].as_ref().is_some_and(|owner_inbox| owner_inbox.slots.is_empty());
        let owner_inbox = if unused { self.owner_inboxes[at].take() } else { None };
        owner_inbox.map(|owner_inbox| owner_inbox.doorbell)
    }

    fn owner_inbox_of(&self, ready_map: WorkerReadyMapId) -> Option<usize> {
        self.owner_inboxes
            .iter()
            .position(|owner_inbox| owner_inbox.as_ref().is_some_and(|owner_inbox| owner_inbox.ready_map == ready_map))
    }

    /// Returns whether control has added the ready map.
    pub(crate) fn has_ready_map(&self, ready_map: WorkerReadyMapId) -> bool {
        self.owner_inbox_of(ready_map).is_some()
    }

    /// Begins to serve a domain's ring.
    pub(crate) fn add(&mut self, slot: Slot, new: NewDomain) {
        let at = self.owner_inbox_of(new.ready_map).expect("asked for before");
        let owner_inbox = self.owner_inboxes[at].as_mut().expect("found above");
        let key = owner_inbox.inbox.add(Channel::new(new.parts), owner_inbox.index, new.ready_bit);
        owner_inbox.slots.insert(key, slot);
        owner_inbox.inbox.unmute(key);
        let counters = new.counters;
        let ring = Ring { owner_inbox: at, key, counters, served: 0, paused: false, unflushed: false, trims: 0 };
        let index = slot.0 as usize;
        if self.rings.len() <= index {
            self.rings.resize_with(index + 1, || None);
        }
        self.rings[index] = Some(ring);
    }

    /// Removes a domain's ring and returns its channel.
    pub(crate) fn remove(&mut self, slot: Slot) -> Option<Channel> {
        let ring = self.rings[slot.0 as usize].take()?;
        for list in [&mut self.served, &mut self.paused, &mut self.unflushed, &mut self.trims] {
            list.retain(|&other| other != slot);
        }
        let owner_inbox = self.owner_inboxes[ring.owner_inbox].as_mut().expect("rings have an owner inbox");
        owner_inbox.slots.remove(&ring.key);
        owner_inbox.inbox.remove(ring.key)
    }

    fn ring(&mut self, slot: Slot) -> &mut Ring {
        self.rings[slot.0 as usize].as_mut().expect("slots in use have rings")
    }

    pub(crate) fn counters(&self, slot: Slot) -> &DomainCounters {
        &self.rings[slot.0 as usize].as_ref().expect("slots in use have rings").counters
    }

    /// Polls once.
    pub(crate) fn poll(&mut self, record: &mut RecordBuffer) -> RingPoll {
        for _ in 0..self.owner_inboxes.len() {
            if self.records_left == 0 {
                self.next_owner_inbox();
            }
            if let Some(owner_inbox) = self.owner_inboxes.get_mut(self.current).and_then(Option::as_mut) {
                match owner_inbox.inbox.poll(record) {
                    Polled::Record(key) => {
                        let slot = owner_inbox.slots[&key];
                        self.records_left -= 1;
                        self.serve(slot);
                        return RingPoll::Record(slot);
                    }
                    Polled::Fault(key, fault) => return RingPoll::Fault(owner_inbox.slots[&key], fault),
                    // Nothing uses the daemon's bit in the daemon's own ready map.
                    Polled::Control(_) | Polled::Nothing => {}
                }
            }
            self.next_owner_inbox();
        }
        RingPoll::Nothing
    }

    /// Returns the number of ready bits without a ring that were set since the last call.
    pub(crate) fn new_strays(&mut self) -> u64 {
        let new = |owner_inbox: &mut OwnerInbox| {
            let strays = owner_inbox.inbox.strays();
            strays - std::mem::replace(&mut owner_inbox.strays, strays)
        };
        self.owner_inboxes.iter_mut().flatten().map(new).sum()
    }

    fn next_owner_inbox(&mut self) {
        self.current = (self.current + 1) % self.owner_inboxes.len().max(1);
        self.records_left = RECORDS_PER_ROUND;
    }

    fn serve(&mut self, slot: Slot) {
        let ring = self.ring(slot);
        ring.served += 1;
        let served = ring.served;
        if served == 1 {
            self.served.push(slot);
            self.retry_trim(slot);
        }
        if served >= RECORDS_PER_ROUND {
            self.pause(slot);
        }
    }

    /// A domain that sends something has perhaps read at last what it left unread.
    fn retry_trim(&mut self, slot: Slot) {
        let ring = self.rings[slot.0 as usize].as_mut().expect("slots in use have rings");
        if ring.trims == 0 && channel(&mut self.owner_inboxes, ring).dirty_bytes() > TRIM_KEEP_BYTES {
            ring.trims = TRIM_ATTEMPTS;
            self.trims.push(slot);
        }
    }

    /// Takes nothing from a domain until the next round.
    pub(crate) fn pause(&mut self, slot: Slot) {
        let ring = self.rings[slot.0 as usize].as_mut().expect("slots in use have rings");
        if std::mem::replace(&mut ring.paused, true) {
            return;
        }
        let owner_inbox = self.owner_inboxes[ring.owner_inbox].as_mut().expect("rings have an owner inbox");
        owner_inbox.inbox.mute(ring.key);
        self.paused.push(slot);
    }

    /// Begins a new round after all domains were served. Paused domains are polled again, except those that `keep_paused` selects.
    /// Returns whether a domain is no longer paused.
    pub(crate) fn new_round(&mut self, keep_paused: impl Fn(Slot) -> bool) -> bool {
        for slot in self.served.drain(..) {
            self.rings[slot.0 as usize].as_mut().expect("removed rings are on no list").served = 0;
        }
        let before = self.paused.len();
        let (owner_inboxes, rings) = (&mut self.owner_inboxes, &mut self.rings);
        self.paused.retain(|&slot| {
            if keep_paused(slot) {
                return true;
            }
            let ring = rings[slot.0 as usize].as_mut().expect("removed rings are on no list");
            ring.paused = false;
            owner_inboxes[ring.owner_inbox].as_mut().expect("rings have an owner inbox").inbox.unmute(ring.key);
            false
        });
        self.paused.len() < before
    }

    /// Takes the next record of one domain, whatever other domains wait.
    pub(crate) fn receive(&mut self, slot: Slot, record: &mut RecordBuffer) -> Result<bool, PeerFault> {
        let Some(ring) = &self.rings[slot.0 as usize] else { return Ok(false) };
        channel(&mut self.owner_inboxes, ring).receive(record)
    }

    /// Copies the message bytes of a record to the start of `into` and releases their slab space. Returns the number of bytes.
    pub(crate) fn copy_payload(&mut self, from: Slot, record: &Record<'_>, into: &mut [u8]) -> Result<u32, PeerFault> {
        match *record {
            Record::Eager { len, words, .. } => {
                for (bytes, word) in into.chunks_exact_mut(4).zip(words) {
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
                Ok(len)
            }
            Record::FirstFragment { fragment, .. }
            | Record::NextFragment { fragment, .. }
            | Record::Announce { fragment, .. }
                if fragment.len > 0 =>
            {
                let ring = self.rings[from.0 as usize].as_ref().expect("slots in use have rings");
                let channel = channel(&mut self.owner_inboxes, ring);
                channel.copy_out(fragment, 0, &mut into[..fragment.len as usize])?;
                channel.release(fragment);
                Ok(fragment.len)
            }
            _ => Ok(0),
        }
    }

    /// Returns whether a record with `len` message bytes fits into a domain's ring now.
    pub(crate) fn has_room(&mut self, to: Slot, len: u32) -> Result<bool, PeerFault> {
        let ring = self.rings[to.0 as usize].as_ref().expect("slots in use have rings");
        channel(&mut self.owner_inboxes, ring).has_room(len)
    }

    /// Puts a record with its bytes into a domain's ring. False if there is no room.
    pub(crate) fn push(
        &mut self,
        to: Slot,
        route: Route,
        record: &Record<'_>,
        bytes: &[u8],
    ) -> Result<bool, PeerFault> {
        let len = bytes.len() as u32;
        let ring = self.rings[to.0 as usize].as_mut().expect("slots in use have rings");
        let channel = channel(&mut self.owner_inboxes, ring);
        let sent = match *record {
            Record::Eager { tag, len, .. } => channel.send(route, &Record::Eager { tag, len, words: &[] }, bytes),
            Record::FirstFragment { .. } | Record::NextFragment { .. } => {
                if !channel.has_room(len)? {
                    return Ok(false);
                }
                let Some(fragment) = channel.reserve(len, len)? else { return Ok(false) };
                channel.copy_in(fragment, 0, bytes);
                if std::mem::replace(&mut ring.trims, TRIM_ATTEMPTS) == 0 {
                    self.trims.push(to);
                }
                channel.send(route, &with_fragment(record, fragment), &[])
            }
            _ => channel.send(route, record, &[]),
        };
        match sent {
            Ok(()) => {
                channel.count(u64::from(len));
                if !std::mem::replace(&mut ring.unflushed, true) {
                    self.unflushed.push(to);
                }
                Ok(true)
            }
            Err(ChannelSendError::Full) => Ok(false),
            Err(ChannelSendError::Fault(fault)) => Err(fault),
        }
    }

    /// Flushes each ring that a record was pushed to, so that its domain wakes.
    pub(crate) fn flush(&mut self) {
        for slot in self.unflushed.drain(..) {
            let ring = self.rings[slot.0 as usize].as_mut().expect("removed rings are on no list");
            ring.unflushed = false;
            channel(&mut self.owner_inboxes, ring).flush();
        }
    }

    /// Asks a domain to mark its place when it has made room.
    pub(crate) fn block(&mut self, slot: Slot) {
        let ring = self.rings[slot.0 as usize].as_ref().expect("slots in use have rings");
        channel(&mut self.owner_inboxes, ring).block();
    }

    /// Returns whether a poll would find a record.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.owner_inboxes.iter_mut().flatten().any(|owner_inbox| owner_inbox.inbox.is_ready())
    }

    /// Before sleeping. True if no ring has a record; [`Self::end_sleep`] follows in any case.
    pub(crate) fn begin_sleep(&mut self) -> bool {
        self.owner_inboxes.iter_mut().flatten().all(|owner_inbox| owner_inbox.inbox.begin_sleep())
    }

    /// Ends the sleep that [`Self::begin_sleep`] began or refused.
    pub(crate) fn end_sleep(&mut self) {
        self.owner_inboxes.iter_mut().flatten().for_each(|owner_inbox| owner_inbox.inbox.end_sleep());
    }

    /// Returns whether idle rings may have pages to give back.
    pub(crate) fn wants_trim(&self) -> bool {
        !self.trims.is_empty()
    }

    /// Returns unused pages of idle rings to the system. Returns a domain that broke the contract, if this found one.
    pub(crate) fn trim(&mut self) -> Option<(Slot, PeerFault)> {
        let (owner_inboxes, rings) = (&mut self.owner_inboxes, &mut self.rings);
        let mut broken = None;
        self.trims.retain(|&slot| {
            let ring = rings[slot.0 as usize].as_mut().expect("removed rings are on no list");
            let channel = channel(owner_inboxes, ring);
            match channel.trim(TRIM_KEEP_BYTES) {
                Ok(trimmed) if trimmed || channel.dirty_bytes() <= TRIM_KEEP_BYTES => ring.trims = 0,
                Ok(_) => ring.trims -= 1,
                Err(fault) => {
                    ring.trims = 0;
                    broken = Some((slot, fault));
                }
            }
            ring.trims > 0
        });
        broken
    }
}
