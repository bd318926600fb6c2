//! Windows that this guest has in common with others: the guest's daemon's part ([`border::guest`](crate::border)).
//!
//! ```text
//!   who grants: a head page, a port, lots ── by the backend ──► who maps
//!     Relay ◄═══════════ an event channel of the window's ═══════════► Relay
//! ```
//!
//! What the other guest says comes by the backend, and is mapped in full once before any program gets it; who cannot map something says so, and
//! nothing else comes of it. Programs ring each other by lines, event channels that lots for their boards come with; those that do not know
//! lines by the relay. Its rings wake programs of this guest, never this daemon's crossing. What it does with pages that it was granted is
//! its own affair: all that is granted to others leaves [`RESERVE_PAGES`] for this guest's own programs.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use isthmus_layout::RegionSize;
use isthmus_layout::border::WindowNumber;
use isthmus_layout::border::lots::{GRANT_BYTES_MAX, GUEST_THERE_WORD, HOST_THERE_WORD, LOT_BYTES_MAX, Wanted};
use isthmus_layout::border::shared::{Lend, Share};
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_platform::Platform as _;
use isthmus_platform_kvm::{GUEST as OWN, HOST};
use isthmus_platform_xen::kernel::{Pages as _, Port as _};
use isthmus_platform_xen::{Domid, Farewell, GrantRef, SharedHead, SharedLot, Xen, XenMemory};
use isthmus_shm::{Access, Window, Words as _};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_local};

use super::Domain;
use super::held::Held;
use super::relay::{BACKEND, Bells, GUEST, Relay};
use crate::border::guest::{Device, LineEnd};

/// Windows that a guest may have in common with others, as its backend limits them, and some that are going.
const NEIGHBOURS_MAX: usize = 64;

/// Pages that the kernel would still grant to the backend after anything was granted to another guest. Who was granted pages keeps them as
/// long as it likes, and they count until then.
const RESERVE_PAGES: u32 = 256;

/// The device of a guest of Xen: its own window, and those that it has in common with others.
pub(super) enum Shown<K: Domain, D> {
    /// Its own.
    Own { device: D, neighbours: Neighbours<K> },
    /// One of the others.
    Common(Rc<Neighbour<K>>),
}

/// All that there are.
pub(super) struct Neighbours<K: Domain> {
    xen: Xen<K>,
    backend: Domid,
    bells: Rc<Bells>,
    known: RefCell<BTreeMap<WindowNumber, Rc<Neighbour<K>>>>,
    /// Something has come or gone.
    changed: Rc<Notify>,
}

/// One of them.
pub(super) struct Neighbour<K: Domain> {
    domid: Domid,
    bells: Rc<Bells>,
    lots: RefCell<BTreeMap<u64, Lot<K>>>,
    /// Its relay is done, or we are.
    over: Rc<Cell<bool>>,
    /// Both daemons are there.
    shown: Rc<Cell<bool>>,
    relaying: AbortHandle,
    xen: Xen<K>,
    /// The head page, if it is ours.
    head_memory: Option<XenMemory<K::Pages>>,
    /// Of the relay's port.
    _held: Held<K>,
}

/// A lot of a window.
struct Lot<K: Domain> {
    pages: LotPages<K>,
    line: Option<Line<K>>,
}

enum LotPages<K: Domain> {
    /// That we have granted.
    Ours(XenMemory<K::Pages>),
    /// That the other guest has.
    Theirs(Vec<GrantRef>),
}

/// Our end of an event channel that programs of both guests ring each other by.
struct Line<K: Domain> {
    port: K::Port,
    _held: Held<K>,
}

/// Whether lots of so many bytes come with a line: those that have room for a board and nothing else.
fn has_line(bytes: u64) -> bool {
    bytes == u64::from(PAGE_BYTES)
}

fn page() -> RegionSize {
    RegionSize(PAGE_BYTES.into())
}

fn no(text: impl Into<String>) -> io::Error {
    io::Error::other(text.into())
}

impl<K: Domain> Drop for Neighbour<K> {
    fn drop(&mut self) {
        self.relaying.abort();
    }
}

