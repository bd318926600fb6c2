//! The border between control and the data plane: what control tells the workers, and what they tell it.
//!
//! ```text
//!   control ── Command ──► Service ──► the worker's queue, its doorbell ──► worker
//!   control ◄────────────────────────── Event (a closure, called on the worker's thread) ──┘
//!   control ◄── reads at any time ───── counters (Arc, atomics)
//! ```
//!
//! Commands to one worker are carried out in the order in which they were sent. A domain is known to all workers before any record
//! which could only be sent because control told somebody of it.

use crate::breach::Breach;
use crate::counters::DomainCounters;
use crate::wire::{MxBoardNumber, MxConnect, MxEndpoint, NewCapture, NewMxBoard};
use isthmus_channel::Ends;
use isthmus_layout::board::Place;
use isthmus_layout::control::Owner;
use isthmus_layout::reason::Reason;
use isthmus_layout::{DomainId, NicId, RegionId};
use isthmus_platform::Doorbell;
use isthmus_shm::Window;
use isthmus_shm::rehome::PeerRegion;
use std::fmt;
use std::sync::Arc;

/// One of the workers, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerIndex(pub u8);

/// A board of a worker: there domains of one owner mark their rings. Numbered by control, for each worker on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BoardNumber(pub u32);

/// A domain that has attached.
#[derive(Debug)]
pub struct NewDomain {
    /// Its number.
    pub domain: DomainId,
    /// Whose it is: when too much is held, the owner who caused the most pays.
    pub owner: Owner,
    /// The daemon's end of the domain ring. The daemon is the listener: it sends on `Direction::One`.
    pub ends: Ends,
    /// The board that the domain marks: one of the worker that serves it ([`Service::home`](crate::Service::home)), added before.
    pub board: BoardNumber,
    /// The domain's place on it; no other domain's as long as this one is there.
    pub place: Place,
    /// Where the worker counts what it does for the domain; control keeps a copy to read.
    pub counters: Arc<DomainCounters>,
}

/// Whether the first domain may send messages to the second. Asked on a worker's thread, once for each pair, and again after
/// each [`Command::Permit`]: it must not wait for anything. What only answers a message (a pull, an acknowledgement, a bounce, a credit)
/// passes where the message was permitted, either way.
#[derive(Clone)]
pub struct Permit(Arc<dyn Fn(DomainId, DomainId) -> Result<(), Reason> + Send + Sync>);

impl Permit {
    /// A policy as it stands now.
    pub fn new(policy: impl Fn(DomainId, DomainId) -> Result<(), Reason> + Send + Sync + 'static) -> Self {
        Self(Arc::new(policy))
    }

    /// Everybody may talk to everybody.
    pub fn everything() -> Self {
        Self::new(|_, _| Ok(()))
    }

    pub(crate) fn ask(&self, from: DomainId, to: DomainId) -> Result<(), Reason> {
        (self.0)(from, to)
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Permit(..)")
    }
}

/// What control tells the workers.
#[derive(Debug)]
pub enum Command {
    /// A board of `worker`, with the doorbell on which the worker sleeps for it.
    AddBoard {
        /// Which worker.
        worker: WorkerIndex,
        /// Its number. Not in use.
        board: BoardNumber,
        /// The board's memory.
        memory: Window,
        /// The worker's own doorbell, which the owner's domains ring.
        doorbell: Doorbell,
    },
    /// No domain of that owner is left. Their records have been taken or dropped.
    RemoveBoard {
        /// Which worker.
        worker: WorkerIndex,
        /// Which of its boards.
        board: BoardNumber,
    },
    /// A domain has attached: from now on its ring is served and others reach it.
    Add(Box<NewDomain>),
    /// A domain is gone, or is to be cut off. What it had put into its ring before is still taken and delivered; what is held for it goes back to
    /// the senders with `reason`. [`Event::Removed`] follows, once; also where a fault has removed it already.
    Remove {
        /// Which.
        domain: DomainId,
        /// How it went: [`Reason::PeerDetached`], [`Reason::PeerVanished`], …
        reason: Reason,
    },
    /// A board of MX, with its links to other hosts.
    AddMxBoard(Box<NewMxBoard>),
    /// A domain has an endpoint number on such a board.
    OpenMx(Box<MxEndpoint>),
    /// It has it no more. What it has sent is still brought to where it belongs.
    CloseMx {
        /// Which board.
        board: MxBoardNumber,
        /// Which number.
        endpoint: u8,
    },
    /// A domain connects to an endpoint of another host. [`Event::MxConnected`] answers.
    ConnectMx(MxConnect),
    /// A domain lets messages to somebody on another host be sent straight out of its memory.
    GrantStranger {
        /// For whom.
        stranger: DomainId,
        /// Its name for the memory.
        region: RegionId,
        /// The memory.
        memory: Arc<PeerRegion>,
    },
    /// It takes that back.
    RevokeStranger {
        /// For whom.
        stranger: DomainId,
        /// Which memory.
        region: RegionId,
    },
    /// Frames of MX boards are copied for somebody from now on.
    Capture(Box<NewCapture>),
    /// The policy changed.
    Permit(Permit),
    /// End all workers. What is held is dropped; rings stay as they are.
    Shutdown,
}

/// What a worker tells control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A domain broke the contract. Its ring is closed already and counted; what others held for it went back to them.
    /// Control takes the domain down and sends [`Command::Remove`], as for any other end.
    Fault {
        /// Which domain.
        domain: DomainId,
        /// How.
        breach: Breach,
    },
    /// The answer to [`Command::Remove`]: the worker has let go of the domain's ring, window and doorbell, and its place is free.
    Removed {
        /// Which domain.
        domain: DomainId,
    },
    /// The answer to [`Command::ConnectMx`]: by which number the other endpoint is reached.
    MxConnected {
        /// Of the command.
        request: u64,
        /// Who it is, or why nobody is.
        outcome: Result<DomainId, Reason>,
    },
    /// A domain knows somebody on another host now, by a number that nobody had before. It comes before anything that the
    /// domain gets of it.
    MxMet {
        /// The number.
        stranger: DomainId,
        /// Whose.
        domain: DomainId,
        /// The board there.
        nic: NicId,
        /// The endpoint there.
        number: u8,
    },
    /// It is nobody any more. The domain has everything that came of it before.
    MxParted {
        /// The number.
        stranger: DomainId,
        /// Whose.
        domain: DomainId,
        /// Why.
        reason: Reason,
    },
    /// The worker has ended.
    Stopped {
        /// Which.
        worker: WorkerIndex,
    },
}

/// Hears the workers' events. Called on their threads: it passes the event on (to a queue that wakes control) and never waits.
pub type Listener = Box<dyn Fn(Event) + Send>;
