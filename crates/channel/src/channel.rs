//! One channel, as one of its two ends sees it.
//!
//! ```text
//!   ours                                     theirs
//!   send ─► producer ══ ring ══► consumer ─► receive
//!           slab_out ══ slab ══► slab_in
//!   marker ─► their board, doorbell ─► their sleep
//! ```

use crate::flight::{Event, Flight};
use isthmus_layout::board::Place;
use isthmus_layout::channel::{Direction, Geometry, Slower};
use isthmus_layout::record::{self, Piece, Record, Route};
use isthmus_platform::{Doorbell, Ring};
use isthmus_shm::{
    Consumer, Counters, Marker, Payload, PeerFault, Producer, PushError, RecordBuffer, SlabConsumer, SlabProducer,
    Window,
};

/// Why a record was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No room now; [`Channel::block`] before sleeping.
    #[error("the channel is full")]
    Full,
    /// The peer broke the contract.
    #[error(transparent)]
    Fault(#[from] PeerFault),
}

impl From<PushError> for SendError {
    fn from(error: PushError) -> Self {
        match error {
            PushError::Full => Self::Full,
            PushError::Fault(fault) => Self::Fault(fault),
        }
    }
}

/// What a channel is made of: everything that came with the offer.
#[derive(Debug)]
pub struct Ends {
    /// The channel's memory.
    pub window: Window,
    /// How it is laid out.
    pub geometry: Geometry,
    /// The direction that we send on.
    pub sends: Direction,
    /// The peer's board and our place on it.
    pub peer_board: Window,
    /// See `peer_board`.
    pub place: Place,
    /// Wakes the peer.
    pub peer_doorbell: Doorbell,
}

/// One end of a channel.
#[derive(Debug)]
pub struct Channel {
    window: Window,
    producer: Producer<Window>,
    slab_out: SlabProducer<Window>,
    consumer: Consumer<Window>,
    slab_in: SlabConsumer<Window>,
    marker: Marker<Window>,
    peer_doorbell: Doorbell,
    flight: Flight,
    /// Records pushed since the peer was last looked after.
    unflushed: bool,
}

impl Channel {
    /// Our end.
    pub fn new(ends: Ends) -> Self {
        let (out, back) = (ends.geometry.direction(ends.sends), ends.geometry.direction(ends.sends.other()));
        let (window, slab) = (ends.window, ends.geometry.slab);
        let mut flight = Flight::default();
        flight.note(Event::Opened, 0);
        Self {
            producer: Producer::new(window.clone(), out),
            slab_out: SlabProducer::new(window.clone(), out, slab),
            consumer: Consumer::new(window.clone(), back),
            slab_in: SlabConsumer::new(window.clone(), back, slab),
            marker: Marker::new(ends.peer_board, ends.place),
            peer_doorbell: ends.peer_doorbell,
            window,
            flight,
            unflushed: false,
        }
    }

    /// Sends a record; an eager message's bytes are in `message`. The peer sees it at once if it looks; [`Self::flush`]
    /// after the last of several makes sure that it does.
    #[inline]
    pub fn send(&mut self, route: Route, record: &Record<'_>, message: &[u8]) -> Result<(), SendError> {
        isthmus_shm::step!("send");
        let emitted = record.emit(route);
        self.producer.push(emitted.kind, &emitted.words[..emitted.count], message)?;
        self.unflushed = true;
        Ok(())
    }

    /// Sends the last record of all and wakes the peer: there is room for it, however much else the peer has not taken.
    #[cold]
    pub fn send_last(&mut self, route: Route, record: &Record<'_>) -> Result<(), SendError> {
        let emitted = record.emit(route);
        self.producer.push_last(emitted.kind, &emitted.words[..emitted.count])?;
        self.unflushed = true;
        self.flush();
        Ok(())
    }

    /// Sends a message of at most 128 bytes, as [`Self::send`] does, and counts it.
    #[inline(always)]
    pub fn send_eager(&mut self, route: Route, tag: u64, message: &[u8]) -> Result<(), SendError> {
        isthmus_shm::step!("send_eager");
        self.producer.push(record::EAGER, &record::eager_head(route.emit(), tag), message)?;
        self.unflushed = true;
        self.producer.count(message.len() as u64);
        Ok(())
    }

    /// Counts a message as sent.
    #[inline]
    pub fn count(&mut self, bytes: u64) {
        self.producer.count(bytes);
    }

    /// Says why slower ways are taken, for the daemon's reports.
    #[inline]
    pub fn show_slower(&mut self, slower: Slower) {
        self.producer.show_slower(slower);
    }

