//! The backend of Xen guests: the daemon of domain 0 or of a driver domain.
//!
//! ```text
//!   the store's thread                                      the control plane
//!   allowed guests, their advertisements ── GuestEvent ──► Backend: maps the window ──► GuestWindow, GuestProxy, Relay
//!                                                          gone: by the window's head page, or by the store
//! ```
//!
//! Domain 0 decides which guests may attach (`isthmus guest allow`). The configuration sets the owner of their domains and their limits. A guest
//! describes itself only in its advertisement. If that is not a valid offer, or cannot be mapped, the guest is not attached.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use isthmus_layout::RegionSize;
use isthmus_layout::control::Name;
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::proxy::PROXY_RING;
use isthmus_layout::proxy::grants::{GUEST_PRESENT_WORD, HOST_PRESENT_WORD, VECTORS_MAX};
use isthmus_platform::Platform as _;
use isthmus_platform_xen::presence::{HEARTBEAT_INTERVAL, PresenceAnnouncer, PresenceEvent, PresenceWatcher, node_of};
use isthmus_platform_xen::{Domid, Offer, Store, StoreError, StoreEvent, UnmapNotify, Xen, XenGrant, admission};
use isthmus_shm::{Access, SharedMapping, Words as _};
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_local;

use super::backoff::EventBackoff;
use super::pairs::{GuestTable, PairPlan, PeerGuestInfo};
use super::relay::{BACKEND, Relay, VectorDoorbells};
use super::{POLL_INTERVAL, StopFlag, StopOnDrop, XenKernel, connect_store, incarnation, run_with_retry, spawn_thread};
use crate::pairs::PairTimeouts;
use crate::proxy::host::GuestProxy;
use isthmus_config::{self as config, XenGuest};
use isthmus_control::broker::{GuestView, RegionSizes};
use isthmus_control::server::Server;
use isthmus_window::{GrantBacking, GuestId, GuestWindow, SizeClass};

/// The first number of Xen guests. Other guests have lower numbers.
const FIRST_XEN_GUEST: u32 = 1 << 31;

/// The maximum number of events that the control plane has not taken. The store's thread waits if the queue is full.
const GUEST_EVENTS_MAX: usize = 64;

/// An event that the store's thread reports.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GuestEvent {
    /// A guest that may attach has appeared.
    Appeared { guest: Domid, name: Option<Vec<u8>>, offer: Vec<u8> },
    /// A guest has disappeared, or may not attach any more.
    Disappeared { guest: Domid, how: String },
}

/// The state of the backend before it serves guests.
pub struct Backend<K> {
    kernel: K,
    own: Domid,
    incarnation: u64,
    plans: Vec<XenGuest>,
    /// The maximum size of a pair window of two guests in bytes, and its time limits.
    pair: (u64, PairTimeouts),
}

/// Returns a text that says why Xen guests cannot be served.
fn refused(error: impl std::fmt::Display) -> String {
    format!("guests of Xen: {error}")
}

impl<K: XenKernel> Backend<K> {
    /// Opens the backend: reads the number of this domain and draws an incarnation.
    pub fn open(kernel: K, xen: &config::XenConfig) -> Result<Self, String> {
        let transport = kernel.store().map_err(|error| refused(format!("opening XenStore: {error}")))?;
        let own = Store::new(transport).own_domid().map_err(refused)?;
        let incarnation = incarnation().map_err(refused)?;
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let (idle, limit) = (seconds(xen.pair_window_idle_s.get()), seconds(xen.pair_window_timeout_s.get()));
        // A guest that has unmapped a window does not map it again.
        let limits = PairTimeouts { idle, limit, absence: Duration::ZERO };
        let pair = (u64::from(xen.pair_window_mib.get()) << 20, limits);
        Ok(Self { kernel, own, incarnation, plans: xen.guest.as_slice().to_vec(), pair })
    }

    /// Serves all guests, each on tasks of the server's thread.
    pub fn serve(self, server: &Server, workers: u16, sizes: RegionSizes) -> Result<(), String> {
        for plan in &self.plans {
            let view = GuestView {
                pair_window_bytes: self.pair.0,
                ..GuestView::absent("xen", plan.user.uid, plan.window_bytes(), plan.vectors())
            };
            server.with(|broker| broker.add_guest(plan.name.name().clone(), view));
        }
        let (sender, mut guest_events) = mpsc::channel(GUEST_EVENTS_MAX);
        let (stop_on_drop, stop_flag) = StopOnDrop::new();
        let (kernel, own, incarnation) = (self.kernel.clone(), self.own, self.incarnation);
        spawn_thread("xen-guests", move || watch(&kernel, own, incarnation, &sender, &stop_flag)).map_err(refused)?;
        let known = GuestTable::default();
        let (requests_sender, requests) = mpsc::unbounded_channel();
        server.with(|broker| broker.set_pair_maker("xen", requests_sender));
        let (bytes_max, limits) = self.pair;
        let pairs =
            PairPlan { known: Rc::clone(&known), size_classes: pair_size_classes(sizes).to_vec(), bytes_max, limits };
        spawn_local(super::pairs::serve(server.clone(), pairs, requests));
        let (attached, server) = (BTreeMap::new(), server.clone());
        let mut guests = XenGuests { backend: self, server, workers, sizes, attached, known, next: FIRST_XEN_GUEST };
        spawn_local(async move {
            let _stop_on_drop = stop_on_drop;
            while let Some(guest_event) = guest_events.recv().await {
                guests.handle(guest_event);
            }
        });
        Ok(())
    }
}

