//! Allocates shared memory and doorbells for domains: memory files of this host, or extents and vectors of a guest's window.
//!
//! ```text
//!   Allocator::Host ───► memory files, event descriptors          handed over as descriptors
//!   Allocator::Guest ──► GuestWindow: a window, vectors            handed over as references (isthmus_layout::proxy)
//!                          └ WindowBacking: FileBacking    a memory file that a device shows to the guest (KVM)
//!                                           GrantBacking   pages that the guest grants, for each extent anew (Xen)
//!     two of them ─────► PairWindow: what both guests see          the same
//!                          └ PairBacking: PairFileBacking, PairGrantBacking
//! ```
//!
//! Every domain is given a [`Resource`], whatever allocated it. A guest may write anything into its window at any time, and knows only
//! where in the window its extents are.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::broker::OrRefuse as _;
use isthmus_layout::Refusal;
use isthmus_layout::RegionSize;
use isthmus_layout::channel::{ChannelGeometry, SlabSize};
use isthmus_layout::control::Name;
use isthmus_layout::ids::DomainId;
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::proxy::grants::GrantRequest;
use isthmus_layout::proxy::{PROXY_RING, PROXY_RING_OFFSET, PROXY_VECTOR, ResourceRef, RevokedExtent, WindowId};
use isthmus_layout::reason::Reason;
use isthmus_platform::{Doorbell, PlatformError, Ring as _, local};
use isthmus_platform_kvm::{GUEST, HOST};
use isthmus_service::WorkerIndex;
use isthmus_shm::{Access, Mapping, SharedMapping};
use tokio::sync::Notify;

mod extents;
mod file;
mod grant_pool;
mod grants;
pub(crate) mod pair_window;
pub(crate) use file::FileBacking;
pub(crate) use grant_pool::SizeClass;
pub(crate) use grants::GrantBacking;
use pair_window::{OutgoingFrame, PairExtent};
pub(crate) use pair_window::{PairProgress, PairWindow};

/// Tells allocators apart: 0 is the host, others are guests, none used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestId(pub u32);

/// The source of a domain's memory and doorbells.
#[derive(Clone, Debug)]
pub enum Allocator {
    /// A process of this host.
    Host,
    /// A program of a guest.
    Guest(Arc<GuestWindow>),
}

/// Memory that a domain maps, or a doorbell that it rings or listens to.
#[derive(Clone, Debug)]
pub enum Resource {
    /// A descriptor.
    File(Arc<OwnedFd>),
    /// An extent of a guest's window.
    Extent(Arc<Extent>),
    /// An extent of a pair window.
    PairExtent(Arc<PairExtent>),
    /// Another resource's memory, with the rights to it.
    Region(Box<Resource>, RegionRights),
    /// A doorbell of a guest's device.
    Doorbell(ResourceRef),
}

/// The rights to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionRights {
    /// The memory belongs to the domain that receives it.
    Private,
    /// The domain may read the memory.
    ReadOnly,
}

/// A window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WindowRef {
    /// A guest's own.
    Own(GuestId),
    /// A pair window.
    Pair(WindowId),
}

/// Memory of a channel or of a domain's ring.
#[derive(Debug)]
pub(crate) struct RingMemory {
    /// Bytes of each slab.
    pub(crate) slab: SlabSize,
    /// The memory.
    pub(crate) memory: Resource,
    /// The reason why the slabs are smaller than requested.
    pub(crate) refused: Option<Refusal>,
}

impl RingMemory {
    /// Allocates two rings and two slabs of `most` bytes each by `memory`. Each time `memory` refuses, it tries again with slabs of half
    /// the size.
    pub(crate) fn of(
        most: SlabSize,
        memory: impl Fn(RegionSize) -> Result<Resource, Refusal>,
    ) -> Result<Self, Refusal> {
        let (mut slab, mut refused) = (most, None);
        loop {
            let refusal = match memory(ChannelGeometry { slab }.size()) {
                Ok(memory) => return Ok(Self { slab, memory, refused }),
                Err(refusal) => refusal,
            };
            match slab.half() {
                Some(half) => (slab, refused) = (half, Some(refusal)),
                None => return Err(refusal),
            }
        }
    }
}

