//! A program that is attached to streams, until its connection ends.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, AsRawFd as _};

use isthmus_layout::control::{Done, Owner, RequestSerial};
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::{ALARM, BOARD_SIZE, PeerLeft, PeerWaiter, SocketsToClient, StreamAttached, WAITERS_MAX};
use isthmus_layout::{Capability, Refusal};

use rustix::net::{AddressFamily, SocketType, sockopt};

use super::evidence::{SocketReader, SocketRole};
use super::records::SocketName;
use super::{ListedPage, Sockets, not_attached};
use crate::allocator::{Allocator, Resource};
use crate::broker::{Broker, ControlSessionId, Deferred};
use crate::fd_reaper::ReceivedFd;
use crate::places::{Taker, may_take};
use crate::policy::Identity;

/// The least number of users with threads from which on those without are forgotten.
const THREADS_FORGET_MIN: usize = 64;

/// A program that is attached to streams.
#[derive(Debug)]
pub(crate) struct StreamSession {
    /// The number by which other programs know it.
    pub(super) number: u32,
    /// The identity that the policy is applied to.
    pub(super) identity: Identity,
    /// The user that it counts for.
    pub(super) taker: Taker,
    /// The process, if the daemon can see it.
    pub(super) pid: Option<i32>,
    /// The name of the program.
    pub(super) program: String,
    /// The board, in which peers set bits.
    pub(super) board: Resource,
    /// The doorbells of the waiters, and the alarm.
    pub(super) waiters: BTreeMap<u8, Resource>,
    /// The listening and shown sockets, by token.
    pub(super) sockets: SessionSockets,
    /// The sessions that know the board and the waiters of this one, and the other way round.
    pub(super) peers: BTreeSet<ControlSessionId>,
    /// The streams of which this program has an end that it has not ended.
    pub(super) streams: BTreeSet<u64>,
    /// Reads the program's sockets.
    pub(super) reader: SocketReader,
}

/// The state of a listening or shown socket.
#[derive(Clone, Copy, Debug)]
pub(super) enum SocketState {
    /// The socket is being read.
    Read {
        /// A number that is used once.
        job: u64,
        /// The state that the request expects.
        role: SocketRole,
    },
    /// The address is listed by this bit.
    Listed(u16),
    /// The socket waits for its peer, or is just being paired.
    Shown(SocketName),
}

/// The sockets of a session, by token.
#[derive(Debug, Default)]
pub(super) struct SessionSockets {
    by_token: BTreeMap<u32, SocketState>,
    listeners: usize,
}

impl SessionSockets {
    /// The number of listening sockets, or of shown ones.
    pub(super) fn count(&self, is_listener: bool) -> usize {
        if is_listener { self.listeners } else { self.by_token.len() - self.listeners }
    }

    pub(super) fn insert(&mut self, token: u32, state: SocketState) {
        self.remove(token);
        self.listeners += usize::from(state.is_listener());
        self.by_token.insert(token, state);
    }

    pub(super) fn get(&self, token: u32) -> Option<&SocketState> {
        self.by_token.get(&token)
    }

    pub(super) fn remove(&mut self, token: u32) -> Option<SocketState> {
        let state = self.by_token.remove(&token)?;
        self.listeners -= usize::from(state.is_listener());
        Some(state)
    }

    fn pop(&mut self) -> Option<(u32, SocketState)> {
        let (token, _) = self.by_token.first_key_value()?;
        let token = *token;
        Some((token, self.remove(token)?))
    }
}

impl SocketState {
    /// True for a listening socket, also before its address is listed.
    pub(super) fn is_listener(self) -> bool {
        matches!(self, Self::Listed(_) | Self::Read { role: SocketRole::Listener, .. })
    }

    /// The name of a shown socket.
    pub(super) fn name(self) -> Option<SocketName> {
        match self {
            Self::Shown(name) => Some(name),
            Self::Read { .. } | Self::Listed(_) => None,
        }
    }
}

