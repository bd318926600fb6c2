//! A guest's device, accessed through the driver in `kmod/`.

use crate::driver::{ABI, DeviceNode, INFO_MAPPED, NO_PEER, RawLoop};
use crate::server::GUEST;
use crate::steering::Steering;
use isthmus_layout::RegionSize;
use isthmus_platform::PlatformError;
use isthmus_shm::Access;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// The reason why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The node cannot be opened: no such device, no driver, no rights.
    #[error("opening {}: {source}", .path.display())]
    Open {
        /// The path of the node.
        path: PathBuf,
        /// The system's error.
        source: Errno,
    },
    /// The node does not belong to the driver, or the driver has another version.
    #[error("{} is no device of the isthmus driver that this program knows: {what}", .path.display())]
    NotOurs {
        /// The path of the node.
        path: PathBuf,
        /// The difference that was found.
        what: String,
    },
}

/// The caching of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryType {
    /// The type is unknown.
    Unknown,
    /// Cached as ordinary memory, as intended.
    WriteBack,
    /// Cached for reading.
    WriteThrough,
    /// Cached for reading. Writes go to memory and invalidate the line in all caches.
    WriteProtect,
    /// Not cached; writes are combined.
    WriteCombining,
    /// Not cached, unless an MTRR says write-combining.
    UncachedMinus,
    /// Not cached.
    Uncached,
}

impl MemoryType {
    /// Returns the type for the driver's number.
    pub fn from_number(number: u32) -> Self {
        match number {
            1 => Self::WriteBack,
            2 => Self::WriteThrough,
            3 => Self::WriteProtect,
            4 => Self::WriteCombining,
            5 => Self::UncachedMinus,
            6 => Self::Uncached,
            _ => Self::Unknown,
        }
    }

    /// Returns the usual name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::WriteBack => "write-back",
            Self::WriteThrough => "write-through",
            Self::WriteProtect => "write-protect",
            Self::WriteCombining => "write-combining",
            Self::UncachedMinus => "uncached (UC-)",
            Self::Uncached => "uncached",
        }
    }
}

impl std::fmt::Display for MemoryType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The properties of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The size of the window.
    pub window: RegionSize,
    /// The guest's number among the device's peers.
    pub peer: Option<u16>,
    /// The number of vectors that can be listened to, starting at 0.
    pub vectors: u16,
    /// The caching of the window.
    pub memory_type: MemoryType,
    /// True if the type is that of a program's mapping; otherwise it is that of the kernel's own mapping.
    pub mapped: bool,
    /// The address of the window in the guest's physical memory.
    pub address: u64,
}

/// A device that the driver serves.
#[derive(Debug)]
pub struct Device {
    node: DeviceNode,
    path: PathBuf,
}

/// The resources of a loop device, which may be closed when it is made.
#[derive(Clone, Copy, Debug)]
pub struct LoopSetup<'a> {
    /// An extent with the rings, to read and write, of any device ([`Device::extent`]).
    pub piece: BorrowedFd<'a>,
    /// The guest's side of the rings: 0 or 1.
    pub side: u8,
    /// Rings the peer guest's vector, of any device ([`Device::doorbell_sender`]).
    pub ringer: BorrowedFd<'a>,
    /// The vector of this device that the peer guest rings. Several loop devices may have one. It has no listener.
    pub vector: u16,
    /// The index of the interface on which frames arrive.
    pub lower: u32,
}

/// A network device over rings that two guests share. Dropping it ends it.
///
/// If its lower interface was steered when it was made, it runs from the start, and delivers only frames from addresses that the steering's
/// routes lead to it. The peer guest sends none until there is such a route.
#[derive(Debug)]
pub struct LoopDevice {
    index: u32,
    descriptor: OwnedFd,
}

