//! What the daemon holds for an attached domain, beside what the directory knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use isthmus_layout::channel::SlabSize;
use isthmus_layout::control::{EventChannels, Name, ReadyMapIndex, Version};
use isthmus_layout::ids::DomainId;
use isthmus_layout::ready_map::{self, ReadyBit};
use isthmus_layout::reason::Reason;
use isthmus_platform::Doorbell;
use isthmus_service::{DomainCounters, WorkerIndex, WorkerReadyMapId};

use super::{ControlSessionId, Refusal};
use crate::allocator::{Allocator, PairWindow, Resource, descriptor};

/// A ready map of a domain, as it is handed to peers: its memory, and its doorbell.
#[derive(Clone, Debug)]
pub struct ReadyMapFds {
    /// The memory.
    pub memory: Resource,
    /// What peers ring.
    pub doorbell: Resource,
    /// What peers that support event channels ring instead.
    pub event_channel: Option<Resource>,
}

impl ReadyMapFds {
    /// What a peer rings with which this version is spoken.
    pub(super) fn doorbell_for(&self, version: Version) -> Resource {
        self.event_channel.as_ref().filter(|_| supports_event_channels(version)).unwrap_or(&self.doorbell).clone()
    }
}

/// Whether a library knows what to do with an end of an event channel.
fn supports_event_channels(version: Version) -> bool {
    version.minor >= EventChannels::SINCE
}

/// A new ready map: what peers get, and what the domain listens to.
pub(super) struct NewReadyMap {
    pub(super) peers: ReadyMapFds,
    pub(super) listener: Resource,
}

impl NewReadyMap {
    /// For peers of the domain's own owner or of another one, if there is room for it.
    pub(super) fn new(own: bool, room: bool, allocator: &Allocator, domain: DomainId) -> Result<Self, Refusal> {
        match (room, own) {
            (false, _) => Err(Reason::DaemonOutOfFds.into()),
            (_, true) => Self::own(allocator, domain),
            (_, false) => Self::socket_pair(allocator),
        }
    }

    /// For peers of the domain's own owner: all ring the same doorbell.
    pub(super) fn own(allocator: &Allocator, domain: DomainId) -> Result<Self, Refusal> {
        let (listener, doorbell) = allocator.domain_doorbell(domain)?;
        let memory = allocator.allocate(ready_map::SIZE)?;
        Ok(Self { peers: ReadyMapFds { memory, doorbell, event_channel: None }, listener })
    }

    /// For peers in another guest, in the pair window of both guests.
    pub(super) fn pair(
        window: &Arc<PairWindow>,
        allocator: &Allocator,
        domain: DomainId,
        version: Version,
    ) -> Result<Self, Refusal> {
        let (listener, doorbell) = window.doorbell(domain, allocator.number())?;
        let memory = window.allocate(ready_map::SIZE)?;
        // The listener's own doorbell is heard by it as well.
        let event_channel = window.event_channel(&memory).filter(|_| supports_event_channels(version));
        let listener = event_channel.clone().unwrap_or(listener);
        Ok(Self { peers: ReadyMapFds { memory, doorbell, event_channel }, listener })
    }

    /// For peers of another owner: they hold an end of a socket, the domain holds the other one. All domains of a guest have one owner.
    fn socket_pair(allocator: &Allocator) -> Result<Self, Refusal> {
        let (listener, doorbell) = Doorbell::socket_pair()?;
        let memory = allocator.allocate(ready_map::SIZE)?;
        let doorbell = descriptor(&doorbell)?.into();
        Ok(Self {
            peers: ReadyMapFds { memory, doorbell, event_channel: None },
            listener: descriptor(&listener)?.into(),
        })
    }
}

/// An attached domain's things.
#[derive(Debug)]
pub struct Attachment {
    /// Its connection.
    pub session: ControlSessionId,
    /// Its process.
    pub pid: Option<i32>,
    /// What its library calls itself.
    pub library: Name,
    /// The version spoken with it.
    pub version: Version,
    /// When it attached.
    pub since: u64,
    /// Who serves it.
    pub worker: WorkerIndex,
    /// The worker's ready map for its owner.
    pub worker_ready_map: WorkerReadyMapId,
    /// Its bit there.
    pub daemon_ready_bit: ReadyBit,
    /// What the worker counts.
    pub counters: Arc<DomainCounters>,
    /// Its ready maps, but for those that can be offered to nobody.
    pub ready_maps: BTreeMap<ReadyMapIndex, ReadyMapFds>,
    /// Where its memory and doorbells come from.
    pub allocator: Allocator,
    /// What its worker wakes it by: its connection, or its guest's device.
    pub wakeup: Doorbell,
    /// Bytes of each slab of its ring.
    pub ring_slab: SlabSize,
}

impl Attachment {
    /// True if the connection is broken already, though nobody has read that yet.
    pub(super) fn hung_up(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.wakeup, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok()
            && fds[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
    }
}
