//! Where domains' shared memory comes from, and how they are woken: files of this host, or pieces of a guest's window.
//!
//! ```text
//!   Ground::Host ───► memory files, event descriptors          handed over as descriptors
//!   Ground::Guest ──► Estate: a window, vectors                 handed over as places (isthmus_layout::border)
//!                       └ Land: Sheet   a memory file that a device shows to the guest (KVM)
//!                               Lots    pages that the guest grants, for each piece anew (Xen)
//!     two of them ──► CommonWindow: what both guests see         the same
//!                       └ Common: common::Sheet, common::Lots
//! ```
//!
//! What is handed to a domain is an [`Item`] either way. A guest may write anything into its window at any time, and knows no more
//! than where in it things are.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use isthmus_layout::RegionSize;
use isthmus_layout::border::lots::Wanted;
use isthmus_layout::border::{CROSSING, CROSSING_AT, CROSSING_VECTOR, Handed, WindowNumber, Withdrawn};
use isthmus_layout::channel::{Geometry, SlabSize};
use isthmus_layout::control::Name;
use isthmus_layout::ids::DomainId;
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::reason::Reason;
use isthmus_platform::{Doorbell, PlatformError, Ring as _, local};
use isthmus_platform_kvm::{GUEST, HOST};
use isthmus_service::WorkerIndex;
use isthmus_shm::{Access, Mapping, Window};
use tokio::sync::Notify;

use crate::broker::Refusal;

pub(crate) mod common;
mod lots;
mod pieces;
mod sheet;
mod stock;
use common::{CommonPiece, Order};
pub(crate) use common::{CommonWindow, Progress};
pub(crate) use lots::Lots;
pub(crate) use sheet::Sheet;
pub(crate) use stock::Sort;

/// Tells grounds apart: 0 is the host, others are guests, none used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroundNumber(pub u32);

/// Where a domain is.
#[derive(Clone, Debug)]
pub enum Ground {
    /// A process of this host.
    Host,
    /// A program of a guest.
    Guest(Arc<Estate>),
}

/// What a domain is given: to map, to ring, or to listen to.
#[derive(Clone, Debug)]
pub enum Item {
    /// A descriptor.
    File(Arc<OwnedFd>),
    /// A piece of a guest's window.
    Piece(Arc<Piece>),
    /// A piece of a window that two guests have in common.
    Common(Arc<CommonPiece>),
    /// The same bytes, with what may be done with them.
    Region(Box<Item>, Rights),
    /// A bell of a guest's device.
    Bell(Handed),
}

/// What may be done with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// It is memory of who has it.
    Home,
    /// It may be read.
    View,
}

/// A window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A guest's own.
    Own(GroundNumber),
    /// One that two guests have in common.
    Common(WindowNumber),
}

/// Memory of a channel or of a domain's ring.
#[derive(Debug)]
pub(crate) struct Rings {
    /// Bytes of each slab.
    pub(crate) slab: SlabSize,
    /// The memory.
    pub(crate) memory: Item,
    /// Why it is not more.
    pub(crate) refused: Option<Refusal>,
}