impl<K: Domain> Neighbour<K> {
    /// Passes rings on over a window whose head page is mapped.
    fn relay(
        of: &Neighbours<K>,
        domid: Domid,
        (head, memory): (Window, Option<XenMemory<K::Pages>>),
        port: K::Port,
    ) -> io::Result<Rc<Self>> {
        let bells = of.bells.beside()?;
        let mut held = Held::of(of.xen.kernel(), of.xen.own(), &port)?;
        held.announced = true; // Only who is announced is told of others.
        let words = if memory.is_some() { GUEST } else { BACKEND };
        let relay = Relay::new(port, head, words, Rc::clone(&bells));
        let (over, shown) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(memory.is_none())));
        let (ends, shows, changed) = (Rc::clone(&over), Rc::clone(&shown), Rc::clone(&of.changed));
        let relaying = spawn_local(async move {
            let is_here = || {
                shows.set(true);
                changed.notify_one();
            };
            match relay.run_telling(is_here).await {
                Ok(()) => {
                    tracing::info!(domain = %domid, "a guest with which there is a window in common lets go of it")
                }
                Err(error) => tracing::error!(domain = %domid, "an event channel cannot be used: {error}"),
            }
            ends.set(true);
            changed.notify_one();
        });
        let (xen, relaying) = (of.xen.clone(), relaying.abort_handle());
        let (lots, head_memory) = (RefCell::default(), memory);
        Ok(Rc::new(Self { domid, bells, lots, over, shown, relaying, xen, head_memory, _held: held }))
    }

    /// Grants a lot to it.
    fn grant(&self, backend: Domid, Wanted { place, bytes, .. }: Wanted) -> io::Result<Vec<u8>> {
        let mut lots = self.lots.borrow_mut();
        if lots.contains_key(&place) || bytes == 0 || bytes > LOT_BYTES_MAX || self.head_memory.is_none() {
            return Err(no(format!("the host wants {bytes} bytes at {place} of a common window")));
        }
        let memory = self.xen.allocate(RegionSize(bytes), &self.domid, Access::ReadWrite).map_err(io::Error::other)?;
        // What is over when this returns was never anybody's.
        let reserve = self.xen.kernel().offer(backend, RESERVE_PAGES, Access::ReadWrite);
        reserve.map_err(|_| no("other guests have nearly all that this one may grant"))?;
        let pages = self.xen.grant(&memory, &self.domid, Access::ReadWrite).map_err(io::Error::other)?;
        let port = has_line(bytes).then(|| self.xen.kernel().listen(self.domid)).transpose()?;
        let grant = SharedLot { line: port.as_ref().map(K::Port::number), pages }.emit();
        assert!(grant.len() <= GRANT_BYTES_MAX); // Ours: a grant has 72 bytes at most.
        let line = port.map(|port| self.line(port)).transpose()?;
        lots.insert(place, Lot { pages: LotPages::Ours(memory), line });
        Ok(grant)
    }

    fn line(&self, port: K::Port) -> io::Result<Line<K>> {
        port.restrict(self.domid)?;
        let mut held = Held::of(self.xen.kernel(), self.xen.own(), &port)?;
        held.announced = true; // As above.
        Ok(Line { port, _held: held })
    }

    /// Takes a lot that it grants to us.
    fn borrow(&self, Lend { place, bytes, grant, .. }: &Lend<'_>) -> io::Result<()> {
        let mut lots = self.lots.borrow_mut();
        if lots.contains_key(place) || *bytes == 0 || *bytes > LOT_BYTES_MAX || self.head_memory.is_some() {
            return Err(no(format!("the host lends {bytes} bytes at {place} of a common window")));
        }
        let SharedLot { line, pages } = SharedLot::parse(grant, self.domid).map_err(io::Error::other)?;
        let refs = self.xen.pages_of(&pages, RegionSize(*bytes)).map_err(io::Error::other)?;
        // A program that cannot map what it is handed has no channel; nobody is handed what cannot be mapped at all.
        self.xen.kernel().map(self.domid, &refs, Access::ReadWrite, None)?;
        let line = match line {
            Some(port) => Some(self.line(self.xen.kernel().bind(self.domid, port)?)?),
            None if has_line(*bytes) => return Err(no("a lot that is to have a line has none")),
            None => None,
        };
        lots.insert(*place, Lot { pages: LotPages::Theirs(refs), line });
        Ok(())
    }

    fn line_end(&self, place: u64) -> io::Result<LineEnd> {
        let lots = self.lots.borrow();
        let line = lots.get(&place).and_then(|lot| lot.line.as_ref());
        let line = line.ok_or_else(|| no(format!("there is no line at {place} of a common window")))?;
        // Not announced: when the last program has gone we may not be, in the same domain.
        let keep = Held::of(self.xen.kernel(), self.xen.own(), &line.port)?;
        let end = line.port.as_fd().try_clone_to_owned()?;
        Ok(LineEnd { end, port: line.port.number().0, keep: Box::new(keep) })
    }

    fn piece(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd> {
        let lots = self.lots.borrow();
        let lot = lots.get(&offset).ok_or_else(|| no(format!("there is nothing at {offset} of a common window")))?;
        let pages = usize::try_from(bytes.div_ceil(PAGE_BYTES.into())).map_err(io::Error::other)?;
        let too_small = || no(format!("what is at {offset} of a common window has less than {bytes} bytes"));
        match &lot.pages {
            LotPages::Ours(memory) if pages <= memory.pages().refs().len() => {
                memory.pages().as_fd().try_clone_to_owned()
            }
            LotPages::Theirs(refs) => {
                let refs = refs.get(..pages).ok_or_else(too_small)?;
                Ok(self.xen.kernel().lend(self.domid, refs)?)
            }
            LotPages::Ours(_) => Err(too_small()),
        }
    }
}

