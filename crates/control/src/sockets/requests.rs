//! Requests of programs that are attached to streams.

use isthmus_layout::Refusal;
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::{SocketsToClient, SocketsToDaemon, StreamListening, StreamShow};

use super::boards::OWN_BOARD;
use super::evidence::{Found, SocketRead, SocketRole};
use super::session::SocketState;
use super::shown::ShownId;
use super::{Sockets, not_attached};
use crate::core::Core;
use crate::core::awaited_work::AwaitedWork;
use crate::core::requester::{Answer, Requester};
use crate::core::types::ControlSessionId;
use crate::fd_reaper::ReceivedFd;

/// The number of sockets of one session that wait for their peers, or to be read.
const SHOWN_MAX: usize = 4096;

/// The number of listening sockets of one session.
const LISTENERS_MAX: usize = 1024;

impl Sockets {
    /// Handles a request.
    pub(crate) fn request(
        &mut self,
        core: &mut Core,
        from: &Requester,
        request: SocketsToDaemon,
        fds: Vec<ReceivedFd>,
    ) -> Result<Answer, Refusal> {
        let mut fds = fds.into_iter();
        let mut fd = || fds.next().expect("the codec has counted");
        let id = from.session;
        match request {
            SocketsToDaemon::StreamAttach(_) => return self.attach(core, from),
            SocketsToDaemon::StreamWaiter(request) => {
                return self.add_waiter(core, id, (OWN_BOARD, request.waiter), fd());
            }
            SocketsToDaemon::StreamBoardWaiter(request) => {
                if request.board == OWN_BOARD {
                    return Err(Refusal::new(Reason::RequestInvalid, "the own board has no number"));
                }
                return self.add_waiter(core, id, (request.board, request.waiter), fd());
            }
            SocketsToDaemon::StreamListen(request) => {
                self.read_socket(core, id, request.token, fd(), SocketRole::Listener)?;
            }
            SocketsToDaemon::StreamShow(request) => {
                let StreamShow { token, connector, since_ms, until_ms } = request;
                let role = if connector { SocketRole::Connector { since_ms, until_ms } } else { SocketRole::Acceptor };
                self.read_socket(core, id, token, fd(), role)?;
            }
            SocketsToDaemon::StreamUnlisten(request) => self.forget_socket(id, request.token, true)?,
            SocketsToDaemon::StreamGone(request) => self.forget_socket(id, request.token, false)?,
            SocketsToDaemon::StreamKept(request) => self.keep(core.now, id, &request)?,
            SocketsToDaemon::StreamEnded(request) => self.end_stream(core, id, request.stream, request.violation)?,
        }
        Ok(Answer::Later)
    }

    /// Begins to read a socket. [`Self::socket_read`] handles the result.
    fn read_socket(
        &mut self,
        core: &mut Core,
        id: ControlSessionId,
        token: u32,
        socket: ReceivedFd,
        role: SocketRole,
    ) -> Result<(), Refusal> {
        let session = self.session(id)?;
        let (owner, taker) = (session.identity.owner, session.taker);
        let is_listener = matches!(role, SocketRole::Listener);
        let count = session.sockets.count(is_listener);
        let max = if is_listener { LISTENERS_MAX } else { SHOWN_MAX };
        let allowed = match session.sockets.get(token).is_some() {
            true => {
                return Err(Refusal::new(Reason::RequestInvalid, format!("there is a socket with the token {token}")));
            }
            false if count >= max => Err(Reason::StreamsFull),
            false => {
                let share = self.check_share(taker, core.settings.fds_max);
                share.map_err(|refusal| refusal.reason)
            }
        };
        // The thread closes a socket that is not allowed, too. It is refused after that, because a program may close its own
        // descriptor of it then, and expects that the kernel refuses connections.
        let result = match session.reader.read(owner, socket, role, self.recording.recorder()) {
            Ok(result) => result,
            Err(reason) => {
                self.refuse_socket(core, id, token, None, allowed.err().unwrap_or(reason));
                return Ok(());
            }
        };
        self.last_job += 1;
        self.add_fds(taker.account, 1);
        let job = self.last_job;
        if let Some(session) = self.sessions.get_mut(&id) {
            session.sockets.insert(token, SocketState::Read { job, role });
        }
        self.reading.push_back(AwaitedWork::new(async move {
            let panicked = |_| SocketRead { name: None, found: Err(Reason::KernelRefused) };
            let SocketRead { name, found } = result.await.unwrap_or_else(panicked);
            move |sockets: &mut Self, core: &mut Core| {
                sockets.remove_fds(taker.account, 1);
                let read = SocketRead { name, found: allowed.and(found) };
                sockets.socket_read(core, id, token, job, read);
            }
        }));
        Ok(())
    }

