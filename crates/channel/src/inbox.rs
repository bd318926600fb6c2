//! All channels that one thread receives on.
//!
//! A channel is *hot* while records come: its next cell is looked at directly. After a while of silence it is *parked*: its peer
//! marks our board instead, and looking costs nothing more. So a poll looks at the few hot channels and at one word of each board,
//! of which there is one for each owner among the peers, however many peers are silent.

use crate::channel::Channel;
use isthmus_layout::board::Place;
use isthmus_platform::Doorbell;
use isthmus_shm::{Board, PeerFault, RecordBuffer, Window};

/// Empty looks at a channel before it is parked, while others are hot.
const PATIENCE: u32 = 256;

/// Polls between looks at the boards while some hot channel always has a record: nobody who floods us keeps the others out.
const BOARDS_EVERY: u32 = 64;

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

/// Names a board of the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BoardIndex(pub u8);

/// What a poll found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// A record of this channel is in the buffer.
    Record(ChannelKey),
    /// This channel's peer broke the contract. The channel is parked for good; the owner closes it.
    Fault(ChannelKey, PeerFault),
    /// A place that belongs to no channel was marked: the daemon's, or one that a peer had no business with.
    Marked(BoardIndex, Place),
    /// Nothing.
    Nothing,
}

#[derive(Debug)]
struct Entry {
    key: ChannelKey,
    channel: Channel,
    board: BoardIndex,
    place: Place,
    silent: u32,
    /// Its slot stands in `hot`.
    hot: bool,
    /// Not looked at until [`Inbox::unmute`], whatever its peer marks.
    muted: bool,
}

#[derive(Debug)]
struct Hearing {
    board: Board<Window>,
    doorbell: Doorbell,
    /// Slot of the channel at each place, for the places in use.
    places: Vec<Option<u32>>,
}

/// The channels of one receiver and the boards on which their peers announce themselves.
#[derive(Debug, Default)]
pub struct Inbox {
    boards: Vec<Hearing>,
    slots: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Slots of hot channels.
    hot: Vec<u32>,
    /// Where the next poll begins in `hot`, so that a busy channel starves no other.
    turn: usize,
    marked: Vec<(BoardIndex, Place)>,
    /// Slots that a look at a board found; kept for its memory.
    woken: Vec<u32>,
    polls: u32,
    next_generation: u32,
}

impl Inbox {
    /// No channels, no boards.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a board and the doorbell that goes with it.
    pub fn add_board(&mut self, memory: Window, doorbell: Doorbell) -> BoardIndex {
        self.boards.push(Hearing { board: Board::new(memory), doorbell, places: Vec::new() });
        BoardIndex((self.boards.len() - 1) as u8)
    }

    /// The doorbells, in the order of their boards: what to sleep on.
    pub fn doorbells(&self) -> impl Iterator<Item = &Doorbell> {
        self.boards.iter().map(|hearing| &hearing.doorbell)
    }

