//! The domain rings of one worker: hearing who has sent something, and moving records and their bytes in and out.
//!
//! ```text
//!   owner ── ear: a board, its doorbell, an inbox ──┬─ ring of a domain ─► record, bytes ─► bounce buffer
//!   owner ── ear ───────────────────────────────────┴─ ring of a domain ◄─ record, bytes ◄─┘
//! ```
//!
//! Fairness: a domain of which [`BATCH`] records were taken *rests* until all others that have something were heard, parked ones
//! too; so one that floods costs the others no more than a batch.

use crate::command::{BoardNumber, NewDomain};
use crate::counters::DomainCounters;
use crate::kinds::placed;
use crate::router::Slot;
use isthmus_channel::{BoardIndex, Channel, ChannelKey, Inbox, Polled, SendError};
use isthmus_layout::board::Place;
use isthmus_layout::record::{Record, Route};
use isthmus_platform::Doorbell;
use isthmus_shm::{PeerFault, RecordBuffer, Window};
use std::collections::HashMap;
use std::sync::Arc;

/// Records taken from one domain before all others are heard.
pub(crate) const BATCH: u32 = 64;

/// Slab bytes whose pages an idle ring keeps.
const KEEP: u32 = 4 << 10;

/// How often an idle ring is looked at for pages to give back: a domain that leaves pieces lying is not waited for.
const TRIM_TRIES: u8 = 4;

/// What one look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// A record of this domain is in the buffer.
    Record(Slot),
    /// This domain broke the contract.
    Fault(Slot, PeerFault),
    /// A mark where no ring is.
    Stray,
    /// Nothing, from anybody who does not rest.
    Nothing,
}

/// What the domains of one owner share.
#[derive(Debug)]
struct Ear {
    board: BoardNumber,
    doorbell: Doorbell,
    inbox: Inbox,
    /// Of the inbox, where there is only one.
    index: BoardIndex,
    slots: HashMap<ChannelKey, Slot>,
}

#[derive(Debug)]
struct Ring {
    ear: usize,
    key: ChannelKey,
    place: Place,
    counters: Arc<DomainCounters>,
    /// Records taken in this round.
    served: u32,
    resting: bool,
    /// Something was pushed and not flushed.
    touched: bool,
    /// Looks left for pages to give back; zero: not on the list.
    trims: u8,
}

/// The domain rings of one worker.
#[derive(Debug)]
pub(crate) struct Rings {
    ears: Vec<Option<Ear>>,
    rings: Vec<Option<Ring>>,
    /// The ear that is listened to, and for how many more records.
    turn: usize,
    stay: u32,
    served: Vec<Slot>,
    resting: Vec<Slot>,
    touched: Vec<Slot>,
    trims: Vec<Slot>,
}

fn channel<'a>(ears: &'a mut [Option<Ear>], ring: &Ring) -> &'a mut Channel {
    let ear = ears[ring.ear].as_mut().expect("rings have ears");
    ear.inbox.channel(ring.key).expect("rings are in their inbox")
}

impl Rings {
    pub(crate) fn new() -> Self {
        Self {
            ears: Vec::new(),
            rings: Vec::new(),
            turn: 0,
            stay: BATCH,
            served: Vec::new(),
            resting: Vec::new(),
            touched: Vec::new(),
            trims: Vec::new(),
        }
    }

