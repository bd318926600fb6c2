//! A worker: one thread, its domains, and the loop between their rings.
//!
//! ```text
//!   step:  tasks of control and other workers
//!          up to 64 records: hear ─► router ─► another ring │ a lane │ another worker │ back
//!          what waits for room: try again
//!          wake those who got something
//!   then:  spin as long as that has been worth it, then sleep on the doorbells
//! ```
//!
//! It knows the router's verdicts and not their reasons. Nothing that a domain writes stops it: a breach ends that domain's ring.

use crate::breach::Breach;
use crate::command::{Event, Listener, Permit, WorkerIndex};
use crate::counters::{WorkerCounters, bump};
use crate::kinds::{bare, payload};
use crate::mailbox::{Mailbox, Parcel, Post, Task};
use crate::party::Next;
use crate::rings::{BATCH, Heard, Rings};
use crate::router::{Router, Slot, Verdict};
use crate::sleeper::{Sleeper, Woken};
use crate::wire::{WIRE_WORKER, Wire};
use isthmus_channel::{Serving, Wait};
use isthmus_layout::DomainId;
use isthmus_layout::limits::ORDINARY_FRAGMENT_BYTES_MAX;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route};
use isthmus_platform::PlatformError;
use isthmus_shm::{PeerFault, RecordBuffer};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How long a worker sleeps before it looks for pages to give back, where there may be some.
const TRIM_AFTER: Duration = Duration::from_millis(250);

/// Answers that may wait for a domain which does not read, before nothing more is taken from it.
const ANSWERS_MAX: usize = 64;

/// No record of the ordinary path carries more.
const BOUNCE_BYTES: usize = isthmus_gateway::PIECE_BYTES_MAX;

const _: () = assert!(BOUNCE_BYTES >= ORDINARY_FRAGMENT_BYTES_MAX as usize);

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Something was done: there may be more.
    Busy,
    /// Nothing was there to do.
    Idle,
    /// Control told the worker to end.
    Ended,
}

/// What a worker is made of.
pub(crate) struct Parts {
    pub(crate) index: WorkerIndex,
    pub(crate) mailbox: Mailbox,
    /// Of all workers, in their order.
    pub(crate) posts: Vec<Post>,
    pub(crate) wait: Wait,
    pub(crate) permit: Permit,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) listener: Listener,
}

/// One worker.
pub(crate) struct Worker {
    pub(crate) index: WorkerIndex,
    pub(crate) router: Router,
    pub(crate) rings: Rings,
    pub(crate) sleeper: Sleeper,
    pub(crate) posts: Vec<Post>,
    pub(crate) listener: Listener,
    pub(crate) counters: Arc<WorkerCounters>,
    mailbox: Mailbox,
    waiting: Serving,
    /// Where message bytes lie between two rings.
    bounce: Box<[u8]>,
    /// Boards on links to other hosts, where this is the worker that has them.
    pub(crate) wire: Option<Box<Wire>>,
    /// Tasks are being carried out.
    taking: bool,
    /// Who broke the contract in what is being done.
    pub(crate) broken: Vec<(Slot, Breach)>,
    pub(crate) ended: bool,
}

impl Worker {
    pub(crate) fn new(parts: Parts) -> Result<Self, PlatformError> {
        let mut sleeper = Sleeper::new()?;
        sleeper.add(parts.mailbox.doorbell())?;
        Ok(Self {
            index: parts.index,
            router: Router::new(parts.permit),
            rings: Rings::new(),
            sleeper,
            posts: parts.posts,
            listener: parts.listener,
            counters: parts.counters,
            mailbox: parts.mailbox,
            waiting: Serving::new(parts.wait),
            bounce: vec![0; BOUNCE_BYTES].into(),
            wire: (parts.index == WIRE_WORKER).then(Box::default),
            taking: false,
            broken: Vec::new(),
            ended: false,
        })
    }

    /// Works until control tells it to end.
    pub(crate) fn run(mut self) {
        loop {
            match self.step() {
                Step::Busy => {}
                Step::Idle => self.idle(),
                Step::Ended => break,
            }
        }
        (self.listener)(Event::Stopped { worker: self.index });
    }

    /// One turn of the loop; never waits.
    pub(crate) fn step(&mut self) -> Step {
        let mut busy = self.mailbox.any();
        if busy {
            self.take_tasks();
        }
        let mut record = RecordBuffer::default();
        for _ in 0..BATCH {
            match self.rings.poll(&mut record) {
                Heard::Record(slot) => {
                    if self.router.answers(slot) >= ANSWERS_MAX {
                        self.rings.rest(slot);
                    }
                    self.handle(slot, &record);
                }
                Heard::Fault(slot, fault) => self.breach(slot, fault.into()),
                Heard::Stray => bump(&self.counters.stray_marks, 1),
                Heard::Nothing => {
                    let router = &self.router;
                    busy |= self.rings.new_round(|slot| router.answers(slot) >= ANSWERS_MAX);
                    busy |= self.rings.is_ready(); // A parked ring that was marked is heard from the next look on.
                    break;
                }
            }
            busy = true;
            self.bury();
        }
        busy |= self.turn_wire();
        busy |= self.deliver_waiting();
        self.rings.flush();
        match (self.ended, busy) {
            (true, _) => Step::Ended,
            (false, true) => Step::Busy,
            (false, false) => Step::Idle,
        }
    }

