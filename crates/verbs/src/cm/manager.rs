//! The identifiers of a process and their states.

use super::*;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

/// Error numbers of events.
const TIMED_OUT: i32 = -110;

/// The most requests of a listener that the program has not read, if it asks for no number or for more.
const BACKLOG_MAX: u32 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Bound,
    Resolved,
    Routed,
    Asking,
    Dialing,
    /// The request is sent.
    Requested,
    /// The reply has arrived.
    Replied,
    Listening,
    /// A request has arrived.
    Arrived,
    /// The reply is sent.
    Accepted,
    Established,
    /// The end is sent.
    Leaving,
    /// The connection is over, or never was.
    Over,
}

#[derive(Debug)]
struct Id {
    uid: u64,
    channel: ChannelNumber,
    space: PortSpace,
    state: State,
    source: Option<End>,
    destination: Option<End>,
    is_routed: bool,
    /// The parameters of this end.
    own: Parameters,
    /// The queue pair of the peer and its first packet, once it has said so.
    peer: Option<(u32, u32)>,
    /// The retries of this end: those that the active end has chosen, and those that the other end has.
    retries: (u8, u8),
    /// Events that the program has read.
    reported: u32,
    backlog: u32,
    /// Requests of a listener that the program has not read.
    unread: u32,
    deadline: Option<u64>,
    /// The time at which an attempt to connect began, and the pause before the next datagram.
    since: u64,
    pause: u64,
}

/// The event, and the identifier that it is for.
type Queued = (IdNumber, Event);

/// The connection manager of a process.
///
/// The caller gives the time with [`Self::set_time`], and performs what [`Self::next_action`] returns after each call.
#[derive(Debug, Default)]
pub struct Manager {
    ids: BTreeMap<IdNumber, Id>,
    last: u32,
    of_channels: BTreeSet<(ChannelNumber, IdNumber)>,
    queues: BTreeMap<ChannelNumber, VecDeque<Queued>>,
    deadlines: BTreeSet<(u64, IdNumber)>,
    actions: VecDeque<Action>,
    now: u64,
    /// Makes the first packets of connections differ.
    seed: u32,
}

