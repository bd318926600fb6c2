//! One channel, as one of its two ends sees it.
//!
//! ```text
//!   ours                                     theirs
//!   send ─► producer ══ ring ══► consumer ─► receive
//!           slab_out ══ slab ══► slab_in
//!   peer_ready_bit ─► their ready map, doorbell ─► their sleep
//! ```

use crate::flight_recorder::{ChannelEvent, FlightRecorder};
use isthmus_layout::channel::{ChannelGeometry, Direction, SlowPathReasons};
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::record::{self, Fragment, Record, Route};
use isthmus_platform::{Doorbell, Ring};
use isthmus_shm::{
    Consumer, Payload, PeerFault, PeerReadyBit, Producer, PushError, RecordBuffer, RingCounters, SharedMapping,
    SlabConsumer, SlabProducer,
};

/// Why a record was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelSendError {
    /// No room now; [`Channel::block`] before sleeping.
    #[error("the channel is full")]
    Full,
    /// The peer broke the contract.
    #[error(transparent)]
    Fault(#[from] PeerFault),
}

impl From<PushError> for ChannelSendError {
    fn from(error: PushError) -> Self {
        match error {
            PushError::Full => Self::Full,
            PushError::Fault(fault) => Self::Fault(fault),
        }
    }
}

/// What a channel is made of: everything that came with the offer.
#[derive(Debug)]
pub struct ChannelParts {
    /// The channel's memory.
    pub memory: SharedMapping,
    /// How it is laid out.
    pub geometry: ChannelGeometry,
    /// The direction that we send on.
    pub send_direction: Direction,
    /// The peer's ready map and our bit in it.
    pub peer_ready_map: SharedMapping,
    /// See `peer_ready_map`.
    pub ready_bit: ReadyBit,
    /// Wakes the peer.
    pub peer_doorbell: Doorbell,
}

/// One end of a channel.
#[derive(Debug)]
pub struct Channel {
    memory: SharedMapping,
    producer: Producer<SharedMapping>,
    slab_out: SlabProducer<SharedMapping>,
    consumer: Consumer<SharedMapping>,
    slab_in: SlabConsumer<SharedMapping>,
    peer_ready_bit: PeerReadyBit<SharedMapping>,
    peer_doorbell: Doorbell,
    flight_recorder: FlightRecorder,
    /// Records pushed since the peer was last looked after.
    needs_flush: bool,
}

impl Channel {
    /// Our end.
    pub fn new(parts: ChannelParts) -> Self {
        let (out, back) =
            (parts.geometry.direction(parts.send_direction), parts.geometry.direction(parts.send_direction.other()));
        let (memory, slab) = (parts.memory, parts.geometry.slab);
        let mut flight_recorder = FlightRecorder::default();
        flight_recorder.note(ChannelEvent::Opened, 0);
        Self {
            producer: Producer::new(memory.clone(), out),
            slab_out: SlabProducer::new(memory.clone(), out, slab),
            consumer: Consumer::new(memory.clone(), back),
            slab_in: SlabConsumer::new(memory.clone(), back, slab),
            peer_ready_bit: PeerReadyBit::new(parts.peer_ready_map, parts.ready_bit),
            peer_doorbell: parts.peer_doorbell,
            memory,
            flight_recorder,
            needs_flush: false,
        }
    }

    /// Sends a record; an eager message's bytes are in `message`. The peer sees it at once if it looks; [`Self::flush`]
    /// after the last of several makes sure that it does.
    #[inline]
    pub fn send(&mut self, route: Route, record: &Record<'_>, message: &[u8]) -> Result<(), ChannelSendError> {
        isthmus_shm::step!("send");
        let emitted = record.emit(route);
        self.producer.push(emitted.kind, &emitted.words[..emitted.count], message)?;
        self.needs_flush = true;
        Ok(())
    }

    /// Sends the last record of all and wakes the peer: there is room for it, however much else the peer has not taken.
    #[cold]
    pub fn send_final(&mut self, route: Route, record: &Record<'_>) -> Result<(), ChannelSendError> {
        let emitted = record.emit(route);
        self.producer.push_final(emitted.kind, &emitted.words[..emitted.count])?;
        self.needs_flush = true;
        self.flush();
        Ok(())
    }

