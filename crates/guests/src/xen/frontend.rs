//! The daemon of a Xen guest. It finds its backend, grants it a window, and serves the guest's programs in that window.
//!
//! ```text
//!   the store's thread                                        the guest's daemon
//!   backends, their advertisements ──► a window, a port ──► OfferedWindow ──► GuestDaemon over a Frontend, Relay
//!                                      offered in our own advertisement
//! ```
//!
//! A window is granted to one incarnation of one backend, and ends with it. The backend may keep granted pages mapped as long as it likes, so no
//! part of the window is reused.
//!
//! A domain that was saved and restored has another number, or its announcement in XenStore is missing. All its connections to other domains are
//! then gone, and the daemon starts anew.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use isthmus_layout::RegionSize;
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::proxy::grants::{
    GRANT_BATCH_BYTES_MAX, GRANT_DESCRIPTION_BYTES_MAX, GUEST_PRESENT_WORD, GrantRequest,
};
use isthmus_layout::proxy::{PROXY_RING, PROXY_RING_OFFSET, WindowId};
use isthmus_platform::{Platform as _, PlatformError};
use isthmus_platform_kvm::HOST;
use isthmus_platform_xen::kernel::{Pages as _, Port as _};
use isthmus_platform_xen::presence::{HEARTBEAT_INTERVAL, PresenceAnnouncer, PresenceEvent, PresenceWatcher};
use isthmus_platform_xen::{Domid, Offer, Store, StoreError, UnmapNotify, Xen, XenMemory, admission};
use isthmus_shm::{Access, SharedMapping, Words as _};
use rustix::io::Errno;
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_local;

use super::held_port::{HeldPort, is_same_domain};
use super::peer_guests::{PeerGuests, XenDevice};
use super::relay::{GUEST, Relay, VectorDoorbells};
use super::{
    POLL_INTERVAL, StopFlag, StopOnDrop, XenKernel, connect_store, duplicate, event, incarnation, run_with_retry,
    spawn_thread,
};
use crate::proxy::guest::{GuestDaemon, GuestDevice, GuestEnded, refuse_connections};
use isthmus_control::policy::Policy;
use isthmus_control::server::Stop;
use isthmus_control::socket::Listener;

/// A window that was offered to a backend.
struct OfferedWindow<K: XenKernel> {
    xen: Xen<K>,
    backend: Domid,
    head: SharedMapping,
    proxy_ring: SharedMapping,
    memory: [XenMemory<K::Pages>; 2],
    port: K::Port,
    /// Notified by the store's thread when the backend is gone.
    gone: Arc<Notify>,
    released: ReleaseOnDrop,
}

/// Notifies the store's thread, when dropped, that a window and its event channel are no longer used.
struct ReleaseOnDrop(Arc<AtomicBool>, std::thread::Thread);

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}

/// Serves the guest's programs until it is stopped. Runs inside a [`LocalSet`](tokio::task::LocalSet).
pub async fn serve<K: XenKernel>(kernel: K, listener: &Listener, policy: &Policy, stop: &Stop) -> io::Result<()> {
    let (sender, mut offered_windows) = mpsc::channel(1);
    let (_stop_on_drop, stop_flag) = StopOnDrop::new();
    spawn_thread("xen-backend", move || run_backend_finder(&kernel, &sender, &stop_flag))?;
    loop {
        let next = async {
            tokio::select! {
                () = stop.stopped() => None,
                offered_window = offered_windows.recv() => offered_window, // The thread ends after us.
            }
        };
        let Some(offered_window) = refuse_connections(listener, next).await? else { return Ok(()) };
        match offered_window.serve(listener, policy, stop).await {
            Ok(GuestEnded::Stopped) => return Ok(()),
            Ok(GuestEnded::WindowDetached) => {}
            Err(error) => tracing::error!("a window could not be used: {error}"),
        }
    }
}

