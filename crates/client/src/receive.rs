//! Records in.

use crate::core::Core;
use crate::matcher::{Announced, Envelope, Matcher, Posted, Unexpected, UnexpectedState};
use crate::peer::{Between, Incoming, Into, Making, Path, Peer, PeerIndex};
use crate::words::copy_words;
use isthmus_channel::{Channel, ChannelKey, Polled};
use isthmus_layout::DomainId;
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::limits::{ORDINARY_CREDIT_BYTES, ORDINARY_RECORD_COST, RING_CELLS, SLAB_MESSAGE_BYTES_MAX};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{MalformedRecord, Mapped, Outcome, Piece, Record, Route, Serial, parse_eager};
use isthmus_shm::{PeerFault, RecordBuffer};

/// Credit that is given back to somebody on another host together: the daemon gives us more than ten times as much there.
const LAZY_CREDIT_BYTES: u32 = ORDINARY_CREDIT_BYTES;

/// Short messages that are taken from a channel without a look at others.
const RUN: usize = 8;

/// Announced messages of one peer that wait for a receive, with their edges in our memory.
const EDGES_MAX: u32 = 2 * 4096;

/// A peer did what the contract does not allow.
#[derive(Debug)]
pub(crate) enum Misdeed {
    /// In shared memory.
    Fault(PeerFault),
    /// A record that has no place here.
    OutOfPlace,
}

impl From<PeerFault> for Misdeed {
    fn from(fault: PeerFault) -> Self {
        Self::Fault(fault)
    }
}

impl From<MalformedRecord> for Misdeed {
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
    pub(crate) fn take_polled(&mut self, polled: Polled, record: &RecordBuffer) {
        match polled {
            Polled::Record(key) => self.take_record(key, record),
            Polled::Nothing => {}
            Polled::Marked(..) => self.take_news(),
            Polled::Fault(key, fault) => self.channel_fault(key, fault),
        }
    }

    #[inline(always)]
    fn take_record(&mut self, key: ChannelKey, record: &RecordBuffer) {
        isthmus_shm::step!("take_record");
        if let Some((envelope, words)) = self.peek_eager(key, record) {
            return self.match_eager(envelope, words);
        }
        self.take_any_record(key, record);
    }

    /// Short messages that follow a record in its channel, while the matcher wants more: what is known of their peer is looked up once
    /// for all of them. Ends with a record of any other kind, which is taken like any other. How many it took.
    #[inline(always)]
    pub(crate) fn take_following(&mut self, key: ChannelKey, record: &mut RecordBuffer) -> usize {
        if self.matcher.is_busy() {
            return 0;
        }
        let Some(at) = self.by_channel(key) else { return 0 };
        let Self { inbox, peers, matcher, endpoints, .. } = self;
        let (peer, Some(channel)) = (&peers[at], inbox.channel(key)) else { return 0 };
        if peer.out == Path::Ordinary || peer.inward == Path::Ordinary {
            return 0;
        }
        let mut taken = 0;
        while taken < RUN && !matcher.is_busy() {
            // A fault is met again by the next look at the channel.
            let Ok(true) = channel.receive(record) else { return taken };
            taken += 1;
            let eager = parse_eager(record.kind(), record.bytes(), record.words());
            if let Some((route, tag, len, words)) = eager
                && route.epoch == peer.epoch_in
                && endpoints.is_open(route.to)
                && matcher.take_short(&eager_envelope(peer, &route, tag, len), words)
            {
                continue;
            }
            self.take_record_alone(key, record);
            break;
        }
        taken
    }

    #[inline(never)]
    fn take_record_alone(&mut self, key: ChannelKey, record: &RecordBuffer) {
        self.take_record(key, record);
    }

    /// Any record, if it may come.
    #[inline(never)]
    fn take_any_record(&mut self, key: ChannelKey, record: &RecordBuffer) {
        let ordinary = Some(key) == self.ring;
        self.brought += u64::from(ordinary);
        if let Err(misdeed) = self.try_take_record(key, ordinary, record) {
            self.misdeed(key, ordinary, record, &misdeed);
        }
    }

