//! A worker: one thread, its domains, and the loop between their rings.
//!
//! ```text
//!   step:  tasks of control and other workers
//!          up to 64 records: poll ─► router ─► another ring │ a flow │ another worker │ back
//!          what waits for room: try again
//!          wake the domains that got records
//!   then:  spin as long as that has paid off, then sleep on the doorbells
//! ```
//!
//! The worker carries out the router's verdicts and does not know their reasons. Nothing that a domain writes stops the worker: a
//! violation ends that domain's ring.

use crate::command::{Event, EventHandler, SendPolicy, WorkerIndex};
use crate::counters::{WorkerCounters, bump};
use crate::domain_rings::{RECORDS_PER_ROUND, RingPoll, Rings};
use crate::domain_state::Next;
use crate::mailbox::{ForwardedRecord, Mailbox, MailboxSender, Task};
use crate::mx::{MX_WORKER, MxPoller};
use crate::record_kinds::{payload_of, without_payload};
use crate::router::{Router, Slot, Verdict};
use crate::sleeper::{Sleeper, Woken};
use crate::violation::Violation;
use isthmus_channel::{ServerSpin, WaitMode};
use isthmus_layout::DomainId;
use isthmus_layout::limits::DAEMON_PATH_FRAGMENT_BYTES_MAX;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route};
use isthmus_platform::PlatformError;
use isthmus_shm::{PeerFault, RecordBuffer};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The time that a worker sleeps before it trims idle rings, if there are any.
const TRIM_AFTER: Duration = Duration::from_millis(250);

/// The number of the daemon's own records that may wait for a domain. Beyond it the worker takes no more records from the domain.
const DAEMON_RECORDS_MAX: usize = 64;

/// The maximum payload of a record on the daemon path.
const SCRATCH_BYTES: usize = isthmus_mx_transport::FRAGMENT_BYTES_MAX;

const _: () = assert!(SCRATCH_BYTES >= DAEMON_PATH_FRAGMENT_BYTES_MAX as usize);

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Something was done: there may be more.
    Busy,
    /// There was nothing to do.
    Idle,
    /// Control sent the command to end.
    Ended,
}

/// The parts from which a worker is made.
pub(crate) struct WorkerConfig {
    pub(crate) index: WorkerIndex,
    pub(crate) mailbox: Mailbox,
    /// The mailboxes of all workers, in their order.
    pub(crate) mailboxes: Vec<MailboxSender>,
    pub(crate) wait: WaitMode,
    pub(crate) send_policy: SendPolicy,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) event_handler: EventHandler,
}

/// One worker.
pub(crate) struct Worker {
    pub(crate) index: WorkerIndex,
    pub(crate) router: Router,
    pub(crate) rings: Rings,
    pub(crate) sleeper: Sleeper,
    pub(crate) mailboxes: Vec<MailboxSender>,
    pub(crate) event_handler: EventHandler,
    pub(crate) counters: Arc<WorkerCounters>,
    mailbox: Mailbox,
    waiting: ServerSpin,
    /// A buffer for message bytes on their way between two rings.
    scratch: Box<[u8]>,
    /// The MX boards with their links to other hosts, if this worker has them.
    pub(crate) mx_poller: Option<Box<MxPoller>>,
    /// Whether tasks are being carried out.
    in_tasks: bool,
    /// Violations that were found. Their domains are not removed yet.
    pub(crate) violations: Vec<(Slot, Violation)>,
    pub(crate) ended: bool,
}

impl Worker {
    pub(crate) fn new(parts: WorkerConfig) -> Result<Self, PlatformError> {
        let mut sleeper = Sleeper::new()?;
        sleeper.add(parts.mailbox.doorbell())?;
        Ok(Self {
            index: parts.index,
            router: Router::new(parts.send_policy),
            rings: Rings::new(),
            sleeper,
            mailboxes: parts.mailboxes,
            event_handler: parts.event_handler,
            counters: parts.counters,
            mailbox: parts.mailbox,
            waiting: ServerSpin::new(parts.wait),
            scratch: vec![0; SCRATCH_BYTES].into(),
            mx_poller: (parts.index == MX_WORKER).then(Box::default),
            in_tasks: false,
            violations: Vec::new(),
            ended: false,
        })
    }