    /// Sends a message of at most 128 bytes, as [`Self::send`] does, and counts it.
    #[inline(always)]
    pub fn send_eager(&mut self, route: Route, tag: u64, message: &[u8]) -> Result<(), ChannelSendError> {
        isthmus_shm::step!("send_eager");
        self.producer.push(record::EAGER, &record::eager_header(route.emit(), tag), message)?;
        self.needs_flush = true;
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
    pub fn publish_slow_path_reasons(&mut self, slow_path_reasons: SlowPathReasons) {
        self.producer.publish_slow_path_reasons(slow_path_reasons);
    }

    /// Wakes the peer if something was sent and it is parked.
    #[inline]
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.needs_flush) && self.producer.wake() {
            self.notify();
        }
    }

    #[cold]
    fn notify(&mut self) {
        isthmus_shm::step!("notify");
        if self.peer_ready_bit.set() {
            self.producer.count_doorbell();
            self.peer_doorbell.ring();
        }
    }

    /// Sets our bit in the peer's ready map without a record: the peer looks at this channel, or at whatever our bit means to it.
    pub fn signal_peer(&mut self) {
        self.notify();
    }

    /// Room for message bytes in the slab: at most `len`, at least `min_len`; None if there is none now.
    pub fn reserve(&mut self, min_len: u32, len: u32) -> Result<Option<Fragment>, PeerFault> {
        self.slab_out.reserve(min_len, len)
    }

    /// Fills `fragment` from byte `at` on.
    pub fn copy_in(&mut self, fragment: Fragment, at: u32, from: &[u8]) {
        assert!(u64::from(at) + from.len() as u64 <= u64::from(fragment.len)); // Ours.
        self.memory.copy_in(self.slab_out.region_offset(fragment) + u64::from(at), from);
    }

    /// True if a record of any size fits now.
    pub fn has_room_for_record(&mut self) -> Result<bool, PeerFault> {
        self.producer.has_room()
    }

    /// True if a record of any size fits now, and `slab` bytes into the slab.
    pub fn has_room(&mut self, slab: u32) -> Result<bool, PeerFault> {
        Ok(self.producer.has_room()? && self.slab_out.has_room(slab)?)
    }

    /// Before sleeping for want of room: the peer will set its bit in our ready map when it has made some. The caller looks again
    /// ([`Self::has_room`]) before it sleeps.
    pub fn block(&mut self) {
        self.flight_recorder.note(ChannelEvent::Blocked, self.producer.counters().messages);
        self.producer.block();
    }

    /// Takes the next record.
    #[inline(always)]
    pub fn receive(&mut self, record: &mut RecordBuffer) -> Result<bool, PeerFault> {
        let came = self.consumer.pop(record)?;
        if self.consumer.needs_publish() {
            self.publish_head();
        } else if !came && self.slab_in.has_unpublished() {
            self.slab_in.publish();
        }
        Ok(came)
    }

    /// True if a record waits.
    #[inline]
    pub fn has_record(&self) -> Result<bool, PeerFault> {
        self.consumer.has_record()
    }

    /// True if a [`Self::receive`] would find nothing and have nothing to tell.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.consumer.is_idle() && !self.slab_in.has_unpublished()
    }

    /// Notes that the peer broke the contract.
    pub fn record_fault(&mut self) {
        self.flight_recorder.note(ChannelEvent::Faulted, self.producer.counters().messages);
    }

    /// Copies the bytes of a fragment that a record named into `into`, from byte `at` of the fragment on.
    pub fn copy_out(&self, fragment: Fragment, at: u32, into: &mut [u8]) -> Result<(), PeerFault> {
        let span = self.slab_in.span(fragment)?;
        assert!(u64::from(at) + into.len() as u64 <= span.len()); // Ours: the caller sized `into` by the fragment.
        self.memory.copy_out(span.start() + u64::from(at), into);
        Ok(())
    }

    /// Gives a fragment back to the peer, once it was copied.
    pub fn release(&mut self, fragment: Fragment) {
        if self.slab_in.release(fragment) {
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
        if self.slab_in.has_unpublished() {
            self.slab_in.publish();
        }
        let parked = self.consumer.park()?;
        if parked {
            self.flight_recorder.note(ChannelEvent::Parked, self.producer.counters().messages);
        }
        Ok(parked)
    }

    /// Looks for records again.
    pub fn unpark(&mut self) {
        self.flight_recorder.note(ChannelEvent::Woken, self.producer.counters().messages);
        self.consumer.unpark();
    }

    /// Gives the pages of an idle slab back to the system, if more than `keep` bytes of it were used. True if it did.
    pub fn trim(&mut self, keep: u32) -> Result<bool, PeerFault> {
        let pages = self.slab_out.idle_pages(keep)?;
        if let Some((at, len)) = pages {
            self.memory.discard_pages(at, len);
            self.flight_recorder.note(ChannelEvent::Trimmed, self.producer.counters().messages);
        }
        Ok(pages.is_some())
    }

    /// Slab bytes in use since the last trim.
    pub fn dirty_bytes(&self) -> u32 {
        self.slab_out.dirty_bytes()
    }

    /// True if the peer has taken everything that was sent.
    pub fn is_drained(&mut self) -> bool {
        self.producer.is_drained()
    }

    /// What we sent.
    pub fn sent(&self) -> RingCounters {
        self.producer.counters()
    }

    /// The last events.
    pub fn flight_recorder(&mut self) -> &mut FlightRecorder {
        &mut self.flight_recorder
    }
}
