//! The report about streams.

use serde::{Deserialize, Serialize};

use crate::ReasonCount;

reports! {
    /// The report of `isthmus stream list`.
    StreamsReport {
        /// Schema number, see [`SCHEMA`](crate::SCHEMA).
        schema: u32,
        /// True if the configuration enables streams.
        enabled: bool,
        /// True if the kernel records connections for the daemon, so that streams may connect any network namespaces.
        recorded: Option<bool>,
        /// The reason why the kernel does not record connections; none if it does.
        unrecorded: Option<String>,
        /// True if the configuration lets streams connect two network namespaces without records.
        across: Option<bool>,
        /// Number of programs that are attached to streams.
        programs: u32,
        /// Number of shown sockets that wait for the socket at the other end.
        waiting: u32,
        /// Number of listening sockets.
        listening: u32,
        /// Number of streams since the daemon started.
        paired: u64,
        /// Number of shown and listening sockets that got no stream, and of violations, by reason.
        refused: Vec<ReasonCount>,
        /// The streams, ordered by number.
        streams: Vec<StreamRow>,
        /// Number of streams that are not listed, because the asker may not see them.
        hidden: Option<u32>,
        /// The bytes of streams that have ended, of the users that the asker may see. A user without a program is forgotten after a while.
        ended: Option<EndedStreamsRow>,
        /// Sockets that are in none of the streams, of the users that the asker may see: the last refused ones of each user, the oldest
        /// first, then those that wait for the other end, then those with a stream that an earlier daemon has made.
        sockets: Option<Vec<StreamSocketRow>>,
    }

    /// The sum of streams that have ended, as their programs have counted it.
    EndedStreamsRow {
        /// Number of streams, without those that had no counters.
        streams: u64,
        /// Number of bytes through shared memory, in both directions.
        shared_bytes: u64,
        /// Number of bytes by TCP, in both directions.
        tcp_bytes: u64,
    }

    /// A socket without a stream of this daemon.
    StreamSocketRow {
        /// `waiting` for the socket at the other end, or `refused`; `kept` if a stream of an earlier daemon goes on, as its program says.
        state: String,
        /// The program's process ID, if the daemon can see it.
        pid: Option<i32>,
        /// The user ID of the program.
        uid: u32,
        /// Name of the program.
        program: String,
        /// Inode of the socket, as `/proc/PID/fd` shows it.
        inode: u64,
        /// Address of the socket.
        address: String,
        /// Address of the other end; none of a listening socket.
        peer_address: Option<String>,
        /// Seconds since it was refused, since it began to wait, or since this daemon knows of it.
        age_s: u64,
        /// The reason of the refusal. Of a socket that waits, the one that holds if the other end does not come. Empty if it is kept.
        reason: String,
    }

    /// A stream: a TCP connection with shared memory.
    StreamRow {
        /// Number of the stream.
        id: String,
        /// Seconds since the stream was made.
        age_s: u64,
        /// The end that has connected.
        connector: StreamEndRow,
        /// The end that has accepted.
        acceptor: StreamEndRow,
    }

    /// One end of a stream. The counters are those of its memory, which both programs can write.
    StreamEndRow {
        /// The program's process ID, if the daemon can see it.
        pid: Option<i32>,
        /// The user ID of the program.
        uid: u32,
        /// Name of the program.
        program: String,
        /// Address of the socket.
        address: String,
        /// Address of the other end as this socket has it; another one than that of the other end's socket if addresses are translated.
        peer_address: Option<String>,
        /// `waiting` until the program uses the memory, `attached`, `half-closed`, or `ended`; none if the daemon has no counters.
        state: Option<String>,
        /// Path of the bytes that this end sends: `tcp`, `small` or `large` (rings of shared memory), `unknown`; none without counters.
        path: Option<String>,
        /// Number of bytes that this end has sent through shared memory; none without counters.
        shared_bytes: Option<u64>,
        /// Number of bytes that this end has sent by TCP: all until it changed its path last, and those after it that the other end has
        /// read; none without counters.
        tcp_bytes: Option<u64>,
        /// Number of bytes that the other end has read of them, on any path; none without counters.
        read_bytes: Option<u64>,
        /// Number of changes of the path; none without counters.
        switches: Option<u32>,
        /// Number of times that the program slept; none without counters.
        sleeps: Option<u32>,
    }
}
