//! Which descriptors the library tracks.
//!
//! A descriptor's place holds a pointer to its object. Objects are never freed, only used again, so a call that races with `close` finds
//! memory of the right type, and sees by its count of users that the object has gone.

use core::ffi::c_int;
use core::ops::Deref;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::collections::HashSet;
use std::sync::OnceLock;

use rustix::mm::{MapFlags, ProtFlags};

use crate::connection::Connection;
use crate::epoll_set::EpollSet;
use crate::private_lock::PrivateLock;

/// Descriptors from here on are not tracked.
const FDS_MAX: usize = 1 << 20;

/// An object that descriptors refer to.
pub(crate) trait Tracked: Default + 'static {
    /// The table of this type.
    fn table() -> &'static Table<Self>;
    /// Ends the object. Its last user has gone.
    fn retire(&self);
}

/// An object with a count of its users. 0: it is free.
pub(crate) struct Counted<T> {
    users: AtomicU32,
    /// The object that was made before.
    before: AtomicPtr<Counted<T>>,
    object: T,
}

impl<T: Default> Default for Counted<T> {
    fn default() -> Self {
        Self { users: AtomicU32::new(0), before: AtomicPtr::new(core::ptr::null_mut()), object: T::default() }
    }
}

/// The places of all descriptors for one type of object.
pub(crate) struct Table<T: 'static> {
    places: OnceLock<&'static [AtomicPtr<Counted<T>>]>,
    /// No place from here on was ever used.
    end: AtomicUsize,
    free: PrivateLock<Vec<&'static Counted<T>>>,
    /// The object that was made last. All are reachable from it: a leak checker does not look into the mapping of the places.
    last: AtomicPtr<Counted<T>>,
}

/// An object that cannot be retired while this value lives.
pub(crate) struct InUse<T: Tracked>(&'static Counted<T>);

impl<T: Tracked> Deref for InUse<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0.object
    }
}

impl<T: Tracked> Clone for InUse<T> {
    fn clone(&self) -> Self {
        self.0.users.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl<T: Tracked> PartialEq for InUse<T> {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.0, other.0)
    }
}

impl<T: Tracked> Drop for InUse<T> {
    fn drop(&mut self) {
        // Release and acquire: the last user sees what the others did.
        if self.0.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.object.retire();
            T::table().free.with(|free| free.push(self.0));
        }
    }
}

impl<T: Tracked> InUse<T> {
    /// True if this value is the only use of the object.
    pub(crate) fn is_last(&self) -> bool {
        self.0.users.load(Ordering::Acquire) == 1
    }
}

