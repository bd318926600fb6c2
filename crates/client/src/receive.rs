//! The receive path: handling records of channels and of the daemon path.

use crate::core::Core;
use crate::matcher::{Announced, Envelope, Matcher, Posted, Unexpected, UnexpectedState};
use crate::payload_words::copy_words;
use crate::peer::{ChannelState, Destination, EndpointPair, Incoming, Path, Peer, PeerIndex};
use isthmus_channel::{Channel, ChannelKey, Polled};
use isthmus_layout::DomainId;
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::limits::{DAEMON_PATH_CREDIT_BYTES, DAEMON_PATH_RECORD_COST, RING_CELLS, SLAB_MESSAGE_BYTES_MAX};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{
    Fragment, MalformedRecord, MappablePages, ReceiveOutcome, Record, Route, Serial, parse_eager,
};
use isthmus_shm::{PeerFault, RecordBuffer};

/// The credit of a remote peer that is returned together. The daemon gives this domain more than ten times as much.
const REMOTE_CREDIT_BATCH_BYTES: u32 = DAEMON_PATH_CREDIT_BYTES;

/// The maximum number of short messages taken from a channel before other channels are polled.
const EAGER_RUN_MAX: usize = 8;

/// The maximum number of announced messages of one peer that wait for a receive, with their edges in this domain's memory.
const EDGES_MAX: u32 = 2 * 4096;

/// A peer broke the contract.
#[derive(Debug)]
pub(crate) enum Violation {
    /// A fault in shared memory.
    Fault(PeerFault),
    /// A record that is not allowed here.
    UnexpectedRecord,
}

impl From<PeerFault> for Violation {
    fn from(fault: PeerFault) -> Self {
        Self::Fault(fault)
    }
}

impl From<MalformedRecord> for Violation {
    fn from(malformed: MalformedRecord) -> Self {
        Self::Fault(malformed.into())
    }
}

#[inline(always)]
fn eager_envelope(peer: &Peer, route: &Route, tag: u64, len: u32) -> Envelope {
    Envelope { from: peer.address(route.from), to: route.to, tag, len: u64::from(len) }
}

impl<M: Matcher> Core<M> {
    #[inline(always)]
    pub(crate) fn handle_polled(&mut self, polled: Polled, record: &RecordBuffer) {
        match polled {
            Polled::Record(key) => self.handle_record(key, record),
            Polled::Nothing => {}
            Polled::Control(..) => self.process_notifications(),
            Polled::Fault(key, fault) => self.channel_fault(key, fault),
        }
    }

    #[inline(always)]
    fn handle_record(&mut self, key: ChannelKey, record: &RecordBuffer) {
        isthmus_shm::step!("handle_record");
        if let Some((envelope, words)) = self.peek_eager(key, record) {
            return self.match_eager(envelope, words);
        }
        self.handle_any_record(key, record);
    }

    /// Receives the short messages that follow a record in its channel, while the matcher wants more. The peer is looked up once for
    /// all of them. A record of another kind ends the run and is handled as usual. Returns the number of records taken.
    #[inline(always)]
    pub(crate) fn receive_eager_run(&mut self, key: ChannelKey, record: &mut RecordBuffer) -> usize {
        if self.matcher.is_busy() {
            return 0;
        }
        let Some(at) = self.peer_of_channel(key) else { return 0 };
        let Self { inbox, peers, matcher, endpoints, .. } = self;
        let (peer, Some(channel)) = (&peers[at], inbox.channel(key)) else { return 0 };
        if peer.path_out == Path::Daemon || peer.path_in == Path::Daemon {
            return 0;
        }
        let mut taken = 0;
        while taken < EAGER_RUN_MAX && !matcher.is_busy() {
            // The next poll of the channel meets the fault again.
            let Ok(true) = channel.receive(record) else { return taken };
            taken += 1;
            let eager = parse_eager(record.kind(), record.bytes(), record.words());
            if let Some((route, tag, len, words)) = eager
                && route.epoch == peer.epoch_in
                && endpoints.is_open(route.to)
                && matcher.try_receive_eager(&eager_envelope(peer, &route, tag, len), words)
            {
                continue;
            }
            self.handle_single_record(key, record);
            break;
        }
        taken
    }

