//! Domains, each with the client's end of its ring, and the workers between them.

use crate::worker::{Step, Worker};
use crate::{BoardNumber, Command, DomainCounters, Event, NewDomain, Options, Service, WorkerIndex};
use isthmus_channel::{Channel, Ends, SendError};
use isthmus_layout::board::Place;
use isthmus_layout::channel::{Direction, Geometry, SlabSize};
use isthmus_layout::control::Owner;
use isthmus_layout::limits::SLAB_BYTES_MIN;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Piece, Record, Route, Serial};
use isthmus_layout::{DomainId, EndpointIndex, RegionSize};
use isthmus_platform::Doorbell;
use isthmus_shm::{Board, Mapping, RecordBuffer, Window};
use std::sync::{Arc, Mutex};

/// A record as it arrived, with its bytes, which were given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) from: DomainId,
    pub(crate) route: Route,
    pub(crate) record: Record<'static>,
    pub(crate) bytes: Vec<u8>,
}

/// A domain, as its library would be.
pub(crate) struct Domain {
    pub(crate) id: DomainId,
    pub(crate) channel: Channel,
    /// The ring's memory, for those who do not keep to the rules.
    pub(crate) memory: Window,
    /// The daemon's board that it marks.
    pub(crate) daemon_board: Window,
    pub(crate) board: Board<Window>,
    pub(crate) doorbell: Doorbell,
    pub(crate) counters: Arc<DomainCounters>,
}

pub(crate) const GEOMETRY: Geometry = Geometry { slab: SlabSize::new(SLAB_BYTES_MIN).unwrap() };

fn private(size: RegionSize) -> Window {
    Window::new(Mapping::private(size))
}

pub(crate) fn id(number: u32) -> DomainId {
    DomainId::new(number).unwrap()
}

/// To endpoint 2 of a domain, from our endpoint 1.
pub(crate) fn to(peer: DomainId) -> Route {
    let end = |number| EndpointIndex::new(number).unwrap();
    Route { from: end(1), to: end(2), epoch: 7, peer: Some(peer) }
}

pub(crate) fn eager(tag: u64, len: u32) -> Record<'static> {
    Record::Eager { tag, len, words: &[] }
}

impl Domain {
    /// Sends a record; the message bytes go where its kind has them.
    pub(crate) fn try_send(&mut self, route: Route, record: Record<'_>, bytes: &[u8]) -> Result<(), SendError> {
        let inline = matches!(record, Record::Eager { .. });
        let mut record = record;
        if let Record::Start { piece, .. } | Record::More { piece, .. } = &mut record {
            let len = bytes.len() as u32;
            if !self.channel.has_room(len)? {
                return Err(SendError::Full);
            }
            *piece = self.channel.reserve(len, len)?.ok_or(SendError::Full)?;
            self.channel.fill(*piece, 0, bytes);
        }
        self.channel.send(route, &record, if inline { bytes } else { &[] })?;
        self.channel.flush();
        Ok(())
    }

    pub(crate) fn send(&mut self, route: Route, record: Record<'_>, bytes: &[u8]) {
        self.try_send(route, record, bytes).expect("there is room");
    }

    /// A message of the smallest kind, numbered by its tag.
    pub(crate) fn send_eager(&mut self, peer: DomainId, tag: u64, bytes: &[u8]) {
        self.send(to(peer), eager(tag, bytes.len() as u32), bytes);
    }

    /// The first piece of a message that is all of it.
    pub(crate) fn send_piece(&mut self, peer: DomainId, tag: u64, bytes: &[u8]) {
        let piece = Piece { offset: 0, len: 0 };
        let record = Record::Start { tag, len: bytes.len() as u32, serial: Serial(tag as u32 + 1), piece };
        self.send(to(peer), record, bytes);
    }

    pub(crate) fn send_credit(&mut self, peer: DomainId, bytes: u32) {
        self.send(to(peer), Record::Credit { bytes }, &[]);
    }

    /// Takes the next record; its bytes are copied and given back, the credit is not.
    pub(crate) fn receive(&mut self) -> Option<Arrived> {
        let mut buffer = RecordBuffer::default();
        if !self.channel.receive(&mut buffer).expect("the daemon keeps to the rules") {
            return None;
        }
        let (route, record) = Record::parse(buffer.kind(), buffer.bytes(), buffer.words()).expect("as above");
        let mut bytes = Vec::new();
        match record {
            Record::Eager { len, words, .. } => {
                bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                bytes.truncate(len as usize);
            }
            Record::Start { piece, .. } | Record::More { piece, .. } => {
                bytes.resize(piece.len as usize, 0);
                self.channel.copy_out(piece, 0, &mut bytes).expect("as above");
                self.channel.give_back(piece);
            }
            _ => {}
        }
        let from = route.peer.expect("the daemon says who sent it");
        Some(Arrived { from, route, record: crate::kinds::bare(&record), bytes })
    }