impl<K: XenKernel> OfferedWindow<K> {
    async fn serve(self, listener: &Listener, policy: &Policy, stop: &Stop) -> io::Result<GuestEnded> {
        let Self { xen, backend, head, proxy_ring, memory, port, gone, released } = self;
        let (doorbells, ended) = (VectorDoorbells::new()?, event()?);
        let relay = Relay::new(port, head.clone(), GUEST, Rc::clone(&doorbells));
        let end = duplicate(&ended)?;
        let relaying = spawn_local(async move {
            tokio::select! {
                relayed = relay.run() => drop(relayed.inspect_err(|error| tracing::error!("the event channel cannot be used: {error}"))),
                () = gone.notified() => {}
            }
            let _ = rustix::io::write(&end, &1_u64.to_ne_bytes());
        });
        let batches = RefCell::default();
        let peer_guests = PeerGuests::new(xen.clone(), backend, Rc::clone(&doorbells));
        let device = Frontend {
            xen,
            backend,
            head,
            proxy_ring,
            _memory: memory,
            batches,
            doorbells,
            ended,
            _released: released,
        };
        let device = XenDevice::Host { device, peer_guests };
        let served = GuestDaemon::new(device, policy.clone()).run(listener, stop).await;
        relaying.abort();
        served
    }
}

/// The device of a window that this guest has granted.
struct Frontend<K: XenKernel> {
    xen: Xen<K>,
    backend: Domid,
    head: SharedMapping,
    proxy_ring: SharedMapping,
    _memory: [XenMemory<K::Pages>; 2],
    /// The grant batches, by offset.
    batches: RefCell<BTreeMap<u64, XenMemory<K::Pages>>>,
    doorbells: Rc<VectorDoorbells>,
    /// Readable once the backend is gone.
    ended: OwnedFd,
    _released: ReleaseOnDrop,
}

impl<K: XenKernel> GuestDevice for Frontend<K> {
    fn window(&self, at: u64, _size: RegionSize) -> io::Result<SharedMapping> {
        match at {
            0 => Ok(self.head.clone()),
            PROXY_RING_OFFSET => Ok(self.proxy_ring.clone()),
            _ => Err(io::Error::other("the part of the window belongs to a program")),
        }
    }

    fn extent(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd> {
        let batches = self.batches.borrow();
        let batch = batches.get(&offset).ok_or_else(|| io::Error::other(format!("nothing was made for {offset}")))?;
        if bytes > batch.pages().refs().len() as u64 * u64::from(PAGE_BYTES) {
            return Err(io::Error::other(format!("the grants at {offset} have less than {bytes} bytes")));
        }
        batch.pages().as_fd().try_clone_to_owned()
    }

    /// Drops the batch. A domain or process that still maps it keeps the mapping, and the pages are not reused while it does.
    fn revoke(&self, offset: u64, _extent: Option<&OwnedFd>) -> io::Result<()> {
        self.batches.borrow_mut().remove(&offset);
        Ok(())
    }

    fn doorbell_sender(&self, peer: u16, vector: u16) -> io::Result<OwnedFd> {
        if peer == HOST { self.doorbells.sender(vector) } else { self.doorbells.own_sender(vector) }
    }

    fn listen(&self, vector: u16) -> io::Result<OwnedFd> {
        self.doorbells.listen(vector)
    }

    fn hangup_fd(&self) -> io::Result<OwnedFd> {
        duplicate(&self.ended)
    }

    fn pair_devices(&self, _known: &BTreeSet<WindowId>) -> Vec<(WindowId, Self)> {
        Vec::new()
    }

    fn is_gone(&self) -> bool {
        false // Reported by `hangup_fd`.
    }

    fn grant_extent(&self, GrantRequest { offset, bytes, .. }: GrantRequest) -> io::Result<Vec<u8>> {
        let mut batches = self.batches.borrow_mut();
        if batches.contains_key(&offset) || bytes == 0 || bytes > GRANT_BATCH_BYTES_MAX {
            return Err(io::Error::other(format!("the host wants {bytes} bytes at {offset}")));
        }
        let batch = self.xen.allocate(RegionSize(bytes), &self.backend, Access::ReadWrite).map_err(io::Error::other)?;
        let grant = self.xen.grant(&batch, &self.backend, Access::ReadWrite).map_err(io::Error::other)?.emit();
        assert!(grant.len() <= GRANT_DESCRIPTION_BYTES_MAX); // Ours: a grant has 72 bytes at most.
        batches.insert(offset, batch);
        Ok(grant)
    }

    fn is_reusable(&self) -> bool {
        false
    }
}

/// Runs the store's thread until it is stopped. An offer is kept if the connection to the store fails.
fn run_backend_finder<K: XenKernel>(kernel: &K, sender: &mpsc::Sender<OfferedWindow<K>>, stop_flag: &StopFlag) {
    let mut known = None;
    run_with_retry("backends are not looked for", stop_flag, || {
        let finder = match &mut known {
            None => known.insert(BackendFinder::open(kernel)?),
            Some(finder) => {
                finder.reopen()?;
                finder
            }
        };
        finder.run(sender, stop_flag)?;
        known = None;
        Ok(())
    });
}

/// Opens a connection that watches the list of backends that this guest may attach to.
fn connect_watching<K: XenKernel>(kernel: &K) -> Result<Store<K::StoreTransport>, StoreError> {
    let mut store = connect_store(kernel)?;
    store.watch(admission::BACKENDS, "backends")?;
    Ok(store)
}

/// Looks for a backend.
struct BackendFinder<'a, K: XenKernel> {
    kernel: &'a K,
    store: Store<K::StoreTransport>,
    presence_watcher: PresenceWatcher<K::StoreTransport>,
    own: Domid,
    /// The backends that this guest may attach to, in order of preference.
    allowed: Vec<Domid>,
    /// The incarnations of the present backends.
    present: BTreeMap<Domid, u64>,
    offered: Option<CurrentOffer<K>>,
}

