//! Reports streams, and the sockets that have none. The counters are those of the memory of each stream, which its programs can write.

use std::sync::atomic::Ordering::Relaxed;

use isthmus_layout::control::Owner;
use isthmus_layout::sockets::{SLEEPS, STATE, StreamEndIndex, StreamPath, StreamState};
use isthmus_report::{EndedStreamsRow, ReasonCount, SCHEMA, StreamEndRow, StreamRow, StreamSocketRow, StreamsReport};
use isthmus_shm::{SharedMapping, Words as _};

use super::Sockets;
use super::counters::counters;
use super::records::{Record, RefusedSocket, SocketName};
use super::session::StreamSession;
use super::shown::{ShownSocket, WAIT_NS};
use super::streams::{Stream, StreamSide};
use crate::broker::Broker;
use crate::report::hidden;
use crate::viewer::Viewer;

const NANOSECONDS: u64 = 1_000_000_000;

impl Sockets {
    /// Reports the streams. Single streams and sockets, and bytes of the past, are those of users that the viewer sees.
    pub(crate) fn report(broker: &Broker, viewer: &Viewer) -> StreamsReport {
        let sockets = &broker.capabilities.sockets;
        let listening = sockets.sessions.values().map(|session| session.sockets.count(true) as u32);
        let refused = sockets.counts.refused.iter();
        let records: Vec<(Owner, &Record)> =
            sockets.records.iter().filter(|(owner, _)| viewer.sees_owner(*owner)).collect();
        // Both ends of a stream have one owner.
        let visible = sockets.streams.iter().filter(|(_, stream)| viewer.sees_owner(stream.ends[0].owner));
        let streams: Vec<StreamRow> = visible.map(|(id, stream)| row(id, stream, broker.now)).collect();
        StreamsReport {
            schema: SCHEMA,
            enabled: sockets.settings.is_enabled,
            across: Some(sockets.settings.across),
            programs: sockets.sessions.len() as u32,
            waiting: sockets.shown.len() as u32,
            listening: listening.sum(),
            paired: sockets.counts.paired,
            refused: refused.map(|(reason, count)| ReasonCount::new(*reason, *count)).collect(),
            hidden: hidden(sockets.streams.iter().len(), streams.len()),
            streams,
            ended: Some(ended(&records)),
            sockets: Some(sockets.without_stream(broker.now, viewer, &records)),
        }
    }

    /// Lists the sockets without a stream: the refused ones of each user, the oldest first, then those that wait.
    fn without_stream(&self, now: u64, viewer: &Viewer, records: &[(Owner, &Record)]) -> Vec<StreamSocketRow> {
        let refused = records
            .iter()
            .flat_map(|(owner, record)| record.refused.iter().map(|socket| refused_row(*owner, socket, now)));
        let waiting = self.shown.iter().filter(|(_, socket)| viewer.sees_owner(socket.owner));
        let waiting = waiting.filter_map(|(id, socket)| {
            let session = self.sessions.get(&id.session)?;
            let name = session.sockets.get(id.token)?.name()?;
            Some(waiting_row(session, &name, socket, now))
        });
        refused.chain(waiting).collect()
    }
}

fn ended(records: &[(Owner, &Record)]) -> EndedStreamsRow {
    let mut all = EndedStreamsRow { streams: 0, shared_bytes: 0, tcp_bytes: 0 };
    for (_, Record { ended, .. }) in records {
        all.streams = all.streams.saturating_add(ended.streams);
        all.shared_bytes = all.shared_bytes.saturating_add(ended.shared_bytes);
        all.tcp_bytes = all.tcp_bytes.saturating_add(ended.tcp_bytes);
    }
    all
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
        pid: session.pid,
        uid: socket.owner.0,
        program: session.program.clone(),
        inode: name.inode,
        address: name.local.to_string(),
        peer_address: name.peer.map(|peer| peer.to_string()),
        age_s: now.saturating_sub(socket.until.saturating_sub(WAIT_NS)) / NANOSECONDS,
        reason: socket.reason.name().to_owned(),
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
