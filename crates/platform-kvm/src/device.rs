//! A guest's device, by the driver in `kmod/`.

use crate::driver::{ABI, DeviceNode, INFO_MAPPED, NO_PEER};
use crate::server::GUEST;
use isthmus_layout::RegionSize;
use isthmus_platform::PlatformError;
use isthmus_shm::Access;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The node cannot be opened: no such device, no driver, no rights.
    #[error("opening {}: {source}", .path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: Errno,
    },
    /// What answers is not the driver, or of another version.
    #[error("{} is no device of the isthmus driver that this program knows: {what}", .path.display())]
    NotOurs {
        /// Which.
        path: PathBuf,
        /// What it said.
        what: String,
    },
}

/// How memory is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryType {
    /// Nobody said.
    Unknown,
    /// As ordinary memory: what is wanted.
    WriteBack,
    /// Cached for reading.
    WriteThrough,
    /// Cached for reading, by other rules.
    WriteProtect,
    /// Not cached; writes are gathered.
    WriteCombining,
    /// Not cached, unless a register of the processor says write-combining.
    UncachedMinus,
    /// Not cached.
    Uncached,
}

impl MemoryType {
    /// By the driver's number.
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

    /// What people call it.
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

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Bytes of the window.
    pub window: RegionSize,
    /// Our number among the device's peers.
    pub peer: Option<u16>,
    /// Vectors that can be listened to: 0 to one less.
    pub vectors: u16,
    /// How the window is cached.
    pub memory_type: MemoryType,
    /// Whether that was seen in a program's mapping; otherwise it is what the kernel's own mapping has.
    pub mapped: bool,
    /// Where the window lies in the guest's physical memory.
    pub address: u64,
}

/// A device that the driver serves.
#[derive(Debug)]
pub struct Device {
    node: DeviceNode,
    path: PathBuf,
}

/// The driver's major number is whatever was free; its nodes are called so.
const NODES: &str = "/dev";
const PREFIX: &str = "isthmus";

fn refused(operation: &'static str) -> impl Fn(Errno) -> PlatformError {
    move |source| PlatformError::Refused { operation, source }
}

impl Device {
    /// The nodes of all devices, by number.
    pub fn nodes() -> Vec<PathBuf> {
        let found = std::fs::read_dir(NODES).into_iter().flatten().flatten();
        let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix(PREFIX)?.parse::<u32>().ok();
        let mut numbers: Vec<u32> = found.filter_map(number).collect();
        numbers.sort_unstable();
        numbers.iter().map(|number| Path::new(NODES).join(format!("{PREFIX}{number}"))).collect()
    }

    /// The node of the device by which a guest and its host share a window: where there are several, the others show windows that the guest
    /// has in common with other guests. One that cannot be asked may be it.
    pub fn of_host() -> Option<PathBuf> {
        let is_common = |node: &PathBuf| {
            let peer = Self::open(node).ok().and_then(|device| device.info().ok()?.peer);
            peer.is_some_and(|peer| peer > GUEST)
        };
        Self::nodes().into_iter().find(|node| !is_common(node))
    }

    /// Opens the node of one.
    pub fn open(path: &Path) -> Result<Self, DeviceError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let file = opened.map_err(|source| DeviceError::Open { path: path.to_owned(), source })?;
        let foreign = |what: String| DeviceError::NotOurs { path: path.to_owned(), what };
        let found = rustix::fs::fstat(&file).map_err(|errno| foreign(errno.to_string()))?;
        if rustix::fs::FileType::from_raw_mode(found.st_mode) != rustix::fs::FileType::CharacterDevice {
            return Err(foreign("it is no node of a device".to_owned()));
        }
        // SAFETY: a node of a driver that was asked for by its name. Another driver than ours does not know numbers of this group with
        // these sizes and refuses them.
        let node = unsafe { DeviceNode::new(file) };
        let info = node.info().map_err(|errno| foreign(errno.to_string()))?;
        if info.abi != ABI {
            return Err(foreign(format!("its interface has version {}, not {ABI}", info.abi)));
        }
        Ok(Self { node, path: path.to_owned() })
    }

    /// Where its node is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it is. Refused with NODEV when it is gone.
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

    /// A descriptor that maps these bytes of the window, from its offset 0, and nothing else, with these rights for good. Both in whole
    /// pages.
    pub fn extent(&self, offset: u64, bytes: u64, access: Access) -> Result<OwnedFd, PlatformError> {
        let access = match access {
            Access::Read => 1,
            Access::ReadWrite => 3,
        };
        self.node.piece(access, offset, bytes).map_err(refused("asking the isthmus device for an extent of its window"))
    }

    /// The same for reading and writing, for a program's own memory: its bytes stay with whoever maps it, whatever becomes of window and
    /// device ([`PrivateExtent`](isthmus_shm::window_extent::PrivateExtent)). Takes as many pages of the guest's.
    pub fn private_extent(&self, offset: u64, bytes: u64) -> Result<OwnedFd, PlatformError> {
        self.node
            .piece(7, offset, bytes)
            .map_err(refused("asking the isthmus device for a private extent of its window"))
    }

    /// Revokes this extent of ours: a process that maps it sees pages of its own from now on.
    pub fn revoke(&self, piece: impl AsFd) -> Result<(), PlatformError> {
        self.node.withdraw(piece.as_fd()).map_err(refused("revoking an extent of the isthmus device's window"))
    }

    /// An event descriptor that is signalled when this vector of ours is rung, and once when the device goes. One at a time: it takes the
    /// place of the one before. Nothing more comes once this device is dropped.
    pub fn listener(&self, vector: u16) -> Result<OwnedFd, PlatformError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = rustix::event::eventfd(0, flags).map_err(refused("creating a doorbell"))?;
        self.listen(vector, Some(event.as_fd()))?;
        Ok(event)
    }

    /// Has this event descriptor, or none, signalled when a vector of ours is rung.
    pub fn listen(&self, vector: u16, event: Option<BorrowedFd<'_>>) -> Result<(), PlatformError> {
        let listening = self.node.listen(vector.into(), event);
        listening.map_err(refused("listening to a vector of the isthmus device"))
    }

    /// A descriptor that rings this vector of a peer when eight bytes are written to it.
    pub fn doorbell_sender(&self, peer: u16, vector: u16) -> Result<OwnedFd, PlatformError> {
        let sender = self.node.ringer(peer.into(), vector.into());
        sender.map_err(refused("asking the isthmus device for a doorbell"))
    }

    /// Rings without one. False when the device is gone.
    pub fn ring(&self, peer: u16, vector: u16) -> bool {
        self.node.ring(peer.into(), vector.into()).is_ok()
    }

    /// Whether the device was unplugged. Its descriptor hangs up then.
    pub fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(&self.node, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1)) && fds[0].revents().contains(PollFlags::HUP)
    }
}

impl AsFd for Device {
    /// Hangs up when the device is gone; nothing else is heard there.
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