impl From<OwnedFd> for Resource {
    fn from(file: OwnedFd) -> Self {
        Self::File(Arc::new(file))
    }
}

impl Resource {
    /// Maps the memory into this process.
    pub(crate) fn map(&self, size: RegionSize) -> Result<SharedMapping, Refusal> {
        let mapping = match self {
            Self::File(file) => Mapping::new(file, size, Access::ReadWrite),
            Self::Extent(extent) => return extent.guest_window.backing.map(extent.at, size),
            Self::PairExtent(extent) => return extent.map(size),
            Self::Region(memory, _) => return memory.map(size),
            Self::Doorbell(_) => unreachable!("a doorbell is not memory"),
        };
        mapping.map(SharedMapping::new).or_refuse()
    }

    /// The descriptor of a memory file or doorbell of the host.
    pub(crate) fn file(&self) -> Option<&Arc<OwnedFd>> {
        match self {
            Self::File(file) => Some(file),
            Self::Extent(_) | Self::PairExtent(_) | Self::Region(..) | Self::Doorbell(_) => None,
        }
    }

    /// The window that the memory lies in.
    pub(crate) fn window_ref(&self) -> Option<WindowRef> {
        match self {
            Self::File(_) | Self::Doorbell(_) => None,
            Self::Extent(extent) => Some(WindowRef::Own(extent.guest_window.number)),
            Self::PairExtent(extent) => Some(WindowRef::Pair(extent.window())),
            Self::Region(memory, _) => memory.window_ref(),
        }
    }

    /// Returns the memory with the rights of its owner.
    pub(crate) fn as_private(&self) -> Self {
        Self::Region(Box::new(self.clone()), RegionRights::Private)
    }

    /// Returns the memory with the rights of a domain that reads it.
    pub(crate) fn as_read_only(&self) -> Self {
        Self::Region(Box::new(self.clone()), RegionRights::ReadOnly)
    }

    /// The pair window that the memory lies in.
    pub(crate) fn pair_window(&self) -> Option<WindowId> {
        match self.window_ref()? {
            WindowRef::Pair(window) => Some(window),
            WindowRef::Own(_) => None,
        }
    }

    /// Reads memory without a mapping. Returns false if the memory is too short.
    pub(crate) fn read_at(&self, at: u64, into: &mut [u8]) -> bool {
        match self {
            Self::File(file) => rustix::io::pread(file, &mut *into, at) == Ok(into.len()),
            Self::Extent(extent) => extent.guest_window.backing.read_at(extent.at + at, into),
            Self::PairExtent(extent) => extent.read_at(at, into),
            Self::Region(memory, _) => memory.read_at(at, into),
            Self::Doorbell(_) => false,
        }
    }

    /// The reference that a guest is sent in place of a descriptor.
    pub(crate) fn to_ref(&self) -> Option<ResourceRef> {
        match self {
            Self::File(_) => None,
            Self::Extent(extent) => {
                let Extent { at: offset, bytes, generation, .. } = **extent;
                Some(ResourceRef::Extent { window: WindowId::OWN, offset, bytes, generation })
            }
            Self::PairExtent(extent) => Some(extent.to_ref()),
            Self::Region(memory, rights) => match (memory.to_ref()?, rights) {
                (ResourceRef::Extent { window, offset, bytes, generation }, RegionRights::Private) => {
                    Some(ResourceRef::PrivateExtent { window, offset, bytes, generation })
                }
                (ResourceRef::Extent { window, offset, bytes, generation }, RegionRights::ReadOnly) => {
                    Some(ResourceRef::ReadOnlyExtent { window, offset, bytes, generation })
                }
                (other, _) => Some(other),
            },
            Self::Doorbell(reference) => Some(*reference),
        }
    }
}

impl Allocator {
    /// The number of the guest, or 0 for the host.
    pub(crate) fn number(&self) -> GuestId {
        match self {
            Self::Host => GuestId(0),
            Self::Guest(guest_window) => guest_window.number,
        }
    }

    /// The guest's name.
    pub(crate) fn guest(&self) -> Option<&Name> {
        match self {
            Self::Host => None,
            Self::Guest(guest_window) => Some(&guest_window.name),
        }
    }

