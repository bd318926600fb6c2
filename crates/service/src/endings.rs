//! How a domain ends, as a worker sees it: it broke the contract, or control says that it is gone.

use crate::breach::Breach;
use crate::command::Event;
use crate::mailbox::Task;
use crate::router::Slot;
use crate::worker::Worker;
use isthmus_layout::limits::RING_CELLS;
use isthmus_layout::reason::Reason;
use isthmus_shm::RecordBuffer;
use std::sync::atomic::Ordering::Relaxed;

impl Worker {
    /// Notes that a domain broke the contract; [`Self::bury`] follows.
    pub(crate) fn breach(&mut self, slot: Slot, breach: Breach) {
        self.broken.push((slot, breach));
    }

    /// Cuts off those who broke the contract.
    pub(crate) fn bury(&mut self) {
        while let Some((slot, breach)) = self.broken.pop() {
            let Some(domain) = self.router.domain(slot) else { continue };
            self.broken.retain(|&(other, _)| other != slot);
            self.counters.faults.add(breach.reason(), 1);
            let flight = self.cut(slot, Reason::PeerFault);
            tracing::warn!(%domain, reason = %breach.reason(), %breach, flight, "domain broke the contract of its ring");
            (self.listener)(Event::Fault { domain, breach });
        }
    }

    /// Removes a domain that left or whose end was seen: what is in its ring was sent, and is delivered.
    pub(crate) fn remove(&mut self, slot: Slot, reason: Reason) {
        let domain = self.router.domain(slot);
        let mut record = RecordBuffer::default();
        for _ in 0..RING_CELLS {
            if !matches!(self.rings.take(slot, &mut record), Ok(true)) {
                break;
            }
            self.handle(slot, &record);
            self.bury();
            if self.router.domain(slot) != domain {
                return;
            }
        }
        self.cut(slot, reason);
    }

    /// Lets go of a domain. Answers what its ring remembers of its last events.
    fn cut(&mut self, slot: Slot, reason: Reason) -> String {
        let mut channel = self.rings.remove(slot);
        let left = self.router.remove(slot, reason);
        self.counters.drops.add(reason, left.dropped);
        self.counters.held_bytes.store(self.router.all_held_cost(), Relaxed);
        for (worker, to, route, bounce) in left.bounces {
            self.post(worker, Task::Bounce { to, route, bounce, reason });
        }
        channel.as_mut().map(|channel| channel.flight().to_string()).unwrap_or_default()
    }
}
