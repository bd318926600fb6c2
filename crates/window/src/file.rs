//! A window that is one memory file, which a device shows to each of its guests.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isthmus_layout::RegionSize;
use isthmus_layout::proxy::{EXTENTS_OFFSET, WINDOW_BYTES_MIN, WindowId};
use isthmus_platform::PlatformError;
use isthmus_shm::{Access, Mapping, SharedMapping};

use crate::WindowError;
use crate::extents::ExtentMap;

/// The file, and the map of its extents.
#[derive(Debug)]
pub struct FileBacking {
    file: Arc<OwnedFd>,
    /// The offset of the first extent. The bytes before it are always allocated.
    start: u64,
    extents: Mutex<ExtentMap>,
}

impl FileBacking {
    /// Creates the backing of a guest's own window over a sealed memory file of `bytes`. The first page and the proxy ring are never
    /// allocated.
    pub fn own(file: OwnedFd, bytes: u64) -> Self {
        assert!(bytes >= WINDOW_BYTES_MIN); // The configuration's limit.
        Self::new(WindowId::OWN, Arc::new(file), EXTENTS_OFFSET, bytes)
    }

    /// Creates the backing of a pair window over a sealed memory file of `bytes`.
    pub fn pair(number: WindowId, file: Arc<OwnedFd>, bytes: u64) -> Self {
        Self::new(number, file, 0, bytes)
    }

    fn new(number: WindowId, file: Arc<OwnedFd>, start: u64, bytes: u64) -> Self {
        Self { file, start, extents: Mutex::new(ExtentMap::new(number, start, bytes - start)) }
    }

    pub(crate) fn extents(&self) -> MutexGuard<'_, ExtentMap> {
        self.extents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn map(&self, at: u64, size: RegionSize) -> Result<SharedMapping, WindowError> {
        let mapping = Mapping::window(&self.file, at, size, Access::ReadWrite);
        Ok(mapping.map(SharedMapping::new).map_err(PlatformError::from)?)
    }

    pub(crate) fn read_at(&self, at: u64, into: &mut [u8]) -> bool {
        rustix::io::pread(&self.file, &mut *into, at) == Ok(into.len())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.start + self.extents().bytes()
    }

    pub(crate) fn used(&self) -> u64 {
        self.start + self.extents().used()
    }
}
