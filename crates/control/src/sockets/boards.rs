//! The boards of a program, in which peers set bits: one for the programs of its own owner, and one for each other owner among its peers.
//!
//! Programs of one owner can clear each other's bits and drain each other's doorbells. Those of two owners share neither a board nor a
//! doorbell of a third program, so none of them can keep a wake-up of the other from it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;

use isthmus_layout::Refusal;
use isthmus_layout::control::{Done, Owner};
use isthmus_layout::limits::READY_MAPS_MAX;
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::{ALARM, BOARD_SIZE, PeerWaiter, SocketsToClient, StreamBoard, WAITERS_MAX};
use isthmus_window::{Allocator, Resource};
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::{Sockets, not_attached};
use crate::core::Core;
use crate::core::requester::Answer;
use crate::core::types::ControlSessionId;
use crate::fd_reaper::ReceivedFd;

/// The number of the board for peers of the own owner. No message names it.
pub(super) const OWN_BOARD: u32 = 0;

/// The number of doorbells that a program gets from all programs of one other owner. Each is a descriptor of its process.
const FOREIGN_BELLS_MAX: usize = 256;

/// A board.
#[derive(Debug)]
struct Board {
    number: u32,
    memory: Resource,
    /// The doorbells of the waiters that were added. On the own board also the alarm.
    waiters: BTreeMap<u8, Resource>,
    /// The number of peers that know the board.
    peers: usize,
    /// The number of doorbells that the program has from these peers.
    bells: usize,
    /// The program has the memory.
    is_announced: bool,
}

/// The boards of a program.
#[derive(Debug)]
pub(super) struct Boards {
    own: Owner,
    by_owner: BTreeMap<Owner, Board>,
    last: u32,
}

impl Board {
    fn new(number: u32, memory: Resource) -> Self {
        Self { number, memory, waiters: BTreeMap::new(), peers: 0, bells: 0, is_announced: number == OWN_BOARD }
    }

    /// The number of descriptors that the daemon has open for it.
    fn fds(&self) -> usize {
        1 + self.waiters.len()
    }
}

impl Boards {
    /// Returns the boards of a program without peers of other owners.
    pub(super) fn new(own: Owner, memory: Resource) -> Self {
        Self { own, by_owner: BTreeMap::from([(own, Board::new(OWN_BOARD, memory))]), last: OWN_BOARD }
    }

    /// The number of descriptors that the daemon has open for them.
    pub(super) fn fds(&self) -> usize {
        self.by_owner.values().map(Board::fds).sum()
    }

    /// True if there is a board for peers of this owner.
    pub(super) fn has(&self, owner: Owner) -> bool {
        self.by_owner.contains_key(&owner)
    }

    /// True if no board for another owner can be added.
    pub(super) fn is_full(&self) -> bool {
        self.by_owner.len() >= READY_MAPS_MAX
    }

    fn add(&mut self, owner: Owner, memory: Resource) {
        self.last += 1;
        self.by_owner.insert(owner, Board::new(self.last, memory));
    }

    fn with_number(&mut self, number: u32) -> Option<(Owner, &mut Board)> {
        let found = self.by_owner.iter_mut().find(|(_, board)| board.number == number);
        found.map(|(owner, board)| (*owner, board))
    }

    /// The number of waiters that peers of this owner know.
    pub(super) fn waiters_for(&self, owner: Owner) -> usize {
        self.by_owner.get(&owner).map_or(0, |board| board.waiters.len())
    }

    /// Returns whether the program may get more doorbells from peers of this owner.
    fn has_room_for_bells(&self, owner: Owner, count: usize) -> bool {
        let bells = self.by_owner.get(&owner).map_or(0, |board| board.bells);
        owner == self.own || bells + count <= FOREIGN_BELLS_MAX
    }

    /// Notes that a peer with this number of waiters has left. The board of another owner ends with its last peer. Returns the number of
    /// descriptors that are closed.
    pub(super) fn peer_left(&mut self, owner: Owner, waiters: usize) -> usize {
        let Some(board) = self.by_owner.get_mut(&owner) else { return 0 };
        board.peers -= 1;
        board.bells -= waiters;
        self.end_unused(owner)
    }

