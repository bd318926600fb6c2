//! Domains, each with the client's end of its ring, and the workers between them.

use crate::worker::{Step, Worker};
use crate::{Command, DomainCounters, Event, NewDomain, Service, ServiceOptions, WorkerIndex, WorkerReadyMapId};
use isthmus_channel::{Channel, ChannelParts, ChannelSendError};
use isthmus_layout::channel::{ChannelGeometry, Direction, SlabSize};
use isthmus_layout::control::Owner;
use isthmus_layout::limits::SLAB_BYTES_MIN;
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Fragment, Record, Route, Serial};
use isthmus_layout::{DomainId, EndpointIndex, RegionSize};
use isthmus_platform::Doorbell;
use isthmus_shm::{Mapping, ReadyMap, RecordBuffer, SharedMapping};
use std::sync::{Arc, Mutex};

/// A record as it arrived, with its bytes, which were given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedRecord {
    pub(crate) from: DomainId,
    pub(crate) route: Route,
    pub(crate) record: Record<'static>,
    pub(crate) bytes: Vec<u8>,
}

/// A domain, as its library would be.
pub(crate) struct TestDomain {
    pub(crate) id: DomainId,
    pub(crate) channel: Channel,
    /// The ring's memory, for tests that violate the protocol.
    pub(crate) memory: SharedMapping,
    /// The daemon's ready map, in which it sets its bit.
    pub(crate) daemon_ready_map: SharedMapping,
    pub(crate) ready_map: ReadyMap<SharedMapping>,
    pub(crate) doorbell: Doorbell,
    pub(crate) counters: Arc<DomainCounters>,
}

pub(crate) const GEOMETRY: ChannelGeometry = ChannelGeometry { slab: SlabSize::new(SLAB_BYTES_MIN).unwrap() };

