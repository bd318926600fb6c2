//! Stores the TAPs of interfaces with the service manager (systemd's file descriptor store), so that interfaces outlive the daemon.
//!
//! ```text
//!   an interface is created ── FDSTORE=1 ──► service manager ── LISTEN_FDNAMES ──► the next daemon: the same TAP
//!   an interface is removed ── FDSTOREREMOVE=1 ──►
//! ```
//!
//! An interface exists as long as a descriptor of its TAP. The name of a stored TAP is a hash of the request that created the interface, and of
//! its network namespace. If the configuration has changed, the next daemon finds no TAP under that name. The addresses, routes and
//! connections of a container survive with its interface (decision 13).

use std::collections::BTreeMap;
use std::fmt;
use std::fs::Metadata;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use isthmus_helper::{NamespaceChoice, Request, TapRequest};
use isthmus_link::tap_interface;
use isthmus_platform::seqpacket::{self, SendError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::core::types::StoredFds;

/// How long the service manager may take to have room for a message.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(10);

/// The prefix of the names of TAPs.
const PREFIX: &str = "overlay-";

/// The name of a stored TAP. It says how and where the interface was created.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TapName(String);

impl TapName {
    /// Returns the name for an interface in this network namespace, or in that of the helper.
    pub(super) fn new(tap: &TapRequest, namespace: Option<&Metadata>) -> Self {
        let choice = if namespace.is_some() { NamespaceChoice::Attached } else { NamespaceChoice::Here };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&Request::OpenTap { tap: tap.clone(), namespace: choice }.emit());
        if let Some(namespace) = namespace {
            // A namespace that has ended may leave its number to another one, but takes its interfaces with it.
            hasher.update(&namespace.dev().to_le_bytes()).update(&namespace.ino().to_le_bytes());
        }
        Self(format!("{PREFIX}{}", &hasher.finalize().to_hex()[..32]))
    }
}

impl fmt::Display for TapName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The TAPs that the previous daemon has stored, and the connection to the service manager, if there is one.
#[derive(Debug, Default)]
pub(super) struct TapStore {
    socket: Option<OwnedFd>,
    restored: BTreeMap<TapName, OwnedFd>,
}

impl TapStore {
    /// Uses a datagram socket to the service manager, and the TAPs among the descriptors that it had stored. Closes all others.
    pub(super) fn new(StoredFds { manager: socket, restored }: StoredFds) -> Self {
        let restored = restored.into_iter().filter(|(name, _)| name.starts_with(PREFIX));
        Self { socket, restored: restored.map(|(name, tap)| (TapName(name), tap)).collect() }
    }

    /// Takes the TAP with a name, if its interface still exists and is called `interface`.
    pub(super) fn take(&mut self, name: &TapName, interface: &str) -> Option<OwnedFd> {
        let tap = self.restored.remove(name)?;
        match tap_interface(&tap) {
            Ok(found) if found == interface => Some(tap),
            Ok(found) => {
                tracing::info!(interface, "the interface is created again: it was renamed to {found}");
                self.remove(name);
                None
            }
            Err(_) => {
                self.remove(name); // Its namespace has ended, or it was deleted.
                None
            }
        }
    }

    /// Returns whether the previous daemon has left TAPs.
    pub(super) fn has_restored(&self) -> bool {
        !self.restored.is_empty()
    }

    /// Closes all restored TAPs with other names. Their interfaces are gone once the service manager has closed them, too.
    pub(super) fn retain(&mut self, wanted: &[TapName]) {
        let (kept, unwanted) =
            std::mem::take(&mut self.restored).into_iter().partition(|(name, _)| wanted.contains(name));
        self.restored = kept;
        let unwanted: BTreeMap<TapName, OwnedFd> = unwanted;
        for (name, tap) in unwanted {
            drop(tap);
            self.remove(&name);
        }
    }

