//! Reports streams, and the sockets that have none. The counters are those of the memory of each stream, which its programs can write.

use std::sync::atomic::Ordering::Relaxed;

use isthmus_layout::control::Owner;
use isthmus_layout::sockets::{SLEEPS, STATE, StreamEndIndex, StreamPath, StreamState};
use isthmus_report::{EndedStreamsRow, ReasonCount, SCHEMA, StreamEndRow, StreamRow, StreamSocketRow, StreamsReport};
use isthmus_shm::{SharedMapping, Words as _};

use super::Sockets;
use super::counters::counters;
use super::records::{EndedStreams, RefusedSocket, SocketName};
use super::session::StreamSession;
use super::shown::{ShownId, ShownSocket, WAIT_NS};
use super::streams::{Stream, StreamSide};
use crate::broker::Broker;
use crate::report::slices::Table;
use crate::report::written::hidden;
use crate::viewer::Viewer;

const NANOSECONDS: u64 = 1_000_000_000;

/// The streams, and the sockets without one. Single streams and sockets, and bytes of the past, are those of users that the viewer sees.
pub(crate) enum StreamTable {}

/// A stream, the record of a user, a socket that waits, or an end of a stream of an earlier daemon.
pub(crate) enum StreamKey {
    Stream(u64),
    Record(Owner),
    Waiting(ShownId),
    Kept(ShownId),
}

/// The rows of a key.
pub(crate) enum StreamTableRow {
    Stream(Box<StreamRow>),
    Ended(EndedStreamsRow),
    Socket(StreamSocketRow),
}

impl Table for StreamTable {
    type Key = StreamKey;
    type Row = StreamTableRow;
    type Report = StreamsReport;

    const SLICE: usize = 32;

    fn next(broker: &Broker, after: Option<&StreamKey>) -> Option<StreamKey> {
        let Sockets { streams, records, shown, kept, .. } = &broker.capabilities.sockets;
        let kept = |after| kept.next_after(after).map(StreamKey::Kept);
        let waiting = |after| shown.next_after(after).map(StreamKey::Waiting).or_else(|| kept(None));
        let record = |after| records.next_after(after).map(StreamKey::Record).or_else(|| waiting(None));
        let stream = |after| streams.next_after(after).map(StreamKey::Stream).or_else(|| record(None));
        match after {
            None => stream(None),
            Some(StreamKey::Stream(last)) => stream(Some(*last)),
            Some(StreamKey::Record(last)) => record(Some(*last)),
            Some(StreamKey::Waiting(last)) => waiting(Some(*last)),
            Some(StreamKey::Kept(last)) => kept(Some(*last)),
        }
    }

    fn add(broker: &Broker, viewer: &Viewer, key: &StreamKey, rows: &mut Vec<StreamTableRow>) {
        let sockets = &broker.capabilities.sockets;
        match key {
            StreamKey::Stream(id) => {
                let is_visible = |stream: &&Stream| stream.owners().any(|owner| viewer.sees_owner(owner));
                let visible = sockets.streams.get(*id).filter(is_visible);
                rows.extend(visible.map(|stream| StreamTableRow::Stream(Box::new(row(*id, stream, broker.core.now)))));
            }
            StreamKey::Record(owner) => {
                if let Some(record) = sockets.records.get(*owner).filter(|_| viewer.sees_owner(*owner)) {
                    rows.push(StreamTableRow::Ended(ended(record.ended)));
                    // A viewer that sees all has them in the record of the connector's owner.
                    if !viewer.sees_all() {
                        rows.push(StreamTableRow::Ended(ended(record.ended_to_others)));
                    }
                    // The refused ones, the oldest first.
                    let refused = record.refused.iter().map(|socket| refused_row(*owner, socket, broker.core.now));
                    rows.extend(refused.map(StreamTableRow::Socket));
                }
            }
            StreamKey::Waiting(id) => rows.extend(sockets.waiting(broker, viewer, *id).map(StreamTableRow::Socket)),
            StreamKey::Kept(id) => rows.extend(sockets.kept_end(broker, viewer, *id).map(StreamTableRow::Socket)),
        }
    }

    fn finish(
        broker: &Broker,
        _: &Viewer,
        rows: Vec<StreamTableRow>,
    ) -> impl FnOnce() -> StreamsReport + Send + 'static + use<> {
        let sockets = &broker.capabilities.sockets;
        let listening = sockets.sessions.values().map(|session| session.sockets.count(true) as u32);
        let refused = sockets.counts.refused.iter();
        let all_streams = sockets.streams.len();
        let report = StreamsReport {
            schema: SCHEMA,
            enabled: sockets.settings.is_enabled,
            recorded: Some(sockets.recording.recorder().is_some()),
            unrecorded: sockets.recording.missing().map(str::to_owned),
            across: Some(sockets.settings.across),
            programs: sockets.sessions.len() as u32,
            waiting: sockets.shown.len() as u32,
            listening: listening.sum(),
            paired: sockets.counts.paired,
            refused: refused.map(|(reason, count)| ReasonCount::new(*reason, *count)).collect(),
            hidden: None,
            streams: Vec::new(),
            ended: None,
            sockets: None,
        };
        move || {
            let (mut streams, mut without_stream) = (Vec::new(), Vec::new());
            let mut ended = EndedStreamsRow { streams: 0, shared_bytes: 0, tcp_bytes: 0 };
            for row in rows {
                match row {
                    StreamTableRow::Stream(stream) => streams.push(*stream),
                    StreamTableRow::Socket(socket) => without_stream.push(socket),
                    StreamTableRow::Ended(row) => {
                        ended.streams = ended.streams.saturating_add(row.streams);
                        ended.shared_bytes = ended.shared_bytes.saturating_add(row.shared_bytes);
                        ended.tcp_bytes = ended.tcp_bytes.saturating_add(row.tcp_bytes);
                    }
                }
            }
            let hidden = hidden(all_streams, streams.len());
            StreamsReport { hidden, streams, ended: Some(ended), sockets: Some(without_stream), ..report }
        }
    }
}