    /// Handles the facts about a socket, unless the program has withdrawn it meanwhile.
    fn socket_read(&mut self, core: &mut Core, id: ControlSessionId, token: u32, job: u64, read: SocketRead) {
        let session = self.sessions.get(&id);
        let state = session.and_then(|session| session.sockets.get(token));
        if !matches!(state, Some(SocketState::Read { job: read, .. }) if *read == job) {
            return;
        }
        let settings = &self.settings;
        let SocketRead { name, found } = read;
        match found {
            // The connections decide about `allow`: they have the address of the client, and none that stands for all.
            Ok(Found::Listener(address)) if settings.deny.matches(address) => {
                self.refuse_socket(core, id, token, name, Reason::StreamDenied);
            }
            Ok(Found::Connected(evidence)) if !settings.permit([evidence.local, evidence.peer]) => {
                self.refuse_socket(core, id, token, name, Reason::StreamDenied);
            }
            Ok(Found::Listener(address)) => {
                if let Some(session) = self.sessions.get_mut(&id)
                    && let Some(bit) = self.listed.add(session.identity.owner, address)
                {
                    session.sockets.insert(token, SocketState::Listed(bit));
                }
                core.send(id, None, SocketsToClient::from(StreamListening { token }).into(), Vec::new());
            }
            Ok(Found::Connected(evidence)) => {
                let session = self.sessions.get_mut(&id);
                if let (Some(session), Some(name)) = (session, name) {
                    session.sockets.insert(token, SocketState::Shown(name));
                }
                self.show(core, id, token, evidence);
            }
            Err(reason) => self.refuse_socket(core, id, token, name, reason),
        }
    }

    /// Forgets a listening socket (`is_listener`) or a shown one. The daemon may have refused or paired it meanwhile.
    fn forget_socket(&mut self, id: ControlSessionId, token: u32, is_listener: bool) -> Result<(), Refusal> {
        let session = self.sessions.get_mut(&id).ok_or_else(not_attached)?;
        if session.sockets.get(token).is_some_and(|state| state.is_listener() == is_listener) {
            match session.sockets.remove(token) {
                Some(SocketState::Listed(bit)) => self.listed.remove(session.identity.owner, bit),
                Some(SocketState::Shown(_)) => drop(self.shown.remove(id, token)),
                Some(SocketState::Kept) => self.kept.remove(ShownId { session: id, token }),
                Some(SocketState::Read { .. }) | None => {}
            }
        }
        Ok(())
    }

    /// Ends a program's side of a stream.
    fn end_stream(
        &mut self,
        core: &mut Core,
        id: ControlSessionId,
        stream: u64,
        is_violation: bool,
    ) -> Result<(), Refusal> {
        let session = self.sessions.get_mut(&id).ok_or_else(not_attached)?;
        if !session.streams.contains(&stream) {
            return Err(Refusal::new(Reason::RequestInvalid, format!("the program has no stream {stream:#x}")));
        }
        // A program that connects to itself has both ends, and ends one after the other.
        if !self.streams.end(stream, id, &mut self.records) {
            session.streams.remove(&stream);
        }
        if is_violation {
            *self.counts.refused.entry(Reason::StreamViolation).or_default() += 1;
            core.log_reason(id, Reason::StreamViolation, "says that the program at the other end broke the protocol");
        }
        Ok(())
    }
}
