//! A guest as the host knows it: its own window, its doorbells, and its pair windows.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use isthmus_layout::RegionSize;
use isthmus_layout::control::Name;
use isthmus_layout::ids::DomainId;
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::proxy::grants::GrantRequest;
use isthmus_layout::proxy::{
    GUEST, PROXY_RING, PROXY_RING_OFFSET, PROXY_VECTOR, ProxyFrameKind, RevokedExtent, WindowId,
};
use isthmus_platform::{Doorbell, PlatformError, Ring as _, copy_fd};
use isthmus_shm::SharedMapping;
use tokio::sync::Notify;

use crate::window::Viewer;
use crate::{Backing, PairWindow, Progress, UnexpectedReply, Window, WindowError, WindowRef};

/// Tells guests apart: 0 is the host, others are guests, none used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestId(pub u32);

/// A proxy frame to a guest.
pub type OutgoingFrame = (ProxyFrameKind, Vec<u8>);

/// The use of a vector of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Domain(DomainId),
    /// All loop devices of the guest.
    Loops,
}

/// The place of a guest among the viewers of its own window.
const ITSELF: usize = 0;

/// A guest's window and the doorbells between the guest and the host.
#[derive(Debug)]
pub struct GuestWindow {
    number: GuestId,
    name: Name,
    window: Arc<Window>,
    /// Wakes the proxy session, which sends the guest revocations and requests.
    changed: Arc<Notify>,
    /// The guest has replied to a grant request.
    granted: Notify,
    /// The use of each of the guest's vectors.
    vectors: Mutex<BTreeMap<u16, Woken>>,
    /// Changes when the guest has to be told of its loop devices.
    loops_version: AtomicU64,
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
    pub fn new(
        number: GuestId,
        name: Name,
        backing: impl Into<Backing>,
        (to_guest, from_guest): (Vec<OwnedFd>, Vec<OwnedFd>),
    ) -> Arc<Self> {
        assert!(to_guest.len() > 1 && from_guest.len() > 1); // The configuration's limits.
        let (changed, granted) = (Arc::new(Notify::new()), Notify::new());
        let (vectors, pair_windows, frames) = (Mutex::default(), Mutex::default(), Mutex::default());
        let doorbells = |fds: Vec<OwnedFd>| fds.into_iter().map(Doorbell::from).collect();
        let (to_guest, from_guest) = (doorbells(to_guest), doorbells(from_guest));
        let viewer = Viewer { name: name.clone(), changed: Arc::clone(&changed) };
        let window = Window::new(WindowRef::Own(number), backing.into(), vec![viewer]);
        Arc::new(Self {
            number,
            name,
            window,
            changed,
            granted,
            vectors,
            loops_version: AtomicU64::new(0),
            pair_windows,
            frames,
            to_guest,
            from_guest,
        })
    }

    /// The guest's own window.
    pub fn window(&self) -> &Arc<Window> {
        &self.window
    }

    pub(crate) fn viewer(&self) -> Viewer {
        Viewer { name: self.name.clone(), changed: Arc::clone(&self.changed) }
    }

    /// The number of the guest.
    pub fn number(&self) -> GuestId {
        self.number
    }

    /// The guest's number among the peers of another guest's device; none once there were too many guests.
    pub fn peer(&self) -> Option<u16> {
        u16::try_from(self.number.0).ok()?.checked_add(GUEST)
    }

    /// The doorbells of the guest's domains, in the order of the vectors. The first stands for the proxy's vector and has no listener.
    pub fn doorbells(&self) -> Result<Vec<OwnedFd>, PlatformError> {
        let unused = copy_fd(&Doorbell::new()?);
        let domains = self.to_guest[1 + usize::from(PROXY_VECTOR)..].iter().map(copy_fd);
        std::iter::once(unused).chain(domains).collect()
    }

    /// The number of vectors of another guest that this guest's device can ring, at most.
    pub(crate) fn vectors_max(&self) -> u16 {
        u16::try_from(self.to_guest.len()).unwrap_or(u16::MAX)
    }

    /// The guest's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Maps the first page of the window.
    pub fn head(&self) -> Result<SharedMapping, WindowError> {
        self.window.backing().map(0, RegionSize(u64::from(PAGE_BYTES)))
    }

