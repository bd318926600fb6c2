//! The memory that a window is made of.

use isthmus_layout::RegionSize;
use isthmus_layout::proxy::RevokedExtent;
use isthmus_shm::SharedMapping;

use crate::{FileBacking, GrantBacking, WindowError};

/// The memory of a window, and the account of its extents. Offsets are sent to guests, and mean the same to all sides.
#[derive(Debug)]
pub enum Backing {
    /// A memory file that a device shows to each guest.
    File(FileBacking),
    /// Pages that a guest grants, for each extent anew.
    Grants(GrantBacking),
}

/// The progress of setting up a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The guests have not granted or mapped all memory that domains need.
    Pending,
    /// Extents can be allocated.
    Ready,
    /// The window cannot be set up, for this reason.
    Refused(String),
}

impl From<FileBacking> for Backing {
    fn from(file: FileBacking) -> Self {
        Self::File(file)
    }
}

impl From<GrantBacking> for Backing {
    fn from(grants: GrantBacking) -> Self {
        Self::Grants(grants)
    }
}

impl Backing {
    /// Maps a part of the window into this process.
    pub(crate) fn map(&self, at: u64, size: RegionSize) -> Result<SharedMapping, WindowError> {
        match self {
            Self::File(file) => file.map(at, size),
            Self::Grants(grants) => grants.map(at, size),
        }
    }

    /// Reads a part of the window without a mapping. Returns false if that is not possible.
    pub(crate) fn read_at(&self, at: u64, into: &mut [u8]) -> bool {
        match self {
            Self::File(file) => file.read_at(at, into),
            Self::Grants(grants) => grants.read_at(at, into),
        }
    }

    /// Allocates an extent of `bytes`, in whole pages. Returns its offset and its generation.
    pub(crate) fn alloc(&self, bytes: u64) -> Option<(u64, u32)> {
        match self {
            Self::File(file) => file.extents().alloc(bytes),
            Self::Grants(grants) => grants.alloc(bytes),
        }
    }

    /// Zeroes an extent that was just allocated. A grant batch is allocated once, and its pages are zero then.
    pub(crate) fn clear(&self, at: u64, bytes: u64) -> Result<(), WindowError> {
        if let Self::File(file) = self {
            file.map(at, RegionSize(bytes))?.discard_pages(0, bytes);
        }
        Ok(())
    }

    /// Revokes an allocated extent.
    pub(crate) fn free(&self, at: u64, bytes: u64) {
        match self {
            Self::File(file) => file.extents().free(at, bytes),
            Self::Grants(grants) => grants.free(at),
        }
    }

    /// True as long as the extent of this generation is allocated.
    pub(crate) fn is_live(&self, at: u64, generation: u32) -> bool {
        match self {
            Self::File(file) => file.extents().is_live(at, generation),
            Self::Grants(grants) => grants.is_live(at, generation),
        }
    }

    /// Returns the revoked extent at this place of the order in which extents were revoked.
    pub(crate) fn revoked(&self, place: usize) -> Option<RevokedExtent> {
        match self {
            Self::File(file) => file.extents().revoked(place),
            Self::Grants(grants) => grants.revoked(place),
        }
    }

    /// Frees the first revoked extent, after each guest has unmapped it.
    pub(crate) fn reclaim_first(&self) {
        match self {
            Self::File(file) => file.extents().reclaim_first(),
            Self::Grants(grants) => grants.reclaim_first(),
        }
    }

    /// The number of allocated bytes, including those that are always allocated.
    pub(crate) fn used(&self) -> u64 {
        match self {
            Self::File(file) => file.used(),
            Self::Grants(grants) => grants.used(),
        }
    }

    /// The number of bytes that can be allocated at once.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::File(file) => file.bytes(),
            Self::Grants(grants) => grants.bytes(),
        }
    }

    /// The memory file, if the window is one.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// The grants, if the window is made of them.
    pub(crate) fn grants(&self) -> Option<&GrantBacking> {
        match self {
            Self::File(_) => None,
            Self::Grants(grants) => Some(grants),
        }
    }

    /// Reports whether extents can be allocated.
    pub(crate) fn progress(&self) -> Progress {
        self.grants().map_or(Progress::Ready, GrantBacking::progress)
    }
}
