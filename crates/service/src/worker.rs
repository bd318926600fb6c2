//! A worker: one thread, its domains, its pollers, and the loop between them.
//!
//! ```text
//!   step:  tasks of control and other workers
//!          up to 64 records: poll ─► router ─► another ring │ a flow │ another worker │ a poller │ back
//!          pollers: what is ready or due
//!          what waits for room: try again
//!          wake the domains that got records
//!   then:  spin as long as that has paid off, then sleep on the doorbells and sources
//! ```
//!
//! The worker carries out the router's verdicts and does not know their reasons. Nothing that a domain writes stops the worker: a
//! violation ends that domain's ring. What delivers to a domain is in [`Shared`], because pollers use it as well.

use crate::command::{Event, EventHandler, SendPolicy, WorkerIndex};
use crate::counters::{WorkerCounters, bump};
use crate::domain_rings::{RECORDS_PER_ROUND, RingPoll};
use crate::mailbox::{Mailbox, MailboxSender, Task};
use crate::pollers::Pollers;
use crate::router::{Slot, Verdict};
use crate::shared::{PayloadBuffer, Shared, payload_buffer};
use crate::sleeper::Woken;
use isthmus_channel::{ServerSpin, WaitMode};
use isthmus_layout::record::{Record, Route};
use isthmus_platform::PlatformError;
use isthmus_shm::{PeerFault, RecordBuffer};
use std::sync::Arc;
use std::time::Duration;

/// The time that a worker sleeps before it trims idle rings, if there are any.
const TRIM_AFTER: Duration = Duration::from_millis(250);

/// The number of the daemon's own records that may wait for a domain. Beyond it the worker takes no more records from the domain.
const DAEMON_RECORDS_MAX: usize = 64;

/// The number of steps from one check of the sources to the next, while the worker has other work. A worker without work checks them
/// all the time.
const STEPS_PER_CHECK: u8 = 4;

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
    pub(crate) shared: Shared,
    pub(crate) pollers: Pollers,
    mailbox: Mailbox,
    waiting: ServerSpin,
    /// The payload of the record that is handled.
    payload: PayloadBuffer,
    /// The number of steps before the sources are checked.
    steps_to_check: u8,
    /// Whether tasks are being carried out.
    in_tasks: bool,
    pub(crate) ended: bool,
}