    fn take_tasks(&mut self) {
        // A domain's last records, taken when it is removed, lead back here; what they could learn was told before the removal.
        if std::mem::replace(&mut self.taking, true) {
            return;
        }
        while let Some(task) = self.mailbox.take() {
            self.carry_out(task);
            self.bury();
        }
        self.taking = false;
    }

    /// One record of `from`.
    pub(crate) fn handle(&mut self, from: Slot, buffer: &RecordBuffer) {
        let (route, record) = match Record::parse(buffer.kind(), buffer.bytes(), buffer.words()) {
            Ok(parsed) => parsed,
            Err(malformed) => return self.breach(from, PeerFault::from(malformed).into()),
        };
        let mut verdict = self.router.route(from, route, &record);
        if let Verdict::Unknown { .. } = verdict {
            let Some(ask_again) = self.verdict_with_newer_tasks(from, route, &record) else { return };
            verdict = ask_again;
        }
        match verdict {
            Verdict::Forward { to, route } => self.forward(from, to, route, &record),
            Verdict::Wire { stranger } => self.forward_to_wire(from, stranger, &record),
            Verdict::WireCredit { stranger, bytes } => {
                if let Some(domain) = self.router.domain(from) {
                    self.give_to_wire(domain, stranger, bytes);
                }
            }
            Verdict::HandOver { worker, to, route } => self.hand_over(from, worker, to, route, &record),
            Verdict::CreditOver { worker, to, route, bytes } => self.post(worker, Task::Credit { to, route, bytes }),
            Verdict::Refused(reason) => self.refused(from, &record, reason),
            Verdict::Breach(breach) => self.breach(from, breach),
            Verdict::Credited | Verdict::Unknown { .. } => {}
        }
    }

    /// The receiver may have been added a moment ago.
    #[cold]
    fn verdict_with_newer_tasks(&mut self, from: Slot, route: Route, record: &Record<'_>) -> Option<Verdict> {
        let domain = self.router.domain(from);
        self.take_tasks();
        if self.router.domain(from) != domain {
            return None; // It is the sender that is gone.
        }
        Some(match self.router.route(from, route, record) {
            Verdict::Unknown { .. } => self.router.refuse_unknown(from, route, record),
            verdict => verdict,
        })
    }

    fn forward(&mut self, from: Slot, to: Slot, route: Route, record: &Record<'_>) {
        self.with_bytes(from, record, |worker, bytes| worker.deliver(to, route, record, bytes));
    }

    fn forward_to_wire(&mut self, from: Slot, stranger: DomainId, record: &Record<'_>) {
        let Some(domain) = self.router.domain(from) else { return };
        self.with_bytes(from, record, |worker, bytes| worker.take_for_wire(domain, stranger, record, bytes));
    }

    /// Takes the bytes of a record that was accepted, and does something with them.
    fn with_bytes(&mut self, from: Slot, record: &Record<'_>, act: impl FnOnce(&mut Self, &[u8])) {
        let mut bounce = std::mem::take(&mut self.bounce);
        if let Some(len) = self.fetch(from, record, &mut bounce) {
            act(self, &bounce[..len as usize]);
        }
        self.bounce = bounce;
    }

