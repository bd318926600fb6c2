//! The wire: boards of MX, their links to other hosts, and the endpoints of this host's domains on them.
//!
//! ```text
//!   worker ── records for strangers ──► take ─► gateway ─┐                    ┌─► link ─► other hosts
//!     ▲                                                  ├─ board's endpoints ┤
//!     └────── deliver, credit ◄─────────────── gateway ◄─┘     board: whom?   └── link ◄─
//! ```
//!
//! A turn sends what there is to send, takes what has come, and looks at the clock; it never waits. One worker has all boards; what
//! other workers' domains have for strangers is handed over to it, like records between their domains.

mod board;
mod capture;
mod double;
mod endpoints;
mod port;
mod view;

pub use capture::{NewCapture, Wake};
pub use view::{LinkView, MxView};

use crate::command::{Command, Event};
use crate::mailbox::{Parcel, Task};
use crate::router::Home;
use crate::sleeper::Sleeper;
use crate::worker::Worker;
use crate::{WorkerIndex, kinds};
use board::MxBoard;
use capture::Shared;
use isthmus_gateway::{Domain, Gateway};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route};
use isthmus_layout::{DomainId, EndpointIndex, NicId};
use isthmus_link::Link;
use isthmus_mx::board::{Board, LinkNumber, Setup};
use isthmus_mx::net::{Address, Time, Tuning};
use isthmus_mx::wire::{BoardName, EndpointNumber, SessionId, Sizes};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The worker that has the links.
pub(crate) const WIRE_WORKER: WorkerIndex = WorkerIndex(0);

/// Boards of MX, numbered by control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MxBoardNumber(pub u32);

/// A board of MX with links to other hosts.
#[derive(Debug)]
pub struct NewMxBoard {
    /// Its number; each is used once.
    pub number: MxBoardNumber,
    /// Address, name, dialect, and how it finds others.
    pub setup: Setup,
    /// What all hosts of its network do alike.
    pub sizes: Sizes,
    /// Times and limits of its endpoints.
    pub tuning: Tuning,
    /// Other boards of this host: what is for them never goes to the wire.
    pub locals: Vec<(NicId, BoardName)>,
    /// Boards of other hosts that are known from the beginning.
    pub peers: Vec<(NicId, BoardName)>,
    /// Its links, and how good each is: the higher the better.
    pub links: Vec<(Box<dyn Link>, u32)>,
    /// What is to be seen of it, kept up to date by the worker.
    pub view: Arc<Mutex<MxView>>,
}

impl NewMxBoard {
    /// Shows what there is before the worker has looked at it: the links, and who is known from the beginning.
    pub fn show(&self) {
        let mut board = Board::new(self.setup);
        for &(nic, name) in &self.locals {
            let _ = board.add_local(nic, name); // The worker says what does not fit.
        }
        for &(nic, name) in &self.peers {
            let _ = board.add_static(Time::ZERO, nic, name); // As above.
        }
        let links = self.links.iter().map(|(link, rank)| LinkView::of(&**link, *rank)).collect();
        let shown = MxView { links, peers: board.peers().collect(), ..MxView::default() };
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }
}

/// An endpoint number of such a board that a domain has.
#[derive(Clone, Debug)]
pub struct MxEndpoint {
    /// The board.
    pub board: MxBoardNumber,
    /// The number.
    pub number: u8,
    /// Whose it is.
    pub domain: DomainId,
    /// Which of the domain's endpoints.
    pub at: EndpointIndex,
    /// Bytes that each stranger may have in the domain's ring: a ring has room for more.
    pub credit: u32,
    /// What those who connect must know.
    pub key: u32,
    /// Random, drawn for this opening.
    pub session: SessionId,
    /// Random, told to nobody.
    pub secret: u32,
}

/// A connect from one of our endpoints to one of another host.
#[derive(Clone, Copy, Debug)]
pub struct MxConnect {
    /// What the answer carries.
    pub request: u64,
    /// The board of ours.
    pub board: MxBoardNumber,
    /// The endpoint there, as which its domain is known.
    pub endpoint: u8,
    /// The board of the other host.
    pub nic: NicId,
    /// The endpoint there.
    pub number: u8,
    /// What that wants to see.
    pub key: u32,
}

/// Who stands for whom.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    next: u32,
    /// The endpoint of ours that a stranger talks to.
    strangers: HashMap<DomainId, (MxBoardNumber, EndpointNumber)>,
}