    /// A short message, for an open endpoint, from a channel that is in use both ways: what most records are.
    #[inline(always)]
    pub(crate) fn peek_eager<'r>(&self, key: ChannelKey, record: &'r RecordBuffer) -> Option<(Envelope, &'r [u32])> {
        let (route, tag, len, words) = parse_eager(record.kind(), record.bytes(), record.words())?;
        let peer = &self.peers[self.by_channel(key)?];
        let settled = peer.out != Path::Ordinary && peer.inward != Path::Ordinary && route.epoch == peer.epoch_in;
        let envelope = eager_envelope(peer, &route, tag, len);
        (settled && self.endpoints.is_open(route.to)).then_some((envelope, words))
    }

    /// What comes through the daemon is the doing of the domain that sent it: neither the ring nor the daemon is to blame.
    #[cold]
    fn misdeed(&mut self, key: ChannelKey, ordinary: bool, record: &RecordBuffer, misdeed: &Misdeed) {
        let out_of_place = PeerFault::Record(MalformedRecord::Kind(record.kind()));
        let parsed = Record::parse(record.kind(), record.bytes(), record.words());
        let sender = parsed.ok().and_then(|(route, _)| self.known(route.peer?));
        match (misdeed, sender) {
            (Misdeed::OutOfPlace, Some(at)) if ordinary => self.peer_fault(at, out_of_place),
            (Misdeed::OutOfPlace, _) => self.channel_fault(key, out_of_place),
            (Misdeed::Fault(fault), _) => self.channel_fault(key, *fault),
        }
    }

    #[inline]
    fn try_take_record(&mut self, key: ChannelKey, ordinary: bool, record: &RecordBuffer) -> Result<(), Misdeed> {
        let (route, content) = Record::parse(record.kind(), record.bytes(), record.words())?;
        let found = if ordinary { self.ordinary_sender(&route, &content)? } else { self.by_channel(key) };
        let Some(at) = found else { return if ordinary { Ok(()) } else { Err(Misdeed::OutOfPlace) } };
        if ordinary {
            self.owe_for(at, &content);
        } else if self.peers[at].out == Path::Ordinary {
            self.follow(at, key);
        }
        let peer = &self.peers[at];
        if route.epoch != peer.epoch_in || ordinary != (peer.inward == Path::Ordinary) {
            self.other_epoch(at, ordinary, route.epoch, &content)?;
        }
        if let Record::Eager { tag, len, words } = content {
            self.take_eager(at, &route, tag, len, words);
            return Ok(());
        }
        self.take_other(key, at, ordinary, &route, content)
    }

    /// The peer that a record of the domain ring comes from. None where the record means nothing any more: it is about messages
    /// to a peer that is gone.
    fn ordinary_sender(&mut self, route: &Route, content: &Record<'_>) -> Result<Option<PeerIndex>, Misdeed> {
        let domain = route.peer.ok_or(Misdeed::OutOfPlace)?;
        self.heard_of(domain);
        let known = begins(content) || matches!(content, Record::Switch);
        Ok(if known { Some(self.peer(domain)) } else { self.known(domain) })
    }

    /// A peer that did not answer in time is there after all: it may be asked again.
    #[inline]
    fn heard_of(&mut self, domain: DomainId) {
        if let Some(at) = self.known(domain) {
            let peer = &mut self.peers[at];
            if let Making::Refused { reason: Reason::ChannelNoAnswer, .. } = peer.making {
                (peer.making, peer.tries) = (Making::Not, 0);
            }
        }
    }

    /// The connector uses the channel, so it has it: the listener uses it too from now on.
    #[cold]
    fn follow(&mut self, at: PeerIndex, key: ChannelKey) {
        let peer = &mut self.peers[at];
        if peer.switch.is_none() && peer.leaving.is_none() {
            peer.switch = Some(Path::Channel(key));
            self.list(at);
        }
    }

    /// A record of another epoch: its sender has changed paths.
    fn other_epoch(&mut self, at: PeerIndex, ordinary: bool, epoch: u16, content: &Record<'_>) -> Result<(), Misdeed> {
        let peer = &self.peers[at];
        // Flow control belongs to the ordinary path, whatever path messages take; the daemon's own words have no epoch.
        if ordinary && matches!(content, Record::Credit { .. } | Record::Bounce { .. }) {
            return Ok(());
        }
        let next = peer.epoch_in.wrapping_add(1);
        match peer.inward {
            // Everything before it lies in the ring already, since its sender put it there before.
            Path::Channel(key) if ordinary && epoch == next => self.drain(key),
            // It gave the channel up, because its daemon died while paths were changed, and begins anew.
            Path::Channel(_) if ordinary && epoch == 0 && begins(content) => self.break_channel(at, Reason::DaemonGone),
            _ => return Err(Misdeed::OutOfPlace),
        }
        if self.peers[at].epoch_in == epoch { Ok(()) } else { Err(Misdeed::OutOfPlace) }
    }

    /// Takes everything that waits in a channel.
    pub(crate) fn drain(&mut self, key: ChannelKey) {
        let mut record = RecordBuffer::default();
        // No more than can have been there: a peer may go on writing.
        for _ in 0..RING_CELLS {
            let Some(channel) = self.inbox.channel(key) else { return };
            match channel.receive(&mut record) {
                Ok(true) => self.take_record(key, &record),
                Ok(false) => return,
                Err(fault) => return self.channel_fault(key, fault),
            }
        }
    }

    fn take_other(
        &mut self,
        key: ChannelKey,
        at: PeerIndex,
        ordinary: bool,
        route: &Route,
        content: Record<'_>,
    ) -> Result<(), Misdeed> {
        match content {
            Record::Eager { .. } => unreachable!("taken by the caller"),
            Record::Start { tag, len, serial, piece } => {
                self.take_start(key, at, route, tag, len, serial, piece)?;
            }
            Record::More { serial, piece } => {
                self.take_more(key, at, serial, piece)?;
            }
            Record::Announce { tag, len, serial, piece, mapped } => {
                if ordinary && mapped.is_some() {
                    return Err(Misdeed::OutOfPlace);
                }
                let envelope = self.envelope(at, route, tag, len);
                self.take_announce(key, at, envelope, serial, piece, mapped)?;
            }
            Record::Pull { serial, bytes } => self.pull(at, serial, bytes),
            Record::Taken { serial, outcome, bytes } => self.taken(at, serial, outcome, bytes),
            Record::Switch => self.take_switch(at),
            Record::Credit { bytes } => {
                let over = self.peers[at].credit.give_back(bytes);
                over.into_iter().for_each(|message| self.sent(message));
                self.list(at);
            }
            Record::Bounce { reason, .. } if !ordinary && reason == Reason::DaemonGone as u16 => {
                self.break_channel(at, Reason::DaemonGone); // See `give_up_channel`.
            }
            Record::Bounce { serial, reason } => self.take_bounce(at, serial, reason),
            Record::Abort { serial, reason } => self.take_abort(at, serial, reason),
        }
        Ok(())
    }

    fn envelope(&self, at: PeerIndex, route: &Route, tag: u64, len: u64) -> Envelope {
        Envelope { from: self.peers[at].address(route.from), to: route.to, tag, len }
    }

    /// The way back to a message's sender.
    pub(crate) fn back(&self, envelope: &Envelope) -> Between {
        Between { from: envelope.to, to: envelope.from.endpoint }
    }

    fn take_eager(&mut self, at: PeerIndex, route: &Route, tag: u64, len: u32, words: &[u32]) {
        let envelope = self.envelope(at, route, tag, u64::from(len));
        if !self.endpoints.is_open(route.to) {
            return self.bounce(at, &envelope, Serial(0));
        }
        self.match_eager(envelope, words);
    }

    #[inline(always)]
    fn match_eager(&mut self, envelope: Envelope, words: &[u32]) {
        isthmus_shm::step!("match_eager");
        if self.matcher.take_short(&envelope, words) {
            return;
        }
        match self.matcher.take(&envelope) {
            Some(mut posted) => {
                let room = posted.buffer.len().min(envelope.len as usize);
                copy_words(words, &mut posted.buffer.as_mut_slice()[..room]);
                self.received(posted, &envelope);
            }
            None => self.hold_eager(envelope, words),
        }
    }

    #[cold]
    fn hold_eager(&mut self, envelope: Envelope, words: &[u32]) {
        let mut bytes = vec![0; envelope.len as usize];
        copy_words(words, &mut bytes);
        self.matcher.hold(Unexpected { envelope, state: UnexpectedState::Whole(bytes) });
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one record, and where it came from")]
    fn take_start(
        &mut self,
        key: ChannelKey,
        at: PeerIndex,
        route: &Route,
        tag: u64,
        len: u32,
        serial: Serial,
        piece: Piece,
    ) -> Result<(), Misdeed> {
        // A sender begins a message when it has finished the one before.
        if u64::from(len) > SLAB_MESSAGE_BYTES_MAX || self.peers[at].started.is_some() {
            return Err(Misdeed::OutOfPlace);
        }
        let envelope = self.envelope(at, route, tag, u64::from(len));
        let into = if !self.endpoints.is_open(route.to) {
            self.bounce(at, &envelope, serial);
            Into::Nowhere
        } else if let Some(posted) = self.matcher.take(&envelope) {
            Into::Posted(posted)
        } else {
            self.matcher.hold(Unexpected { envelope, state: UnexpectedState::Arriving });
            Into::Own(vec![0; len as usize])
        };
        let mut incoming = Incoming { envelope, expected: envelope.len, received: 0, into };
        let channel = self.inbox.channel(key).ok_or(Misdeed::OutOfPlace)?;
        if take_piece(channel, &mut incoming, piece)? {
            self.arrived(incoming);
        } else {
            self.peers[at].started = Some((serial, incoming));
        }
        Ok(())
    }

    fn take_more(&mut self, key: ChannelKey, at: PeerIndex, serial: Serial, piece: Piece) -> Result<(), Misdeed> {
        let peer = &mut self.peers[at];
        let started = peer.started.as_mut().filter(|(started, _)| *started == serial).map(|(_, incoming)| incoming);
        let eager = started.is_some();
        let incoming = started.or_else(|| peer.pulled.get_mut(&serial)).ok_or(Misdeed::OutOfPlace)?;
        let channel = self.inbox.channel(key).ok_or(Misdeed::OutOfPlace)?;
        if take_piece(channel, incoming, piece)? {
            let whole =
                if eager { peer.started.take().map(|(_, incoming)| incoming) } else { peer.pulled.remove(&serial) };
            self.arrived(whole.expect("it was there a moment ago"));
        }
        Ok(())
    }

    /// A message is whole.
    fn arrived(&mut self, incoming: Incoming) {
        let envelope = incoming.envelope;
        match incoming.into {
            Into::Posted(posted) => self.received(posted, &envelope),
            Into::Nowhere => {}
            Into::Own(bytes) => {
                self.matcher.whole(&envelope, bytes);
                self.match_unexpected(envelope.to);
            }
        }
    }

    fn take_announce(
        &mut self,
        key: ChannelKey,
        at: PeerIndex,
        envelope: Envelope,
        serial: Serial,
        piece: Piece,
        mapped: Option<Mapped>,
    ) -> Result<(), Misdeed> {
        if piece.len > EDGES_MAX || self.peers[at].pulled.contains_key(&serial) {
            return Err(Misdeed::OutOfPlace);
        }
        let mut edges = vec![0; piece.len as usize];
        if piece.len > 0 {
            let channel = self.inbox.channel(key).ok_or(Misdeed::OutOfPlace)?;
            channel.copy_out(piece, 0, &mut edges)?;
            channel.give_back(piece);
        }
        let announced = Announced { serial, mapped, edges };
        if !self.endpoints.is_open(envelope.to) {
            self.bounce(at, &envelope, serial);
        } else if let Some(posted) = self.matcher.take(&envelope) {
            self.take_announced(at, envelope, &announced, posted);
        } else {
            self.matcher.hold(Unexpected { envelope, state: UnexpectedState::Announced(announced) });
        }
        Ok(())
    }

    /// Gives posted receives the messages that came before them, in order.
    pub(crate) fn match_unexpected(&mut self, index: EndpointIndex) {
        while let Some((posted, message)) = self.matcher.next_match(index) {
            self.give(posted, message);
        }
    }

    /// Brings a held message to its receive.
    pub(crate) fn give(&mut self, mut posted: Posted, message: Unexpected) {
        match message.state {
            UnexpectedState::Arriving => panic!("a message is given when it is whole: see `Matcher::whole`"),
            UnexpectedState::Whole(bytes) => {
                let len = posted.buffer.len().min(bytes.len());
                posted.buffer.as_mut_slice()[..len].copy_from_slice(&bytes[..len]);
                self.received(posted, &message.envelope);
            }
            UnexpectedState::Announced(announced) => {
                let at = self.peer(message.envelope.from.domain);
                self.take_announced(at, message.envelope, &announced, posted);
            }
        }
    }

    /// The sender's next records come by the other path.
    fn take_switch(&mut self, at: PeerIndex) {
        let peer = &mut self.peers[at];
        peer.epoch_in = peer.epoch_in.wrapping_add(1);
        match (peer.inward, peer.making) {
            (Path::Ordinary, Making::Made { key, connector, .. }) => {
                peer.inward = Path::Channel(key);
                self.inbox.unmute(key);
                if !connector {
                    self.follow(at, key);
                }
            }
            _ => {
                peer.inward = Path::Ordinary;
                self.maybe_close_channel(at);
            }
        }
    }

    /// Nobody is there: the sender is told, and what it announced is over.
    fn bounce(&mut self, at: PeerIndex, envelope: &Envelope, serial: Serial) {
        let between = self.back(envelope);
        self.urgent(at, between, Record::Bounce { serial, reason: Reason::EndpointClosed as u16 });
    }

    fn take_bounce(&mut self, at: PeerIndex, serial: Serial, code: u16) {
        let reason = Reason::from_code(code).unwrap_or(Reason::EndpointClosed);
        self.bounced += 1;
        if let Some(message) = self.peers[at].announced.remove(&serial) {
            self.failed(message, reason);
        }
        // Not one endpoint is missing but the whole domain, or the leave to talk to it.
        let of_one = matches!(reason, Reason::EndpointClosed | Reason::MessageTooLong);
        if !of_one && !self.peers[at].credit.came_back() {
            match reason {
                // It may come back, and what it sends us is under way by another road.
                Reason::NoSuchDomain => self.fail_sends(at, reason),
                reason => self.fail_peer(at, reason),
            }
            self.peers[at].credit.came_back(); // This one.
        }
    }

    /// Nothing more comes of a message that we pulled.
    #[cold]
    fn take_abort(&mut self, at: PeerIndex, serial: Serial, code: u16) {
        let reason = Reason::from_code(code).unwrap_or(Reason::MxBroken);
        if let Some(Incoming { envelope, into: Into::Posted(posted), .. }) = self.peers[at].pulled.remove(&serial) {
            self.complete(posted, envelope.to, crate::matcher::Outcome::Failed(reason));
        }
    }

    /// On the ordinary path: so much is taken and can be sent again, whatever becomes of it.
    #[inline]
    fn owe_for(&mut self, at: PeerIndex, content: &Record<'_>) {
        let bytes = match content {
            Record::Eager { len, .. } => *len,
            Record::Start { piece, .. } | Record::More { piece, .. } | Record::Announce { piece, .. } => piece.len,
            Record::Pull { .. }
            | Record::Taken { .. }
            | Record::Switch
            | Record::Bounce { .. }
            | Record::Abort { .. } => 0,
            Record::Credit { .. } => return,
        };
        let peer = &mut self.peers[at];
        // The daemon need not wake for the credit of somebody on another host: no send there waits for it.
        let least = if peer.id.is_remote() { LAZY_CREDIT_BYTES } else { 0 };
        let before = peer.credit.owed;
        peer.credit.owed += ORDINARY_RECORD_COST + bytes;
        if before <= least && peer.credit.owed > least {
            self.owing.push(at);
        }
    }

    /// Gives credit back; called when there is nothing more to take.
    pub(crate) fn give_credit(&mut self) {
        let Some(ring) = self.ring else { return self.owing.clear() };
        while let Some(&at) = self.owing.last() {
            let peer = &mut self.peers[at];
            let nobody = EndpointIndex::new(0).expect("the first endpoint is one");
            let route = Route { from: nobody, to: nobody, epoch: peer.epoch_out, peer: Some(peer.id) };
            let Some(channel) = self.inbox.channel(ring) else { return };
            if channel.send(route, &Record::Credit { bytes: peer.credit.owed }, &[]).is_err() {
                return;
            }
            channel.flush();
            peer.credit.owed = 0;
            self.owing.pop();
        }
    }

    /// Announced messages that will not be taken any more are dropped at their senders.
    pub(crate) fn drop_unexpected(&mut self, message: &Unexpected) {
        self.refuse_announced(message, Outcome::Dropped);
    }

    /// Has the sender of an announced message hear how it ended without having been fetched.
    pub(crate) fn refuse_announced(&mut self, message: &Unexpected, outcome: Outcome) {
        let UnexpectedState::Announced(Announced { serial, .. }) = message.state else { return };
        let between = self.back(&message.envelope);
        if let Some(at) = self.known(message.envelope.from.domain) {
            self.urgent(at, between, Record::Taken { serial, outcome, bytes: 0 });
        }
    }
}

/// True for the first record of a message.
fn begins(content: &Record<'_>) -> bool {
    matches!(content, Record::Eager { .. } | Record::Start { .. } | Record::Announce { .. })
}

/// Copies a piece where it belongs and gives it back. True if the message is whole.
fn take_piece(channel: &mut Channel, incoming: &mut Incoming, piece: Piece) -> Result<bool, Misdeed> {
    let len = incoming.expected;
    if piece.len == 0 && len > 0 || u64::from(piece.len) > len - incoming.received {
        return Err(Misdeed::OutOfPlace);
    }
    let into = match &mut incoming.into {
        Into::Posted(posted) => posted.buffer.as_mut_slice(),
        Into::Own(bytes) => bytes,
        Into::Nowhere => &mut [],
    };
    let start = (incoming.received as usize).min(into.len());
    let end = (start + piece.len as usize).min(into.len());
    channel.copy_out(piece, 0, &mut into[start..end])?;
    channel.give_back(piece);
    incoming.received += u64::from(piece.len);
    Ok(incoming.received == len)
}