    fn fetch(&mut self, from: Slot, record: &Record<'_>, into: &mut [u8]) -> Option<u32> {
        match self.rings.fetch(from, record, into) {
            Ok(len) => {
                let counters = self.rings.counters(from);
                bump(&counters.sent_records, 1);
                bump(&counters.sent_bytes, u64::from(len));
                Some(len)
            }
            Err(fault) => {
                self.breach(from, fault.into());
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
                    self.router.delivered(to, route.peer.expect("the router wrote who sent it"), len);
                    return self.count_received(to, len);
                }
                Ok(false) => {}
                Err(fault) => self.breach(to, fault.into()), // And hold: the sender hears when `to` is buried.
            }
        }
        bump(&self.counters.held_records, 1);
        let greedy = self.router.hold(to, route, record, bytes);
        self.show_held(to);
        if let Some((slot, breach)) = greedy {
            self.breach(slot, breach);
        }
    }

    fn count_received(&self, to: Slot, len: u32) {
        bump(&self.counters.records, 1);
        bump(&self.counters.bytes, u64::from(len));
        let counters = self.rings.counters(to);
        bump(&counters.received_records, 1);
        bump(&counters.received_bytes, u64::from(len));
    }

    fn show_held(&self, slot: Slot) {
        self.rings.counters(slot).held_bytes.store(self.router.held_cost(slot), Relaxed);
        self.counters.held_bytes.store(self.router.all_held_cost(), Relaxed);
    }

    fn hand_over(&mut self, from: Slot, worker: WorkerIndex, to: DomainId, route: Route, record: &Record<'_>) {
        self.with_bytes(from, record, |this, bytes| {
            let parcel = Parcel { worker: this.index, to, route, record: bare(record), bytes: bytes.to_vec() };
            this.post(worker, Task::Parcel(Box::new(parcel)));
        });
    }

    /// A record from a domain of another worker.
    pub(crate) fn take_parcel(&mut self, to: Slot, parcel: &Parcel) {
        self.deliver(to, parcel.route, &parcel.record, &parcel.bytes);
        if let Some(sender) = parcel.route.peer {
            self.router.close_lane(to, sender);
        }
    }

    pub(crate) fn post(&self, worker: WorkerIndex, task: Task) {
        self.posts[usize::from(worker.0)].send(task);
    }

    /// A record that reaches nobody: its bytes are given back unread.
    fn refused(&mut self, from: Slot, record: &Record<'_>, reason: Reason) {
        self.counters.drops.add(reason, 1);
        if payload(record).1.is_some()
            && let Err(fault) = self.rings.fetch(from, record, &mut self.bounce)
        {
            self.breach(from, fault.into());
        }
    }

    /// Tries again for those who had no room. True if something moved.
    pub(crate) fn deliver_waiting(&mut self) -> bool {
        let mut moved = false;
        let mut at = 0;
        while at < self.router.waiting() {
            let slot = self.router.waiting_at(at);
            moved |= self.drain(slot);
            if self.router.is_clear(slot) {
                self.router.unlist(at);
            } else {
                at += 1;
            }
        }
        self.bury();
        moved
    }

    /// Moves what waits for `to` into its ring, as far as there is room, a batch at most. True if something moved.
    fn drain(&mut self, to: Slot) -> bool {
        for moved in 0..BATCH {
            match self.drain_one(to) {
                Ok(true) => {}
                Ok(false) => return moved > 0,
                Err(fault) => {
                    self.breach(to, fault.into());
                    return moved > 0;
                }
            }
        }
        true
    }

    fn drain_one(&mut self, to: Slot) -> Result<bool, PeerFault> {
        let held = match self.router.next(to) {
            None => return Ok(false),
            Some(Next::Answer(answer)) => {
                if !self.rings.push(to, answer.route, &answer.record, &[])? {
                    return Ok(false);
                }
                self.count_answer(to, &answer.record);
                None
            }
            Some(Next::Held(held, lane)) => {
                if !self.rings.has_room(to, held.len)? {
                    return Ok(false);
                }
                lane.copy_first(&mut self.bounce);
                let bytes = &self.bounce[..held.len as usize];
                if !self.rings.push(to, held.route, &held.record, bytes)? {
                    return Ok(false);
                }
                Some(held.len)
            }
        };
        self.router.sent(to);
        if let Some(len) = held {
            self.count_received(to, len);
            self.show_held(to);
        }
        Ok(true)
    }

    fn count_answer(&self, to: Slot, record: &Record<'_>) {
        if let Record::Bounce { .. } = record {
            bump(&self.counters.bounces, 1);
            bump(&self.rings.counters(to).bounces, 1);
        } else {
            bump(&self.counters.credits, 1);
        }
    }

    /// Waits until there is something to do, or may be.
    pub(crate) fn idle(&mut self) {
        for at in 0..self.router.waiting() {
            self.rings.block(self.router.waiting_at(at));
        }
        // Room made before it was asked for is not announced, so look again.
        if self.router.waiting() > 0 && self.deliver_waiting() {
            return self.rings.flush();
        }
        let (rings, mailbox, wire) = (&mut self.rings, &self.mailbox, &mut self.wire);
        let mut frames = || wire.as_mut().is_some_and(|wire| wire.is_ready());
        if !self.waiting.spin(|| rings.is_ready() || mailbox.any() || frames()) && self.waiting.wait() != Wait::Spin {
            self.sleep();
        }
    }

    fn sleep(&mut self) {
        let mut frames = true;
        if self.rings.sleep() & self.mailbox.sleep() {
            bump(&self.counters.sleeps, 1);
            let trim = self.rings.wants_trim().then_some(TRIM_AFTER);
            let due = self.wire.as_mut().and_then(|wire| wire.before_sleep(&mut self.sleeper));
            let first = due.into_iter().chain(trim).min();
            let woken = self.sleeper.sleep(first);
            frames = woken == Woken::Frames;
            match woken {
                Woken::Rung | Woken::Frames => bump(&self.counters.wake_ups, 1),
                Woken::Timer if first != trim => bump(&self.counters.timeouts, 1),
                Woken::Timer => {
                    bump(&self.counters.timeouts, 1);
                    self.trim();
                }
            }
        }
        self.mailbox.awake();
        self.rings.awake();
        if let Some(wire) = &mut self.wire {
            wire.awake(frames);
        }
    }

    /// Nothing happened for a while: idle rings give their pages back.
    fn trim(&mut self) {
        if let Some((slot, fault)) = self.rings.trim() {
            self.breach(slot, fault.into());
        }
    }
}
