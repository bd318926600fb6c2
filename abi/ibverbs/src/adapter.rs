//! An open device: a domain of its own, with the engine in its matcher.
//!
//! ```text
//!   verbs ─► Adapter ─► Engine ── next_outgoing, next_ack ──► Domain::inject, Domain::post ──► channel, daemon path
//!               │         ▲
//!               └ progress └── Port (matcher) ◄── Domain::progress ◄── channel, daemon path
//! ```

use crate::events::{ChannelPipe, Events};
use crate::exposures::{Exposures, Region};
use crate::memory::{self, Range};
use crate::port::{Port, STRAY};
use isthmus_client::arena::AccessRights;
use isthmus_client::{
    AttachError, Buffer, Domain, EndpointAddress, EndpointIndex, Message, Options, Reason, Refusal, Token,
};
use isthmus_verbs::{
    Access, AttributeMask, Attributes, Completion, Cq, Direct, Engine, Found, Gid, Key, LookUp, Operation, Payload, Pd,
    PeerAccesses, QpInit, QpNumber, QpState, ReceiveRequest, Refused, SHORT_BYTES_MAX, SendRequest, Srq,
};
use rustix::fd::BorrowedFd;
use rustix::time::ClockId;
use std::sync::Arc;
use std::time::Duration;

/// The one endpoint of the domain.
const INDEX: EndpointIndex = EndpointIndex::new(0).expect("there is an endpoint 0");

/// The longest time that sent messages may take to leave when a device is closed.
const LINGER: Duration = Duration::from_secs(1);

/// The longest time for which a post waits, so that requests can be performed directly, in nanoseconds.
const DRAIN_NS: u64 = 20_000_000;

/// The number of waits that end so, after which posts wait no more until a request was performed directly.
const FAILED_WAITS_MAX: u32 = 8;

/// Iterations of the serving thread with the lock held, and before a queue pair ends, at most.
const ITERATIONS_PER_VISIT: u32 = 64;

/// The time after which an event is written again that found no room.
const RETRY_EVENTS: Duration = Duration::from_millis(10);

/// Requests of peers for memory that are recorded together, at most.
const ACCESSES_PER_RECORD: u64 = 64;

/// Look-ups of peers in one progress call, at most.
const LOOK_UPS_PER_PROGRESS: u32 = 16;

/// The time after which a daemon hangs that has not answered a look-up.
const HANGS_NS: u64 = 1_000_000_000;

/// Sends between two progress calls, at most, for a program that posts without polling.
const POSTS_PER_PROGRESS: u32 = 64;

/// An open device.
#[derive(Debug)]
pub(crate) struct Adapter {
    domain: Domain<Port>,
    /// Posts since the last progress call.
    posts: u32,
    /// Posts, one after the other, that have waited for earlier requests and given up.
    failed_waits: u32,
    /// The device has left the daemon.
    closed: bool,
    pub(crate) events: Events,
    /// The process that has opened the device.
    process: u32,
    exposures: Arc<Exposures>,
    /// Requests of peers for memory that were recorded.
    accesses: u64,
    /// A thread makes progress if the program makes no calls, so acknowledgements may wait for the next one.
    pub(crate) has_serving_thread: bool,
}

/// Ranges of a request that is performed directly, at most. Longer lists travel in packets.
const RANGES_MAX: usize = 4;

impl Adapter {
    /// Attaches. A name that the environment gives can only be the first device's.
    pub(crate) fn open(options: &Options, events: Events) -> Result<Self, AttachError> {
        let port = || {
            let mut seed = [0; 8];
            // The kernel refuses this only before it has any randomness, at boot. Keys are guessable then.
            let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
            Port::new(Engine::new(u64::from_ne_bytes(seed)))
        };
        let mut domain = match Domain::attach_matching(options, port()) {
            Err(error) if error.reason() == Some(Reason::NameTaken) => {
                let nameless = Options { name: None, ..options.clone() };
                Domain::attach_matching(&nameless, port())?
            }
            attached => attached?,
        };
        domain.open(Some(INDEX), "verbs")?;
        let mut adapter = Self {
            domain,
            posts: 0,
            failed_waits: 0,
            closed: false,
            events,
            process: std::process::id(),
            exposures: Arc::new(Exposures::new(options.no_regcache)),
            accesses: 0,
            has_serving_thread: false,
        };
        adapter.take_numbers()?;
        Ok(adapter)
    }

