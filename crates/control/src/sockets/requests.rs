//! Requests of programs that are attached to streams.

use isthmus_layout::Refusal;
use isthmus_layout::control::RequestSerial;
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::{SocketsToClient, SocketsToDaemon, StreamListening, StreamShow};

use super::evidence::{Found, SocketRead, SocketRole};
use super::session::SocketState;
use super::{Sockets, not_attached};
use crate::broker::{AwaitedWork, Broker, ControlSessionId};
use crate::fd_reaper::ReceivedFd;

/// The number of sockets of one session that wait for their peers, or to be read.
const SHOWN_MAX: usize = 4096;

/// The number of listening sockets of one session.
const LISTENERS_MAX: usize = 1024;

impl Sockets {
    /// Handles a request.
    pub(crate) fn request(
        broker: &mut Broker,
        id: ControlSessionId,
        serial: Option<RequestSerial>,
        request: SocketsToDaemon,
        fds: Vec<ReceivedFd>,
    ) -> Result<(), Refusal> {
        let mut fds = fds.into_iter();
        let mut fd = || fds.next().expect("the codec has counted");
        match request {
            SocketsToDaemon::StreamAttach(_) => Self::attach(broker, id, serial),
            SocketsToDaemon::StreamWaiter(request) => Self::add_waiter(broker, id, serial, request.waiter, fd()),
            SocketsToDaemon::StreamListen(request) => {
                Self::read_socket(broker, id, request.token, fd(), SocketRole::Listener)
            }
            SocketsToDaemon::StreamShow(request) => {
                let StreamShow { token, connector, since_ms, until_ms } = request;
                let role = if connector { SocketRole::Connector { since_ms, until_ms } } else { SocketRole::Acceptor };
                Self::read_socket(broker, id, token, fd(), role)
            }
            SocketsToDaemon::StreamUnlisten(request) => Self::forget_socket(broker, id, request.token, true),
            SocketsToDaemon::StreamGone(request) => Self::forget_socket(broker, id, request.token, false),
            SocketsToDaemon::StreamEnded(request) => Self::end_stream(broker, id, request.stream, request.violation),
        }
    }

    /// Begins to read a socket. [`Self::socket_read`] handles the result.
    fn read_socket(
        broker: &mut Broker,
        id: ControlSessionId,
        token: u32,
        socket: ReceivedFd,
        role: SocketRole,
    ) -> Result<(), Refusal> {
        let session = Self::session(broker, id)?;
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
                let share = broker.capabilities.sockets.check_share(taker, broker.settings.fds_max);
                share.map_err(|refusal| refusal.reason)
            }
        };
        // The thread closes a socket that is not allowed, too. It is refused after that, because a program may close its own
        // descriptor of it then, and expects that the kernel refuses connections.
        let result = match session.reader.read(owner, socket, role) {
            Ok(result) => result,
            Err(reason) => {
                Self::refuse_socket(broker, id, token, None, allowed.err().unwrap_or(reason));
                return Ok(());
            }
        };
        let sockets = &mut broker.capabilities.sockets;
        sockets.last_job += 1;
        sockets.add_fds(taker.account, 1);
        let job = sockets.last_job;
        if let Some(session) = sockets.sessions.get_mut(&id) {
            session.sockets.insert(token, SocketState::Read { job, role });
        }
        broker.await_work(
            id,
            AwaitedWork::new(async move {
                let panicked = |_| SocketRead { name: None, found: Err(Reason::KernelRefused) };
                let SocketRead { name, found } = result.await.unwrap_or_else(panicked);
                move |broker: &mut Broker| {
                    broker.capabilities.sockets.remove_fds(taker.account, 1);
                    let read = SocketRead { name, found: allowed.and(found) };
                    Self::socket_read(broker, id, token, job, read);
                }
            }),
        );
        Ok(())
    }

    /// Handles the facts about a socket, unless the program has withdrawn it meanwhile.
    fn socket_read(broker: &mut Broker, id: ControlSessionId, token: u32, job: u64, read: SocketRead) {
        let session = broker.capabilities.sockets.sessions.get(&id);
        let state = session.and_then(|session| session.sockets.get(token));
        if !matches!(state, Some(SocketState::Read { job: read, .. }) if *read == job) {
            return;
        }
        let settings = &broker.capabilities.sockets.settings;
        let SocketRead { name, found } = read;
        match found {
            // The connections decide about `allow`: they have the address of the client, and none that stands for all.
            Ok(Found::Listener(address)) if settings.deny.matches(address) => {
                Self::refuse_socket(broker, id, token, name, Reason::StreamDenied);
            }
            Ok(Found::Connected(evidence)) if !settings.permit([evidence.local, evidence.peer]) => {
                Self::refuse_socket(broker, id, token, name, Reason::StreamDenied);
            }
            Ok(Found::Listener(address)) => {
                let sockets = &mut broker.capabilities.sockets;
                if let (Some(listed), Some(session)) = (&mut sockets.listed, sockets.sessions.get_mut(&id)) {
                    session.sockets.insert(token, SocketState::Listed(listed.add(address)));
                }
                broker.send(id, None, SocketsToClient::from(StreamListening { token }).into(), Vec::new());
            }
            Ok(Found::Connected(evidence)) => {
                let session = broker.capabilities.sockets.sessions.get_mut(&id);
                if let (Some(session), Some(name)) = (session, name) {
                    session.sockets.insert(token, SocketState::Shown(name));
                }
                Self::show(broker, id, token, evidence);
            }
            Err(reason) => Self::refuse_socket(broker, id, token, name, reason),
        }
    }

    /// Forgets a listening socket (`is_listener`) or a shown one. The daemon may have refused or paired it meanwhile.
    fn forget_socket(broker: &mut Broker, id: ControlSessionId, token: u32, is_listener: bool) -> Result<(), Refusal> {
        let sockets = &mut broker.capabilities.sockets;
        let session = sockets.sessions.get_mut(&id).ok_or_else(not_attached)?;
        if session.sockets.get(token).is_some_and(|state| state.is_listener() == is_listener) {
            match session.sockets.remove(token) {
                Some(SocketState::Listed(bit)) => sockets.remove_listed(bit),
                Some(SocketState::Shown(_)) => drop(sockets.shown.remove(id, token)),
                Some(SocketState::Read { .. }) | None => {}
            }
        }
        Ok(())
    }

    /// Ends a program's side of a stream.
    fn end_stream(broker: &mut Broker, id: ControlSessionId, stream: u64, is_violation: bool) -> Result<(), Refusal> {
        let sockets = &mut broker.capabilities.sockets;
        let session = sockets.sessions.get_mut(&id).ok_or_else(not_attached)?;
        if !session.streams.contains(&stream) {
            return Err(Refusal::new(Reason::RequestInvalid, format!("the program has no stream {stream:#x}")));
        }
        // A program that connects to itself has both ends, and ends one after the other.
        if !sockets.streams.end(stream, id, &mut sockets.records) {
            session.streams.remove(&stream);
        }
        if is_violation {
            *sockets.counts.refused.entry(Reason::StreamViolation).or_default() += 1;
            broker.log_reason(id, Reason::StreamViolation, "says that the program at the other end broke the protocol");
        }
        Ok(())
    }
}
