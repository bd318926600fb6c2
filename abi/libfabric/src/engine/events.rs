//! The results of operations: entries for completion queues, and counters.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A completed operation, or an event that a peer caused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) context: *mut c_void,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buf: *mut c_void,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    /// The number of the sender in the address vector.
    pub(crate) source: u64,
    /// 0, or the error.
    pub(crate) error: c_int,
    /// The number of bytes that did not fit.
    pub(crate) overflow: usize,
}

// SAFETY: the pointers are the program's words; nothing of ours looks behind them.
unsafe impl Send for Event {}

impl Event {
    /// Returns the event of an operation with this context; all other fields have their defaults.
    #[inline]
    pub(crate) const fn of(context: *mut c_void, flags: u64) -> Self {
        let (buf, source) = (std::ptr::null_mut(), crate::abi::consts::FI_ADDR_NOTAVAIL);
        Self { context, flags, len: 0, buf, data: 0, tag: 0, source, error: 0, overflow: 0 }
    }
}

/// A completion counter.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    pub(crate) value: AtomicU64,
    pub(crate) errors: AtomicU64,
}

impl Counter {
    fn count(&self, failed: bool) {
        // A reader either holds the lock under which this was counted, or checks again.
        let of = if failed { &self.errors } else { &self.value };
        of.fetch_add(1, Ordering::Relaxed);
    }
}

/// The kind of operations that a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CounterKind {
    Send,
    Recv,
    Read,
    Write,
    RemoteRead,
    RemoteWrite,
}

/// One of an endpoint's two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Transmit,
    Receive,
}

/// The events of an endpoint, and their destinations.
#[derive(Debug, Default)]
pub(crate) struct Events {
    queues: [VecDeque<Event>; 2],
    /// For each side, whether a completion queue is bound, and whether it has selective completion.
    bound: [bool; 2],
    selective: [bool; 2],
    counters: [Option<Arc<Counter>>; 6],
    /// The number of events so far, including those that no queue reports.
    pub(crate) count: u64,
}

impl Events {
    /// Binds a completion queue to this side.
    pub(crate) fn bind(&mut self, side: Side, selective: bool) {
        (self.bound[side as usize], self.selective[side as usize]) = (true, selective);
    }

    pub(crate) fn is_bound(&self, side: Side) -> bool {
        self.bound[side as usize]
    }

    pub(crate) fn bind_counter(&mut self, counter_kind: CounterKind, counter: Arc<Counter>) {
        self.counters[counter_kind as usize] = Some(counter);
    }

    pub(crate) fn has_counters(&self) -> bool {
        self.counters.iter().any(Option::is_some)
    }

    /// Returns true if an operation of this side reports its end: always, or, with selective completion, if the operation asks for it.
    #[inline]
    pub(crate) fn wants(&self, side: Side, asks: bool) -> bool {
        self.bound[side as usize] && (asks || !self.selective[side as usize])
    }

    /// Counts an operation that reports no completion.
    pub(crate) fn counted(&mut self, counter_kind: CounterKind, failed: bool) {
        self.count += 1;
        if let Some(counter) = &self.counters[counter_kind as usize] {
            counter.count(failed);
        }
    }

    /// Records the end of an operation. Errors are reported in any case.
    #[inline]
    pub(crate) fn complete(&mut self, side: Side, counter_kind: CounterKind, wants_completion: bool, event: Event) {
        self.count += 1;
        if let Some(counter) = &self.counters[counter_kind as usize] {
            counter.count(event.error != 0);
        }
        if wants_completion || (event.error != 0 && self.bound[side as usize]) {
            self.queues[side as usize].push_back(event);
        }
    }

    /// Reports an event that no counter counts.
    pub(crate) fn report(&mut self, side: Side, event: Event) {
        self.count += 1;
        if self.bound[side as usize] {
            self.queues[side as usize].push_back(event);
        }
    }

    /// Returns true if there are events of these sides for the program.
    #[inline]
    pub(crate) fn has_any_of(&self, [transmit, receive]: [bool; 2]) -> bool {
        let [sent, received] = &self.queues;
        (transmit && !sent.is_empty()) | (receive && !received.is_empty())
    }

    #[inline]
    pub(crate) fn queue(&mut self, side: Side) -> &mut VecDeque<Event> {
        &mut self.queues[side as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selective_completion_reports_requested_completions_and_errors() {
        let mut events = Events::default();
        let counter = Arc::new(Counter::default());
        events.bind_counter(CounterKind::Send, Arc::clone(&counter));
        assert!(!events.wants(Side::Transmit, true), "no queue would report it");
        events.bind(Side::Transmit, true);
        assert!(events.wants(Side::Transmit, true) && !events.wants(Side::Transmit, false));
        let event = Event::of(std::ptr::null_mut(), 0);
        events.complete(Side::Transmit, CounterKind::Send, false, event);
        assert!(events.queue(Side::Transmit).is_empty());
        events.complete(Side::Transmit, CounterKind::Send, false, Event { error: 5, ..event });
        assert_eq!(events.queue(Side::Transmit).len(), 1);
        assert_eq!((counter.value.load(Ordering::Relaxed), counter.errors.load(Ordering::Relaxed)), (1, 1));
    }
}
