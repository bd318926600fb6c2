//! Windows and their extents.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isthmus_layout::RegionSize;
use isthmus_layout::control::Name;
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::proxy::{ResourceRef, RevokedExtent, WindowId};
use isthmus_shm::SharedMapping;
use tokio::sync::Notify;

use crate::{Backing, GuestId, PairWindow, Resource, WindowError};

/// The identity of a window. Guests know their own window by a number that all own windows have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WindowRef {
    /// A guest's own.
    Own(GuestId),
    /// A pair window.
    Pair(WindowId),
}

impl WindowRef {
    /// The number by which guests know the window.
    pub fn number(self) -> WindowId {
        match self {
            Self::Own(_) => WindowId::OWN,
            Self::Pair(number) => number,
        }
    }
}

/// A guest that sees a window.
#[derive(Clone, Debug)]
pub(crate) struct Viewer {
    pub(crate) name: Name,
    /// Wakes the proxy session of the guest, which sends it revocations and requests.
    pub(crate) changed: Arc<Notify>,
}

/// Memory that the host daemon hands out in extents. One guest sees its own window; two see a pair window.
#[derive(Debug)]
pub struct Window {
    identity: WindowRef,
    backing: Backing,
    viewers: Vec<Viewer>,
    /// For each viewer, the number of revoked extents that it has reclaimed and another viewer has not.
    reclaimed: Mutex<Vec<usize>>,
}

impl Window {
    pub(crate) fn new(identity: WindowRef, backing: Backing, viewers: Vec<Viewer>) -> Arc<Self> {
        let reclaimed = Mutex::new(vec![0; viewers.len()]);
        Arc::new(Self { identity, backing, viewers, reclaimed })
    }

    /// The identity of the window.
    pub fn identity(&self) -> WindowRef {
        self.identity
    }

    /// The size of the window in bytes.
    pub fn bytes(&self) -> u64 {
        self.backing.bytes()
    }

    /// The number of allocated bytes, including those that are always allocated.
    pub fn used(&self) -> u64 {
        self.backing.used()
    }

    /// True if programs can have memory of their own in the window.
    pub fn supports_regions(&self) -> bool {
        self.backing.is_file()
    }

    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Allocates zeroed memory. `pair` is the pair window that this is the memory of.
    pub(crate) fn allocate(
        self: &Arc<Self>,
        size: RegionSize,
        pair: Option<Arc<PairWindow>>,
    ) -> Result<Resource, WindowError> {
        let bytes = size.0.next_multiple_of(u64::from(PAGE_BYTES));
        let allocated = self.backing.alloc(bytes);
        // The backing may have another request for a guest now, to replace the extent or for the next allocation.
        self.notify_viewers();
        let viewers = || self.viewers.iter().map(|viewer| viewer.name.clone()).collect();
        let (at, generation) = allocated.ok_or_else(|| WindowError::Full { viewers: viewers(), bytes })?;
        let extent = Extent { window: Arc::clone(self), _pair: pair, at, bytes, generation };
        // Removes the previous contents, and anything that a guest wrote there since.
        self.backing.clear(at, bytes)?;
        Ok(Resource::Extent(Arc::new(extent)))
    }

    /// True as long as the extent of this generation is allocated.
    pub(crate) fn is_live(&self, at: u64, generation: u32) -> bool {
        self.backing.is_live(at, generation)
    }

    /// Returns the next revoked extent, given that a viewer already knows of the first `reported` ones.
    pub(crate) fn revoked(&self, viewer: usize, reported: usize) -> Option<RevokedExtent> {
        let reclaimed = self.reclaimed();
        self.backing.revoked(reclaimed[viewer] + reported)
    }

    /// Notes that a viewer has unmapped this extent. The extent is freed once all viewers have. Returns false if it is not the first one that
    /// the viewer has to unmap.
    pub(crate) fn reclaim(&self, viewer: usize, extent: RevokedExtent) -> bool {
        let mut reclaimed = self.reclaimed();
        if self.backing.revoked(reclaimed[viewer]) != Some(extent) {
            return false;
        }
        reclaimed[viewer] += 1;
        if reclaimed.iter().all(|&count| count > 0) {
            reclaimed.iter_mut().for_each(|count| *count -= 1);
            self.backing.reclaim_first();
        }
        true
    }

    fn reclaimed(&self) -> MutexGuard<'_, Vec<usize>> {
        self.reclaimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_viewers(&self) {
        self.viewers.iter().for_each(|viewer| viewer.changed.notify_one());
    }
}

/// An extent of a window. It is revoked from all viewers when the last reference is dropped.
#[derive(Debug)]
pub struct Extent {
    window: Arc<Window>,
    /// The guests know a pair window as long as there are extents of it.
    _pair: Option<Arc<PairWindow>>,
    at: u64,
    bytes: u64,
    generation: u32,
}

impl Extent {
    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    pub(crate) fn offset(&self) -> u64 {
        self.at
    }

    pub(crate) fn map(&self, size: RegionSize) -> Result<SharedMapping, WindowError> {
        self.window.backing.map(self.at, size)
    }

    pub(crate) fn read_at(&self, at: u64, into: &mut [u8]) -> bool {
        self.window.backing.read_at(self.at + at, into)
    }

    pub(crate) fn to_ref(&self) -> ResourceRef {
        let Self { at: offset, bytes, generation, .. } = *self;
        ResourceRef::Extent { window: self.window.identity.number(), offset, bytes, generation }
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.window.backing.free(self.at, self.bytes);
        self.window.notify_viewers();
    }
}

#[cfg(test)]
mod tests {
    use isthmus_platform::local;
    use isthmus_shm::Mapping;
    use proptest::prelude::*;