    /// Allocates zeroed memory.
    pub(crate) fn allocate(&self, size: RegionSize) -> Result<Resource, Refusal> {
        match self {
            Self::Host => Ok(local::memory(size).or_refuse()?.into()),
            Self::Guest(guest_window) => guest_window.extent(size),
        }
    }

    /// Allocates zeroed memory for two rings and two slabs.
    pub(crate) fn allocate_rings(&self, most: SlabSize) -> Result<RingMemory, Refusal> {
        RingMemory::of(most, |size| self.allocate(size))
    }

    /// Returns a doorbell of a worker: the end at which the worker listens, and the resource with which domains ring it.
    pub(crate) fn worker_doorbell(&self, worker: WorkerIndex) -> Result<(Doorbell, Resource), Refusal> {
        match self {
            Self::Host => {
                let doorbell = Doorbell::new().or_refuse()?;
                let sender = descriptor(&doorbell).or_refuse()?.into();
                Ok((doorbell, sender))
            }
            Self::Guest(guest_window) => {
                let shared = u16::try_from(guest_window.from_guest.len() - 1).unwrap_or(u16::MAX);
                let vector = 1 + u16::from(worker.0) % shared;
                let doorbell = guest_window.from_guest[usize::from(vector)].clone();
                Ok((doorbell, Resource::Doorbell(ResourceRef::Doorbell { peer: HOST, vector })))
            }
        }
    }

    /// Releases the doorbells of a domain that has left.
    pub(crate) fn release_vector(&self, domain: DomainId) {
        if let Self::Guest(guest_window) = self {
            guest_window.release_vector(domain);
        }
    }

    /// Returns a doorbell of one domain for peers of its owner: the end at which the domain listens, and the one that its peers ring.
    pub(crate) fn domain_doorbell(&self, domain: DomainId) -> Result<(Resource, Resource), Refusal> {
        match self {
            Self::Host => {
                let doorbell = Resource::from(Doorbell::new().and_then(|doorbell| descriptor(&doorbell)).or_refuse()?);
                Ok((doorbell.clone(), doorbell))
            }
            Self::Guest(guest_window) => {
                let vector = guest_window.vector(domain)?;
                Ok((
                    Resource::Doorbell(ResourceRef::VectorEvents { vector }),
                    Resource::Doorbell(ResourceRef::Doorbell { peer: GUEST, vector }),
                ))
            }
        }
    }
}

pub(crate) fn descriptor(doorbell: &Doorbell) -> Result<OwnedFd, PlatformError> {
    use std::os::fd::AsFd as _;
    doorbell.as_fd().try_clone_to_owned().map_err(|error| PlatformError::Refused {
        operation: "copying a doorbell",
        source: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::MFILE),
    })
}

/// The memory of a guest's window. Offsets in it are sent to the guest, and mean the same to both sides.
pub(crate) trait WindowBacking: std::fmt::Debug + Send + Sync {
    /// Maps a part of the window into this process.
    fn map(&self, at: u64, size: RegionSize) -> Result<SharedMapping, Refusal>;
    /// Reads a part of the window without a mapping. Returns false if that is not possible.
    fn read_at(&self, at: u64, into: &mut [u8]) -> bool;
    /// Allocates an extent of `bytes`, in whole pages. Returns its offset and its generation.
    fn alloc(&self, bytes: u64) -> Result<(u64, u32), WindowFull>;
    /// Zeroes an allocated extent.
    fn clear(&self, at: u64, bytes: u64) -> Result<(), Refusal>;
    /// Frees an extent.
    fn free(&self, at: u64, bytes: u64);
    /// True as long as the extent of this generation is allocated.
    fn is_live(&self, at: u64, generation: u32) -> bool;
    /// Returns the next revoked extent, given that the guest already knows of the first `reported` ones.
    fn revoked(&self, reported: usize) -> Option<RevokedExtent>;
    /// Frees the first revoked extent, because the guest has unmapped it.
    fn reclaim_first(&self);
    /// The number of allocated bytes, including those that are always allocated.
    fn used(&self) -> u64;
    /// The number of bytes that can be allocated at once.
    fn bytes(&self) -> u64;
    /// True if programs can have memory of their own in the window.
    fn supports_regions(&self) -> bool;

