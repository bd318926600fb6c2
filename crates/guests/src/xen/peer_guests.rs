//! Pair windows of this guest: the side of the guest daemon ([`proxy::guest`](crate::proxy::guest)).
//!
//! ```text
//!   the granting guest: a head page, a port, grant batches ── by the backend ──► the mapping guest
//!     Relay ◄═══════════ an event channel of the window ═══════════► Relay
//! ```
//!
//! Grants of the peer guest arrive through the backend. Each batch is mapped once, completely, before a program gets it. If that fails, this side
//! reports it, and the batch is dropped. Programs ring each other by event channels, which belong to the batches for their ready maps. Programs that
//! do not support event channels ring by the relay. The peer's rings wake programs of this guest, but not the daemon's proxy ring. The peer may keep
//! granted pages as long as it likes, so grants to peers always leave [`RESERVE_PAGES`] for this guest's own programs.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use isthmus_layout::RegionSize;
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::proxy::WindowId;
use isthmus_layout::proxy::grants::{
    GRANT_BATCH_BYTES_MAX, GRANT_DESCRIPTION_BYTES_MAX, GUEST_PRESENT_WORD, GrantRequest, HOST_PRESENT_WORD,
};
use isthmus_layout::proxy::pair_window::{MapRequest, PairInvite};
use isthmus_platform::Platform as _;
use isthmus_platform_kvm::{GUEST as OWN, HOST};
use isthmus_platform_xen::kernel::{Pages as _, Port as _};
use isthmus_platform_xen::{Domid, GrantRef, SharedBatch, SharedHead, UnmapNotify, Xen, XenMemory};
use isthmus_shm::{Access, SharedMapping, Words as _};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_local};

use super::XenKernel;
use super::held_port::HeldPort;
use super::relay::{BACKEND, GUEST, Relay, VectorDoorbells};
use crate::proxy::guest::{EventChannelFd, GuestDevice};

/// The maximum number of pair windows of a guest: the limit of its backend, and some that are being closed.
const PEER_GUESTS_MAX: usize = 64;

/// The number of pages that the kernel must still be able to grant to the backend after a grant to another guest. A guest may keep granted pages as
/// long as it likes, and they count towards the kernel's limit until then.
const RESERVE_PAGES: u32 = 256;

/// The device of a window of a Xen guest: its own window or a pair window.
pub(super) enum XenDevice<K: XenKernel, D> {
    /// The guest's own window, shared with the host.
    Host { device: D, peer_guests: PeerGuests<K> },
    /// A pair window of the guest.
    Pair(Rc<PeerGuest<K>>),
}

/// All pair windows of the guest.
pub(super) struct PeerGuests<K: XenKernel> {
    xen: Xen<K>,
    backend: Domid,
    doorbells: Rc<VectorDoorbells>,
    open: RefCell<BTreeMap<WindowId, Rc<PeerGuest<K>>>>,
    /// Notified when a pair window has appeared or disappeared.
    changed: Rc<Notify>,
}

/// A pair window, with the peer guest.
pub(super) struct PeerGuest<K: XenKernel> {
    domid: Domid,
    doorbells: Rc<VectorDoorbells>,
    batches: RefCell<BTreeMap<u64, GrantBatch<K>>>,
    /// Set when the relay has ended or this guest has closed the window.
    closed: Rc<Cell<bool>>,
    /// Set when both guest daemons are present.
    present: Rc<Cell<bool>>,
    relaying: AbortHandle,
    xen: Xen<K>,
    /// The memory of the head page, if this guest grants the window.
    head_memory: Option<XenMemory<K::Pages>>,
    /// The descriptor that keeps the relay's port.
    _held: HeldPort<K>,
}

/// A grant batch of a window.
struct GrantBatch<K: XenKernel> {
    pages: BatchPages<K>,
    event_channel: Option<EventChannelPort<K>>,
}

