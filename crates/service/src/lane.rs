//! A lane: the way from one sender into the ring of one receiver, with what is held on it while the ring is full.
//!
//! ```text
//!   sender ──► [ held, in order ] ──► receiver's ring ──► receiver
//!               └──────────── outstanding: at most the credit of the pair ────────────┘
//! ```
//!
//! What is held is memory of the daemon, so it is what the credit bounds: each record costs its bytes and [`ORDINARY_RECORD_COST`],
//! which is more than the daemon needs to remember it.

use isthmus_layout::limits::{
    INLINE_BYTES_MAX, ORDINARY_CREDIT_BYTES, ORDINARY_FRAGMENT_BYTES_MAX, ORDINARY_RECORD_COST,
};
use isthmus_layout::record::{Record, Route};
use std::collections::VecDeque;

const _: () = assert!(size_of::<Held>() <= ORDINARY_RECORD_COST as usize);
const _: () = assert!(ORDINARY_RECORD_COST + ORDINARY_FRAGMENT_BYTES_MAX <= ORDINARY_CREDIT_BYTES);
const _: () = assert!(INLINE_BYTES_MAX <= ORDINARY_FRAGMENT_BYTES_MAX as usize);

/// A record that waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// As it will arrive.
    pub(crate) route: Route,
    /// Without its bytes.
    pub(crate) record: Record<'static>,
    /// Message bytes that belong to it.
    pub(crate) len: u32,
}

impl Held {
    /// What it costs its sender until the receiver gives it back.
    pub(crate) fn cost(&self) -> u32 {
        ORDINARY_RECORD_COST + self.len
    }
}

/// Records that wait, in order, and their bytes.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    records: VecDeque<Held>,
    bytes: VecDeque<u8>,
}

/// From one sender to one receiver.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Only while something is held: most lanes never need it.
    queue: Option<Box<Queue>>,
    /// Cost of what the receiver got and has not given back.
    pub(crate) delivered: u32,
}

impl Lane {
    pub(crate) fn is_clear(&self) -> bool {
        self.queue.is_none()
    }

    /// Holds a record; a queue comes from `spare` if there is one.
    pub(crate) fn hold(&mut self, held: Held, bytes: &[u8], spare: &mut Spare) {
        assert!(held.len as usize == bytes.len()); // Ours.
        let queue = self.queue.get_or_insert_with(|| spare.take());
        queue.records.push_back(held);
        queue.bytes.extend(bytes);
    }

    /// The record whose turn it is.
    pub(crate) fn first(&self) -> Option<&Held> {
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
    pub(crate) fn drop_first(&mut self, spare: &mut Spare) -> Option<Held> {
        let queue = self.queue.as_mut()?;
        let held = queue.records.pop_front()?;
        queue.bytes.drain(..held.len as usize);
        if queue.records.is_empty() {
            spare.put(self.queue.take());
        }
        Some(held)
    }
}

#[cfg(test)]
impl Lane {
    pub(crate) fn held_cost(&self) -> u32 {
        self.queue.iter().flat_map(|queue| &queue.records).map(Held::cost).sum()
    }
}

/// Queues not in use, kept so that a receiver which is slow now and then costs no allocation each time.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "the boxes themselves go back and forth between lanes and here")]
pub(crate) struct Spare(Vec<Box<Queue>>);

/// Queues kept: 16 of at most about two credits' bytes are 2 MiB.
const SPARE_MAX: usize = 16;

impl Spare {
    fn take(&mut self) -> Box<Queue> {
        self.0.pop().unwrap_or_default()
    }

    fn put(&mut self, queue: Option<Box<Queue>>) {
        if let Some(queue) = queue
            && self.0.len() < SPARE_MAX
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
        let (mut lane, mut spare) = (Lane::default(), Spare::default());
        for round in 0..3_u32 {
            // Each round begins elsewhere in the ring of bytes, so that records wrap around its end.
            for at in 0..60_u32 {
                let record = Record::Pull { serial: Serial(at + 1), bytes: 0 };
                lane.hold(
                    Held { route, record, len: 7 * at + round },
                    &vec![at as u8; (7 * at + round) as usize],
                    &mut spare,
                );
            }
            for at in 0..60_u32 {
                let len = (7 * at + round) as usize;
                let mut into = [0xff; 500];
                lane.copy_first(&mut into);
                assert!(into[..len].iter().all(|&byte| byte == at as u8) && into[len] == 0xff);
                assert_eq!(
                    lane.drop_first(&mut spare).unwrap().record,
                    Record::Pull { serial: Serial(at + 1), bytes: 0 }
                );
            }
            assert!(lane.is_clear() && lane.first().is_none() && lane.drop_first(&mut spare).is_none());
            assert_eq!(spare.0.len(), 1);
        }
    }
}