impl Rings {
    /// Two rings and two slabs of `most` bytes each in memory that is made so; with smaller slabs where so much is not to be had.
    pub(crate) fn of(most: SlabSize, memory: impl Fn(RegionSize) -> Result<Item, Refusal>) -> Result<Self, Refusal> {
        let (mut slab, mut refused) = (most, None);
        loop {
            let refusal = match memory(Geometry { slab }.size()) {
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

impl From<OwnedFd> for Item {
    fn from(file: OwnedFd) -> Self {
        Self::File(Arc::new(file))
    }
}

impl Item {
    /// Our own mapping of memory.
    pub(crate) fn map(&self, size: RegionSize) -> Result<Window, Refusal> {
        let mapping = match self {
            Self::File(file) => Mapping::new(file, size, Access::ReadWrite),
            Self::Piece(piece) => return piece.estate.land.map(piece.at, size),
            Self::Common(piece) => return piece.map(size),
            Self::Region(memory, _) => return memory.map(size),
            Self::Bell(_) => unreachable!("a bell is not memory"),
        };
        mapping.map(Window::new).map_err(|error| Refusal::from_map(&error))
    }

    /// The descriptor, on the host.
    pub(crate) fn file(&self) -> Option<&Arc<OwnedFd>> {
        match self {
            Self::File(file) => Some(file),
            Self::Piece(_) | Self::Common(_) | Self::Region(..) | Self::Bell(_) => None,
        }
    }

    /// The window that it lies in.
    pub(crate) fn place(&self) -> Option<Place> {
        match self {
            Self::File(_) | Self::Bell(_) => None,
            Self::Piece(piece) => Some(Place::Own(piece.estate.number)),
            Self::Common(piece) => Some(Place::Common(piece.window())),
            Self::Region(memory, _) => memory.place(),
        }
    }

    /// The same for its owner.
    pub(crate) fn as_home(&self) -> Self {
        Self::Region(Box::new(self.clone()), Rights::Home)
    }

    /// The same for those who read it.
    pub(crate) fn as_view(&self) -> Self {
        Self::Region(Box::new(self.clone()), Rights::View)
    }

    /// The window that two guests have in common and this lies in.
    pub(crate) fn common(&self) -> Option<WindowNumber> {
        match self.place()? {
            Place::Common(window) => Some(window),
            Place::Own(_) => None,
        }
    }

    /// Reads memory without a mapping. False if it is not as long.
    pub(crate) fn look(&self, at: u64, into: &mut [u8]) -> bool {
        match self {
            Self::File(file) => rustix::io::pread(file, &mut *into, at) == Ok(into.len()),
            Self::Piece(piece) => piece.estate.land.look(piece.at + at, into),
            Self::Common(piece) => piece.look(at, into),
            Self::Region(memory, _) => memory.look(at, into),
            Self::Bell(_) => false,
        }
    }

    /// What a guest is told instead.
    pub(crate) fn handed(&self) -> Option<Handed> {
        match self {
            Self::File(_) => None,
            Self::Piece(piece) => {
                let Piece { at: offset, bytes, age, .. } = **piece;
                Some(Handed::Piece { window: WindowNumber::OWN, offset, bytes, age })
            }
            Self::Common(piece) => Some(piece.handed()),
            Self::Region(memory, rights) => match (memory.handed()?, rights) {
                (Handed::Piece { window, offset, bytes, age }, Rights::Home) => {
                    Some(Handed::Home { window, offset, bytes, age })
                }
                (Handed::Piece { window, offset, bytes, age }, Rights::View) => {
                    Some(Handed::View { window, offset, bytes, age })
                }
                (other, _) => Some(other),
            },
            Self::Bell(handed) => Some(*handed),
        }
    }
}

impl Ground {
    /// Which it is.
    pub(crate) fn number(&self) -> GroundNumber {
        match self {
            Self::Host => GroundNumber(0),
            Self::Guest(estate) => estate.number,
        }
    }

    /// The guest's name.
    pub(crate) fn guest(&self) -> Option<&Name> {
        match self {
            Self::Host => None,
            Self::Guest(estate) => Some(&estate.name),
        }
    }

    /// Zeroed memory.
    pub(crate) fn memory(&self, size: RegionSize) -> Result<Item, Refusal> {
        match self {
            Self::Host => Ok(local::memory(size)?.into()),
            Self::Guest(estate) => estate.piece(size),
        }
    }

    /// Zeroed memory for two rings and two slabs.
    pub(crate) fn rings(&self, most: SlabSize) -> Result<Rings, Refusal> {
        Rings::of(most, |size| self.memory(size))
    }

    /// What rings a worker: where the worker hears it, and what rings it.
    pub(crate) fn worker_bell(&self, worker: WorkerIndex) -> Result<(Doorbell, Item), Refusal> {
        match self {
            Self::Host => {
                let doorbell = Doorbell::new()?;
                let ringer = descriptor(&doorbell)?.into();
                Ok((doorbell, ringer))
            }
            Self::Guest(estate) => {
                let shared = u16::try_from(estate.inward.len() - 1).unwrap_or(u16::MAX);
                let vector = 1 + u16::from(worker.0) % shared;
                let doorbell = estate.inward[usize::from(vector)].clone();
                Ok((doorbell, Item::Bell(Handed::Ringer { peer: HOST, vector })))
            }
        }
    }

    /// A domain is gone, and so are its bells.
    pub(crate) fn forget(&self, domain: DomainId) {
        if let Self::Guest(estate) = self {
            estate.forget(domain);
        }
    }

    /// A bell of a domain's own for peers of its owner: where it hears it, and what they ring.
    pub(crate) fn domain_bell(&self, domain: DomainId) -> Result<(Item, Item), Refusal> {
        match self {
            Self::Host => {
                let bell = Item::from(descriptor(&Doorbell::new()?)?);
                Ok((bell.clone(), bell))
            }
            Self::Guest(estate) => {
                let vector = estate.vector(domain)?;
                Ok((Item::Bell(Handed::Listener { vector }), Item::Bell(Handed::Ringer { peer: GUEST, vector })))
            }
        }
    }
}

pub(crate) fn descriptor(bell: &Doorbell) -> Result<OwnedFd, PlatformError> {
    use std::os::fd::AsFd as _;
    bell.as_fd().try_clone_to_owned().map_err(|error| PlatformError::Refused {
        operation: "copying a doorbell",
        source: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::MFILE),
    })
}

/// What a guest's window is made of. Places in it are told to the guest, and mean the same to both.
pub(crate) trait Land: std::fmt::Debug + Send + Sync {
    /// Our mapping of a part.
    fn map(&self, at: u64, size: RegionSize) -> Result<Window, Refusal>;
    /// Reads a part without a mapping of it. False if that cannot be.
    fn look(&self, at: u64, into: &mut [u8]) -> bool;
    /// A place of so many bytes, in whole pages, for a piece; and which use of it this is.
    fn take(&self, bytes: u64) -> Result<(u64, u32), OutOfLand>;
    /// Makes what was taken zeroes.
    fn clear(&self, at: u64, bytes: u64) -> Result<(), Refusal>;
    /// What was taken is no piece any more.
    fn let_go(&self, at: u64, bytes: u64);
    /// True as long as this use of a place lasts.
    fn holds(&self, at: u64, age: u32) -> bool;
    /// Of what was let go, what the guest is to be told of next that was told of so many.
    fn withdrawn(&self, told: usize) -> Option<Withdrawn>;
    /// This is away. False if the guest cannot say so: it was told of so many of them, and they may have to be next.
    fn away(&self, withdrawn: Withdrawn, told: usize) -> bool;
    /// Bytes that are taken, among them those that always are.
    fn used(&self) -> u64;
    /// Bytes that there may be at once.
    fn bytes(&self) -> u64;
    /// Whether programs can have memory of their own in it.
    fn has_regions(&self) -> bool;

    /// What the guest is to make, of a window that it makes piece by piece.
    fn wanted(&self) -> Option<Wanted> {
        None
    }
    /// It was told of that.
    fn asked(&self) {}
    /// It has made this, or says with nothing that it cannot. What is wrong with that, if a guest of sense would not say it.
    fn supply(&self, _place: u64, _grant: &[u8]) -> Result<(), String> {
        Err("its window is whole".to_owned())
    }
    /// Whether there is all that a domain needs to attach, or will not be.
    fn is_ready(&self) -> bool {
        true
    }
    /// Whether the window can be talked in again once its conversation has ended.
    fn lasts(&self) -> bool {
        true
    }
}

/// There is no room for another piece of so many bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutOfLand;

/// A guest's window, and what rings the guest and is rung by it.
#[derive(Debug)]
pub struct Estate {
    number: GroundNumber,
    name: Name,
    land: Box<dyn Land>,
    /// Wakes whoever tells the guest what is withdrawn, and what is wanted.
    changed: Notify,
    /// The guest has made something of what it was to make.
    supplied: Notify,
    /// Who is woken by which of the guest's vectors.
    vectors: Mutex<BTreeMap<u16, DomainId>>,
    /// Windows that it has in common with others.
    commons: Mutex<Vec<Weak<CommonWindow>>>,
    /// What it has not been told of them.
    orders: Mutex<VecDeque<Order>>,
    /// What rings the guest's vectors.
    outward: Vec<Doorbell>,
    /// Where the guest's rings of our vectors are heard.
    inward: Vec<Doorbell>,
}

impl Estate {
    /// Over a window, with as many vectors each way as there are event descriptors, two at least.
    pub(crate) fn new(
        number: GroundNumber,
        name: Name,
        land: impl Land + 'static,
        (outward, inward): (Vec<OwnedFd>, Vec<OwnedFd>),
    ) -> Arc<Self> {
        assert!(outward.len() > 1 && inward.len() > 1); // The configuration's limits.
        let (changed, supplied) = (Notify::new(), Notify::new());
        let (vectors, commons, orders) = (Mutex::default(), Mutex::default(), Mutex::default());
        let bells = |fds: Vec<OwnedFd>| fds.into_iter().map(Doorbell::from).collect();
        let (outward, inward) = (bells(outward), bells(inward));
        let land = Box::new(land);
        Arc::new(Self { number, name, land, changed, supplied, vectors, commons, orders, outward, inward })
    }

    /// Which it is.
    pub(crate) fn number(&self) -> GroundNumber {
        self.number
    }

    /// Its number among the peers of another guest's device; none once there were too many guests.
    pub(crate) fn peer(&self) -> Option<u16> {
        u16::try_from(self.number.0).ok()?.checked_add(GUEST)
    }

    /// What rings its domains' vectors, in the order of the vectors. In place of the crossing's vector there is a bell that nobody hears.
    pub(crate) fn bells(&self) -> Result<Vec<OwnedFd>, PlatformError> {
        let unheard = descriptor(&Doorbell::new()?);
        let domains = self.outward[1 + usize::from(CROSSING_VECTOR)..].iter().map(descriptor);
        std::iter::once(unheard).chain(domains).collect()
    }

    /// Vectors that its device can ring of another one, at most.
    fn vectors_max(&self) -> u16 {
        u16::try_from(self.outward.len()).unwrap_or(u16::MAX)
    }

    /// What the guest is called.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Our mapping of its first page.
    pub(crate) fn head(&self) -> Result<Window, Refusal> {
        self.land.map(0, RegionSize(u64::from(PAGE_BYTES)))
    }

    /// Our mapping of its crossing.
    pub(crate) fn crossing(&self) -> Result<Window, Refusal> {
        self.land.map(CROSSING_AT, CROSSING.size())
    }

    /// Has the guest's daemon look at the crossing.
    pub(crate) fn call(&self) {
        self.outward[usize::from(CROSSING_VECTOR)].ring();
    }

    /// Where the guest's daemon rings for the crossing.
    pub(crate) fn called(&self) -> Result<OwnedFd, PlatformError> {
        descriptor(&self.inward[usize::from(CROSSING_VECTOR)])
    }

    /// What wakes a domain of the guest.
    pub(crate) fn nudge(&self, domain: DomainId) -> Result<Doorbell, Refusal> {
        Ok(self.outward[usize::from(self.vector(domain)?)].clone())
    }

    /// The vector of a domain is nobody's.
    pub(crate) fn forget(&self, domain: DomainId) {
        self.vectors().retain(|_, of| *of != domain);
    }

    /// Of pieces that were let go, the one that the guest is to be told of next, which was told of so many of a window.
    pub(crate) fn withdrawn(&self, told: impl Fn(WindowNumber) -> usize) -> Option<Withdrawn> {
        let own = self.land.withdrawn(told(WindowNumber::OWN));
        let of_common = |common: &Arc<CommonWindow>| common.withdrawn(self.number, told(common.number()));
        own.or_else(|| self.commons().iter().find_map(of_common))
    }

    /// Nobody in the guest sees this any more. False if it cannot say so of this window, having been told of so much.
    pub(crate) fn away(&self, withdrawn: Withdrawn, told: usize) -> bool {
        if withdrawn.window == WindowNumber::OWN {
            return self.land.away(withdrawn, told);
        }
        let commons = self.commons();
        let Some(common) = commons.iter().find(|common| common.number() == withdrawn.window) else {
            return true; // It is gone meanwhile, with all its pieces.
        };
        let is_first = common.withdrawn(self.number, 0) == Some(withdrawn);
        if is_first {
            common.away(self.number);
        }
        is_first
    }

    /// What the guest is to be told of windows that it has in common with others, before anything else.
    pub(crate) fn next_order(&self) -> Option<Order> {
        self.orders().front().cloned()
    }

    /// It was told of that.
    pub(crate) fn ordered(&self) {
        self.orders().pop_front();
    }

    /// Tells it, before anything that it is told later.
    pub(crate) fn order(&self, order: Order) {
        self.orders().push_back(order);
        self.changed.notify_one();
    }

    /// How much it has not been told.
    pub(crate) fn orders_waiting(&self) -> usize {
        self.orders().len()
    }

    fn orders(&self) -> MutexGuard<'_, VecDeque<Order>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the guest is to make next.
    pub(crate) fn wanted(&self) -> Option<Wanted> {
        let own = self.land.wanted();
        own.or_else(|| self.commons().iter().find_map(|common| common.wanted(self.number)))
    }

    /// It was told of that.
    pub(crate) fn asked(&self, wanted: Wanted) {
        match wanted.window {
            WindowNumber::OWN => self.land.asked(),
            window => self.of_common(window, |common| common.asked(self.number)).unwrap_or_default(),
        }
    }

    /// The guest has made what it was to make, or cannot. What was wrong with that.
    pub(crate) fn supply(&self, window: WindowNumber, place: u64, grant: &[u8]) -> Result<(), String> {
        if window != WindowNumber::OWN {
            // It is not there any more, or never was: nothing comes of it.
            return self.of_common(window, |common| common.supply(self.number, place, grant)).unwrap_or(Ok(()));
        }
        let supplied = self.land.supply(place, grant);
        self.supplied.notify_waiters();
        supplied
    }

    /// The guest can map what another one has granted, or cannot. What was wrong with that.
    pub(crate) fn lent(&self, window: WindowNumber, place: u64, good: bool) -> Result<(), String> {
        self.of_common(window, |common| common.lent(self.number, place, good)).unwrap_or(Ok(()))
    }

    /// The guest offers a common window, or cannot have it. What was wrong with that.
    pub(crate) fn offered(&self, window: WindowNumber, offer: &[u8]) -> Result<(), String> {
        self.of_common(window, |common| common.offered(self.number, offer)).unwrap_or(Ok(()))
    }

    fn of_common<T>(&self, window: WindowNumber, ask: impl FnOnce(&CommonWindow) -> T) -> Option<T> {
        self.commons().iter().find(|common| common.number() == window).map(|common| ask(common))
    }

    /// Waits until there is all that a domain needs to attach, or is known that there will not be.
    pub(crate) async fn ready(&self) {
        loop {
            let supplied = self.supplied.notified();
            if self.land.is_ready() {
                return;
            }
            supplied.await;
        }
    }

    /// Whether its window can be talked in again once its conversation has ended.
    pub(crate) fn lasts(&self) -> bool {
        self.land.lasts()
    }

    /// Waits until something may have been withdrawn, or may be wanted.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// True as long as a piece is what it was when it was handed out.
    pub(crate) fn holds(&self, window: WindowNumber, offset: u64, age: u32) -> bool {
        match window {
            WindowNumber::OWN => self.land.holds(offset, age),
            _ => self.commons().iter().any(|common| common.number() == window && common.holds(offset, age)),
        }
    }

    fn commons(&self) -> Vec<Arc<CommonWindow>> {
        let mut commons = self.commons.lock().unwrap_or_else(PoisonError::into_inner);
        commons.retain(|common| common.strong_count() > 0);
        commons.iter().filter_map(Weak::upgrade).collect()
    }

    fn add_common(&self, common: &Arc<CommonWindow>) {
        self.commons.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(common));
    }

    /// The vector that wakes a domain, from 1 on; chosen when it is asked for first.
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

    fn piece(self: &Arc<Self>, size: RegionSize) -> Result<Item, Refusal> {
        let bytes = size.0.next_multiple_of(u64::from(PAGE_BYTES));
        let (at, age) = self.land.take(bytes).map_err(|OutOfLand| {
            let text = format!("the window of guest {} has no room for {bytes} bytes", self.name);
            Refusal::new(Reason::OutOfMemory, text)
        })?;
        let piece = Piece { estate: Arc::clone(self), at, bytes, age };
        self.changed.notify_one();
        // What the piece was before, and whatever the guest wrote there since.
        self.land.clear(at, bytes)?;
        Ok(Item::Piece(Arc::new(piece)))
    }

    fn vectors(&self) -> MutexGuard<'_, BTreeMap<u16, DomainId>> {
        self.vectors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of its window that are taken: those that are always, and those that are handed out.
    pub(crate) fn used(&self) -> u64 {
        self.land.used()
    }

    /// Bytes of its window.
    pub(crate) fn bytes(&self) -> u64 {
        self.land.bytes()
    }

    /// Whether its programs can have memory of their own in its window.
    pub(crate) fn has_regions(&self) -> bool {
        self.land.has_regions()
    }
}

/// A piece of a guest's window, for as long as it is held.
#[derive(Debug)]
pub struct Piece {
    estate: Arc<Estate>,
    at: u64,
    bytes: u64,
    age: u32,
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.estate.land.let_go(self.at, self.bytes);
        self.estate.changed.notify_one();
    }
}