    /// The next request, if the guest grants its window extent by extent.
    fn grant_request(&self) -> Option<GrantRequest> {
        None
    }
    /// Notes that the request was sent.
    fn mark_requested(&self) {}
    /// Handles the guest's reply to a grant request; an empty grant means that it has no memory left. Returns an error if no such request is
    /// pending.
    fn handle_grant_reply(&self, _offset: u64, _grant: &[u8]) -> Result<(), String> {
        Err("its window is whole".to_owned())
    }
    /// True if the window has all the memory that a domain needs to attach, or will not get it.
    fn is_ready(&self) -> bool {
        true
    }
    /// True if another proxy session can use the window once one has ended.
    fn is_reusable(&self) -> bool {
        true
    }
}

/// The window has no room for another extent of this size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowFull;

/// A guest's window and the doorbells between the guest and the host.
#[derive(Debug)]
pub struct GuestWindow {
    number: GuestId,
    name: Name,
    backing: Box<dyn WindowBacking>,
    /// Wakes the proxy session, which sends the guest revocations and requests.
    changed: Notify,
    /// The guest has replied to a grant request.
    granted: Notify,
    /// The domain that each of the guest's vectors wakes.
    vectors: Mutex<BTreeMap<u16, DomainId>>,
    /// The pair windows of this guest.
    pair_windows: Mutex<Vec<Weak<PairWindow>>>,
    /// Frames about pair windows that were not sent yet.
    frames: Mutex<VecDeque<OutgoingFrame>>,
    /// The doorbells that ring the guest's vectors.
    to_guest: Vec<Doorbell>,
    /// The doorbells at which the daemon hears the guest.
    from_guest: Vec<Doorbell>,
}

impl GuestWindow {
    /// Creates a guest window over `backing`. Each direction has as many vectors as there are event descriptors, which are at least two.
    pub(crate) fn new(
        number: GuestId,
        name: Name,
        backing: impl WindowBacking + 'static,
        (to_guest, from_guest): (Vec<OwnedFd>, Vec<OwnedFd>),
    ) -> Arc<Self> {
        assert!(to_guest.len() > 1 && from_guest.len() > 1); // The configuration's limits.
        let (changed, granted) = (Notify::new(), Notify::new());
        let (vectors, pair_windows, frames) = (Mutex::default(), Mutex::default(), Mutex::default());
        let doorbells = |fds: Vec<OwnedFd>| fds.into_iter().map(Doorbell::from).collect();
        let (to_guest, from_guest) = (doorbells(to_guest), doorbells(from_guest));
        let backing = Box::new(backing);
        Arc::new(Self { number, name, backing, changed, granted, vectors, pair_windows, frames, to_guest, from_guest })
    }

    /// The number of the guest.
    pub(crate) fn number(&self) -> GuestId {
        self.number
    }

    /// The guest's number among the peers of another guest's device; none once there were too many guests.
    pub(crate) fn peer(&self) -> Option<u16> {
        u16::try_from(self.number.0).ok()?.checked_add(GUEST)
    }

    /// The doorbells of the guest's domains, in the order of the vectors. The first stands for the proxy's vector and has no listener.
    pub(crate) fn doorbells(&self) -> Result<Vec<OwnedFd>, PlatformError> {
        let unused = descriptor(&Doorbell::new()?);
        let domains = self.to_guest[1 + usize::from(PROXY_VECTOR)..].iter().map(descriptor);
        std::iter::once(unused).chain(domains).collect()
    }

    /// The number of vectors of another guest that this guest's device can ring, at most.
    fn vectors_max(&self) -> u16 {
        u16::try_from(self.to_guest.len()).unwrap_or(u16::MAX)
    }

    /// The guest's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Maps the first page of the window.
    pub(crate) fn head(&self) -> Result<SharedMapping, Refusal> {
        self.backing.map(0, RegionSize(u64::from(PAGE_BYTES)))
    }

    /// Maps the proxy ring.
    pub(crate) fn proxy_ring(&self) -> Result<SharedMapping, Refusal> {
        self.backing.map(PROXY_RING_OFFSET, PROXY_RING.size())
    }

    /// Wakes the guest's daemon to read the proxy ring.
    pub(crate) fn ring_daemon(&self) {
        self.to_guest[usize::from(PROXY_VECTOR)].ring();
    }