enum BatchPages<K: XenKernel> {
    /// Pages that this guest has granted.
    Ours(XenMemory<K::Pages>),
    /// Pages that the peer guest has granted.
    Theirs(Vec<GrantRef>),
}

/// This guest's end of an event channel by which programs of both guests ring each other.
struct EventChannelPort<K: XenKernel> {
    port: K::Port,
    _held: HeldPort<K>,
}

/// Returns whether batches of this size have an event channel. Only batches for a single ready map do.
fn has_event_channel(bytes: u64) -> bool {
    bytes == u64::from(PAGE_BYTES)
}

fn page() -> RegionSize {
    RegionSize(PAGE_BYTES.into())
}

fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::other(text.into())
}

impl<K: XenKernel> Drop for PeerGuest<K> {
    fn drop(&mut self) {
        self.relaying.abort();
    }
}

impl<K: XenKernel> PeerGuest<K> {
    /// Starts a relay over a window with a mapped head page.
    fn start_relay(
        of: &PeerGuests<K>,
        domid: Domid,
        (head, memory): (SharedMapping, Option<XenMemory<K::Pages>>),
        port: K::Port,
    ) -> io::Result<Rc<Self>> {
        let doorbells = of.doorbells.for_peer()?;
        let mut held = HeldPort::of(of.xen.kernel(), of.xen.own(), &port)?;
        held.announced = true; // The host invites only announced guests.
        let words = if memory.is_some() { GUEST } else { BACKEND };
        let relay = Relay::new(port, head, words, Rc::clone(&doorbells));
        let (closed, present) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(memory.is_none())));
        let (closing, presence, changed) = (Rc::clone(&closed), Rc::clone(&present), Rc::clone(&of.changed));
        let relaying = spawn_local(async move {
            let is_here = || {
                presence.set(true);
                changed.notify_one();
            };
            match relay.run_with_callback(is_here).await {
                Ok(()) => {
                    tracing::info!(domain = %domid, "a guest has detached from a pair window")
                }
                Err(error) => tracing::error!(domain = %domid, "an event channel cannot be used: {error}"),
            }
            closing.set(true);
            changed.notify_one();
        });
        let (xen, relaying) = (of.xen.clone(), relaying.abort_handle());
        let (batches, head_memory) = (RefCell::default(), memory);
        Ok(Rc::new(Self { domid, doorbells, batches, closed, present, relaying, xen, head_memory, _held: held }))
    }

    /// Grants a batch to the peer guest.
    fn grant(&self, backend: Domid, GrantRequest { offset, bytes, .. }: GrantRequest) -> io::Result<Vec<u8>> {
        let mut batches = self.batches.borrow_mut();
        if batches.contains_key(&offset) || bytes == 0 || bytes > GRANT_BATCH_BYTES_MAX || self.head_memory.is_none() {
            return Err(invalid(format!("the host requests {bytes} bytes at {offset} of a pair window")));
        }
        let memory = self.xen.allocate(RegionSize(bytes), &self.domid, Access::ReadWrite).map_err(io::Error::other)?;
        // Grants that are dropped when this function returns were never announced to a domain.
        let reserve = self.xen.kernel().offer(backend, RESERVE_PAGES, Access::ReadWrite);
        reserve.map_err(|_| invalid("other guests have nearly all that this one may grant"))?;
        let pages = self.xen.grant(&memory, &self.domid, Access::ReadWrite).map_err(io::Error::other)?;
        let port = has_event_channel(bytes).then(|| self.xen.kernel().listen(self.domid)).transpose()?;
        let grant = SharedBatch { event_channel: port.as_ref().map(K::Port::number), pages }.emit();
        assert!(grant.len() <= GRANT_DESCRIPTION_BYTES_MAX); // Ours: a grant has 72 bytes at most.
        let event_channel = port.map(|port| self.event_channel(port)).transpose()?;
        batches.insert(offset, GrantBatch { pages: BatchPages::Ours(memory), event_channel });
        Ok(grant)
    }

    fn event_channel(&self, port: K::Port) -> io::Result<EventChannelPort<K>> {
        port.restrict(self.domid)?;
        let mut held = HeldPort::of(self.xen.kernel(), self.xen.own(), &port)?;
        held.announced = true; // As above.
        Ok(EventChannelPort { port, _held: held })
    }

    /// Adds a batch that the peer guest grants.
    fn map_grant(&self, MapRequest { offset, bytes, grant, .. }: &MapRequest<'_>) -> io::Result<()> {
        let mut batches = self.batches.borrow_mut();
        if batches.contains_key(offset) || *bytes == 0 || *bytes > GRANT_BATCH_BYTES_MAX || self.head_memory.is_some() {
            return Err(invalid(format!("the host wants {bytes} bytes mapped at {offset} of a pair window")));
        }
        let SharedBatch { event_channel, pages } = SharedBatch::parse(grant, self.domid).map_err(io::Error::other)?;
        let refs = self.xen.resolve_refs(&pages, RegionSize(*bytes)).map_err(io::Error::other)?;
        // Mapping is tried here, so that no program receives a batch that cannot be mapped.
        self.xen.kernel().map(self.domid, &refs, Access::ReadWrite, None)?;
        let event_channel = match event_channel {
            Some(port) => Some(self.event_channel(self.xen.kernel().bind(self.domid, port)?)?),
            None if has_event_channel(*bytes) => {
                return Err(invalid("a batch that is to have an event channel has none"));
            }
            None => None,
        };
        batches.insert(*offset, GrantBatch { pages: BatchPages::Theirs(refs), event_channel });
        Ok(())
    }

    fn event_channel_fd(&self, offset: u64) -> io::Result<EventChannelFd> {
        let batches = self.batches.borrow();
        let event_channel = batches.get(&offset).and_then(|batch| batch.event_channel.as_ref());
        let event_channel =
            event_channel.ok_or_else(|| invalid(format!("there is no event channel at {offset} of a pair window")))?;
        // `announced` stays false, because this daemon and its announcement may be gone before the last program ends, in the same domain.
        let keep_alive = HeldPort::of(self.xen.kernel(), self.xen.own(), &event_channel.port)?;
        let end = event_channel.port.as_fd().try_clone_to_owned()?;
        Ok(EventChannelFd { end, port: event_channel.port.number().0, keep_alive: Box::new(keep_alive) })
    }

    fn extent(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd> {
        let batches = self.batches.borrow();
        let batch =
            batches.get(&offset).ok_or_else(|| invalid(format!("there is nothing at {offset} of a pair window")))?;
        let pages = usize::try_from(bytes.div_ceil(PAGE_BYTES.into())).map_err(io::Error::other)?;
        let too_short = || invalid(format!("the batch at {offset} of a pair window has less than {bytes} bytes"));
        match &batch.pages {
            BatchPages::Ours(memory) if pages <= memory.pages().refs().len() => {
                memory.pages().as_fd().try_clone_to_owned()
            }
            BatchPages::Theirs(refs) => {
                let refs = refs.get(..pages).ok_or_else(too_short)?;
                Ok(self.xen.kernel().lend_fd(self.domid, refs)?)
            }
            BatchPages::Ours(_) => Err(too_short()),
        }
    }
}

