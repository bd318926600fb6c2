//! The removal of a domain by its worker, after a violation or a command of control.

use crate::command::Event;
use crate::mailbox::Task;
use crate::router::Slot;
use crate::shared::Shared;
use crate::violation::Violation;
use crate::worker::Worker;
use isthmus_layout::limits::RING_CELLS;
use isthmus_layout::reason::Reason;
use isthmus_shm::RecordBuffer;
use std::sync::atomic::Ordering::Relaxed;

impl Shared {
    /// Notes that a domain broke the contract; [`Self::reap`] follows.
    pub(crate) fn violation(&mut self, slot: Slot, violation: Violation) {
        self.violations.push((slot, violation));
    }

    /// Removes the domains that broke the contract.
    pub(crate) fn reap(&mut self) {
        while let Some((slot, violation)) = self.violations.pop() {
            let Some(domain) = self.router.domain(slot) else { continue };
            self.violations.retain(|&(other, _)| other != slot);
            self.counters.faults.add(violation.reason(), 1);
            let flight = self.detach_ring(slot, Reason::PeerFault);
            self.emit_event(Event::Fault { domain, violation, flight });
        }
    }

    /// Detaches the ring of a domain and removes it from the router. Returns what the ring's flight recorder has of its last events.
    fn detach_ring(&mut self, slot: Slot, reason: Reason) -> String {
        let mut channel = self.rings.remove(slot);
        let removal = self.router.remove(slot, reason);
        self.counters.drops.add(reason, removal.dropped);
        self.counters.held_bytes.store(self.router.all_held_cost(), Relaxed);
        for (worker, to, route, bounce) in removal.bounces {
            self.post(worker, Task::Bounce { to, route, bounce, reason });
        }
        channel.as_mut().map(|channel| channel.flight_recorder().to_string()).unwrap_or_default()
    }

    /// Trims idle rings, after a sleep in which nothing happened.
    pub(crate) fn trim(&mut self) {
        if let Some((slot, fault)) = self.rings.trim() {
            self.violation(slot, fault.into());
        }
    }
}

impl Worker {
    /// Removes a domain that has detached or ended. Records that are still in its ring are delivered first, because they were sent.
    pub(crate) fn remove(&mut self, slot: Slot, reason: Reason) {
        let domain = self.shared.router.domain(slot);
        let mut record = RecordBuffer::default();
        for _ in 0..RING_CELLS {
            if !matches!(self.shared.rings.receive(slot, &mut record), Ok(true)) {
                break;
            }
            self.handle(slot, &record);
            self.shared.reap();
            if self.shared.router.domain(slot) != domain {
                return;
            }
        }
        self.shared.detach_ring(slot, reason);
    }
}