/// All boards.
#[derive(Debug)]
pub(crate) struct Wire {
    started: Instant,
    boards: HashMap<MxBoardNumber, MxBoard>,
    numbers: Numbers,
}

impl Default for Wire {
    fn default() -> Self {
        Self { started: Instant::now(), boards: HashMap::new(), numbers: Numbers::default() }
    }
}

impl Wire {
    fn now(&self) -> Time {
        Time::from_us(u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// True if frames wait.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.boards.values_mut().any(MxBoard::is_ready)
    }

    /// After sleeping, or after deciding not to; `frames` says whether any link may have some.
    pub(crate) fn awake(&mut self, frames: bool) {
        self.boards.values_mut().for_each(|board| board.awake(frames));
    }

    /// Sees to it that frames end the sleep; answers how long it may last.
    pub(crate) fn before_sleep(&mut self, sleeper: &mut Sleeper) -> Option<Duration> {
        let now = self.now();
        let boards = self.boards.values_mut().filter_map(|board| board.before_sleep(now, sleeper));
        Some(Duration::from_micros(boards.min()?.since_us(now)))
    }

    /// One turn of all boards. True if anything was done.
    fn turn(&mut self, worker: &mut Worker) -> bool {
        let mut busy = false;
        if self.boards.is_empty() {
            return busy;
        }
        let now = self.now();
        for (number, board) in &mut self.boards {
            busy |= board.turn(now, *number, &mut self.numbers, worker);
        }
        busy
    }

    /// Does something with the endpoint of ours that a stranger talks to, if it is `domain`'s.
    fn with_stranger(
        &mut self,
        worker: &mut Worker,
        domain: DomainId,
        stranger: DomainId,
        act: impl FnOnce(&mut Gateway, Time, &mut Side<'_>),
    ) {
        let now = self.now();
        let Some(&(board, endpoint)) = self.numbers.strangers.get(&stranger) else { return };
        if let Some(board) = self.boards.get_mut(&board) {
            board.with(now, endpoint, Some(domain), &mut self.numbers, worker, act);
        }
    }

    fn capture(&mut self, new: NewCapture) {
        let NewCapture { boards, domain, tap, wake } = new;
        let shared = Shared::new(tap, wake);
        for (number, first) in boards {
            if let Some(board) = self.boards.get_mut(&number) {
                board.captures.add(Arc::clone(&shared), first, domain);
            }
        }
    }

    /// The endpoint of ours that a stranger talks to.
    fn gateway_of(&mut self, stranger: DomainId) -> Option<&mut Gateway> {
        let (board, endpoint) = self.numbers.strangers.get(&stranger)?;
        self.boards.get_mut(board)?.gateway(*endpoint)
    }

    fn obey(&mut self, worker: &mut Worker, command: Command) {
        let now = self.now();
        match command {
            Command::AddMxBoard(new) => {
                let number = new.number;
                self.boards.insert(number, MxBoard::new(now, *new));
            }
            Command::OpenMx(new) => {
                if let Some(board) = self.boards.get_mut(&new.board) {
                    board.open(*new);
                }
            }
            Command::CloseMx { board, endpoint } => {
                if let Some(board) = self.boards.get_mut(&board) {
                    let endpoint = EndpointNumber(endpoint);
                    board.close(now, endpoint);
                    let strangers = &mut self.numbers.strangers;
                    let gone = strangers.extract_if(|_, at| *at == (board.number(), endpoint));
                    gone.for_each(|(stranger, _)| worker.router.remove_there(stranger, Reason::MxSevered));
                }
            }
            Command::ConnectMx(connect) => match self.boards.get_mut(&connect.board) {
                Some(board) => board.connect(now, &connect, &mut self.numbers, worker),
                None => {
                    let outcome = Err(Reason::MxNoBoard);
                    worker.tell(Event::MxConnected { request: connect.request, outcome });
                }
            },
            Command::GrantStranger { stranger, region, memory } => {
                if let Some(gateway) = self.gateway_of(stranger) {
                    gateway.grant(stranger, region, memory);
                }
            }
            Command::RevokeStranger { stranger, region } => {
                if let Some(gateway) = self.gateway_of(stranger) {
                    gateway.revoke(stranger, region);
                }
            }
            Command::Capture(new) => self.capture(*new),
            _ => {}
        }
    }
}

impl Worker {
    /// A turn of the boards, where this worker has them.
    pub(crate) fn turn_wire(&mut self) -> bool {
        self.with_wire(|worker, wire| wire.turn(worker)).unwrap_or(false)
    }

    pub(crate) fn obey_about_wire(&mut self, command: Command) {
        self.with_wire(|worker, wire| wire.obey(worker, command));
    }

    /// A record of a domain for somebody on another host.
    pub(crate) fn take_for_wire(&mut self, domain: DomainId, stranger: DomainId, record: &Record<'_>, bytes: &[u8]) {
        let mut misplaced = None;
        self.with_wire(|worker, wire| {
            wire.with_stranger(worker, domain, stranger, |gateway, now, side| {
                misplaced = gateway.take(now, stranger, record, bytes, side).err();
            });
        });
        if let (Some(misplaced), Some(Home::Here(slot))) = (misplaced, self.router.home(domain)) {
            self.breach(slot, misplaced.into());
        }
    }

    /// A domain has taken so much of what somebody on another host sent it.
    pub(crate) fn give_to_wire(&mut self, domain: DomainId, stranger: DomainId, bytes: u32) {
        self.with_wire(|worker, wire| {
            wire.with_stranger(worker, domain, stranger, |gateway, now, side| gateway.give(now, stranger, bytes, side));
        });
    }

    fn with_wire<T>(&mut self, act: impl FnOnce(&mut Self, &mut Wire) -> T) -> Option<T> {
        let mut wire = self.wire.take()?;
        let done = act(self, &mut wire);
        self.wire = Some(wire);
        Some(done)
    }

    fn tell(&self, event: Event) {
        (self.listener)(event);
    }
}

/// The domain's side of one of our endpoints.
pub(crate) struct Side<'a> {
    worker: &'a mut Worker,
    numbers: &'a mut Numbers,
    board: &'a Board,
    at: (MxBoardNumber, EndpointNumber),
    domain: DomainId,
}

impl Domain for Side<'_> {
    fn deliver(&mut self, route: Route, record: &Record<'_>, bytes: &[u8]) {
        match self.worker.router.home(self.domain) {
            Some(Home::Here(slot)) => self.worker.deliver(slot, route, record, bytes),
            Some(Home::There(worker)) => {
                let (to, record, bytes) = (self.domain, kinds::bare(record), bytes.to_vec());
                let parcel = Parcel { worker: self.worker.index, to, route, record, bytes };
                self.worker.post(worker, Task::Parcel(Box::new(parcel)));
            }
            Some(Home::Wire) | None => {}
        }
    }

