//! How domains of one kind share memory and ring each other.
//!
//! ```text
//!            memory               doorbell                discovery
//!   local    sealed memfd         eventfd                 the daemon's Unix socket
//!   kvm      a device's window    ivshmem vector          (a leaf crate of its own)
//!   xen      granted pages        event channel           (a leaf crate of its own)
//! ```
//!
//! A [`Platform`] is used by the daemons of a guest and of its host. Programs never see one: their daemon hands them file
//! descriptors, to map and to wait on, whatever lies behind.
//!
//! [`conformance`] is the suite that every platform passes; a new one is done when it does.

pub mod activation;
pub mod conformance;
pub mod event_channel;
pub mod fd_bundle;
pub mod folder;
pub mod local;
pub mod oversubscription;
pub mod peer_credentials;
pub mod scheduling;
pub mod seqpacket;
pub mod tcp_socket;

pub use local::{Doorbell, Local};

use std::os::fd::{AsFd, OwnedFd};

use isthmus_layout::reason::Reason;
use isthmus_layout::{Refusal, RegionSize};
use isthmus_shm::{Access, MapError, Mapping};
use rustix::io::Errno;

/// The reason that a platform operation failed.
#[derive(Debug, thiserror::Error)]
pub enum PlatformError {
    /// The system refused memory, descriptors, grants or window space.
    #[error("{operation}: {source}{}", hint(*source))]
    Refused {
        /// The operation.
        operation: &'static str,
        /// The system's error.
        source: Errno,
    },
    /// The peer's memory cannot be mapped safely.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Copies a descriptor.
pub fn copy_fd(fd: impl AsFd) -> Result<OwnedFd, PlatformError> {
    let copied = fd.as_fd().try_clone_to_owned();
    copied.map_err(|error| PlatformError::Refused {
        operation: "copying a file descriptor",
        source: Errno::from_io_error(&error).unwrap_or(Errno::MFILE),
    })
}

impl From<PlatformError> for Refusal {
    fn from(error: PlatformError) -> Self {
        let reason = match error {
            PlatformError::Refused { source: Errno::MFILE | Errno::NFILE, .. } => Reason::DaemonOutOfFds,
            PlatformError::Refused { source: Errno::NOMEM | Errno::NOSPC | Errno::DQUOT, .. } => Reason::OutOfMemory,
            PlatformError::Refused { .. } => Reason::KernelRefused,
            PlatformError::Map(map) => return map.into(),
        };
        Self::new(reason, format!("{}: {error}", reason.summary()))
    }
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::MFILE => " (RLIMIT_NOFILE of this process is reached; raise it with ulimit -n)",
        Errno::NFILE => " (the system's limit fs.file-max is reached)",
        Errno::FBIG => " (RLIMIT_FSIZE of this process is lower; raise it with ulimit -f)",
        Errno::NOMEM => " (RLIMIT_AS, the cgroup's memory limit or vm.max_map_count is reached)",
        _ => "",
    }
}

/// One way for a domain to share memory with another and to wake it.
///
/// The trait does not mention descriptors, because only `local` can pass them. On `xen` a grant is a list of page
/// references made out to one domain; on `kvm` it is a position in a window that the device shows to one guest.
pub trait Platform {
    /// The platform's identification of a domain, to grant memory to it and to wake it.
    type Peer;
    /// Memory of ours that can be granted to others.
    type Memory;
    /// The value that travels to the peer so that it can map: a descriptor, page references, a position in a window.
    type Grant;
    /// The value that travels to the peer so that it can wake us.
    type DoorbellToken;
    /// Wakes a peer.
    type DoorbellSender: Ring;
    /// Receives wake-ups.
    type DoorbellReceiver: Listen;

    /// Allocates zeroed memory that can be granted to this peer, with these rights. Some platforms make it out to the peer at once.
    fn allocate(&self, size: RegionSize, to: &Self::Peer, access: Access) -> Result<Self::Memory, PlatformError>;
    /// Our own mapping of it.
    fn map_own(&self, memory: &Self::Memory) -> Result<Mapping, PlatformError>;
    /// Lets the peer in that it was allocated for.
    fn grant(&self, memory: &Self::Memory, to: &Self::Peer, access: Access) -> Result<Self::Grant, PlatformError>;
    /// Maps what a peer granted. Never more rights than were granted, never memory that can vanish under us.
    fn map(&self, grant: Self::Grant, size: RegionSize, access: Access) -> Result<Mapping, PlatformError>;
    /// A doorbell of our own, and what the peer needs to ring it.
    fn doorbell(&self, for_peer: &Self::Peer) -> Result<(Self::DoorbellReceiver, Self::DoorbellToken), PlatformError>;
    /// The peer's doorbell.
    fn doorbell_sender(&self, bell: Self::DoorbellToken) -> Result<Self::DoorbellSender, PlatformError>;
}

/// Wakes a peer.
pub trait Ring {
    /// Rings. What rang before and was not heard yet is one ring with this one. Never blocks.
    fn ring(&self);
}

/// Where rings arrive.
pub trait Listen {
    /// Waits for a ring that was not waited for yet, `limit` at most; true if there was one.
    fn wait(&self, limit: std::time::Duration) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_kernel_errors_to_reasons() {
        let reason = |source| Refusal::from(PlatformError::Refused { operation: "test", source }).reason;
        assert_eq!([reason(Errno::MFILE), reason(Errno::NFILE)], [Reason::DaemonOutOfFds; 2]);
        assert_eq!([reason(Errno::NOMEM), reason(Errno::NOSPC)], [Reason::OutOfMemory; 2]);
        assert_eq!(reason(Errno::PERM), Reason::KernelRefused);
        let map = |source| Refusal::from(PlatformError::from(MapError::Refused { bytes: 1, source })).reason;
        assert_eq!([map(Errno::NOMEM), map(Errno::ACCESS)], [Reason::OutOfMemory, Reason::RequestInvalid]);
        assert_eq!(Refusal::from(MapError::NotSealed).reason, Reason::RegionNotSealed);
    }
}