impl Manager {
    /// A manager. The first packets of its connections depend on `seed`.
    pub fn new(seed: u32) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Sets the time in nanoseconds, which never goes back.
    pub fn set_time(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// Returns the next action.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Creates an identifier on a channel.
    pub fn create(&mut self, channel: ChannelNumber, uid: u64, space: PortSpace) -> IdNumber {
        let id = Id {
            uid,
            channel,
            space,
            state: State::Idle,
            source: None,
            destination: None,
            is_routed: false,
            own: Parameters::NONE,
            peer: None,
            retries: (0, 0),
            reported: 0,
            backlog: 0,
            unread: 0,
            deadline: None,
            since: 0,
            pause: 0,
        };
        loop {
            self.last = self.last.wrapping_add(1) & 0x7fff_ffff;
            let number = IdNumber(self.last);
            if self.last != 0 && !self.ids.contains_key(&number) {
                self.ids.insert(number, id);
                self.of_channels.insert((channel, number));
                return number;
            }
        }
    }

    /// Checks that an identifier may be bound, and returns its space.
    pub fn may_bind(&self, channel: ChannelNumber, id: IdNumber) -> Result<PortSpace, Refusal> {
        self.in_states(channel, id, &[State::Idle])
    }

    /// Notes the address to which the caller has bound an identifier.
    pub fn bound(&mut self, id: IdNumber, source: End) {
        if let Some(known) = self.ids.get_mut(&id).filter(|known| known.state == State::Idle) {
            (known.state, known.source) = (State::Bound, Some(source));
        }
    }

    /// Checks that the destination of an identifier may be resolved. Returns the address to which it is bound.
    pub fn may_resolve(&self, channel: ChannelNumber, id: IdNumber) -> Result<Option<End>, Refusal> {
        self.in_states(channel, id, &[State::Idle, State::Bound])?;
        Ok(self.ids.get(&id).and_then(|known| known.source))
    }

    /// Handles the resolution of a destination: the path, or a negative error number.
    pub fn resolved(&mut self, id: IdNumber, path: Result<(End, End), i32>) {
        let Some(known) = self.ids.get_mut(&id).filter(|known| matches!(known.state, State::Idle | State::Bound))
        else {
            return;
        };
        match path {
            Ok((source, destination)) => {
                (known.source, known.destination) = (Some(source), Some(destination));
                known.state = State::Resolved;
                self.report(id, EventKind::AddressResolved, 0);
            }
            Err(status) => self.report(id, EventKind::AddressError, status),
        }
    }

    /// Resolves the route, which there always is.
    pub fn resolve_route(&mut self, channel: ChannelNumber, id: IdNumber) -> Result<(), Refusal> {
        let known = self.get_in(channel, id, &[State::Resolved])?;
        (known.state, known.is_routed) = (State::Routed, true);
        self.report(id, EventKind::RouteResolved, 0);
        Ok(())
    }

    /// The ends of the path of an identifier, and whether its route is resolved.
    pub fn path(&self, channel: ChannelNumber, id: IdNumber) -> Result<(Option<End>, Option<End>, bool), Refusal> {
        let known = self.ids.get(&id).filter(|known| known.channel == channel).ok_or(Refusal::NoSuchId)?;
        Ok((known.source, known.destination, known.is_routed))
    }

    /// The space of an identifier, on any channel.
    pub fn space(&self, id: IdNumber) -> Option<PortSpace> {
        self.ids.get(&id).map(|known| known.space)
    }

    /// The GID of this end of an identifier, on any channel.
    pub fn source_gid(&self, id: IdNumber) -> Option<Gid> {
        self.ids.get(&id).and_then(|known| known.source).and_then(|source| source.gid)
    }

    /// Connects to the destination. An event says how it ends.
    pub fn connect(&mut self, channel: ChannelNumber, id: IdNumber, own: Parameters) -> Result<(), Refusal> {
        let now = self.now;
        let known = self.get_in(channel, id, &[State::Routed])?;
        let most = if known.space == PortSpace::Tcp { 56 } else { 180 };
        if own.private.as_slice().len() > most {
            return Err(Refusal::Invalid);
        }
        (known.state, known.own, known.since, known.pause) = (State::Asking, own, now, times::ASK_PAUSE_NS);
        self.ask(id);
        Ok(())
    }

    /// Checks that an identifier may listen, and returns its space and whether it is bound.
    pub fn may_listen(&self, channel: ChannelNumber, id: IdNumber) -> Result<(PortSpace, bool), Refusal> {
        let space = self.in_states(channel, id, &[State::Idle, State::Bound])?;
        Ok((space, self.ids.get(&id).is_some_and(|known| known.state == State::Bound)))
    }

    /// Listens. The caller has opened a port for streams. 0 asks for the longest backlog.
    pub fn listen(&mut self, id: IdNumber, backlog: u32) {
        if let Some(known) = self.ids.get_mut(&id).filter(|known| known.state == State::Bound) {
            known.state = State::Listening;
            known.backlog = if backlog == 0 { BACKLOG_MAX } else { backlog.min(BACKLOG_MAX) };
        }
    }

    /// Accepts a request with these parameters, or confirms a reply.
    pub fn accept(&mut self, channel: ChannelNumber, id: IdNumber, uid: u64, own: Parameters) -> Result<(), Refusal> {
        let psn = self.psn(id);
        let known = self.get_in(channel, id, &[State::Arrived, State::Replied])?;
        if known.state == State::Replied {
            (known.state, known.deadline) = (State::Established, None);
            let message = Message::bare(Kind::Ready, known.space);
            self.send(id, message);
            return Ok(());
        }
        let most = if known.space == PortSpace::Tcp { 196 } else { 136 };
        if own.private.as_slice().len() > most {
            return Err(Refusal::Invalid);
        }
        (known.uid, known.own) = (uid, own);
        let is_connection = known.space == PortSpace::Tcp;
        known.state = if is_connection { State::Accepted } else { State::Established };
        let message = known.message(Kind::Reply, psn);
        self.send(id, message);
        if is_connection {
            self.set_deadline(id, times::REPLY_NS);
        } else {
            self.actions.push_back(Action::Close(id));
        }
        Ok(())
    }

    /// Refuses a request or a reply. 0 is the usual reason.
    pub fn reject(
        &mut self,
        channel: ChannelNumber,
        id: IdNumber,
        reason: u16,
        private: PrivateData,
    ) -> Result<(), Refusal> {
        let known = self.get_in(channel, id, &[State::Arrived, State::Replied])?;
        if private.as_slice().len() > 148 {
            return Err(Refusal::Invalid);
        }
        let usual = if known.space == PortSpace::Tcp { reason::CONSUMER } else { reason::REFUSED };
        let message = Message::reject(known.space, if reason == 0 { usual } else { reason }, private);
        self.send(id, message);
        self.end(id, None);
        Ok(())
    }

    /// Ends a connection. Without one that has begun, this is an error; after the end, it is none.
    pub fn disconnect(&mut self, channel: ChannelNumber, id: IdNumber) -> Result<(), Refusal> {
        use State::{Accepted, Established, Leaving, Over};
        let known = self.get_in(channel, id, &[Accepted, Established, Leaving, Over])?;
        if known.space == PortSpace::Udp {
            return Err(Refusal::Invalid);
        }
        if matches!(known.state, Accepted | Established) {
            known.state = Leaving;
            self.send(id, Message::bare(Kind::Disconnect, PortSpace::Tcp));
            self.set_deadline(id, times::DIAL_NS);
        }
        Ok(())
    }

    /// The queue pair has received a packet, so the peer has the reply.
    pub fn communication_established(&mut self, channel: ChannelNumber, id: IdNumber) -> Result<(), Refusal> {
        let known = self.get_in(channel, id, &[State::Accepted, State::Established])?;
        if known.state == State::Accepted {
            self.establish(id);
        }
        Ok(())
    }

    /// The attributes of the queue pair of a connection. Before the peer is known, there are only those of the first state.
    pub fn transition(&self, channel: ChannelNumber, id: IdNumber, to_peer: bool) -> Result<Transition, Refusal> {
        let known = self.ids.get(&id).filter(|known| known.channel == channel).ok_or(Refusal::NoSuchId)?;
        let Some((destination, receive_psn)) = known.peer else {
            return if to_peer { Err(Refusal::Invalid) } else { Ok(Transition::default()) };
        };
        Ok(Transition {
            lets_write: true,
            lets_read: known.own.responder_resources > 0,
            gid: known.destination.and_then(|end| end.gid).unwrap_or_default(),
            destination,
            receive_psn,
            send_psn: self.psn(id),
            responder_resources: known.own.responder_resources,
            initiator_depth: known.own.initiator_depth,
            retries: known.retries.0,
            receiver_retries: known.retries.1,
        })
    }

    /// Takes the next event of a channel.
    pub fn next_event(&mut self, channel: ChannelNumber) -> Option<Event> {
        let queue = self.queues.get_mut(&channel)?;
        let (owner, mut event) = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(&channel);
            self.actions.push_back(Action::Drained(channel));
        }
        if let Some(known) = self.ids.get_mut(&owner) {
            known.reported += 1;
            known.unread -= u32::from(event.kind == EventKind::ConnectRequest);
            event.uid = known.uid; // A request that was accepted meanwhile has one now.
        }
        Some(event)
    }