impl<K: XenKernel> PeerGuests<K> {
    pub(super) fn new(xen: Xen<K>, backend: Domid, doorbells: Rc<VectorDoorbells>) -> Self {
        Self { xen, backend, doorbells, open: RefCell::default(), changed: Rc::default() }
    }

    fn join_pair(&self, invite: &PairInvite<'_>) -> io::Result<Option<Vec<u8>>> {
        let domid = Domid::new(invite.domid).filter(|domid| *domid != self.backend);
        let domid = domid.ok_or_else(|| invalid(format!("{} is no domain of a guest", invite.domid)))?;
        if invite.window == WindowId::OWN || self.open.borrow().contains_key(&invite.window) {
            return Err(invalid(format!("window {} is there already", invite.window.0)));
        }
        if self.open.borrow().len() >= PEER_GUESTS_MAX {
            return Err(invalid(format!("there are {PEER_GUESTS_MAX} pair windows")));
        }
        let (peer_guest, offer) = match invite.offer {
            [] => self.offer(domid).map(|(peer_guest, offer)| (peer_guest, Some(offer)))?,
            offer => (self.map(domid, offer)?, None),
        };
        self.open.borrow_mut().insert(invite.window, peer_guest);
        Ok(offer)
    }

    /// Grants a head page and creates a port.
    fn offer(&self, to: Domid) -> io::Result<(Rc<PeerGuest<K>>, Vec<u8>)> {
        let memory = self.xen.allocate(page(), &to, Access::ReadWrite).map_err(io::Error::other)?;
        let head = SharedMapping::new(self.xen.map_own(&memory).map_err(io::Error::other)?);
        let port = self.xen.kernel().listen(to)?;
        memory.pages().set_unmap_notify(UnmapNotify { byte_at: u64::from(4 * GUEST_PRESENT_WORD), port: &port })?;
        head.store(GUEST_PRESENT_WORD, 1, Ordering::Release);
        let grant = self.xen.grant(&memory, &to, Access::ReadWrite).map_err(io::Error::other)?;
        let offer = SharedHead { port: port.number(), head: grant }.emit();
        assert!(offer.len() <= GRANT_DESCRIPTION_BYTES_MAX); // Ours: as above.
        Ok((PeerGuest::start_relay(self, to, (head, Some(memory)), port)?, offer))
    }