    pub(crate) fn add_board(&mut self, board: BoardNumber, memory: Window, doorbell: Doorbell) {
        let mut inbox = Inbox::new();
        let index = inbox.add_board(memory, doorbell.clone());
        let ear = Some(Ear { board, doorbell, inbox, index, slots: HashMap::new() });
        match self.ears.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = ear,
            None => self.ears.push(ear),
        }
    }

    /// The doorbell of the board, which nobody needs any more. None if there is no such board, or domains use it still.
    pub(crate) fn remove_board(&mut self, board: BoardNumber) -> Option<Doorbell> {
        let at = self.ear_of(board)?;
        let unused = self.ears[at].as_ref().is_some_and(|ear| ear.slots.is_empty());
        let ear = if unused { self.ears[at].take() } else { None };
        ear.map(|ear| ear.doorbell)
    }

    fn ear_of(&self, board: BoardNumber) -> Option<usize> {
        self.ears.iter().position(|ear| ear.as_ref().is_some_and(|ear| ear.board == board))
    }

    /// True if control has added the board.
    pub(crate) fn has_board(&self, board: BoardNumber) -> bool {
        self.ear_of(board).is_some()
    }

    /// Begins to serve a domain's ring.
    pub(crate) fn add(&mut self, slot: Slot, new: NewDomain) {
        let at = self.ear_of(new.board).expect("asked for before");
        let ear = self.ears[at].as_mut().expect("found above");
        let key = ear.inbox.add(Channel::new(new.ends), ear.index, new.place);
        ear.slots.insert(key, slot);
        ear.inbox.unmute(key);
        let counters = new.counters;
        let ring =
            Ring { ear: at, key, place: new.place, counters, served: 0, resting: false, touched: false, trims: 0 };
        let index = slot.0 as usize;
        if self.rings.len() <= index {
            self.rings.resize_with(index + 1, || None);
        }
        self.rings[index] = Some(ring);
    }

    /// Lets go of a domain's ring.
    pub(crate) fn remove(&mut self, slot: Slot) -> Option<Channel> {
        let ring = self.rings[slot.0 as usize].take()?;
        for list in [&mut self.served, &mut self.resting, &mut self.touched, &mut self.trims] {
            list.retain(|&other| other != slot);
        }
        let ear = self.ears[ring.ear].as_mut().expect("rings have ears");
        ear.slots.remove(&ring.key);
        ear.inbox.remove(ring.key)
    }

    fn ring(&mut self, slot: Slot) -> &mut Ring {
        self.rings[slot.0 as usize].as_mut().expect("slots in use have rings")
    }

    pub(crate) fn counters(&self, slot: Slot) -> &DomainCounters {
        &self.rings[slot.0 as usize].as_ref().expect("slots in use have rings").counters
    }

    /// Looks once.
    pub(crate) fn poll(&mut self, record: &mut RecordBuffer) -> Heard {
        for _ in 0..self.ears.len() {
            if self.stay == 0 {
                self.next_ear();
            }
            if let Some(ear) = self.ears.get_mut(self.turn).and_then(Option::as_mut) {
                match ear.inbox.poll(record) {
                    Polled::Record(key) => {
                        let slot = ear.slots[&key];
                        self.stay -= 1;
                        self.serve(slot);
                        return Heard::Record(slot);
                    }
                    Polled::Fault(key, fault) => return Heard::Fault(ear.slots[&key], fault),
                    Polled::Marked(..) => return Heard::Stray,
                    Polled::Nothing => {}
                }
            }
            self.next_ear();
        }
        Heard::Nothing
    }

    fn next_ear(&mut self) {
        self.turn = (self.turn + 1) % self.ears.len().max(1);
        self.stay = BATCH;
    }

    fn serve(&mut self, slot: Slot) {
        let ring = self.ring(slot);
        ring.served += 1;
        let served = ring.served;
        if served == 1 {
            self.served.push(slot);
            self.rearm(slot);
        }
        if served >= BATCH {
            self.rest(slot);
        }
    }

    /// A domain that says something has perhaps read at last what it left lying.
    fn rearm(&mut self, slot: Slot) {
        let ring = self.rings[slot.0 as usize].as_mut().expect("slots in use have rings");
        if ring.trims == 0 && channel(&mut self.ears, ring).dirty() > KEEP {
            ring.trims = TRIM_TRIES;
            self.trims.push(slot);
        }
    }

    /// Hears nothing of a domain until the next round.
    pub(crate) fn rest(&mut self, slot: Slot) {
        let ring = self.rings[slot.0 as usize].as_mut().expect("slots in use have rings");
        if std::mem::replace(&mut ring.resting, true) {
            return;
        }
        // A channel is muted when it comes into an inbox, so out and in again.
        let ear = self.ears[ring.ear].as_mut().expect("rings have ears");
        let channel = ear.inbox.remove(ring.key).expect("rings are in their inbox");
        ear.slots.remove(&ring.key);
        ring.key = ear.inbox.add(channel, ear.index, ring.place);
        ear.slots.insert(ring.key, slot);
        self.resting.push(slot);
    }

    /// All were heard: those who rested are heard again, but for those that are to `rest` on. True if there was one.
    pub(crate) fn new_round(&mut self, rest: impl Fn(Slot) -> bool) -> bool {
        for slot in self.served.drain(..) {
            self.rings[slot.0 as usize].as_mut().expect("removed rings are on no list").served = 0;
        }
        let before = self.resting.len();
        let (ears, rings) = (&mut self.ears, &mut self.rings);
        self.resting.retain(|&slot| {
            if rest(slot) {
                return true;
            }
            let ring = rings[slot.0 as usize].as_mut().expect("removed rings are on no list");
            ring.resting = false;
            ears[ring.ear].as_mut().expect("rings have ears").inbox.unmute(ring.key);
            false
        });
        self.resting.len() < before
    }

    /// Takes the next record of one domain, whoever else waits.
    pub(crate) fn take(&mut self, slot: Slot, record: &mut RecordBuffer) -> Result<bool, PeerFault> {
        let Some(ring) = &self.rings[slot.0 as usize] else { return Ok(false) };
        channel(&mut self.ears, ring).receive(record)
    }

    /// Copies the message bytes of a record to the start of `into` and gives their place back. Answers how many.
    pub(crate) fn fetch(&mut self, from: Slot, record: &Record<'_>, into: &mut [u8]) -> Result<u32, PeerFault> {
        match *record {
            Record::Eager { len, words, .. } => {
                for (bytes, word) in into.chunks_exact_mut(4).zip(words) {
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
                Ok(len)
            }
            Record::Start { piece, .. } | Record::More { piece, .. } | Record::Announce { piece, .. }
                if piece.len > 0 =>
            {
                let ring = self.rings[from.0 as usize].as_ref().expect("slots in use have rings");
                let channel = channel(&mut self.ears, ring);
                channel.copy_out(piece, 0, &mut into[..piece.len as usize])?;
                channel.give_back(piece);
                Ok(piece.len)
            }
            _ => Ok(0),
        }
    }

    /// True if a record with `len` message bytes fits into a domain's ring now.
    pub(crate) fn has_room(&mut self, to: Slot, len: u32) -> Result<bool, PeerFault> {
        let ring = self.rings[to.0 as usize].as_ref().expect("slots in use have rings");
        channel(&mut self.ears, ring).has_room(len)
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
        let channel = channel(&mut self.ears, ring);
        let sent = match *record {
            Record::Eager { tag, len, .. } => channel.send(route, &Record::Eager { tag, len, words: &[] }, bytes),
            Record::Start { .. } | Record::More { .. } => {
                if !channel.has_room(len)? {
                    return Ok(false);
                }
                let Some(piece) = channel.reserve(len, len)? else { return Ok(false) };
                channel.fill(piece, 0, bytes);
                if std::mem::replace(&mut ring.trims, TRIM_TRIES) == 0 {
                    self.trims.push(to);
                }
                channel.send(route, &placed(record, piece), &[])
            }
            _ => channel.send(route, record, &[]),
        };
        match sent {
            Ok(()) => {
                channel.count(u64::from(len));
                if !std::mem::replace(&mut ring.touched, true) {
                    self.touched.push(to);
                }
                Ok(true)
            }
            Err(SendError::Full) => Ok(false),
            Err(SendError::Fault(fault)) => Err(fault),
        }
    }

    /// Wakes those to whom something was pushed.
    pub(crate) fn flush(&mut self) {
        for slot in self.touched.drain(..) {
            let ring = self.rings[slot.0 as usize].as_mut().expect("removed rings are on no list");
            ring.touched = false;
            channel(&mut self.ears, ring).flush();
        }
    }

    /// Asks a domain to mark its place when it has made room.
    pub(crate) fn block(&mut self, slot: Slot) {
        let ring = self.rings[slot.0 as usize].as_ref().expect("slots in use have rings");
        channel(&mut self.ears, ring).block();
    }

    /// True if a poll would find something.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.ears.iter_mut().flatten().any(|ear| ear.inbox.is_ready())
    }

    /// Before sleeping. True if nobody has anything to say; [`Self::awake`] follows in any case.
    pub(crate) fn sleep(&mut self) -> bool {
        self.ears.iter_mut().flatten().all(|ear| ear.inbox.sleep())
    }

    /// After sleeping, or after deciding not to.
    pub(crate) fn awake(&mut self) {
        self.ears.iter_mut().flatten().for_each(|ear| ear.inbox.awake());
    }

    /// True if idle rings may have pages to give back.
    pub(crate) fn wants_trim(&self) -> bool {
        !self.trims.is_empty()
    }

    /// Gives back the pages of rings that are idle. Answers who broke the contract.
    pub(crate) fn trim(&mut self) -> Option<(Slot, PeerFault)> {
        let (ears, rings) = (&mut self.ears, &mut self.rings);
        let mut broken = None;
        self.trims.retain(|&slot| {
            let ring = rings[slot.0 as usize].as_mut().expect("removed rings are on no list");
            let channel = channel(ears, ring);
            match channel.trim(KEEP) {
                Ok(trimmed) if trimmed || channel.dirty() <= KEEP => ring.trims = 0,
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