    /// Moves an identifier to another channel, with the events that its program has not read. Returns how many it has read.
    pub fn migrate(&mut self, from: ChannelNumber, to: ChannelNumber, id: IdNumber) -> Result<u32, Refusal> {
        let known = self.ids.get_mut(&id).filter(|known| known.channel == from).ok_or(Refusal::NoSuchId)?;
        known.channel = to;
        let reported = known.reported;
        self.of_channels.remove(&(from, id));
        self.of_channels.insert((to, id));
        for (owner, event) in self.take_events(from, id) {
            // A request that the program has not read is where its listener is.
            if event.kind == EventKind::ConnectRequest
                && let Some(request) = self.ids.get_mut(&event.id)
            {
                request.channel = to;
                self.of_channels.remove(&(from, event.id));
                self.of_channels.insert((to, event.id));
            }
            self.enqueue(to, (owner, event));
        }
        Ok(reported)
    }

    /// Destroys an identifier, and says so to its peer. Returns the number of events that the program has read.
    pub fn destroy(&mut self, channel: ChannelNumber, id: IdNumber) -> Result<u32, Refusal> {
        let known = self.ids.get(&id).filter(|known| known.channel == channel).ok_or(Refusal::NoSuchId)?;
        let last_word = match known.state {
            State::Requested | State::Replied | State::Arrived | State::Accepted => {
                let reason = if known.space == PortSpace::Tcp { reason::CONSUMER } else { reason::REFUSED };
                Some(Message::reject(known.space, reason, PrivateData::NONE))
            }
            State::Established if known.space == PortSpace::Tcp => {
                Some(Message::bare(Kind::Disconnect, PortSpace::Tcp))
            }
            _ => None,
        };
        self.clear_deadline(id);
        last_word.into_iter().for_each(|message| self.send(id, message));
        self.actions.push_back(Action::Forget(id));
        let known = self.ids.remove(&id).ok_or(Refusal::NoSuchId)?;
        self.of_channels.remove(&(channel, id));
        for (_, event) in self.take_events(channel, id) {
            if event.kind == EventKind::ConnectRequest {
                let of = self.ids.get(&event.id).map(|request| request.channel);
                of.into_iter().for_each(|of| _ = self.destroy(of, event.id));
            }
        }
        Ok(known.reported)
    }

