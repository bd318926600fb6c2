//! The matcher of an endpoint's domain: what arrives, and what is over, passes here.
//!
//! ```text
//!   head ──► arrive ──┬─ message: a posted receive takes it, or it is held
//!                     ├─ write, read, atomic: served (`serve`)
//!                     └─ reply: the request is over
//!   bulk ──► take ────► where the head before it, from the same sender, said
//! ```
//!
//! Nothing is sent from in here: answers wait in `outbox` until the endpoint has the domain in its hands again.

use crate::abi::consts::FI_ADDR_NOTAVAIL;
use crate::engine::events::{Event, Events, Side};
use crate::engine::head::{ACKNOWLEDGE, BULK, Kind, SHORT_MAX, WIDE, Words, parameter};
use crate::engine::held::{Body, Holding};
use crate::engine::ops::{ASIDE, EAGER, Op, OpId, Ops, PAYLOAD, Report};
use crate::engine::receive::{Filter, Lane, Meta, Receive, Receives};
use crate::engine::regions::Regions;
use crate::engine::serve::Reply;
use crate::errno::Errno;
use isthmus_client::{
    Buffer, Completion, DomainId, EndpointAddress, EndpointIndex, Envelope, Matcher, Outcome, Posted, Reason, Token,
    Unexpected, UnexpectedState,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// The one endpoint of the domain that is a fabric endpoint.
pub(crate) const INDEX: EndpointIndex = EndpointIndex::new(0).expect("there is an endpoint 0");

/// The token of what nobody wants.
const NOWHERE: Token = Token::new(0);

/// Events that a turn may find before the program is to look at them, at most.
const EVENTS_PER_TURN: u64 = 16;

/// Where the bulk that follows a head goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// To an operation.
    To(OpId),
    /// It is kept with the held message of this name.
    Held(u64),
    /// Nobody wants it.
    Nowhere,
}

/// Somebody who has sent something, or was looked for.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: EndpointAddress,
    /// As the address vector knows it.
    pub(crate) source: u64,
    /// What its next bulk is.
    pub(crate) expected: Option<Expected>,
    /// What its bulk is that has begun to arrive.
    pub(crate) arriving: Option<Expected>,
}

/// Everything of an endpoint but its domain.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) events: Events,
    pub(crate) ops: Ops,
    pub(crate) receives: Receives,
    pub(crate) holding: Holding,
    pub(crate) regions: Arc<Regions>,
    pub(crate) peers: Vec<Peer>,
    by_address: HashMap<EndpointAddress, u32>,
    last: Option<(EndpointAddress, u32)>,
    sources: HashMap<EndpointAddress, u64>,
    /// Those of whom no further message can come, as the address vector knows them.
    pub(crate) gone: HashSet<u64>,
    pub(crate) outbox: VecDeque<Reply>,
    /// Those who had to ask for what they wanted of registered memory, and why: for reports.
    pub(crate) asked: Vec<(DomainId, Reason)>,
    /// Messages that wait for room on their way out.
    pub(crate) eager: usize,
    /// Events at which whoever turns the wheel wants to look.
    busy_at: u64,
    /// Events that this turn may find.
    batch: u64,
    /// The last turn found all that it might.
    had_enough: bool,
    /// The turn after the last one was left out.
    rested: bool,
}

impl Hub {
    pub(crate) fn new(regions: Arc<Regions>) -> Self {
        Self {
            events: Events::default(),
            ops: Ops::default(),
            receives: Receives::default(),
            holding: Holding::default(),
            regions,
            peers: Vec::new(),
            by_address: HashMap::new(),
            last: None,
            sources: HashMap::new(),
            gone: HashSet::new(),
            outbox: VecDeque::new(),
            asked: Vec::new(),
            eager: 0,
            busy_at: 1,
            batch: 1,
            had_enough: false,
            rested: false,
        }
    }

