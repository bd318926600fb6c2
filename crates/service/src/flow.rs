//! A flow: from one sender into the ring of one receiver, with the records that are held while the ring is full.
//!
//! ```text
//!   sender ──► [ held, in order ] ──► receiver's ring ──► receiver
//!               └──────────── outstanding: at most the credit of the pair ────────────┘
//! ```
//!
//! What is held is memory of the daemon, so it is what the credit bounds: each record costs its bytes and [`DAEMON_PATH_RECORD_COST`],
//! which is more than the daemon needs to remember it.

use isthmus_layout::limits::{
    DAEMON_PATH_CREDIT_BYTES, DAEMON_PATH_FRAGMENT_BYTES_MAX, DAEMON_PATH_RECORD_COST, INLINE_BYTES_MAX,
};
use isthmus_layout::record::{Record, Route};
use std::collections::VecDeque;

const _: () = assert!(size_of::<HeldRecord>() <= DAEMON_PATH_RECORD_COST as usize);
const _: () = assert!(DAEMON_PATH_RECORD_COST + DAEMON_PATH_FRAGMENT_BYTES_MAX <= DAEMON_PATH_CREDIT_BYTES);
const _: () = assert!(INLINE_BYTES_MAX <= DAEMON_PATH_FRAGMENT_BYTES_MAX as usize);

/// A record that waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldRecord {
    /// The route, as the receiver will see it.
    pub(crate) route: Route,
    /// Without its bytes.
    pub(crate) record: Record<'static>,
    /// Message bytes that belong to it.
    pub(crate) len: u32,
}

impl HeldRecord {
    /// The credit that the record costs its sender until the receiver returns it.
    pub(crate) fn cost(&self) -> u32 {
        DAEMON_PATH_RECORD_COST + self.len
    }
}

/// Records that wait, in order, and their bytes.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    records: VecDeque<HeldRecord>,
    bytes: VecDeque<u8>,
}

/// From one sender to one receiver.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Only while something is held: most flows never need it.
    queue: Option<Box<Queue>>,
    /// Cost of what the receiver got and has not given back.
    pub(crate) delivered: u32,
}

impl Flow {
    pub(crate) fn is_clear(&self) -> bool {
        self.queue.is_none()
    }

    /// Holds a record; a queue comes from `queue_pool` if there is one.
    pub(crate) fn enqueue(&mut self, held: HeldRecord, bytes: &[u8], queue_pool: &mut QueuePool) {
        assert!(held.len as usize == bytes.len()); // Ours.
        let queue = self.queue.get_or_insert_with(|| queue_pool.take());
        queue.records.push_back(held);
        queue.bytes.extend(bytes);
    }

    /// The first record that waits.
    pub(crate) fn first(&self) -> Option<&HeldRecord> {
        self.queue.as_ref().and_then(|queue| queue.records.front())
    }

    /// Its bytes, copied to the start of `into`.
    pub(crate) fn copy_first(&self, into: &mut [u8]) {
        let Some(queue) = &self.queue else { return };
        let len = queue.records.front().map_or(0, |held| held.len as usize);
        let (front, back) = queue.bytes.as_slices();
        let from_front = len.min(front.len());
        into[..from_front].copy_from_slice(&front[..from_front]);
        into[from_front..len].copy_from_slice(&back[..len - from_front]);
    }

    /// Takes the first record off: it was delivered, or never will be.
    pub(crate) fn pop_first(&mut self, queue_pool: &mut QueuePool) -> Option<HeldRecord> {
        let queue = self.queue.as_mut()?;
        let held = queue.records.pop_front()?;
        queue.bytes.drain(..held.len as usize);
        if queue.records.is_empty() {
            queue_pool.recycle(self.queue.take());
        }
        Some(held)
    }
}

#[cfg(test)]
impl Flow {
    pub(crate) fn held_cost(&self) -> u32 {
        self.queue.iter().flat_map(|queue| &queue.records).map(HeldRecord::cost).sum()
    }
}

/// Queues not in use, kept so that a receiver which is slow now and then costs no allocation each time.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "the boxes themselves go back and forth between flows and here")]
pub(crate) struct QueuePool(Vec<Box<Queue>>);

/// Queues kept: 16 of at most about two credits' bytes are 2 MiB.
const QUEUE_POOL_MAX: usize = 16;

impl QueuePool {
    fn take(&mut self) -> Box<Queue> {
        self.0.pop().unwrap_or_default()
    }

    fn recycle(&mut self, queue: Option<Box<Queue>>) {
        if let Some(queue) = queue
            && self.0.len() < QUEUE_POOL_MAX
        {
            self.0.push(queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_layout::EndpointIndex;
    use isthmus_layout::record::Serial;

    #[test]
    fn held_records_come_out_in_order_with_their_bytes() {
        let end = EndpointIndex::new(0).unwrap();
        let route = Route { from: end, to: end, epoch: 0, peer: None };
        let (mut flow, mut queue_pool) = (Flow::default(), QueuePool::default());
        for round in 0..3_u32 {
            // Each round begins elsewhere in the ring of bytes, so that records wrap around its end.
            for at in 0..60_u32 {
                let record = Record::Pull { serial: Serial(at + 1), bytes: 0 };
                flow.enqueue(
                    HeldRecord { route, record, len: 7 * at + round },
                    &vec![at as u8; (7 * at + round) as usize],
                    &mut queue_pool,
                );
            }
            for at in 0..60_u32 {
                let len = (7 * at + round) as usize;
                let mut into = [0xff; 500];
                flow.copy_first(&mut into);
                assert!(into[..len].iter().all(|&byte| byte == at as u8) && into[len] == 0xff);
                assert_eq!(
                    flow.pop_first(&mut queue_pool).unwrap().record,
                    Record::Pull { serial: Serial(at + 1), bytes: 0 }
                );
            }
            assert!(flow.is_clear() && flow.first().is_none() && flow.pop_first(&mut queue_pool).is_none());
            assert_eq!(queue_pool.0.len(), 1);
        }
    }
}