    /// Destroys the identifiers of a channel that the program has closed.
    pub fn close_channel(&mut self, channel: ChannelNumber) {
        let all = (channel, IdNumber(0))..=(channel, IdNumber(u32::MAX));
        while let Some((_, id)) = self.of_channels.range(all.clone()).next().copied() {
            let _ = self.destroy(channel, id);
        }
        self.queues.remove(&channel);
    }

    /// The destination has said at which port it takes streams.
    pub fn port_found(&mut self, id: IdNumber, port: u16) {
        if let Some(known) = self.ids.get_mut(&id).filter(|known| known.state == State::Asking) {
            known.state = State::Dialing;
            self.actions.push_back(Action::Dial(id, port));
            self.set_deadline(id, times::DIAL_NS);
        }
    }

    /// The stream is open.
    pub fn dialed(&mut self, id: IdNumber) {
        let psn = self.psn(id);
        if let Some(known) = self.ids.get_mut(&id).filter(|known| known.state == State::Dialing) {
            known.state = State::Requested;
            let message = known.message(Kind::Request, psn);
            self.send(id, message);
            self.set_deadline(id, times::REPLY_NS);
        }
    }

    /// There is no listener at the destination, or it cannot be reached: a negative error number.
    pub fn not_connected(&mut self, id: IdNumber, error: Option<i32>) {
        let now = self.now;
        let Some(known) = self.ids.get_mut(&id) else { return };
        if !matches!(known.state, State::Asking | State::Dialing) {
            return;
        }
        if error.is_none() && now - known.since < times::NO_LISTENER_NS {
            // The deadline of the question is its next one. A stream that was refused is no use any more.
            if core::mem::replace(&mut known.state, State::Asking) == State::Dialing {
                self.actions.push_back(Action::Close(id));
                self.set_deadline(id, times::ASK_PAUSE_NS);
            }
            return;
        }
        let Some(known) = self.ids.get(&id) else { return };
        let (kind, status) = match (error, known.space) {
            (Some(error), _) => (EventKind::Unreachable, error),
            (None, PortSpace::Tcp) => (EventKind::Rejected, i32::from(reason::INVALID_SERVICE)),
            (None, PortSpace::Udp) => (EventKind::Unreachable, i32::from(reason::UNSUPPORTED_SERVICE)),
        };
        self.end(id, Some((kind, status)));
    }

    /// Handles the first message of a stream to a listener. `from` is the address of the peer, and `at` this end.
    ///
    /// # Errors
    ///
    /// The reason with which the caller rejects the request, before it closes the stream.
    pub fn request(
        &mut self,
        listener: IdNumber,
        message: &Message,
        mut from: SocketAddr,
        at: End,
    ) -> Result<IdNumber, u16> {
        let known = self.ids.get_mut(&listener).filter(|known| known.state == State::Listening);
        let Some(known) = known.filter(|known| known.space == message.space && message.kind == Kind::Request) else {
            return Err(match message.space {
                PortSpace::Tcp => reason::INVALID_SERVICE,
                PortSpace::Udp => reason::UNSUPPORTED_SERVICE,
            });
        };
        if known.unread >= known.backlog {
            return Err(reason::CONSUMER);
        }
        known.unread += 1;
        let (channel, uid) = (known.channel, known.uid);
        from.set_port(message.port);
        let id = self.create(channel, 0, message.space);
        if let Some(new) = self.ids.get_mut(&id) {
            new.state = State::Arrived;
            (new.source, new.is_routed) = (Some(at), true);
            new.destination = Some(End { address: from, gid: Some(message.gid) });
            new.hear(message);
            new.retries = (message.parameters.retries, message.parameters.receiver_retries);
            // The program moves its queue pair before it accepts.
            let offered = message.parameters.of_peer();
            new.own.responder_resources = offered.responder_resources;
            new.own.initiator_depth = offered.initiator_depth;
        }
        let event = Event {
            uid,
            id,
            kind: EventKind::ConnectRequest,
            status: 0,
            parameters: message.parameters.of_peer(),
            gid: message.gid,
            space: message.space,
        };
        self.enqueue(channel, (listener, event));
        Ok(id)
    }

