//! A connection on plain TCP: what it has carried, in private memory of the process.
//!
//! Calls count themselves in and out. An end attaches only while no call is inside, because it compares the counts with the kernel's.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The bit of [`PlainCounts::calls`] that is set while this end attaches, and afterwards.
const CLOSED: u32 = 1 << 31;

/// The counts.
#[derive(Debug, Default)]
pub(crate) struct PlainCounts {
    sent: AtomicU64,
    received: AtomicU64,
    /// Calls that read, write or wait.
    calls: AtomicU32,
}

/// A call that reads, writes or waits, until it is dropped.
pub(crate) struct PlainCall<'a>(&'a PlainCounts);

impl Drop for PlainCall<'_> {
    fn drop(&mut self) {
        // Release: the end that attaches sees the counts of this call.
        self.0.calls.fetch_sub(1, Ordering::Release);
    }
}

impl PlainCounts {
    /// Starts a new connection.
    pub(crate) fn reset(&self) {
        self.sent.store(0, Ordering::Relaxed);
        self.received.store(0, Ordering::Relaxed);
        self.calls.store(0, Ordering::Release);
    }

    /// Begins a call. None while this end attaches, and afterwards.
    #[inline]
    pub(crate) fn begin(&self) -> Option<PlainCall<'_>> {
        let more = |calls: u32| (calls & CLOSED == 0).then_some(calls + 1);
        self.calls.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
        Some(PlainCall(self))
    }

    /// Counts bytes that were sent.
    pub(crate) fn sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that were received.
    pub(crate) fn received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Lets no call begin, if none is under way. Returns the bytes sent and received.
    pub(crate) fn close(&self) -> Option<(u64, u64)> {
        self.calls.compare_exchange(0, CLOSED, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some((self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed)))
    }

    /// Lets calls begin again.
    pub(crate) fn open(&self) {
        self.calls.store(0, Ordering::Release);
    }

    /// Forgets the calls of the parent's other threads, in a child. A parent that attached at this moment was the only one to do so.
    pub(crate) fn forget_calls(&self) {
        self.calls.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closes_only_without_calls() {
        let counts = PlainCounts::default();
        let call = counts.begin().expect("it is open");
        counts.sent(3);
        counts.received(4);
        assert_eq!(counts.close(), None);
        drop(call);
        assert_eq!(counts.close(), Some((3, 4)));
        assert!(counts.begin().is_none());
        counts.open();
        assert!(counts.begin().is_some());
    }
}