    #[inline(never)]
    fn handle_single_record(&mut self, key: ChannelKey, record: &RecordBuffer) {
        self.handle_record(key, record);
    }

    /// Any record, if it may come.
    #[inline(never)]
    fn handle_any_record(&mut self, key: ChannelKey, record: &RecordBuffer) {
        let via_daemon = Some(key) == self.ring;
        self.daemon_records += u64::from(via_daemon);
        if let Err(violation) = self.try_handle_record(key, via_daemon, record) {
            self.violation(key, via_daemon, record, &violation);
        }
    }

    /// A short message, for an open endpoint, from a channel that is in use both ways: what most records are.
    #[inline(always)]
    pub(crate) fn peek_eager<'r>(&self, key: ChannelKey, record: &'r RecordBuffer) -> Option<(Envelope, &'r [u32])> {
        let (route, tag, len, words) = parse_eager(record.kind(), record.bytes(), record.words())?;
        let peer = &self.peers[self.peer_of_channel(key)?];
        let settled = peer.path_out != Path::Daemon && peer.path_in != Path::Daemon && route.epoch == peer.epoch_in;
        let envelope = eager_envelope(peer, &route, tag, len);
        (settled && self.endpoints.is_open(route.to)).then_some((envelope, words))
    }

    /// Handles a violation. An unexpected record on the daemon path is charged to the domain that sent it, if that is known. Any other
    /// violation is charged to the channel or the domain ring on which it occurred.
    #[cold]
    fn violation(&mut self, key: ChannelKey, via_daemon: bool, record: &RecordBuffer, violation: &Violation) {
        let out_of_place = PeerFault::Record(MalformedRecord::Kind(record.kind()));
        let parsed = Record::parse(record.kind(), record.bytes(), record.words());
        let sender = parsed.ok().and_then(|(route, _)| self.find_peer(route.peer?));
        match (violation, sender) {
            (Violation::UnexpectedRecord, Some(at)) if via_daemon => self.peer_fault(at, out_of_place),
            (Violation::UnexpectedRecord, _) => self.channel_fault(key, out_of_place),
            (Violation::Fault(fault), _) => self.channel_fault(key, *fault),
        }
    }

    #[inline]
    fn try_handle_record(&mut self, key: ChannelKey, via_daemon: bool, record: &RecordBuffer) -> Result<(), Violation> {
        let (route, content) = Record::parse(record.kind(), record.bytes(), record.words())?;
        let found = if via_daemon { self.daemon_path_sender(&route, &content)? } else { self.peer_of_channel(key) };
        let Some(at) = found else { return if via_daemon { Ok(()) } else { Err(Violation::UnexpectedRecord) } };
        if via_daemon {
            self.owe_credit_for(at, &content);
        } else if self.peers[at].path_out == Path::Daemon {
            self.switch_to_channel(at, key);
        }
        let peer = &self.peers[at];
        if route.epoch != peer.epoch_in || via_daemon != (peer.path_in == Path::Daemon) {
            self.handle_epoch_change(at, via_daemon, route.epoch, &content)?;
        }
        if let Record::Eager { tag, len, words } = content {
            self.handle_eager(at, &route, tag, len, words);
            return Ok(());
        }
        self.handle_record_content(key, at, via_daemon, &route, content)
    }

    /// The peer that a record of the domain ring comes from. None where the record means nothing any more: it is about messages
    /// to a peer that is gone.
    fn daemon_path_sender(&mut self, route: &Route, content: &Record<'_>) -> Result<Option<PeerIndex>, Violation> {
        let domain = route.peer.ok_or(Violation::UnexpectedRecord)?;
        self.reset_unanswered(domain);
        let known = starts_message(content) || matches!(content, Record::Switch);
        Ok(if known { Some(self.peer(domain)) } else { self.find_peer(domain) })
    }

    /// Permits another request for a channel to a peer that did not answer in time, because the peer has sent a record.
    #[inline]
    fn reset_unanswered(&mut self, domain: DomainId) {
        if let Some(at) = self.find_peer(domain) {
            let peer = &mut self.peers[at];
            if let ChannelState::Refused { reason: Reason::ChannelTimeout, .. } = peer.channel_state {
                (peer.channel_state, peer.channel_attempts) = (ChannelState::Absent, 0);
            }
        }
    }

    /// Switches to a channel that the connector uses, because this shows that the connector has it.
    #[cold]
    fn switch_to_channel(&mut self, at: PeerIndex, key: ChannelKey) {
        let peer = &mut self.peers[at];
        if peer.switch.is_none() && peer.fallback_reason.is_none() {
            peer.switch = Some(Path::Channel(key));
            self.mark_pending(at);
        }
    }

    /// Handles a record of another epoch, which shows that its sender has changed paths.
    fn handle_epoch_change(
        &mut self,
        at: PeerIndex,
        via_daemon: bool,
        epoch: u16,
        content: &Record<'_>,
    ) -> Result<(), Violation> {
        let peer = &self.peers[at];
        // Flow control belongs to the daemon path, whatever path messages take; the daemon's own records have no epoch.
        if via_daemon && matches!(content, Record::Credit { .. } | Record::Bounce { .. }) {
            return Ok(());
        }
        let next = peer.epoch_in.wrapping_add(1);
        match peer.path_in {
            // All earlier records are in the channel's ring already, because their sender put them there before.
            Path::Channel(key) if via_daemon && epoch == next => self.drain(key),
            // The peer gave the channel up because its daemon died during a change of paths, and begins anew.
            Path::Channel(_) if via_daemon && epoch == 0 && starts_message(content) => {
                self.abort_channel(at, Reason::DaemonConnectionLost)
            }
            _ => return Err(Violation::UnexpectedRecord),
        }
        if self.peers[at].epoch_in == epoch { Ok(()) } else { Err(Violation::UnexpectedRecord) }
    }

    /// Takes all records that wait in a channel.
    pub(crate) fn drain(&mut self, key: ChannelKey) {
        let mut record = RecordBuffer::default();
        // The limit is the ring's size, because a peer may go on writing.
        for _ in 0..RING_CELLS {
            let Some(channel) = self.inbox.channel(key) else { return };
            match channel.receive(&mut record) {
                Ok(true) => self.handle_record(key, &record),
                Ok(false) => return,
                Err(fault) => return self.channel_fault(key, fault),
            }
        }
    }

    fn handle_record_content(
        &mut self,
        key: ChannelKey,
        at: PeerIndex,
        via_daemon: bool,
        route: &Route,
        content: Record<'_>,
    ) -> Result<(), Violation> {
        match content {
            Record::Eager { .. } => unreachable!("handled by the caller"),
            Record::FirstFragment { tag, len, serial, fragment } => {
                self.handle_first_fragment(key, at, route, tag, len, serial, fragment)?;
            }
            Record::NextFragment { serial, fragment } => {
                self.handle_next_fragment(key, at, serial, fragment)?;
            }
            Record::Announce { tag, len, serial, fragment, mapped } => {
                if via_daemon && mapped.is_some() {
                    return Err(Violation::UnexpectedRecord);
                }
                let envelope = self.envelope(at, route, tag, len);
                self.handle_announce(key, at, envelope, serial, fragment, mapped)?;
            }
            Record::Pull { serial, bytes } => self.handle_pull(at, serial, bytes),
            Record::Completed { serial, outcome, bytes } => self.handle_completed(at, serial, outcome, bytes),
            Record::Switch => self.handle_switch(at)?,
            Record::Credit { bytes } => {
                let over = self.peers[at].credit.apply_return(bytes);
                over.into_iter().for_each(|message| self.complete_send(message));
                self.mark_pending(at);
            }
            Record::Bounce { reason, .. } if !via_daemon && reason == Reason::DaemonConnectionLost as u16 => {
                self.abort_channel(at, Reason::DaemonConnectionLost); // See `abandon_channel`.
            }
            Record::Bounce { serial, reason } => self.handle_bounce(at, serial, reason),
            Record::Abort { serial, reason } => self.handle_abort(at, serial, reason),
        }
        Ok(())
    }

    fn envelope(&self, at: PeerIndex, route: &Route, tag: u64, len: u64) -> Envelope {
        Envelope { from: self.peers[at].address(route.from), to: route.to, tag, len }
    }

    /// The endpoints of a reply to a message's sender.
    pub(crate) fn reply_endpoints(&self, envelope: &Envelope) -> EndpointPair {
        EndpointPair { from: envelope.to, to: envelope.from.endpoint }
    }

    fn handle_eager(&mut self, at: PeerIndex, route: &Route, tag: u64, len: u32, words: &[u32]) {
        let envelope = self.envelope(at, route, tag, u64::from(len));
        if !self.endpoints.is_open(route.to) {
            return self.bounce(at, &envelope, Serial(0));
        }
        self.match_eager(envelope, words);
    }

    #[inline(always)]
    fn match_eager(&mut self, envelope: Envelope, words: &[u32]) {
        isthmus_shm::step!("match_eager");
        if self.matcher.try_receive_eager(&envelope, words) {
            return;
        }
        match self.matcher.match_message(&envelope) {
            Some(mut posted) => {
                let room = posted.buffer.len().min(envelope.len as usize);
                copy_words(words, &mut posted.buffer.as_mut_slice()[..room]);
                self.received(posted, &envelope);
            }
            None => self.store_unexpected_eager(envelope, words),
        }
    }

    #[cold]
    fn store_unexpected_eager(&mut self, envelope: Envelope, words: &[u32]) {
        let mut bytes = vec![0; envelope.len as usize];
        copy_words(words, &mut bytes);
        self.matcher.store_unexpected(Unexpected { envelope, state: UnexpectedState::Whole(bytes) });
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one record, and where it came from")]
    fn handle_first_fragment(
        &mut self,
        key: ChannelKey,
        at: PeerIndex,
        route: &Route,
        tag: u64,
        len: u32,
        serial: Serial,
        fragment: Fragment,
    ) -> Result<(), Violation> {
        // A sender begins a message when it has finished the one before.
        if u64::from(len) > SLAB_MESSAGE_BYTES_MAX || self.peers[at].started.is_some() {
            return Err(Violation::UnexpectedRecord);
        }
        let envelope = self.envelope(at, route, tag, u64::from(len));
        let destination = if !self.endpoints.is_open(route.to) {
            self.bounce(at, &envelope, serial);
            Destination::Discard
        } else if let Some(posted) = self.matcher.match_message(&envelope) {
            Destination::Posted(posted)
        } else {
            self.matcher.store_unexpected(Unexpected { envelope, state: UnexpectedState::Arriving });
            Destination::Own(vec![0; len as usize])
        };
        let mut incoming = Incoming { envelope, expected: envelope.len, received: 0, destination };
        let channel = self.inbox.channel(key).ok_or(Violation::UnexpectedRecord)?;
        if receive_fragment(channel, &mut incoming, fragment)? {
            self.message_complete(incoming);
        } else {
            self.peers[at].started = Some((serial, incoming));
        }
        Ok(())
    }

    fn handle_next_fragment(
        &mut self,
        key: ChannelKey,
        at: PeerIndex,
        serial: Serial,
        fragment: Fragment,
    ) -> Result<(), Violation> {
        let peer = &mut self.peers[at];
        let started = peer.started.as_mut().filter(|(started, _)| *started == serial).map(|(_, incoming)| incoming);
        let eager = started.is_some();
        let incoming = started.or_else(|| peer.pulled.get_mut(&serial)).ok_or(Violation::UnexpectedRecord)?;
        let channel = self.inbox.channel(key).ok_or(Violation::UnexpectedRecord)?;
        if receive_fragment(channel, incoming, fragment)? {
            let whole =
                if eager { peer.started.take().map(|(_, incoming)| incoming) } else { peer.pulled.remove(&serial) };
            if !eager && peer.id.is_remote() {
                self.make_credit_due(at); // The send of a long message ends with this credit.
            }
            self.message_complete(whole.expect("it was there a moment ago"));
        }
        Ok(())
    }

    /// Handles a complete message.
    fn message_complete(&mut self, incoming: Incoming) {
        let envelope = incoming.envelope;
        match incoming.destination {
            Destination::Posted(posted) => self.received(posted, &envelope),
            Destination::Discard => {}
            Destination::Own(bytes) => {
                self.matcher.unexpected_complete(&envelope, bytes);
                self.match_unexpected(envelope.to);
            }
        }
    }

    fn handle_announce(
        &mut self,
        key: ChannelKey,
        at: PeerIndex,
        envelope: Envelope,
        serial: Serial,
        fragment: Fragment,
        mapped: Option<MappablePages>,
    ) -> Result<(), Violation> {
        if fragment.len > EDGES_MAX || self.peers[at].pulled.contains_key(&serial) {
            return Err(Violation::UnexpectedRecord);
        }
        let mut edges = vec![0; fragment.len as usize];
        if fragment.len > 0 {
            let channel = self.inbox.channel(key).ok_or(Violation::UnexpectedRecord)?;
            channel.copy_out(fragment, 0, &mut edges)?;
            channel.release(fragment);
        }
        let announced = Announced { serial, mapped, edges };
        if !self.endpoints.is_open(envelope.to) {
            self.bounce(at, &envelope, serial);
        } else if let Some(posted) = self.matcher.match_message(&envelope) {
            self.receive_announced(at, envelope, &announced, posted);
        } else {
            self.matcher.store_unexpected(Unexpected { envelope, state: UnexpectedState::Announced(announced) });
        }
        Ok(())
    }

    /// Gives posted receives the messages that came before them, in order.
    pub(crate) fn match_unexpected(&mut self, index: EndpointIndex) {
        while let Some((posted, message)) = self.matcher.next_match(index) {
            self.deliver_held(posted, message);
        }
    }

    /// Delivers a held message to its receive.
    pub(crate) fn deliver_held(&mut self, mut posted: Posted, message: Unexpected) {
        match message.state {
            UnexpectedState::Arriving => panic!("a message is given when it is whole: see `Matcher::whole`"),
            UnexpectedState::Whole(bytes) => {
                let len = posted.buffer.len().min(bytes.len());
                posted.buffer.as_mut_slice()[..len].copy_from_slice(&bytes[..len]);
                self.received(posted, &message.envelope);
            }
            UnexpectedState::Announced(announced) => {
                let at = self.peer(message.envelope.from.domain);
                self.receive_announced(at, message.envelope, &announced, posted);
            }
        }
    }

    /// Handles a switch: the sender's next records come by the other path. A switch to a channel that this domain does not have is a
    /// violation, because the records would arrive nowhere.
    pub(crate) fn handle_switch(&mut self, at: PeerIndex) -> Result<(), Violation> {
        let peer = &mut self.peers[at];
        match (peer.path_in, peer.channel_state) {
            (Path::Daemon, ChannelState::Made { key, connector, .. }) => {
                (peer.path_in, peer.epoch_in) = (Path::Channel(key), peer.epoch_in.wrapping_add(1));
                self.inbox.unmute(key);
                if !connector {
                    self.switch_to_channel(at, key);
                }
            }
            (Path::Daemon, _) => return Err(Violation::UnexpectedRecord),
            (Path::Channel(_), _) => {
                (peer.path_in, peer.epoch_in) = (Path::Daemon, peer.epoch_in.wrapping_add(1));
                self.close_channel_if_unused(at);
            }
        }
        Ok(())
    }

    /// Notifies the sender that the endpoint is closed, which ends an announced message.
    fn bounce(&mut self, at: PeerIndex, envelope: &Envelope, serial: Serial) {
        let endpoints = self.reply_endpoints(envelope);
        self.send_urgent(at, endpoints, Record::Bounce { serial, reason: Reason::EndpointClosed as u16 });
    }

    fn handle_bounce(&mut self, at: PeerIndex, serial: Serial, code: u16) {
        let reason = Reason::from_code(code).unwrap_or(Reason::EndpointClosed);
        self.bounced += 1;
        if let Some(message) = self.peers[at].announced.remove(&serial) {
            self.fail_send(message, reason);
        }
        // Other reasons concern the whole domain or the policy, and not one endpoint or message.
        let of_one = matches!(reason, Reason::EndpointClosed | Reason::MessageTooLong);
        if !of_one && !self.peers[at].credit.pop_bounced() {
            match reason {
                // The domain may come back, and its messages to this one may still arrive by another path.
                Reason::NoSuchDomain => self.fail_sends(at, reason),
                reason => self.fail_peer(at, reason),
            }
            self.peers[at].credit.pop_bounced(); // The record of this bounce.
        }
    }

    /// Fails a pulled message, because its sender has aborted it.
    #[cold]
    fn handle_abort(&mut self, at: PeerIndex, serial: Serial, code: u16) {
        let reason = Reason::from_code(code).unwrap_or(Reason::MxTransferFailed);
        if let Some(Incoming { envelope, destination: Destination::Posted(posted), .. }) =
            self.peers[at].pulled.remove(&serial)
        {
            self.complete(posted, envelope.to, crate::matcher::Outcome::Failed(reason));
        }
    }

    /// Records the credit that a record of the daemon path used, to be returned to its sender even if the record is dropped.
    #[inline]
    fn owe_credit_for(&mut self, at: PeerIndex, content: &Record<'_>) {
        let bytes = match content {
            Record::Eager { len, .. } => *len,
            Record::FirstFragment { fragment, .. }
            | Record::NextFragment { fragment, .. }
            | Record::Announce { fragment, .. } => fragment.len,
            Record::Pull { .. }
            | Record::Completed { .. }
            | Record::Switch
            | Record::Bounce { .. }
            | Record::Abort { .. } => 0,
            Record::Credit { .. } => return,
        };
        let peer = &mut self.peers[at];
        // The daemon need not wake for the credit of a remote peer, unless a long message is complete: no other send waits for it.
        let least = if peer.id.is_remote() { REMOTE_CREDIT_BATCH_BYTES } else { 0 };
        peer.credit.owed += DAEMON_PATH_RECORD_COST + bytes;
        if peer.credit.owed > least {
            self.make_credit_due(at);
        }
    }

    /// Makes the credit of a peer due at the end of the iteration.
    #[inline]
    fn make_credit_due(&mut self, at: PeerIndex) {
        if !std::mem::replace(&mut self.peers[at].credit.is_due, true) {
            self.peers_owed_credit.push(at);
        }
    }

    /// Returns owed credit. Called when there are no more records to take.
    pub(crate) fn send_owed_credit(&mut self) {
        let Some(ring) = self.ring else { return self.peers_owed_credit.clear() };
        while let Some(&at) = self.peers_owed_credit.last() {
            let peer = &mut self.peers[at];
            let unused = EndpointIndex::new(0).expect("the first endpoint is one");
            let route = Route { from: unused, to: unused, epoch: peer.epoch_out, peer: Some(peer.id) };
            let Some(channel) = self.inbox.channel(ring) else { return };
            if channel.send(route, &Record::Credit { bytes: peer.credit.owed }, &[]).is_err() {
                return;
            }
            channel.flush();
            (peer.credit.owed, peer.credit.is_due) = (0, false);
            self.peers_owed_credit.pop();
        }
    }

    /// Drops an unexpected message; an announced one is dropped at its sender.
    pub(crate) fn drop_unexpected(&mut self, message: &Unexpected) {
        self.refuse_announced(message, ReceiveOutcome::Dropped);
    }

    /// Notifies the sender of an announced message of the outcome, without fetching the message.
    pub(crate) fn refuse_announced(&mut self, message: &Unexpected, outcome: ReceiveOutcome) {
        let UnexpectedState::Announced(Announced { serial, .. }) = message.state else { return };
        let endpoints = self.reply_endpoints(&message.envelope);
        if let Some(at) = self.find_peer(message.envelope.from.domain) {
            self.send_urgent(at, endpoints, Record::Completed { serial, outcome, bytes: 0 });
        }
    }
}

/// True for the first record of a message.
fn starts_message(content: &Record<'_>) -> bool {
    matches!(content, Record::Eager { .. } | Record::FirstFragment { .. } | Record::Announce { .. })
}

/// Copies a fragment where it belongs and frees its slab space. True if the message is whole.
fn receive_fragment(channel: &mut Channel, incoming: &mut Incoming, fragment: Fragment) -> Result<bool, Violation> {
    let len = incoming.expected;
    if fragment.len == 0 && len > 0 || u64::from(fragment.len) > len - incoming.received {
        return Err(Violation::UnexpectedRecord);
    }
    let destination = match &mut incoming.destination {
        Destination::Posted(posted) => posted.buffer.as_mut_slice(),
        Destination::Own(bytes) => bytes,
        Destination::Discard => &mut [],
    };
    let start = (incoming.received as usize).min(destination.len());
    let end = (start + fragment.len as usize).min(destination.len());
    channel.copy_out(fragment, 0, &mut destination[start..end])?;
    channel.release(fragment);
    incoming.received += u64::from(fragment.len);
    Ok(incoming.received == len)
}