/// Counts the users of objects anew, in a child after `fork`. Threads of the parent that used an object do not exist in the child.
pub(crate) struct Recount<T: Tracked>(Vec<&'static Counted<T>>);

impl<T: Tracked> Recount<T> {
    /// Begins with the descriptors, which are users.
    pub(crate) fn new() -> Self {
        let mut all = Vec::new();
        let table = T::table();
        let places = table.places.get().copied().unwrap_or_default();
        for place in &places[..table.end.load(Ordering::Acquire).min(places.len())] {
            // SAFETY: objects are never freed.
            all.extend(unsafe { place.load(Ordering::Acquire).as_ref() });
        }
        Self(all)
    }

    /// Counts a user.
    pub(crate) fn add(&mut self, user: &InUse<T>) {
        self.0.push(user.0);
    }

    /// Stores the counts. All users were counted, and no other thread exists.
    pub(crate) fn store(self) {
        self.0.iter().for_each(|counted| counted.users.store(0, Ordering::Relaxed));
        self.0.iter().for_each(|counted| _ = counted.users.fetch_add(1, Ordering::Relaxed));
    }
}

impl<T: Tracked> Table<T> {
    /// Creates a table without memory.
    pub(crate) const fn new() -> Self {
        Self {
            places: OnceLock::new(),
            end: AtomicUsize::new(0),
            free: PrivateLock::new(Vec::new()),
            last: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// The lock that `fork` holds.
    pub(crate) fn lock(&self) -> &PrivateLock<Vec<&'static Counted<T>>> {
        &self.free
    }

    fn places(&self) -> &'static [AtomicPtr<Counted<T>>] {
        self.places.get_or_init(|| {
            let bytes = FDS_MAX * size_of::<AtomicPtr<Counted<T>>>();
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a new mapping at an address that the kernel chooses.
            match unsafe {
                rustix::mm::mmap_anonymous(core::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
            } {
                // SAFETY: the mapping is zeroed, aligned, of this length, and never unmapped. Zeroes are null pointers.
                Ok(base) => unsafe { core::slice::from_raw_parts(base.cast(), FDS_MAX) },
                Err(_) => &[], // No address space: nothing is tracked.
            }
        })
    }

    fn place(&self, fd: c_int) -> Option<&'static AtomicPtr<Counted<T>>> {
        self.places.get()?.get(usize::try_from(fd).ok()?)
    }

    /// Returns true if the descriptor has an object.
    pub(crate) fn has(&self, fd: c_int) -> bool {
        self.place(fd).is_some_and(|place| !place.load(Ordering::Relaxed).is_null())
    }

    /// Returns the object of a descriptor.
    #[inline]
    pub(crate) fn get(&self, fd: c_int) -> Option<InUse<T>> {
        let place = self.place(fd)?;
        let found = place.load(Ordering::Acquire);
        if found.is_null() { None } else { Self::enter(place, found) }
    }

    fn enter(place: &AtomicPtr<Counted<T>>, found: *mut Counted<T>) -> Option<InUse<T>> {
        // SAFETY: objects are never freed.
        let counted: &'static Counted<T> = unsafe { &*found };
        let more = |users: u32| if users == 0 { None } else { Some(users + 1) };
        counted.users.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
        let object = InUse(counted);
        (place.load(Ordering::Acquire) == found).then_some(object)
    }

    /// Makes a new object for a descriptor. None if the descriptor is beyond the table.
    pub(crate) fn insert(&self, fd: c_int) -> Option<InUse<T>> {
        let place = self.places().get(usize::try_from(fd).ok()?)?;
        let counted = self.free.with(Vec::pop).unwrap_or_else(|| self.make());
        counted.users.store(1, Ordering::Release);
        let object = InUse(counted);
        self.end.fetch_max(fd as usize + 1, Ordering::Relaxed);
        self.put(place, object.clone());
        Some(object)
    }

    fn make(&self) -> &'static Counted<T> {
        let counted: &'static Counted<T> = Box::leak(Box::default());
        let pointer = core::ptr::from_ref(counted).cast_mut();
        // Nothing reads the list but leak checkers, which stop all threads.
        let chain = |last| {
            counted.before.store(last, Ordering::Relaxed);
            Some(pointer)
        };
        let _ = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, chain);
        counted
    }

    /// Makes another descriptor refer to the object.
    pub(crate) fn share(&self, fd: c_int, object: InUse<T>) {
        if let Some(place) = self.place(fd) {
            self.end.fetch_max(fd as usize + 1, Ordering::Relaxed);
            self.put(place, object);
        }
    }

    fn put(&self, place: &AtomicPtr<Counted<T>>, object: InUse<T>) {
        let pointer = core::ptr::from_ref(object.0).cast_mut();
        core::mem::forget(object); // The place is a user.
        Self::taken(place.swap(pointer, Ordering::AcqRel));
    }

    /// Takes the object out of its place. The descriptor is not tracked any more.
    pub(crate) fn remove(&self, fd: c_int) -> Option<InUse<T>> {
        let place = self.place(fd)?;
        if place.load(Ordering::Relaxed).is_null() {
            return None;
        }
        Self::taken(place.swap(core::ptr::null_mut(), Ordering::AcqRel))
    }

    fn taken(pointer: *mut Counted<T>) -> Option<InUse<T>> {
        // SAFETY: objects are never freed. The place was a user, which the returned value takes over.
        (!pointer.is_null()).then(|| InUse(unsafe { &*pointer }))
    }

    /// Calls `f` once for each object that has descriptors.
    pub(crate) fn for_each_once(&self, mut f: impl FnMut(&InUse<T>)) {
        let mut seen = HashSet::new();
        self.for_each(|_, object| {
            if seen.insert(core::ptr::from_ref(object.0)) {
                f(&object);
            }
        });
    }

    /// Calls `f` for each descriptor with an object.
    pub(crate) fn for_each(&self, mut f: impl FnMut(c_int, InUse<T>)) {
        let places = self.places.get().copied().unwrap_or_default();
        for (fd, place) in (0..).zip(&places[..self.end.load(Ordering::Acquire).min(places.len())]) {
            let found = place.load(Ordering::Acquire);
            if let Some(object) = (!found.is_null()).then(|| Self::enter(place, found)).flatten() {
                f(fd, object);
            }
        }
    }
}

static CONNECTIONS: Table<Connection> = Table::new();
static SETS: Table<EpollSet> = Table::new();

impl Tracked for Connection {
    fn table() -> &'static Table<Self> {
        &CONNECTIONS
    }
    fn retire(&self) {
        Self::retire(self);
    }
}

impl Tracked for EpollSet {
    fn table() -> &'static Table<Self> {
        &SETS
    }
    fn retire(&self) {
        Self::retire(self);
    }
}

/// Returns the tracked connection of a descriptor.
#[inline]
pub(crate) fn connection(fd: c_int) -> Option<InUse<Connection>> {
    CONNECTIONS.get(fd)
}

/// Returns the tracked epoll set of a descriptor.
#[inline]
pub(crate) fn set(fd: c_int) -> Option<InUse<EpollSet>> {
    SETS.get(fd)
}
