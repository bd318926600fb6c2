//! Numbers that a process shares with its children, for what both may use after `fork`.

use core::ops::Deref;
use core::sync::atomic::AtomicU32;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags};

/// Bytes of a page of cells.
const PAGE: usize = 4096;
/// Cells of a page.
const CELLS: usize = PAGE / size_of::<AtomicU32>();

/// A mapping that the kernel keeps as long as any process has it.
#[derive(Debug)]
struct Page(*mut AtomicU32);

// SAFETY: the page holds atomics only.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping is the whole one, and its last cell is gone.
        let _ = unsafe { rustix::mm::munmap(self.0.cast(), PAGE) };
    }
}

/// A number that this process shares with its children. It begins as 0.
#[derive(Clone, Debug)]
pub(crate) struct SharedCell {
    page: Arc<Page>,
    index: usize,
}

impl Deref for SharedCell {
    type Target = AtomicU32;
    fn deref(&self) -> &AtomicU32 {
        // SAFETY: the index is below `CELLS`, and the page is mapped as long as this cell lives. Zeroes are a value.
        unsafe { &*self.page.0.add(self.index) }
    }
}

/// Hands out cells for one `fork`.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    page: Option<Arc<Page>>,
    used: usize,
}

impl Cells {
    /// Returns a cell. None without memory.
    pub(crate) fn cell(&mut self) -> Option<SharedCell> {
        if self.page.is_none() || self.used == CELLS {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping at an address that the kernel chooses.
            let base = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), PAGE, protection, MapFlags::SHARED) };
            (self.page, self.used) = (Some(Arc::new(Page(base.ok()?.cast()))), 0);
        }
        let page = Arc::clone(self.page.as_ref()?);
        self.used += 1;
        Some(SharedCell { page, index: self.used - 1 })
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn cells_are_apart_and_begin_as_zero() {
        let mut cells = Cells::default();
        let all: Vec<SharedCell> = (0..CELLS as u32 + 2)
            .map(|value| {
                let cell = cells.cell().expect("memory");
                assert_eq!(cell.swap(value, Ordering::Relaxed), 0);
                cell
            })
            .collect();
        assert!((0..).zip(&all).all(|(value, cell)| cell.load(Ordering::Relaxed) == value));
    }
}
