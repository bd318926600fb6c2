//! The daemon of a guest of Xen: finds its backend, grants it a window, and serves the guest's programs in it.
//!
//! ```text
//!   the store's thread                                        the guest's daemon
//!   backends, their advertisements ──► a window, a port ──► Attach ──► Guest over a Frontend, Relay
//!                                      offered in our own advertisement
//! ```
//!
//! A window is granted to one incarnation of one backend, and over with it: what was granted stays the backend's as long as it maps it, so
//! nothing of it is used again.
//!
//! A domain that was saved and restored has another number, or what it had said in XenStore is not there: all that it had with others is
//! gone, and everything begins anew.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use isthmus_layout::RegionSize;
use isthmus_layout::border::lots::{GRANT_BYTES_MAX, GUEST_THERE_WORD, LOT_BYTES_MAX, Wanted};
use isthmus_layout::border::{CROSSING, CROSSING_AT, WindowNumber};
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_platform::{Platform as _, PlatformError};
use isthmus_platform_kvm::HOST;
use isthmus_platform_xen::kernel::{Pages as _, Port as _};
use isthmus_platform_xen::presence::{Announcement, BEAT, Lookout, News};
use isthmus_platform_xen::{Domid, Farewell, Offer, Store, StoreError, Xen, XenMemory, admission};
use isthmus_shm::{Access, Window, Words as _};
use rustix::io::Errno;
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_local;

use super::held::{Held, is_same};
use super::neighbour::{Neighbours, Shown};
use super::relay::{Bells, GUEST, Relay};
use super::{Cut, Domain, Lifeline, TURN, connection, duplicate, event, incarnation, persist, thread};
use crate::border::guest::{Device, Ended, Guest, turn_away};
use crate::policy::Policy;
use crate::server::Stop;
use crate::socket::Listener;

/// A window that was offered to a backend.
struct Attach<K: Domain> {
    xen: Xen<K>,
    backend: Domid,
    head: Window,
    crossing: Window,
    memory: [XenMemory<K::Pages>; 2],
    port: K::Port,
    /// Told by the store's thread when the backend is there no more.
    gone: Arc<Notify>,
    over: Over,
}

/// Tells the store's thread, when dropped, that a window is used no longer, and its event channel is not either.
struct Over(Arc<AtomicBool>, std::thread::Thread);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}

/// Serves the guest's programs until it is stopped. Runs inside a [`LocalSet`](tokio::task::LocalSet).
pub(crate) async fn serve<K: Domain>(kernel: K, listener: &Listener, policy: &Policy, stop: &Stop) -> io::Result<()> {
    let (tell, mut attaches) = mpsc::channel(1);
    let (_lifeline, cut) = Lifeline::new();
    thread("xen-backend", move || seek(&kernel, &tell, &cut))?;
    loop {
        let next = async {
            tokio::select! {
                () = stop.stopped() => None,
                attach = attaches.recv() => attach, // The thread ends after us.
            }
        };
        let Some(attach) = turn_away(listener, next).await? else { return Ok(()) };
        match attach.serve(listener, policy, stop).await {
            Ok(Ended::Stopped) => return Ok(()),
            Ok(Ended::Unplugged) => {}
            Err(error) => tracing::error!("a window could not be used: {error}"),
        }
    }
}

impl<K: Domain> Attach<K> {
    async fn serve(self, listener: &Listener, policy: &Policy, stop: &Stop) -> io::Result<Ended> {
        let Self { xen, backend, head, crossing, memory, port, gone, over } = self;
        let (bells, ended) = (Bells::new()?, event()?);
        let relay = Relay::new(port, head.clone(), GUEST, Rc::clone(&bells));
        let end = duplicate(&ended)?;
        let relaying = spawn_local(async move {
            tokio::select! {
                relayed = relay.run() => drop(relayed.inspect_err(|error| tracing::error!("the event channel cannot be used: {error}"))),
                () = gone.notified() => {}
            }
            let _ = rustix::io::write(&end, &1_u64.to_ne_bytes());
        });
        let lots = RefCell::default();
        let neighbours = Neighbours::new(xen.clone(), backend, Rc::clone(&bells));
        let device = Frontend { xen, backend, head, crossing, _memory: memory, lots, bells, ended, _over: over };
        let device = Shown::Own { device, neighbours };
        let served = Guest::new(device, policy.clone()).run(listener, stop).await;
        relaying.abort();
        served
    }
}

/// A window that we have granted.
struct Frontend<K: Domain> {
    xen: Xen<K>,
    backend: Domid,
    head: Window,
    crossing: Window,
    _memory: [XenMemory<K::Pages>; 2],
    /// By their places.
    lots: RefCell<BTreeMap<u64, XenMemory<K::Pages>>>,
    bells: Rc<Bells>,
    /// Readable once the backend is there no more.
    ended: OwnedFd,
    _over: Over,
}