    /// Works until control sends the command to end.
    pub(crate) fn run(mut self) {
        loop {
            match self.step() {
                Step::Busy => {}
                Step::Idle => self.idle(),
                Step::Ended => break,
            }
        }
        (self.event_handler)(Event::Stopped { worker: self.index });
    }

    /// One iteration of the loop; never waits.
    pub(crate) fn step(&mut self) -> Step {
        let mut busy = self.mailbox.has_tasks();
        if busy {
            self.run_tasks();
        }
        let mut record = RecordBuffer::default();
        for _ in 0..RECORDS_PER_ROUND {
            match self.rings.poll(&mut record) {
                RingPoll::Record(slot) => {
                    if self.router.pending_daemon_records(slot) >= DAEMON_RECORDS_MAX {
                        self.rings.pause(slot);
                    }
                    self.handle(slot, &record);
                }
                RingPoll::Fault(slot, fault) => self.violation(slot, fault.into()),
                RingPoll::Nothing => {
                    bump(&self.counters.stray_ready_bits, self.rings.new_strays());
                    let router = &self.router;
                    busy |= self.rings.new_round(|slot| router.pending_daemon_records(slot) >= DAEMON_RECORDS_MAX);
                    busy |= self.rings.is_ready(); // A parked ring with its ready bit set is polled from the next step on.
                    break;
                }
            }
            busy = true;
            self.reap();
        }
        busy |= self.poll_mx();
        busy |= self.deliver_waiting();
        self.rings.flush();
        match (self.ended, busy) {
            (true, _) => Step::Ended,
            (false, true) => Step::Busy,
            (false, false) => Step::Idle,
        }
    }

    fn run_tasks(&mut self) {
        // A removal handles the domain's last records, which leads back here. Tasks that these records depend on precede the removal.
        if std::mem::replace(&mut self.in_tasks, true) {
            return;
        }
        while let Some(task) = self.mailbox.pop() {
            self.run_task(task);
            self.reap();
        }
        self.in_tasks = false;
    }

    /// One record of `from`.
    pub(crate) fn handle(&mut self, from: Slot, buffer: &RecordBuffer) {
        let (route, record) = match Record::parse(buffer.kind(), buffer.bytes(), buffer.words()) {
            Ok(parsed) => parsed,
            Err(malformed) => return self.violation(from, PeerFault::from(malformed).into()),
        };
        let mut verdict = self.router.route(from, route, &record);
        if let Verdict::Unknown { .. } = verdict {
            let Some(retried) = self.retry_after_tasks(from, route, &record) else { return };
            verdict = retried;
        }
        match verdict {
            Verdict::Forward { to, route } => self.forward(from, to, route, &record),
            Verdict::Remote { remote_peer } => self.forward_to_remote(from, remote_peer, &record),
            Verdict::RemoteCredit { remote_peer, bytes } => {
                if let Some(domain) = self.router.domain(from) {
                    self.return_remote_credit(domain, remote_peer, bytes);
                }
            }
            Verdict::ForwardToWorker { worker, to, route } => self.forward_to_worker(from, worker, to, route, &record),
            Verdict::ForwardCredit { worker, to, route, bytes } => self.post(worker, Task::Credit { to, route, bytes }),
            Verdict::Refused(reason) => self.refused(from, &record, reason),
            Verdict::Violation(violation) => self.violation(from, violation),
            Verdict::Credited | Verdict::Unknown { .. } => {}
        }
    }

    /// The receiver may have been added a moment ago.
    #[cold]
    fn retry_after_tasks(&mut self, from: Slot, route: Route, record: &Record<'_>) -> Option<Verdict> {
        let domain = self.router.domain(from);
        self.run_tasks();
        if self.router.domain(from) != domain {
            return None; // The sender itself is gone.
        }
        Some(match self.router.route(from, route, record) {
            Verdict::Unknown { .. } => self.router.refuse_unknown(from, route, record),
            verdict => verdict,
        })
    }

    fn forward(&mut self, from: Slot, to: Slot, route: Route, record: &Record<'_>) {
        self.with_payload(from, record, |worker, bytes| worker.deliver(to, route, record, bytes));
    }

    fn forward_to_remote(&mut self, from: Slot, remote_peer: DomainId, record: &Record<'_>) {
        let Some(domain) = self.router.domain(from) else { return };
        self.with_payload(from, record, |worker, bytes| worker.send_to_remote(domain, remote_peer, record, bytes));
    }

