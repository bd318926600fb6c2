//! The state that a worker shares with its pollers: the rings of the domains, the router's accounts, and the ways to other workers and
//! to control.
//!
//! ```text
//!   worker ── records of its domains ──► Shared::deliver ──► router: is the ring clear? ─► rings
//!   poller ── records of remote peers ──►      │                └ no: held, until `deliver_waiting`
//!                                              └─ post ─► other workers      emit_event ─► control
//! ```
//!
//! A poller gets `&mut Shared` and never sees the worker, so nothing here calls a poller. A violation is noted, and its domain removed
//! by [`Shared::reap`].

use crate::command::{Event, EventHandler, SendPolicy, WorkerIndex};
use crate::counters::{WorkerCounters, bump};
use crate::domain_rings::{RECORDS_PER_ROUND, Rings};
use crate::domain_state::Next;
use crate::mailbox::{ForwardedRecord, MailboxSender, Task};
use crate::record_kinds::{payload_of, without_payload};
use crate::router::{Router, Slot};
use crate::sleeper::Sleeper;
use crate::violation::Violation;
use isthmus_layout::DomainId;
use isthmus_layout::limits::DAEMON_PATH_FRAGMENT_BYTES_MAX;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route};
use isthmus_platform::PlatformError;
use isthmus_shm::PeerFault;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The maximum payload of a record on the daemon path.
const PAYLOAD_BYTES_MAX: usize = isthmus_mx_transport::FRAGMENT_BYTES_MAX;

const _: () = assert!(PAYLOAD_BYTES_MAX >= DAEMON_PATH_FRAGMENT_BYTES_MAX as usize);

/// A buffer for the payload of one record.
pub(crate) type PayloadBuffer = Box<[u8]>;

/// Allocates a buffer for the payload of one record.
pub(crate) fn payload_buffer() -> PayloadBuffer {
    vec![0; PAYLOAD_BYTES_MAX].into()
}

/// The part of a worker that its pollers use.
pub(crate) struct Shared {
    pub(crate) index: WorkerIndex,
    pub(crate) router: Router,
    pub(crate) rings: Rings,
    pub(crate) sleeper: Sleeper,
    pub(crate) counters: Arc<WorkerCounters>,
    /// The mailboxes of all workers, in their order.
    mailboxes: Vec<MailboxSender>,
    event_handler: EventHandler,
    /// The bytes of a held record on their way into a ring.
    held_payload: PayloadBuffer,
    /// Violations that were found. Their domains are not removed yet.
    pub(crate) violations: Vec<(Slot, Violation)>,
    /// The number of remote peers that were added.
    pub(crate) remote_peers_added: u32,
}

impl Shared {
    pub(crate) fn new(
        index: WorkerIndex,
        send_policy: SendPolicy,
        counters: Arc<WorkerCounters>,
        mailboxes: Vec<MailboxSender>,
        event_handler: EventHandler,
    ) -> Result<Self, PlatformError> {
        Ok(Self {
            index,
            router: Router::new(send_policy),
            rings: Rings::new(),
            sleeper: Sleeper::new()?,
            counters,
            mailboxes,
            event_handler,
            held_payload: payload_buffer(),
            violations: Vec::new(),
            remote_peers_added: 0,
        })
    }

    /// The number of workers of this service.
    pub(crate) fn workers(&self) -> u32 {
        self.mailboxes.len() as u32 // `WORKERS_MAX` at most.
    }

    /// Reports an event to control.
    pub(crate) fn emit_event(&self, event: Event) {
        (self.event_handler)(event);
    }

    /// Posts a task to another worker.
    pub(crate) fn post(&self, worker: WorkerIndex, task: Task) {
        self.mailboxes[usize::from(worker.0)].send(task);
    }

    /// Copies the payload of an accepted record to the start of `into`, and returns it.
    pub(crate) fn copy_payload<'a>(&mut self, from: Slot, record: &Record<'_>, into: &'a mut [u8]) -> Option<&'a [u8]> {
        match self.rings.copy_payload(from, record, into) {
            Ok(len) => {
                let counters = self.rings.counters(from);
                bump(&counters.sent_records, 1);
                bump(&counters.sent_bytes, u64::from(len));
                Some(&into[..len as usize])
            }
            Err(fault) => {
                self.violation(from, fault.into());
                None
            }
        }
    }

    /// Counts a record that is not delivered, and releases its payload, which is copied to `discarded`.
    pub(crate) fn refused(&mut self, from: Slot, record: &Record<'_>, reason: Reason, discarded: &mut [u8]) {
        self.counters.drops.add(reason, 1);
        if payload_of(record).1.is_some()
            && let Err(fault) = self.rings.copy_payload(from, record, discarded)
        {
            self.violation(from, fault.into());
        }
    }