    /// Maps the offer of another guest.
    fn map(&self, from: Domid, offer: &[u8]) -> io::Result<Rc<PeerGuest<K>>> {
        let SharedHead { port, head } = SharedHead::parse(offer, from).map_err(io::Error::other)?;
        let port = self.xen.kernel().bind(from, port)?;
        let unmap_notify = UnmapNotify { byte_at: u64::from(4 * HOST_PRESENT_WORD), port: &port };
        let head =
            self.xen.map_with_notify(&head, page(), Access::ReadWrite, Some(unmap_notify)).map_err(io::Error::other)?;
        let head = SharedMapping::new(head);
        if head.load(GUEST_PRESENT_WORD, Ordering::Acquire) != 1 {
            return Err(invalid("the other one has gone already"));
        }
        head.store(HOST_PRESENT_WORD, 1, Ordering::Release);
        port.notify()?;
        PeerGuest::start_relay(self, from, (head, None), port)
    }

    fn get(&self, window: WindowId) -> io::Result<Rc<PeerGuest<K>>> {
        let known = self.open.borrow().get(&window).cloned();
        known.ok_or_else(|| invalid(format!("there is no pair window {}", window.0)))
    }

    fn leave_pair(&self, window: WindowId) {
        if let Some(peer_guest) = self.open.borrow_mut().remove(&window) {
            peer_guest.closed.set(true);
        }
    }
}

impl<K: XenKernel, D: GuestDevice> GuestDevice for XenDevice<K, D> {
    fn window(&self, at: u64, size: RegionSize) -> io::Result<SharedMapping> {
        match self {
            Self::Host { device, .. } => device.window(at, size),
            Self::Pair(_) => Err(invalid("a pair window is its programs'")),
        }
    }