    /// Handles a message on the stream of an identifier.
    pub fn received(&mut self, id: IdNumber, message: &Message) {
        let Some(known) = self.ids.get_mut(&id) else { return };
        let is_connection = known.space == PortSpace::Tcp;
        match (known.state, message.kind) {
            (State::Requested, Kind::Reply) => {
                known.hear(message);
                // The rest of the path was known before; the peer knows its own GID best.
                known.destination.iter_mut().for_each(|end| end.gid = Some(message.gid));
                let mut parameters = message.parameters.of_peer();
                if is_connection {
                    known.state = State::Replied;
                    known.own.responder_resources = parameters.responder_resources;
                    known.own.initiator_depth = parameters.initiator_depth;
                    known.retries = (known.own.retries, parameters.receiver_retries);
                    self.set_deadline(id, times::REPLY_NS);
                    self.say(id, EventKind::ConnectResponse, 0, parameters);
                } else {
                    known.state = State::Established;
                    parameters.qkey = message.parameters.qkey;
                    self.clear_deadline(id);
                    self.actions.push_back(Action::Close(id));
                    self.say(id, EventKind::Established, 0, parameters);
                }
            }
            (State::Accepted, Kind::Ready) => self.establish(id),
            (State::Established, Kind::Ready) => {} // The program has noticed before.
            (State::Requested | State::Replied | State::Accepted, Kind::Reject) => {
                let kind = if is_connection { EventKind::Rejected } else { EventKind::Unreachable };
                let private = message.parameters.private;
                self.end(id, None);
                self.say(id, kind, i32::from(message.reason), Parameters { private, ..Parameters::NONE });
            }
            (State::Arrived, Kind::Reject) => self.end(id, None),
            (State::Replied | State::Established | State::Leaving, Kind::Disconnect) if is_connection => {
                self.send(id, Message::bare(Kind::Disconnected, PortSpace::Tcp));
                self.end(id, Some((EventKind::Disconnected, 0)));
            }
            (State::Leaving, Kind::Disconnected) => self.end(id, Some((EventKind::Disconnected, 0))),
            (State::Over, _) => {}
            _ => self.closed(id), // It does not fit.
        }
    }

    /// The stream of an identifier has ended, or is to end because of what it brought.
    pub fn closed(&mut self, id: IdNumber) {
        let Some(known) = self.ids.get(&id) else { return };
        let reason = i32::from(reason::CONSUMER);
        match (known.state, known.space) {
            (State::Established | State::Leaving, PortSpace::Tcp) => {
                self.end(id, Some((EventKind::Disconnected, 0)));
            }
            (State::Requested | State::Replied | State::Accepted, PortSpace::Tcp) => {
                self.end(id, Some((EventKind::Rejected, reason)));
            }
            (State::Requested, PortSpace::Udp) => {
                self.end(id, Some((EventKind::Unreachable, i32::from(reason::REFUSED))));
            }
            (State::Arrived, _) => self.end(id, None),
            (State::Dialing, _) => self.not_connected(id, None),
            _ => {}
        }
    }

    /// Handles what was to happen until now. Returns when the next such time is.
    pub fn expire(&mut self) -> Option<u64> {
        while let Some((at, id)) = self.deadlines.first().copied().filter(|(at, _)| *at <= self.now) {
            self.deadlines.remove(&(at, id));
            let Some(known) = self.ids.get_mut(&id) else { continue };
            known.deadline = None;
            match known.state {
                State::Asking if self.now - known.since < times::ASK_NS => {
                    known.pause = (2 * known.pause).min(times::ASK_PAUSE_NS_MAX);
                    self.ask(id);
                }
                State::Asking | State::Dialing => self.not_connected(id, Some(TIMED_OUT)),
                State::Requested | State::Replied | State::Accepted => {
                    let reject = Message::reject(known.space, reason::CONSUMER, PrivateData::NONE);
                    self.send(id, reject);
                    self.end(id, Some((EventKind::Unreachable, TIMED_OUT)));
                }
                State::Leaving => self.end(id, Some((EventKind::Disconnected, 0))),
                State::Over => self.report(id, EventKind::TimewaitExit, 0),
                _ => {}
            }
        }
        self.deadlines.first().map(|(at, _)| *at)
    }

