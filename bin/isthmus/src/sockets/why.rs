//! `isthmus why PID:FD`: the path of the bytes of a TCP connection, why it is not a stream, and what would change that.
//!
//! ```text
//! tcp       the descriptor's socket, and the socket at the other end     /proc/PID/fd, /proc/PID/net
//! process   the processes of both ends, and what keeps each from the library
//! daemon    whether the connection is a stream, and the path of each direction; why its sockets were refused, or that one waits
//! ```
//!
//! Needs no daemon for a connection of programs without the library.

mod process;
mod tcp;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use isthmus_client::{Reason, Refusal, Topic};
use isthmus_report::{ReasonRow, StatusReport, StreamEndRow, StreamRow, StreamSocketRow, StreamsReport};
use serde::Serialize;

use super::LIBRARY;
use crate::daemon::{ask, read};
use crate::output::{Outcome, Output, bytes, duration};
use process::{Library, Process};
use tcp::{OtherEnd, Socket, are_in_two_namespaces, holders};

/// The answer.
#[derive(Debug, Serialize)]
struct Answer {
    pid: u32,
    fd: u32,
    local: SocketAddr,
    remote: SocketAddr,
    state: &'static str,
    path: Path,
    /// Why the path is not a stream.
    causes: Vec<Cause>,
    process: Process,
    /// The place of the other end.
    peer: Place,
    /// The other end is in another network namespace.
    #[serde(skip)]
    is_far: bool,
    peer_process: Option<Process>,
    stream: Option<OwnStream>,
    /// The program at one end names a stream of an earlier daemon.
    is_kept: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Path {
    /// The socket is not connected.
    None,
    Tcp,
    Stream,
    /// TCP, or a stream that an earlier daemon has made.
    Unknown,
}

/// The place of the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Place {
    None,
    ThisHost,
    /// Another host or guest, or one behind address translation.
    Elsewhere,
    /// Sockets of several network namespaces fit.
    Ambiguous,
    /// The program has closed its socket.
    Closed,
    /// The program has not accepted the connection yet.
    Queued,
    /// A process that this user cannot see.
    Hidden,
}

/// Why a connection is not a stream.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Cause {
    text: String,
    reason: Option<String>,
    remedy: Option<String>,
}

impl Cause {
    fn of_reason(reason: Reason, detail: &str) -> Self {
        let ReasonRow { reason, summary, remedy, .. } = reason.into();
        let text = if detail.is_empty() { summary } else { format!("{summary} ({detail})") };
        Self { text, reason: Some(reason), remedy: Some(remedy) }
    }

    fn of_process(process: &Process) -> Option<Self> {
        let obstacle = process.obstacle.as_ref()?;
        let text = format!("{}: {}", process.name(), obstacle.cause);
        Some(Self { text, reason: None, remedy: Some(obstacle.remedy.clone()) })
    }
}

/// A stream, with the end that is the descriptor's.
#[derive(Debug, Serialize)]
struct OwnStream {
    id: String,
    age_s: u64,
    own: StreamEndRow,
    peer: StreamEndRow,
}

impl OwnStream {
    /// Returns a stream, if it is that of this socket: it has its addresses, and a process with the socket.
    fn matching(stream: &StreamRow, socket: &Socket, pids: &[u32]) -> Option<Self> {
        let is_at = |end: &StreamEndRow, wanted: SocketAddr| canonical(&end.address) == Some(wanted);
        let is_visible =
            |end: &StreamEndRow| end.pid.is_none_or(|pid| pids.iter().any(|&own| i64::from(own) == i64::from(pid)));
        let ends = [(&stream.connector, &stream.acceptor), (&stream.acceptor, &stream.connector)];
        let fits = |(own, peer): &(&StreamEndRow, &StreamEndRow)| {
            let remote = own.peer_address.as_deref().unwrap_or(&peer.address);
            is_at(own, socket.local) && canonical(remote) == Some(socket.remote) && is_visible(own)
        };
        let (own, peer) = ends.into_iter().find(fits)?;
        Some(Self { id: stream.id.clone(), age_s: stream.age_s, own: own.clone(), peer: peer.clone() })
    }