    /// A turn begins. One that looks behind the last message that is there has the next cell's line brought here, and waits for it
    /// while the program could be answering. So a turn ends with the first event, and finds more only where the turns before
    /// it have found all they might.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.batch = if self.had_enough { (2 * self.batch).min(EVENTS_PER_TURN) } else { 1 };
        self.busy_at = self.events.count + self.batch;
        self.rested = false;
    }

    /// A turn ends.
    #[inline]
    pub(crate) fn end_turn(&mut self) {
        self.had_enough = self.events.count >= self.busy_at;
    }

    /// A turn that finds nothing, and does nothing.
    #[inline]
    pub(crate) fn idle_turn(&mut self) {
        (self.had_enough, self.rested) = (false, false);
    }

    /// True once after a turn that has ended with a single event: programs that read until there is nothing more are told so without
    /// a look, for the same reason.
    #[inline]
    pub(crate) fn rests(&mut self) -> bool {
        self.will_rest() && !std::mem::replace(&mut self.rested, true)
    }

    /// The last turn has ended with a single event.
    #[inline]
    pub(crate) fn will_rest(&self) -> bool {
        self.batch == 1 && self.had_enough
    }

    /// From now on any event is news.
    pub(crate) fn begin_to_wait(&mut self) {
        self.busy_at = self.events.count + 1;
    }

    /// The peer at an address.
    #[inline]
    pub(crate) fn peer(&mut self, address: EndpointAddress) -> u32 {
        match self.last {
            Some((last, peer)) if last == address => peer,
            _ => self.find_peer(address),
        }
    }

    fn find_peer(&mut self, address: EndpointAddress) -> u32 {
        let peers = &mut self.peers;
        let sources = &self.sources;
        let peer = *self.by_address.entry(address).or_insert_with(|| {
            let source = sources.get(&address).copied().unwrap_or(FI_ADDR_NOTAVAIL);
            peers.push(Peer { address, source, expected: None, arriving: None });
            (peers.len() - 1) as u32
        });
        self.last = Some((address, peer));
        peer
    }

    /// The address vector calls this address so.
    pub(crate) fn name_source(&mut self, address: EndpointAddress, source: u64) {
        self.sources.insert(address, source);
        self.gone.remove(&source);
        if let Some(&peer) = self.by_address.get(&address) {
            self.peers[peer as usize].source = source;
            self.holding.name_source(peer, source);
        }
    }

    /// A head has arrived, with what lies behind it. What cannot be read is nobody's message.
    #[inline]
    pub(crate) fn arrive(&mut self, from: EndpointAddress, tag: u64, bytes: &[u8]) {
        let peer = self.peer(from);
        let words = Words(bytes);
        let taken = match Kind::of(tag) {
            Some(Kind::Tagged) => self.arrive_message(Lane::Tagged, peer, tag, words),
            Some(Kind::Plain) => self.arrive_message(Lane::Plain, peer, tag, words),
            Some(Kind::Write) => self.serve_write(peer, tag, words),
            Some(Kind::Read) => self.serve_read(peer, tag, words),
            Some(Kind::Atomic) => self.serve_atomic(peer, tag, words),
            Some(Kind::Reply) => self.arrive_reply(peer, tag, words),
            Some(Kind::Bulk) | None => None,
        };
        if taken.is_none() && tag & BULK != 0 {
            self.peers[peer as usize].expected = Some(Expected::Nowhere);
        }
    }

    #[inline]
    fn arrive_message(&mut self, lane: Lane, peer: u32, tag: u64, mut words: Words<'_>) -> Option<()> {
        let data = words.data(tag)?;
        let acknowledge = if tag & ACKNOWLEDGE != 0 { Some(words.word()?) } else { None };
        let program_tag = if lane == Lane::Tagged { words.word()? } else { 0 };
        let bulk = tag & BULK != 0;
        let len = if bulk { words.word()? } else { words.payload().len() as u64 };
        let source = self.peers[peer as usize].source;
        let meta = Meta { lane, peer, source, tag: program_tag, data, len, acknowledge };
        match (self.receives.take(lane, source, program_tag, len), bulk) {
            (Some(receive), false) => self.fill(&receive, &meta, words.payload()),
            (Some(receive), true) => self.expect(peer, Op::Receive { receive, meta }),
            (None, false) => {
                self.holding.keep(meta, Body::Whole(words.payload().to_vec()));
                self.acknowledge(&meta);
            }
            (None, true) => {
                let serial = self.holding.keep(meta, Body::Coming);
                self.peers[peer as usize].expected = Some(Expected::Held(serial));
            }
        }
        Some(())
    }

    /// The next bulk of a peer belongs to an operation.
    pub(crate) fn expect(&mut self, peer: u32, op: Op) {
        let op = self.ops.insert(op);
        self.peers[peer as usize].expected = Some(Expected::To(op));
    }

    /// Posts a receive that nothing is here for. One that only somebody can meet who is gone is over at once.
    #[inline]
    pub(crate) fn post(&mut self, lane: Lane, filter: Filter, receive: Receive) {
        if !self.gone.is_empty() && self.gone.contains(&filter.source) {
            self.receives.fail(lane, &receive, Errno::CONNABORTED, &mut self.events);
        } else {
            self.receives.post(lane, filter, receive);
        }
    }

    /// A message that is here goes to its receive.
    #[inline]
    pub(crate) fn fill(&mut self, receive: &Receive, meta: &Meta, bytes: &[u8]) {
        // SAFETY: the program lent the memory with the receive, which is not over yet.
        let copied = unsafe { receive.into.copy_from(bytes) };
        self.receives.over(receive, meta, copied, None, &mut self.events);
        self.acknowledge(meta);
    }

    /// A message has arrived, and its sender may want to hear that.
    #[inline]
    pub(crate) fn acknowledge(&mut self, meta: &Meta) {
        if let Some(request) = meta.acknowledge {
            let to = self.peers[meta.peer as usize].address;
            self.outbox.push_back(Reply::done(to, request));
        }
    }

    fn arrive_reply(&mut self, peer: u32, tag: u64, mut words: Words<'_>) -> Option<()> {
        let id = OpId::of(parameter(tag));
        let from = self.peers[peer as usize].address;
        match self.ops.find(id)? {
            Op::Send { to, acknowledged: true, .. } | Op::Request { to, .. } if *to == from => {}
            _ => return None,
        }
        let progress = self.ops.progress(id)?;
        if std::mem::replace(&mut progress.answered, true) {
            return None;
        }
        if tag & WIDE != 0 {
            let errno = Errno(words.word()?.clamp(1, 4095) as i32);
            self.end(id, Some(errno), 0);
            return Some(());
        }
        if tag & BULK != 0 {
            if let Some(Op::Send { .. }) = self.ops.find(id) {
                return None;
            }
            self.peers[peer as usize].expected = Some(Expected::To(id));
            return Some(());
        }
        if let Some(Op::Request { into, .. }) = self.ops.find(id) {
            // SAFETY: the program lent the memory with the request, which is not over yet.
            unsafe { into.copy_from(words.payload()) };
        }
        self.end(id, None, 0);
        Some(())
    }

    /// The buffer that an operation wants its bulk in.
    fn lend(&self, id: OpId, len: u64) -> Option<Buffer> {
        Some(match self.ops.find(id)? {
            // SAFETY: the program lent the memory with the operation, which is under way until its bulk is there.
            Op::Receive { receive, .. } => unsafe { receive.into.lend(true) },
            // SAFETY: as above.
            Op::Request { into, .. } => unsafe { into.lend(true) },
            Op::Deposit(deposit) => {
                // SAFETY: the bytes lie in a region that the program has registered for writing by others, and which stays
                // registered while the operation holds it.
                unsafe { Buffer::lent(deposit.place, deposit.len as usize) }
            }
            Op::Collect { words, .. } => vec![0; words[3].min(len) as usize].into(),
            Op::Send { .. } | Op::Serve { .. } => return None,
        })
    }

    /// The client library has memory of an operation's.
    pub(crate) fn lends(&mut self, id: OpId) {
        if let Some(progress) = self.ops.progress(id) {
            progress.lent += 1;
        }
    }

    /// It has given it back. If the operation was over but for that, it is over now.
    fn returned(&mut self, id: OpId) {
        if let Some(progress) = self.ops.progress(id) {
            progress.lent -= 1;
            if let Some(error) = progress.verdict {
                self.end(id, error, 0);
            }
        }
    }

    /// An operation is over: well, or with an error. Of a bulk, `len` bytes were sent.
    pub(crate) fn end(&mut self, id: OpId, error: Option<Errno>, len: u64) {
        if let Some(progress) = self.ops.progress(id)
            && progress.lent > 0
        {
            progress.verdict = progress.verdict.or(Some(error));
            return;
        }
        match self.ops.take(id) {
            Some(Op::Send { report, .. } | Op::Request { report, .. }) => self.report(&report, error),
            Some(Op::Receive { receive, meta }) => {
                let meta = Meta { len: if error.is_some() { meta.len } else { len }, ..meta };
                let copied = if error.is_some() { 0 } else { receive.into.len().min(len as usize) };
                self.receives.over(&receive, &meta, copied, error, &mut self.events);
                if error.is_none() {
                    self.acknowledge(&meta);
                }
            }
            Some(Op::Deposit(deposit)) if error.is_none() => self.deposited(deposit, len),
            Some(Op::Deposit(_) | Op::Collect { .. } | Op::Serve { .. }) | None => {}
        }
    }

    /// An operation of the program's is over.
    pub(crate) fn report(&mut self, report: &Report, error: Option<Errno>) {
        if report.injected {
            return self.events.counted(report.counted, error.is_some());
        }
        let error = error.map_or(0, |errno| errno.0);
        let event = Event { error, len: report.len, ..Event::of(report.context, report.flags) };
        self.events.over(Side::Transmit, report.counted, report.tell, event);
    }

    /// A bulk is in the buffer that was lent for it.
    fn arrived(&mut self, id: OpId, bytes: &[u8], len: u64) {
        match self.ops.find(id) {
            Some(Op::Receive { receive, .. }) => {
                if let crate::engine::pieces::Pieces::Many(_) = receive.into {
                    // SAFETY: the program lent the memory with the receive, which is not over yet.
                    unsafe { receive.into.copy_from(&bytes[..bytes.len().min(len as usize)]) };
                }
                self.end(id, None, len);
            }
            Some(Op::Request { into, .. }) => {
                if let crate::engine::pieces::Pieces::Many(_) = into {
                    // SAFETY: as above.
                    unsafe { into.copy_from(&bytes[..bytes.len().min(len as usize)]) };
                }
                self.returned(id);
                self.end(id, None, len);
            }
            Some(Op::Collect { .. }) => self.collected(id, bytes),
            _ => self.end(id, None, len),
        }
    }

    /// A bulk that was arriving is here, all of it.
    fn arrived_whole(&mut self, peer: u32, bytes: Vec<u8>) {
        match self.peers[peer as usize].arriving.take() {
            Some(Expected::Held(serial)) => {
                let Some(held) = self.holding.named(serial) else { return };
                held.meta.len = bytes.len() as u64;
                held.body = Body::Whole(bytes);
                let meta = held.meta;
                self.acknowledge(&meta);
                self.events.count += 1;
            }
            Some(Expected::To(id)) => {
                let len = bytes.len() as u64;
                if let Some(Op::Receive { receive, .. }) = self.ops.find(id) {
                    // SAFETY: the program lent the memory with the receive, which is not over yet.
                    unsafe { receive.into.copy_from(&bytes) };
                    self.end(id, None, len);
                }
            }
            Some(Expected::Nowhere) | None => {}
        }
    }

    /// A bulk that nobody has posted anything for.
    fn hold_bulk(&mut self, message: Unexpected) {
        let peer = self.peer(message.envelope.from);
        let expected = self.peers[peer as usize].expected.take();
        if let UnexpectedState::Arriving = message.state {
            self.peers[peer as usize].arriving = expected;
        }
        let Some(Expected::Held(serial)) = expected else { return };
        let Some(held) = self.holding.named(serial) else { return };
        held.meta.len = message.envelope.len;
        let whole = match message.state {
            UnexpectedState::Whole(bytes) => {
                held.body = Body::Whole(bytes);
                Some(held.meta)
            }
            UnexpectedState::Arriving => {
                held.body = Body::Arriving;
                None
            }
            UnexpectedState::Announced(_) => {
                held.body = Body::Announced(message);
                None
            }
        };
        if let Some(meta) = whole {
            self.acknowledge(&meta);
        }
    }

    /// Everything that a domain has to do with is over, with this error.
    fn lose(&mut self, domain: DomainId, errno: Errno) {
        let mut over = Vec::new();
        for peer in self.peers.iter_mut().filter(|peer| peer.address.domain == domain) {
            let expected = [peer.expected.take(), peer.arriving.take()];
            over.extend(expected.into_iter().flatten().filter_map(|expected| match expected {
                Expected::To(id) => Some(id),
                Expected::Held(_) | Expected::Nowhere => None,
            }));
        }
        over.extend(self.ops.those(|op| match op {
            Op::Send { to, acknowledged, .. } => *acknowledged && to.domain == domain,
            Op::Request { to, .. } => to.domain == domain,
            _ => false,
        }));
        over.into_iter().for_each(|id| self.end(id, Some(errno), 0));
        let peers = &self.peers;
        self.holding.forget(|peer| peers[peer as usize].address.domain == domain);
    }
}