impl<K: Domain> Device for Frontend<K> {
    fn window(&self, at: u64, _size: RegionSize) -> io::Result<Window> {
        match at {
            0 => Ok(self.head.clone()),
            CROSSING_AT => Ok(self.crossing.clone()),
            _ => Err(io::Error::other("that part of the window is a program's")),
        }
    }

    fn piece(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd> {
        let lots = self.lots.borrow();
        let lot = lots.get(&offset).ok_or_else(|| io::Error::other(format!("nothing was made for {offset}")))?;
        if bytes > lot.pages().refs().len() as u64 * u64::from(PAGE_BYTES) {
            return Err(io::Error::other(format!("what was made for {offset} has less than {bytes} bytes")));
        }
        lot.pages().as_fd().try_clone_to_owned()
    }

    /// Whoever maps it keeps it, and nobody else gets it.
    fn withdraw(&self, offset: u64, _piece: Option<&OwnedFd>) -> io::Result<()> {
        self.lots.borrow_mut().remove(&offset);
        Ok(())
    }

    fn ringer(&self, peer: u16, vector: u16) -> io::Result<OwnedFd> {
        if peer == HOST { self.bells.ringer(vector) } else { self.bells.own(vector) }
    }

    fn listen(&self, vector: u16) -> io::Result<OwnedFd> {
        self.bells.listen(vector)
    }

    fn hang_up(&self) -> io::Result<OwnedFd> {
        duplicate(&self.ended)
    }

    fn beside(&self, _known: &BTreeSet<WindowNumber>) -> Vec<(WindowNumber, Self)> {
        Vec::new()
    }

    fn is_gone(&self) -> bool {
        false // Heard by `hang_up`.
    }

    fn make(&self, Wanted { place, bytes, .. }: Wanted) -> io::Result<Vec<u8>> {
        let mut lots = self.lots.borrow_mut();
        if lots.contains_key(&place) || bytes == 0 || bytes > LOT_BYTES_MAX {
            return Err(io::Error::other(format!("the host wants {bytes} bytes at {place}")));
        }
        let lot = self.xen.allocate(RegionSize(bytes), &self.backend, Access::ReadWrite).map_err(io::Error::other)?;
        let grant = self.xen.grant(&lot, &self.backend, Access::ReadWrite).map_err(io::Error::other)?.emit();
        assert!(grant.len() <= GRANT_BYTES_MAX); // Ours: a grant has 72 bytes at most.
        lots.insert(place, lot);
        Ok(grant)
    }

    fn lasts(&self) -> bool {
        false
    }
}

/// The store's thread: goes on until it is cut. What was offered outlives the connection that it was offered by.
fn seek<K: Domain>(kernel: &K, tell: &mpsc::Sender<Attach<K>>, cut: &Cut) {
    let mut known = None;
    persist("backends are not looked for", cut, || {
        let seeker = match &mut known {
            None => known.insert(Seeker::open(kernel)?),
            Some(seeker) => {
                seeker.reopen()?;
                seeker
            }
        };
        seeker.run(tell, cut)?;
        known = None;
        Ok(())
    });
}

/// A connection that hears of it when we are allowed other backends.
fn watching<K: Domain>(kernel: &K) -> Result<Store<K::Wire>, StoreError> {
    let mut store = connection(kernel)?;
    store.watch(admission::BACKENDS, "backends")?;
    Ok(store)
}

/// Looks for a backend.
struct Seeker<'a, K: Domain> {
    kernel: &'a K,
    store: Store<K::Wire>,
    lookout: Lookout<K::Wire>,
    own: Domid,
    /// Those that we may attach to, the first one first.
    allowed: Vec<Domid>,
    /// Those of them that are there, by their incarnations.
    here: BTreeMap<Domid, u64>,
    offered: Option<Offered<K>>,
}

/// What we have offered, and to whom.
struct Offered<K: Domain> {
    backend: Domid,
    /// The backend's incarnation.
    its: u64,
    announcement: Announcement,
    held: Held<K>,
    gone: Arc<Notify>,
    over: Arc<AtomicBool>,
}

/// How long the control plane may take to let go of a window.
const LET_GO_LIMIT: Duration = Duration::from_secs(5);

impl<'a, K: Domain> Seeker<'a, K> {
    fn open(kernel: &'a K) -> Result<Self, StoreError> {
        let (mut store, lookout) = (watching(kernel)?, Lookout::new(connection(kernel)?));
        let own = store.own_domid()?;
        Ok(Self { kernel, store, lookout, own, allowed: Vec::new(), here: BTreeMap::new(), offered: None })
    }

    /// Over new connections.
    fn reopen(&mut self) -> Result<(), StoreError> {
        self.store = watching(self.kernel)?;
        self.lookout.reopen(connection(self.kernel)?)
    }

