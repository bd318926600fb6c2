//! What outlives a daemon: guests' connections, left with the service manager (systemd's file descriptor store).
//!
//! ```text
//!   a guest is there ── FDSTORE=1 ──► service manager ── LISTEN_FDNAMES ──► the next daemon ──► IvshmemServer::resume
//!   a guest is gone  ── FDSTOREREMOVE=1 ──►
//! ```
//!
//! Each guest is one named set of descriptors ([`isthmus_platform::fds`]), called after it. Without a service manager that keeps it, a daemon
//! that ends takes its guests' devices with it (decision 0013).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use isthmus_layout::control::Name;

use crate::proxy::PacketSocket;

/// How long a service manager may take to have room for a word of ours.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(10);

/// What the names of guests' descriptors begin with.
const PREFIX: &str = "guest-";

/// What a daemon before this one has left, by the names of guests.
pub(crate) type StoredGuests = BTreeMap<String, Vec<OwnedFd>>;

/// What was kept for guests; all else is closed.
pub(crate) fn guests_of(kept: Vec<(String, OwnedFd)>) -> StoredGuests {
    let mut guests = StoredGuests::new();
    for (name, fd) in kept {
        if let Some(guest) = name.strip_prefix(PREFIX) {
            guests.entry(guest.to_owned()).or_default().push(fd);
        }
    }
    guests
}

/// The way to whoever keeps descriptors; there may be nobody.
pub(crate) struct FdStore(Option<PacketSocket>);

impl FdStore {
    /// By a datagram socket to the service manager.
    pub(crate) fn new(socket: Option<OwnedFd>) -> io::Result<Self> {
        socket.map(PacketSocket::new).transpose().map(Self)
    }

    /// Whether somebody is there.
    pub(crate) fn is_available(&self) -> bool {
        self.0.is_some()
    }

    /// Leaves a guest's descriptors there. False if it was not taken.
    pub(crate) async fn store(&self, guest: &Name, fds: [OwnedFd; 2]) -> bool {
        self.notify(&format!("FDSTORE=1\nFDNAME={PREFIX}{guest}"), &fds.map(Arc::new)).await
    }

    /// Whatever is there of a guest is closed.
    pub(crate) async fn remove(&self, guest: &str) -> bool {
        self.notify(&format!("FDSTOREREMOVE=1\nFDNAME={PREFIX}{guest}"), &[]).await
    }

    async fn notify(&self, what: &str, fds: &[Arc<OwnedFd>]) -> bool {
        let Some(socket) = &self.0 else { return false };
        tokio::time::timeout(NOTIFY_TIMEOUT, socket.send(what.as_bytes(), fds)).await.unwrap_or(false)
    }
}