/// The attached guests.
struct XenGuests<K> {
    backend: Backend<K>,
    server: Server,
    workers: u16,
    sizes: RegionSizes,
    /// For each guest, its number and the notification that ends it.
    attached: BTreeMap<Name, (Domid, Rc<Notify>)>,
    known: GuestTable,
    next: u32,
}

/// A guest's window, mapped.
struct MappedWindow<P> {
    backing: GrantBacking,
    head: SharedMapping,
    port: P,
    doorbells: Rc<VectorDoorbells>,
    to_guest: Vec<OwnedFd>,
    from_guest: Vec<OwnedFd>,
}

impl<K: XenKernel> XenGuests<K> {
    fn handle(&mut self, guest_event: GuestEvent) {
        match guest_event {
            GuestEvent::Disappeared { guest, how } => {
                let is_it = |known: &Domid| *known == guest;
                let known = self.attached.iter().find(|(_, (known, _))| is_it(known)).map(|(name, _)| name.clone());
                let Some(name) = known else { return };
                tracing::info!(guest = %name, domain = %guest, "{how}");
                self.attached.remove(&name).inspect(|(_, gone)| gone.notify_one());
            }
            GuestEvent::Appeared { guest, name, offer } => {
                let named = name.and_then(|name| String::from_utf8(name).ok());
                let names = [named.as_deref(), Some(&*guest.to_string())].map(|name| name.unwrap_or("").to_owned());
                let plan =
                    self.backend.plans.iter().find(|plan| names.contains(&plan.name.name().to_string())).cloned();
                let Some(plan) = plan else {
                    let named = names[0].as_str();
                    return tracing::warn!(domain = %guest, name = named, "a Xen domain that matches no `[[xen.guest]]` asks to attach");
                };
                if let Err(why) = self.attach(guest, &plan, &offer) {
                    tracing::warn!(guest = %plan.name.name(), domain = %guest, "the guest is not attached: {why}");
                }
            }
        }
    }

    fn attach(&mut self, guest: Domid, plan: &XenGuest, offer: &[u8]) -> Result<(), String> {
        let offer = Offer::parse(offer, guest).map_err(|fault| fault.to_string())?;
        if (offer.backend, offer.incarnation) != (self.backend.own, self.backend.incarnation) {
            return Ok(()); // Meant for another backend or for the previous daemon: the guest will offer anew.
        }
        let MappedWindow { backing, head, port, doorbells, to_guest, from_guest } = self.map(plan, &offer)?;
        let name = plan.name.name().clone();
        let number = GuestId(self.next);
        self.next += 1;
        let guest_window = GuestWindow::new(number, name.clone(), backing, (to_guest, from_guest));
        let gone = Rc::new(Notify::new());
        let before = self.attached.insert(name.clone(), (guest, Rc::clone(&gone)));
        before.inspect(|(_, gone)| gone.notify_one());
        tracing::info!(guest = %name, domain = %guest, "the guest is attached");
        self.known.borrow_mut().insert(number, PeerGuestInfo { domid: guest, may_map: plan.may_map() });
        self.set_attached(&name, &guest_window, node_of(guest));
        let relay = Relay::new(port, head, BACKEND, doorbells);
        let relaying = {
            let (gone, name) = (Rc::clone(&gone), name.clone());
            spawn_local(async move {
                match relay.run().await {
                    Ok(()) => tracing::info!(guest = %name, "the daemon of the guest is gone"),
                    Err(error) => {
                        tracing::error!(guest = %name, "the event channel of the guest cannot be used: {error}")
                    }
                }
                gone.notify_one();
            })
        };
        let (server, known, uid) = (self.server.clone(), Rc::clone(&self.known), plan.user.uid);
        spawn_local(async move {
            let proxy = GuestProxy::new(server.clone(), Arc::clone(&guest_window), uid);
            if let Err(error) = proxy.serve(gone.notified()).await {
                tracing::error!(guest = %name, "the control proxy of the guest is not served: {error}");
            }
            relaying.abort();
            known.borrow_mut().remove(&number);
            set_detached(&server, &name, &guest_window);
        });
        Ok(())
    }