impl<K: Domain> Neighbours<K> {
    pub(super) fn new(xen: Xen<K>, backend: Domid, bells: Rc<Bells>) -> Self {
        Self { xen, backend, bells, known: RefCell::default(), changed: Rc::default() }
    }

    fn share(&self, share: &Share<'_>) -> io::Result<Option<Vec<u8>>> {
        let domid = Domid::new(share.domain).filter(|domid| *domid != self.backend);
        let domid = domid.ok_or_else(|| no(format!("{} is no domain of a guest", share.domain)))?;
        if share.window == WindowNumber::OWN || self.known.borrow().contains_key(&share.window) {
            return Err(no(format!("window {} is there already", share.window.0)));
        }
        if self.known.borrow().len() >= NEIGHBOURS_MAX {
            return Err(no(format!("there are {NEIGHBOURS_MAX} windows in common with others")));
        }
        let (neighbour, offer) = match share.offer {
            [] => self.offer(domid).map(|(neighbour, offer)| (neighbour, Some(offer)))?,
            offer => (self.map(domid, offer)?, None),
        };
        self.known.borrow_mut().insert(share.window, neighbour);
        Ok(offer)
    }

    /// Grants a head page, and makes a port.
    fn offer(&self, to: Domid) -> io::Result<(Rc<Neighbour<K>>, Vec<u8>)> {
        let memory = self.xen.allocate(page(), &to, Access::ReadWrite).map_err(io::Error::other)?;
        let head = Window::new(self.xen.map_own(&memory).map_err(io::Error::other)?);
        let port = self.xen.kernel().listen(to)?;
        memory.pages().set_farewell(Farewell { byte_at: u64::from(4 * GUEST_THERE_WORD), port: &port })?;
        head.store(GUEST_THERE_WORD, 1, Ordering::Release);
        let grant = self.xen.grant(&memory, &to, Access::ReadWrite).map_err(io::Error::other)?;
        let offer = SharedHead { port: port.number(), head: grant }.emit();
        assert!(offer.len() <= GRANT_BYTES_MAX); // Ours: as above.
        Ok((Neighbour::relay(self, to, (head, Some(memory)), port)?, offer))
    }

    /// Maps what another guest offers.
    fn map(&self, from: Domid, offer: &[u8]) -> io::Result<Rc<Neighbour<K>>> {
        let SharedHead { port, head } = SharedHead::parse(offer, from).map_err(io::Error::other)?;
        let port = self.xen.kernel().bind(from, port)?;
        let farewell = Farewell { byte_at: u64::from(4 * HOST_THERE_WORD), port: &port };
        let head = self.xen.map_until(&head, page(), Access::ReadWrite, Some(farewell)).map_err(io::Error::other)?;
        let head = Window::new(head);
        if head.load(GUEST_THERE_WORD, Ordering::Acquire) != 1 {
            return Err(no("the other one has gone already"));
        }
        head.store(HOST_THERE_WORD, 1, Ordering::Release);
        port.notify()?;
        Neighbour::relay(self, from, (head, None), port)
    }

    fn get(&self, window: WindowNumber) -> io::Result<Rc<Neighbour<K>>> {
        let known = self.known.borrow().get(&window).cloned();
        known.ok_or_else(|| no(format!("there is no window {} in common with anybody", window.0)))
    }

