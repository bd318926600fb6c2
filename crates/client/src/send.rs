//! Records out.
//!
//! A message goes by its length: up to 128 bytes in the record, up to 32 KiB in pieces through the slab, above as an announcement
//! ([`large`](crate::large)). What finds no room waits in its peer's queue and is taken up again at each poll.

use crate::core::Core;
use crate::error::Refusal;
use crate::matcher::{Completion, Envelope, Matcher, Outcome, Token, Unexpected, UnexpectedState};
use crate::peer::{Between, Making, Outgoing, Path, PeerIndex};
use isthmus_channel::SendError;
use isthmus_layout::EndpointAddress;
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::limits::{INLINE_BYTES_MAX, MESSAGE_BYTES_MAX, SLAB_MESSAGE_BYTES_MAX};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route, Serial};
use isthmus_shm::{Buffer, PeerFault};

/// Bytes of a piece of a message up to 32 KiB, at least and at most: half of the message, so that the receiver copies one out while
/// we copy the other one in, and neither pays for more records than that needs. (Measured: quarters are slower at every length.)
const PIECE_BYTES_MIN: usize = 4 << 10;
/// See [`PIECE_BYTES_MIN`].
const PIECE_BYTES_MAX: usize = 16 << 10;

/// Bytes of a piece of a longer message.
const STREAM_PIECE_BYTES: u32 = 16 << 10;

/// Pieces of a long message sent in one go, before others have their turn.
const STREAM_BATCH: usize = 8;

/// Why sending stopped.
pub(crate) enum Stop {
    /// No room now.
    Full,
    /// The path is not there; what waits is looked after when the daemon says what became of it.
    NoPath,
    /// The peer broke the contract.
    Fault(PeerFault),
}

impl From<SendError> for Stop {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Full => Self::Full,
            SendError::Fault(fault) => Self::Fault(fault),
        }
    }
}

impl From<PeerFault> for Stop {
    fn from(fault: PeerFault) -> Self {
        Self::Fault(fault)
    }
}

impl<M: Matcher> Core<M> {
    /// Sends a short message by the channel if nothing stands in the way. False for everything else, errors included:
    /// [`Self::post_send`] deals with it.
    #[inline(always)]
    pub(crate) fn send_now(&mut self, from: EndpointIndex, to: EndpointAddress, tag: u64, bytes: &[u8]) -> bool {
        if bytes.len() > INLINE_BYTES_MAX || !self.endpoints.is_open(from) {
            return false;
        }
        let Some(at) = self.peers.find(to.domain) else { return false };
        let peer = &mut self.peers[at];
        let (Path::Channel(key), false) = (peer.out, peer.has_work()) else { return false };
        let route = Route { from, to: to.endpoint, epoch: peer.epoch_out, peer: None };
        let Some(channel) = self.inbox.channel(key) else { return false };
        isthmus_shm::step!("send_now");
        if channel.send_eager(route, tag, bytes).is_err() {
            return false;
        }
        channel.flush();
        true
    }

    /// Sends a message; see [`Domain::send`](crate::Domain::send).
    pub(crate) fn post_send(
        &mut self,
        token: Token,
        from: EndpointIndex,
        to: EndpointAddress,
        tag: u64,
        buffer: Buffer,
        sync: bool,
    ) -> Result<(), (Refusal, Buffer)> {
        if !self.endpoints.is_open(from) {
            return Err((Refusal::new(Reason::EndpointClosed, from.to_string()), buffer));
        }
        if buffer.len() as u64 > MESSAGE_BYTES_MAX {
            return Err((Refusal::new(Reason::MessageTooLong, format!("{} bytes", buffer.len())), buffer));
        }
        let between = Between { from, to: to.endpoint };
        let wanted = buffer.len();
        if to.domain == self.me.domain {
            let serial = Serial(0);
            self.send_to_ourselves(Outgoing { token, between, tag, serial, buffer, sync, wanted, sent: 0, held: None });
            return Ok(());
        }
        let at = self.peer(to.domain);
        if matches!(self.peers[at].making, Making::Not) {
            self.ask_for_channel(at);
        }
        let serial = self.next_serial();
        let message = Outgoing { token, between, tag, serial, buffer, sync, wanted, sent: 0, held: None };
        let peer = &mut self.peers[at];
        let first = !peer.has_work();
        peer.queue.push_back(message);
        if first {
            self.advance(at);
        } else {
            self.list(at);
        }
        Ok(())
    }

