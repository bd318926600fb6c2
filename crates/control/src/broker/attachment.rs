//! The daemon's state of an attached domain, in addition to its entry in the directory.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use isthmus_layout::Refusal;
use isthmus_layout::channel::SlabSize;
use isthmus_layout::control::{EventChannels, Name, ReadyMapIndex, Version};
use isthmus_layout::ids::{ChannelId, DomainId, RegionId};
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
    /// The memory of its peers that is kept for it.
    pub peer_memory: PeerMemory,
}

/// The attachments of all domains.
#[derive(Debug, Default)]
pub struct Attachments {
    by_domain: BTreeMap<DomainId, Attachment>,
    /// The number of ready maps of all domains.
    ready_maps: usize,
}

impl Attachments {
    /// Adds a domain.
    pub(super) fn insert(&mut self, domain: DomainId, attachment: Attachment) {
        self.ready_maps += attachment.ready_maps.len();
        let before = self.by_domain.insert(domain, attachment);
        self.ready_maps -= before.map_or(0, |before| before.ready_maps.len());
    }

    /// Removes a domain.
    pub(super) fn remove(&mut self, domain: DomainId) -> Option<Attachment> {
        let removed = self.by_domain.remove(&domain)?;
        self.ready_maps -= removed.ready_maps.len();
        Some(removed)
    }

    /// Adds a ready map of a domain.
    pub(super) fn add_ready_map(&mut self, domain: DomainId, index: ReadyMapIndex, ready_map: ReadyMapFds) {
        let Some(attachment) = self.by_domain.get_mut(&domain) else { return };
        self.ready_maps += usize::from(attachment.ready_maps.insert(index, ready_map).is_none());
    }

    /// Removes a ready map of a domain.
    pub(super) fn remove_ready_map(&mut self, domain: DomainId, index: ReadyMapIndex) {
        let Some(attachment) = self.by_domain.get_mut(&domain) else { return };
        self.ready_maps -= usize::from(attachment.ready_maps.remove(&index).is_some());
    }

    /// The state of a domain, mutably, except for its ready maps.
    pub(super) fn memory_of_peers(&mut self, domain: DomainId) -> Option<&mut PeerMemory> {
        Some(&mut self.by_domain.get_mut(&domain)?.peer_memory)
    }

    /// The number of descriptors that are open for all domains.
    pub(super) fn fds(&self) -> usize {
        4 * self.by_domain.len() + 2 * self.ready_maps
    }
}

impl Deref for Attachments {
    type Target = BTreeMap<DomainId, Attachment>;

    fn deref(&self) -> &BTreeMap<DomainId, Attachment> {
        &self.by_domain
    }
}

/// The memory in windows of guests that is kept for a domain.
#[derive(Debug, Default)]
pub struct PeerMemory {
    /// The ended channels of which it may still read messages.
    pub(super) lingering: BTreeSet<ChannelId>,
    /// The regions of others that it reads.
    pub(super) reads: BTreeSet<(DomainId, RegionId)>,
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