    /// Maps a guest's window. If any part of the offer cannot be mapped, the offer is refused as a whole.
    fn map(&self, plan: &XenGuest, offer: &Offer) -> Result<MappedWindow<K::Port>, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let guest = offer.head.from;
        let xen = Xen::new(self.backend.kernel.clone(), self.backend.own);
        let port = xen.kernel().bind(guest, offer.port).map_err(|error| format!("binding to its port: {error}"))?;
        let page = RegionSize(PAGE_BYTES.into());
        let unmap_notify = UnmapNotify { byte_at: u64::from(4 * HOST_PRESENT_WORD), port: &port };
        let head = xen
            .map_with_notify(&offer.head, page, Access::ReadWrite, Some(unmap_notify))
            .map_err(|error| text(&error))?;
        let head = SharedMapping::new(head);
        let proxy_ring = xen.map(offer.proxy_ring.clone(), PROXY_RING.size(), Access::ReadWrite);
        let proxy_ring = SharedMapping::new(proxy_ring.map_err(|error| text(&error))?);
        if head.load(GUEST_PRESENT_WORD, Ordering::Acquire) != 1 {
            return Err("the guest has gone already".to_owned());
        }
        head.store(HOST_PRESENT_WORD, 1, Ordering::Release);
        let doorbells = VectorDoorbells::new().map_err(|error| text(&error))?;
        let vectors = plan.vectors().min(VECTORS_MAX);
        let to_guest = (0..vectors).map(|vector| doorbells.sender(vector)).collect::<Result<_, _>>();
        let from_guest_vectors = (1 + self.workers).clamp(2, vectors);
        let from_guest = (0..from_guest_vectors).map(|vector| doorbells.listen(vector)).collect::<Result<_, _>>();
        let (to_guest, from_guest) =
            (to_guest.map_err(|error| text(&error))?, from_guest.map_err(|error| text(&error))?);
        let map = move |grant: &[u8], size: RegionSize| {
            let grant = XenGrant::parse(grant, guest).map_err(|fault| text(&fault))?;
            xen.map(grant, size, Access::ReadWrite).map(SharedMapping::new).map_err(|error| text(&error))
        };
        let backing =
            GrantBacking::own(head.clone(), proxy_ring, &size_classes(self.sizes), plan.window_bytes(), Box::new(map));
        Ok(MappedWindow { backing, head, port, doorbells, to_guest, from_guest })
    }

    fn set_attached(&self, name: &Name, guest_window: &Arc<GuestWindow>, node: String) {
        self.server.with(|broker| {
            if let Some(guest) = broker.guest_mut(name) {
                guest.guest_window = Some(Arc::clone(guest_window));
                guest.socket = node;
            }
        });
    }
}

fn set_detached(server: &Server, name: &Name, guest_window: &Arc<GuestWindow>) {
    server.with(|broker| {
        if let Some(guest) = broker.guest_mut(name)
            && guest.guest_window.as_ref().is_some_and(|known| Arc::ptr_eq(known, guest_window))
        {
            guest.guest_window = None;
            guest.daemon = false;
            guest.last_seen = None;
            guest.socket = String::new();
        }
        broker.guests_changed();
    });
}

/// Returns the size classes of a guest's window: ready maps, rings and channels. To attach, a domain needs a ready map of its own, one of a
/// worker, and a ring.
fn size_classes(sizes: RegionSizes) -> [SizeClass; 3] {
    let whole = |bytes: u64| bytes.next_multiple_of(PAGE_BYTES.into());
    [
        SizeClass { bytes: PAGE_BYTES.into(), target: 8, minimum: 2 },
        SizeClass { bytes: whole(sizes.ring.0), target: 2, minimum: 1 },
        SizeClass { bytes: whole(sizes.channel.0), target: 2, minimum: 0 },
    ]
}

/// Returns the size classes of a pair window: ready maps of one domain in each guest, and a channel.
fn pair_size_classes(sizes: RegionSizes) -> [SizeClass; 2] {
    let whole = |bytes: u64| bytes.next_multiple_of(PAGE_BYTES.into());
    [
        SizeClass { bytes: PAGE_BYTES.into(), target: 4, minimum: 2 },
        SizeClass { bytes: whole(sizes.channel.0), target: 1, minimum: 1 },
    ]
}

/// Runs the store's thread until it is stopped. The known guests are kept if the connection to the store fails.
fn watch<K: XenKernel>(
    kernel: &K,
    own: Domid,
    incarnation: u64,
    sender: &mpsc::Sender<GuestEvent>,
    stop_flag: &StopFlag,
) {
    let mut known = None;
    run_with_retry("guests of Xen are not looked for", stop_flag, || {
        let watcher = match &mut known {
            None => known.insert(GuestWatcher::open(kernel, own, incarnation)?),
            Some(watcher) => {
                watcher.reopen()?;
                watcher
            }
        };
        watcher.run(sender, stop_flag)
    });
}