    /// The doorbell with which the guest's daemon announces messages in the proxy ring.
    pub(crate) fn daemon_doorbell(&self) -> Result<OwnedFd, PlatformError> {
        descriptor(&self.from_guest[usize::from(PROXY_VECTOR)])
    }

    /// The doorbell that wakes a domain of the guest.
    pub(crate) fn wakeup(&self, domain: DomainId) -> Result<Doorbell, Refusal> {
        Ok(self.to_guest[usize::from(self.vector(domain)?)].clone())
    }

    /// Frees the vector of a domain.
    pub(crate) fn release_vector(&self, domain: DomainId) {
        self.vectors().retain(|_, of| *of != domain);
    }

    /// Returns the next revoked extent, given how many of each window the guest already knows of.
    pub(crate) fn revoked(&self, reported: impl Fn(WindowId) -> usize) -> Option<RevokedExtent> {
        let own = self.backing.revoked(reported(WindowId::OWN));
        let of_pair = |pair_window: &Arc<PairWindow>| pair_window.revoked(self.number, reported(pair_window.number()));
        own.or_else(|| self.pair_windows().iter().find_map(of_pair))
    }

    /// Notes that the guest has unmapped this extent. Returns false if it is not the first revoked extent of its window.
    pub(crate) fn reclaimed(&self, revoked: RevokedExtent) -> bool {
        if revoked.window == WindowId::OWN {
            let is_first = self.backing.revoked(0) == Some(revoked);
            if is_first {
                self.backing.reclaim_first();
            }
            return is_first;
        }
        let pair_windows = self.pair_windows();
        let Some(pair_window) = pair_windows.iter().find(|pair_window| pair_window.number() == revoked.window) else {
            return true; // The pair window has gone meanwhile, with all its extents.
        };
        let is_first = pair_window.revoked(self.number, 0) == Some(revoked);
        if is_first {
            pair_window.reclaimed(self.number);
        }
        is_first
    }

    /// The next frame about pair windows. Such frames are sent before all others.
    pub(crate) fn next_frame(&self) -> Option<OutgoingFrame> {
        self.frames().front().cloned()
    }

    /// Notes that the frame was sent.
    pub(crate) fn frame_sent(&self) {
        self.frames().pop_front();
    }

    /// Queues a frame to the guest, to be sent before anything that is queued later.
    pub(crate) fn queue_frame(&self, frame: OutgoingFrame) {
        self.frames().push_back(frame);
        self.changed.notify_one();
    }

    /// The number of frames that were not sent yet.
    pub(crate) fn frames_waiting(&self) -> usize {
        self.frames().len()
    }

    fn frames(&self) -> MutexGuard<'_, VecDeque<OutgoingFrame>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next grant request to the guest.
    pub(crate) fn grant_request(&self) -> Option<GrantRequest> {
        let own = self.backing.grant_request();
        own.or_else(|| self.pair_windows().iter().find_map(|pair_window| pair_window.grant_request(self.number)))
    }

    /// Notes that the request was sent.
    pub(crate) fn mark_requested(&self, request: GrantRequest) {
        match request.window {
            WindowId::OWN => self.backing.mark_requested(),
            window => {
                self.with_pair_window(window, |pair_window| pair_window.mark_requested(self.number)).unwrap_or_default()
            }
        }
    }

    /// Handles the guest's reply to a grant request. Returns an error if no such request is pending.
    pub(crate) fn handle_grant_reply(&self, window: WindowId, offset: u64, grant: &[u8]) -> Result<(), String> {
        if window != WindowId::OWN {
            // The pair window has gone, or never existed. Such a reply is ignored.
            return self
                .with_pair_window(window, |pair_window| pair_window.handle_grant_reply(self.number, offset, grant))
                .unwrap_or(Ok(()));
        }
        let granted = self.backing.handle_grant_reply(offset, grant);
        self.granted.notify_waiters();
        granted
    }

    /// Handles the guest's reply to a map request. Returns an error if no such request is pending.
    pub(crate) fn handle_map_reply(&self, window: WindowId, offset: u64, mapped: bool) -> Result<(), String> {
        self.with_pair_window(window, |pair_window| pair_window.handle_map_reply(self.number, offset, mapped))
            .unwrap_or(Ok(()))
    }

