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
use crate::overlay::{OverlayCommand, OverlayEvent};
use crate::remote_peers::RemoteAddress;
use crate::violation::Violation;
use isthmus_channel::ChannelParts;
use isthmus_layout::control::Owner;
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::reason::Reason;
use isthmus_layout::{DomainId, RegionId};
use isthmus_platform::Doorbell;
use isthmus_shm::SharedMapping;
use isthmus_shm::regcache::PeerRegion;
use std::fmt;
use std::sync::Arc;

/// One of the workers, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerIndex(pub u8);

/// The number of a worker's ready map, in which the domains of one owner set the ready bits of their rings. Control numbers the
/// maps of each worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerReadyMapId(pub u32);

/// A domain that has attached.
#[derive(Debug)]
pub struct NewDomain {
    /// The number of the domain.
    pub domain: DomainId,
    /// The user that the domain belongs to. When too much is held, the owner with the largest backlog loses a domain.
    pub owner: Owner,
    /// The daemon's end of the domain ring. The daemon is the listener: it sends on `Direction::One`.
    pub parts: ChannelParts,
    /// The ready map in which the domain sets its bit, of the worker that serves it ([`Service::worker_of`](crate::Service::worker_of)).
    /// Added before.
    pub ready_map: WorkerReadyMapId,
    /// The domain's bit in the ready map, which no other domain has.
    pub ready_bit: ReadyBit,
    /// The counters of the domain, which the worker updates and control reads.
    pub counters: Arc<DomainCounters>,
}

/// Decides whether the first domain may send messages to the second. Called on a worker's thread, once for each pair, and again
/// after each [`Command::SendPolicy`]; it must not block. Replies to a message (a pull, an acknowledgement, a bounce, a credit) are
/// permitted where the message was permitted.
#[derive(Clone)]
pub struct SendPolicy(Arc<dyn Fn(DomainId, DomainId) -> Result<(), Reason> + Send + Sync>);

impl SendPolicy {
    /// Wraps a policy.
    pub fn new(policy: impl Fn(DomainId, DomainId) -> Result<(), Reason> + Send + Sync + 'static) -> Self {
        Self(Arc::new(policy))
    }

    /// The policy that permits all messages.
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
    /// Adds a ready map of `worker`, with the doorbell on which the worker sleeps for it.
    AddReadyMap {
        /// The worker.
        worker: WorkerIndex,
        /// A number that is not in use.
        ready_map: WorkerReadyMapId,
        /// The ready map's memory.
        memory: SharedMapping,
        /// The worker's own doorbell, which the owner's domains ring.
        doorbell: Doorbell,
    },
    /// Removes a ready map, because no domain of its owner is left. Their records have been taken or dropped.
    RemoveReadyMap {
        /// The worker.
        worker: WorkerIndex,
        /// The ready map.
        ready_map: WorkerReadyMapId,
    },
    /// Adds a domain: from now on its ring is served, and other domains reach it.
    Add(Box<NewDomain>),
    /// Removes a domain that is gone or is to be cut off. Records that it has put into its ring are still delivered. Records that
    /// are held for it return to their senders with `reason`. One [`Event::Removed`] follows, even if a fault has removed the domain
    /// already.
    Remove {
        /// The domain.
        domain: DomainId,
        /// The reason: [`Reason::PeerDetached`], [`Reason::PeerConnectionLost`], …
        reason: Reason,
    },
    /// A command about MX boards, for the worker that control has chosen for these boards.
    Mx(WorkerIndex, MxCommand),
    /// A command about overlay networks, to the worker that has them.
    Overlay(WorkerIndex, OverlayCommand),
    /// Grants a remote peer a domain's memory, so that messages are sent straight out of it.
    GrantRemote {
        /// The worker of the remote peer ([`Event::RemoteAdded`]).
        worker: WorkerIndex,
        /// The remote peer that the grant is for.
        remote_peer: DomainId,
        /// The domain's number for the memory.
        region: RegionId,
        /// The memory.
        memory: Arc<PeerRegion>,
    },
    /// Revokes a grant of [`Command::GrantRemote`].
    RevokeRemote {
        /// The worker of the remote peer.
        worker: WorkerIndex,
        /// The remote peer that the grant is for.
        remote_peer: DomainId,
        /// The number of the memory.
        region: RegionId,
    },
    /// Sets a new policy.
    SendPolicy(SendPolicy),
    /// Asks all workers whether they work. Each replies by adding one to [`WorkerCounters::heartbeats`](crate::WorkerCounters::heartbeats).
    Heartbeat,
    /// Ends all workers. Held records are dropped; rings are not changed.
    Shutdown,
}

/// An event that a worker reports to control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A domain broke the protocol. Its ring is closed and counted already, and records that were held for it have returned to their
    /// senders. Control ends the domain and sends [`Command::Remove`], as for any other end.
    Fault {
        /// The domain.
        domain: DomainId,
        /// The violation.
        violation: Violation,
        /// The last events of the ring, from its flight recorder. A worker writes no log, because a domain could fill it or stop it.
        flight: String,
    },
    /// The reply to [`Command::Remove`]: the worker has released the domain's ring, window and doorbell, and its slot is free.
    Removed {
        /// The domain.
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
        /// The worker that reaches the remote peer.
        worker: WorkerIndex,
        /// The number.
        remote_peer: DomainId,
        /// The domain that the remote peer belongs to.
        domain: DomainId,
        /// Its address.
        address: RemoteAddress,
    },
    /// The remote peer is gone. The domain has received every record that the remote peer sent before.
    RemoteRemoved {
        /// The number.
        remote_peer: DomainId,
        /// The domain that the remote peer belongs to.
        domain: DomainId,
        /// The reason.
        reason: Reason,
    },
    /// An event of an overlay network.
    Overlay(OverlayEvent),
    /// The worker has ended.
    Stopped {
        /// The worker.
        worker: WorkerIndex,
    },
}

/// Receives the workers' events. Called on their threads: it passes the event on (to a queue that wakes control) and never waits.
pub type EventHandler = Box<dyn Fn(Event) + Send>;