    /// Stores a TAP for the next daemon.
    pub(super) fn store(&mut self, name: &TapName, tap: &OwnedFd) {
        self.notify(&format!("FDSTORE=1\nFDNAME={name}"), &[tap.as_fd()]);
    }

    /// Removes a stored TAP.
    pub(super) fn remove(&mut self, name: &TapName) {
        self.notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[]);
    }

    /// Sends a message to the service manager, and waits until it has room. A service manager that does not take it is not asked again.
    fn notify(&mut self, message: &str, fds: &[BorrowedFd<'_>]) {
        let Some(socket) = &self.socket else { return };
        let sent = match seqpacket::send(socket, message.as_bytes(), fds) {
            Err(SendError::Full) => {
                let timeout = Timespec { tv_sec: NOTIFY_TIMEOUT.as_secs() as i64, tv_nsec: 0 };
                let _ = poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&timeout)); // The next send says what is wrong.
                seqpacket::send(socket, message.as_bytes(), fds)
            }
            sent => sent,
        };
        if let Err(error) = sent {
            tracing::warn!(%error, "the service manager does not store the interfaces of overlay networks for the next daemon");
            self.socket = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_helper::{AddressList, InterfaceName, MacAddress, Mtu};
    use isthmus_testbed::FdStore;
    use std::fs::File;

    fn request(mtu: u32) -> TapRequest {
        TapRequest {
            name: InterfaceName::new("eth0").unwrap(),
            mac: MacAddress::new([2, 0, 0, 0, 0, 1]).unwrap(),
            mtu: Mtu::new(mtu).unwrap(),
            is_up: true,
            addresses: AddressList::default(),
            gso_max_size: None,
            bridge: None,
        }
    }

    #[test]
    fn a_name_says_how_and_where_an_interface_was_created() {
        let [namespace, again, other] =
            ["net", "net", "mnt"].map(|kind| std::fs::metadata(format!("/proc/self/ns/{kind}")).unwrap());
        let name = |mtu, namespace| TapName::new(&request(mtu), namespace);
        assert_eq!(name(1500, Some(&namespace)), name(1500, Some(&again)));
        let names = [name(1500, None), name(1400, None), name(1500, Some(&namespace)), name(1500, Some(&other))];
        let different: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(different.len(), names.len());
        assert!(names[0].0.starts_with(PREFIX) && names[0].0.len() < 64, "{}", names[0]);
    }

    /// Does what the messages say that have arrived at the service manager.
    fn receive(manager: &OwnedFd, store: &mut FdStore) {
        let (mut packet, mut fds) = ([0; 256], Vec::new());
        while let Ok(bytes) = seqpacket::receive(manager, &mut packet, &mut fds, false) {
            store.take(str::from_utf8(&packet[..bytes]).unwrap(), std::mem::take(&mut fds));
        }
    }

    #[test]
    fn what_was_not_asked_for_or_is_no_interface_is_removed_from_the_store() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (manager, socket) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap();
        let mut at_manager = FdStore::default();
        let names = [1400, 1500].map(|mtu| TapName::new(&request(mtu), None));
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        let mut first = TapStore::new(StoredFds { manager: Some(socket.try_clone().unwrap()), restored: Vec::new() });
        names.iter().for_each(|name| first.store(name, &null()));
        receive(&manager, &mut at_manager);
        assert_eq!(at_manager.names(), names.each_ref().map(|name| name.0.as_str()));

        let mut restored = at_manager.copies().unwrap();
        restored.push(("guest-web".to_owned(), null()));
        let mut next = TapStore::new(StoredFds { manager: Some(socket), restored });
        next.retain(&names[1..]);
        receive(&manager, &mut at_manager);
        assert_eq!(at_manager.names(), [names[1].0.as_str()]);
        // The last one is no TAP.
        assert!(next.take(&names[1], "eth0").is_none());
        receive(&manager, &mut at_manager);
        assert!(at_manager.names().is_empty());
        assert!(next.take(&names[1], "eth0").is_none());
    }
}
