//! The counters of a stream, for lists.

use crate::words::Words;
use core::sync::atomic::Ordering::Relaxed;
use isthmus_layout::sockets::{
    HEAD, HEAD_HIGH, SLEEPS, STATE, SWITCH_PATH, SWITCHES, StreamEndIndex, StreamPath, TAIL, TAIL_HIGH, TAKEN,
    TCP_BYTES, WANT_DATA, WANT_ROOM,
};

/// The counters of both ends. The ends may write anything, so this is for display only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamReport {
    /// The end that connected, and the end that accepted.
    pub ends: [EndReport; 2],
}

/// The words of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndReport {
    /// The position behind the last byte that the end wrote to a ring.
    pub tail: u64,
    /// The position behind the last byte that the end read.
    pub head: u64,
    /// The number of switches that the end announced.
    pub switches: u32,
    /// The path since the last of them. None for a number that is no path.
    pub path: Option<StreamPath>,
    /// The bytes that the end sent by TCP up to its last switch.
    pub tcp_bytes: u64,
    /// The number of the peer's switches that the end took.
    pub taken: u32,
    /// Bits of [`StreamState`](isthmus_layout::sockets::StreamState).
    pub state: u32,
    /// The word of its wish to be notified of data; 0 for none.
    pub want_data: u32,
    /// The word of its wish to be notified of room; 0 for none.
    pub want_room: u32,
    /// The number of times that the end slept.
    pub sleeps: u32,
}

impl StreamReport {
    /// Reads the words of both ends, from the first page of a stream's memory.
    pub fn read(memory: &impl Words) -> Self {
        Self { ends: StreamEndIndex::ALL.map(|end| EndReport::read(memory, end.block())) }
    }
}

impl EndReport {
    fn read(memory: &impl Words, block: u32) -> Self {
        let word = |at: u32| memory.load(block + at, Relaxed);
        let counter = |low: u32, high: u32| {
            let (upper, lower) = (word(high), word(low));
            let now = word(high);
            // A carry came between the two loads: the low half is then little more than 0.
            u64::from(now) << 32 | u64::from(if now == upper { lower } else { word(low) })
        };
        let switches = word(SWITCHES);
        Self {
            tail: counter(TAIL, TAIL_HIGH),
            head: counter(HEAD, HEAD_HIGH),
            switches,
            path: StreamPath::from_word(word(SWITCH_PATH + switches % 2)),
            tcp_bytes: counter(TCP_BYTES, TCP_BYTES + 1),
            taken: word(TAKEN),
            state: word(STATE),
            want_data: word(WANT_DATA),
            want_room: word(WANT_ROOM),
            sleeps: word(SLEEPS),
        }
    }
}