    fn credit(&mut self, route: Route, bytes: u32) {
        match self.worker.router.home(self.domain) {
            Some(Home::Here(slot)) => self.worker.router.owe_credit(slot, route, bytes),
            Some(Home::There(worker)) => self.worker.post(worker, Task::Credit { to: self.domain, route, bytes }),
            Some(Home::Wire) | None => {}
        }
    }

    fn credit_now(&mut self, route: Route, bytes: u32) {
        match self.worker.router.home(self.domain) {
            Some(Home::Here(slot)) => self.worker.router.give_all_credit(slot, route, bytes),
            _ => self.credit(route, bytes),
        }
    }

    fn meet(&mut self, address: Address) -> Option<DomainId> {
        let nic = self.board.nic_of(address.peer)?;
        let stranger = DomainId::remote(self.numbers.next)?;
        self.numbers.next += 1;
        self.numbers.strangers.insert(stranger, self.at);
        self.worker.router.add_stranger(stranger);
        if let Some(Home::There(worker)) = self.worker.router.home(self.domain) {
            self.worker.post(worker, Task::Neighbour { domain: stranger, worker: WIRE_WORKER });
        }
        let (domain, number) = (self.domain, address.endpoint.0);
        self.worker.tell(Event::MxMet { stranger, domain, nic, number });
        Some(stranger)
    }

    fn part(&mut self, stranger: DomainId, reason: Reason) {
        self.numbers.strangers.remove(&stranger);
        self.worker.router.remove_there(stranger, reason);
        if let Some(Home::There(worker)) = self.worker.router.home(self.domain) {
            self.worker.post(worker, Task::NeighbourGone { domain: stranger, reason });
        }
        // Control tells the domain by another road: what was delivered has to be with it before.
        self.worker.deliver_waiting();
        self.worker.rings.flush();
        self.worker.tell(Event::MxParted { stranger, domain: self.domain, reason });
    }

    fn connected(&mut self, request: u64, outcome: Result<DomainId, Reason>) {
        self.worker.tell(Event::MxConnected { request, outcome });
    }
}

/// How links are numbered.
fn link_number(at: usize) -> LinkNumber {
    LinkNumber(u8::try_from(at).unwrap_or(u8::MAX))
}
