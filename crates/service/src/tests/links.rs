//! Boards with links, on one worker and on several.

use super::fixture::{ServiceFixture, TestDomain, eager, to};
use crate::{Command, Event, MxBoardNumber, MxCommand, MxView, NewMxBoard, NewMxConnect, NewMxEndpoint};
use crate::{RemoteAddress, ServiceOptions, WorkerIndex};
use isthmus_layout::record::{Record, Route};
use isthmus_layout::{DomainId, EndpointIndex, NicId};
use isthmus_link::{Frame, Link, LinkCounters, LinkError, LinkKind, LinkState, Peer, SendOutcome, UdpLink, UdpOptions};
use isthmus_mx::board::BoardSetup;
use isthmus_mx::net::EndpointTuning;
use isthmus_mx::wire::{BoardName, Dialect, SessionId, Sizes};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Only a lost frame, or a lost event, takes so long.
const LIVENESS: Duration = Duration::from_secs(30);

/// Links of each silent board.
const LINKS: usize = 8;

fn nic(number: u32) -> NicId {
    NicId::from_octets([2, 0, 0, 0, 0, number as u8 + 1])
}

fn name(number: u32) -> BoardName {
    BoardName::new(format!("board{number}").as_bytes()).unwrap()
}

/// A board that knows `peers`, and announces itself to no others.
fn board(number: u32, links: Vec<Box<dyn Link>>, peers: &[u32]) -> MxCommand {
    let setup = BoardSetup { discovery: false, ..BoardSetup::new(nic(number), name(number), Dialect::Mx, 1, 2) };
    MxCommand::AddBoard(Box::new(NewMxBoard {
        number: MxBoardNumber(number),
        setup,
        sizes: Sizes::MX,
        tuning: EndpointTuning::DEFAULT,
        locals: Vec::new(),
        peers: peers.iter().map(|&peer| (nic(peer), name(peer))).collect(),
        links: links.into_iter().map(|link| (link, 0)).collect(),
        view: Arc::new(Mutex::new(MxView::default())),
    }))
}

fn endpoint(board: u32, domain: DomainId) -> MxCommand {
    MxCommand::OpenEndpoint(Box::new(NewMxEndpoint {
        board: MxBoardNumber(board),
        number: 0,
        domain,
        at: EndpointIndex::new(2).unwrap(),
        credit: 16 << 10,
        key: 7,
        session: SessionId(board + 2),
        secret: board + 3,
    }))
}

/// The links of boards 0 and 1, which reach each other over the loopback interface.
fn linked() -> [Box<dyn Link>; 2] {
    let open = |number| {
        let bind = "127.0.0.1:0".parse().unwrap();
        let options = UdpOptions { bind, ethertype: Dialect::Mx.ethertype(), ..UdpOptions::new(nic(number)) };
        UdpLink::open(&options).unwrap()
    };
    let mut links = [open(0), open(1)];
    let bound = links.each_ref().map(UdpLink::bound);
    for (at, link) in links.iter_mut().enumerate() {
        let other = 1 - at;
        link.set_peers(&[Peer { address: bound[other], nics: vec![nic(other as u32)] }]).unwrap();
    }
    links.map(|link| Box::new(link) as Box<dyn Link>)
}

/// Steps the workers until `found` returns something.
fn until<T>(fixture: &mut ServiceFixture, what: &str, mut found: impl FnMut(&mut ServiceFixture) -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        fixture.run_until_idle();
        if let Some(found) = found(fixture) {
            return found;
        }
        assert!(start.elapsed() < LIVENESS, "{what} did not happen");
    }
}

/// A domain on each of two boards, which are connected.
struct Pair {
    fixture: ServiceFixture,
    domains: [TestDomain; 2],
    /// The number of each domain's remote peer, which is the other one.
    remote_peers: [DomainId; 2],
}

impl Pair {
    /// Board 0 goes to the first of `workers`, board 1 to the second.
    fn connect(mut fixture: ServiceFixture, workers: [WorkerIndex; 2]) -> Self {
        let domains = [fixture.attach(), fixture.attach()];
        for ((number, worker), link) in (0..).zip(workers).zip(linked()) {
            fixture.service.send(Command::Mx(worker, board(number, vec![link], &[1 - number])));
            fixture.service.send(Command::Mx(worker, endpoint(number, domains[number as usize].id)));
        }
        let connect = NewMxConnect { request: 5, board: MxBoardNumber(0), endpoint: 0, nic: nic(1), number: 0, key: 7 };
        fixture.service.send(Command::Mx(workers[0], MxCommand::Connect(connect)));
        let mut events = Vec::new();
        let first = until(&mut fixture, "the connect", |fixture| {
            events.extend(fixture.events());
            events.iter().find_map(|event| match event {
                Event::RemoteConnected { request: 5, outcome } => Some(outcome.unwrap()),
                _ => None,
            })
        });
        let mut pair = Self { fixture, domains, remote_peers: [first; 2] };
        let (_, second) = pair.message(0, 1);
        events.extend(pair.fixture.events());
        for (at, remote_peer) in [first, second].into_iter().enumerate() {
            let added = |event: &Event| {
                matches!(*event, Event::RemoteAdded { worker, remote_peer: added, domain, address: RemoteAddress::Mx { nic: of, number: 0 } }
                if (worker, added, domain, of) == (workers[at], remote_peer, pair.domains[at].id, nic(1 - at as u32)))
            };
            assert_eq!(events.iter().filter(|event| added(event)).count(), 1, "{events:?}");
        }
        pair.remote_peers[1] = second;
        pair
    }