/// The window that is offered to a backend.
struct CurrentOffer<K: XenKernel> {
    backend: Domid,
    /// The backend's incarnation.
    backend_incarnation: u64,
    announcement: PresenceAnnouncer,
    held: HeldPort<K>,
    gone: Arc<Notify>,
    released: Arc<AtomicBool>,
}

/// How long the control plane may take to release a window.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

impl<'a, K: XenKernel> BackendFinder<'a, K> {
    fn open(kernel: &'a K) -> Result<Self, StoreError> {
        let (mut store, presence_watcher) = (connect_watching(kernel)?, PresenceWatcher::new(connect_store(kernel)?));
        let own = store.own_domid()?;
        Ok(Self { kernel, store, presence_watcher, own, allowed: Vec::new(), present: BTreeMap::new(), offered: None })
    }

    /// Continues over new connections.
    fn reopen(&mut self) -> Result<(), StoreError> {
        self.store = connect_watching(self.kernel)?;
        self.presence_watcher.reconnect(connect_store(self.kernel)?)
    }

    /// Offers windows until it is stopped, a connection fails, or this is not the same domain any more.
    fn run(&mut self, sender: &mpsc::Sender<OfferedWindow<K>>, stop_flag: &StopFlag) -> Result<(), StoreError> {
        let mut next_count = Instant::now();
        while !stop_flag.is_stopped() {
            let now = Instant::now();
            let mut is_due = next_count <= now;
            while self.store.event(Duration::ZERO)?.is_some() {
                is_due = true;
            }
            if is_due {
                next_count = now + HEARTBEAT_INTERVAL;
                let announced = self.offered.as_ref().is_some_and(|offered| offered.held.announced);
                if !is_same_domain(&mut self.store, self.own, announced)? {
                    tracing::warn!("this domain was saved and restored: everything that it had with others is gone");
                    return self.withdraw_offer();
                }
                self.update_allowed()?;
            }
            self.ensure_offer(sender)?;
            if let Some(offered) = &mut self.offered {
                offered.announcement.renew(&mut self.store, now)?;
                offered.held.announced = true;
            }
            for event in self.presence_watcher.poll(POLL_INTERVAL)? {
                self.handle_event(event);
            }
        }
        self.withdraw_offer()
    }

    /// Updates the backends that this guest may attach to.
    fn update_allowed(&mut self) -> Result<(), StoreError> {
        self.allowed = admission::backends(&mut self.store, self.own)?;
        if let Some(lost) = self.offered.as_ref().map(|offered| offered.backend).filter(|to| !self.allowed.contains(to))
        {
            tracing::warn!(backend = %lost, "this domain may not attach to it any more");
        }
        self.present.retain(|backend, _| self.allowed.contains(backend));
        self.presence_watcher.follow_only(&self.allowed.iter().copied().collect())
    }

