//! Processes and containers of one host: sealed memory files and eventfds, passed over a Unix socket.
//!
//! Two containers need one thing in common: that socket. Memory has no name, so nothing is left when its last user is
//! gone, even after a crash.

use crate::conformance::ConformancePlatform;
use crate::seqpacket::{self, ReceiveError};
use crate::{Listen, Platform, PlatformError, Ring, event_channel};
use isthmus_layout::RegionSize;
use isthmus_shm::{Access, Mapping};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Resource, getrlimit};
use std::sync::Arc;
use std::time::Duration;

/// Creates a memory file of `size` zero bytes that can neither shrink nor grow, so mapping it is safe from SIGBUS.
/// Pages appear at first touch and are charged to the process that touches them.
pub fn memory(size: RegionSize) -> Result<OwnedFd, PlatformError> {
    memory_file(size, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

/// Creates a memory file of `size` zero bytes for others to read, and this process's mapping of it. No other mapping can write to it.
pub fn published_memory(size: RegionSize) -> Result<(OwnedFd, Mapping), PlatformError> {
    let file = memory_file(size, SealFlags::SHRINK | SealFlags::GROW)?;
    let mapping = Mapping::new(&file, size, Access::ReadWrite)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
        .map_err(|source| PlatformError::Refused { operation: "sealing a memory file", source })?;
    Ok((file, mapping))
}

fn memory_file(size: RegionSize, seals: SealFlags) -> Result<OwnedFd, PlatformError> {
    let refused = |operation| move |source| PlatformError::Refused { operation, source };
    // Beyond RLIMIT_FSIZE the kernel also raises a signal that ends the process.
    let file_size = getrlimit(Resource::Fsize).current;
    if file_size.is_some_and(|limit| limit < size.0) {
        return Err(refused("sizing a memory file")(Errno::FBIG));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("isthmus", flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create("isthmus", flags)) // Before Linux 6.3.
        .map_err(refused("creating a memory file"))?;
    rustix::fs::ftruncate(&file, size.0).map_err(refused("sizing a memory file"))?;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(refused("sealing a memory file"))?;
    Ok(file)
}

/// Wakes its owner. Others ring it; its owner waits on it, alone or in an epoll set.
///
/// Between domains of one owner it is an eventfd, which costs least. An eventfd is one open file for all its holders, and any
/// holder can make the next write to it block. Between owners, and from the daemon, rings are therefore packets on a socket: each
/// send says whether it may block, and no other process can change that. Between guests of Xen it may be an event channel.
#[derive(Clone, Debug)]
pub struct Doorbell {
    file: Arc<OwnedFd>,
    kind: DoorbellKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DoorbellKind {
    Event,
    Socket,
    /// An end of an event channel, with its port.
    EventChannel(u32),
}

impl Doorbell {
    /// Creates a doorbell of our own, for domains of the same owner.
    pub fn new() -> Result<Self, PlatformError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = rustix::event::eventfd(0, flags)
            .map_err(|source| PlatformError::Refused { operation: "creating a doorbell", source })?;
        Ok(Self { file: Arc::new(event), kind: DoorbellKind::Event })
    }

    /// Creates a doorbell for domains of different owners: the receiving end and the ringing end.
    pub fn socket_pair() -> Result<(Self, Self), PlatformError> {
        let (receiver, sender) =
            seqpacket::pair().map_err(|source| PlatformError::Refused { operation: "creating a doorbell", source })?;
        let bell = |end| Self { file: Arc::new(end), kind: DoorbellKind::Socket };
        Ok((bell(receiver), bell(sender)))
    }

    /// Wraps an end of an event channel, as received over the socket: rings arrive at the other end.
    pub fn event_channel(end: OwnedFd, port: u32) -> Self {
        Self { file: Arc::new(end), kind: DoorbellKind::EventChannel(port) }
    }

    /// Discards rings that were not waited for. An eventfd in an edge-triggered epoll set does not need this.
    pub fn clear(&self) {
        match self.kind {
            DoorbellKind::Event => {
                let _ = rustix::io::read(&self.file, &mut [0; 8]);
            }
            DoorbellKind::Socket => self.clear_socket(),
            DoorbellKind::EventChannel(_) => {
                let _ = event_channel::take_event(&self.file);
            }
        }
    }

    /// Takes a bounded number of rings, so that a peer that rings endlessly cannot keep us here. Later rings are events of their own.
    fn clear_socket(&self) {
        let (mut packet, mut fds) = ([0; WAKEUP_PACKET.len()], Vec::new());
        for _ in 0..RINGS_MAX {
            match seqpacket::receive(&self.file, &mut packet, &mut fds, false) {
                Ok(_) | Err(ReceiveError::TooLong | ReceiveError::DescriptorsLost { .. }) => {}
                Err(_) => return,
            }
            // Rings carry no descriptors. A peer may send one to make us wait when we close it, as lingering sockets do.
            for fd in fds.drain(..) {
                let _ = rustix::net::sockopt::set_socket_linger(&fd, None);
            }
        }
    }

    /// Returns true if rings must be cleared even in an edge-triggered epoll set: they fill a socket, and an event channel reports no ring
    /// after one that was not taken.
    pub fn needs_clearing(&self) -> bool {
        self.kind != DoorbellKind::Event
    }
}

/// Maximum number of rings taken at once. A socket holds fewer, unless a peer fills it while we empty it.
const RINGS_MAX: usize = 1024;

/// The control message `Wakeup`, which rings a socket: the daemon rings a domain on its control socket.
const WAKEUP_PACKET: [u8; 8] = [143, 0, 0, 0, 0, 0, 0, 0];

impl From<OwnedFd> for Doorbell {
    /// Wraps a doorbell as received over the socket. Its real type does not matter: ringing writes eight bytes and ignores the
    /// result.
    fn from(file: OwnedFd) -> Self {
        let kind = match rustix::net::sockopt::socket_type(&file) {
            Ok(_) => DoorbellKind::Socket,
            Err(_) => DoorbellKind::Event,
        };
        if let (DoorbellKind::Event, Ok(flags)) = (kind, rustix::fs::fcntl_getfl(&file)) {
            let _ = rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::NONBLOCK);
        }
        Self { file: Arc::new(file), kind }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Ring for Doorbell {
    fn ring(&self) {
        isthmus_shm::step!("ring");
        // A full counter, or a full socket, means that the bell is ringing already.
        match self.kind {
            DoorbellKind::Event => {
                let _ = rustix::io::write(&self.file, &1_u64.to_ne_bytes());
            }
            DoorbellKind::Socket => {
                let _ = rustix::net::send(&self.file, &WAKEUP_PACKET, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
            DoorbellKind::EventChannel(port) => {
                let _ = event_channel::notify(&self.file, port);
            }
        }
    }
}

impl Listen for Doorbell {
    fn wait(&self, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).ok();
        let mut fds = [PollFd::new(&self.file, PollFlags::IN)];
        let rang = matches!(rustix::event::poll(&mut fds, limit.as_ref()), Ok(1));
        if rang {
            self.clear();
        }
        rang
    }
}

/// The platform of processes that can pass descriptors to one another.
#[derive(Clone, Copy, Debug, Default)]
pub struct Local;

/// Memory of our own: the file, and how large it is.
#[derive(Debug)]
pub struct LocalMemory {
    file: OwnedFd,
    size: RegionSize,
}

impl Platform for Local {
    type Peer = ();
    type Memory = LocalMemory;
    type Grant = OwnedFd;
    type DoorbellToken = OwnedFd;
    type DoorbellSender = Doorbell;
    type DoorbellReceiver = Doorbell;

    fn allocate(&self, size: RegionSize, _to: &(), _access: Access) -> Result<LocalMemory, PlatformError> {
        Ok(LocalMemory { file: memory_file(size, SealFlags::SHRINK | SealFlags::GROW)?, size })
    }

    fn map_own(&self, memory: &LocalMemory) -> Result<Mapping, PlatformError> {
        Ok(Mapping::new(&memory.file, memory.size, Access::ReadWrite)?)
    }

    fn grant(&self, memory: &LocalMemory, _to: &(), access: Access) -> Result<OwnedFd, PlatformError> {
        let refused = |source| PlatformError::Refused { operation: "granting a memory file", source };
        if access == Access::Read {
            // Our own mapping keeps its rights; no other one gets write access, not even by opening the file again.
            rustix::fs::fcntl_add_seals(&memory.file, SealFlags::FUTURE_WRITE).map_err(refused)?;
        }
        memory.file.try_clone().map_err(|_| refused(rustix::io::Errno::MFILE))
    }

    fn map(&self, grant: OwnedFd, size: RegionSize, access: Access) -> Result<Mapping, PlatformError> {
        Ok(Mapping::new(&grant, size, access)?)
    }

    fn doorbell(&self, _for_peer: &()) -> Result<(Doorbell, OwnedFd), PlatformError> {
        let bell = Doorbell::new()?;
        let copy = bell.file.try_clone().map_err(|_| PlatformError::Refused {
            operation: "copying a doorbell",
            source: rustix::io::Errno::MFILE,
        })?;
        Ok((bell, copy))
    }

    fn doorbell_sender(&self, bell: OwnedFd) -> Result<Doorbell, PlatformError> {
        Ok(Doorbell::from(bell))
    }
}

impl ConformancePlatform for Local {
    fn forged_grants(
        &self,
        memory: &LocalMemory,
        _to: &(),
        size: RegionSize,
        _held: &mut Vec<LocalMemory>,
    ) -> Result<Vec<(&'static str, OwnedFd)>, PlatformError> {
        let refused = |source| PlatformError::Refused { operation: "making a descriptor that is no grant", source };
        let unsealed = rustix::fs::memfd_create("isthmus", MemfdFlags::CLOEXEC).map_err(refused)?;
        rustix::fs::ftruncate(&unsealed, size.0).map_err(refused)?;
        let small = memory_file(RegionSize(memory.size.0 - 1), SealFlags::SHRINK)?;
        let (pipe, _) = rustix::pipe::pipe().map_err(refused)?;
        Ok(vec![("memory that can shrink", unsealed), ("a byte too few", small), ("no memory at all", pipe)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_layout::control::{ToClient, Wakeup};

    #[test]
    fn a_ring_on_a_socket_is_the_control_message() {
        assert_eq!(ToClient::from(Wakeup {}).emit(None), WAKEUP_PACKET);
    }

    #[test]
    fn published_memory_is_written_by_this_mapping_only() {
        use isthmus_shm::{SharedMapping, Words as _};
        use std::sync::atomic::Ordering::Relaxed;
        let (file, mapping) = published_memory(RegionSize(4096)).unwrap();
        assert!(Mapping::new(&file, RegionSize(4096), Access::ReadWrite).is_err());
        assert!(rustix::io::pwrite(&file, &[1], 0).is_err());
        let reader = SharedMapping::new(Mapping::new(&file, RegionSize(4096), Access::Read).unwrap());
        let mapping = SharedMapping::new(mapping);
        mapping.store(3, 7, Relaxed);
        assert_eq!(reader.load(3, Relaxed), 7);
    }

    #[test]
    fn ring_never_blocks_on_a_doorbell_between_owners() {
        let (receiver, sender) = Doorbell::socket_pair().unwrap();
        let sender = Doorbell::from(sender.file.try_clone().unwrap());
        let flags = rustix::fs::fcntl_getfl(&sender.file).unwrap();
        rustix::fs::fcntl_setfl(&sender.file, flags - rustix::fs::OFlags::NONBLOCK).unwrap(); // As a hostile holder would.
        for _ in 0..10_000 {
            sender.ring();
        }
        assert!(receiver.wait(Duration::ZERO));
        assert!(!receiver.wait(Duration::ZERO));
    }
}