impl Sockets {
    /// Attaches a connection to streams.
    pub(super) fn attach(
        broker: &mut Broker,
        id: ControlSessionId,
        serial: Option<RequestSerial>,
    ) -> Result<(), Refusal> {
        if !broker.capabilities.sockets.settings.is_enabled {
            return Err(Reason::StreamsDisabled.into());
        }
        if broker.capabilities.sockets.sessions.contains_key(&id) {
            return Err(Refusal::new(Reason::UnexpectedMessageType, "the program has attached to streams already"));
        }
        let identity = broker.identity_of_session(id)?;
        let peer = broker.socket_peer(id).ok_or(Reason::PeerConnectionLost)?;
        if peer.allocator.guest().is_some() {
            return Err(Refusal::not_in_guests_yet(Capability::Sockets));
        }
        let (pid, program) = (peer.pid, peer.program.to_string());
        let taker = broker.taker(id).ok_or(Reason::PeerConnectionLost)?;
        Self::check_fds(broker, taker)?;
        let board = Allocator::Host.allocate(BOARD_SIZE)?;
        let sockets = &mut broker.capabilities.sockets;
        let after_bytes = sockets.settings.after_bytes;
        let listed = match &sockets.listed {
            Some(listed) => listed,
            None => sockets.listed.insert(ListedPage::new()?),
        };
        let listed = listed.memory();
        let number = sockets.next_number()?;
        sockets.forget_threads();
        let threads = sockets.threads.entry(identity.owner).or_default().clone();
        let session = StreamSession {
            number,
            identity,
            taker,
            pid,
            program,
            board: board.clone(),
            waiters: BTreeMap::new(),
            sockets: SessionSockets::default(),
            peers: BTreeSet::new(),
            streams: BTreeSet::new(),
            reader: SocketReader::new(threads),
        };
        sockets.add_fds(taker.account, 1);
        sockets.records.attached(session.identity.owner);
        sockets.by_number.insert(number, id);
        sockets.sessions.insert(id, session);
        let message = SocketsToClient::from(StreamAttached { session: number, after_bytes });
        broker.send(id, serial, message.into(), vec![board, listed]);
        Ok(())
    }

    /// Returns a number that no session has.
    fn next_number(&mut self) -> Result<u32, Refusal> {
        let numbers = (0..=self.sessions.len()).map(|step| self.last_number.wrapping_add(1 + step as u32));
        let number = numbers.into_iter().find(|number| !self.by_number.contains_key(number));
        self.last_number = number.ok_or(Reason::ConnectionsFull)?;
        Ok(self.last_number)
    }

    /// Forgets the users without a thread once there are many.
    fn forget_threads(&mut self) {
        if self.threads.len() >= self.forget_threads_from {
            self.threads.retain(|_, threads| !threads.is_unused());
            self.forget_threads_from = THREADS_FORGET_MIN.max(2 * self.threads.len());
        }
    }

    /// Refuses another descriptor that stays open for a user, if all users together or this one have too many.
    fn check_fds(broker: &Broker, taker: Taker) -> Result<(), Refusal> {
        broker.capabilities.sockets.check_share(taker, broker.settings.fds_max)?;
        if broker.has_room_for_fds() { Ok(()) } else { Err(Reason::DaemonOutOfFds.into()) }
    }

    /// Refuses another descriptor for a user if it has its share already, of a quarter of the process's descriptors.
    pub(super) fn check_share(&self, taker: Taker, fds_max: usize) -> Result<(), Refusal> {
        let own = self.fds_by_user.get(&taker.account).copied().unwrap_or(0);
        may_take(own, self.fds, fds_max / 4, taker.has_others).map_err(|_| Reason::DaemonOutOfFds.into())
    }

    /// Adds descriptors that are open for a user.
    pub(super) fn add_fds(&mut self, account: Owner, count: usize) {
        self.fds += count;
        *self.fds_by_user.entry(account).or_default() += count;
    }

    /// Removes descriptors that are not open any more.
    pub(super) fn remove_fds(&mut self, account: Owner, count: usize) {
        if let Some(fds) = self.fds_by_user.get_mut(&account) {
            self.fds -= count;
            *fds -= count;
            if *fds == 0 {
                self.fds_by_user.remove(&account);
            }
        }
    }