    fn extent(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd> {
        match self {
            Self::Host { device, .. } => device.extent(offset, bytes),
            Self::Pair(peer_guest) => peer_guest.extent(offset, bytes),
        }
    }

    /// Drops the batch. A domain or process that still maps it keeps the mapping, and the pages are not reused while it does.
    fn revoke(&self, offset: u64, extent: Option<&OwnedFd>) -> io::Result<()> {
        match self {
            Self::Host { device, .. } => device.revoke(offset, extent),
            Self::Pair(peer_guest) => {
                peer_guest.batches.borrow_mut().remove(&offset);
                Ok(())
            }
        }
    }

    fn doorbell_sender(&self, peer: u16, vector: u16) -> io::Result<OwnedFd> {
        match self {
            Self::Host { device, .. } if peer == HOST || peer == OWN => device.doorbell_sender(peer, vector),
            Self::Host { peer_guests, .. } => peer_guests.get(WindowId(peer - OWN))?.doorbells.sender(vector),
            Self::Pair(_) => Err(invalid("a pair window has no doorbells")),
        }
    }

    fn event_channel(&self, offset: u64) -> io::Result<EventChannelFd> {
        match self {
            Self::Host { .. } => Err(invalid("a guest's own window has no event channels")),
            Self::Pair(peer_guest) => peer_guest.event_channel_fd(offset),
        }
    }

    fn listen(&self, vector: u16) -> io::Result<OwnedFd> {
        match self {
            Self::Host { device, .. } => device.listen(vector),
            Self::Pair(_) => Err(invalid("a pair window has no doorbells")),
        }
    }

    fn hangup_fd(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Host { device, .. } => device.hangup_fd(),
            Self::Pair(_) => Err(invalid("a pair window has no end of its own")),
        }
    }

    fn pair_devices(&self, known: &BTreeSet<WindowId>) -> Vec<(WindowId, Self)> {
        let Self::Host { peer_guests, .. } = self else { return Vec::new() };
        let all = peer_guests.open.borrow();
        let new = all.iter().filter(|(window, of)| of.present.get() && !of.closed.get() && !known.contains(window));
        new.map(|(window, of)| (*window, Self::Pair(Rc::clone(of)))).collect()
    }

    fn is_gone(&self) -> bool {
        match self {
            Self::Host { device, .. } => device.is_gone(),
            Self::Pair(peer_guest) => peer_guest.closed.get(),
        }
    }

    fn grant_extent(&self, request: GrantRequest) -> io::Result<Vec<u8>> {
        match self {
            Self::Host { device, .. } if request.window == WindowId::OWN => device.grant_extent(request),
            Self::Host { peer_guests, .. } => peer_guests.get(request.window)?.grant(peer_guests.backend, request),
            Self::Pair(_) => Err(invalid("a pair window takes no grant requests")),
        }
    }

    fn join_pair(&self, invite: &PairInvite<'_>) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Host { peer_guests, .. } => peer_guests.join_pair(invite),
            Self::Pair(_) => Err(invalid("a pair window has no others beside it")),
        }
    }

    fn leave_pair(&self, window: WindowId) {
        if let Self::Host { peer_guests, .. } = self {
            peer_guests.leave_pair(window);
        }
    }

    fn map_grant(&self, request: &MapRequest<'_>) -> io::Result<()> {
        match self {
            Self::Host { peer_guests, .. } => peer_guests.get(request.window)?.map_grant(request),
            Self::Pair(_) => Err(invalid("a pair window takes no map requests")),
        }
    }

    async fn changed(&self) {
        match self {
            Self::Host { peer_guests, .. } => peer_guests.changed.notified().await,
            Self::Pair(_) => std::future::pending().await,
        }
    }

    fn is_shareable(&self) -> bool {
        match self {
            Self::Host { device, .. } => device.is_shareable(),
            // A kernel maps pages of another domain only once through each descriptor.
            Self::Pair(peer_guest) => peer_guest.head_memory.is_some(),
        }
    }

    fn is_reusable(&self) -> bool {
        match self {
            Self::Host { device, .. } => device.is_reusable(),
            Self::Pair(_) => false,
        }
    }
}

#[cfg(test)]
mod tests;
