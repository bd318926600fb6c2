//! What shows a guest its window: the device of QEMU, or what a guest of Xen grants.

use std::any::Any;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use isthmus_layout::RegionSize;
use isthmus_layout::proxy::WindowId;
use isthmus_layout::proxy::grants::GrantRequest;
use isthmus_layout::proxy::pair_window::{MapRequest, PairInvite};
use isthmus_platform_kvm::GUEST;
use isthmus_shm::{Access, Mapping, SharedMapping};

/// Lasts as long as it is kept, whatever it is.
pub type KeepAlive = Box<dyn Any>;

/// An end of an event channel, to be handed to a program.
pub struct EventChannelFd {
    /// It, able to do nothing else.
    pub end: OwnedFd,
    /// The channel's port in this guest.
    pub port: u32,
    /// To be dropped once the program cannot have it open any more.
    pub keep_alive: KeepAlive,
}

/// What shows a guest its window.
#[expect(async_fn_in_trait, reason = "all is done on one thread")]
pub trait GuestDevice: Sized {
    /// Our mapping of a part of the window.
    fn window(&self, at: u64, size: RegionSize) -> io::Result<SharedMapping> {
        let extent = self.extent(at, size.0)?;
        Mapping::new(extent, size, Access::ReadWrite).map(SharedMapping::new).map_err(io::Error::other)
    }
    /// A descriptor that maps these bytes of the window, in whole pages, and nothing else, for reading and writing.
    fn extent(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd>;
    /// The same for a program's own memory: the bytes stay with whoever maps them.
    fn private_extent(&self, _offset: u64, _bytes: u64) -> io::Result<OwnedFd> {
        Err(io::Error::other("nobody keeps what would be there"))
    }
    /// The same, for reading only.
    fn read_only_extent(&self, _offset: u64, _bytes: u64) -> io::Result<OwnedFd> {
        Err(io::Error::other("its rights cannot be less"))
    }
    /// The extent at `offset` was revoked: takes it away from all that map it, if it was ever handed to a program.
    fn revoke(&self, offset: u64, extent: Option<&OwnedFd>) -> io::Result<()>;
    /// A descriptor that rings a vector of a peer when eight bytes are written to it.
    fn doorbell_sender(&self, peer: u16, vector: u16) -> io::Result<OwnedFd>;
    /// Our end of the event channel that a grant batch came with.
    fn event_channel(&self, _offset: u64) -> io::Result<EventChannelFd> {
        Err(io::Error::other("the window is not made of grant batches"))
    }
    /// An event descriptor that counts the rings of a vector of ours from now on, and no other does.
    fn listen(&self, vector: u16) -> io::Result<OwnedFd>;
    /// A descriptor that hangs up when the device is gone.
    fn hangup_fd(&self) -> io::Result<OwnedFd>;
    /// Other devices of this guest, each of which shows a pair window, but for those that are known.
    fn pair_devices(&self, known: &BTreeSet<WindowId>) -> Vec<(WindowId, Self)>;
    /// True when it was unplugged.
    fn is_gone(&self) -> bool;

    /// Grants an extent of a window that is granted on request; what the host needs to map it.
    fn grant_extent(&self, _request: GrantRequest) -> io::Result<Vec<u8>> {
        Err(io::Error::other("the window is whole"))
    }
    /// Joins a pair window: makes it, or maps what the other guest offers. What the host is told of that, if anything.
    fn join_pair(&self, _invite: &PairInvite<'_>) -> io::Result<Option<Vec<u8>>> {
        Err(io::Error::other("pair windows are plugged in"))
    }
    /// It is over.
    fn leave_pair(&self, _window: WindowId) {}
    /// Takes a grant batch of the other guest, if it can be mapped.
    fn map_grant(&self, _request: &MapRequest<'_>) -> io::Result<()> {
        Err(io::Error::other("pair windows are plugged in"))
    }
    /// Waits until a pair window may have come or gone.
    async fn changed(&self) {
        std::future::pending().await
    }
    /// Whether a descriptor of an extent can be mapped by several programs.
    fn is_shareable(&self) -> bool {
        true
    }
    /// Whether a descriptor of an extent shows all of the window, in which the extent begins at its offset, and nothing can be taken away from
    /// whoever has one: then only root is served, who could open the window as well.
    fn exposes_whole_window(&self) -> bool {
        false
    }
    /// Whether a program may still write to a revoked extent of this size.
    fn is_in_use(&self, _offset: u64, _bytes: u64) -> bool {
        false
    }
    /// Whether another proxy session can use this window once one has ended.
    fn is_reusable(&self) -> bool {
        true
    }
}

impl GuestDevice for isthmus_platform_kvm::Device {
    fn extent(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd> {
        Self::extent(self, offset, bytes, Access::ReadWrite).map_err(io::Error::other)
    }

    fn private_extent(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd> {
        Self::private_extent(self, offset, bytes).map_err(io::Error::other)
    }

    fn read_only_extent(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd> {
        Self::extent(self, offset, bytes, Access::Read).map_err(io::Error::other)
    }

    fn revoke(&self, _offset: u64, extent: Option<&OwnedFd>) -> io::Result<()> {
        extent.map_or(Ok(()), |extent| Self::revoke(self, extent).map_err(io::Error::other))
    }

    fn doorbell_sender(&self, peer: u16, vector: u16) -> io::Result<OwnedFd> {
        Self::doorbell_sender(self, peer, vector).map_err(io::Error::other)
    }

    fn listen(&self, vector: u16) -> io::Result<OwnedFd> {
        self.listener(vector).map_err(io::Error::other)
    }

    fn hangup_fd(&self) -> io::Result<OwnedFd> {
        self.as_fd().try_clone_to_owned()
    }

    fn pair_devices(&self, known: &BTreeSet<WindowId>) -> Vec<(WindowId, Self)> {
        let nodes = Self::nodes().into_iter().filter(|node| node != self.path());
        let devices = nodes.filter_map(|node| Self::open(&node).ok());
        let numbered = devices.filter_map(|device| {
            // The guest's own has the number of a guest; what has none was not made for this.
            let number = device.info().ok()?.peer?.checked_sub(GUEST).map(WindowId)?;
            (number != WindowId::OWN && !known.contains(&number)).then_some((number, device))
        });
        numbered.collect()
    }

    fn is_gone(&self) -> bool {
        Self::is_gone(self)
    }
}
