//! The daemon's state of an attached domain, in addition to its entry in the directory.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use isthmus_layout::Refusal;
use isthmus_layout::channel::SlabSize;
use isthmus_layout::control::{Name, ReadyMapIndex, Version};
use isthmus_layout::ids::{ChannelId, DomainId, RegionId};
use isthmus_layout::ready_map::{self};
use isthmus_layout::reason::Reason;
use isthmus_platform::{Doorbell, copy_fd};
use isthmus_service::{DomainCounters, WorkerIndex};

use super::types::ControlSessionId;
use crate::credentials::Credentials;
use isthmus_window::{Allocator, PairWindow, Resource};

/// A ready map of a domain in the form in which peers receive it: its memory and its doorbell.
#[derive(Clone, Debug)]
pub(crate) struct ReadyMapFds {
    /// The memory.
    pub memory: Resource,
    /// The doorbell that peers ring.
    pub doorbell: Resource,
    /// The event channel that peers ring instead, if there is one.
    pub event_channel: Option<Resource>,
}

impl ReadyMapFds {
    /// Returns what peers ring.
    pub(crate) fn rung(&self) -> Resource {
        self.event_channel.as_ref().unwrap_or(&self.doorbell).clone()
    }
}

/// A new ready map: the part that peers receive, and the doorbell at which the domain listens.
pub(crate) struct NewReadyMap {
    pub(crate) peers: ReadyMapFds,
    pub(crate) listener: Resource,
}

impl NewReadyMap {
    /// Creates a ready map for peers of the domain's own owner (`own`) or of another one, if there is room for it.
    pub(crate) fn new(own: bool, room: bool, allocator: &Allocator, domain: DomainId) -> Result<Self, Refusal> {
        match (room, own) {
            (false, _) => Err(Reason::DaemonOutOfFds.into()),
            (_, true) => Self::own(allocator, domain),
            (_, false) => Self::socket_pair(allocator),
        }
    }

    /// Creates a ready map for peers of the domain's own owner. All of them ring the same doorbell.
    pub(crate) fn own(allocator: &Allocator, domain: DomainId) -> Result<Self, Refusal> {
        let (listener, doorbell) = allocator.domain_doorbell(domain)?;
        let memory = allocator.allocate(ready_map::SIZE)?;
        Ok(Self { peers: ReadyMapFds { memory, doorbell, event_channel: None }, listener })
    }

    /// Creates a ready map for peers in another guest, in the pair window of both guests.
    pub(crate) fn pair(window: &Arc<PairWindow>, allocator: &Allocator, domain: DomainId) -> Result<Self, Refusal> {
        let (listener, doorbell) = window.doorbell(domain, allocator.number())?;
        let memory = window.allocate(ready_map::SIZE)?;
        let event_channel = window.event_channel(&memory);
        let listener = event_channel.clone().unwrap_or(listener);
        Ok(Self { peers: ReadyMapFds { memory, doorbell, event_channel }, listener })
    }

    /// Creates a ready map for peers of another owner. They hold one end of a socket pair, and the domain holds the other one. All domains
    /// of a guest have one owner.
    fn socket_pair(allocator: &Allocator) -> Result<Self, Refusal> {
        let (listener, doorbell) = Doorbell::socket_pair()?;
        let memory = allocator.allocate(ready_map::SIZE)?;
        let doorbell = copy_fd(&doorbell)?.into();
        Ok(Self { peers: ReadyMapFds { memory, doorbell, event_channel: None }, listener: copy_fd(&listener)?.into() })
    }
}

/// The state of an attached domain.
#[derive(Debug)]
pub(crate) struct Attachment {
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
pub(crate) struct Attachments {
    by_domain: BTreeMap<DomainId, Attachment>,
    /// The number of ready maps of all domains.
    ready_maps: usize,
}

impl Attachments {
    /// Adds a domain.
    pub(crate) fn insert(&mut self, domain: DomainId, attachment: Attachment) {
        self.ready_maps += attachment.ready_maps.len();
        let before = self.by_domain.insert(domain, attachment);
        self.ready_maps -= before.map_or(0, |before| before.ready_maps.len());
    }

    /// Removes a domain.
    pub(crate) fn remove(&mut self, domain: DomainId) -> Option<Attachment> {
        let removed = self.by_domain.remove(&domain)?;
        self.ready_maps -= removed.ready_maps.len();
        Some(removed)
    }

    /// Adds a ready map of a domain.
    pub(crate) fn add_ready_map(&mut self, domain: DomainId, index: ReadyMapIndex, ready_map: ReadyMapFds) {
        let Some(attachment) = self.by_domain.get_mut(&domain) else { return };
        self.ready_maps += usize::from(attachment.ready_maps.insert(index, ready_map).is_none());
    }

    /// Removes a ready map of a domain.
    pub(crate) fn remove_ready_map(&mut self, domain: DomainId, index: ReadyMapIndex) {
        let Some(attachment) = self.by_domain.get_mut(&domain) else { return };
        self.ready_maps -= usize::from(attachment.ready_maps.remove(&index).is_some());
    }

    /// The state of a domain, mutably, except for its ready maps.
    pub(crate) fn memory_of_peers(&mut self, domain: DomainId) -> Option<&mut PeerMemory> {
        Some(&mut self.by_domain.get_mut(&domain)?.peer_memory)
    }

    /// The number of descriptors that are open for all domains.
    pub(crate) fn fds(&self) -> usize {
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
pub(crate) struct PeerMemory {
    /// The ended channels of which it may still read messages.
    pub(crate) lingering: BTreeSet<ChannelId>,
    /// The regions of others that it reads.
    pub(crate) reads: BTreeSet<(DomainId, RegionId)>,
}

impl Attachment {
    /// True if the connection is already broken, even if its end has not been read yet.
    pub(crate) fn hung_up(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.wakeup, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok()
            && fds[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
    }
}