impl LoopDevice {
    /// Returns the index of the network device.
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl AsFd for LoopDevice {
    /// The descriptor hangs up when the device has ended: the peer guest broke the protocol, the memory was revoked, or a device or interface
    /// is gone. It reports no other event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The nodes are found by name, because the driver's major number is assigned dynamically.
const NODES: &str = "/dev";
const PREFIX: &str = "isthmus";

pub(crate) fn refused(operation: &'static str) -> impl Fn(Errno) -> PlatformError {
    move |source| PlatformError::Refused { operation, source }
}

/// Returns true if a descriptor hangs up: the other end, the device or the interface behind it is gone. Data is not read.
pub fn hangs_up(descriptor: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(descriptor, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1)) && fds[0].revents().contains(PollFlags::HUP)
}

impl Device {
    /// Returns the nodes of all devices, in the order of their numbers.
    pub fn nodes() -> Vec<PathBuf> {
        let found = std::fs::read_dir(NODES).into_iter().flatten().flatten();
        let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix(PREFIX)?.parse::<u32>().ok();
        let mut numbers: Vec<u32> = found.filter_map(number).collect();
        numbers.sort_unstable();
        numbers.iter().map(|number| Path::new(NODES).join(format!("{PREFIX}{number}"))).collect()
    }

    /// Returns the node of the device that shows the window shared by the guest and its host. Other devices show pair windows. A device
    /// that cannot be queried may be this one.
    pub fn of_host() -> Option<PathBuf> {
        let is_common = |node: &PathBuf| {
            let peer = Self::open(node).ok().and_then(|device| device.info().ok()?.peer);
            peer.is_some_and(|peer| peer > GUEST)
        };
        Self::nodes().into_iter().find(|node| !is_common(node))
    }

    /// Opens the node of a device.
    pub fn open(path: &Path) -> Result<Self, DeviceError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let file = opened.map_err(|source| DeviceError::Open { path: path.to_owned(), source })?;
        let foreign = |what: String| DeviceError::NotOurs { path: path.to_owned(), what };
        let found = rustix::fs::fstat(&file).map_err(|errno| foreign(errno.to_string()))?;
        if rustix::fs::FileType::from_raw_mode(found.st_mode) != rustix::fs::FileType::CharacterDevice {
            return Err(foreign("it is no node of a device".to_owned()));
        }
        // SAFETY: a node of a driver, found by the driver's name. Another driver does not know request numbers of this group with these
        // sizes and refuses them.
        let node = unsafe { DeviceNode::new(file) };
        let info = node.info().map_err(|errno| foreign(errno.to_string()))?;
        if info.abi != ABI {
            return Err(foreign(format!("its interface has version {}, not {ABI}", info.abi)));
        }
        Ok(Self { node, path: path.to_owned() })
    }

    /// Returns the path of the node.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the properties of the device, or NODEV if it is gone.
    pub fn info(&self) -> Result<DeviceInfo, PlatformError> {
        let raw = self.node.info().map_err(refused("asking the isthmus device"))?;
        Ok(DeviceInfo {
            window: RegionSize(raw.window_bytes),
            peer: u16::try_from(raw.peer).ok().filter(|_| raw.peer != NO_PEER),
            vectors: u16::try_from(raw.vectors).unwrap_or(u16::MAX),
            memory_type: MemoryType::from_number(raw.memory_type),
            mapped: raw.flags & INFO_MAPPED != 0,
            address: raw.window_address,
        })
    }

    /// Returns a descriptor that maps these bytes of the window, from its own offset 0, and nothing else. Its rights cannot be changed.
    /// Offset and size are whole pages.
    pub fn extent(&self, offset: u64, bytes: u64, access: Access) -> Result<OwnedFd, PlatformError> {
        let access = match access {
            Access::Read => 1,
            Access::ReadWrite => 3,
        };
        self.node.piece(access, offset, bytes).map_err(refused("asking the isthmus device for an extent of its window"))
    }