    /// Sends what waits for a peer, as far as there is room.
    #[inline]
    pub(crate) fn advance(&mut self, at: PeerIndex) {
        let stop = self.try_advance(at);
        self.flush(at);
        match stop {
            Ok(()) => {}
            Err(Stop::Full | Stop::NoPath) => self.list(at),
            Err(Stop::Fault(fault)) => self.peer_fault(at, fault),
        }
    }

    fn try_advance(&mut self, at: PeerIndex) -> Result<(), Stop> {
        self.advance_switch(at)?;
        self.advance_urgent(at)?;
        while let Some(message) = self.peers[at].queue.pop_front() {
            match self.advance_message(at, message) {
                Ok(()) => {}
                Err((stop, message)) => {
                    self.peers[at].queue.push_front(message);
                    return Err(stop);
                }
            }
        }
        self.advance_streams(at)
    }

    /// Leaves the old path for the new one.
    fn advance_switch(&mut self, at: PeerIndex) -> Result<(), Stop> {
        let peer = &mut self.peers[at];
        let Some(new) = peer.switch else { return Ok(()) };
        let nobody = EndpointIndex::new(0).expect("the first endpoint is one");
        let mut lane = peer.lane(&mut self.inbox, self.ring).ok_or(Stop::NoPath)?;
        lane.send(Between { from: nobody, to: nobody }, &Record::Switch, &[], 0)?;
        lane.channel.flush();
        peer.switch = None;
        peer.out = new;
        peer.epoch_out = peer.epoch_out.wrapping_add(1);
        if new == Path::Ordinary {
            self.maybe_close_channel(at);
        }
        Ok(())
    }

    fn advance_urgent(&mut self, at: PeerIndex) -> Result<(), Stop> {
        let peer = &mut self.peers[at];
        while let Some((between, record)) = peer.urgent.front().copied() {
            let mut lane = peer.lane(&mut self.inbox, self.ring).ok_or(Stop::NoPath)?;
            lane.send(between, &record, &[], 0)?;
            peer.urgent.pop_front();
        }
        Ok(())
    }

    #[inline]
    fn advance_message(&mut self, at: PeerIndex, message: Outgoing) -> Result<(), (Stop, Outgoing)> {
        match message.buffer.len() as u64 {
            _ if message.sync => self.announce(at, message),
            len if len <= INLINE_BYTES_MAX as u64 => self.send_inline(at, message),
            len if len <= SLAB_MESSAGE_BYTES_MAX => self.send_pieces(at, message),
            _ => self.announce(at, message),
        }
    }

    #[inline]
    fn send_inline(&mut self, at: PeerIndex, message: Outgoing) -> Result<(), (Stop, Outgoing)> {
        let bytes = message.buffer.as_slice();
        let len = bytes.len() as u32;
        let Some(mut lane) = self.peers[at].lane(&mut self.inbox, self.ring) else {
            return Err((Stop::NoPath, message));
        };
        let record = Record::Eager { tag: message.tag, len, words: &[] };
        if let Err(error) = lane.send(message.between, &record, bytes, len) {
            return Err((error.into(), message));
        }
        lane.channel.count(u64::from(len));
        if let Some(message) = lane.finish(message, true) {
            self.sent(message);
        }
        Ok(())
    }