    /// Leaves. Sent messages are delivered, in bounded time.
    pub(crate) fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            self.flush();
            self.send_acks();
            self.domain.leave(LINGER, Port::begin_progress);
        }
    }

    fn take_numbers(&mut self) -> Result<(), Refusal> {
        let numbers = self.domain.verbs_take(INDEX)?;
        self.engine().add_numbers(numbers);
        Ok(())
    }

    /// The engine. A caller that posts or changes something calls [`Self::flush`] afterwards.
    #[inline]
    pub(crate) fn engine(&mut self) -> &mut Engine {
        &mut self.domain.matcher_mut().engine
    }

    /// Makes a queue pair.
    pub(crate) fn create_qp(&mut self, init: &QpInit) -> Result<(QpNumber, QpInit), Refused> {
        match self.engine().create_qp(init) {
            Err(Refused::NumbersMissing) => {
                self.take_numbers().map_err(|_| Refused::Full)?;
                self.engine().create_qp(init)
            }
            made => made,
        }
    }

    /// Changes a queue pair. The daemon is asked for the peer of a connection.
    pub(crate) fn modify_qp(
        &mut self,
        number: QpNumber,
        attributes: &Attributes,
        mask: AttributeMask,
    ) -> Result<(), Refused> {
        let found = mask.contains(AttributeMask::ADDRESS).then(|| {
            let is_new = mask.contains(AttributeMask::DESTINATION);
            let kept = self.query_qp(number).filter(|_| !is_new).map(|(_, kept, _)| kept.destination);
            self.look_up(attributes.address.gid, kept.unwrap_or(attributes.destination))
        });
        if mask.contains(AttributeMask::STATE) && matches!(attributes.state, QpState::Reset | QpState::Error) {
            self.take_arrived();
        }
        let peer = found.and_then(Found::device);
        let changed = self.engine().modify_qp(number, attributes, mask, peer);
        if let (Some(found), None, Ok(())) = (found, peer, changed) {
            self.engine().looked_up(number, found);
        }
        self.flush();
        self.send_acks();
        self.deliver_events();
        changed
    }

    /// Ends a queue pair.
    pub(crate) fn destroy_qp(&mut self, number: QpNumber) -> Result<(), Refused> {
        self.take_arrived();
        let ended = self.engine().destroy_qp(number);
        self.flush();
        self.send_acks();
        ended
    }

    /// Executes the requests of peers that have arrived. An adapter in hardware has done that long before the program ends a queue pair.
    fn take_arrived(&mut self) {
        for _ in 0..ITERATIONS_PER_VISIT {
            if self.domain.is_idle() {
                return;
            }
            self.progress();
        }
    }

    /// Asks the daemon for the device that has a queue pair.
    fn look_up(&mut self, gid: Gid, number: QpNumber) -> Found {
        match self.domain.verbs_resolve(gid.0, number.0) {
            Ok(device) => Found::Device(device),
            Err(refusal) => match refusal.reason {
                Reason::VerbsNumberUnknown => Found::Unknown,
                Reason::TalkForbidden | Reason::VerbsGidUnknown | Reason::VerbsDisabled => Found::Nothing,
                _ => Found::Unanswered,
            },
        }
    }

    /// Looks up again the peers of connections that began before their devices had resumed with a restarted daemon.
    ///
    /// One look-up without an answer stands for all that are due. If it took long, the daemon hangs, and these are the last ones: the lock is
    /// held meanwhile.
    #[cold]
    fn look_up_again(&mut self) {
        let mut unanswered = None;
        for _ in 0..LOOK_UPS_PER_PROGRESS {
            let Some(LookUp { qp, gid, destination }) = self.engine().next_look_up() else { return };
            let begun = now();
            let found = unanswered.unwrap_or_else(|| self.look_up(gid, destination));
            if found == Found::Unanswered {
                let hangs = now() - begun >= HANGS_NS;
                unanswered = Some(if hangs { Found::Nothing } else { found });
            }
            self.engine().looked_up(qp, unanswered.unwrap_or(found));
        }
    }

    /// Posts a send request.
    #[inline]
    pub(crate) fn post_send(&mut self, number: QpNumber, request: &SendRequest<'_>) -> Result<(), Refused> {
        if !matches!(request.operation, Operation::Send { .. })
            && (self.perform(number, request).is_some()
                || self.take_description(number) && self.perform(number, request).is_some()
                || self.drain(number, request) && self.perform(number, request).is_some())
        {
            return Ok(());
        }
        loop {
            let port = self.domain.matcher_mut();
            match port.engine.post_send(number, request, &port.memory) {
                Err(Refused::RouteMissing(gid, destination)) => {
                    // Without a device, the datagram is lost, as on a wire. The next one asks again.
                    let to = self.look_up(gid, destination).device();
                    self.engine().add_route(gid, destination, to);
                }
                posted => return posted,
            }
        }
    }

    /// Takes the description of the peer if it is missing. True if it has come.
    fn take_description(&mut self, number: QpNumber) -> bool {
        if !self.engine().awaits_description(number) {
            return false;
        }
        self.progress();
        !self.engine().awaits_description(number)
    }

    /// Waits until the peer has executed two earlier requests, or all of them, if this one could be performed directly after them. A
    /// program that posts requests ahead would otherwise never get from packets to the peer's memory: so each post leaves fewer requests
    /// under way than it found. True if there are none.
    fn drain(&mut self, number: QpNumber, request: &SendRequest<'_>) -> bool {
        if self.failed_waits >= FAILED_WAITS_MAX {
            return false;
        }
        let Some(Direct { to, key, at, len }) = self.engine().direct_later(number, request) else { return false };
        if !self.domain.has_mapped(to.domain, key, at, len, rights_for(&request.operation)) {
            return false; // A packet has to carry it in any case.
        }
        let enough = self.engine().sends_under_way(number).saturating_sub(2);
        let end = now() + DRAIN_NS;
        while self.engine().sends_under_way(number) > enough {
            if now() >= end {
                self.failed_waits += 1;
                return false;
            }
            self.flush();
            self.progress();
        }
        self.engine().direct(number, request).is_some()
    }

    /// Performs a request in memory of the peer that this process has mapped. None, and nothing is done, if a packet has to carry it.
    fn perform(&mut self, number: QpNumber, request: &SendRequest<'_>) -> Option<()> {
        let direct = self.engine().direct(number, request)?;
        let mut ranges = [Range::default(); RANGES_MAX];
        let ranges = ranges.get_mut(..request.sges.len())?;
        for (range, sge) in ranges.iter_mut().zip(request.sges) {
            *range = Range { addr: self.engine().local_range(number, request, sge)?, len: sge.len as usize };
        }
        let rights = rights_for(&request.operation);
        let access = self.domain.peer_arena(direct.to.domain)?.access(direct.key, direct.at, direct.len, rights)?;
        let place = access.pointer().as_ptr();
        // SAFETY: the access holds `len` bytes at `place`, which others change by copies and atomic operations only. The ranges together
        // have `len` bytes and lie in regions of the program with the needed rights, or are inline bytes of the list.
        let performed = unsafe { memory::perform(&request.operation, ranges, place) };
        match (performed, access.finish()) {
            (false, _) => return None,
            (true, Ok(())) => {
                self.failed_waits = 0;
                self.engine().complete_direct(number, request);
            }
            // The owner has closed the region meanwhile. A packet gives the status.
            (true, Err(_)) if rights != AccessRights::Atomic => return None,
            (true, Err(_)) => self.engine().fail_direct(number, request),
        }
        Some(())
    }

    /// Registers memory. The caller exposes it to peers without the lock of the device.
    pub(crate) fn register(&mut self, (pd, (addr, len), iova, access): Region) -> Result<Key, Refused> {
        let key = self.engine().register(pd, addr, len, iova, access)?;
        self.exposures.share_arena(&mut self.domain, access);
        Ok(key)
    }

    /// Changes a region. Its memory must not lie in the arena. Returns the region, which the caller exposes without the lock of the device.
    pub(crate) fn reregister(
        &mut self,
        key: Key,
        pd: Option<Pd>,
        range: Option<(u64, u64)>,
        access: Option<Access>,
    ) -> Result<Option<Region>, Refused> {
        self.engine().reregister(key, pd, range, access)?;
        let region = self.engine().region(key);
        region.iter().for_each(|(.., access)| self.exposures.share_arena(&mut self.domain, *access));
        Ok(region)
    }

    /// The regions that peers may access.
    pub(crate) fn exposures(&self) -> &Arc<Exposures> {
        &self.exposures
    }

    /// Ends a registration. Memory that the client library still has is released.
    pub(crate) fn deregister(&mut self, key: Key) -> Result<(), Refused> {
        let ended = self.engine().deregister(key);
        self.flush();
        ended
    }

    /// Sends what the posts since the last call have made.
    #[inline]
    pub(crate) fn flush_posts(&mut self) {
        self.flush();
        self.posts += 1;
        if self.posts >= POSTS_PER_PROGRESS {
            self.progress();
        }
    }

    /// Posts a receive request.
    #[inline]
    pub(crate) fn post_receive(&mut self, number: QpNumber, request: &ReceiveRequest<'_>) -> Result<(), Refused> {
        self.engine().post_receive(number, request)
    }

    /// Posts a receive request to a shared receive queue.
    #[inline]
    pub(crate) fn post_srq_receive(&mut self, srq: Srq, request: &ReceiveRequest<'_>) -> Result<(), Refused> {
        self.engine().post_srq_receive(srq, request)
    }

    /// Takes completions of a queue, at most as many as `take` accepts. Makes progress if there is none.
    #[inline]
    pub(crate) fn poll(&mut self, cq: Cq, limit: usize, mut take: impl FnMut(usize, &Completion)) -> usize {
        let mut taken = self.take_completions(cq, limit, &mut take);
        if taken == 0 && !self.domain.matcher_mut().budget.should_skip() {
            self.progress();
            taken = self.take_completions(cq, limit, &mut take);
        }
        taken
    }

    #[inline]
    fn take_completions(&mut self, cq: Cq, limit: usize, take: &mut impl FnMut(usize, &Completion)) -> usize {
        let mut taken = 0;
        while taken < limit
            && let Some(completion) = self.engine().poll(cq)
        {
            take(taken, &completion);
            taken += 1;
        }
        taken
    }

    /// Runs one iteration of all work.
    #[inline]
    pub(crate) fn progress(&mut self) {
        self.posts = 0;
        if self.engine().has_work() {
            // Acknowledgements of the requests that the last call found, unless a request of the program has carried them.
            self.flush();
            self.send_acks();
        }
        if self.domain.is_idle() && self.engine().is_idle() {
            return self.domain.matcher_mut().budget.note_idle();
        }
        self.domain.matcher_mut().begin_progress();
        self.domain.progress();
        if self.engine().has_pauses() {
            self.engine().tick(now());
            self.look_up_again();
        }
        self.flush();
        if !self.has_serving_thread {
            self.send_acks();
        }
        self.deliver_events();
        let pending = self.engine().accesses_pending();
        if pending > 0 && pending >= self.accesses.min(ACCESSES_PER_RECORD) {
            self.record_accesses();
        }
        self.domain.matcher_mut().end_progress();
    }

    /// Writes events to the descriptors on which the program may sleep.
    #[inline]
    pub(crate) fn deliver_events(&mut self) {
        if self.domain.matcher().engine.has_events() || self.events.has_waiting() {
            self.events.deliver(&mut self.domain.matcher_mut().engine);
        }
    }

    /// Asks for an event at the next completion of a queue. From now on a doorbell wakes the serving thread, until the next poll.
    pub(crate) fn request_notification(&mut self, cq: Cq, solicited_only: bool) -> Result<(), Refused> {
        self.engine().request_notification(cq, solicited_only)?;
        self.send_acks(); // The program may sleep now.
        while self.engine().is_armed(cq) && !self.arm() {
            self.progress();
        }
        self.deliver_events(); // Of a completion that was there already.
        Ok(())
    }

    /// Runs iterations until there is nothing to do, for a server. The program goes on at once if `is_over`, and sends the
    /// acknowledgements. Returns true if peers have accessed memory here by it.
    pub(crate) fn serve(&mut self, is_over: impl Fn() -> bool) -> bool {
        let before = self.accesses_so_far();
        for _ in 0..ITERATIONS_PER_VISIT {
            self.progress();
            if is_over() {
                return self.accesses_so_far() > before;
            }
            self.send_acks();
            if self.domain.is_idle() {
                break;
            }
        }
        self.record_accesses();
        self.domain.publish_accesses();
        self.accesses_so_far() > before
    }

    /// The number of requests of peers for memory.
    fn accesses_so_far(&mut self) -> u64 {
        self.accesses.saturating_add(self.engine().accesses_pending())
    }

    /// Has a doorbell wake the server after a call of the program. If there is work again and again, the server looks at its next tick.
    #[cold]
    pub(crate) fn arm_after_call(&mut self) {
        for _ in 0..ITERATIONS_PER_VISIT {
            self.send_acks();
            if self.arm() {
                return;
            }
            self.progress();
        }
    }

    /// Records what peers have asked for of memory here, for the daemon's reports.
    #[cold]
    fn record_accesses(&mut self) {
        self.accesses = self.accesses.saturating_add(self.engine().accesses_pending());
        while let Some(PeerAccesses { peer, served, last, refused }) = self.engine().next_accesses() {
            if let Some((key, at, len)) = last {
                let base = self.engine().region(key).map_or(0, |(_, _, iova, _)| iova);
                let reason = self.exposures.assist_reason(key, at.wrapping_sub(base), len);
                self.domain.record_assisted_accesses(peer, reason, served);
            }
            if refused > 0 {
                self.domain.record_refused_accesses(peer, refused);
            }
        }
    }

    /// Prepares for a sleep on [`Self::fd`]. Returns the longest time of the sleep, or none if there is work already.
    pub(crate) fn prepare_sleep(&mut self) -> Option<Option<Duration>> {
        let armed = self.arm();
        let limit = self.pause_left(); // It may end a pause.
        (armed && !self.engine().has_work()).then_some(limit)
    }

    /// True if the program has asked for an event on a channel other than this one.
    pub(crate) fn is_other_armed(&mut self, channel: &Arc<ChannelPipe>) -> bool {
        let engine = &self.domain.matcher().engine;
        self.events.is_other_armed(channel, |cq| engine.is_armed(cq))
    }

    /// Has a doorbell wake the server. False if there is work already.
    fn arm(&mut self) -> bool {
        self.domain.matcher_mut().begin_progress();
        let quiet = self.domain.arm();
        self.flush();
        self.deliver_events();
        quiet && !self.engine().has_work()
    }

    /// The descriptor that becomes readable when there is work, after [`Self::prepare_sleep`].
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.domain.fd()
    }

    /// The time until a pause of a queue pair is over.
    fn pause_left(&mut self) -> Option<Duration> {
        if self.events.has_waiting() {
            return Some(RETRY_EVENTS);
        }
        if !self.engine().has_pauses() {
            return None;
        }
        let now = now();
        let next = self.engine().tick(now).map(|until| Duration::from_nanos(until.saturating_sub(now)));
        // Pauses that are over by now have left requests to send, or to report.
        if self.engine().has_work() || self.engine().has_events() { Some(Duration::ZERO) } else { next }
    }

    /// True in the child of a fork, which has no device any more.
    pub(crate) fn is_child(&self) -> bool {
        self.process != std::process::id()
    }

    /// Sends packets and acknowledgements that wait.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if self.engine().has_packets() {
            self.send_packets();
        }
        if self.engine().has_released() {
            self.release_buffers();
        }
    }

    fn send_packets(&mut self) {
        let mut body = [0; SHORT_BYTES_MAX];
        loop {
            let port = self.domain.matcher_mut();
            let Some(packet) = port.engine.next_outgoing(&port.memory, &mut body) else { break };
            let bytes = &body[..packet.len];
            let sent = self.domain.inject(INDEX, packet.to, packet.tag, bytes);
            match (packet.payload, sent) {
                (None, true) => self.engine().sent(packet.token),
                (None, false) => {
                    self.post(packet.to, packet.tag, Buffer::from(bytes.to_vec()), packet.token);
                    // The bytes are copied: completions that need no reply come before the peer's next message, as on a wire.
                    self.engine().packet_copied(packet.token);
                }
                (Some(payload), _) => {
                    if !sent {
                        self.post(packet.to, packet.tag, Buffer::from(bytes.to_vec()), 0);
                    }
                    self.post(packet.to, isthmus_verbs::PAYLOAD_TAG, payload_buffer(payload), packet.token);
                }
            }
        }
    }

    #[cold]
    fn release_buffers(&mut self) {
        for peer in self.engine().take_released() {
            let wanted = |port: &Port, token: Token| port.wants_payload(token);
            self.domain.release_borrowed_buffers_except(peer, wanted);
        }
    }

    /// Sends acknowledgements that wait.
    #[inline]
    fn send_acks(&mut self) {
        while let Some((to, tag, token)) = self.engine().next_ack() {
            if self.domain.inject(INDEX, to, tag, &[]) {
                continue;
            }
            // A refusal for a queue pair that does not exist has no token. A peer that provokes them does not fill this memory.
            let token = if token == 0 { STRAY } else { token };
            if token == STRAY && !self.domain.matcher_mut().queue_stray() {
                continue;
            }
            self.engine().ack_queued(token);
            self.post(to, tag, Buffer::from(Vec::new()), token);
        }
    }

    /// Hands a message to the client library.
    fn post(&mut self, to: EndpointAddress, tag: u64, buffer: Buffer, token: u64) {
        let message = Message { token: Token::new(token), from: INDEX, to, tag, buffer, sync: false };
        if self.domain.post(message).is_err() {
            self.engine().failed(token, false);
        }
    }

    /// The state and the attributes of a queue pair.
    pub(crate) fn query_qp(&mut self, number: QpNumber) -> Option<(QpState, Attributes, QpInit)> {
        self.engine().query_qp(number)
    }
}

/// The rights that an operation needs in the peer's memory.
const fn rights_for(operation: &Operation) -> AccessRights {
    match operation {
        Operation::Read { .. } => AccessRights::Read,
        Operation::Write { .. } => AccessRights::Write,
        _ => AccessRights::Atomic,
    }
}

/// The bytes of a payload, for the client library.
fn payload_buffer(payload: Payload) -> Buffer {
    match payload {
        // SAFETY: the range lies in a region that the program has registered. The program leaves it as it is until the request is over,
        // which the engine reports only when the client library has returned the buffer, or has released it.
        Payload::Range { addr, len } => unsafe { Buffer::from_raw_parts(addr as *mut u8, len as usize) },
        Payload::Bytes(bytes) => Buffer::from(bytes),
    }
}

/// Nanoseconds of a clock that does not go back.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
