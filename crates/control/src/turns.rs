//! The turns of the control thread: how much processor time each has taken.
//!
//! A turn is what the thread does between two waits: it handles a packet, an event or a deadline, and sends what follows from it. All users
//! wait for its end, so no turn may grow with what one user has.

use prometheus_client::metrics::histogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

/// The upper bounds of the histogram in seconds.
const BUCKETS_S: [f64; 8] = [0.000_1, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.1, 1.0];

/// A turn that has begun.
#[derive(Debug)]
pub(crate) struct Turn {
    begun_ns: i64,
}

impl Turn {
    /// Begins a turn.
    pub(crate) fn begin() -> Self {
        Self { begun_ns: processor_ns() }
    }
}

/// The turns of the control thread.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Histogram);

impl Default for Turns {
    fn default() -> Self {
        Self(Histogram::new(BUCKETS_S))
    }
}

impl Turns {
    /// Counts a turn that ends now.
    pub(crate) fn ended(&self, turn: Turn) {
        self.0.observe((processor_ns() - turn.begun_ns) as f64 / 1e9);
    }

    /// The histogram.
    pub(crate) fn histogram(&self) -> Histogram {
        self.0.clone()
    }
}

fn processor_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