    /// Returns a descriptor of a private extent, for a program's own memory: readable and writable. Its contents stay with the mapping
    /// process, whatever happens to the window and the device ([`PrivateExtent`](isthmus_shm::window_extent::PrivateExtent)). The extent
    /// uses an equal number of the guest's own pages.
    pub fn private_extent(&self, offset: u64, bytes: u64) -> Result<OwnedFd, PlatformError> {
        self.node
            .piece(7, offset, bytes)
            .map_err(refused("asking the isthmus device for a private extent of its window"))
    }

    /// Revokes this extent: a process that maps it sees private pages from now on.
    pub fn revoke(&self, piece: impl AsFd) -> Result<(), PlatformError> {
        self.node.withdraw(piece.as_fd()).map_err(refused("revoking an extent of the isthmus device's window"))
    }

    /// Returns an event descriptor that is signalled when this vector of the guest is rung, and once when the device is removed. It
    /// replaces the previous listener of the vector. It receives nothing more after this device is dropped.
    pub fn listener(&self, vector: u16) -> Result<OwnedFd, PlatformError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = rustix::event::eventfd(0, flags).map_err(refused("creating a doorbell"))?;
        self.listen(vector, Some(event.as_fd()))?;
        Ok(event)
    }

    /// Sets or removes the event descriptor that is signalled when a vector of the guest is rung.
    pub fn listen(&self, vector: u16, event: Option<BorrowedFd<'_>>) -> Result<(), PlatformError> {
        let listening = self.node.listen(vector.into(), event);
        listening.map_err(refused("listening to a vector of the isthmus device"))
    }

    /// Returns a descriptor that rings this vector of a peer when eight bytes are written to it.
    pub fn doorbell_sender(&self, peer: u16, vector: u16) -> Result<OwnedFd, PlatformError> {
        let sender = self.node.ringer(peer.into(), vector.into());
        sender.map_err(refused("asking the isthmus device for a doorbell"))
    }

    /// Rings a vector of a peer without a descriptor. Returns false if the device is gone.
    pub fn ring(&self, peer: u16, vector: u16) -> bool {
        self.node.ring(peer.into(), vector.into()).is_ok()
    }

    /// Makes a loop device in the network namespace of this process, which needs `CAP_NET_ADMIN` there.
    pub fn loop_device(&self, setup: &LoopSetup<'_>) -> Result<LoopDevice, PlatformError> {
        let request = RawLoop {
            abi: ABI,
            side: setup.side.into(),
            piece: setup.piece.as_raw_fd(),
            ringer: setup.ringer.as_raw_fd(),
            vector: setup.vector.into(),
            lower: setup.lower,
            ..RawLoop::default()
        };
        let made = self.node.loop_device(request);
        let (index, descriptor) = made.map_err(refused("asking the isthmus device for a loop device"))?;
        Ok(LoopDevice { index, descriptor })
    }

    /// Steers an Ethernet interface in the network namespace of this process, which needs `CAP_NET_ADMIN` there. Returns BUSY if it is steered
    /// already, OPNOTSUPP if the kernel cannot, and NOTTY if the driver cannot. There are no routes at first.
    pub fn steer(&self, interface: u32) -> Result<Steering, PlatformError> {
        let descriptor = self.node.steer(interface).map_err(refused("steering a network interface"))?;
        Steering::new(descriptor)
    }

    /// Returns true if the device was unplugged. Its descriptor hangs up then.
    pub fn is_gone(&self) -> bool {
        hangs_up(&self.node)
    }
}

impl AsFd for Device {
    /// The descriptor hangs up when the device is gone. It reports no other event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.node.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_files_that_are_not_our_device() {
        assert!(matches!(Device::open(Path::new("/dev/null")), Err(DeviceError::NotOurs { .. })));
        assert!(matches!(Device::open(Path::new("/proc/self/comm")), Err(DeviceError::NotOurs { .. })));
        let missing = Device::open(Path::new("/dev/isthmus-none"));
        assert!(matches!(missing, Err(DeviceError::Open { source: Errno::NOENT, .. })));
    }
}
