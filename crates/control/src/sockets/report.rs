//! Reports streams. The counters are read from the memory of each stream, which its programs can write: any value is shown, and none is
//! used.

use std::sync::atomic::Ordering::Relaxed;

use isthmus_layout::sockets::{
    HEAD, HEAD_HIGH, SLEEPS, STATE, SWITCH_PATH, SWITCHES, StreamEndIndex, StreamPath, StreamState, TAIL, TAIL_HIGH,
    TCP_BYTES,
};
use isthmus_report::{ReasonCount, SCHEMA, StreamEndRow, StreamRow, StreamsReport};
use isthmus_shm::{SharedMapping, Words as _};

use super::Sockets;
use super::streams::{Stream, StreamSide};
use crate::broker::Broker;

const NANOSECONDS: u64 = 1_000_000_000;

impl Sockets {
    /// Reports the streams.
    pub(crate) fn report(broker: &Broker) -> StreamsReport {
        let sockets = &broker.capabilities.sockets;
        let listening = sockets.sessions.values().flat_map(|session| session.sockets.values());
        let refused = sockets.counts.refused.iter();
        StreamsReport {
            schema: SCHEMA,
            enabled: sockets.settings.is_enabled,
            programs: sockets.sessions.len() as u32,
            waiting: sockets.shown.len() as u32,
            listening: listening.filter(|socket| socket.is_listener()).count() as u32,
            paired: sockets.counts.paired,
            refused: refused.map(|(reason, count)| ReasonCount::new(*reason, *count)).collect(),
            streams: sockets.streams.iter().map(|(id, stream)| row(id, stream, broker.now)).collect(),
        }
    }
}

fn row(id: u64, stream: &Stream, now: u64) -> StreamRow {
    let [connector, acceptor] =
        StreamEndIndex::ALL.map(|end| end_row(&stream.ends[usize::from(end.number())], end, stream.words.as_ref()));
    StreamRow { id: format!("{id:#x}"), age_s: now.saturating_sub(stream.since) / NANOSECONDS, connector, acceptor }
}

fn end_row(side: &StreamSide, end: StreamEndIndex, words: Option<&SharedMapping>) -> StreamEndRow {
    let load = |word| words.map(|words| words.load(end.block() + word, Relaxed));
    let position = |words: Option<&SharedMapping>, low: u32, high: u32| {
        let words = words?;
        Some(u64::from(words.load(high, Relaxed)) << 32 | u64::from(words.load(low, Relaxed)))
    };
    let (block, peer) = (end.block(), end.peer().block());
    let switches = load(SWITCHES);
    let path = load(SWITCH_PATH + switches.unwrap_or(0) % 2).map(StreamPath::from_word);
    let (tail, tcp_bytes) =
        (position(words, block + TAIL, block + TAIL_HIGH), position(words, block + TCP_BYTES, block + TCP_BYTES + 1));
    StreamEndRow {
        pid: side.pid,
        uid: side.owner.0,
        program: side.program.clone(),
        address: side.address.to_string(),
        state: load(STATE).map(|state| state_name(side.is_open, state).to_owned()),
        path: path.map(|path| path.map_or("unknown", path_name).to_owned()),
        // The tail counts the bytes of all paths up to the last byte in a ring.
        shared_bytes: tail.zip(tcp_bytes).map(|(tail, tcp)| tail.saturating_sub(tcp)),
        tcp_bytes,
        read_bytes: position(words, peer + HEAD, peer + HEAD_HIGH),
        switches,
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