    /// Copies the bytes of an accepted record, and calls `act` with them.
    fn with_payload(&mut self, from: Slot, record: &Record<'_>, act: impl FnOnce(&mut Self, &[u8])) {
        let mut scratch = std::mem::take(&mut self.scratch);
        if let Some(len) = self.copy_payload(from, record, &mut scratch) {
            act(self, &scratch[..len as usize]);
        }
        self.scratch = scratch;
    }

    fn copy_payload(&mut self, from: Slot, record: &Record<'_>, into: &mut [u8]) -> Option<u32> {
        match self.rings.copy_payload(from, record, into) {
            Ok(len) => {
                let counters = self.rings.counters(from);
                bump(&counters.sent_records, 1);
                bump(&counters.sent_bytes, u64::from(len));
                Some(len)
            }
            Err(fault) => {
                self.violation(from, fault.into());
                None
            }
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

    fn forward_to_worker(&mut self, from: Slot, worker: WorkerIndex, to: DomainId, route: Route, record: &Record<'_>) {
        self.with_payload(from, record, |this, bytes| {
            let forwarded = ForwardedRecord {
                worker: this.index,
                to,
                route,
                record: without_payload(record),
                bytes: bytes.to_vec(),
            };
            this.post(worker, Task::ForwardedRecord(Box::new(forwarded)));
        });
    }

    /// A record from a domain of another worker.
    pub(crate) fn deliver_forwarded(&mut self, to: Slot, forwarded: &ForwardedRecord) {
        self.deliver(to, forwarded.route, &forwarded.record, &forwarded.bytes);
        if let Some(sender) = forwarded.route.peer {
            self.router.close_flow(to, sender);
        }
    }

    pub(crate) fn post(&self, worker: WorkerIndex, task: Task) {
        self.mailboxes[usize::from(worker.0)].send(task);
    }

    /// Counts a record that is not delivered, and releases its bytes.
    fn refused(&mut self, from: Slot, record: &Record<'_>, reason: Reason) {
        self.counters.drops.add(reason, 1);
        if payload_of(record).1.is_some()
            && let Err(fault) = self.rings.copy_payload(from, record, &mut self.scratch)
        {
            self.violation(from, fault.into());
        }
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
                flow.copy_first(&mut self.scratch);
                let bytes = &self.scratch[..held.len as usize];
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

    /// Waits until there may be work.
    pub(crate) fn idle(&mut self) {
        for at in 0..self.router.waiting() {
            self.rings.block(self.router.waiting_at(at));
        }
        // The domain does not announce room that it made before `block`, so try once more.
        if self.router.waiting() > 0 && self.deliver_waiting() {
            return self.rings.flush();
        }
        let (rings, mailbox, poller) = (&mut self.rings, &self.mailbox, &mut self.mx_poller);
        let mut frames = || poller.as_mut().is_some_and(|poller| poller.is_ready());
        if !self.waiting.spin(|| rings.is_ready() || mailbox.has_tasks() || frames())
            && self.waiting.wait() != WaitMode::Spin
        {
            self.sleep();
        }
    }

    fn sleep(&mut self) {
        let mut frames = true;
        if self.rings.begin_sleep() & self.mailbox.begin_sleep() {
            bump(&self.counters.sleeps, 1);
            let trim = self.rings.wants_trim().then_some(TRIM_AFTER);
            let due = self.mx_poller.as_mut().and_then(|poller| poller.before_sleep(&mut self.sleeper));
            let first = due.into_iter().chain(trim).min();
            let woken = self.sleeper.sleep(first);
            frames = woken == Woken::Frames;
            match woken {
                Woken::Rung | Woken::Frames => bump(&self.counters.wakeups, 1),
                Woken::Timer if first != trim => bump(&self.counters.timeouts, 1),
                Woken::Timer => {
                    bump(&self.counters.timeouts, 1);
                    self.trim();
                }
            }
        }
        self.mailbox.end_sleep();
        self.rings.end_sleep();
        if let Some(poller) = &mut self.mx_poller {
            poller.end_sleep(frames);
        }
    }

    /// Trims idle rings, after a sleep in which nothing happened.
    fn trim(&mut self) {
        if let Some((slot, fault)) = self.rings.trim() {
            self.violation(slot, fault.into());
        }
    }
}
