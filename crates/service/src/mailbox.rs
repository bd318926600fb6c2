//! The queue of a worker: commands of control, and records of domains that another worker serves.
//!
//! The queue is the standard library's channel. Two flags beside it avoid a system call when the worker is awake. A sender sets
//! `posted`, then checks whether the worker sleeps. The worker sets `asleep`, then checks whether a task was posted.

use crate::command::{Command, WorkerIndex};
use crate::router::BounceInfo;
use isthmus_layout::DomainId;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route};
use isthmus_platform::{Doorbell, PlatformError, Ring};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};

/// One thing to do.
#[derive(Debug)]
pub(crate) enum Task {
    /// A command for this worker, or for all.
    Command(Command),
    /// Another worker serves a new domain, or has a new remote peer.
    RemoteDomainAdded { domain: DomainId, worker: WorkerIndex },
    /// A domain of another worker, or a remote peer, is gone.
    RemoteDomainRemoved { domain: DomainId, reason: Reason },
    /// A record from a domain of another worker to a domain of this one.
    ForwardedRecord(Box<ForwardedRecord>),
    /// `route.peer` gives credit back to `to`.
    Credit { to: DomainId, route: Route, bytes: u32 },
    /// A record of `to` was not delivered.
    Bounce { to: DomainId, route: Route, bounce: BounceInfo, reason: Reason },
}

/// A record on its way from one worker to another.
#[derive(Debug)]
pub(crate) struct ForwardedRecord {
    /// The worker it comes from.
    pub(crate) worker: WorkerIndex,
    pub(crate) to: DomainId,
    /// The route, as the receiver will see it.
    pub(crate) route: Route,
    pub(crate) record: Record<'static>,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Debug)]
struct Flags {
    posted: AtomicBool,
    asleep: AtomicBool,
    doorbell: Doorbell,
}

/// The worker's side.
#[derive(Debug)]
pub(crate) struct Mailbox {
    tasks: Receiver<Task>,
    flags: Arc<Flags>,
}

/// The side of control and of the other workers.
#[derive(Clone, Debug)]
pub(crate) struct MailboxSender {
    tasks: Sender<Task>,
    flags: Arc<Flags>,
}

/// Creates a mailbox and returns both sides.
pub(crate) fn mailbox() -> Result<(MailboxSender, Mailbox), PlatformError> {
    let (sender, receiver) = channel();
    let doorbell = Doorbell::new()?;
    let flags = Arc::new(Flags { posted: AtomicBool::new(false), asleep: AtomicBool::new(false), doorbell });
    Ok((MailboxSender { tasks: sender, flags: flags.clone() }, Mailbox { tasks: receiver, flags }))
}

impl MailboxSender {
    /// Posts a task. A task for a worker that has ended is dropped.
    pub(crate) fn send(&self, task: Task) {
        let _ = self.tasks.send(task);
        self.flags.posted.store(true, SeqCst); // A, with B in `begin_sleep`: either we see it asleep, or it sees what was posted.
        if self.flags.asleep.swap(false, SeqCst) {
            self.flags.doorbell.ring();
        }
    }
}

impl Mailbox {
    /// The doorbell that the worker sleeps on.
    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.flags.doorbell
    }

    /// Returns whether a task was posted since the last [`Self::pop`].
    pub(crate) fn has_tasks(&self) -> bool {
        self.flags.posted.load(SeqCst)
    }

    /// Takes the first task. False in [`Self::has_tasks`] from then on until another is posted, so take all.
    pub(crate) fn pop(&mut self) -> Option<Task> {
        self.flags.posted.store(false, SeqCst); // Before looking: what is posted from now on is seen by the next `has_tasks`.
        self.tasks.try_recv().ok()
    }

    /// Before sleeping. True if nothing was posted; [`Self::end_sleep`] follows in any case.
    pub(crate) fn begin_sleep(&self) -> bool {
        self.flags.asleep.store(true, SeqCst); // B, with A in `send`.
        !self.has_tasks()
    }

    /// Ends the sleep of the worker.
    pub(crate) fn end_sleep(&self) {
        self.flags.asleep.store(false, SeqCst);
    }
}