    /// True unless both ends send by TCP.
    fn is_used(&self) -> bool {
        [&self.own, &self.peer].iter().any(|end| end.path.as_deref() != Some("tcp"))
    }
}

/// The state of a socket with a stream of an earlier daemon, in a report.
const KEPT: &str = "kept";

/// Returns whether a row is of this socket, or of that of the other end.
fn is_of(row: &StreamSocketRow, socket: &Socket) -> (bool, bool) {
    let ends = canonical(&row.address).zip(row.peer_address.as_deref().and_then(canonical));
    let is_own = row.inode == socket.inode && ends == Some((socket.local, socket.remote));
    (is_own, ends == Some((socket.remote, socket.local)))
}

/// Returns whether the program at one end of a connection names a stream of an earlier daemon. `peer` is the process of the other end, because
/// sockets of another network namespace may have its addresses.
fn is_kept(report: &StreamsReport, socket: &Socket, peer: Option<u32>) -> bool {
    let mut rows = report.sockets.iter().flatten().filter(|row| row.state == KEPT);
    let is_peers = |row: &StreamSocketRow| row.pid.and_then(|pid| u32::try_from(pid).ok()) == peer && peer.is_some();
    rows.any(|row| {
        let (is_own, is_other) = is_of(row, socket);
        is_own || is_other && is_peers(row)
    })
}

/// The last decision of the daemon about the sockets of a connection, or about the socket that listens for it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    reason: Reason,
    /// The socket waits for the other end. The reason holds if that does not come.
    is_waiting: bool,
    detail: String,
}

impl Kept {
    /// Finds the last decision about a connection: about its own socket, else about that of the other end, else about the listening one.
    fn find(report: &StreamsReport, socket: &Socket) -> Option<Self> {
        let rows: Vec<_> = report.sockets.iter().flatten().filter(|row| row.state != KEPT).collect();
        let last = |fits: &dyn Fn(&StreamSocketRow) -> bool| rows.iter().rev().copied().find(|row| fits(row));
        let own = |row: &StreamSocketRow| is_of(row, socket).0;
        let other = |row: &StreamSocketRow| is_of(row, socket).1;
        let listens = |row: &StreamSocketRow| {
            let at = canonical(&row.address).filter(|_| row.peer_address.is_none() && row.state == "refused");
            at.is_some_and(|at| [socket.local, socket.remote].iter().any(|end| is_listened(at, *end)))
        };
        let (row, socket) = match (last(&own), last(&other)) {
            (Some(row), _) => (row, "this socket"),
            (None, Some(row)) => (row, "the socket of the other end"),
            (None, None) => (last(&listens)?, "the listening socket"),
        };
        let is_waiting = row.state == "waiting";
        let (verb, age) = (if is_waiting { "waits" } else { "was refused" }, duration(row.age_s));
        let detail =
            if is_waiting { format!("{socket} {verb} since {age}") } else { format!("{socket} {verb} {age} ago") };
        Some(Self { reason: Reason::from_name(&row.reason)?, is_waiting, detail })
    }

    /// True if it only follows from something else that keeps the other end away.
    fn is_consequence(&self) -> bool {
        self.is_waiting || self.reason == Reason::StreamPeerMissing
    }
}

/// Returns whether a socket that listens at `at` accepts connections to `end`.
fn is_listened(at: SocketAddr, end: SocketAddr) -> bool {
    at.port() == end.port() && (at.ip() == end.ip() || at.ip().is_unspecified())
}

/// Returns whether a daemon pairs sockets of one network namespace only.
fn stays_within(report: &Result<StreamsReport>) -> bool {
    report.as_ref().is_ok_and(|report| report.across == Some(false) && report.recorded != Some(true))
}

