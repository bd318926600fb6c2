//! Sockets in the control plane: TCP connections between programs of this host that become streams.
//!
//! ```text
//!   Broker ── request, session_closed, tick ──► Sockets
//!                                                ├── StreamSession   a program: its board, its waiters, its sockets
//!                                                ├── ListedPage      the addresses of listeners, which programs read
//!                                                ├── evidence        reads a shown socket, on a thread
//!                                                ├── ShownSockets    connected sockets without their peer
//!                                                ├── pairing         the decision which two are one connection
//!                                                ├── Streams         pairs of sockets, with their memory
//!                                                ├── counters        what the words of a stream say
//!                                                └── Records         the last refused sockets of each user
//! ```
//!
//! A program shows a connected socket. The daemon reads what the kernel records about the socket and closes its copy. Once both ends of a
//! connection were shown, each program gets memory that only these two share. The daemon never touches the bytes of a connection, and a
//! program may leave a connection to TCP at any time.

mod counters;
mod evidence;
mod listed;
mod metrics;
mod pairing;
mod records;
mod report;
mod requests;
mod session;
mod shown;
mod streams;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use isthmus_config::{AddressPatterns, Config};
use isthmus_layout::Refusal;
use isthmus_layout::control::Owner;
use isthmus_layout::ids::{DomainId, EndpointAddress};
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::{SocketsToClient, StreamRefused};

use crate::broker::{Broker, ControlSessionId};
use evidence::ThreadCount;
use listed::ListedPage;
use records::{Records, RefusedSocket, SocketName};
pub(crate) use report::StreamTable;
use session::SocketState;
pub(crate) use session::StreamSession;
use shown::ShownSockets;
use streams::Streams;

/// The state of sockets.
#[derive(Debug, Default)]
pub struct Sockets {
    settings: StreamSettings,
    sessions: BTreeMap<ControlSessionId, StreamSession>,
    /// The sessions by their number, which programs know.
    by_number: BTreeMap<u32, ControlSessionId>,
    last_number: u32,
    /// The listed page, from the first session on.
    listed: Option<ListedPage>,
    shown: ShownSockets,
    streams: Streams,
    records: Records,
    /// The threads that read sockets, by user.
    threads: BTreeMap<Owner, ThreadCount>,
    /// The number of users with threads from which on those without are forgotten.
    forget_threads_from: usize,
    last_job: u64,
    /// The number of descriptors that are open for programs.
    fds: usize,
    /// The descriptors that are open for the programs of each user.
    fds_by_user: BTreeMap<Owner, usize>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct StreamSettings {
    is_enabled: bool,
    /// Streams may connect two network namespaces.
    across: bool,
    streams_max: usize,
    after_bytes: u64,
    allow: AddressPatterns,
    deny: AddressPatterns,
}

/// The counts of shown sockets.
#[derive(Debug, Default)]
struct Counts {
    /// Streams that were created.
    paired: u64,
    /// Sockets that got no stream, by reason.
    refused: BTreeMap<Reason, u64>,
}

impl StreamSettings {
    /// Returns whether a connection between these addresses may become a stream.
    fn permit(&self, ends: [SocketAddr; 2]) -> bool {
        let is_allowed = self.allow.is_empty() || ends.iter().any(|end| self.allow.matches(*end));
        is_allowed && !ends.iter().any(|end| self.deny.matches(*end))
    }
}

impl Sockets {
    /// Takes the settings.
    pub(crate) fn open(config: &Config) -> Self {
        let sockets = &config.sockets;
        let settings = StreamSettings {
            is_enabled: sockets.enabled,
            across: sockets.across,
            streams_max: sockets.streams_max.get() as usize,
            after_bytes: sockets.after_bytes.get().into(),
            allow: sockets.allow.clone(),
            deny: sockets.deny.clone(),
        };
        Self { settings, ..Self::default() }
    }

    /// True if programs are attached to streams.
    pub(crate) fn is_used(&self) -> bool {
        !self.sessions.is_empty()
    }

    /// The number of descriptors that are open for programs.
    pub(crate) fn fds(&self) -> usize {
        self.fds
    }

    /// The time at which [`Sockets::tick`] has something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.shown.deadline()
    }

    /// Refuses shown sockets that have waited for too long, some at a time.
    pub(crate) fn tick(broker: &mut Broker) {
        Self::refuse_overdue(broker);
    }

    /// Releases the state of a domain that has left, or that will not resume. Programs with streams are no domains.
    pub(crate) fn left(_broker: &mut Broker, _domain: DomainId) {}

    /// Releases the state of an endpoint that was closed.
    pub(crate) fn endpoint_closed(_broker: &mut Broker, _at: EndpointAddress) {}

    /// Refuses a shown or listening socket, and forgets it but for the record of its user. `name` may be missing if the socket has been
    /// shown, or was not read.
    fn refuse_socket(broker: &mut Broker, id: ControlSessionId, token: u32, name: Option<SocketName>, reason: Reason) {
        let now = broker.now;
        let sockets = &mut broker.capabilities.sockets;
        *sockets.counts.refused.entry(reason).or_default() += 1;
        if let Some(session) = sockets.sessions.get_mut(&id) {
            let state = session.sockets.remove(token);
            if let Some(name) = name.or(state.and_then(SocketState::name)) {
                let (pid, program) = (session.pid, session.program.clone());
                let refused = RefusedSocket { name, reason, pid, program, at: now };
                sockets.records.refuse(session.identity.owner, refused);
            }
        }
        broker.send(id, None, SocketsToClient::from(StreamRefused { token, reason }).into(), Vec::new());
    }

    fn session(broker: &Broker, id: ControlSessionId) -> Result<&StreamSession, Refusal> {
        broker.capabilities.sockets.sessions.get(&id).ok_or_else(not_attached)
    }
}

fn not_attached() -> Refusal {
    Refusal::new(Reason::UnexpectedMessageType, "the program has not attached to streams")
}