    /// Handles the guest's offer of a pair window; an empty offer means that the guest cannot have one. Returns an error if it was not
    /// invited.
    pub(crate) fn handle_pair_offer(&self, window: WindowId, offer: &[u8]) -> Result<(), String> {
        self.with_pair_window(window, |pair_window| pair_window.handle_pair_offer(self.number, offer)).unwrap_or(Ok(()))
    }

    fn with_pair_window<T>(&self, window: WindowId, ask: impl FnOnce(&PairWindow) -> T) -> Option<T> {
        self.pair_windows()
            .iter()
            .find(|pair_window| pair_window.number() == window)
            .map(|pair_window| ask(pair_window))
    }

    /// Waits until the window has all the memory that a domain needs to attach, or is known not to get it.
    pub(crate) async fn ready(&self) {
        loop {
            let granted = self.granted.notified();
            if self.backing.is_ready() {
                return;
            }
            granted.await;
        }
    }

    /// True if another proxy session can use the window once one has ended.
    pub(crate) fn is_reusable(&self) -> bool {
        self.backing.is_reusable()
    }

    /// Waits until something may have been revoked, or may have to be requested.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// True as long as the extent of this generation is allocated.
    pub(crate) fn is_live(&self, window: WindowId, offset: u64, generation: u32) -> bool {
        match window {
            WindowId::OWN => self.backing.is_live(offset, generation),
            _ => self
                .pair_windows()
                .iter()
                .any(|pair_window| pair_window.number() == window && pair_window.is_live(offset, generation)),
        }
    }

    fn pair_windows(&self) -> Vec<Arc<PairWindow>> {
        let mut pair_windows = self.pair_windows.lock().unwrap_or_else(PoisonError::into_inner);
        pair_windows.retain(|pair_window| pair_window.strong_count() > 0);
        pair_windows.iter().filter_map(Weak::upgrade).collect()
    }

    fn add_pair_window(&self, pair_window: &Arc<PairWindow>) {
        self.pair_windows.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(pair_window));
    }

    /// Returns the vector that wakes a domain, from 1 on. It is chosen at the first call for a domain.
    fn vector(&self, domain: DomainId) -> Result<u16, Refusal> {
        let mut vectors = self.vectors();
        if let Some((&vector, _)) = vectors.iter().find(|&(_, of)| *of == domain) {
            return Ok(vector);
        }
        let all = 1..self.vectors_max();
        let free = all.clone().find(|vector| !vectors.contains_key(vector)).ok_or_else(|| {
            let text = format!("all {} vectors of guest {} for domains are taken", all.len(), self.name);
            Refusal::new(Reason::GuestVectorsFull, text)
        })?;
        vectors.insert(free, domain);
        Ok(free)
    }

    fn extent(self: &Arc<Self>, size: RegionSize) -> Result<Resource, Refusal> {
        let bytes = size.0.next_multiple_of(u64::from(PAGE_BYTES));
        let (at, generation) = self.backing.alloc(bytes).map_err(|WindowFull| {
            let text = format!("the window of guest {} has no room for {bytes} bytes", self.name);
            Refusal::new(Reason::OutOfMemory, text)
        })?;
        let extent = Extent { guest_window: Arc::clone(self), at, bytes, generation };
        self.changed.notify_one();
        // Removes the previous contents, and anything that the guest wrote there since.
        self.backing.clear(at, bytes)?;
        Ok(Resource::Extent(Arc::new(extent)))
    }

    fn vectors(&self) -> MutexGuard<'_, BTreeMap<u16, DomainId>> {
        self.vectors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of allocated bytes of the window, including those that are always allocated.
    pub(crate) fn used(&self) -> u64 {
        self.backing.used()
    }

    /// The size of the window in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.backing.bytes()
    }

    /// True if programs of the guest can have memory of their own in the window.
    pub(crate) fn supports_regions(&self) -> bool {
        self.backing.supports_regions()
    }
}

/// An extent of a guest's window. It is freed when the last reference is dropped.
#[derive(Debug)]
pub struct Extent {
    guest_window: Arc<GuestWindow>,
    at: u64,
    bytes: u64,
    generation: u32,
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.guest_window.backing.free(self.at, self.bytes);
        self.guest_window.changed.notify_one();
    }
}