impl Sockets {
    /// A socket that waits for the other end, if the viewer sees it.
    fn waiting(&self, broker: &Broker, viewer: &Viewer, id: ShownId) -> Option<StreamSocketRow> {
        let socket = self.shown.get(id).filter(|socket| viewer.sees_owner(socket.owner))?;
        let session = self.sessions.get(&id.session)?;
        let name = session.sockets.get(id.token)?.name()?;
        Some(waiting_row(session, &name, socket, broker.core.now))
    }

    /// An end of a stream of an earlier daemon, if the viewer sees it.
    fn kept_end(&self, broker: &Broker, viewer: &Viewer, id: ShownId) -> Option<StreamSocketRow> {
        let end = self.kept.get(id).filter(|end| viewer.sees_owner(end.owner))?;
        let session = self.sessions.get(&id.session)?;
        Some(StreamSocketRow {
            state: "kept".to_owned(),
            age_s: broker.core.now.saturating_sub(end.since) / NANOSECONDS,
            reason: String::new(),
            ..socket_row(session, end.owner, &end.name)
        })
    }
}

fn ended(EndedStreams { streams, shared_bytes, tcp_bytes }: EndedStreams) -> EndedStreamsRow {
    EndedStreamsRow { streams, shared_bytes, tcp_bytes }
}

fn refused_row(owner: Owner, socket: &RefusedSocket, now: u64) -> StreamSocketRow {
    StreamSocketRow {
        state: "refused".to_owned(),
        pid: socket.pid,
        uid: owner.0,
        program: socket.program.clone(),
        inode: socket.name.inode,
        address: socket.name.local.to_string(),
        peer_address: socket.name.peer.map(|peer| peer.to_string()),
        age_s: now.saturating_sub(socket.at) / NANOSECONDS,
        reason: socket.reason.name().to_owned(),
    }
}

fn waiting_row(session: &StreamSession, name: &SocketName, socket: &ShownSocket, now: u64) -> StreamSocketRow {
    StreamSocketRow {
        state: "waiting".to_owned(),
        age_s: now.saturating_sub(socket.until.saturating_sub(WAIT_NS)) / NANOSECONDS,
        reason: socket.reason.name().to_owned(),
        ..socket_row(session, socket.owner, name)
    }
}

/// The columns that any socket of an attached program has. The others are empty.
fn socket_row(session: &StreamSession, owner: Owner, name: &SocketName) -> StreamSocketRow {
    StreamSocketRow {
        state: String::new(),
        pid: session.pid,
        uid: owner.0,
        program: session.program.clone(),
        inode: name.inode,
        address: name.local.to_string(),
        peer_address: name.peer.map(|peer| peer.to_string()),
        age_s: 0,
        reason: String::new(),
    }
}

fn row(id: u64, stream: &Stream, now: u64) -> StreamRow {
    let [connector, acceptor] =
        StreamEndIndex::ALL.map(|end| end_row(&stream.ends[usize::from(end.number())], end, stream.words.as_ref()));
    StreamRow { id: format!("{id:#x}"), age_s: now.saturating_sub(stream.since) / NANOSECONDS, connector, acceptor }
}

fn end_row(side: &StreamSide, end: StreamEndIndex, words: Option<&SharedMapping>) -> StreamEndRow {
    let load = |word| words.map(|words| words.load(end.block() + word, Relaxed));
    let counted = words.map(|words| counters(words, end));
    StreamEndRow {
        pid: side.pid,
        uid: side.owner.0,
        program: side.program.clone(),
        address: side.address.to_string(),
        peer_address: Some(side.peer_address.to_string()),
        state: load(STATE).map(|state| state_name(side.is_open, state).to_owned()),
        path: counted.map(|counted| counted.path.map_or("unknown", path_name).to_owned()),
        shared_bytes: counted.map(|counted| counted.shared_bytes),
        tcp_bytes: counted.map(|counted| counted.tcp_bytes),
        read_bytes: counted.map(|counted| counted.read_bytes),
        switches: counted.map(|counted| counted.switches),
        sleeps: load(SLEEPS),
    }
}

fn state_name(is_open: bool, state: u32) -> &'static str {
    let has = |bit: u32| state & bit != 0;
    match () {
        () if !is_open => "ended",
        () if has(StreamState::LEFT) => "left",
        () if has(StreamState::HALF_CLOSED) => "half-closed",
        () if has(StreamState::ATTACHED) => "attached",
        () => "waiting",
    }
}

fn path_name(path: StreamPath) -> &'static str {
    match path {
        StreamPath::Tcp => "tcp",
        StreamPath::Small => "small",
        StreamPath::Large => "large",
    }
}