fn private(size: RegionSize) -> SharedMapping {
    SharedMapping::new(Mapping::private(size))
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

impl TestDomain {
    /// Sends a record; the message bytes go where its kind has them.
    pub(crate) fn try_send(&mut self, route: Route, record: Record<'_>, bytes: &[u8]) -> Result<(), ChannelSendError> {
        let inline = matches!(record, Record::Eager { .. });
        let mut record = record;
        if let Record::FirstFragment { fragment, .. } | Record::NextFragment { fragment, .. } = &mut record {
            let len = bytes.len() as u32;
            if !self.channel.has_room(len)? {
                return Err(ChannelSendError::Full);
            }
            *fragment = self.channel.reserve(len, len)?.ok_or(ChannelSendError::Full)?;
            self.channel.copy_in(*fragment, 0, bytes);
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

    /// Sends the first fragment of a message, which is all of it.
    pub(crate) fn send_fragment(&mut self, peer: DomainId, tag: u64, bytes: &[u8]) {
        let fragment = Fragment { offset: 0, len: 0 };
        let record = Record::FirstFragment { tag, len: bytes.len() as u32, serial: Serial(tag as u32 + 1), fragment };
        self.send(to(peer), record, bytes);
    }

    pub(crate) fn send_credit(&mut self, peer: DomainId, bytes: u32) {
        self.send(to(peer), Record::Credit { bytes }, &[]);
    }

    /// Takes the next record; its bytes are copied and given back, the credit is not.
    pub(crate) fn receive(&mut self) -> Option<ReceivedRecord> {
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
            Record::FirstFragment { fragment, .. } | Record::NextFragment { fragment, .. } => {
                bytes.resize(fragment.len as usize, 0);
                self.channel.copy_out(fragment, 0, &mut bytes).expect("as above");
                self.channel.release(fragment);
            }
            _ => {}
        }
        let from = route.peer.expect("the daemon names the sender");
        Some(ReceivedRecord { from, route, record: crate::record_kinds::without_payload(&record), bytes })
    }

    pub(crate) fn receive_all(&mut self) -> Vec<ReceivedRecord> {
        std::iter::from_fn(|| self.receive()).collect()
    }

    /// Tags of all messages that have come.
    pub(crate) fn receive_tags(&mut self) -> Vec<u64> {
        let tag = |arrived: &ReceivedRecord| match arrived.record {
            Record::Eager { tag, .. } | Record::FirstFragment { tag, .. } => Some(tag),
            _ => None,
        };
        self.receive_all().iter().filter_map(tag).collect()
    }
}

/// The daemon without its threads.
pub(crate) struct ServiceFixture {
    pub(crate) service: Service,
    pub(crate) workers: Vec<Worker>,
    events: Arc<Mutex<Vec<Event>>>,
    ready_maps: Vec<(Owner, WorkerIndex, WorkerReadyMapId, SharedMapping, Doorbell)>,
    next: u32,
}

impl ServiceFixture {
    pub(crate) fn new(options: ServiceOptions) -> Self {
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let heard = events.clone();
        let (service, workers) =
            Service::build_workers(options, move |event| heard.lock().unwrap().push(event)).unwrap();
        Self { service, workers, events, ready_maps: Vec::new(), next: 0 }
    }

    /// A service with one worker in which every domain may send to every other.
    pub(crate) fn allow_all() -> Self {
        Self::new(ServiceOptions::default())
    }

    /// The daemon with its threads.
    pub(crate) fn threaded(options: ServiceOptions) -> Self {
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let heard = events.clone();
        let service = Service::start(options, move |event| heard.lock().unwrap().push(event)).unwrap();
        Self { service, workers: Vec::new(), events, ready_maps: Vec::new(), next: 0 }
    }

    /// Attaches a domain of owner 0.
    pub(crate) fn attach(&mut self) -> TestDomain {
        self.attach_as(Owner(0))
    }

    pub(crate) fn attach_as(&mut self, owner: Owner) -> TestDomain {
        self.next += 1;
        let domain = id(self.next);
        let (number, daemon_ready_map, daemon_doorbell) = self.ready_map(owner, self.service.worker_of(domain));
        let memory = private(GEOMETRY.size());
        let own_ready_map = private(isthmus_layout::ready_map::SIZE);
        let (doorbell, counters) = (Doorbell::new().unwrap(), Arc::<DomainCounters>::default());
        let ready_bit = ReadyBit::new(self.next as u16).unwrap();
        let parts = ChannelParts {
            memory: memory.clone(),
            geometry: GEOMETRY,
            send_direction: Direction::One,
            peer_ready_map: own_ready_map.clone(),
            ready_bit: ReadyBit::DOMAIN_RING,
            peer_doorbell: doorbell.clone(),
        };
        let new = NewDomain { domain, owner, parts, ready_map: number, ready_bit, counters: counters.clone() };
        self.service.send(Command::Add(Box::new(new)));
        let channel = Channel::new(ChannelParts {
            memory: memory.clone(),
            geometry: GEOMETRY,
            send_direction: Direction::Zero,
            peer_ready_map: daemon_ready_map.clone(),
            ready_bit,
            peer_doorbell: daemon_doorbell,
        });
        TestDomain {
            id: domain,
            channel,
            memory,
            daemon_ready_map,
            ready_map: ReadyMap::new(own_ready_map),
            doorbell,
            counters,
        }
    }

    fn ready_map(&mut self, owner: Owner, worker: WorkerIndex) -> (WorkerReadyMapId, SharedMapping, Doorbell) {
        let same = |entry: &&(Owner, WorkerIndex, _, _, _)| (entry.0, entry.1) == (owner, worker);
        if let Some((_, _, number, memory, doorbell)) = self.ready_maps.iter().find(same) {
            return (*number, memory.clone(), doorbell.clone());
        }
        let number = WorkerReadyMapId(self.ready_maps.len() as u32);
        let (memory, doorbell) = (private(isthmus_layout::ready_map::SIZE), Doorbell::new().unwrap());
        let add =
            Command::AddReadyMap { worker, ready_map: number, memory: memory.clone(), doorbell: doorbell.clone() };
        self.service.send(add);
        self.ready_maps.push((owner, worker, number, memory.clone(), doorbell.clone()));
        (number, memory, doorbell)
    }

    pub(crate) fn remove(&self, domain: DomainId, reason: Reason) {
        self.service.send(Command::Remove { domain, reason });
    }

    /// One step of every worker. True if one of them had something to do.
    pub(crate) fn step(&mut self) -> bool {
        self.workers.iter_mut().fold(false, |busy, worker| busy | (worker.step() == Step::Busy))
    }

    /// Steps until no worker has anything to do.
    pub(crate) fn run_until_idle(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the workers never become idle");
    }

    /// The events since the last call.
    pub(crate) fn events(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock().unwrap())
    }

    /// The reasons of all faults since the last call.
    pub(crate) fn faults(&self) -> Vec<(DomainId, Reason)> {
        let fault = |event| match event {
            Event::Fault { domain, violation, flight } => {
                assert!(!flight.is_empty(), "{violation}: no events of the ring");
                Some((domain, violation.reason()))
            }
            _ => None,
        };
        self.events().into_iter().filter_map(fault).collect()
    }
}
