//! A fabric endpoint: a domain of its own with one client endpoint in it.

use crate::engine::dispatcher::{Dispatcher, INDEX, PayloadTarget};
use crate::engine::header::{Header, PAYLOAD_FOLLOWS, PacketKind, WIDE_DATA};
use crate::engine::name::Name;
use crate::engine::ops::{EAGER, OP_CONTINUES, Op};
use crate::engine::receive::{Filter, MatchSpace, Receive};
use crate::engine::regions::Regions;
use crate::engine::serve::{Reply, ReplyBody};
use crate::engine::unexpected::{Body, UnexpectedMessage};
use crate::errno::Errno;
use isthmus_client::{
    Buffer, Domain, EndpointAddress, Message, MxOpenedEndpoint, Options, Posted, Reason, Token, UnexpectedState,
};
use rustix::fd::BorrowedFd;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The key of MX endpoints that belong to fabrics: "ISFI".
const MX_KEY: u32 = 0x4953_4649;

/// The longest time that sent messages may take to leave when an endpoint is closed.
const LINGER: Duration = Duration::from_secs(1);

/// An endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) domain: Domain<Dispatcher>,
    pub(crate) name: Name,
    /// The boards of this host's daemon.
    nics: Vec<u64>,
    /// The addresses of the address vector's numbers that have been resolved.
    addresses: Vec<Option<EndpointAddress>>,
    by_name: HashMap<Name, EndpointAddress>,
    /// The number of operations done directly in a peer's memory.
    pub(crate) direct_ops: u32,
}

impl Endpoint {
    /// Attaches to the daemon.
    pub(crate) fn open(options: &Options, regions: Arc<Regions>) -> Result<Self, Errno> {
        let mut domain = attach(options, Arc::clone(&regions))?;
        if let Some(arena) = regions.arena() {
            domain.share_arena(arena);
        }
        domain.open(Some(INDEX), "fabric")?;
        let claimed = domain.mx_open(None, None, MX_KEY, INDEX);
        let mut nics: Vec<u64> =
            domain.mx().map_or_else(|_| Vec::new(), |mx| mx.boards.iter().map(|b| b.nic).collect());
        // An endpoint without an MX endpoint number is reachable on this host only.
        let (nic, number) = match claimed {
            Ok(MxOpenedEndpoint { endpoint, nic, .. }) => (nic, u16::try_from(endpoint).ok()),
            Err(_) => (nics.first().copied().unwrap_or(0), None),
        };
        if !nics.contains(&nic) {
            nics.push(nic);
        }
        let name = Name { nic, number, domain: domain.id() };
        Ok(Self { domain, name, nics, addresses: Vec::new(), by_name: HashMap::new(), direct_ops: 0 })
    }

    #[inline]
    pub(crate) fn dispatcher(&mut self) -> &mut Dispatcher {
        self.domain.matcher_mut()
    }

    /// Makes progress. Returns false if there was nothing to do.
    #[inline]
    pub(crate) fn progress(&mut self) -> bool {
        if self.progress_if_idle() {
            return false;
        }
        self.progress_now();
        true
    }

    /// Makes progress only if it is certain that there is nothing to do; returns true in that case.
    #[inline(always)]
    fn progress_if_idle(&mut self) -> bool {
        let dispatcher = self.domain.matcher();
        let quiet = dispatcher.outbox.is_empty() && dispatcher.assisted.is_empty() && self.domain.is_idle();
        if quiet {
            self.dispatcher().budget.note_idle();
        }
        quiet
    }

    /// Returns true if there are no events of these sides, and a progress call finds none either. In that case this was a progress call.
    #[inline(always)]
    pub(crate) fn is_quiet(&mut self, sides: [bool; 2]) -> bool {
        !self.has_event(sides) && !self.domain.matcher().budget.will_skip() && self.progress_if_idle()
    }

    #[inline(never)]
    fn progress_now(&mut self) {
        self.dispatcher().begin_progress();
        self.domain.progress();
        self.dispatcher().finish_iteration();
        self.send_replies();
    }

