//! Stores guests' connections with the service manager (systemd's file descriptor store), so that they outlive the daemon.
//!
//! ```text
//!   a guest is there ── FDSTORE=1 ──► service manager ── LISTEN_FDNAMES ──► the next daemon ──► IvshmemServer::resume
//!   a guest is gone  ── FDSTOREREMOVE=1 ──►
//! ```
//!
//! Each guest has one set of descriptors ([`isthmus_platform::fd_bundle`]) under its name. Without a service manager that stores them, guests lose
//! their devices when the daemon ends (decision 0013).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use isthmus_layout::control::Name;

use crate::proxy::PacketSocket;

/// How long the service manager may take to have room for a message.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(10);

/// The prefix of the names of guests' descriptors.
const PREFIX: &str = "guest-";

/// The descriptors that a previous daemon has stored, by guest name.
pub type StoredGuests = BTreeMap<String, Vec<OwnedFd>>;

/// Returns the stored descriptors of guests, and all others.
pub fn guests_of(kept: Vec<(String, OwnedFd)>) -> (StoredGuests, Vec<(String, OwnedFd)>) {
    let (mut guests, mut others) = (StoredGuests::new(), Vec::new());
    for (name, fd) in kept {
        match name.strip_prefix(PREFIX) {
            Some(guest) => guests.entry(guest.to_owned()).or_default().push(fd),
            None => others.push((name, fd)),
        }
    }
    (guests, others)
}

/// The connection to the service manager, if there is one.
pub struct FdStore(Option<PacketSocket>);

impl FdStore {
    /// Uses a datagram socket to the service manager.
    pub fn new(socket: Option<OwnedFd>) -> io::Result<Self> {
        socket.map(PacketSocket::new).transpose().map(Self)
    }

    /// Returns whether a service manager is available.
    pub(crate) fn is_available(&self) -> bool {
        self.0.is_some()
    }

    /// Stores a guest's descriptors. Returns false if they could not be sent.
    pub(crate) async fn store(&self, guest: &Name, fds: [OwnedFd; 2]) -> bool {
        self.notify(&format!("FDSTORE=1\nFDNAME={PREFIX}{guest}"), &fds.map(Arc::new)).await
    }

    /// Removes all stored descriptors of a guest. Returns false if the request could not be sent.
    pub(crate) async fn remove(&self, guest: &str) -> bool {
        self.notify(&format!("FDSTOREREMOVE=1\nFDNAME={PREFIX}{guest}"), &[]).await
    }

    async fn notify(&self, what: &str, fds: &[Arc<OwnedFd>]) -> bool {
        let Some(socket) = &self.0 else { return false };
        tokio::time::timeout(NOTIFY_TIMEOUT, socket.send(what.as_bytes(), fds)).await.unwrap_or(false)
    }
}
