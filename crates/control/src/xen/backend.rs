//! The backend of guests of Xen: domain 0's daemon, or a driver domain's.
//!
//! ```text
//!   the store's thread                                      the control plane
//!   allowed guests, their advertisements ── Sighting ──►  Backend: maps the window ──► Estate, Border, Relay
//!                                                          gone: by the window's head page, or by the store
//! ```
//!
//! Which guests may attach is decided in domain 0 (`isthmus guest allow`); whose their domains are, and how much they may have, in the
//! configuration. All that a guest says of itself is in its advertisement: what is no offer, or cannot be mapped, is no guest.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use isthmus_layout::RegionSize;
use isthmus_layout::border::CROSSING;
use isthmus_layout::border::lots::{GUEST_THERE_WORD, HOST_THERE_WORD, VECTORS_MAX};
use isthmus_layout::control::Name;
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_platform::Platform as _;
use isthmus_platform_xen::presence::{Announcement, BEAT, Lookout, News, node_of};
use isthmus_platform_xen::{Domid, Event, Farewell, Grant, Offer, Store, StoreError, Xen, admission};
use isthmus_shm::{Access, Window, Words as _};
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_local;

use super::pace::Pace;
use super::pairs::{Known, Neighbour, Plan};
use super::relay::{BACKEND, Bells, Relay};
use super::{Cut, Domain, Lifeline, TURN, connection, incarnation, persist, thread};
use crate::border::host::Border;
use crate::broker::GuestView;
use crate::config::{self, XenGuest};
use crate::ground::{Estate, GroundNumber, Lots, Sort};
use crate::pairs::Limits;
use crate::server::Server;

/// Grounds of guests of Xen are numbered from here on, those of other guests below.
const FIRST_GROUND: u32 = 1 << 31;

/// News that the control plane has not taken. A guest that comes and goes all the time waits here.
const UNTAKEN_MAX: usize = 64;

/// What a store's thread has seen.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sighting {
    /// A guest that may attach is there.
    Came { guest: Domid, name: Option<Vec<u8>>, offer: Vec<u8> },
    /// It is there no more, or may not attach any more.
    Went { guest: Domid, how: String },
}

/// Sizes of what domains and channels are made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) ring: RegionSize,
    pub(crate) channel: RegionSize,
}

/// What is needed to serve guests, before anybody is.
pub(crate) struct Backend<K> {
    kernel: K,
    own: Domid,
    incarnation: u64,
    plans: Vec<XenGuest>,
    /// How much two of them may have in common, and for how long.
    common: (u64, Limits),
}

/// Why guests of Xen cannot be served, for people.
fn refused(error: impl std::fmt::Display) -> String {
    format!("guests of Xen: {error}")
}

impl<K: Domain> Backend<K> {
    /// Finds out who we are.
    pub(crate) fn open(kernel: K, xen: &config::Xen) -> Result<Self, String> {
        let wire = kernel.store().map_err(|error| refused(format!("opening XenStore: {error}")))?;
        let own = Store::new(wire).own_domid().map_err(refused)?;
        let incarnation = incarnation().map_err(refused)?;
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let (idle, limit) = (seconds(xen.common_idle_s.get()), seconds(xen.common_timeout_s.get()));
        // What a guest has unmapped once does not come back.
        let limits = Limits { idle, limit, absence: Duration::ZERO };
        let common = (u64::from(xen.common_mib.get()) << 20, limits);
        Ok(Self { kernel, own, incarnation, plans: xen.guest.as_slice().to_vec(), common })
    }