    fn in_states(&self, channel: ChannelNumber, id: IdNumber, states: &[State]) -> Result<PortSpace, Refusal> {
        let known = self.ids.get(&id).filter(|known| known.channel == channel).ok_or(Refusal::NoSuchId)?;
        if states.contains(&known.state) { Ok(known.space) } else { Err(Refusal::Invalid) }
    }

    fn get_in(&mut self, channel: ChannelNumber, id: IdNumber, states: &[State]) -> Result<&mut Id, Refusal> {
        self.in_states(channel, id, states)?;
        self.ids.get_mut(&id).ok_or(Refusal::NoSuchId)
    }

    fn send(&mut self, id: IdNumber, message: Message) {
        self.actions.push_back(Action::Send(id, Box::new(message)));
    }

    fn psn(&self, id: IdNumber) -> u32 {
        self.seed.wrapping_add(id.0.wrapping_mul(0x9e37_79b1)) & 0xff_ffff
    }

    fn ask(&mut self, id: IdNumber) {
        self.actions.push_back(Action::Ask(id));
        let pause = self.ids.get(&id).map_or(0, |known| known.pause);
        self.set_deadline(id, pause);
    }

    fn establish(&mut self, id: IdNumber) {
        self.clear_deadline(id);
        if let Some(known) = self.ids.get_mut(&id) {
            known.state = State::Established;
        }
        self.report(id, EventKind::Established, 0);
    }

    /// Ends the connection of an identifier, and says so to the program.
    fn end(&mut self, id: IdNumber, event: Option<(EventKind, i32)>) {
        self.clear_deadline(id);
        let Some(known) = self.ids.get_mut(&id) else { return };
        known.state = State::Over;
        self.actions.push_back(Action::Close(id));
        let Some((kind, status)) = event else { return };
        if kind == EventKind::Disconnected {
            self.set_deadline(id, times::TIMEWAIT_NS);
        }
        self.report(id, kind, status);
    }

    fn report(&mut self, id: IdNumber, kind: EventKind, status: i32) {
        self.say(id, kind, status, Parameters::NONE);
    }

    fn say(&mut self, id: IdNumber, kind: EventKind, status: i32, parameters: Parameters) {
        let Some(known) = self.ids.get(&id) else { return };
        let gid = known.destination.and_then(|end| end.gid).unwrap_or_default();
        let event = Event { uid: known.uid, id, kind, status, parameters, gid, space: known.space };
        let channel = known.channel;
        self.enqueue(channel, (id, event));
    }

    fn enqueue(&mut self, channel: ChannelNumber, queued: Queued) {
        let queue = self.queues.entry(channel).or_default();
        if queue.is_empty() {
            self.actions.push_back(Action::Readable(channel));
        }
        queue.push_back(queued);
    }

    /// Takes the events of an identifier that the program has not read.
    fn take_events(&mut self, channel: ChannelNumber, id: IdNumber) -> Vec<Queued> {
        let Some(queue) = self.queues.get_mut(&channel) else { return Vec::new() };
        let (taken, kept): (Vec<_>, Vec<_>) = queue.drain(..).partition(|(owner, _)| *owner == id);
        *queue = kept.into();
        if queue.is_empty() {
            self.queues.remove(&channel);
            self.actions.push_back(Action::Drained(channel));
        }
        taken
    }

    fn set_deadline(&mut self, id: IdNumber, after: u64) {
        self.clear_deadline(id);
        if let Some(known) = self.ids.get_mut(&id) {
            let at = self.now.saturating_add(after);
            known.deadline = Some(at);
            self.deadlines.insert((at, id));
        }
    }

    fn clear_deadline(&mut self, id: IdNumber) {
        if let Some(at) = self.ids.get_mut(&id).and_then(|known| known.deadline.take()) {
            self.deadlines.remove(&(at, id));
        }
    }
}

impl Id {
    /// Notes what a request or a reply says of the peer.
    fn hear(&mut self, message: &Message) {
        self.peer = Some((message.parameters.qp, message.psn));
    }

    fn message(&self, kind: Kind, psn: u32) -> Message {
        let mut parameters = self.own;
        if self.space == PortSpace::Udp && parameters.qkey == 0 {
            parameters.qkey = UDP_QKEY;
        }
        Message {
            kind,
            space: self.space,
            port: self.source.map_or(0, |end| end.address.port()),
            reason: 0,
            psn,
            gid: self.source.and_then(|end| end.gid).unwrap_or_default(),
            parameters,
        }
    }
}