    pub(crate) fn receive_all(&mut self) -> Vec<Arrived> {
        std::iter::from_fn(|| self.receive()).collect()
    }

    /// Tags of all messages that have come.
    pub(crate) fn receive_tags(&mut self) -> Vec<u64> {
        let tag = |arrived: &Arrived| match arrived.record {
            Record::Eager { tag, .. } | Record::Start { tag, .. } => Some(tag),
            _ => None,
        };
        self.receive_all().iter().filter_map(tag).collect()
    }
}

/// The daemon without its threads.
pub(crate) struct World {
    pub(crate) service: Service,
    pub(crate) workers: Vec<Worker>,
    events: Arc<Mutex<Vec<Event>>>,
    boards: Vec<(Owner, WorkerIndex, BoardNumber, Window, Doorbell)>,
    next: u32,
}

impl World {
    pub(crate) fn new(options: Options) -> Self {
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let heard = events.clone();
        let (service, workers) = Service::prepare(options, move |event| heard.lock().unwrap().push(event)).unwrap();
        Self { service, workers, events, boards: Vec::new(), next: 0 }
    }

    /// A world with one worker in which everybody may talk.
    pub(crate) fn open() -> Self {
        Self::new(Options::default())
    }

    /// The daemon with its threads.
    pub(crate) fn threaded(options: Options) -> Self {
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let heard = events.clone();
        let service = Service::start(options, move |event| heard.lock().unwrap().push(event)).unwrap();
        Self { service, workers: Vec::new(), events, boards: Vec::new(), next: 0 }
    }

    /// Attaches a domain of owner 0.
    pub(crate) fn attach(&mut self) -> Domain {
        self.attach_as(Owner(0))
    }

    pub(crate) fn attach_as(&mut self, owner: Owner) -> Domain {
        self.next += 1;
        let domain = id(self.next);
        let (number, daemon_board, daemon_doorbell) = self.board(owner, self.service.home(domain));
        let memory = private(GEOMETRY.size());
        let own_board = private(isthmus_layout::board::SIZE);
        let (doorbell, counters) = (Doorbell::new().unwrap(), Arc::<DomainCounters>::default());
        let place = Place::new(self.next as u16).unwrap();
        let ends = Ends {
            window: memory.clone(),
            geometry: GEOMETRY,
            sends: Direction::One,
            peer_board: own_board.clone(),
            place: Place::DOMAIN_RING,
            peer_doorbell: doorbell.clone(),
        };
        let new = NewDomain { domain, owner, ends, board: number, place, counters: counters.clone() };
        self.service.send(Command::Add(Box::new(new)));
        let channel = Channel::new(Ends {
            window: memory.clone(),
            geometry: GEOMETRY,
            sends: Direction::Zero,
            peer_board: daemon_board.clone(),
            place,
            peer_doorbell: daemon_doorbell,
        });
        Domain { id: domain, channel, memory, daemon_board, board: Board::new(own_board), doorbell, counters }
    }

    fn board(&mut self, owner: Owner, worker: WorkerIndex) -> (BoardNumber, Window, Doorbell) {
        let same = |board: &&(Owner, WorkerIndex, _, _, _)| (board.0, board.1) == (owner, worker);
        if let Some((_, _, number, memory, doorbell)) = self.boards.iter().find(same) {
            return (*number, memory.clone(), doorbell.clone());
        }
        let number = BoardNumber(self.boards.len() as u32);
        let (memory, doorbell) = (private(isthmus_layout::board::SIZE), Doorbell::new().unwrap());
        let add = Command::AddBoard { worker, board: number, memory: memory.clone(), doorbell: doorbell.clone() };
        self.service.send(add);
        self.boards.push((owner, worker, number, memory.clone(), doorbell.clone()));
        (number, memory, doorbell)
    }

    pub(crate) fn remove(&self, domain: DomainId, reason: Reason) {
        self.service.send(Command::Remove { domain, reason });
    }

    /// One turn of every worker. True if one of them had something to do.
    pub(crate) fn step(&mut self) -> bool {
        self.workers.iter_mut().fold(false, |busy, worker| busy | (worker.step() == Step::Busy))
    }

    /// Steps until nobody has anything to do.
    pub(crate) fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the workers find no rest");
    }

    /// What control heard since it was asked last.
    pub(crate) fn events(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock().unwrap())
    }

    /// The reasons of all faults since control was asked last.
    pub(crate) fn faults(&self) -> Vec<(DomainId, Reason)> {
        let fault = |event| match event {
            Event::Fault { domain, breach } => Some((domain, breach.reason())),
            _ => None,
        };
        self.events().into_iter().filter_map(fault).collect()
    }
}
