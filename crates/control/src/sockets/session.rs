//! A program that is attached to streams, until its connection ends.

use std::collections::{BTreeMap, BTreeSet};

use isthmus_layout::Refusal;
use isthmus_layout::control::Owner;
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::{BOARD_SIZE, PeerLeft, SocketsToClient, StreamAttached, StreamBoard};

use super::Sockets;
use super::boards::Boards;
use super::evidence::{SocketReader, SocketRole};
use super::records::SocketName;
use super::shown::ShownId;
use crate::core::Core;
use crate::core::requester::{Answer, Requester};
use crate::core::types::ControlSessionId;
use crate::places::{Taker, may_take};
use crate::policy::Identity;
use isthmus_window::Allocator;

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
    /// True if the program can have boards for peers of other owners.
    pub(super) has_boards: bool,
    /// The boards, in which peers set bits.
    pub(super) boards: Boards,
    /// The listening, shown and kept sockets, by token.
    pub(super) sockets: SessionSockets,
    /// The sessions that know a board of this one and its waiters, and the other way round, with their owners.
    pub(super) peers: BTreeMap<ControlSessionId, Owner>,
    /// The streams of which this program has an end that it has not ended.
    pub(super) streams: BTreeSet<u64>,
    /// Reads the program's sockets.
    pub(super) reader: SocketReader,
}

/// The state of a listening, shown or kept socket.
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
    /// The socket is an end of a stream of an earlier daemon.
    Kept,
}

/// The sockets of a session, by token.
#[derive(Debug, Default)]
pub(super) struct SessionSockets {
    by_token: BTreeMap<u32, SocketState>,
    listeners: usize,
    kept: usize,
}

impl SessionSockets {
    /// The number of listening sockets, or of shown ones.
    pub(super) fn count(&self, is_listener: bool) -> usize {
        if is_listener { self.listeners } else { self.by_token.len() - self.listeners - self.kept }
    }

    /// The number of kept sockets.
    pub(super) fn count_kept(&self) -> usize {
        self.kept
    }

    pub(super) fn insert(&mut self, token: u32, state: SocketState) {
        self.remove(token);
        self.listeners += usize::from(state.is_listener());
        self.kept += usize::from(state.is_kept());
        self.by_token.insert(token, state);
    }

    pub(super) fn get(&self, token: u32) -> Option<&SocketState> {
        self.by_token.get(&token)
    }

    pub(super) fn remove(&mut self, token: u32) -> Option<SocketState> {
        let state = self.by_token.remove(&token)?;
        self.listeners -= usize::from(state.is_listener());
        self.kept -= usize::from(state.is_kept());
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

    fn is_kept(self) -> bool {
        matches!(self, Self::Kept)
    }

    /// The name of a shown socket.
    pub(super) fn name(self) -> Option<SocketName> {
        match self {
            Self::Shown(name) => Some(name),
            Self::Read { .. } | Self::Listed(_) | Self::Kept => None,
        }
    }
}

impl Sockets {
    /// Attaches a connection to streams.
    pub(super) fn attach(&mut self, core: &mut Core, from: &Requester) -> Result<Answer, Refusal> {
        let id = from.session;
        if !self.settings.is_enabled {
            return Err(Reason::StreamsDisabled.into());
        }
        if self.sessions.contains_key(&id) {
            return Err(Refusal::new(Reason::UnexpectedMessageType, "the program has attached to streams already"));
        }
        let identity = core.identity_of_session(id)?;
        let peer = core.socket_peer(id).ok_or(Reason::PeerConnectionLost)?;
        let (pid, program) = (peer.pid, peer.program.to_string());
        let taker = core.taker(id).ok_or(Reason::PeerConnectionLost)?;
        self.check_fds(core, taker)?;
        let board = Allocator::Host.allocate(BOARD_SIZE)?;
        let after_bytes = self.settings.after_bytes;
        let number = self.next_number()?;
        self.check_records();
        let listed = self.listed.join(identity.owner)?;
        self.reading.extend(self.recording.ask(core.now));
        self.forget_threads();
        let threads = self.threads.entry(identity.owner).or_default().clone();
        let session = StreamSession {
            number,
            identity,
            taker,
            pid,
            program,
            has_boards: core.version_of(id).is_some_and(|version| version.minor >= StreamBoard::SINCE),
            boards: Boards::new(from.owner, board.clone()),
            sockets: SessionSockets::default(),
            peers: BTreeMap::new(),
            streams: BTreeSet::new(),
            reader: SocketReader::new(threads),
        };
        self.add_fds(taker.account, 1);
        self.records.attached(session.identity.owner);
        self.by_number.insert(number, id);
        self.sessions.insert(id, session);
        let message = SocketsToClient::from(StreamAttached { session: number, after_bytes });
        Ok(Answer::Now(message.into(), vec![board, listed]))
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
    pub(super) fn check_fds(&self, core: &Core, taker: Taker) -> Result<(), Refusal> {
        self.check_share(taker, core.settings.fds_max)?;
        if core.has_room_for_fds(core.channel_fds + self.fds) { Ok(()) } else { Err(Reason::DaemonOutOfFds.into()) }
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

    /// Releases the state of a connection that has ended. That of its sockets, streams and peers is released in slices.
    pub(crate) fn session_closed(&mut self, core: &mut Core, id: ControlSessionId) {
        let now = core.now;
        let Some(session) = self.sessions.remove(&id) else { return };
        self.by_number.remove(&session.number);
        self.remove_fds(session.taker.account, session.boards.fds());
        self.records.left(session.identity.owner, now);
        self.ended.push_back((id, session));
    }

    /// Releases a part of an ended session, `count` items at most. Returns the rest of `count`; a session counts as an item. Sessions take
    /// turns.
    pub(crate) fn release_part(&mut self, core: &mut Core, count: usize) -> usize {
        if count == 0 {
            return 0;
        }
        let Some((id, mut session)) = self.ended.pop_front() else { return count };
        let rest = self.release_part_of(core, id, &mut session, count);
        if rest == 0 {
            self.ended.push_back((id, session));
        }
        rest.min(count - 1)
    }

    /// Releases `count` items of a session at most. Returns the rest of `count`, which is not 0 if nothing is left.
    fn release_part_of(
        &mut self,
        core: &mut Core,
        id: ControlSessionId,
        session: &mut StreamSession,
        count: usize,
    ) -> usize {
        for rest in (1..=count).rev() {
            if let Some((peer, owner)) = session.peers.pop_first() {
                if let Some(other) = self.sessions.get_mut(&peer) {
                    other.peers.remove(&id);
                    let waiters = session.boards.waiters_for(owner);
                    self.release_board(peer, |boards| boards.peer_left(session.identity.owner, waiters));
                    let left = SocketsToClient::from(PeerLeft { peer: session.number });
                    core.send(peer, None, left.into(), Vec::new());
                }
            } else if let Some((token, state)) = session.sockets.pop() {
                match state {
                    SocketState::Listed(bit) => self.listed.remove(session.identity.owner, bit),
                    SocketState::Shown(_) => drop(self.shown.remove(id, token)),
                    SocketState::Kept => self.kept.remove(ShownId { session: id, token }),
                    SocketState::Read { .. } => {}
                }
            } else if let Some(stream) = session.streams.pop_first() {
                while self.streams.end(stream, id, &mut self.records) {} // A program that connects to itself has both sides.
            } else {
                self.listed.leave(session.identity.owner);
                return rest;
            }
        }
        0
    }
}