    /// Adds a waiter, and sends it to all peers before the reply.
    pub(super) fn add_waiter(
        broker: &mut Broker,
        id: ControlSessionId,
        serial: Option<RequestSerial>,
        waiter: u8,
        eventfd: ReceivedFd,
    ) -> Result<(), Refusal> {
        let session = Self::session(broker, id)?;
        if waiter >= WAITERS_MAX || session.waiters.contains_key(&waiter) {
            let text = format!("waiter {waiter} is beyond the limit of {WAITERS_MAX}, or was added before");
            return Err(Refusal::new(Reason::RequestInvalid, text));
        }
        Self::check_fds(broker, session.taker)?;
        broker.check_fds_queue(id)?;
        let is_doorbell = if waiter == ALARM {
            let (domain, kind) = (sockopt::socket_domain(eventfd.as_fd()), sockopt::socket_type(eventfd.as_fd()));
            (domain, kind) == (Ok(AddressFamily::UNIX), Ok(SocketType::SEQPACKET))
        } else {
            let kind = std::fs::read_link(format!("/proc/self/fd/{}", eventfd.as_fd().as_raw_fd()));
            kind.is_ok_and(|kind| kind.as_os_str() == "anon_inode:[eventfd]")
        };
        if !is_doorbell {
            return Err(Reason::DoorbellInvalid.into());
        }
        let eventfd = Resource::from(eventfd.into_fd());
        let sockets = &mut broker.capabilities.sockets;
        let session = sockets.sessions.get_mut(&id).ok_or_else(not_attached)?;
        session.waiters.insert(waiter, eventfd.clone());
        let message = SocketsToClient::from(PeerWaiter { peer: session.number, waiter });
        let (account, peers) = (session.taker.account, session.peers.clone());
        sockets.add_fds(account, 1);
        for peer in peers {
            broker.send(peer, None, message.clone().into(), vec![eventfd.clone()]);
        }
        broker.send(id, serial, Done {}.into(), Vec::new());
        Ok(())
    }

    /// Makes a session known to another one: sends it the waiters. Returns the board if the other session has not known this one before.
    pub(super) fn introduce(broker: &mut Broker, id: ControlSessionId, to: ControlSessionId) -> Option<Resource> {
        let session = broker.capabilities.sockets.sessions.get_mut(&id)?;
        if !session.peers.insert(to) {
            return None;
        }
        let (peer, board, waiters) = (session.number, session.board.clone(), session.waiters.clone());
        for (waiter, eventfd) in waiters {
            let message = SocketsToClient::from(PeerWaiter { peer, waiter });
            broker.send(to, None, message.into(), vec![eventfd]);
        }
        Some(board)
    }

    /// Releases the state of a connection that has ended. That of its sockets, streams and peers is released in slices.
    pub(crate) fn session_closed(broker: &mut Broker, id: ControlSessionId) {
        let now = broker.now;
        let sockets = &mut broker.capabilities.sockets;
        let Some(session) = sockets.sessions.remove(&id) else { return };
        sockets.by_number.remove(&session.number);
        sockets.remove_fds(session.taker.account, 1 + session.waiters.len());
        sockets.records.left(session.identity.owner, now);
        broker.defer(Deferred::StreamSession(id, Box::new(session)));
    }

    /// Releases what a session had that has ended, `count` items at most. Returns the rest of `count`, which is not 0 if nothing is left.
    pub(crate) fn release_part(
        broker: &mut Broker,
        id: ControlSessionId,
        session: &mut StreamSession,
        count: usize,
    ) -> usize {
        for rest in (1..=count).rev() {
            let sockets = &mut broker.capabilities.sockets;
            if let Some(peer) = session.peers.pop_first() {
                if let Some(other) = sockets.sessions.get_mut(&peer) {
                    other.peers.remove(&id);
                    let left = SocketsToClient::from(PeerLeft { peer: session.number });
                    broker.send(peer, None, left.into(), Vec::new());
                }
            } else if let Some((token, state)) = session.sockets.pop() {
                match state {
                    SocketState::Listed(bit) => sockets.remove_listed(bit),
                    SocketState::Shown(_) => drop(sockets.shown.remove(id, token)),
                    SocketState::Read { .. } => {}
                }
            } else if let Some(stream) = session.streams.pop_first() {
                while sockets.streams.end(stream, id, &mut sockets.records) {} // A program that connects to itself has both sides.
            } else {
                return rest;
            }
        }
        0
    }

    /// Removes a listed address.
    pub(super) fn remove_listed(&mut self, bit: u16) {
        if let Some(listed) = &mut self.listed {
            listed.remove(bit);
        }
    }
}
