//! Completion queues and receive queues.

use crate::types::{Completion, Key, Pd, QpNumber, Refused, Sge};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// A scatter or gather list.
#[derive(Clone, Debug)]
pub(crate) enum SgeList {
    One(Sge),
    Many(Vec<Sge>),
}

impl SgeList {
    #[inline]
    pub(crate) fn new(sges: &[Sge]) -> Self {
        match sges {
            [sge] => Self::One(*sge),
            many => Self::Many(many.to_vec()),
        }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[Sge] {
        match self {
            Self::One(sge) => core::slice::from_ref(sge),
            Self::Many(many) => many,
        }
    }

    /// True if a range lies in the region with this key.
    pub(crate) fn uses(&self, key: Key) -> bool {
        self.as_slice().iter().any(|sge| sge.len > 0 && sge.lkey == key.0)
    }
}

/// The bytes of a list.
#[inline]
pub(crate) fn total_len(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    entries: VecDeque<Completion>,
    capacity: usize,
    /// A completion found no room. The queue takes none from then on.
    pub(crate) overrun: bool,
    /// The event of the overrun was reported.
    pub(crate) overrun_reported: bool,
    /// The completions that lead to an event.
    pub(crate) armed: Option<crate::events::Armed>,
    /// The number of completions that were added since the last event.
    pub(crate) unreported: usize,
    /// The queue pairs that report here, counted once for each of their two queues.
    pub(crate) users: u32,
}

impl CompletionQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            entries: VecDeque::with_capacity(capacity.min(1024)),
            capacity,
            overrun: false,
            overrun_reported: false,
            armed: None,
            unreported: 0,
            users: 0,
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, completion: Completion) {
        if self.entries.len() >= self.capacity {
            self.overrun = true;
        }
        if !self.overrun {
            self.entries.push_back(completion);
            self.unreported += 1;
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        self.entries.pop_front()
    }

    /// Returns the completions that had no event and still wait.
    pub(crate) fn unreported(&self) -> impl Iterator<Item = &Completion> {
        self.entries.iter().rev().take(self.unreported)
    }

    /// Changes the capacity. Refused if more completions wait, together with those that are `due`.
    pub(crate) fn resize(&mut self, capacity: usize, due: usize) -> Result<(), Refused> {
        if capacity < self.entries.len() + due {
            return Err(Refused::Invalid);
        }
        self.capacity = capacity;
        Ok(())
    }

    /// Removes the completions of a queue pair that ends.
    pub(crate) fn forget(&mut self, qp: QpNumber) {
        self.entries.retain(|completion| completion.qp != qp);
    }
}

/// A receive request that waits for a message.
#[derive(Clone, Debug)]
pub(crate) struct ReceiveEntry {
    pub(crate) wr_id: u64,
    pub(crate) sges: SgeList,
}

/// A receive queue: of one queue pair, or shared.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) pd: Pd,
    pub(crate) entries: VecDeque<ReceiveEntry>,
    pub(crate) capacity: usize,
    pub(crate) sges_max: usize,
    /// Queue pairs, by slot, that have refused a message because there was no request.
    pub(crate) refused: Vec<u32>,
    /// The queue pairs that receive from here.
    pub(crate) users: u32,
    /// The program named the queue when it created its queue pairs.
    pub(crate) shared: bool,
    /// An event is due when there are fewer requests.
    pub(crate) limit: usize,
}

impl ReceiveQueue {
    pub(crate) fn new(pd: Pd, capacity: usize, sges_max: usize, shared: bool) -> Self {
        let entries = VecDeque::with_capacity(capacity.min(1024));
        Self { pd, entries, capacity, sges_max, refused: Vec::new(), users: 0, shared, limit: 0 }
    }

    #[inline]
    pub(crate) fn push(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), Refused> {
        if sges.len() > self.sges_max {
            return Err(Refused::Invalid);
        }
        if self.entries.len() >= self.capacity {
            return Err(Refused::Full);
        }
        self.entries.push_back(ReceiveEntry { wr_id, sges: SgeList::new(sges) });
        Ok(())
    }
}
