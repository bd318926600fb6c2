//! The send path: putting records into channels and the domain ring.
//!
//! A message goes by its length: up to 128 bytes in the record, up to 32 KiB in fragments through the slab, above as an announcement
//! ([`rendezvous`](crate::rendezvous)). A message without room waits in its peer's queue and is tried again at each poll.

use crate::core::Core;
use crate::error::Refusal;
use crate::matcher::{Completion, Envelope, Matcher, Outcome, Token, Unexpected, UnexpectedState};
use crate::peer::{ChannelState, EndpointPair, Outgoing, Path, PeerIndex};
use isthmus_channel::ChannelSendError;
use isthmus_layout::EndpointAddress;
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::limits::{INLINE_BYTES_MAX, MESSAGE_BYTES_MAX, SLAB_MESSAGE_BYTES_MAX};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route, Serial};
use isthmus_shm::{Buffer, PeerFault};

/// Bytes of a fragment of a message up to 32 KiB, at least and at most: half of the message, so that the receiver copies one out while
/// we copy the other one in, and neither pays for more records than that needs. (Measured: quarters are slower at every length.)
const FRAGMENT_BYTES_MIN: usize = 4 << 10;
/// See [`FRAGMENT_BYTES_MIN`].
const FRAGMENT_BYTES_MAX: usize = 16 << 10;

/// Bytes of a fragment of a longer message.
const STREAM_FRAGMENT_BYTES: u32 = 16 << 10;

/// The number of fragments of a long message sent before other messages are served.
const STREAM_BATCH: usize = 8;

/// Why sending stopped.
pub(crate) enum SendStop {
    /// No room now.
    Full,
    /// The path does not exist. A notification of the daemon decides about the waiting messages.
    NoPath,
    /// The peer broke the contract.
    Fault(PeerFault),
}

impl From<ChannelSendError> for SendStop {
    fn from(error: ChannelSendError) -> Self {
        match error {
            ChannelSendError::Full => Self::Full,
            ChannelSendError::Fault(fault) => Self::Fault(fault),
        }
    }
}