    /// Serves them, each on tasks of the server's thread.
    pub(crate) fn serve(self, server: &Server, workers: u16, sizes: Sizes) -> Result<(), String> {
        for plan in &self.plans {
            let view = GuestView {
                common_bytes: self.common.0,
                ..GuestView::absent("xen", plan.user.uid, plan.window_bytes(), plan.vectors())
            };
            server.with(|broker| broker.add_guest(plan.name.name().clone(), view));
        }
        let (tell, mut sightings) = mpsc::channel(UNTAKEN_MAX);
        let (lifeline, cut) = Lifeline::new();
        let (kernel, own, incarnation) = (self.kernel.clone(), self.own, self.incarnation);
        thread("xen-guests", move || watch(&kernel, own, incarnation, &tell, &cut)).map_err(refused)?;
        let known = Known::default();
        let (sends, wanted) = mpsc::unbounded_channel();
        server.with(|broker| broker.make_windows_by("xen", sends));
        let (bytes_max, limits) = self.common;
        let pairs = Plan { known: Rc::clone(&known), sorts: common_sorts(sizes).to_vec(), bytes_max, limits };
        spawn_local(super::pairs::serve(server.clone(), pairs, wanted));
        let (here, server) = (BTreeMap::new(), server.clone());
        let mut guests = Guests { backend: self, server, workers, sizes, here, known, next: FIRST_GROUND };
        spawn_local(async move {
            let _lifeline = lifeline;
            while let Some(sighting) = sightings.recv().await {
                guests.see(sighting);
            }
        });
        Ok(())
    }
}

/// Those that are attached.
struct Guests<K> {
    backend: Backend<K>,
    server: Server,
    workers: u16,
    sizes: Sizes,
    /// What ends each.
    here: BTreeMap<Name, (Domid, Rc<Notify>)>,
    known: Known,
    next: u32,
}

/// A guest's window, mapped.
struct Mapped<P> {
    lots: Lots,
    head: Window,
    port: P,
    bells: Rc<Bells>,
    outward: Vec<OwnedFd>,
    inward: Vec<OwnedFd>,
}

impl<K: Domain> Guests<K> {
    fn see(&mut self, sighting: Sighting) {
        match sighting {
            Sighting::Went { guest, how } => {
                let is_it = |known: &Domid| *known == guest;
                let known = self.here.iter().find(|(_, (known, _))| is_it(known)).map(|(name, _)| name.clone());
                let Some(name) = known else { return };
                tracing::info!(guest = %name, domain = %guest, "{how}");
                self.here.remove(&name).inspect(|(_, gone)| gone.notify_one());
            }
            Sighting::Came { guest, name, offer } => {
                let named = name.and_then(|name| String::from_utf8(name).ok());
                let names = [named.as_deref(), Some(&*guest.to_string())].map(|name| name.unwrap_or("").to_owned());
                let plan =
                    self.backend.plans.iter().find(|plan| names.contains(&plan.name.name().to_string())).cloned();
                let Some(plan) = plan else {
                    let named = names[0].as_str();
                    return tracing::warn!(domain = %guest, name = named, "it would attach, and is no `[[xen.guest]]`");
                };
                if let Err(why) = self.attach(guest, &plan, &offer) {
                    tracing::warn!(guest = %plan.name.name(), domain = %guest, "it is not attached: {why}");
                }
            }
        }
    }

    fn attach(&mut self, guest: Domid, plan: &XenGuest, offer: &[u8]) -> Result<(), String> {
        let offer = Offer::parse(offer, guest).map_err(|fault| fault.to_string())?;
        if (offer.backend, offer.incarnation) != (self.backend.own, self.backend.incarnation) {
            return Ok(()); // Meant for another one, or for the daemon before us: it will offer anew.
        }
        let Mapped { lots, head, port, bells, outward, inward } = self.map(plan, &offer)?;
        let name = plan.name.name().clone();
        let number = GroundNumber(self.next);
        self.next += 1;
        let estate = Estate::new(number, name.clone(), lots, (outward, inward));
        let gone = Rc::new(Notify::new());
        let before = self.here.insert(name.clone(), (guest, Rc::clone(&gone)));
        before.inspect(|(_, gone)| gone.notify_one());
        tracing::info!(guest = %name, domain = %guest, "it is there");
        self.known.borrow_mut().insert(number, Neighbour { domid: guest, maps: plan.maps() });
        self.show(&name, &estate, node_of(guest));
        let relay = Relay::new(port, head, BACKEND, bells);
        let relaying = {
            let (gone, name) = (Rc::clone(&gone), name.clone());
            spawn_local(async move {
                match relay.run().await {
                    Ok(()) => tracing::info!(guest = %name, "its daemon is gone"),
                    Err(error) => tracing::error!(guest = %name, "its event channel cannot be used: {error}"),
                }
                gone.notify_one();
            })
        };
        let (server, known, uid) = (self.server.clone(), Rc::clone(&self.known), plan.user.uid);
        spawn_local(async move {
            let border = Border::new(server.clone(), Arc::clone(&estate), uid);
            if let Err(error) = border.serve(gone.notified()).await {
                tracing::error!(guest = %name, "its border is not served: {error}");
            }
            relaying.abort();
            known.borrow_mut().remove(&number);
            hide(&server, &name, &estate);
        });
        Ok(())
    }

