//! The resources of a domain: memory, and ends of doorbells.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use isthmus_layout::RegionSize;
use isthmus_layout::proxy::{ResourceRef, WindowId};
use isthmus_platform::PlatformError;
use isthmus_shm::{Access, Mapping, SharedMapping};

use crate::{Extent, WindowError, WindowRef};

/// Memory that a domain maps, or a doorbell that it rings or listens to.
#[derive(Clone, Debug)]
pub enum Resource {
    /// A descriptor.
    File(Arc<OwnedFd>),
    /// A descriptor that a program has sent.
    Foreign(Arc<dyn ForeignFile>),
    /// An extent of a window.
    Extent(Arc<Extent>),
    /// An extent that belongs to the domain that receives it.
    PrivateExtent(Arc<Extent>),
    /// An extent that the domain may read.
    ReadOnlyExtent(Arc<Extent>),
    /// A doorbell of a guest's device.
    Doorbell(ResourceRef),
}

/// A descriptor that a program has sent, of which the last close may take any time. Its drop leaves that to another thread.
pub trait ForeignFile: AsFd + fmt::Debug + Send + Sync {}

impl From<OwnedFd> for Resource {
    fn from(file: OwnedFd) -> Self {
        Self::File(Arc::new(file))
    }
}

impl Resource {
    /// Maps the memory into this process.
    pub fn map(&self, size: RegionSize) -> Result<SharedMapping, WindowError> {
        match self {
            Self::File(file) => {
                let mapping = Mapping::new(file, size, Access::ReadWrite).map_err(PlatformError::from)?;
                Ok(SharedMapping::new(mapping))
            }
            Self::Foreign(_) | Self::Doorbell(_) => Err(WindowError::Outside),
            Self::Extent(extent) | Self::PrivateExtent(extent) | Self::ReadOnlyExtent(extent) => extent.map(size),
        }
    }

    /// The descriptor of a memory file or doorbell of the host.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::File(file) => Some(file.as_fd()),
            Self::Foreign(file) => Some(file.as_fd()),
            _ => None,
        }
    }

    fn extent(&self) -> Option<&Arc<Extent>> {
        match self {
            Self::Extent(extent) | Self::PrivateExtent(extent) | Self::ReadOnlyExtent(extent) => Some(extent),
            Self::File(_) | Self::Foreign(_) | Self::Doorbell(_) => None,
        }
    }

    /// The window that the memory lies in.
    pub fn window_ref(&self) -> Option<WindowRef> {
        Some(self.extent()?.window().identity())
    }

    /// The pair window that the memory lies in.
    pub fn pair_window(&self) -> Option<WindowId> {
        match self.window_ref()? {
            WindowRef::Pair(window) => Some(window),
            WindowRef::Own(_) => None,
        }
    }

    /// The offset of the memory in its window.
    pub(crate) fn offset(&self) -> Option<u64> {
        Some(self.extent()?.offset())
    }

    /// Returns the memory with the rights of its owner.
    pub fn as_private(&self) -> Self {
        self.extent().map_or_else(|| self.clone(), |extent| Self::PrivateExtent(Arc::clone(extent)))
    }

    /// Returns the memory with the rights of a domain that reads it.
    pub fn as_read_only(&self) -> Self {
        self.extent().map_or_else(|| self.clone(), |extent| Self::ReadOnlyExtent(Arc::clone(extent)))
    }

    /// Reads memory without a mapping. Returns false if the memory is too short.
    pub fn read_at(&self, at: u64, into: &mut [u8]) -> bool {
        match self {
            Self::File(file) => rustix::io::pread(file, &mut *into, at) == Ok(into.len()),
            _ => self.extent().is_some_and(|extent| extent.read_at(at, into)),
        }
    }

    /// The reference that a guest is sent in place of a descriptor.
    pub fn to_ref(&self) -> Option<ResourceRef> {
        let reference = match self {
            Self::File(_) | Self::Foreign(_) => return None,
            Self::Doorbell(reference) => return Some(*reference),
            Self::Extent(extent) | Self::PrivateExtent(extent) | Self::ReadOnlyExtent(extent) => extent.to_ref(),
        };
        let ResourceRef::Extent { window, offset, bytes, generation } = reference else { return Some(reference) };
        Some(match self {
            Self::PrivateExtent(_) => ResourceRef::PrivateExtent { window, offset, bytes, generation },
            Self::ReadOnlyExtent(_) => ResourceRef::ReadOnlyExtent { window, offset, bytes, generation },
            _ => reference,
        })
    }
}
