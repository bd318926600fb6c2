//! Two programs with a manager each, and the network between them: datagrams that are lost and repeated, and streams that are neither.

use isthmus_verbs::Gid;
use isthmus_verbs::cm::{
    Action, ChannelNumber, End, Event, IdNumber, Kind, Manager, Message, PortSpace, PrivateData, times,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};

pub(crate) const PORT: u16 = 7471;

/// The port of the listener's streams.
const STREAMS: u16 = 40_000;

pub(crate) const CHANNEL: ChannelNumber = ChannelNumber(1);

/// A program: its manager, and what its caller keeps.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) manager: Manager,
    address: Ipv4Addr,
    pub(crate) readable: bool,
}

impl Program {
    pub(crate) fn end(&self, port: u16) -> End {
        let address = SocketAddr::new(self.address.into(), port);
        End { address, gid: Some(Gid(self.address.to_ipv6_mapped().octets())) }
    }
}

/// A direction of a stream, or a datagram under way.
#[derive(Debug)]
enum Piece {
    Message(Box<Message>),
    /// The sender has closed its end.
    End,
}

/// A stream: the active identifier, the passive one once the request has arrived, and what is under way in each direction.
#[derive(Debug)]
struct Stream {
    active: IdNumber,
    passive: Option<IdNumber>,
    /// The listener has closed its end instead.
    is_refused: bool,
    /// To the passive end, and to the active one.
    pieces: [VecDeque<Piece>; 2],
}

/// Two programs: 0 connects, 1 listens.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) programs: [Program; 2],
    pub(crate) now: u64,
    questions: VecDeque<IdNumber>,
    replies: VecDeque<(IdNumber, Option<u16>)>,
    dialing: VecDeque<IdNumber>,
    streams: BTreeMap<u32, Stream>,
    last_stream: u32,
    pub(crate) listener: Option<IdNumber>,
    /// Identifiers that the manager has let go, with their streams.
    pub(crate) forgotten: Vec<(usize, IdNumber)>,
}

impl Network {
    pub(crate) fn new() -> Self {
        let program = |host: u8| Program {
            manager: Manager::new(u32::from(host)),
            address: Ipv4Addr::new(10, 0, 0, host),
            readable: false,
        };
        Self {
            programs: [program(1), program(2)],
            now: 0,
            questions: VecDeque::new(),
            replies: VecDeque::new(),
            dialing: VecDeque::new(),
            streams: BTreeMap::new(),
            last_stream: 0,
            listener: None,
            forgotten: Vec::new(),
        }
    }

    pub(crate) fn listen(&mut self, space: PortSpace, backlog: u32) -> IdNumber {
        let end = self.programs[1].end(PORT);
        let manager = &mut self.programs[1].manager;
        let id = manager.create(CHANNEL, 1000, space);
        manager.bound(id, end);
        manager.listen(id, backlog);
        self.listener = Some(id);
        id
    }

    /// An identifier of program 0 with a route to the listener.
    pub(crate) fn routed(&mut self, uid: u64, space: PortSpace) -> IdNumber {
        let (from, to) = (self.programs[0].end(50_000 + uid as u16), self.programs[1].end(PORT));
        let manager = &mut self.programs[0].manager;
        let id = manager.create(CHANNEL, uid, space);
        manager.resolved(id, Ok((from, to)));
        manager.resolve_route(CHANNEL, id).unwrap();
        self.perform();
        for _ in 0..2 {
            self.programs[0].manager.next_event(CHANNEL).unwrap();
        }
        self.perform();
        id
    }

    pub(crate) fn event(&mut self, of: usize) -> Option<Event> {
        let event = self.programs[of].manager.next_event(CHANNEL);
        self.perform();
        event
    }

    /// Performs what the managers want.
    pub(crate) fn perform(&mut self) {
        for of in 0..2 {
            while let Some(action) = self.programs[of].manager.next_action() {
                match action {
                    Action::Ask(id) => self.questions.push_back(id),
                    Action::Dial(id, port) => {
                        assert_eq!(port, STREAMS);
                        self.dialing.push_back(id);
                    }
                    Action::Send(id, message) => self.post(of, id, Piece::Message(message)),
                    Action::Close(id) => self.post(of, id, Piece::End),
                    Action::Forget(id) => {
                        self.post(of, id, Piece::End);
                        self.dialing.retain(|dialing| of == 1 || *dialing != id);
                        self.forgotten.push((of, id));
                    }
                    Action::Readable(CHANNEL) => {
                        assert!(!std::mem::replace(&mut self.programs[of].readable, true), "readable twice");
                    }
                    Action::Drained(CHANNEL) => {
                        assert!(std::mem::take(&mut self.programs[of].readable), "drained twice");
                    }
                    Action::Readable(other) | Action::Drained(other) => panic!("{other:?}"),
                }
            }
        }
    }

