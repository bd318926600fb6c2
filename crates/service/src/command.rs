//! The interface between control and the data plane: commands of control, and events of the workers.
//!
//! ```text
//!   control ── Command ──► Service ──► the worker's queue, its doorbell ──► worker
//!   control ◄────────────────────────── Event (a closure, called on the worker's thread) ──┘
//!   control ◄── reads at any time ───── counters (Arc, atomics)
//! ```
//!
//! Commands to one worker are carried out in the order in which they were sent. A domain is known to all workers before any record
//! which could only be sent because control announced it.

use crate::counters::DomainCounters;
use crate::mx::MxCommand;
use crate::violation::Violation;
use isthmus_channel::ChannelParts;
use isthmus_layout::control::Owner;
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::reason::Reason;
use isthmus_layout::{DomainId, NicId, RegionId};
use isthmus_platform::Doorbell;
use isthmus_shm::SharedMapping;
use isthmus_shm::regcache::PeerRegion;
use std::fmt;
use std::sync::Arc;

/// One of the workers, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerIndex(pub u8);

/// A ready map of a worker: domains of one owner set the ready bits of their rings in it. Numbered by control, for each worker on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerReadyMapId(pub u32);

/// A domain that has attached.
#[derive(Debug)]
pub struct NewDomain {
    /// Its number.
    pub domain: DomainId,
    /// The user that the domain belongs to. When too much is held, the owner with the largest backlog loses a domain.
    pub owner: Owner,
    /// The daemon's end of the domain ring. The daemon is the listener: it sends on `Direction::One`.
    pub parts: ChannelParts,
    /// The ready map in which the domain sets its bit, of the worker that serves it ([`Service::worker_of`](crate::Service::worker_of)).
    /// Added before.
    pub ready_map: WorkerReadyMapId,
    /// The domain's bit in it; no other domain's as long as this one is there.
    pub ready_bit: ReadyBit,
    /// Where the worker counts what it does for the domain; control keeps a copy to read.
    pub counters: Arc<DomainCounters>,
}

/// Whether the first domain may send messages to the second. Asked on a worker's thread, once for each pair, and again after
/// each [`Command::SendPolicy`]: it must not wait for anything. What only answers a message (a pull, an acknowledgement, a bounce, a credit)
/// passes where the message was permitted, either way.
#[derive(Clone)]
pub struct SendPolicy(Arc<dyn Fn(DomainId, DomainId) -> Result<(), Reason> + Send + Sync>);

impl SendPolicy {
    /// A policy as it stands now.
    pub fn new(policy: impl Fn(DomainId, DomainId) -> Result<(), Reason> + Send + Sync + 'static) -> Self {
        Self(Arc::new(policy))
    }

    /// Every domain may send to every other.
    pub fn allow_all() -> Self {
        Self::new(|_, _| Ok(()))
    }

    pub(crate) fn check(&self, from: DomainId, to: DomainId) -> Result<(), Reason> {
        (self.0)(from, to)
    }
}

impl fmt::Debug for SendPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SendPolicy(..)")
    }
}

/// A command of control to the workers.
#[derive(Debug)]
pub enum Command {
    /// A ready map of `worker`, with the doorbell on which the worker sleeps for it.
    AddReadyMap {
        /// Which worker.
        worker: WorkerIndex,
        /// A number that is not in use.
        ready_map: WorkerReadyMapId,
        /// The ready map's memory.
        memory: SharedMapping,
        /// The worker's own doorbell, which the owner's domains ring.
        doorbell: Doorbell,
    },
    /// No domain of that owner is left. Their records have been taken or dropped.
    RemoveReadyMap {
        /// Which worker.
        worker: WorkerIndex,
        /// Which of its ready maps.
        ready_map: WorkerReadyMapId,
    },
    /// A domain has attached: from now on its ring is served and others reach it.
    Add(Box<NewDomain>),
    /// A domain is gone, or is to be cut off. What it had put into its ring before is still taken and delivered; what is held for it goes back to
    /// the senders with `reason`. [`Event::Removed`] follows, once; also where a fault has removed it already.
    Remove {
        /// Which.
        domain: DomainId,
        /// How it went: [`Reason::PeerDetached`], [`Reason::PeerConnectionLost`], …
        reason: Reason,
    },
    /// A command about MX boards.
    Mx(MxCommand),
    /// A domain lets messages to a remote peer be sent straight out of its memory.
    GrantRemote {
        /// The remote peer that the grant is for.
        remote_peer: DomainId,
        /// The domain's number for the memory.
        region: RegionId,
        /// The memory.
        memory: Arc<PeerRegion>,
    },
    /// A domain revokes a grant that [`Command::GrantRemote`] made.
    RevokeRemote {
        /// The remote peer that the grant is for.
        remote_peer: DomainId,
        /// Which memory.
        region: RegionId,
    },
    /// Sets a new policy.
    SendPolicy(SendPolicy),
    /// End all workers. What is held is dropped; rings stay as they are.
    Shutdown,
}

/// An event that a worker reports to control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A domain broke the contract. Its ring is closed already and counted; what others held for it went back to them.
    /// Control takes the domain down and sends [`Command::Remove`], as for any other end.
    Fault {
        /// Which domain.
        domain: DomainId,
        /// The violation.
        violation: Violation,
    },
    /// The answer to [`Command::Remove`]: the worker has let go of the domain's ring, window and doorbell, and its place is free.
    Removed {
        /// Which domain.
        domain: DomainId,
    },
    /// The reply to a command to connect to an endpoint of another host ([`MxCommand::Connect`]).
    RemoteConnected {
        /// The number of the request.
        request: u64,
        /// The remote peer, or the reason why there is none.
        outcome: Result<DomainId, Reason>,
    },
    /// A domain has a new remote peer, with a number that was never used before. This event precedes every record that the
    /// domain receives from the remote peer.
    RemoteAdded {
        /// The number.
        remote_peer: DomainId,
        /// The domain that the remote peer belongs to.
        domain: DomainId,
        /// The MX board there.
        nic: NicId,
        /// The endpoint there.
        number: u8,
    },
    /// The remote peer is gone. The domain has received every record that the remote peer sent before.
    RemoteRemoved {
        /// The number.
        remote_peer: DomainId,
        /// The domain that the remote peer belongs to.
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

/// Receives the workers' events. Called on their threads: it passes the event on (to a queue that wakes control) and never waits.
pub type EventHandler = Box<dyn Fn(Event) + Send>;
