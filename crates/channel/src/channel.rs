//! One end of a channel.
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
    AccessCounters, Consumer, Payload, PeerFault, PeerReadyBit, Producer, PushError, RecordBuffer, RingCounters,
    SharedMapping, SlabConsumer, SlabProducer,
};

/// The reason that a record was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelSendError {
    /// No room now. Call [`Channel::block`] before sleeping.
    #[error("the channel is full")]
    Full,
    /// The peer violated the protocol.
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

/// The parts of a channel, as received with the channel offer.
#[derive(Debug)]
pub struct ChannelParts {
    /// The channel's memory.
    pub memory: SharedMapping,
    /// The layout of that memory.
    pub geometry: ChannelGeometry,
    /// The direction in which this end sends.
    pub send_direction: Direction,
    /// The peer's ready map.
    pub peer_ready_map: SharedMapping,
    /// This channel's bit in `peer_ready_map`.
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
    /// Records were pushed since the last [`Self::flush`].
    needs_flush: bool,
}

impl Channel {
    /// Creates this side's end of the channel.
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

    /// Sends a record; `message` holds the bytes of an eager message. A peer that polls sees the record at once.
    /// Call [`Self::flush`] after the last of several records, because a parked peer has to be woken.
    #[inline]
    pub fn send(&mut self, route: Route, record: &Record<'_>, message: &[u8]) -> Result<(), ChannelSendError> {
        isthmus_shm::step!("send");
        let emitted = record.emit(route);
        self.producer.push(emitted.kind, &emitted.words[..emitted.count], message)?;
        self.needs_flush = true;
        Ok(())
    }

    /// Sends the last record of the channel and wakes the peer. Room for this record is always left, however full the ring is.
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

    /// Publishes why slower paths are taken, for the daemon's reports.
    #[inline]
    pub fn publish_slow_path_reasons(&mut self, slow_path_reasons: SlowPathReasons) {
        self.producer.publish_slow_path_reasons(slow_path_reasons);
    }

    /// Publishes counts of accesses to memory, for the daemon's reports.
    pub fn publish_accesses(&mut self, counters: AccessCounters) {
        self.producer.publish_accesses(counters);
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

    /// Sets our bit in the peer's ready map without sending a record. The peer then checks this channel, or whatever it uses the bit for.
    pub fn signal_peer(&mut self) {
        self.notify();
    }

    /// Reserves at least `min_len` and at most `len` bytes of the slab for a message. Returns None if there is no room now.
    pub fn reserve(&mut self, min_len: u32, len: u32) -> Result<Option<Fragment>, PeerFault> {
        self.slab_out.reserve(min_len, len)
    }

    /// Copies `from` into `fragment`, starting at byte `at` of the fragment.
    pub fn copy_in(&mut self, fragment: Fragment, at: u32, from: &[u8]) {
        assert!(u64::from(at) + from.len() as u64 <= u64::from(fragment.len)); // Ours.
        self.memory.copy_in(self.slab_out.region_offset(fragment) + u64::from(at), from);
    }

    /// Returns true if a record of any size fits now.
    pub fn has_room_for_record(&mut self) -> Result<bool, PeerFault> {
        self.producer.has_room()
    }

    /// Returns true if a record of any size fits into the ring now, and `slab` bytes fit into the slab.
    pub fn has_room(&mut self, slab: u32) -> Result<bool, PeerFault> {
        Ok(self.producer.has_room()? && self.slab_out.has_room(slab)?)
    }

    /// Asks the peer to set its bit in our ready map once it has made room. Called before sleeping on a full channel.
    /// The caller checks [`Self::has_room`] again before it sleeps, because the peer may have made room meanwhile.
    pub fn block(&mut self) {
        self.flight_recorder.note(ChannelEvent::Blocked, self.producer.counters().messages);
        self.producer.block();
    }

    /// Takes the next record. Returns false if there is none.
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

    /// Returns true if a record waits.
    #[inline]
    pub fn has_record(&self) -> Result<bool, PeerFault> {
        self.consumer.has_record()
    }

    /// Returns true if [`Self::receive`] would find no record and publish nothing.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.consumer.is_idle() && !self.slab_in.has_unpublished()
    }

    /// Records in the flight recorder that the peer violated the protocol.
    pub fn record_fault(&mut self) {
        self.flight_recorder.note(ChannelEvent::Faulted, self.producer.counters().messages);
    }

    /// Copies bytes of a fragment that a record named into `into`, starting at byte `at` of the fragment.
    pub fn copy_out(&self, fragment: Fragment, at: u32, into: &mut [u8]) -> Result<(), PeerFault> {
        let span = self.slab_in.span(fragment)?;
        assert!(u64::from(at) + into.len() as u64 <= span.len()); // Ours: the caller sized `into` by the fragment.
        self.memory.copy_out(span.start() + u64::from(at), into);
        Ok(())
    }

    /// Returns a fragment to the peer after its bytes were copied.
    pub fn release(&mut self, fragment: Fragment) {
        if self.slab_in.release(fragment) {
            self.slab_in.publish();
            self.publish_head();
        }
    }

    /// Publishes how far this side has consumed, and wakes the peer if it waits for room.
    #[inline(never)]
    fn publish_head(&mut self) {
        if self.consumer.publish() {
            self.notify();
        }
    }

    /// Stops polling for records. Returns false if a record arrived meanwhile.
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

    /// Resumes polling for records.
    pub fn unpark(&mut self) {
        self.flight_recorder.note(ChannelEvent::Woken, self.producer.counters().messages);
        self.consumer.unpark();
    }

    /// Returns the pages of an idle slab to the system if more than `keep` bytes of it were used. Returns true if it did.
    pub fn trim(&mut self, keep: u32) -> Result<bool, PeerFault> {
        let pages = self.slab_out.idle_pages(keep)?;
        if let Some((at, len)) = pages {
            self.memory.discard_pages(at, len);
            self.flight_recorder.note(ChannelEvent::Trimmed, self.producer.counters().messages);
        }
        Ok(pages.is_some())
    }

    /// Number of slab bytes used since the last trim.
    pub fn dirty_bytes(&self) -> u32 {
        self.slab_out.dirty_bytes()
    }

    /// Returns true if the peer has taken everything that was sent.
    pub fn is_drained(&mut self) -> bool {
        self.producer.is_drained()
    }

    /// Counters of the records and bytes sent.
    pub fn sent(&self) -> RingCounters {
        self.producer.counters()
    }

    /// The flight recorder of this channel.
    pub fn flight_recorder(&mut self) -> &mut FlightRecorder {
        &mut self.flight_recorder
    }
}

#[cfg(test)]
mod tests;