    fn end_unused(&mut self, owner: Owner) -> usize {
        let is_unused = |board: &&Board| board.peers == 0 && owner != self.own;
        let Some(fds) = self.by_owner.get(&owner).filter(is_unused).map(Board::fds) else { return 0 };
        self.by_owner.remove(&owner);
        fds
    }
}

impl Sockets {
    /// Adds a waiter to a board, and sends it to all peers that know the board before the reply.
    pub(super) fn add_waiter(
        &mut self,
        core: &mut Core,
        id: ControlSessionId,
        (board, waiter): (u32, u8),
        doorbell: ReceivedFd,
    ) -> Result<Answer, Refusal> {
        self.check_fds(core, self.session(id)?.taker)?;
        core.check_fds_queue(id)?;
        let session = self.sessions.get_mut(&id).ok_or_else(not_attached)?;
        let Some((owner, board)) = session.boards.with_number(board) else {
            return Err(Refusal::new(Reason::RequestInvalid, "the board has ended, or there was none of this number"));
        };
        let is_own = board.number == OWN_BOARD;
        let waiters_max = if is_own { WAITERS_MAX } else { ALARM };
        if waiter >= waiters_max || board.waiters.contains_key(&waiter) {
            let text = format!("waiter {waiter} is beyond the limit of {waiters_max}, or was added before");
            return Err(Refusal::new(Reason::RequestInvalid, text));
        }
        let knowing = session.peers.iter().filter(|(_, of)| **of == owner).map(|(peer, _)| *peer);
        let (own, account, number) = (session.identity.owner, session.taker.account, session.number);
        let peers: Vec<_> = knowing.collect();
        let has_room =
            |peer: &ControlSessionId| self.sessions.get(peer).is_none_or(|peer| peer.boards.has_room_for_bells(own, 1));
        if !peers.iter().all(has_room) {
            let text = format!("a peer has {FOREIGN_BELLS_MAX} doorbells from programs of this user");
            return Err(Refusal::new(Reason::StreamsFull, text));
        }
        let doorbell = match is_own && waiter != ALARM {
            true if is_eventfd(&doorbell) => Resource::from(doorbell.into_fd()),
            // The program has the other end of a socket, and may have sent any descriptor into this one.
            false if is_packet_socket(&doorbell) => Resource::Foreign(Arc::new(doorbell)),
            _ => return Err(Reason::DoorbellInvalid.into()),
        };
        let board = self.sessions.get_mut(&id).and_then(|session| session.boards.by_owner.get_mut(&owner));
        board.ok_or_else(not_attached)?.waiters.insert(waiter, doorbell.clone());
        let message = SocketsToClient::from(PeerWaiter { peer: number, waiter });
        self.add_fds(account, 1);
        for peer in peers {
            self.add_bells(peer, own, 1);
            core.send(peer, None, message.clone().into(), vec![doorbell.clone()]);
        }
        Ok(Answer::now(Done {}))
    }

    /// Notes that a session gets doorbells from a peer of this owner.
    fn add_bells(&mut self, id: ControlSessionId, owner: Owner, count: usize) {
        let board = self.sessions.get_mut(&id).and_then(|session| session.boards.by_owner.get_mut(&owner));
        board.into_iter().for_each(|board| board.bells += count);
    }

    /// Checks whether two programs can reach each other by boards.
    pub(super) fn may_share_boards(&self, core: &Core, ids: [ControlSessionId; 2]) -> Result<(), Reason> {
        for (id, peer) in [(ids[0], ids[1]), (ids[1], ids[0])] {
            let peer_id = peer;
            let (Some(session), Some(peer)) = (self.sessions.get(&id), self.sessions.get(&peer)) else {
                return Err(Reason::PeerConnectionLost);
            };
            let owner = peer.identity.owner;
            if owner != session.identity.owner && !session.has_boards {
                return Err(Reason::StreamOwnerDiffers);
            }
            let is_known = session.peers.contains_key(&peer_id);
            if !is_known && !session.boards.has_room_for_bells(owner, peer.boards.waiters_for(session.identity.owner)) {
                return Err(Reason::StreamsFull);
            }
            if session.boards.has(owner) {
                continue;
            }
            if session.boards.is_full() {
                return Err(Reason::ReadyMapsFull);
            }
            self.check_fds(core, session.taker).map_err(|refusal| refusal.reason)?;
        }
        Ok(())
    }

