//! What outlives a daemon: guests' connections, left with the service manager (systemd's file descriptor store).
//!
//! ```text
//!   a guest is there ── FDSTORE=1 ──► service manager ── LISTEN_FDNAMES ──► the next daemon ──► IvshmemServer::resume
//!   a guest is gone  ── FDSTOREREMOVE=1 ──►
//! ```
//!
//! Each guest is one parcel ([`isthmus_platform::parcel`]), called after it. Without somebody who keeps it, a daemon that ends takes its
//! guests' devices with it (decision 0013).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use isthmus_layout::control::Name;

use crate::border::Line;

/// How long a service manager may take to have room for a word of ours.
const LIMIT: Duration = Duration::from_secs(10);

/// What names of guests' parcels begin with.
const PREFIX: &str = "guest-";

/// What a daemon before this one has left, by the names of guests.
pub(crate) type Kept = BTreeMap<String, Vec<OwnedFd>>;

/// What was kept for guests; all else is closed.
pub(crate) fn of_guests(kept: Vec<(String, OwnedFd)>) -> Kept {
    let mut guests = Kept::new();
    for (name, fd) in kept {
        if let Some(guest) = name.strip_prefix(PREFIX) {
            guests.entry(guest.to_owned()).or_default().push(fd);
        }
    }
    guests
}

/// The way to whoever keeps descriptors; there may be nobody.
pub(crate) struct Keeper(Option<Line>);

impl Keeper {
    /// By a datagram socket to the service manager.
    pub(crate) fn over(socket: Option<OwnedFd>) -> io::Result<Self> {
        socket.map(Line::new).transpose().map(Self)
    }

    /// Whether somebody is there.
    pub(crate) fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Leaves a guest's parcel there. False if it was not taken.
    pub(crate) async fn keep(&self, guest: &Name, parcel: [OwnedFd; 2]) -> bool {
        self.say(&format!("FDSTORE=1\nFDNAME={PREFIX}{guest}"), &parcel.map(Arc::new)).await
    }

    /// Whatever is there of a guest is closed.
    pub(crate) async fn forget(&self, guest: &str) -> bool {
        self.say(&format!("FDSTOREREMOVE=1\nFDNAME={PREFIX}{guest}"), &[]).await
    }

    async fn say(&self, what: &str, fds: &[Arc<OwnedFd>]) -> bool {
        let Some(line) = &self.0 else { return false };
        tokio::time::timeout(LIMIT, line.send(what.as_bytes(), fds)).await.unwrap_or(false)
    }
}