    /// Adds a channel; its peer marks `place` of `board`. It starts muted: nothing is taken from it before
    /// [`Self::unmute`], because what its peer sent by another path before comes first.
    pub fn add(&mut self, channel: Channel, board: BoardIndex, place: Place) -> ChannelKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        let key = ChannelKey { slot, generation: self.next_generation };
        self.next_generation += 1;
        self.slots[slot as usize] = Some(Entry { key, channel, board, place, silent: 0, hot: false, muted: true });
        let places = &mut self.boards[usize::from(board.0)].places;
        let at = usize::from(place.number());
        if places.len() <= at {
            places.resize(at + 1, None);
        }
        places[at] = Some(slot);
        key
    }

    /// Begins to take records from a channel.
    pub fn unmute(&mut self, key: ChannelKey) {
        if let Some(entry) = self.entry(key) {
            entry.muted = false;
            self.heat(key.slot);
        }
    }

    /// Takes a channel out.
    pub fn remove(&mut self, key: ChannelKey) -> Option<Channel> {
        self.entry(key)?;
        let entry = self.slots[key.slot()].take()?;
        self.hot.retain(|&hot| hot != key.slot);
        let places = &mut self.boards[usize::from(entry.board.0)].places;
        places[usize::from(entry.place.number())] = None;
        self.free.push(key.slot);
        Some(entry.channel)
    }

    /// A channel.
    #[inline]
    pub fn channel(&mut self, key: ChannelKey) -> Option<&mut Channel> {
        self.entry(key).map(|entry| &mut entry.channel)
    }

    #[inline]
    fn entry(&mut self, key: ChannelKey) -> Option<&mut Entry> {
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
        if self.polls.is_multiple_of(BOARDS_EVERY) {
            self.look_at_boards();
        }
        for _ in 0..self.hot.len() {
            if self.turn >= self.hot.len() {
                self.turn = 0;
            }
            let slot = self.hot[self.turn];
            let entry = self.slots[slot as usize].as_mut().expect("hot channels are there");
            match entry.channel.receive(record) {
                Ok(true) => {
                    isthmus_shm::step!("poll");
                    entry.silent = 0;
                    let key = entry.key;
                    self.turn += usize::from(self.hot.len() > 1);
                    return Polled::Record(key);
                }
                Ok(false) => self.silence(slot),
                Err(fault) => return self.fault(slot, fault),
            }
        }
        self.poll_boards()
    }

    /// True if a poll would find nothing and change nothing, as far as that is seen at a glance: with one hot channel, or none.
    #[inline(always)]
    pub fn is_quiet(&self) -> bool {
        let channel = |slot: u32| self.slots[slot as usize].as_ref().is_some_and(|entry| entry.channel.is_quiet());
        let hot = match *self.hot.as_slice() {
            [] => true,
            [slot] => channel(slot),
            _ => false,
        };
        hot && self.marked.is_empty() && !self.boards.iter().any(|hearing| hearing.board.any())
    }

    /// True if a poll would find something; cheap, for spinning.
    pub fn is_ready(&mut self) -> bool {
        self.boards.iter().any(|hearing| hearing.board.any())
            || !self.marked.is_empty()
            || self.hot.iter().any(|&slot| {
                self.slots[slot as usize].as_ref().is_some_and(|entry| !matches!(entry.channel.look(), Ok(false)))
            })
    }

    /// Before sleeping: parks every channel and says so on every board. True if the receiver may sleep on its doorbells
    /// now; [`Self::awake`] follows in any case.
    pub fn sleep(&mut self) -> bool {
        while let Some(&slot) = self.hot.last() {
            let entry = self.slots[slot as usize].as_mut().expect("hot channels are there");
            entry.channel.flush();
            if !matches!(entry.channel.park(), Ok(true)) {
                return false;
            }
            entry.hot = false;
            self.hot.pop();
        }
        self.marked.is_empty() && self.boards.iter().all(|hearing| hearing.board.sleep())
    }

    /// After sleeping, or after deciding not to.
    pub fn awake(&mut self) {
        for hearing in &self.boards {
            hearing.board.wake();
        }
    }

    #[inline]
    fn look_at_boards(&mut self) {
        for at in 0..self.boards.len() {
            if self.boards[at].board.any() {
                self.take_marks(BoardIndex(at as u8));
            }
        }
    }

    fn poll_boards(&mut self) -> Polled {
        self.look_at_boards();
        match self.marked.pop() {
            Some((board, place)) => Polled::Marked(board, place),
            None => Polled::Nothing,
        }
    }

    #[cold]
    fn take_marks(&mut self, board: BoardIndex) {
        isthmus_shm::step!("take_marks");
        let mut woken = std::mem::take(&mut self.woken);
        let hearing = &self.boards[usize::from(board.0)];
        hearing.board.take(|place| match hearing.places.get(usize::from(place.number())).copied().flatten() {
            Some(slot) => woken.push(slot),
            None => self.marked.push((board, place)),
        });
        for slot in woken.drain(..) {
            self.heat(slot);
        }
        self.woken = woken;
    }

    fn heat(&mut self, slot: u32) {
        let entry = self.slots[slot as usize].as_mut().expect("places name channels that are there");
        if entry.muted {
            return;
        }
        entry.channel.unpark();
        entry.silent = 0;
        if !std::mem::replace(&mut entry.hot, true) {
            self.hot.push(slot);
            if self.hot.len() > HOT_MAX {
                self.cool_the_most_silent();
            }
        }
    }

    fn silence(&mut self, slot: u32) {
        let entry = self.slots[slot as usize].as_mut().expect("hot channels are there");
        entry.silent = entry.silent.saturating_add(1);
        if entry.silent >= PATIENCE && self.hot.len() > 1 {
            self.cool(slot);
        } else {
            self.turn += 1;
        }
    }

    fn cool_the_most_silent(&mut self) {
        let silent = |slot: &&u32| self.slots[**slot as usize].as_ref().map_or(0, |entry| entry.silent);
        let newest = self.hot.len() - 1;
        if let Some(&slot) = self.hot[..newest].iter().max_by_key(silent) {
            self.cool(slot);
        }
    }

    fn cool(&mut self, slot: u32) {
        let entry = self.slots[slot as usize].as_mut().expect("hot channels are there");
        entry.channel.flush();
        match entry.channel.park() {
            Ok(true) => {
                entry.hot = false;
                self.hot.retain(|&hot| hot != slot);
            }
            Ok(false) => entry.silent = 0,
            Err(_) => {} // The next poll meets the same fault and reports it.
        }
    }

    #[cold]
    fn fault(&mut self, slot: u32, fault: PeerFault) -> Polled {
        let entry = self.slots[slot as usize].as_mut().expect("hot channels are there");
        entry.hot = false;
        entry.channel.faulted();
        let key = entry.key;
        self.hot.retain(|&hot| hot != slot);
        Polled::Fault(key, fault)
    }
}

#[cfg(test)]
mod tests;