    /// Returns true if there are events of these sides for the program.
    #[inline]
    pub(crate) fn has_event(&self, sides: [bool; 2]) -> bool {
        self.domain.matcher().events.has_any_of(sides)
    }

    /// Makes progress like [`progress`](Self::progress), for a caller that reads repeatedly: skipped once after a call that found a single
    /// event.
    #[inline]
    pub(crate) fn progress_unless_skipped(&mut self) -> bool {
        !self.dispatcher().budget.should_skip() && self.progress()
    }

    /// Arms the descriptor, which reports everything from now on. Returns false if there is something to do already.
    pub(crate) fn arm(&mut self) -> bool {
        self.dispatcher().prepare_wait();
        self.domain.arm() && self.dispatcher().outbox.is_empty()
    }

    /// Returns the number of records from the daemon that have been received.
    #[inline]
    pub(crate) fn daemon_records(&self) -> u64 {
        self.domain.daemon_records()
    }

    /// Returns the descriptor that reports events.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.domain.fd()
    }

    /// Waits until the receivers have taken the injected messages, and reports those that are left. Calls `between`
    /// repeatedly while it waits.
    pub(crate) fn deliver_injected(&mut self, limit: Duration, mut between: impl FnMut()) {
        self.send_replies();
        self.domain.deliver(limit, Dispatcher::is_injected, |dispatcher| {
            between();
            dispatcher.begin_progress();
        });
        self.domain.report_undelivered(Dispatcher::is_injected);
    }

    /// Detaches. Delivers sent messages within a limited time.
    pub(crate) fn close(mut self) {
        self.send_replies();
        self.domain.leave(LINGER, |dispatcher| dispatcher.begin_progress());
    }

    /// Sets or removes the name of a number in the address vector. `first` is the number that represents the name.
    pub(crate) fn insert(&mut self, at: usize, name: Option<Name>, first: usize) {
        if self.addresses.len() <= at {
            self.addresses.resize(at + 1, None);
        }
        self.addresses[at] = None;
        if let Some(name) = name
            && let Some(address) = self.local_address(&name)
        {
            self.set_address(at, name, address, first);
        }
    }

    /// Returns the address of an endpoint that is attached to the same daemon.
    fn local_address(&self, name: &Name) -> Option<EndpointAddress> {
        self.nics.contains(&name.nic).then_some(EndpointAddress { domain: name.domain, endpoint: INDEX })
    }

    fn set_address(&mut self, at: usize, name: Name, address: EndpointAddress, first: usize) {
        if self.addresses.len() <= at {
            self.addresses.resize(at + 1, None);
        }
        self.addresses[at] = Some(address);
        self.by_name.insert(name, address);
        self.dispatcher().set_source(address, first as u64);
    }

    /// Returns the endpoint of a number in the address vector, if it was resolved before.
    #[inline]
    pub(crate) fn place(&self, at: usize) -> Option<EndpointAddress> {
        self.addresses.get(at).copied().flatten()
    }

    /// Resolves an endpoint of another host.
    pub(crate) fn resolve_remote(&mut self, at: usize, name: Name, first: usize) -> Result<EndpointAddress, Errno> {
        let found = match (self.local_address(&name), name.number, self.by_name.get(&name)) {
            (Some(address), _, _) | (None, _, Some(&address)) => address,
            (None, None, None) => return Err(Errno::HOSTUNREACH),
            (None, Some(number), None) => self.domain.mx_connect(name.nic, u32::from(number), MX_KEY)?,
        };
        self.set_address(at, name, found, first);
        Ok(found)
    }

    /// Sends a message of an operation that goes on after it. A message that leaves at once has no completion.
    pub(crate) fn send_short(&mut self, to: EndpointAddress, header: &Header, token: u64) -> Result<(), Errno> {
        assert!(token & OP_CONTINUES != 0); // Ours: nothing would end the operation.
        if self.domain.inject(INDEX, to, header.tag, header.body()) {
            return Ok(());
        }
        self.queue_short(to, header, token)
    }

    /// Queues a message. Its completion follows, even if there is room for the message by now.
    pub(crate) fn queue_short(&mut self, to: EndpointAddress, header: &Header, token: u64) -> Result<(), Errno> {
        self.dispatcher().eager += 1;
        let buffer = Buffer::from(header.body().to_vec());
        self.post(to, header.tag, buffer, token | EAGER, false)
    }

    /// Posts a message to the client library.
    pub(crate) fn post(
        &mut self,
        to: EndpointAddress,
        tag: u64,
        buffer: Buffer,
        token: u64,
        sync: bool,
    ) -> Result<(), Errno> {
        let message = Message { token: Token::new(token), from: INDEX, to, tag, buffer, sync };
        self.domain.post(message).map_err(|(refusal, _)| {
            if token & EAGER != 0 {
                self.dispatcher().eager -= 1;
            }
            refusal.into()
        })
    }

    /// Sends all replies that wait. A reply that cannot be sent is dropped, because the requester is gone.
    #[inline]
    pub(crate) fn send_replies(&mut self) {
        while let Some(reply) = self.dispatcher().outbox.pop_front() {
            let _ = self.send_reply(reply);
        }
        if !self.dispatcher().assisted.is_empty() {
            self.record_assisted_access();
        }
    }

    /// Records the accesses that needed the owner's help, for reports.
    #[cold]
    fn record_assisted_access(&mut self) {
        for (peer, reason) in std::mem::take(&mut self.dispatcher().assisted) {
            self.domain.record_assisted_accesses(peer, reason, 1);
        }
    }

    #[cold]
    fn send_reply(&mut self, reply: Reply) -> Result<(), Errno> {
        let Reply { to, request, answer } = reply;
        let mut header = Header::new(PacketKind::Reply, request);
        match answer {
            ReplyBody::Done => {}
            ReplyBody::Refused(errno) => {
                header.tag |= WIDE_DATA;
                header.word(errno.0 as u64);
            }
            ReplyBody::Bytes(bytes) if bytes.len() <= header.room() => {
                header.payload(bytes.len()).copy_from_slice(&bytes)
            }
            ReplyBody::Bytes(bytes) => {
                header.tag |= PAYLOAD_FOLLOWS;
                self.send_short(to, &header, OP_CONTINUES)?;
                self.dispatcher().eager += 1;
                return self.post(to, PacketKind::Payload.bits(), bytes.into(), OP_CONTINUES | EAGER, false);
            }
            ReplyBody::Region(region, place) => {
                // SAFETY: the place is in a region that is registered for reading by others, and that stays registered while
                // `region` is held, which the operation below does until the buffer is given back.
                let buffer = unsafe { Buffer::from_raw_parts(place.start, place.len) };
                if place.len <= header.room() {
                    header.payload(place.len).copy_from_slice(buffer.as_slice());
                } else {
                    header.tag |= PAYLOAD_FOLLOWS;
                    self.send_short(to, &header, OP_CONTINUES)?;
                    let op = self.dispatcher().ops.insert(Op::RemoteRead { region, to: to.domain });
                    let posted = self.post(to, PacketKind::Payload.bits(), buffer, op.bits(), false);
                    if posted.is_err() {
                        self.dispatcher().ops.take(op);
                    }
                    return posted;
                }
            }
        }
        self.send_short(to, &header, OP_CONTINUES)
    }

    /// Delivers an unexpected message to a receive.
    pub(crate) fn deliver_held(&mut self, unexpected: UnexpectedMessage, receive: Receive) {
        let UnexpectedMessage { meta, body, .. } = unexpected;
        match body {
            Body::Whole(bytes) => {
                // The message was acknowledged when it arrived.
                let meta = crate::engine::receive::Meta { acknowledge: None, ..meta };
                self.dispatcher().fill(&receive, &meta, &bytes);
            }
            Body::Coming => self.dispatcher().expect(meta.peer, Op::Receive { receive, meta }),
            Body::Arriving => {
                let op = self.dispatcher().ops.insert(Op::Receive { receive, meta });
                self.dispatcher().peers[meta.peer as usize].arriving = Some(PayloadTarget::To(op));
            }
            Body::Announced(message) => {
                // SAFETY: the program lent the memory with the receive, until that is over.
                let buffer = unsafe { receive.into.as_buffer(true) };
                let op = self.dispatcher().ops.insert(Op::Receive { receive, meta });
                self.domain.deliver_held(Posted { token: Token::new(op.bits()), buffer }, message);
            }
        }
    }

    /// Discards an unexpected message.
    pub(crate) fn discard(&mut self, unexpected: &UnexpectedMessage) {
        let peer = unexpected.meta.peer as usize;
        match &unexpected.body {
            Body::Whole(_) => {}
            Body::Coming => self.dispatcher().peers[peer].payload_target = Some(PayloadTarget::Discard),
            Body::Arriving => self.dispatcher().peers[peer].arriving = Some(PayloadTarget::Discard),
            Body::Announced(message) => {
                debug_assert!(matches!(message.state, UnexpectedState::Announced(_)), "the others are not kept so");
                self.domain.discard_held(message);
            }
        }
    }

    /// Posts a receive for one message, or for several messages in one buffer.
    pub(crate) fn receive(&mut self, space: MatchSpace, filter: Filter, mut receive: Receive, multi: bool) {
        if !multi {
            match self.dispatcher().unexpected.take(space, &filter) {
                Some(unexpected) => self.deliver_held(unexpected, receive),
                None => self.dispatcher().post(space, filter, receive),
            }
            return;
        }
        self.dispatcher().receives.make_multi(&mut receive);
        let (context, wants_completion) = (receive.context, receive.wants_completion);
        while let Some(id) = receive.multi
            && let Some(unexpected) = self.dispatcher().unexpected.take(space, &filter)
        {
            let Some((part, spent)) =
                self.dispatcher().receives.carve(id, context, wants_completion, unexpected.meta.len)
            else {
                return;
            };
            self.deliver_held(unexpected, part);
            if spent {
                return;
            }
        }
        self.dispatcher().receives.post(space, filter, receive);
    }

    /// Returns true while an operation on a region is in progress.
    pub(crate) fn is_region_in_use(&self, region: &Arc<crate::engine::regions::Region>) -> bool {
        self.domain.matcher().ops.any(|op| match op {
            Op::RemoteRead { region: used, .. } => Arc::ptr_eq(used, region),
            Op::RemoteWrite(remote_write) => Arc::ptr_eq(&remote_write.region, region),
            _ => false,
        })
    }

    /// Returns the client library's borrowed buffers in a region, even if an operation is in progress.
    pub(crate) fn release_borrowed_buffers(&mut self, region: &Arc<crate::engine::regions::Region>) {
        let dispatcher = self.domain.matcher();
        let to = dispatcher.ops.find_all(|op| match op {
            Op::RemoteRead { region: used, .. } => Arc::ptr_eq(used, region),
            Op::RemoteWrite(remote_write) => Arc::ptr_eq(&remote_write.region, region),
            _ => false,
        });
        for id in to {
            let peer = match self.dispatcher().ops.take(id) {
                Some(Op::RemoteRead { to, .. }) => to,
                Some(Op::RemoteWrite(remote_write)) => {
                    self.dispatcher().peers[remote_write.peer as usize].address.domain
                }
                _ => continue,
            };
            self.domain.release_borrowed_buffers(peer);
        }
    }
}

/// Attaches to the daemon. Only the first endpoint of the process gets a name that the environment sets.
fn attach(options: &Options, regions: Arc<Regions>) -> Result<Domain<Dispatcher>, Errno> {
    match Domain::attach_matching(options, Dispatcher::new(Arc::clone(&regions))) {
        Err(error) if error.reason() == Some(Reason::NameTaken) => {
            let nameless = Options { name: None, ..options.clone() };
            Ok(Domain::attach_matching(&nameless, Dispatcher::new(regions))?)
        }
        attached => Ok(attached?),
    }
}