    /// Puts a record with its bytes into the ring of `to`, or holds it.
    pub(crate) fn deliver(&mut self, to: Slot, route: Route, record: &Record<'_>, bytes: &[u8]) {
        let len = bytes.len() as u32;
        if self.router.is_clear(to) {
            match self.rings.push(to, route, record, bytes) {
                Ok(true) => {
                    self.router.delivered(to, route.peer.expect("the router has set the sender"), len);
                    return self.count_received(to, len);
                }
                Ok(false) => {}
                Err(fault) => self.violation(to, fault.into()), // And hold: the sender is notified when `to` is reaped.
            }
        }
        bump(&self.counters.held_records, 1);
        let backlog = self.router.enqueue(to, route, record, bytes);
        self.publish_held(to);
        if let Some((slot, violation)) = backlog {
            self.violation(slot, violation);
        }
    }

    /// A record from a domain of another worker.
    pub(crate) fn deliver_forwarded(&mut self, to: Slot, forwarded: &ForwardedRecord) {
        self.deliver(to, forwarded.route, &forwarded.record, &forwarded.bytes);
        if let Some(sender) = forwarded.route.peer {
            self.router.close_flow(to, sender);
        }
    }

    /// Passes a record with its bytes on to the worker that serves `to`.
    pub(crate) fn forward_to_worker(
        &self,
        worker: WorkerIndex,
        to: DomainId,
        route: Route,
        record: &Record<'_>,
        bytes: &[u8],
    ) {
        let (record, bytes) = (without_payload(record), bytes.to_vec());
        let forwarded = ForwardedRecord { worker: self.index, to, route, record, bytes };
        self.post(worker, Task::ForwardedRecord(Box::new(forwarded)));
    }

    fn count_received(&self, to: Slot, len: u32) {
        bump(&self.counters.records, 1);
        bump(&self.counters.bytes, u64::from(len));
        let counters = self.rings.counters(to);
        bump(&counters.received_records, 1);
        bump(&counters.received_bytes, u64::from(len));
    }

    fn publish_held(&self, slot: Slot) {
        self.rings.counters(slot).held_bytes.store(self.router.held_cost(slot), Relaxed);
        self.counters.held_bytes.store(self.router.all_held_cost(), Relaxed);
    }

    /// Tries again to deliver to the domains on the waiting list. True if a record was delivered.
    pub(crate) fn deliver_waiting(&mut self) -> bool {
        let mut moved = false;
        let mut at = 0;
        while at < self.router.waiting() {
            let slot = self.router.waiting_at(at);
            moved |= self.drain_waiting(slot);
            if self.router.is_clear(slot) {
                self.router.remove_waiting(at);
            } else {
                at += 1;
            }
        }
        self.reap();
        moved
    }

    /// Moves waiting records into the ring of `to` while there is room, one batch at most. True if a record was moved.
    fn drain_waiting(&mut self, to: Slot) -> bool {
        for moved in 0..RECORDS_PER_ROUND {
            match self.drain_next(to) {
                Ok(true) => {}
                Ok(false) => return moved > 0,
                Err(fault) => {
                    self.violation(to, fault.into());
                    return moved > 0;
                }
            }
        }
        true
    }

    fn drain_next(&mut self, to: Slot) -> Result<bool, PeerFault> {
        let held = match self.router.next(to) {
            None => return Ok(false),
            Some(Next::DaemonRecord(answer)) => {
                if !self.rings.push(to, answer.route, &answer.record, &[])? {
                    return Ok(false);
                }
                self.count_daemon_record(to, &answer.record);
                None
            }
            Some(Next::HeldRecord(held, flow)) => {
                if !self.rings.has_room(to, held.len)? {
                    return Ok(false);
                }
                flow.copy_first(&mut self.held_payload);
                let bytes = &self.held_payload[..held.len as usize];
                if !self.rings.push(to, held.route, &held.record, bytes)? {
                    return Ok(false);
                }
                Some(held.len)
            }
        };
        self.router.sent(to);
        if let Some(len) = held {
            self.count_received(to, len);
            self.publish_held(to);
        }
        Ok(true)
    }

    fn count_daemon_record(&self, to: Slot, record: &Record<'_>) {
        if let Record::Bounce { .. } = record {
            bump(&self.counters.bounces, 1);
            bump(&self.rings.counters(to).bounces, 1);
        } else {
            bump(&self.counters.credits, 1);
        }
    }
}