    /// Maps a guest's window. What it grants is its own affair until it is mapped; what cannot be is refused as a whole.
    fn map(&self, plan: &XenGuest, offer: &Offer) -> Result<Mapped<K::Port>, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let guest = offer.head.from;
        let xen = Xen::new(self.backend.kernel.clone(), self.backend.own);
        let port = xen.kernel().bind(guest, offer.port).map_err(|error| format!("binding to its port: {error}"))?;
        let page = RegionSize(PAGE_BYTES.into());
        let farewell = Farewell { byte_at: u64::from(4 * HOST_THERE_WORD), port: &port };
        let head = xen.map_until(&offer.head, page, Access::ReadWrite, Some(farewell)).map_err(|error| text(&error))?;
        let head = Window::new(head);
        let crossing = xen.map(offer.crossing.clone(), CROSSING.size(), Access::ReadWrite);
        let crossing = Window::new(crossing.map_err(|error| text(&error))?);
        if head.load(GUEST_THERE_WORD, Ordering::Acquire) != 1 {
            return Err("it has gone already".to_owned());
        }
        head.store(HOST_THERE_WORD, 1, Ordering::Release);
        let bells = Bells::new().map_err(|error| text(&error))?;
        let vectors = plan.vectors().min(VECTORS_MAX);
        let outward = (0..vectors).map(|vector| bells.ringer(vector)).collect::<Result<_, _>>();
        let toward_us = (1 + self.workers).clamp(2, vectors);
        let inward = (0..toward_us).map(|vector| bells.listen(vector)).collect::<Result<_, _>>();
        let (outward, inward) = (outward.map_err(|error| text(&error))?, inward.map_err(|error| text(&error))?);
        let map = move |grant: &[u8], size: RegionSize| {
            let grant = Grant::parse(grant, guest).map_err(|fault| text(&fault))?;
            xen.map(grant, size, Access::ReadWrite).map(Window::new).map_err(|error| text(&error))
        };
        let lots = Lots::new(head.clone(), crossing, &sorts(self.sizes), plan.window_bytes(), Box::new(map));
        Ok(Mapped { lots, head, port, bells, outward, inward })
    }

    fn show(&self, name: &Name, estate: &Arc<Estate>, node: String) {
        self.server.with(|broker| {
            if let Some(guest) = broker.guest_mut(name) {
                guest.estate = Some(Arc::clone(estate));
                guest.socket = node;
            }
        });
    }
}

fn hide(server: &Server, name: &Name, estate: &Arc<Estate>) {
    server.with(|broker| {
        if let Some(guest) = broker.guest_mut(name)
            && guest.estate.as_ref().is_some_and(|known| Arc::ptr_eq(known, estate))
        {
            guest.estate = None;
            guest.daemon = false;
            guest.heard = None;
            guest.socket = String::new();
        }
        broker.guests_changed();
    });
}

/// Boards, rings and channels: what a domain needs to attach is a board of its own, one of a worker's, and a ring.
fn sorts(sizes: Sizes) -> [Sort; 3] {
    let whole = |bytes: u64| bytes.next_multiple_of(PAGE_BYTES.into());
    [
        Sort { bytes: PAGE_BYTES.into(), stock: 8, least: 2 },
        Sort { bytes: whole(sizes.ring.0), stock: 2, least: 1 },
        Sort { bytes: whole(sizes.channel.0), stock: 2, least: 0 },
    ]
}

/// Of a window that two guests have in common: boards of one domain in each, and a channel.
fn common_sorts(sizes: Sizes) -> [Sort; 2] {
    let whole = |bytes: u64| bytes.next_multiple_of(PAGE_BYTES.into());
    [Sort { bytes: PAGE_BYTES.into(), stock: 4, least: 2 }, Sort { bytes: whole(sizes.channel.0), stock: 1, least: 1 }]
}