fn canonical(address: &str) -> Option<SocketAddr> {
    let address: SocketAddr = address.parse().ok()?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

pub(crate) fn why(output: Output, socket: Option<PathBuf>, pid: u32, fd: u32) -> Result<Outcome> {
    let answer = explain(socket, pid, fd)?;
    output.result("why connection", &answer, || text(&answer))?;
    Ok(Outcome::Done)
}

fn explain(daemon: Option<PathBuf>, pid: u32, fd: u32) -> Result<Answer> {
    let socket = Socket::of_descriptor(pid, fd)?;
    let mut answer = Answer {
        pid,
        fd,
        local: socket.local,
        remote: socket.remote,
        state: socket.state,
        path: Path::None,
        causes: Vec::new(),
        process: Process::examine(pid),
        peer: Place::None,
        is_far: false,
        peer_process: None,
        stream: None,
        is_kept: false,
    };
    if !socket.is_connected() {
        return Ok(answer);
    }
    let report = ask(daemon.clone(), Topic::Streams, &[]).and_then(|report| read::<StreamsReport>(&report));
    let streams = report.iter().flat_map(|report| &report.streams);
    let pids = holders(socket.inode);
    answer.stream = streams.filter_map(|stream| OwnStream::matching(stream, &socket, &pids)).next();
    answer.find_peer(&socket);
    let peer = answer.peer_process.as_ref().map(|process| process.pid);
    answer.is_kept = report.as_ref().is_ok_and(|report| is_kept(report, &socket, peer));
    answer.path = match &answer.stream {
        Some(stream) if stream.is_used() => Path::Stream,
        None if answer.is_kept => Path::Stream,
        _ => Path::Tcp,
    };
    if answer.path == Path::Tcp && answer.stream.is_none() {
        let refusal = report.as_ref().ok().and_then(|report| Kept::find(report, &socket));
        answer.find_causes(&report, refusal, daemon_start(daemon))?;
    }
    Ok(answer)
}

/// Returns the time at which the daemon's process was started, as [`Process::started`] has it.
fn daemon_start(daemon: Option<PathBuf>) -> Option<u64> {
    let status: StatusReport = ask(daemon, Topic::Status, &[]).and_then(|report| read(&report)).ok()?;
    Process::examine(status.pid).started
}

impl Answer {
    /// Finds the process of the other end: the one that the daemon names, otherwise one with the socket.
    fn find_peer(&mut self, socket: &Socket) {
        let reported = self.stream.as_ref().and_then(|stream| u32::try_from(stream.peer.pid?).ok());
        let (place, pid) = match socket.other_end(self.pid) {
            _ if reported.is_some() => (Place::ThisHost, reported),
            OtherEnd::Held(pids) => (Place::ThisHost, pids.first().copied()),
            _ if self.stream.is_some() => (Place::ThisHost, None),
            OtherEnd::NotHere => (Place::Elsewhere, None),
            OtherEnd::Ambiguous => (Place::Ambiguous, None),
            OtherEnd::Closed => (Place::Closed, None),
            OtherEnd::Queued => (Place::Queued, None),
            OtherEnd::Hidden => (Place::Hidden, None),
        };
        self.is_far = place == Place::Ambiguous || pid.is_some_and(|peer| are_in_two_namespaces(self.pid, peer));
        (self.peer, self.peer_process) = (place, pid.map(Process::examine));
    }

    /// Collects everything that keeps the connection on TCP. `kept` is what the daemon has decided about it, and `daemon` the time of its
    /// start.
    fn find_causes(&mut self, report: &Result<StreamsReport>, kept: Option<Kept>, daemon: Option<u64>) -> Result<()> {
        let processes = [Some(&self.process), self.peer_process.as_ref()].into_iter().flatten();
        // One process may have both ends.
        let both = self.peer_process.as_ref().is_some_and(|peer| peer.pid == self.pid);
        let mut causes: Vec<Cause> = processes.take(if both { 1 } else { 2 }).filter_map(Cause::of_process).collect();
        match self.peer {
            Place::Elsewhere => causes.push(Cause {
                text: "no socket of this host has the addresses of the other end: it is on another host or in a guest, or an \
                       address is translated"
                    .to_owned(),
                reason: Some(Reason::StreamPeerMissing.name().to_owned()),
                remedy: Some(
                    if stays_within(report) {
                        "None: without records of connections, streams need addresses that are not translated (`isthmus doctor`)."
                    } else {
                        "None if it is on another host: streams connect programs of one host. Otherwise start both programs with `isthmus run --with sockets`."
                    }
                    .to_owned(),
                ),
            }),
            // Where streams may cross, the daemon has more evidence than the addresses, so this is not its decision.
            Place::Ambiguous if !stays_within(report) => causes.push(Cause {
                text: "sockets of several network namespaces have the addresses of the other end".to_owned(),
                reason: None,
                remedy: Some("Give the network namespaces different addresses.".to_owned()),
            }),
            Place::Closed => causes.push(Cause::of_reason(Reason::StreamWrongState, "the other end is closed")),
            Place::Queued => causes.push(Cause {
                text: "the program at the other end has not accepted the connection yet".to_owned(),
                reason: None,
                remedy: Some("None: it becomes a stream after `accept`, if both programs use streams.".to_owned()),
            }),
            Place::None | Place::ThisHost | Place::Hidden | Place::Ambiguous => {}
        }
        match report {
            Ok(report) if !report.enabled => causes.push(Cause::of_reason(Reason::StreamsDisabled, "")),
            Ok(_) if self.is_far && stays_within(report) => {
                let missing = report.as_ref().ok().and_then(|report| report.unrecorded.as_deref());
                causes.push(Cause::of_reason(Reason::StreamAcrossNamespaces, missing.unwrap_or_default()));
            }
            Ok(_) => {}
            Err(error) => match error.downcast_ref::<Refusal>() {
                Some(refusal) => {
                    let ends = [Some(&self.process), self.peer_process.as_ref()];
                    let is_here = matches!(self.peer, Place::ThisHost | Place::Hidden | Place::Ambiguous);
                    if is_here && ends.into_iter().flatten().all(|process| process.library == Library::Loaded) {
                        self.path = Path::Unknown; // A stream goes on without its daemon.
                    }
                    causes.push(Cause::of_reason(refusal.reason, &refusal.detail));
                }
                None => anyhow::bail!(crate::output::causes(error)),
            },
        }
        if let Some(kept) = kept {
            let is_known = causes.iter().any(|cause| cause.reason.as_deref() == Some(kept.reason.name()));
            if !is_known && (causes.is_empty() || !kept.is_consequence()) {
                causes.push(Cause::of_reason(kept.reason, &kept.detail));
            }
        }
        if causes.is_empty() {
            if self.older_than(daemon) == [true; 2] {
                self.path = Path::Unknown;
            }
            causes.push(self.undecided(daemon));
        }
        self.causes = causes;
        Ok(())
    }

    /// Returns for both ends whether the program ran before the daemon was started.
    fn older_than(&self, daemon: Option<u64>) -> [bool; 2] {
        let is_older = |process: &Process| process.started.zip(daemon).is_some_and(|(own, daemon)| own < daemon);
        [Some(&self.process), self.peer_process.as_ref()].map(|end| end.is_some_and(is_older))
    }

    /// Returns the cause if nothing is known about this connection. The daemon also counts the refusals of all programs by reason. Those
    /// may be of other connections, so none of them is a cause here. `daemon` is the time of its start: it does not list the streams of an
    /// earlier daemon, which go on.
    fn undecided(&self, daemon: Option<u64>) -> Cause {
        let older = self.older_than(daemon);
        let (text, remedy) = if older == [true; 2] {
            (
                "both programs ran before this daemon was started, so the connection may be a stream of an earlier daemon, \
                 which goes on",
                "Connect again: a program that next connects or accepts names such a stream at this daemon.",
            )
        } else if older.contains(&true) {
            (
                "the program at one end ran before this daemon was started: it learns of the daemon when it next connects or accepts",
                "Connect again.",
            )
        } else if self.peer_process.is_some() {
            (
                "the daemon was not asked for a stream, or long ago: the connection is not worth one yet, or a program uses it as no stream serves",
                "Let it carry eight exchanges, or 32 KiB. `isthmus stream list` counts the reasons of all programs.",
            )
        } else {
            ("the program of the other end is not visible to this user", "Run `isthmus why` as root.")
        };
        Cause { text: text.to_owned(), reason: None, remedy: Some(remedy.to_owned()) }
    }
}

fn text(answer: &Answer) -> String {
    let Answer { pid, fd, local, remote, state, process, .. } = answer;
    let own = format!("{} ({pid}:{fd})", process.program);
    let title = match answer.path {
        Path::None if *state == tcp::LISTENING => format!("{own}: {local}, listening: carries no bytes"),
        Path::None => format!("{own}: a TCP socket that is not connected: carries no bytes"),
        path => {
            let peer = answer.peer_process.as_ref().map_or_else(|| remote.to_string(), Process::name);
            let path = match path {
                Path::Stream => "by a stream (shared memory)",
                Path::Unknown => "by TCP, or by a stream of an earlier daemon",
                Path::Tcp | Path::None => "by TCP",
            };
            format!("{own} and {peer}: {path}\n  TCP: {local} to {remote}, {state}")
        }
    };
    let mut text = format!("{title}\n");
    for Cause { text: cause, reason, remedy } in &answer.causes {
        let reason = reason.as_ref().map_or_else(String::new, |reason| format!(" [{reason}]"));
        text += &format!("  why not faster: {cause}{reason}\n");
        text += &remedy.as_ref().map_or_else(String::new, |remedy| format!("    remedy: {remedy}\n"));
    }
    if answer.is_kept {
        text += "  the stream is of an earlier daemon and goes on; this daemon has no counters of it\n";
    }
    if let Some(stream) = &answer.stream {
        text += &format!("  stream {}: {} old\n", stream.id, duration(stream.age_s));
        for end in [&stream.own, &stream.peer] {
            text += &format!("    {}\n", direction(end));
        }
    }
    text += &side(&own, process);
    match &answer.peer_process {
        Some(peer) if answer.path != Path::None => text + &side(&peer.name(), peer),
        _ => text,
    }
}

fn side(name: &str, process: &Process) -> String {
    let library = match process.library {
        Library::Loaded => "is loaded",
        Library::SwitchedOff => "is loaded, and switched off",
        Library::NotLoaded => "is not loaded",
        Library::Unknown => "may be loaded or not",
    };
    let user = process.uid.map_or_else(String::new, |uid| format!("user {uid}; "));
    format!("from {name}:\n  {user}{LIBRARY} {library}\n")
}

/// Describes the path of what an end sends, and why that is TCP.
fn direction(end: &StreamEndRow) -> String {
    let name = end.pid.map_or_else(|| end.program.clone(), |pid| format!("{} ({pid})", end.program));
    let (state, path) = (end.state.as_deref(), end.path.as_deref());
    let how = match (state, path) {
        (_, None) => "sends by an unknown path: the daemon has no counters of this stream".to_owned(),
        (_, Some(ring @ ("small" | "large"))) => format!("sends by shared memory ({ring} ring)"),
        (Some("waiting"), _) => {
            "sends by TCP: it attaches with its next call, unless bytes went past the library".to_owned()
        }
        (Some("attached"), _) => {
            "sends by TCP: it sent nothing since it attached, or the program uses the socket past the library"
                .to_owned()
        }
        (Some(state), _) => format!("sends by TCP: the stream is {state} at this end"),
        (None, Some(path)) => format!("sends by {path}"),
    };
    let counts = end.shared_bytes.zip(end.tcp_bytes).map_or_else(String::new, |(shared, tcp)| {
        format!("; {} by TCP, then {} by shared memory", bytes(tcp), bytes(shared))
    });
    format!("{name} {how}{counts}")
}

#[cfg(test)]
mod tests;
