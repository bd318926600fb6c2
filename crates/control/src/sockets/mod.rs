//! Sockets in the control plane: TCP connections between programs of this host that become streams.
//!
//! ```text
//!   Broker ── request, session_closed, tick ──► Sockets
//!                                                ├── StreamSession   a program: its sockets, and Boards: where peers wake it
//!                                                ├── ListedPages     the addresses of listeners, which programs read
//!                                                ├── RecordSource    how the daemon gets the kernel's records of connections
//!                                                ├── evidence        reads a shown socket, on a thread
//!                                                ├── ShownSockets    connected sockets without their peer
//!                                                ├── KeptEnds        ends of streams of an earlier daemon
//!                                                ├── pairing         the decision which two are one connection
//!                                                ├── Streams         pairs of sockets, with their memory
//!                                                ├── counters        what the words of a stream say
//!                                                └── Records         the last refused sockets of each user
//! ```
//!
//! A program shows a connected socket. The daemon reads what the kernel records about the socket and closes its copy. Once both ends of a
//! connection were shown, each program gets memory that only these two share. The daemon never touches the bytes of a connection, and a
//! program may leave a connection to TCP at any time.

mod boards;
mod counters;
mod evidence;
mod kept;
mod listed;
mod metrics;
mod pairing;
mod recorder;
mod records;
pub(crate) mod report;
mod requests;
mod session;
mod shown;
mod streams;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::Path;

use isthmus_config::{AddressPatterns, Config};
use isthmus_layout::Refusal;
use isthmus_layout::control::Owner;
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::{SocketsToClient, StreamRefused};
use isthmus_link::connection_record::Recorder;

use crate::core::Core;
use crate::core::awaited_work::AwaitedWork;
use crate::core::types::ControlSessionId;
use evidence::ThreadCount;
use kept::KeptEnds;
use listed::ListedPages;
use recorder::RecordSource;
use records::{Records, RefusedSocket, SocketName};
use session::SocketState;
use session::StreamSession;
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
    /// The listed pages of owners with a session.
    listed: ListedPages,
    recording: RecordSource,
    shown: ShownSockets,
    kept: KeptEnds,
    streams: Streams,
    records: Records,
    /// The threads that read sockets, by user.
    threads: BTreeMap<Owner, ThreadCount>,
    /// The number of users with threads from which on those without are forgotten.
    forget_threads_from: usize,
    last_job: u64,
    /// Sockets that threads begin to read, until the broker waits for them.
    reading: VecDeque<AwaitedWork<Self>>,
    /// Ended sessions, of which a part is released at a time.
    ended: VecDeque<(ControlSessionId, StreamSession)>,
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
    /// Takes the settings, and has connections recorded, if need be by the helper at a socket.
    pub(crate) fn open(config: &Config, helper: &Path) -> Self {
        let sockets = &config.sockets;
        let settings = StreamSettings {
            is_enabled: sockets.enabled,
            across: sockets.across,
            streams_max: sockets.streams_max.get() as usize,
            after_bytes: sockets.after_bytes.get().into(),
            allow: sockets.allow.clone(),
            deny: sockets.deny.clone(),
        };
        Self { settings, recording: RecordSource::open(config, helper), ..Self::default() }
    }

    /// The number of descriptors that are open for programs.
    pub(crate) fn fds(&self) -> usize {
        self.fds
    }

    /// Returns the next reading of a socket that is to be waited for.
    pub(crate) fn next_awaited(&mut self) -> Option<AwaitedWork<Self>> {
        self.reading.pop_front()
    }

    /// The time at which [`Sockets::tick`] or [`Sockets::release_part`] has something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        if self.ended.is_empty() {
            self.shown.deadline().into_iter().chain(self.recording.first()).min()
        } else {
            Some(0)
        }
    }

    /// Refuses shown sockets that have waited for too long, some at a time. The first call asks for records.
    pub(crate) fn tick(&mut self, core: &mut Core) {
        if self.recording.first().is_some() {
            self.reading.extend(self.recording.ask(core.now));
        }
        self.refuse_overdue(core);
    }

    /// Asks for records if there are none, because a report says whether there are. The next report has the answer.
    pub(crate) fn report_wanted(&mut self, now: u64) {
        self.reading.extend(self.recording.ask(now));
    }

    /// Takes the answer of the helper.
    fn records_opened(&mut self, outcome: Result<Recorder, String>, now: u64) {
        self.recording.opened(outcome, now);
        self.check_records();
    }

    /// Checks that records can be read, and lists all addresses then.
    fn check_records(&mut self) {
        self.recording.check();
        self.listed.set_all(self.recording.recorder().is_some());
    }

    /// Refuses a shown or listening socket, and forgets it but for the record of its user. `name` may be missing if the socket has been
    /// shown, or was not read.
    fn refuse_socket(
        &mut self,
        core: &mut Core,
        id: ControlSessionId,
        token: u32,
        name: Option<SocketName>,
        reason: Reason,
    ) {
        let now = core.now;
        *self.counts.refused.entry(reason).or_default() += 1;
        if let Some(session) = self.sessions.get_mut(&id) {
            let state = session.sockets.remove(token);
            if let Some(name) = name.or(state.and_then(SocketState::name)) {
                let (pid, program) = (session.pid, session.program.clone());
                let refused = RefusedSocket { name, reason, pid, program, at: now };
                self.records.refuse(session.identity.owner, refused);
            }
        }
        core.send(id, None, SocketsToClient::from(StreamRefused { token, reason }).into(), Vec::new());
    }

    fn session(&self, id: ControlSessionId) -> Result<&StreamSession, Refusal> {
        self.sessions.get(&id).ok_or_else(not_attached)
    }
}

fn not_attached() -> Refusal {
    Refusal::new(Reason::UnexpectedMessageType, "the program has not attached to streams")
}
