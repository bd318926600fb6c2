//! The daemon's state of an attached domain, in addition to its entry in the directory.

use std::collections::BTreeMap;
use std::sync::Arc;

use isthmus_layout::Refusal;
use isthmus_layout::channel::SlabSize;
use isthmus_layout::control::{EventChannels, Name, ReadyMapIndex, Version};
use isthmus_layout::ids::DomainId;
use isthmus_layout::ready_map::{self, ReadyBit};
use isthmus_layout::reason::Reason;
use isthmus_platform::Doorbell;
use isthmus_service::{DomainCounters, WorkerIndex, WorkerReadyMapId};

use super::ControlSessionId;
use crate::allocator::{Allocator, PairWindow, Resource, descriptor};
use crate::broker::OrRefuse as _;
use crate::credentials::Credentials;

/// A ready map of a domain in the form in which peers receive it: its memory and its doorbell.
#[derive(Clone, Debug)]
pub struct ReadyMapFds {
    /// The memory.
    pub memory: Resource,
    /// The doorbell that peers ring.
    pub doorbell: Resource,
    /// The event channel that peers ring instead if they support event channels.
    pub event_channel: Option<Resource>,
}

impl ReadyMapFds {
    /// Returns the doorbell for a peer that speaks this version.
    pub(super) fn doorbell_for(&self, version: Version) -> Resource {
        self.event_channel.as_ref().filter(|_| supports_event_channels(version)).unwrap_or(&self.doorbell).clone()
    }
}

/// True if a library of this version can use an end of an event channel.
fn supports_event_channels(version: Version) -> bool {
    version.minor >= EventChannels::SINCE
}

/// A new ready map: the part that peers receive, and the doorbell at which the domain listens.
pub(super) struct NewReadyMap {
    pub(super) peers: ReadyMapFds,
    pub(super) listener: Resource,
}

impl NewReadyMap {
    /// Creates a ready map for peers of the domain's own owner (`own`) or of another one, if there is room for it.
    pub(super) fn new(own: bool, room: bool, allocator: &Allocator, domain: DomainId) -> Result<Self, Refusal> {
        match (room, own) {
            (false, _) => Err(Reason::DaemonOutOfFds.into()),
            (_, true) => Self::own(allocator, domain),
            (_, false) => Self::socket_pair(allocator),
        }
    }

    /// Creates a ready map for peers of the domain's own owner. All of them ring the same doorbell.
    pub(super) fn own(allocator: &Allocator, domain: DomainId) -> Result<Self, Refusal> {
        let (listener, doorbell) = allocator.domain_doorbell(domain)?;
        let memory = allocator.allocate(ready_map::SIZE)?;
        Ok(Self { peers: ReadyMapFds { memory, doorbell, event_channel: None }, listener })
    }

    /// Creates a ready map for peers in another guest, in the pair window of both guests.
    pub(super) fn pair(
        window: &Arc<PairWindow>,
        allocator: &Allocator,
        domain: DomainId,
        version: Version,
    ) -> Result<Self, Refusal> {
        let (listener, doorbell) = window.doorbell(domain, allocator.number())?;
        let memory = window.allocate(ready_map::SIZE)?;
        // A domain that listens at the event channel listens at the doorbell as well: its own ready map has the same vector. Peers without
        // event channels ring that.
        let event_channel = window.event_channel(&memory).filter(|_| supports_event_channels(version));
        let listener = event_channel.clone().unwrap_or(listener);
        Ok(Self { peers: ReadyMapFds { memory, doorbell, event_channel }, listener })
    }

    /// Creates a ready map for peers of another owner. They hold one end of a socket pair, and the domain holds the other one. All domains
    /// of a guest have one owner.
    fn socket_pair(allocator: &Allocator) -> Result<Self, Refusal> {
        let (listener, doorbell) = Doorbell::socket_pair().or_refuse()?;
        let memory = allocator.allocate(ready_map::SIZE)?;
        let doorbell = descriptor(&doorbell).or_refuse()?.into();
        Ok(Self {
            peers: ReadyMapFds { memory, doorbell, event_channel: None },
            listener: descriptor(&listener).or_refuse()?.into(),
        })
    }
}

/// The state of an attached domain.
#[derive(Debug)]
pub struct Attachment {
    /// Its connection.
    pub session: ControlSessionId,
    /// Its process.
    pub pid: Option<i32>,
    /// The groups, the cgroup and the guest of its program.
    pub credentials: Arc<Credentials>,
    /// The name that its library gives itself.
    pub library: Name,
    /// The protocol version in use with the domain.
    pub version: Version,
    /// The time at which it attached.
    pub since: u64,
    /// The worker that serves it.
    pub worker: WorkerIndex,
    /// The worker's ready map for its owner.
    pub worker_ready_map: WorkerReadyMapId,
    /// Its bit in that ready map.
    pub daemon_ready_bit: ReadyBit,
    /// The counters that the worker keeps.
    pub counters: Arc<DomainCounters>,
    /// Its ready maps, except those that cannot be offered to any peer.
    pub ready_maps: BTreeMap<ReadyMapIndex, ReadyMapFds>,
    /// The source of its memory and doorbells.
    pub allocator: Allocator,
    /// The doorbell with which its worker wakes it: its connection, or its guest's device.
    pub wakeup: Doorbell,
    /// Bytes of each slab of its ring.
    pub ring_slab: SlabSize,
}

impl Attachment {
    /// True if the connection is already broken, even if its end has not been read yet.
    pub(super) fn hung_up(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.wakeup, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok()
            && fds[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
    }
}