    fn send_pieces(&mut self, at: PeerIndex, mut message: Outgoing) -> Result<(), (Stop, Outgoing)> {
        let len = message.buffer.len();
        let piece_bytes = (len / 2).next_multiple_of(64).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX) as u32;
        while message.sent < len {
            if let Err(stop) = self.send_piece(at, &mut message, piece_bytes) {
                return Err((stop, message));
            }
        }
        self.sent_in_pieces(at, message, true);
        Ok(())
    }

    /// Sends the next piece of a message.
    fn send_piece(&mut self, at: PeerIndex, message: &mut Outgoing, piece_bytes: u32) -> Result<(), Stop> {
        let bytes = &message.buffer.as_slice()[..message.wanted];
        let left = u32::try_from(bytes.len() - message.sent).unwrap_or(u32::MAX).min(piece_bytes);
        let mut lane = self.peers[at].lane(&mut self.inbox, self.ring).ok_or(Stop::NoPath)?;
        if !lane.channel.has_room_for_record()? {
            return Err(Stop::Full);
        }
        let Some(piece) = lane.reserve(left, left)? else { return Err(Stop::Full) };
        let from = &bytes[message.sent..message.sent + piece.len as usize];
        lane.channel.fill(piece, 0, from);
        let (serial, tag) = (message.serial, message.tag);
        let starts = !message.sync && message.buffer.len() as u64 <= SLAB_MESSAGE_BYTES_MAX;
        let record = match message.sent {
            0 if starts => Record::Start { tag, len: bytes.len() as u32, serial, piece },
            _ => Record::More { serial, piece },
        };
        lane.send(message.between, &record, &[], piece.len)?;
        message.sent += piece.len as usize;
        self.dirty = true;
        Ok(())
    }

    /// `whole`: nobody had to ask for it.
    fn sent_in_pieces(&mut self, at: PeerIndex, message: Outgoing, whole: bool) {
        let len = message.wanted as u64;
        if let Some(mut lane) = self.peers[at].lane(&mut self.inbox, self.ring) {
            lane.channel.count(len);
            if let Some(message) = lane.finish(message, whole) {
                self.sent(message);
            }
        }
    }

    fn advance_streams(&mut self, at: PeerIndex) -> Result<(), Stop> {
        while let Some(mut message) = self.peers[at].streams.pop_front() {
            let mut outcome = Ok(());
            for _ in 0..STREAM_BATCH {
                if message.sent == message.wanted || outcome.is_err() {
                    break;
                }
                outcome = self.send_piece(at, &mut message, STREAM_PIECE_BYTES);
                self.flush(at);
            }
            if message.sent == message.wanted {
                self.sent_in_pieces(at, message, false);
            } else if outcome.is_err() {
                self.peers[at].streams.push_front(message);
            } else {
                self.peers[at].streams.push_back(message);
            }
            outcome?;
        }
        Ok(())
    }

    /// A send is over.
    #[inline]
    pub(crate) fn sent(&mut self, message: Outgoing) {
        let taken = message.wanted as u64;
        self.end_send(message, Outcome::Sent { taken });
    }

    /// A send did not work.
    pub(crate) fn failed(&mut self, message: Outgoing, reason: Reason) {
        self.end_send(message, Outcome::Failed(reason));
    }

    #[inline]
    fn end_send(&mut self, message: Outgoing, outcome: Outcome) {
        let Outgoing { token, between, buffer, .. } = message;
        self.matcher.complete(Completion { token, endpoint: between.from, buffer, outcome });
    }

    /// Sends a short record before everything else that waits for this peer.
    pub(crate) fn urgent(&mut self, at: PeerIndex, between: Between, record: Record<'static>) {
        self.peers[at].urgent.push_back((between, record));
        self.advance(at);
    }

    /// Makes sure that a peer with something to send is looked after at the next poll.
    pub(crate) fn list(&mut self, at: PeerIndex) {
        if !std::mem::replace(&mut self.peers[at].listed, true) {
            self.listed.push(at);
        }
    }

    #[inline]
    pub(crate) fn flush(&mut self, at: PeerIndex) {
        if let Some(lane) = self.peers[at].lane(&mut self.inbox, self.ring) {
            lane.channel.flush();
        }
    }

    fn send_to_ourselves(&mut self, message: Outgoing) {
        if !self.endpoints.is_open(message.between.to) {
            return self.failed(message, Reason::EndpointClosed);
        }
        let from = EndpointAddress { domain: self.me.domain, endpoint: message.between.from };
        let to = message.between.to;
        let envelope = Envelope { from, to, tag: message.tag, len: message.buffer.len() as u64 };
        if let Some(mut posted) = self.matcher.take(&envelope) {
            let len = posted.buffer.len().min(message.buffer.len());
            posted.buffer.as_mut_slice()[..len].copy_from_slice(&message.buffer.as_slice()[..len]);
            self.received(posted, &envelope);
        } else {
            let state = UnexpectedState::Whole(message.buffer.as_slice().to_vec());
            self.matcher.hold(Unexpected { envelope, state });
        }
        self.sent(message);
    }
}