/// The store's thread: goes on until it is cut. What was seen outlives the connection that it was seen by.
fn watch<K: Domain>(kernel: &K, own: Domid, incarnation: u64, tell: &mpsc::Sender<Sighting>, cut: &Cut) {
    let mut known = None;
    persist("guests of Xen are not looked for", cut, || {
        let watcher = match &mut known {
            None => known.insert(Watcher::open(kernel, own, incarnation)?),
            Some(watcher) => {
                watcher.reopen()?;
                watcher
            }
        };
        watcher.run(tell, cut)
    });
}

/// Looks for guests.
struct Watcher<'a, K: Domain> {
    kernel: &'a K,
    own: Domid,
    store: Store<K::Wire>,
    lookout: Lookout<K::Wire>,
    announcement: Announcement,
    /// Those that may attach.
    allowed: BTreeSet<Domid>,
    /// Whose names have not been looked up yet.
    news: VecDeque<News>,
    pace: Pace,
}

impl<'a, K: Domain> Watcher<'a, K> {
    fn open(kernel: &'a K, own: Domid, incarnation: u64) -> Result<Self, StoreError> {
        let (store, lookout) = (watching(kernel, own)?, Lookout::new(connection(kernel)?));
        let announcement = Announcement::new(incarnation, Vec::new(), &[]);
        let announcement = announcement.expect("an advertisement without an offer is short enough");
        let (allowed, news, pace) = (BTreeSet::new(), VecDeque::new(), Pace::default());
        Ok(Self { kernel, own, store, lookout, announcement, allowed, news, pace })
    }

    /// Over new connections.
    fn reopen(&mut self) -> Result<(), StoreError> {
        self.store = watching(self.kernel, self.own)?;
        self.lookout.reopen(connection(self.kernel)?)
    }

    /// As long as its connections last.
    fn run(&mut self, tell: &mpsc::Sender<Sighting>, cut: &Cut) -> Result<(), StoreError> {
        let mut census = Instant::now();
        while !cut.is_cut() {
            let now = Instant::now();
            if changed(&mut self.store)? || census <= now {
                census = now + BEAT;
                self.count()?;
            }
            self.announcement.renew(&mut self.store, now)?;
            self.news.extend(self.lookout.look(TURN)?);
            while let Some(news) = self.news.front() {
                self.pace.heard(sighting(&mut self.store, self.own, news)?);
                self.news.pop_front();
            }
            for sighting in self.pace.due(Instant::now()) {
                let _ = tell.blocking_send(sighting); // Nobody takes it when the daemon ends.
            }
        }
        self.announcement.withdraw(&mut self.store)
    }

    /// Who may attach.
    fn count(&mut self) -> Result<(), StoreError> {
        let allowed: BTreeSet<Domid> = admission::guests(&mut self.store, self.own)?.into_iter().collect();
        for guest in self.allowed.difference(&allowed) {
            let how = "it may not attach any more, or is gone".to_owned();
            self.pace.heard(Sighting::Went { guest: *guest, how });
        }
        if allowed != self.allowed {
            self.announcement.set_readers(&allowed.iter().copied().collect::<Vec<_>>());
            self.allowed = allowed;
        }
        self.lookout.follow_only(&self.allowed)
    }
}

/// A connection that hears of it when other guests may attach.
fn watching<K: Domain>(kernel: &K, own: Domid) -> Result<Store<K::Wire>, StoreError> {
    let mut store = connection(kernel)?;
    store.watch(&format!("/local/domain/{own}/{}", admission::GUESTS), "guests")?;
    Ok(store)
}

/// Whether something that is watched has changed.
fn changed<W: isthmus_platform_xen::store::Wire>(store: &mut Store<W>) -> Result<bool, StoreError> {
    let mut changed = false;
    while let Some(Event::Changed { .. } | Event::Lost) = store.event(Duration::ZERO)? {
        changed = true;
    }
    Ok(changed)
}

fn sighting<W: isthmus_platform_xen::store::Wire>(
    store: &mut Store<W>,
    own: Domid,
    news: &News,
) -> Result<Sighting, StoreError> {
    Ok(match news {
        News::Went(guest, how) => Sighting::Went { guest: *guest, how: how.to_string() },
        News::Came(guest, advert) => {
            Sighting::Came { guest: *guest, name: admission::name(store, own, *guest)?, offer: advert.offer.clone() }
        }
    })
}
