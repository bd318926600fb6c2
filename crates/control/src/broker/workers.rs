//! The border to the data plane: which boards the workers have, and which places on them domains have.

use std::collections::BTreeMap;
use std::sync::Arc;

use isthmus_layout::board::{self, Place};
use isthmus_layout::control::Owner;
use isthmus_layout::ids::DomainId;
use isthmus_layout::reason::Reason;
use isthmus_service::{BoardNumber, Command, NewDomain, Permit, WorkerCounters, WorkerIndex};

use super::Refusal;
use crate::directory::boards::Places;
use crate::ground::{Ground, GroundNumber, Item};

/// Who carries out the workers' commands: the [`Service`](isthmus_service::Service), or a test.
pub trait DataPlane: std::fmt::Debug {
    /// The worker that serves a domain.
    fn home(&self, domain: DomainId) -> WorkerIndex;
    /// Passes a command on. Never waits.
    fn send(&self, command: Command);
    /// What the workers count.
    fn counters(&self) -> &[Arc<WorkerCounters>];
}

impl DataPlane for isthmus_service::Service {
    fn home(&self, domain: DomainId) -> WorkerIndex {
        Self::home(self, domain)
    }

    fn send(&self, command: Command) {
        Self::send(self, command);
    }

    fn counters(&self) -> &[Arc<WorkerCounters>] {
        Self::counters(self)
    }
}

#[derive(Debug)]
struct WorkerBoard {
    number: BoardNumber,
    memory: Item,
    doorbell: Item,
    places: Places,
}

/// A domain's place on a worker's board.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) worker: WorkerIndex,
    pub(super) board: BoardNumber,
    pub(super) place: Place,
    pub(super) memory: Item,
    pub(super) doorbell: Item,
    key: Key,
    /// What the worker uses beside the board, and must not be handed to anybody else before it has let go.
    #[expect(dead_code, reason = "is held")]
    pub(super) holds: Vec<Item>,
}

/// Who has a board: those whom a worker serves, of one owner, on one ground.
type Key = (WorkerIndex, GroundNumber, Owner);

/// The workers' boards.
#[derive(Debug)]
pub(crate) struct WorkerBoards {
    plane: Box<dyn DataPlane>,
    boards: BTreeMap<Key, WorkerBoard>,
    /// Who sits where, until the worker has let go of it.
    seats: BTreeMap<DomainId, Seat>,
    next: u32,
}

impl WorkerBoards {
    pub(super) fn new(plane: Box<dyn DataPlane>) -> Self {
        Self { plane, boards: BTreeMap::new(), seats: BTreeMap::new(), next: 0 }
    }

    pub(crate) fn counters(&self) -> &[Arc<WorkerCounters>] {
        self.plane.counters()
    }

    pub(super) fn permit(&self, permit: Permit) {
        self.plane.send(Command::Permit(permit));
    }

    /// A place for a domain; makes the board if it is the owner's first.
    pub(super) fn seat(
        &mut self,
        domain: DomainId,
        owner: Owner,
        ground: &Ground,
        holds: Vec<Item>,
    ) -> Result<Seat, Refusal> {
        if self.seats.contains_key(&domain) {
            return Err(Reason::StillAttached.into()); // It came back before its worker had let go.
        }
        let worker = self.plane.home(domain);
        let key = (worker, ground.number(), owner);
        if !self.boards.contains_key(&key) {
            let board = self.new_board(worker, ground)?;
            self.boards.insert(key, board);
        }
        let board = self.boards.get_mut(&key).expect("made above");
        let place = board.places.take().ok_or(Reason::PlacesFull)?;
        let (memory, doorbell) = (board.memory.clone(), board.doorbell.clone());
        let seat = Seat { worker, board: board.number, place, memory, doorbell, key, holds };
        self.seats.insert(domain, seat.clone());
        Ok(seat)
    }

    fn new_board(&mut self, worker: WorkerIndex, ground: &Ground) -> Result<WorkerBoard, Refusal> {
        let memory = ground.memory(board::SIZE)?;
        let window = memory.map(board::SIZE)?;
        let (doorbell, ringer) = ground.worker_bell(worker)?;
        let number = BoardNumber(self.next);
        self.next += 1;
        self.plane.send(Command::AddBoard { worker, board: number, memory: window, doorbell });
        Ok(WorkerBoard { number, memory, doorbell: ringer, places: Places::default() })
    }

    /// The worker serves the domain from now on.
    pub(super) fn add(&self, domain: NewDomain) {
        self.plane.send(Command::Add(Box::new(domain)));
    }

    pub(super) fn remove(&self, domain: DomainId, reason: Reason) {
        self.plane.send(Command::Remove { domain, reason });
    }

    /// The worker has let go: the place is free, and so is the board if it was the last.
    pub(super) fn removed(&mut self, domain: DomainId) {
        let Some(seat) = self.seats.remove(&domain) else { return };
        let Some(board) = self.boards.get_mut(&seat.key) else { return };
        board.places.give_back(seat.place);
        if board.places.count() == 0 {
            self.boards.remove(&seat.key);
            self.plane.send(Command::RemoveBoard { worker: seat.worker, board: seat.board });
        }
    }

    /// About the boards that have links.
    pub(super) fn tell(&self, command: Command) {
        self.plane.send(command);
    }

    pub(super) fn shutdown(&self) {
        self.plane.send(Command::Shutdown);
    }
}