    /// Wakes the peer if something was sent and it is parked.
    #[inline]
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.unflushed) && self.producer.wake() {
            self.notify();
        }
    }

    #[cold]
    fn notify(&mut self) {
        isthmus_shm::step!("notify");
        if self.marker.mark() {
            self.producer.count_ring();
            self.peer_doorbell.ring();
        }
    }

    /// Marks the peer's board without a record: look at this channel, or whatever our place means.
    pub fn nudge(&mut self) {
        self.notify();
    }

    /// Room for message bytes in the slab: at most `len`, at least `least`; None if there is none now.
    pub fn reserve(&mut self, least: u32, len: u32) -> Result<Option<Piece>, PeerFault> {
        self.slab_out.reserve(least, len)
    }

    /// Fills `piece` from byte `at` on.
    pub fn fill(&mut self, piece: Piece, at: u32, from: &[u8]) {
        assert!(u64::from(at) + from.len() as u64 <= u64::from(piece.len)); // Ours.
        self.window.copy_in(self.slab_out.byte(piece) + u64::from(at), from);
    }

    /// True if a record of any size fits now.
    pub fn has_room_for_record(&mut self) -> Result<bool, PeerFault> {
        self.producer.has_room()
    }

    /// True if a record of any size fits now, and `slab` bytes into the slab.
    pub fn has_room(&mut self, slab: u32) -> Result<bool, PeerFault> {
        Ok(self.producer.has_room()? && self.slab_out.has_room(slab)?)
    }

    /// Before sleeping for want of room: the peer will mark our board when it has made some. The caller looks again
    /// ([`Self::has_room`]) before it sleeps.
    pub fn block(&mut self) {
        self.flight.note(Event::Blocked, self.producer.counters().messages);
        self.producer.block();
    }

    /// Takes the next record.
    #[inline(always)]
    pub fn receive(&mut self, record: &mut RecordBuffer) -> Result<bool, PeerFault> {
        let came = self.consumer.pop(record)?;
        if self.consumer.owes() {
            self.publish_head();
        } else if !came && self.slab_in.is_ahead() {
            self.slab_in.publish();
        }
        Ok(came)
    }

    /// True if a record waits.
    #[inline]
    pub fn look(&self) -> Result<bool, PeerFault> {
        self.consumer.look()
    }

    /// True if a [`Self::receive`] would find nothing and have nothing to tell.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.consumer.is_quiet() && !self.slab_in.is_ahead()
    }

    /// Notes that the peer broke the contract.
    pub fn faulted(&mut self) {
        self.flight.note(Event::Faulted, self.producer.counters().messages);
    }

    /// Copies the bytes of a piece that a record named into `into`, from byte `at` of the piece on.
    pub fn copy_out(&self, piece: Piece, at: u32, into: &mut [u8]) -> Result<(), PeerFault> {
        let span = self.slab_in.span(piece)?;
        assert!(u64::from(at) + into.len() as u64 <= span.len()); // Ours: the caller sized `into` by the piece.
        self.window.copy_out(span.start() + u64::from(at), into);
        Ok(())
    }

    /// Gives a piece back to the peer, once it was copied.
    pub fn give_back(&mut self, piece: Piece) {
        if self.slab_in.give_back(piece) {
            self.slab_in.publish();
            self.publish_head();
        }
    }

    /// Tells the peer how far we are, and wakes it if it waits for room.
    #[inline(never)]
    fn publish_head(&mut self) {
        if self.consumer.publish() {
            self.notify();
        }
    }

    /// Stops looking for records; false if one came meanwhile.
    pub fn park(&mut self) -> Result<bool, PeerFault> {
        if self.slab_in.is_ahead() {
            self.slab_in.publish();
        }
        let parked = self.consumer.park()?;
        if parked {
            self.flight.note(Event::Parked, self.producer.counters().messages);
        }
        Ok(parked)
    }

    /// Looks for records again.
    pub fn unpark(&mut self) {
        self.flight.note(Event::Woken, self.producer.counters().messages);
        self.consumer.unpark();
    }

    /// Gives the pages of an idle slab back to the system, if more than `keep` bytes of it were used. True if it did.
    pub fn trim(&mut self, keep: u32) -> Result<bool, PeerFault> {
        let pages = self.slab_out.idle_pages(keep)?;
        if let Some((at, len)) = pages {
            self.window.give_back(at, len);
            self.flight.note(Event::Trimmed, self.producer.counters().messages);
        }
        Ok(pages.is_some())
    }

    /// Slab bytes in use since the last trim.
    pub fn dirty(&self) -> u32 {
        self.slab_out.dirty()
    }

    /// True if the peer has taken everything that was sent.
    pub fn is_drained(&mut self) -> bool {
        self.producer.is_drained()
    }

    /// What we sent.
    pub fn sent(&self) -> Counters {
        self.producer.counters()
    }

    /// The last events.
    pub fn flight(&mut self) -> &mut Flight {
        &mut self.flight
    }
}