impl From<PeerFault> for SendStop {
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
        let (Path::Channel(key), false) = (peer.path_out, peer.has_work()) else { return false };
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
        let endpoints = EndpointPair { from, to: to.endpoint };
        let wanted = buffer.len();
        if to.domain == self.identity.domain {
            let serial = Serial(0);
            self.send_to_self(Outgoing {
                token,
                endpoints,
                tag,
                serial,
                buffer,
                sync,
                wanted,
                sent: 0,
                region_use: None,
            });
            return Ok(());
        }
        let at = self.peer(to.domain);
        if matches!(self.peers[at].channel_state, ChannelState::Absent) {
            self.request_channel(at);
        }
        let serial = self.next_serial();
        let message = Outgoing { token, endpoints, tag, serial, buffer, sync, wanted, sent: 0, region_use: None };
        let peer = &mut self.peers[at];
        let first = !peer.has_work();
        peer.queue.push_back(message);
        if first {
            self.advance(at);
        } else {
            self.mark_pending(at);
        }
        Ok(())
    }

    /// Sends queued messages to a peer while there is room.
    #[inline]
    pub(crate) fn advance(&mut self, at: PeerIndex) {
        let stop = self.try_advance(at);
        self.flush(at);
        match stop {
            Ok(()) => {}
            Err(SendStop::Full | SendStop::NoPath) => self.mark_pending(at),
            Err(SendStop::Fault(fault)) => self.peer_fault(at, fault),
        }
    }

    fn try_advance(&mut self, at: PeerIndex) -> Result<(), SendStop> {
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

    /// Switches from the old path to the new one.
    fn advance_switch(&mut self, at: PeerIndex) -> Result<(), SendStop> {
        let peer = &mut self.peers[at];
        let Some(new) = peer.switch else { return Ok(()) };
        let unused = EndpointIndex::new(0).expect("the first endpoint is one");
        let mut send_path = peer.send_path(&mut self.inbox, self.ring).ok_or(SendStop::NoPath)?;
        send_path.send(EndpointPair { from: unused, to: unused }, &Record::Switch, &[], 0)?;
        send_path.channel.flush();
        peer.switch = None;
        peer.path_out = new;
        peer.epoch_out = peer.epoch_out.wrapping_add(1);
        if new == Path::Daemon {
            self.close_channel_if_unused(at);
        }
        Ok(())
    }

    fn advance_urgent(&mut self, at: PeerIndex) -> Result<(), SendStop> {
        let peer = &mut self.peers[at];
        while let Some((endpoints, record)) = peer.urgent.front().copied() {
            let mut send_path = peer.send_path(&mut self.inbox, self.ring).ok_or(SendStop::NoPath)?;
            send_path.send(endpoints, &record, &[], 0)?;
            peer.urgent.pop_front();
        }
        Ok(())
    }

    #[inline]
    fn advance_message(&mut self, at: PeerIndex, message: Outgoing) -> Result<(), (SendStop, Outgoing)> {
        match message.buffer.len() as u64 {
            _ if message.sync => self.announce(at, message),
            len if len <= INLINE_BYTES_MAX as u64 => self.send_inline(at, message),
            len if len <= SLAB_MESSAGE_BYTES_MAX => self.send_fragments(at, message),
            _ => self.announce(at, message),
        }
    }

    #[inline]
    fn send_inline(&mut self, at: PeerIndex, message: Outgoing) -> Result<(), (SendStop, Outgoing)> {
        let bytes = message.buffer.as_slice();
        let len = bytes.len() as u32;
        let Some(mut send_path) = self.peers[at].send_path(&mut self.inbox, self.ring) else {
            return Err((SendStop::NoPath, message));
        };
        let record = Record::Eager { tag: message.tag, len, words: &[] };
        if let Err(error) = send_path.send(message.endpoints, &record, bytes, len) {
            return Err((error.into(), message));
        }
        send_path.channel.count(u64::from(len));
        if let Some(message) = send_path.message_sent(message, true) {
            self.complete_send(message);
        }
        Ok(())
    }

    fn send_fragments(&mut self, at: PeerIndex, mut message: Outgoing) -> Result<(), (SendStop, Outgoing)> {
        let len = message.buffer.len();
        let fragment_bytes = (len / 2).next_multiple_of(64).clamp(FRAGMENT_BYTES_MIN, FRAGMENT_BYTES_MAX) as u32;
        while message.sent < len {
            if let Err(stop) = self.send_fragment(at, &mut message, fragment_bytes) {
                return Err((stop, message));
            }
        }
        self.finish_fragmented(at, message, true);
        Ok(())
    }

    /// Sends the next fragment of a message.
    fn send_fragment(&mut self, at: PeerIndex, message: &mut Outgoing, fragment_bytes: u32) -> Result<(), SendStop> {
        let bytes = &message.buffer.as_slice()[..message.wanted];
        let left = u32::try_from(bytes.len() - message.sent).unwrap_or(u32::MAX).min(fragment_bytes);
        let mut send_path = self.peers[at].send_path(&mut self.inbox, self.ring).ok_or(SendStop::NoPath)?;
        if !send_path.channel.has_room_for_record()? {
            return Err(SendStop::Full);
        }
        let Some(fragment) = send_path.reserve(left, left)? else { return Err(SendStop::Full) };
        let from = &bytes[message.sent..message.sent + fragment.len as usize];
        send_path.channel.copy_in(fragment, 0, from);
        let (serial, tag) = (message.serial, message.tag);
        let starts = !message.sync && message.buffer.len() as u64 <= SLAB_MESSAGE_BYTES_MAX;
        let record = match message.sent {
            0 if starts => Record::FirstFragment { tag, len: bytes.len() as u32, serial, fragment },
            _ => Record::NextFragment { serial, fragment },
        };
        send_path.send(message.endpoints, &record, &[], fragment.len)?;
        message.sent += fragment.len as usize;
        self.dirty = true;
        Ok(())
    }

    /// `whole` is true if the receiver did not have to ask for the message.
    fn finish_fragmented(&mut self, at: PeerIndex, message: Outgoing, whole: bool) {
        let len = message.wanted as u64;
        if let Some(mut send_path) = self.peers[at].send_path(&mut self.inbox, self.ring) {
            send_path.channel.count(len);
            if let Some(message) = send_path.message_sent(message, whole) {
                self.complete_send(message);
            }
        }
    }

    fn advance_streams(&mut self, at: PeerIndex) -> Result<(), SendStop> {
        while let Some(mut message) = self.peers[at].streams.pop_front() {
            let mut outcome = Ok(());
            for _ in 0..STREAM_BATCH {
                if message.sent == message.wanted || outcome.is_err() {
                    break;
                }
                outcome = self.send_fragment(at, &mut message, STREAM_FRAGMENT_BYTES);
                self.flush(at);
            }
            if message.sent == message.wanted {
                self.finish_fragmented(at, message, false);
            } else if outcome.is_err() {
                self.peers[at].streams.push_front(message);
            } else {
                self.peers[at].streams.push_back(message);
            }
            outcome?;
        }
        Ok(())
    }

    /// Completes a send.
    #[inline]
    pub(crate) fn complete_send(&mut self, message: Outgoing) {
        let taken = message.wanted as u64;
        self.end_send(message, Outcome::Sent { taken });
    }

    /// Fails a send.
    pub(crate) fn fail_send(&mut self, message: Outgoing, reason: Reason) {
        self.end_send(message, Outcome::Failed(reason));
    }

    #[inline]
    fn end_send(&mut self, message: Outgoing, outcome: Outcome) {
        let Outgoing { token, endpoints, buffer, .. } = message;
        self.matcher.complete(Completion { token, endpoint: endpoints.from, buffer, outcome });
    }

    /// Sends a short record before everything else that waits for this peer.
    pub(crate) fn send_urgent(&mut self, at: PeerIndex, endpoints: EndpointPair, record: Record<'static>) {
        self.peers[at].urgent.push_back((endpoints, record));
        self.advance(at);
    }

    /// Marks a peer with queued messages, so that the next poll serves it.
    pub(crate) fn mark_pending(&mut self, at: PeerIndex) {
        if !std::mem::replace(&mut self.peers[at].is_pending, true) {
            self.pending_peers.push(at);
        }
    }

    #[inline]
    pub(crate) fn flush(&mut self, at: PeerIndex) {
        if let Some(send_path) = self.peers[at].send_path(&mut self.inbox, self.ring) {
            send_path.channel.flush();
        }
    }

    fn send_to_self(&mut self, message: Outgoing) {
        if !self.endpoints.is_open(message.endpoints.to) {
            return self.fail_send(message, Reason::EndpointClosed);
        }
        let from = EndpointAddress { domain: self.identity.domain, endpoint: message.endpoints.from };
        let to = message.endpoints.to;
        let envelope = Envelope { from, to, tag: message.tag, len: message.buffer.len() as u64 };
        if let Some(mut posted) = self.matcher.match_message(&envelope) {
            let len = posted.buffer.len().min(message.buffer.len());
            posted.buffer.as_mut_slice()[..len].copy_from_slice(&message.buffer.as_slice()[..len]);
            self.received(posted, &envelope);
        } else {
            let state = UnexpectedState::Whole(message.buffer.as_slice().to_vec());
            self.matcher.store_unexpected(Unexpected { envelope, state });
        }
        self.complete_send(message);
    }
}
