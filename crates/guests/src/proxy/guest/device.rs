//! Devices that give a guest access to its window: the device of QEMU, or the grants of a Xen guest.

use std::any::Any;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use isthmus_layout::RegionSize;
use isthmus_layout::proxy::WindowId;
use isthmus_layout::proxy::grants::GrantRequest;
use isthmus_layout::proxy::pair_window::{MapRequest, PairInvite};
use isthmus_platform_kvm::{GUEST, LoopDevice, LoopSetup, Steering};
use isthmus_shm::{Access, Mapping, SharedMapping};

/// An object that is only kept, and dropped later for its effect.
pub type KeepAlive = Box<dyn Any>;

/// An end of an event channel, to be handed to a program.
pub struct EventChannelFd {
    /// A descriptor that gives access to this end only.
    pub end: OwnedFd,
    /// The channel's port in this guest.
    pub port: u32,
    /// An object to drop once the program cannot have the end open any more.
    pub keep_alive: KeepAlive,
}

/// A device that gives a guest access to its window.
#[expect(async_fn_in_trait, reason = "all is done on one thread")]
pub trait GuestDevice: Sized {
    /// Maps a part of the window into this process.
    fn window(&self, at: u64, size: RegionSize) -> io::Result<SharedMapping> {
        let extent = self.extent(at, size.0)?;
        Mapping::new(extent, size, Access::ReadWrite).map(SharedMapping::new).map_err(io::Error::other)
    }
    /// Returns a descriptor that maps only these bytes of the window, in whole pages, for reading and writing.
    fn extent(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd>;
    /// Returns a descriptor for a program's private extent. The bytes are kept for the program that maps them.
    fn private_extent(&self, _offset: u64, _bytes: u64) -> io::Result<OwnedFd> {
        Err(io::Error::other("the device has no private extents"))
    }
    /// Returns a descriptor that maps these bytes for reading only.
    fn read_only_extent(&self, _offset: u64, _bytes: u64) -> io::Result<OwnedFd> {
        Err(io::Error::other("the device has no read-only extents"))
    }
    /// Revokes the extent at `offset` from all processes that map it. `extent` is its descriptor, if a program ever received it.
    fn revoke(&self, offset: u64, extent: Option<&OwnedFd>) -> io::Result<()>;
    /// Returns a descriptor that rings a vector of a peer when eight bytes are written to it.
    fn doorbell_sender(&self, peer: u16, vector: u16) -> io::Result<OwnedFd>;
    /// Returns this guest's end of the event channel that belongs to a grant batch.
    fn event_channel(&self, _offset: u64) -> io::Result<EventChannelFd> {
        Err(io::Error::other("the window is not made of grant batches"))
    }
    /// Returns an event descriptor that counts the rings of a vector of this guest from now on. It replaces the previous one of that vector.
    fn listen(&self, vector: u16) -> io::Result<OwnedFd>;
    /// Returns a descriptor that becomes readable when the device is gone.
    fn hangup_fd(&self) -> io::Result<OwnedFd>;
    /// Returns other devices of this guest that each show a pair window, except those of windows in `known`.
    fn pair_devices(&self, known: &BTreeSet<WindowId>) -> Vec<(WindowId, Self)>;
    /// Returns whether the device was unplugged.
    fn is_gone(&self) -> bool;

    /// Returns whether loop devices can be asked for.
    fn has_loops(&self) -> bool {
        false
    }
    /// Makes a loop device, which exchanges frames with another guest.
    fn loop_device(&self, _setup: &LoopSetup<'_>) -> io::Result<LoopDevice> {
        Err(io::Error::other("the window has no loop devices"))
    }
    /// Steers the frames of an interface.
    fn steer(&self, _interface: u32) -> io::Result<Steering> {
        Err(io::Error::other("the window has no loop devices"))
    }
    /// Grants an extent of a window that is granted on request. Returns the description by which the host maps it.
    fn grant_extent(&self, _request: GrantRequest) -> io::Result<Vec<u8>> {
        Err(io::Error::other("the window does not grow"))
    }
    /// Joins a pair window: creates it, or maps the offer of the peer guest. Returns the reply to the host, if there is one.
    fn join_pair(&self, _invite: &PairInvite<'_>) -> io::Result<Option<Vec<u8>>> {
        Err(io::Error::other("pair windows are plugged in"))
    }
    /// Leaves a pair window that was closed.
    fn leave_pair(&self, _window: WindowId) {}
    /// Adds a grant batch of the peer guest, if it can be mapped.
    fn map_grant(&self, _request: &MapRequest<'_>) -> io::Result<()> {
        Err(io::Error::other("pair windows are plugged in"))
    }
    /// Waits until a pair window may have appeared or disappeared.
    async fn changed(&self) {
        std::future::pending().await
    }
    /// Returns whether several programs can map one descriptor of an extent.
    fn is_shareable(&self) -> bool {
        true
    }
    /// Returns whether another proxy session can use this window after one has ended.
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
            // The device of the guest's own window has the number `GUEST`. A device without a peer number was not made by an Isthmus daemon.
            let number = device.info().ok()?.peer?.checked_sub(GUEST).map(WindowId)?;
            (number != WindowId::OWN && !known.contains(&number)).then_some((number, device))
        });
        numbered.collect()
    }

    fn is_gone(&self) -> bool {
        Self::is_gone(self)
    }

    fn has_loops(&self) -> bool {
        true
    }

    fn loop_device(&self, setup: &LoopSetup<'_>) -> io::Result<LoopDevice> {
        // A program that has ended may have listened to the vector. Other loop devices keep it.
        let _ = Self::listen(self, setup.vector, None);
        Self::loop_device(self, setup).map_err(io::Error::other)
    }

    fn steer(&self, interface: u32) -> io::Result<Steering> {
        Self::steer(self, interface).map_err(io::Error::other)
    }
}