impl Worker {
    pub(crate) fn new(parts: WorkerConfig) -> Result<Self, PlatformError> {
        let WorkerConfig { index, mailbox, mailboxes, wait, send_policy, counters, event_handler } = parts;
        let mut shared = Shared::new(index, send_policy, counters, mailboxes, event_handler)?;
        shared.sleeper.add(mailbox.doorbell())?;
        Ok(Self {
            shared,
            pollers: Pollers::default(),
            mailbox,
            waiting: ServerSpin::new(wait),
            payload: payload_buffer(),
            steps_to_check: 0,
            in_tasks: false,
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
        self.shared.emit_event(Event::Stopped { worker: self.shared.index });
    }

    /// One iteration of the loop; never waits.
    pub(crate) fn step(&mut self) -> Step {
        let mut busy = self.mailbox.has_tasks();
        if busy {
            self.run_tasks();
        }
        busy |= self.handle_records();
        self.check_sources();
        busy |= self.pollers.poll(&mut self.shared);
        busy |= self.shared.deliver_waiting();
        self.shared.rings.flush();
        match (self.ended, busy) {
            (true, _) => Step::Ended,
            (false, true) => Step::Busy,
            (false, false) => Step::Idle,
        }
    }

    /// Handles a batch of the domains' records. True if there was one, or there may be more.
    fn handle_records(&mut self) -> bool {
        let mut busy = false;
        let mut record = RecordBuffer::default();
        for _ in 0..RECORDS_PER_ROUND {
            let shared = &mut self.shared;
            match shared.rings.poll(&mut record) {
                RingPoll::Record(slot) => {
                    if shared.router.pending_daemon_records(slot) >= DAEMON_RECORDS_MAX {
                        shared.rings.pause(slot);
                    }
                    self.handle(slot, &record);
                }
                RingPoll::Fault(slot, fault) => shared.violation(slot, fault.into()),
                RingPoll::Nothing => {
                    bump(&shared.counters.stray_ready_bits, shared.rings.new_strays());
                    let router = &shared.router;
                    busy |= shared.rings.new_round(|slot| router.pending_daemon_records(slot) >= DAEMON_RECORDS_MAX);
                    busy |= shared.rings.is_ready(); // A parked ring with its ready bit set is polled from the next step on.
                    break;
                }
            }
            busy = true;
            self.shared.reap();
        }
        busy
    }

    /// Finds ready sources, in one of [`STEPS_PER_CHECK`] steps. Sources that have more than one receive takes stay ready, and a worker
    /// without work checks in [`Self::idle`].
    fn check_sources(&mut self) {
        // Sources that became ready while others had more than their turn are served next.
        let is_due = std::mem::take(&mut self.shared.sleeper.is_check_due);
        match self.steps_to_check.checked_sub(1).filter(|_| !is_due) {
            Some(steps) => self.steps_to_check = steps,
            None => {
                self.pollers.check_sources(&mut self.shared.sleeper);
                self.steps_to_check = STEPS_PER_CHECK - 1;
            }
        }
    }

    fn run_tasks(&mut self) {
        // A removal handles the domain's last records, which leads back here. Tasks that these records depend on precede the removal.
        if std::mem::replace(&mut self.in_tasks, true) {
            return;
        }
        while let Some(task) = self.mailbox.pop() {
            self.run_task(task);
            self.shared.reap();
        }
        self.in_tasks = false;
    }

    /// One record of `from`.
    pub(crate) fn handle(&mut self, from: Slot, buffer: &RecordBuffer) {
        let (route, record) = match Record::parse(buffer.kind(), buffer.bytes(), buffer.words()) {
            Ok(parsed) => parsed,
            Err(malformed) => return self.shared.violation(from, PeerFault::from(malformed).into()),
        };
        let mut verdict = self.shared.router.route(from, route, &record);
        if let Verdict::Unknown { .. } = verdict {
            let Some(retried) = self.retry_after_tasks(from, route, &record) else { return };
            verdict = retried;
        }
        self.carry_out(from, &record, verdict);
    }

    /// The receiver may have been added a moment ago.
    #[cold]
    fn retry_after_tasks(&mut self, from: Slot, route: Route, record: &Record<'_>) -> Option<Verdict> {
        let domain = self.shared.router.domain(from);
        self.run_tasks();
        if self.shared.router.domain(from) != domain {
            return None; // The sender itself is gone.
        }
        Some(match self.shared.router.route(from, route, record) {
            Verdict::Unknown { .. } => self.shared.router.refuse_unknown(from, route, record),
            verdict => verdict,
        })
    }

    fn carry_out(&mut self, from: Slot, record: &Record<'_>, verdict: Verdict) {
        let Self { shared, pollers, payload, .. } = self;
        match verdict {
            Verdict::Forward { to, route } => {
                if let Some(bytes) = shared.copy_payload(from, record, payload) {
                    shared.deliver(to, route, record, bytes);
                }
            }
            Verdict::Remote { poller, remote_peer } => {
                let Some(domain) = shared.router.domain(from) else { return };
                if let Some(bytes) = shared.copy_payload(from, record, payload) {
                    pollers.send_to_remote(poller, shared, (domain, remote_peer), record, bytes);
                }
            }
            Verdict::RemoteCredit { poller, remote_peer, bytes } => {
                if let Some(domain) = shared.router.domain(from) {
                    pollers.return_remote_credit(poller, shared, (domain, remote_peer), bytes);
                }
            }
            Verdict::ForwardToWorker { worker, to, route } => {
                if let Some(bytes) = shared.copy_payload(from, record, payload) {
                    shared.forward_to_worker(worker, to, route, record, bytes);
                }
            }
            Verdict::ForwardCredit { worker, to, route, bytes } => {
                shared.post(worker, Task::Credit { to, route, bytes })
            }
            Verdict::Refused(reason) => shared.refused(from, record, reason, payload),
            Verdict::Violation(violation) => shared.violation(from, violation),
            Verdict::Credited | Verdict::Unknown { .. } => {}
        }
    }

    /// Waits until there may be work.
    pub(crate) fn idle(&mut self) {
        let shared = &mut self.shared;
        for at in 0..shared.router.waiting() {
            shared.rings.block(shared.router.waiting_at(at));
        }
        // The domain does not announce room that it made before `block`, so try once more.
        if shared.router.waiting() > 0 && shared.deliver_waiting() {
            return shared.rings.flush();
        }
        let (mailbox, pollers) = (&self.mailbox, &mut self.pollers);
        let carries_stream = pollers.carry_stream();
        let ready = || shared.rings.is_ready() || mailbox.has_tasks() || pollers.check_sources(&mut shared.sleeper);
        if (carries_stream || !self.waiting.spin(ready)) && self.waiting.wait() != WaitMode::Spin {
            self.sleep();
        }
        self.steps_to_check = STEPS_PER_CHECK - 1;
    }

    fn sleep(&mut self) {
        let Self { shared, pollers, .. } = self;
        if shared.rings.begin_sleep() & self.mailbox.begin_sleep() {
            bump(&shared.counters.sleeps, 1);
            let trim = shared.rings.wants_trim().then_some(TRIM_AFTER);
            let due = pollers.before_sleep(&mut shared.sleeper);
            let first = due.into_iter().chain(trim).min();
            match shared.sleeper.sleep(first) {
                Woken::Event => bump(&shared.counters.wakeups, 1),
                Woken::Timer if first != trim => bump(&shared.counters.timeouts, 1),
                Woken::Timer => {
                    bump(&shared.counters.timeouts, 1);
                    shared.trim();
                }
            }
            pollers.take_events(&mut shared.sleeper);
        }
        self.mailbox.end_sleep();
        shared.rings.end_sleep();
    }
}