    /// Sends a message from domain `from` to the other one. Returns its tag, and the number of its sender there.
    fn message(&mut self, from: usize, tag: u64) -> (u64, DomainId) {
        let route = Route { from: EndpointIndex::new(2).unwrap(), ..to(self.remote_peers[from]) };
        self.domains[from].send(route, eager(tag, 5), b"hello");
        let receiver = &mut self.domains[1 - from];
        until(&mut self.fixture, "a message", |_| {
            // Credit for earlier messages comes with the next record.
            let mut records = std::iter::from_fn(|| receiver.receive());
            let got = records.find(|got| !matches!(got.record, Record::Credit { .. }))?;
            assert_eq!((got.record, &got.bytes[..]), (eager(tag, 5), &b"hello"[..]));
            receiver.send(Route { from: got.route.to, ..to(got.from) }, Record::Credit { bytes: 128 + 5 }, &[]);
            Some((tag, got.from))
        })
    }
}

#[test]
fn boards_of_different_workers_reach_each_other() {
    let fixture = ServiceFixture::new(ServiceOptions { workers: 2, ..ServiceOptions::default() });
    let mut pair = Pair::connect(fixture, [WorkerIndex(0), WorkerIndex(1)]);
    let workers = pair.domains.each_ref().map(|domain| pair.fixture.service.worker_of(domain.id));
    assert_eq!(workers, [WorkerIndex(1), WorkerIndex(0)], "each domain is served by the worker of the other board");
    assert_ne!(pair.remote_peers[0], pair.remote_peers[1], "workers number their remote peers apart");
    for tag in 0..100 {
        assert_eq!(pair.message(1, tag), (tag, pair.remote_peers[0]));
        assert_eq!(pair.message(0, tag), (tag, pair.remote_peers[1]));
    }
    assert_eq!(pair.fixture.events(), []);
}

/// A link without frames. Its descriptor becomes readable when the test writes to it.
#[derive(Debug)]
struct SilentLink {
    fd: Arc<OwnedFd>,
    receives: Arc<AtomicUsize>,
}

impl AsFd for SilentLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Link for SilentLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Udp
    }

    fn name(&self) -> &str {
        "silent"
    }

    fn nic(&self) -> NicId {
        nic(99)
    }

    fn frame_bytes_max(&self) -> u32 {
        Sizes::MX.frame_bytes_max()
    }

    fn state(&self) -> LinkState {
        LinkState::Up
    }

    fn send(&mut self, _: &[Frame<'_>]) -> Result<SendOutcome, LinkError> {
        unreachable!("nothing is sent")
    }

    fn receive(&mut self) -> Result<usize, LinkError> {
        self.receives.fetch_add(1, Relaxed);
        let _ = rustix::io::read(&*self.fd, &mut [0; 8]);
        Ok(0)
    }

    fn has_more(&self) -> bool {
        false
    }

    fn frame(&self, _: usize) -> &[u8] {
        unreachable!("nothing is received")
    }

    fn refresh(&mut self) -> Result<LinkState, LinkError> {
        Ok(LinkState::Up)
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

#[test]
fn silent_links_are_not_received_from() {
    let fixture = ServiceFixture::allow_all();
    let (worker, receives) = (WorkerIndex(0), Arc::<AtomicUsize>::default());
    let mut fds = Vec::new();
    for number in 2..15 {
        let link = || {
            let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
            fds.push(fd.clone());
            Box::new(SilentLink { fd, receives: receives.clone() }) as Box<dyn Link>
        };
        let links = std::iter::repeat_with(link).take(LINKS).collect();
        fixture.service.send(Command::Mx(worker, board(number, links, &[])));
    }
    let mut pair = Pair::connect(fixture, [worker, worker]);
    let before = receives.load(Relaxed);
    assert_eq!(before, fds.len(), "a new link is received from once");
    for tag in 0..100 {
        pair.message(1, tag);
        pair.message(0, tag);
    }
    assert_eq!(receives.load(Relaxed), before);
    for (at, fd) in fds.iter().enumerate() {
        rustix::io::write(&**fd, &1_u64.to_ne_bytes()).unwrap();
        let expected = before + at + 1;
        until(&mut pair.fixture, "a receive", |_| (receives.load(Relaxed) >= expected).then_some(()));
        pair.message(0, at as u64);
        assert_eq!(receives.load(Relaxed), expected, "each event leads to one receive");
    }
}
