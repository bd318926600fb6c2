//! The jobs of the two sides of a pair and their results: the messages between this program and its workers.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::path::Path;
use crate::stats::Recorded;

/// The way a side waits for its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// Polls without a pause, and never yields its CPU.
    Poll,
    /// Spins for a short time, then sleeps: the default of Isthmus. Sockets and pipes do not have it.
    Adaptive,
    /// Sleeps in the kernel until it is woken.
    Sleep,
}

impl Wait {
    /// The name in names of cases and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Adaptive => "adaptive",
            Self::Sleep => "sleep",
        }
    }
}

/// The two sides. The leading one chooses the amount of work and reads the clock; the following one replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Side {
    Lead,
    Follow,
}

/// The setup of a path before the measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) wait: Wait,
    /// The longest message that will be sent.
    pub(crate) size_max: usize,
    /// Options of one path, by name. A path refuses an option that it does not know.
    #[serde(default)]
    pub(crate) options: BTreeMap<String, String>,
}

/// The memory of the messages of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Buffers {
    /// A few buffers, sent and filled again and again, as osu_bw and perftest do: not written to in between.
    Warm,
    /// As `Warm`, but the sender writes the whole buffer before each send, so that its lines are dirty in its core.
    Rewritten,
    /// Each message from a buffer, and into a buffer, that was never used before. They have been written to once: page
    /// faults are not part of what is measured.
    Cold,
}

/// The work that is measured between the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    /// A message there, the same back.
    PingPong { size: usize },
    /// Messages in one direction, one short answer at the end.
    Stream { size: usize, buffers: Buffers },
    /// Nothing but opening the path; [`SideResult::open_ns`] says how long it took.
    Open,
    /// The first message of a new connection, there and back.
    First { size: usize },
    /// Connected without a message for `ms` milliseconds, each side waiting for the other.
    Idle { ms: u64 },
    /// A message there and back, with `depth` receives posted and `depth` messages unexpected on each side, and with none.
    Match { depth: u32 },
}

impl Work {
    pub(crate) const fn size(self) -> usize {
        match self {
            Self::PingPong { size } | Self::Stream { size, .. } | Self::First { size } => size,
            Self::Open => 0,
            Self::Idle { .. } => 1,
            Self::Match { .. } => 8,
        }
    }
}

/// All that a worker needs to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) side: Side,
    pub(crate) path: Path,
    pub(crate) setup: Setup,
    pub(crate) work: Work,
    /// The CPUs that the side may use; usually one.
    pub(crate) cpus: Vec<usize>,
    /// The time of the measured part, in milliseconds.
    pub(crate) budget_ms: u64,
    /// Stay connected after the work until the order to part.
    pub(crate) hold: bool,
}

/// From this program to a worker. The job comes with a socket to the other worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WorkerOrder {
    Job(Job),
    Go,
}

/// From a worker to this program.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WorkerMessage {
    /// Opened and connected, or done and still connected; waits for [`WorkerOrder::Go`].
    Ready,
    Done(SideResult),
    Failed(String),
}

/// The results of one side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SideResult {
    /// The time that this side took to open the path.
    pub(crate) open_ns: u64,
    /// The time that it then took to connect to the other side, waiting included.
    pub(crate) connect_ns: u64,
    /// Messages of the measured part, both directions; the same on both sides.
    pub(crate) messages: u64,
    /// CPU time this process used in the measured part, user and system.
    pub(crate) cpu_ns: u64,
    /// Ping-pong and first message: half a round trip; median over batches.
    pub(crate) half_rtt_ns: Option<f64>,
    /// Ping-pong: round trips timed one by one. They include the clock's own 20 to 30 ns each.
    pub(crate) round_trips: Option<Recorded>,
    /// Stream: from the first send until the answer that all has arrived.
    pub(crate) elapsed_ns: Option<u64>,
    /// When the measured part was over, by the clock of [`crate::cpu::now_ns`]; only of paths that say it.
    #[serde(default)]
    pub(crate) ended_ns: Option<u64>,
    /// Matching: half round trips in nanoseconds, by the length of the queues.
    #[serde(default)]
    pub(crate) matching: Option<Matching>,
}

/// Half round trips in nanoseconds: with receives that name their message exactly, and with masked ones; with empty queues, and
/// with full ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Matching {
    pub(crate) exact_empty_ns: f64,
    pub(crate) exact_full_ns: f64,
    pub(crate) masked_empty_ns: f64,
    pub(crate) masked_full_ns: f64,
}