impl Matcher for Hub {
    #[inline]
    fn take_short(&mut self, envelope: &Envelope, words: &[u32]) -> bool {
        if Kind::of(envelope.tag) == Some(Kind::Bulk) {
            return false;
        }
        #[cfg(target_endian = "big")]
        let words =
            &std::array::from_fn::<u32, { SHORT_MAX / 4 }, _>(|at| words.get(at).map_or(0, |word| word.to_le()))[..];
        // SAFETY: words are bytes, as many as there are, in the order in which they were sent.
        let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), size_of_val(words)) };
        let len = (envelope.len as usize).min(bytes.len());
        self.arrive(envelope.from, envelope.tag, &bytes[..len]);
        true
    }

    #[inline]
    fn take(&mut self, envelope: &Envelope) -> Option<Posted> {
        if Kind::of(envelope.tag) != Some(Kind::Bulk) {
            return None;
        }
        let peer = self.peer(envelope.from) as usize;
        let nobody = || Posted { token: NOWHERE, buffer: Vec::new().into() };
        match self.peers[peer].expected {
            Some(Expected::Held(_)) => None,
            Some(Expected::To(id)) => {
                self.peers[peer].expected = None;
                let buffer = self.lend(id, envelope.len);
                if buffer.is_some() {
                    self.lends(id);
                }
                Some(buffer.map_or_else(nobody, |buffer| Posted { token: Token::new(id.bits()), buffer }))
            }
            Some(Expected::Nowhere) | None => {
                self.peers[peer].expected = None;
                Some(nobody())
            }
        }
    }

    fn hold(&mut self, message: Unexpected) {
        match (Kind::of(message.envelope.tag), &message.state) {
            (Some(Kind::Bulk), _) => self.hold_bulk(message),
            (_, UnexpectedState::Whole(bytes)) if bytes.len() <= SHORT_MAX => {
                self.arrive(message.envelope.from, message.envelope.tag, bytes);
            }
            _ => {} // No endpoint of ours sends such.
        }
    }

    fn whole(&mut self, envelope: &Envelope, bytes: Vec<u8>) {
        if Kind::of(envelope.tag) == Some(Kind::Bulk) {
            let peer = self.peer(envelope.from);
            self.arrived_whole(peer, bytes);
        }
    }

    fn next_match(&mut self, _endpoint: EndpointIndex) -> Option<(Posted, Unexpected)> {
        None
    }

    #[inline]
    fn complete(&mut self, completion: Completion) {
        let token = completion.token.number();
        if token & EAGER != 0 {
            self.eager -= 1;
        }
        let id = OpId::of(token);
        let error = match completion.outcome {
            Outcome::Received { len, .. } => return self.arrived(id, completion.buffer.as_slice(), len),
            Outcome::Sent { .. } => None,
            Outcome::Failed(reason) => Some(reason.into()),
            Outcome::Cancelled => Some(Errno::CANCELED),
        };
        // Of a request, a token that is neither is that of the buffer its answer was to come into.
        if token & PAYLOAD != 0
            || (token & (ASIDE | EAGER) == 0 && matches!(self.ops.find(id), Some(Op::Request { .. })))
        {
            self.returned(id);
        }
        if error.is_some() || token & ASIDE == 0 {
            self.end(id, error, 0);
        }
    }

    #[inline]
    fn is_busy(&self) -> bool {
        self.events.count >= self.busy_at
    }

    fn forget(&mut self, peer: DomainId) {
        self.lose(peer, Errno::CONNABORTED);
    }

    fn gone(&mut self, peer: DomainId) {
        for (_, source) in self.sources.iter().filter(|(address, _)| address.domain == peer) {
            self.receives.fail_from(*source, Errno::CONNABORTED, &mut self.events);
            self.gone.insert(*source);
        }
    }

    fn close(&mut self, endpoint: EndpointIndex) -> (Vec<Posted>, Vec<Unexpected>) {
        let unexpected = self.holding.drain().into_iter().filter_map(|held| match held.body {
            Body::Announced(message) => Some(message),
            Body::Whole(_) | Body::Coming | Body::Arriving => None,
        });
        let unexpected = unexpected.filter(|message| message.envelope.to == endpoint).collect();
        (Vec::new(), unexpected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns at which so many events are to be had: what each turn finds, or that it is left out.
    fn turns(hub: &mut Hub, waiting: &[u64]) -> Vec<Option<u64>> {
        let turn = |&waiting: &u64| {
            let begun = hub.events.count;
            (!hub.rests()).then(|| {
                hub.begin();
                while !hub.is_busy() && hub.events.count < begun + waiting {
                    hub.events.count += 1;
                }
                hub.end_turn();
                hub.events.count - begun
            })
        };
        waiting.iter().map(turn).collect()
    }

    #[test]
    fn a_turn_ends_with_the_first_event_and_the_next_one_is_left_out() {
        let mut hub = Hub::new(Arc::default());
        assert_eq!(turns(&mut hub, &[0, 0, 1, 0, 0, 1, 0]), [Some(0), Some(0), Some(1), None, Some(0), Some(1), None]);
    }

    #[test]
    fn turns_of_a_stream_find_more_and_more() {
        let mut hub = Hub::new(Arc::default());
        let many = u64::MAX / 2;
        let found = turns(&mut hub, &[many, many, many, many, many, many, many, 0, many]);
        let expected = [Some(1), None, Some(2), Some(4), Some(8), Some(16), Some(16), Some(0), Some(1)];
        assert_eq!(found, expected);
    }
}