    /// As long as this is the same domain, and its connections last.
    fn run(&mut self, tell: &mpsc::Sender<Attach<K>>, cut: &Cut) -> Result<(), StoreError> {
        let mut census = Instant::now();
        while !cut.is_cut() {
            let now = Instant::now();
            let mut is_due = census <= now;
            while self.store.event(Duration::ZERO)?.is_some() {
                is_due = true;
            }
            if is_due {
                census = now + BEAT;
                let announced = self.offered.as_ref().is_some_and(|offered| offered.held.announced);
                if !is_same(&mut self.store, self.own, announced)? {
                    tracing::warn!("this domain was saved and restored: everything that it had with others is gone");
                    return self.take_back();
                }
                self.count()?;
            }
            self.offer(tell)?;
            if let Some(offered) = &mut self.offered {
                offered.announcement.renew(&mut self.store, now)?;
                offered.held.announced = true;
            }
            for news in self.lookout.look(TURN)? {
                self.heard(news);
            }
        }
        self.take_back()
    }

    /// Whom we may attach to.
    fn count(&mut self) -> Result<(), StoreError> {
        self.allowed = admission::backends(&mut self.store, self.own)?;
        if let Some(lost) = self.offered.as_ref().map(|offered| offered.backend).filter(|to| !self.allowed.contains(to))
        {
            tracing::warn!(backend = %lost, "this domain may not attach to it any more");
        }
        self.here.retain(|backend, _| self.allowed.contains(backend));
        self.lookout.follow_only(&self.allowed.iter().copied().collect())
    }

    fn heard(&mut self, news: News) {
        match news {
            News::Went(backend, how) => {
                self.here.remove(&backend);
                if self.offered.as_ref().is_some_and(|offered| offered.backend == backend) {
                    tracing::warn!(%backend, "{how}");
                }
            }
            News::Came(backend, advert) => drop(self.here.insert(backend, advert.incarnation)),
        }
    }

    /// Ends what was offered. That we say nothing of it any more says that nothing of it is open.
    fn take_back(&mut self) -> Result<(), StoreError> {
        let Some(Offered { mut announcement, held, gone, over, .. }) = self.offered.take() else { return Ok(()) };
        gone.notify_one();
        let limit = Instant::now() + LET_GO_LIMIT;
        while !over.load(Ordering::Acquire) && Instant::now() < limit {
            std::thread::park_timeout(limit.saturating_duration_since(Instant::now()));
        }
        drop(held);
        announcement.withdraw(&mut self.store)
    }

    /// Offers a window to the first backend that is there, if none is offered that is still good.
    fn offer(&mut self, tell: &mpsc::Sender<Attach<K>>) -> Result<(), StoreError> {
        let is_good = |offered: &Offered<K>| {
            !offered.over.load(Ordering::Acquire) && self.here.get(&offered.backend) == Some(&offered.its)
        };
        if self.offered.as_ref().is_some_and(|offered| !is_good(offered)) {
            self.take_back()?;
        }
        if self.offered.is_some() {
            return Ok(());
        }
        let found = self.allowed.iter().find_map(|backend| Some((*backend, *self.here.get(backend)?)));
        let Some((backend, incarnation)) = found else { return Ok(()) };
        match self.make(backend, incarnation) {
            Ok((attach, offered)) => {
                if tell.blocking_send(attach).is_ok() {
                    self.offered = Some(offered);
                }
            }
            Err(error) => tracing::error!(%backend, "no window can be offered: {error}"),
        }
        Ok(())
    }

    fn make(&self, backend: Domid, its: u64) -> Result<(Attach<K>, Offered<K>), PlatformError> {
        let refused = |operation| move |source| PlatformError::Refused { operation, source };
        let drawn = incarnation().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let own = drawn.map_err(refused("drawing a random number"))?;
        let xen = Xen::new(self.kernel.clone(), self.own);
        let lot = |size| {
            let memory = xen.allocate(size, &backend, Access::ReadWrite)?;
            let window = Window::new(xen.map_own(&memory)?);
            let grant = xen.grant(&memory, &backend, Access::ReadWrite)?;
            Ok::<_, PlatformError>((memory, window, grant))
        };
        let (head_memory, head, head_grant) = lot(RegionSize(PAGE_BYTES.into()))?;
        let (crossing_memory, crossing, crossing_grant) = lot(CROSSING.size())?;
        let port = self.kernel.listen(backend).map_err(refused("making an event channel"))?;
        let farewell = Farewell { byte_at: u64::from(4 * GUEST_THERE_WORD), port: &port };
        head_memory.pages().set_farewell(farewell).map_err(refused("having the kernel say farewell"))?;
        head.store(GUEST_THERE_WORD, 1, Ordering::Release);
        let offer =
            Offer { backend, incarnation: its, port: port.number(), head: head_grant, crossing: crossing_grant };
        let announcement = Announcement::new(own, offer.emit(), &[backend]);
        let announcement = announcement.expect("grants that name lists are short enough");
        let (gone, over) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let held = Held::of(self.kernel, self.own, &port);
        let held = held.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let held = held.map_err(refused("keeping an event channel"))?;
        let offered = Offered { backend, its, announcement, held, gone: Arc::clone(&gone), over: Arc::clone(&over) };
        let (memory, over) = ([head_memory, crossing_memory], Over(over, std::thread::current()));
        Ok((Attach { xen, backend, head, crossing, memory, port, gone, over }, offered))
    }
}