/// Watches XenStore for guests.
struct GuestWatcher<'a, K: XenKernel> {
    kernel: &'a K,
    own: Domid,
    store: Store<K::StoreTransport>,
    presence_watcher: PresenceWatcher<K::StoreTransport>,
    announcement: PresenceAnnouncer,
    /// The guests that may attach.
    allowed: BTreeSet<Domid>,
    /// Events that wait until the name of their guest is looked up.
    presence_events: VecDeque<PresenceEvent>,
    backoff: EventBackoff,
}

impl<'a, K: XenKernel> GuestWatcher<'a, K> {
    fn open(kernel: &'a K, own: Domid, incarnation: u64) -> Result<Self, StoreError> {
        let (store, presence_watcher) = (connect_watching(kernel, own)?, PresenceWatcher::new(connect_store(kernel)?));
        let announcement = PresenceAnnouncer::new(incarnation, Vec::new(), &[]);
        let announcement = announcement.expect("an advertisement without an offer is short enough");
        let (allowed, presence_events, backoff) = (BTreeSet::new(), VecDeque::new(), EventBackoff::default());
        Ok(Self { kernel, own, store, presence_watcher, announcement, allowed, presence_events, backoff })
    }

    /// Continues over new connections.
    fn reopen(&mut self) -> Result<(), StoreError> {
        self.store = connect_watching(self.kernel, self.own)?;
        self.presence_watcher.reconnect(connect_store(self.kernel)?)
    }

    /// Reports guests until it is stopped or a connection fails.
    fn run(&mut self, sender: &mpsc::Sender<GuestEvent>, stop_flag: &StopFlag) -> Result<(), StoreError> {
        let mut next_count = Instant::now();
        while !stop_flag.is_stopped() {
            let now = Instant::now();
            if drain_changes(&mut self.store)? || next_count <= now {
                next_count = now + HEARTBEAT_INTERVAL;
                self.update_allowed()?;
            }
            self.announcement.renew(&mut self.store, now)?;
            self.presence_events.extend(self.presence_watcher.poll(POLL_INTERVAL)?);
            while let Some(presence_event) = self.presence_events.front() {
                self.backoff.push(guest_event(&mut self.store, self.own, presence_event)?);
                self.presence_events.pop_front();
            }
            for guest_event in self.backoff.due(Instant::now()) {
                let _ = sender.blocking_send(guest_event); // Fails only when the daemon is ending.
            }
        }
        self.announcement.remove(&mut self.store)
    }

    /// Updates the guests that may attach.
    fn update_allowed(&mut self) -> Result<(), StoreError> {
        let allowed: BTreeSet<Domid> = admission::guests(&mut self.store, self.own)?.into_iter().collect();
        for guest in self.allowed.difference(&allowed) {
            let how = "the guest may not attach any more, or is gone".to_owned();
            self.backoff.push(GuestEvent::Disappeared { guest: *guest, how });
        }
        if allowed != self.allowed {
            self.announcement.set_readers(&allowed.iter().copied().collect::<Vec<_>>());
            self.allowed = allowed;
        }
        self.presence_watcher.follow_only(&self.allowed)
    }
}

/// Opens a connection that watches the list of guests that may attach.
fn connect_watching<K: XenKernel>(kernel: &K, own: Domid) -> Result<Store<K::StoreTransport>, StoreError> {
    let mut store = connect_store(kernel)?;
    store.watch(&format!("/local/domain/{own}/{}", admission::GUESTS), "guests")?;
    Ok(store)
}

/// Consumes all pending events. Returns whether a watched node has changed.
fn drain_changes<W: isthmus_platform_xen::store::StoreTransport>(store: &mut Store<W>) -> Result<bool, StoreError> {
    let mut changed = false;
    while let Some(StoreEvent::Changed { .. } | StoreEvent::Overflow) = store.event(Duration::ZERO)? {
        changed = true;
    }
    Ok(changed)
}

fn guest_event<W: isthmus_platform_xen::store::StoreTransport>(
    store: &mut Store<W>,
    own: Domid,
    presence_event: &PresenceEvent,
) -> Result<GuestEvent, StoreError> {
    Ok(match presence_event {
        PresenceEvent::Disappeared(guest, how) => GuestEvent::Disappeared { guest: *guest, how: how.to_string() },
        PresenceEvent::Appeared(guest, advertisement) => GuestEvent::Appeared {
            guest: *guest,
            name: admission::name(store, own, *guest)?,
            offer: advertisement.offer.clone(),
        },
    })
}