    /// Maps the proxy ring.
    pub fn proxy_ring(&self) -> Result<SharedMapping, WindowError> {
        self.window.backing().map(PROXY_RING_OFFSET, PROXY_RING.size())
    }

    /// Wakes the guest's daemon to read the proxy ring.
    pub fn ring_daemon(&self) {
        self.to_guest[usize::from(PROXY_VECTOR)].ring();
    }

    /// The doorbell with which the guest's daemon announces messages in the proxy ring.
    pub fn daemon_doorbell(&self) -> Result<OwnedFd, PlatformError> {
        copy_fd(&self.from_guest[usize::from(PROXY_VECTOR)])
    }

    /// The doorbell that wakes a domain of the guest.
    pub fn wakeup(&self, domain: DomainId) -> Result<Doorbell, WindowError> {
        Ok(self.to_guest[usize::from(self.vector(domain)?)].clone())
    }

    /// Frees the vector of a domain.
    pub fn release_vector(&self, domain: DomainId) {
        self.vectors().retain(|_, of| *of != Woken::Domain(domain));
    }

    /// Returns the next revoked extent, given how many of each window the guest already knows of.
    pub fn revoked(&self, reported: impl Fn(WindowId) -> usize) -> Option<RevokedExtent> {
        let own = self.window.revoked(ITSELF, reported(WindowId::OWN));
        let of_pair = |pair_window: &Arc<PairWindow>| pair_window.revoked(self.number, reported(pair_window.number()));
        own.or_else(|| self.pair_windows().iter().find_map(of_pair))
    }

    /// Notes that the guest has unmapped this extent. Returns false if it is not the first revoked extent of its window.
    pub fn reclaim(&self, revoked: RevokedExtent) -> bool {
        match revoked.window {
            WindowId::OWN => self.window.reclaim(ITSELF, revoked),
            // A pair window that has gone meanwhile has no extents left.
            window => self.with_pair_window(window, |pair| pair.reclaim(self.number, revoked)).unwrap_or(true),
        }
    }

    /// The next frame about pair windows. Such frames are sent before all others.
    pub fn next_frame(&self) -> Option<OutgoingFrame> {
        self.frames().front().cloned()
    }

    /// Notes that the frame was sent.
    pub fn frame_sent(&self) {
        self.frames().pop_front();
    }

    /// Queues a frame to the guest, to be sent before anything that is queued later.
    pub fn queue_frame(&self, frame: OutgoingFrame) {
        self.frames().push_back(frame);
        self.changed.notify_one();
    }

    /// The number of frames that were not sent yet.
    pub fn frames_waiting(&self) -> usize {
        self.frames().len()
    }

    fn frames(&self) -> MutexGuard<'_, VecDeque<OutgoingFrame>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next grant request to the guest.
    pub fn grant_request(&self) -> Option<GrantRequest> {
        let own = self.window.backing().grants().and_then(|grants| grants.request(ITSELF));
        own.or_else(|| self.pair_windows().iter().find_map(|pair_window| pair_window.grant_request(self.number)))
    }

    /// Notes that the request was sent.
    pub fn mark_requested(&self, request: GrantRequest) {
        match (request.window, self.window.backing().grants()) {
            (WindowId::OWN, Some(grants)) => grants.mark_requested(ITSELF),
            (WindowId::OWN, None) => {}
            (window, _) => {
                self.with_pair_window(window, |pair_window| pair_window.mark_requested(self.number)).unwrap_or_default()
            }
        }
    }

    /// Handles the guest's reply to a grant request; an empty grant means that it has no memory left. A reply about a pair window that has
    /// gone is ignored.
    pub fn handle_grant_reply(&self, window: WindowId, offset: u64, grant: &[u8]) -> Result<(), UnexpectedReply> {
        if window != WindowId::OWN {
            return self
                .with_pair_window(window, |pair_window| pair_window.handle_grant_reply(self.number, offset, grant))
                .unwrap_or(Ok(()));
        }
        let grants = self.window.backing().grants().ok_or(UnexpectedReply::Grant)?;
        let granted = grants.handle_grant_reply(ITSELF, offset, grant);
        self.granted.notify_waiters();
        granted.map(drop)
    }