    fn post(&mut self, of: usize, id: IdNumber, piece: Piece) {
        let is_of = |stream: &&mut Stream| if of == 0 { stream.active == id } else { stream.passive == Some(id) };
        if let Some(stream) = self.streams.values_mut().find(is_of) {
            stream.pieces[of].push_back(piece);
        }
    }

    /// Drops, repeats or delivers the oldest question.
    pub(crate) fn deliver_question(&mut self, drop: bool, repeat: bool) {
        let Some(id) = self.questions.pop_front() else { return };
        if repeat {
            self.questions.push_back(id);
        }
        if !drop {
            self.replies.push_back((id, self.listener.map(|_| STREAMS)));
        }
    }

    /// Drops, repeats or delivers the oldest reply.
    pub(crate) fn deliver_reply(&mut self, drop: bool, repeat: bool) {
        let Some((id, port)) = self.replies.pop_front() else { return };
        if repeat {
            self.replies.push_back((id, port));
        }
        let manager = &mut self.programs[0].manager;
        match port {
            _ if drop => {}
            Some(port) => manager.port_found(id, port),
            None => manager.not_connected(id, None),
        }
        self.perform();
    }

    /// Opens the oldest stream, or refuses it.
    pub(crate) fn deliver_stream(&mut self) {
        let Some(id) = self.dialing.pop_front() else { return };
        if self.listener.is_none() {
            self.programs[0].manager.not_connected(id, None);
        } else {
            self.last_stream += 1;
            let stream = Stream { active: id, passive: None, is_refused: false, pieces: Default::default() };
            self.streams.insert(self.last_stream, stream);
            self.programs[0].manager.dialed(id);
        }
        self.perform();
    }

    /// Delivers what is next on one of the streams, in one direction.
    pub(crate) fn deliver_message(&mut self, which: u8, direction: usize) {
        let keys: Vec<u32> = self.streams.keys().copied().collect();
        let Some(key) = keys.get(usize::from(which) % keys.len().max(1)).copied() else { return };
        let stream = self.streams.get_mut(&key).unwrap();
        let (active, passive) = (stream.active, stream.passive);
        let Some(piece) = stream.pieces[direction].pop_front() else { return };
        match (direction, piece) {
            (0, _) if stream.is_refused => {}
            (0, Piece::Message(message)) if passive.is_none() => self.deliver_request(key, &message),
            (0, Piece::Message(message)) => self.programs[1].manager.received(passive.unwrap(), &message),
            (_, Piece::Message(message)) => self.programs[0].manager.received(active, &message),
            (0, Piece::End) => passive.into_iter().for_each(|id| self.programs[1].manager.closed(id)),
            (_, Piece::End) => self.programs[0].manager.closed(active),
        }
        self.perform();
    }

    fn deliver_request(&mut self, key: u32, message: &Message) {
        assert_eq!(message.kind, Kind::Request);
        let from = SocketAddr::new(self.programs[0].address.into(), 1);
        let at = self.programs[1].end(PORT);
        let listener = self.listener.unwrap_or(IdNumber(0));
        let asked = self.programs[1].manager.request(listener, message, from, at);
        let stream = self.streams.get_mut(&key).unwrap();
        match asked {
            Ok(id) => stream.passive = Some(id),
            Err(reason) => {
                stream.is_refused = true;
                let reject = Message::reject(message.space, reason, PrivateData::NONE);
                stream.pieces[1].extend([Piece::Message(Box::new(reject)), Piece::End]);
            }
        }
    }

    /// The time goes on.
    pub(crate) fn pass(&mut self, time: u64) {
        self.now += time;
        for program in &mut self.programs {
            program.manager.set_time(self.now);
            program.manager.expire();
        }
        self.perform();
    }

    /// Delivers all that is under way, and lets short times pass, until nothing happens any more.
    pub(crate) fn settle(&mut self) {
        for _ in 0..400 {
            self.deliver_question(false, false);
            self.deliver_reply(false, false);
            self.deliver_stream();
            for which in 0..=u8::try_from(self.streams.len().min(255)).unwrap() {
                self.deliver_message(which, 0);
                self.deliver_message(which, 1);
            }
            let is_quiet = self.questions.is_empty() && self.replies.is_empty() && self.dialing.is_empty();
            if is_quiet && self.streams.values().all(|stream| stream.pieces.iter().all(VecDeque::is_empty)) {
                return;
            }
        }
        panic!("it does not settle: {self:?}");
    }

    /// As [`Self::settle`], and all time-outs pass as well.
    pub(crate) fn settle_for_ever(&mut self) {
        for _ in 0..200 {
            self.settle();
            self.pass(times::ASK_PAUSE_NS_MAX);
        }
        self.settle();
    }

    /// The program with the number ends: the kernel closes its streams.
    pub(crate) fn kill(&mut self, of: usize) {
        for stream in self.streams.values_mut() {
            stream.pieces[of].push_back(Piece::End);
        }
    }
}