    fn handle_event(&mut self, event: PresenceEvent) {
        match event {
            PresenceEvent::Disappeared(backend, how) => {
                self.present.remove(&backend);
                if self.offered.as_ref().is_some_and(|offered| offered.backend == backend) {
                    tracing::warn!(%backend, "{how}");
                }
            }
            PresenceEvent::Appeared(backend, advertisement) => {
                self.present.insert(backend, advertisement.incarnation);
            }
        }
    }

    /// Withdraws the offer. Removing the announcement tells the backend that this guest has no part of the window open.
    fn withdraw_offer(&mut self) -> Result<(), StoreError> {
        let Some(CurrentOffer { mut announcement, held, gone, released, .. }) = self.offered.take() else {
            return Ok(());
        };
        gone.notify_one();
        let limit = Instant::now() + RELEASE_TIMEOUT;
        while !released.load(Ordering::Acquire) && Instant::now() < limit {
            std::thread::park_timeout(limit.saturating_duration_since(Instant::now()));
        }
        drop(held);
        announcement.remove(&mut self.store)
    }

    /// Offers a window to the first present backend, unless there is a valid offer.
    fn ensure_offer(&mut self, sender: &mpsc::Sender<OfferedWindow<K>>) -> Result<(), StoreError> {
        let is_good = |offered: &CurrentOffer<K>| {
            !offered.released.load(Ordering::Acquire)
                && self.present.get(&offered.backend) == Some(&offered.backend_incarnation)
        };
        if self.offered.as_ref().is_some_and(|offered| !is_good(offered)) {
            self.withdraw_offer()?;
        }
        if self.offered.is_some() {
            return Ok(());
        }
        let found = self.allowed.iter().find_map(|backend| Some((*backend, *self.present.get(backend)?)));
        let Some((backend, incarnation)) = found else { return Ok(()) };
        match self.make_offer(backend, incarnation) {
            Ok((offered_window, offered)) => {
                if sender.blocking_send(offered_window).is_ok() {
                    self.offered = Some(offered);
                }
            }
            Err(error) => tracing::error!(%backend, "no window can be offered: {error}"),
        }
        Ok(())
    }

    fn make_offer(
        &self,
        backend: Domid,
        backend_incarnation: u64,
    ) -> Result<(OfferedWindow<K>, CurrentOffer<K>), PlatformError> {
        let refused = |operation| move |source| PlatformError::Refused { operation, source };
        let drawn = incarnation().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let own = drawn.map_err(refused("drawing a random number"))?;
        let xen = Xen::new(self.kernel.clone(), self.own);
        let granted = |size| {
            let memory = xen.allocate(size, &backend, Access::ReadWrite)?;
            let window = SharedMapping::new(xen.map_own(&memory)?);
            let grant = xen.grant(&memory, &backend, Access::ReadWrite)?;
            Ok::<_, PlatformError>((memory, window, grant))
        };
        let (head_memory, head, head_grant) = granted(RegionSize(PAGE_BYTES.into()))?;
        let (proxy_ring_memory, proxy_ring, proxy_ring_grant) = granted(PROXY_RING.size())?;
        let port = self.kernel.listen(backend).map_err(refused("making an event channel"))?;
        let unmap_notify = UnmapNotify { byte_at: u64::from(4 * GUEST_PRESENT_WORD), port: &port };
        head_memory.pages().set_unmap_notify(unmap_notify).map_err(refused("setting an unmap notification"))?;
        head.store(GUEST_PRESENT_WORD, 1, Ordering::Release);
        let offer = Offer {
            backend,
            incarnation: backend_incarnation,
            port: port.number(),
            head: head_grant,
            proxy_ring: proxy_ring_grant,
        };
        let announcement = PresenceAnnouncer::new(own, offer.emit(), &[backend]);
        let announcement = announcement.expect("grants that name lists are short enough");
        let (gone, released) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let held = HeldPort::of(self.kernel, self.own, &port);
        let held = held.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let held = held.map_err(refused("keeping an event channel"))?;
        let offered = CurrentOffer {
            backend,
            backend_incarnation,
            announcement,
            held,
            gone: Arc::clone(&gone),
            released: Arc::clone(&released),
        };
        let (memory, released) = ([head_memory, proxy_ring_memory], ReleaseOnDrop(released, std::thread::current()));
        Ok((OfferedWindow { xen, backend, head, proxy_ring, memory, port, gone, released }, offered))
    }
}