    use super::*;
    use crate::{FileBacking, GrantBacking, SizeClass};

    const PAGE: u64 = 4096;
    const NUMBER: WindowId = WindowId(5);

    fn shared(bytes: u64) -> SharedMapping {
        SharedMapping::new(Mapping::private(RegionSize(bytes)))
    }

    /// Returns a window of 16 pages for extents, of each kind.
    fn window(is_file: bool, viewers: usize) -> Arc<Window> {
        let size_classes = [PAGE, 2 * PAGE].map(|bytes| SizeClass { bytes, target: 2, minimum: 1 });
        let bytes = 16 * PAGE;
        let file = || local::memory(RegionSize(1 << 20)).unwrap();
        let (identity, backing): (_, Backing) = match (is_file, viewers) {
            (true, 1) => (WindowRef::Own(GuestId(1)), FileBacking::own(file(), 1 << 20).into()),
            (true, _) => (WindowRef::Pair(NUMBER), FileBacking::pair(NUMBER, Arc::new(file()), bytes).into()),
            (false, 1) => {
                let map = Box::new(|_: &[u8], size: RegionSize| Ok(shared(size.0)));
                let grants = GrantBacking::own(shared(PAGE), shared(PAGE), &size_classes, bytes, map);
                (WindowRef::Own(GuestId(1)), grants.into())
            }
            (false, _) => (WindowRef::Pair(NUMBER), GrantBacking::pair(NUMBER, [7, 8], &size_classes, bytes).into()),
        };
        let viewer = |number: usize| {
            let name = Name::new(&format!("guest{number}")).unwrap();
            Viewer { name, changed: Arc::default() }
        };
        Window::new(identity, backing, (0..viewers).map(viewer).collect())
    }

    /// Has the guests grant and map everything that is requested.
    fn grant_all(window: &Window) {
        let Some(grants) = window.backing().grants() else { return };
        while let Some(request) = grants.request(0) {
            grants.mark_requested(0);
            if grants.handle_grant_reply(0, request.offset, b"g").unwrap().is_some() {
                grants.handle_map_reply(1, request.offset, true).unwrap();
            }
        }
    }

    fn range_of(memory: &Resource) -> (u64, u64) {
        match memory.to_ref() {
            Some(ResourceRef::Extent { offset, bytes, .. }) => (offset, bytes),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn error_of_a_full_window_names_each_guest() {
        let error = |viewers| window(true, viewers).allocate(RegionSize(1 << 30), None).unwrap_err().to_string();
        assert!(error(1).starts_with("the window of guest guest0 has no room for 1073741824 bytes"), "{}", error(1));
        assert!(error(2).starts_with("the window of guests guest0 and guest1 has no room"), "{}", error(2));
    }

    proptest! {
        #[test]
        fn bytes_are_used_again_only_after_each_viewer_has_reclaimed_them(
            is_file in any::<bool>(),
            viewers in 1_usize..3,
            steps in prop::collection::vec((0..4_u8, any::<prop::sample::Index>(), 1_u64..3), 1..200),
        ) {
            let window = window(is_file, viewers);
            let mut live: Vec<Resource> = Vec::new();
            // Revoked extents with their bytes, and the number of viewers that have not reclaimed each.
            let mut revoked: Vec<(RevokedExtent, u64)> = Vec::new();
            let mut reclaimed = vec![0; viewers];
            for (step, which, pages) in steps {
                match step {
                    0 => {
                        grant_all(&window);
                        let Ok(memory) = window.allocate(RegionSize(pages * PAGE), None) else { continue };
                        let (at, bytes) = range_of(&memory);
                        let gone = &revoked[*reclaimed.iter().min().unwrap()..];
                        let taken = live.iter().map(range_of).chain(gone.iter().map(|&(extent, bytes)| (extent.offset, bytes)));
                        for (other, len) in taken {
                            prop_assert!(at + bytes <= other || other + len <= at);
                        }
                        live.push(memory);
                    }
                    1 if !live.is_empty() => {
                        let memory = live.swap_remove(which.index(live.len()));
                        let (offset, bytes) = range_of(&memory);
                        let Some(ResourceRef::Extent { window: number, generation, .. }) = memory.to_ref() else { unreachable!() };
                        prop_assert!(window.is_live(offset, generation));
                        drop(memory);
                        prop_assert!(!window.is_live(offset, generation));
                        revoked.push((RevokedExtent { window: number, offset, generation }, bytes));
                    }
                    2 => {
                        let viewer = which.index(viewers);
                        let (next, later) = (reclaimed[viewer], reclaimed[viewer] + 1);
                        prop_assert_eq!(window.revoked(viewer, 0), revoked.get(next).map(|known| known.0));
                        prop_assert_eq!(window.revoked(viewer, 1), revoked.get(later).map(|known| known.0));
                        if let Some((extent, _)) = revoked.get(next) {
                            let other = RevokedExtent { offset: extent.offset + 1, ..*extent };
                            prop_assert!(!window.reclaim(viewer, other));
                            prop_assert!(window.reclaim(viewer, *extent));
                            reclaimed[viewer] += 1;
                        }
                    }
                    _ => prop_assert!(window.used() <= window.bytes() + (1 << 20)),
                }
            }
            drop(live);
            for viewer in 0..viewers {
                while let Some(extent) = window.revoked(viewer, 0) {
                    prop_assert!(window.reclaim(viewer, extent));
                }
            }
            grant_all(&window);
            let all: Vec<Resource> = std::iter::from_fn(|| {
                grant_all(&window);
                window.allocate(RegionSize(PAGE), None).ok()
            }).take(8).collect();
            prop_assert_eq!(all.len(), 8, "everything that was reclaimed can be allocated");
        }
    }
}