    /// Makes two sessions known to each other, with new boards if need be. Returns the board by which the first reaches the second, and the
    /// other way round, if these did not know each other before.
    pub(super) fn introduce_both(
        &mut self,
        core: &mut Core,
        [a, b]: [ControlSessionId; 2],
    ) -> Result<[Option<Resource>; 2], Reason> {
        let opened = self.open_board(a, b).and_then(|()| self.open_board(b, a));
        if let Err(error) = opened {
            for (id, peer) in [(a, b), (b, a)] {
                let Some(owner) = self.sessions.get(&peer).map(|peer| peer.identity.owner) else { continue };
                self.release_board(id, |boards| boards.end_unused(owner));
            }
            core.log_reason(a, error.reason, error.text());
            return Err(error.reason);
        }
        Ok([self.introduce(core, b, a), self.introduce(core, a, b)])
    }

    /// Makes the board of a session for the owner of another one, unless there is one.
    fn open_board(&mut self, id: ControlSessionId, peer: ControlSessionId) -> Result<(), Refusal> {
        let owner = self.session(peer)?.identity.owner;
        let session = self.sessions.get_mut(&id).ok_or_else(not_attached)?;
        if !session.boards.has(owner) {
            session.boards.add(owner, Allocator::Host.allocate(BOARD_SIZE)?);
            let account = session.taker.account;
            self.add_fds(account, 1);
        }
        Ok(())
    }

    /// Makes a session known to another one: sends it the waiters, and tells the session by which board the other one reaches it. Returns
    /// the board if the other session has not known this one before.
    fn introduce(&mut self, core: &mut Core, id: ControlSessionId, to: ControlSessionId) -> Option<Resource> {
        let (owner, to_number) = self.sessions.get(&to).map(|to| (to.identity.owner, to.number))?;
        let session = self.sessions.get_mut(&id)?;
        if session.peers.insert(to, owner).is_some() {
            return None;
        }
        let peer = session.number;
        let board = session.boards.by_owner.get_mut(&owner)?;
        board.peers += 1;
        if board.number != OWN_BOARD {
            let new_board = !std::mem::replace(&mut board.is_announced, true);
            let message = StreamBoard { peer: to_number, board: board.number, new_board };
            let memory = new_board.then(|| board.memory.clone());
            core.send(id, None, SocketsToClient::from(message).into(), memory.into_iter().collect());
        }
        for (waiter, doorbell) in &board.waiters {
            let message = SocketsToClient::from(PeerWaiter { peer, waiter: *waiter });
            core.send(to, None, message.into(), vec![doorbell.clone()]);
        }
        let (memory, count, own) = (board.memory.clone(), board.waiters.len(), session.identity.owner);
        self.add_bells(to, own, count);
        Some(memory)
    }

    /// Ends a board of a session by `end`, which returns the number of descriptors that it has closed.
    pub(super) fn release_board(&mut self, id: ControlSessionId, end: impl FnOnce(&mut Boards) -> usize) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let (account, fds) = (session.taker.account, end(&mut session.boards));
        if fds > 0 {
            self.remove_fds(account, fds);
        }
    }
}

fn is_eventfd(file: &ReceivedFd) -> bool {
    let kind = std::fs::read_link(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()));
    kind.is_ok_and(|kind| kind.as_os_str() == "anon_inode:[eventfd]")
}

/// True for the kind of socket that rings doorbells between owners.
fn is_packet_socket(file: &ReceivedFd) -> bool {
    let (domain, kind) = (sockopt::socket_domain(file.as_fd()), sockopt::socket_type(file.as_fd()));
    (domain, kind) == (Ok(AddressFamily::UNIX), Ok(SocketType::SEQPACKET))
}
