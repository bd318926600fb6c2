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
use crate::broker::{Broker, ControlSessionId};
use crate::fd_reaper::ReceivedFd;
use crate::policy::Identity;

/// A program that is attached to streams.
#[derive(Debug)]
pub(super) struct StreamSession {
    /// The number by which other programs know it.
    pub(super) number: u32,
    /// The identity that the policy is applied to.
    pub(super) identity: Identity,
    /// The process, if the daemon can see it.
    pub(super) pid: Option<i32>,
    /// The name of the program.
    pub(super) program: String,
    /// The board, in which peers set bits.
    pub(super) board: Resource,
    /// The doorbells of the waiters, and the alarm.
    pub(super) waiters: BTreeMap<u8, Resource>,
    /// The listening and shown sockets, by token.
    pub(super) sockets: BTreeMap<u32, SocketState>,
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
        Self::check_fds(broker, identity.owner)?;
        let board = Allocator::Host.allocate(BOARD_SIZE)?;
        let sockets = &mut broker.capabilities.sockets;
        let after_bytes = sockets.settings.after_bytes;
        let listed = match &sockets.listed {
            Some(listed) => listed,
            None => sockets.listed.insert(ListedPage::new()?),
        };
        let listed = listed.memory();
        let number = sockets.next_number()?;
        let threads = sockets.threads.entry(identity.owner).or_default().clone();
        let session = StreamSession {
            number,
            identity,
            pid,
            program,
            board: board.clone(),
            waiters: BTreeMap::new(),
            sockets: BTreeMap::new(),
            peers: BTreeSet::new(),
            streams: BTreeSet::new(),
            reader: SocketReader::new(threads),
        };
        sockets.add_fds(session.identity.owner, 1);
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

    /// Refuses another descriptor that stays open for a user, if all users together or this one have too many.
    fn check_fds(broker: &Broker, owner: Owner) -> Result<(), Refusal> {
        broker.capabilities.sockets.check_share(owner, broker.settings.fds_max)?;
        if broker.has_room_for_fds() { Ok(()) } else { Err(Reason::DaemonOutOfFds.into()) }
    }

    /// Refuses another descriptor for a user if it has its share already: half of what the other users leave of a quarter of the process's
    /// descriptors.
    pub(super) fn check_share(&self, owner: Owner, fds_max: usize) -> Result<(), Refusal> {
        let own = self.fds.get(&owner).copied().unwrap_or(0);
        let others = self.fds() - own;
        let is_allowed = own < (fds_max / 4).saturating_sub(others) / 2;
        if is_allowed { Ok(()) } else { Err(Reason::DaemonOutOfFds.into()) }
    }

    /// Adds descriptors that are open for a user.
    pub(super) fn add_fds(&mut self, owner: Owner, count: usize) {
        *self.fds.entry(owner).or_default() += count;
    }

    /// Removes descriptors that are not open any more.
    pub(super) fn remove_fds(&mut self, owner: Owner, count: usize) {
        if let Some(fds) = self.fds.get_mut(&owner) {
            *fds -= count;
            if *fds == 0 {
                self.fds.remove(&owner);
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
        Self::check_fds(broker, session.identity.owner)?;
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
        let (owner, peers) = (session.identity.owner, session.peers.clone());
        sockets.add_fds(owner, 1);
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

    /// Releases the state of a connection that has ended.
    pub(crate) fn session_closed(broker: &mut Broker, id: ControlSessionId) {
        let now = broker.now;
        let sockets = &mut broker.capabilities.sockets;
        let Some(session) = sockets.sessions.remove(&id) else { return };
        sockets.by_number.remove(&session.number);
        for (token, state) in &session.sockets {
            match state {
                SocketState::Listed(bit) => sockets.remove_listed(*bit),
                SocketState::Shown(_) => drop(sockets.shown.remove(id, *token)),
                SocketState::Read { .. } => {}
            }
        }
        for stream in &session.streams {
            while sockets.streams.end(*stream, id, &mut sockets.records) {} // A program that connects to itself has both sides.
        }
        sockets.remove_fds(session.identity.owner, 1 + session.waiters.len());
        sockets.records.left(session.identity.owner, now);
        let (number, peers) = (session.number, session.peers.clone());
        drop(session);
        sockets.threads.retain(|_, threads| !threads.is_unused());
        for peer in peers {
            if let Some(other) = broker.capabilities.sockets.sessions.get_mut(&peer) {
                other.peers.remove(&id);
                broker.send(peer, None, SocketsToClient::from(PeerLeft { peer: number }).into(), Vec::new());
            }
        }
    }

    /// Removes a listed address.
    pub(super) fn remove_listed(&mut self, bit: u16) {
        if let Some(listed) = &mut self.listed {
            listed.remove(bit);
        }
    }
}
