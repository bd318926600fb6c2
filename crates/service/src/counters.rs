//! The counters of the data plane: plain numbers, each written by one worker and readable from any thread at any time.

use isthmus_layout::reason::Reason;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counters of one worker.
#[derive(Debug, Default)]
pub struct WorkerCounters {
    /// Records taken from domains and put into the ring of another one.
    pub records: AtomicU64,
    /// Message bytes in them.
    pub bytes: AtomicU64,
    /// Credits passed on. Several credits are merged into one if their receiver is slow.
    pub credits: AtomicU64,
    /// Messages answered with a bounce.
    pub bounces: AtomicU64,
    /// Records that waited because their receiver had no room.
    pub held_records: AtomicU64,
    /// The cost of the records held now.
    pub held_bytes: AtomicU64,
    /// Ready bits that were set where no ring is.
    pub stray_ready_bits: AtomicU64,
    /// Times the worker went to sleep.
    pub sleeps: AtomicU64,
    /// Times it was woken by a doorbell.
    pub wakeups: AtomicU64,
    /// Times it was woken by its own timer, to give back the pages of idle rings.
    pub timeouts: AtomicU64,
    /// Commands of [`Command::Heartbeat`](crate::Command::Heartbeat) carried out.
    pub heartbeats: AtomicU64,
    /// Domains cut off because they broke the contract.
    pub faults: PerReason,
    /// Records that were not delivered, bounced ones too.
    pub drops: PerReason,
}

/// A worker's counters for one domain.
#[derive(Debug, Default)]
pub struct DomainCounters {
    /// Records taken from the domain and accepted.
    pub sent_records: AtomicU64,
    /// Message bytes in them.
    pub sent_bytes: AtomicU64,
    /// Records of other domains put into the domain's ring.
    pub received_records: AtomicU64,
    /// Message bytes in them.
    pub received_bytes: AtomicU64,
    /// The cost of the records held for the domain now.
    pub held_bytes: AtomicU64,
    /// Messages of the domain that were answered with a bounce.
    pub bounces: AtomicU64,
}

/// A count for each reason.
#[derive(Debug)]
pub struct PerReason([AtomicU64; Reason::ALL.len()]);

impl Default for PerReason {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl PerReason {
    /// The count of one reason.
    pub fn count(&self, reason: Reason) -> u64 {
        self.entry(reason).load(Relaxed)
    }

    /// The reasons that were counted at all.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64)> {
        let counts = self.0.iter().map(|count| count.load(Relaxed));
        Reason::ALL.iter().copied().zip(counts).filter(|&(_, count)| count > 0)
    }

    /// All of them together.
    pub fn sum(&self) -> u64 {
        self.0.iter().map(|count| count.load(Relaxed)).sum()
    }

    pub(crate) fn add(&self, reason: Reason, more: u64) {
        bump(self.entry(reason), more);
    }

    fn entry(&self, reason: Reason) -> &AtomicU64 {
        let at = Reason::ALL.iter().position(|&other| other == reason);
        &self.0[at.expect("the table has all reasons")]
    }
}

/// Adds to a counter that only this thread writes: no locked instruction is needed.
pub(crate) fn bump(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
}