    /// Handles the guest's reply to a map request.
    pub fn handle_map_reply(&self, window: WindowId, offset: u64, mapped: bool) -> Result<(), UnexpectedReply> {
        self.with_pair_window(window, |pair_window| pair_window.handle_map_reply(self.number, offset, mapped))
            .unwrap_or(Ok(()))
    }

    /// Handles the guest's offer of a pair window; an empty offer means that the guest cannot have one.
    pub fn handle_pair_offer(&self, window: WindowId, offer: &[u8]) -> Result<(), UnexpectedReply> {
        self.with_pair_window(window, |pair_window| pair_window.handle_pair_offer(self.number, offer)).unwrap_or(Ok(()))
    }

    fn with_pair_window<T>(&self, window: WindowId, ask: impl FnOnce(&PairWindow) -> T) -> Option<T> {
        self.pair_windows()
            .iter()
            .find(|pair_window| pair_window.number() == window)
            .map(|pair_window| ask(pair_window))
    }

    /// Waits until the window has all the memory that a domain needs to attach, or is known not to get it.
    pub async fn ready(&self) {
        loop {
            let granted = self.granted.notified();
            if self.window.backing().progress() != Progress::Pending {
                return;
            }
            granted.await;
        }
    }

    /// True if another proxy session can use the window once one has ended.
    pub fn is_reusable(&self) -> bool {
        self.window.backing().is_file()
    }

    /// Waits until something may have been revoked, or may have to be requested.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// True as long as the extent of this generation is allocated.
    pub fn is_live(&self, window: WindowId, offset: u64, generation: u32) -> bool {
        match window {
            WindowId::OWN => self.window.is_live(offset, generation),
            _ => self.with_pair_window(window, |pair| pair.window().is_live(offset, generation)).unwrap_or(false),
        }
    }

    fn pair_windows(&self) -> Vec<Arc<PairWindow>> {
        let mut pair_windows = self.pair_windows.lock().unwrap_or_else(PoisonError::into_inner);
        pair_windows.retain(|pair_window| pair_window.strong_count() > 0);
        pair_windows.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn add_pair_window(&self, pair_window: &Arc<PairWindow>) {
        self.pair_windows.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(pair_window));
    }

    /// Has the guest told of its loop devices again.
    pub fn loops_changed(&self) {
        self.loops_version.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_one();
    }

    /// A number that changes when the guest has to be told of its loop devices. It is 0 at first.
    pub fn loops_version(&self) -> u64 {
        self.loops_version.load(Ordering::Relaxed)
    }

    /// Returns the vector that wakes a domain, from 1 on. It is chosen at the first call for a domain.
    pub(crate) fn vector(&self, domain: DomainId) -> Result<u16, WindowError> {
        self.vector_of(Woken::Domain(domain))
    }

    /// Returns the vector that wakes all loop devices. The guest keeps it, because its driver may be late to give it up.
    pub(crate) fn loop_vector(&self) -> Result<u16, WindowError> {
        self.vector_of(Woken::Loops)
    }

    fn vector_of(&self, woken: Woken) -> Result<u16, WindowError> {
        let mut vectors = self.vectors();
        if let Some((&vector, _)) = vectors.iter().find(|&(_, of)| *of == woken) {
            return Ok(vector);
        }
        let all = 1..self.vectors_max();
        let free = all.clone().find(|vector| !vectors.contains_key(vector));
        let free = free.ok_or_else(|| WindowError::VectorsTaken { guest: self.name.clone(), vectors: all.len() })?;
        vectors.insert(free, woken);
        Ok(free)
    }

    /// Returns the vector with which domains of the guest ring a worker, and the end at which the worker listens.
    pub(crate) fn worker_doorbell(&self, worker: u8) -> (u16, Doorbell) {
        let shared = u16::try_from(self.from_guest.len() - 1).unwrap_or(u16::MAX);
        let vector = 1 + u16::from(worker) % shared;
        (vector, self.from_guest[usize::from(vector)].clone())
    }

    fn vectors(&self) -> MutexGuard<'_, BTreeMap<u16, Woken>> {
        self.vectors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