    fn part(&self, window: WindowNumber) {
        if let Some(neighbour) = self.known.borrow_mut().remove(&window) {
            neighbour.over.set(true);
        }
    }
}

impl<K: Domain, D: Device> Device for Shown<K, D> {
    fn window(&self, at: u64, size: RegionSize) -> io::Result<Window> {
        match self {
            Self::Own { device, .. } => device.window(at, size),
            Self::Common(_) => Err(no("a common window is its programs'")),
        }
    }

    fn piece(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd> {
        match self {
            Self::Own { device, .. } => device.piece(offset, bytes),
            Self::Common(neighbour) => neighbour.piece(offset, bytes),
        }
    }

    /// Whoever maps it keeps it, and nobody else gets it.
    fn withdraw(&self, offset: u64, piece: Option<&OwnedFd>) -> io::Result<()> {
        match self {
            Self::Own { device, .. } => device.withdraw(offset, piece),
            Self::Common(neighbour) => {
                neighbour.lots.borrow_mut().remove(&offset);
                Ok(())
            }
        }
    }

    fn ringer(&self, peer: u16, vector: u16) -> io::Result<OwnedFd> {
        match self {
            Self::Own { device, .. } if peer == HOST || peer == OWN => device.ringer(peer, vector),
            Self::Own { neighbours, .. } => neighbours.get(WindowNumber(peer - OWN))?.bells.ringer(vector),
            Self::Common(_) => Err(no("a common window has no bells")),
        }
    }

    fn line(&self, place: u64) -> io::Result<LineEnd> {
        match self {
            Self::Own { .. } => Err(no("a guest's own window has no lines")),
            Self::Common(neighbour) => neighbour.line_end(place),
        }
    }

    fn listen(&self, vector: u16) -> io::Result<OwnedFd> {
        match self {
            Self::Own { device, .. } => device.listen(vector),
            Self::Common(_) => Err(no("a common window has no bells")),
        }
    }

    fn hang_up(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Own { device, .. } => device.hang_up(),
            Self::Common(_) => Err(no("a common window has no end of its own")),
        }
    }

    fn beside(&self, known: &BTreeSet<WindowNumber>) -> Vec<(WindowNumber, Self)> {
        let Self::Own { neighbours, .. } = self else { return Vec::new() };
        let all = neighbours.known.borrow();
        let new = all.iter().filter(|(window, of)| of.shown.get() && !of.over.get() && !known.contains(window));
        new.map(|(window, of)| (*window, Self::Common(Rc::clone(of)))).collect()
    }

    fn is_gone(&self) -> bool {
        match self {
            Self::Own { device, .. } => device.is_gone(),
            Self::Common(neighbour) => neighbour.over.get(),
        }
    }

    fn make(&self, wanted: Wanted) -> io::Result<Vec<u8>> {
        match self {
            Self::Own { device, .. } if wanted.window == WindowNumber::OWN => device.make(wanted),
            Self::Own { neighbours, .. } => neighbours.get(wanted.window)?.grant(neighbours.backend, wanted),
            Self::Common(_) => Err(no("it is the host who wants something of a common window")),
        }
    }

    fn share(&self, share: &Share<'_>) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Own { neighbours, .. } => neighbours.share(share),
            Self::Common(_) => Err(no("a common window has no others beside it")),
        }
    }

    fn part(&self, window: WindowNumber) {
        if let Self::Own { neighbours, .. } = self {
            neighbours.part(window);
        }
    }

    fn borrow(&self, lend: &Lend<'_>) -> io::Result<()> {
        match self {
            Self::Own { neighbours, .. } => neighbours.get(lend.window)?.borrow(lend),
            Self::Common(_) => Err(no("it is the host who lends something of a common window")),
        }
    }

    async fn changed(&self) {
        match self {
            Self::Own { neighbours, .. } => neighbours.changed.notified().await,
            Self::Common(_) => std::future::pending().await,
        }
    }

    fn shows_to_many(&self) -> bool {
        match self {
            Self::Own { device, .. } => device.shows_to_many(),
            // A kernel maps what was granted to it once by each descriptor.
            Self::Common(neighbour) => neighbour.head_memory.is_some(),
        }
    }

    fn lasts(&self) -> bool {
        match self {
            Self::Own { device, .. } => device.lasts(),
            Self::Common(_) => false,
        }
    }
}

#[cfg(test)]
mod tests;
