//! The hosts of UDP links, some of which are known by name.
//!
//! ```text
//!   peers of a link ── resolve ──┬─► addresses ─────────────────────► UdpLink::set_peers
//!                                └─► unresolved ── every 5 s again ──► UdpLink::peer_updates
//! ```
//!
//! A name that does not resolve stops nothing but the traffic with its own host.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use isthmus_config::UdpPeer;
use isthmus_layout::ids::NicId;
use isthmus_link::Peer;

/// The time between two attempts to resolve names.
const RETRY: Duration = Duration::from_secs(5);

/// The names of hosts that do not resolve, each with the name of its link.
#[derive(Clone, Debug, Default)]
pub(super) struct UnresolvedHosts(Arc<Mutex<Vec<(String, String)>>>);

impl UnresolvedHosts {
    /// Returns the names of a link.
    pub(super) fn of(&self, link: &str) -> Vec<String> {
        let hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.iter().filter(|(of, _)| of == link).map(|(_, host)| host.clone()).collect()
    }

    fn set(&self, link: &str, hosts: impl Iterator<Item = String>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(of, _)| of != link);
        all.extend(hosts.map(|host| (link.to_owned(), host)));
    }
}

/// The hosts of one link.
pub(super) struct PeerHosts {
    /// The name of the link.
    link: String,
    local: SocketAddr,
    /// The MAC addresses of the only host. With several hosts, those of each are known once they have announced themselves.
    nics: Vec<NicId>,
    hosts: Vec<(UdpPeer, Option<SocketAddr>)>,
    unresolved: UnresolvedHosts,
}

impl PeerHosts {
    /// Resolves the hosts. Logs those that do not resolve.
    pub(super) fn resolve(
        link: &str,
        peers: &[UdpPeer],
        local: SocketAddr,
        nics: impl Iterator<Item = NicId>,
        unresolved: &UnresolvedHosts,
    ) -> Self {
        let nics = nics.filter(|_| peers.len() == 1).collect();
        let hosts = peers.iter().map(|peer| (peer.clone(), None)).collect();
        let mut new = Self { link: link.to_owned(), local, nics, hosts, unresolved: unresolved.clone() };
        new.attempt(|peer, error| {
            tracing::warn!(link, host = %name_of(peer), %error, "a host of an MX link does not resolve; the daemon tries again every 5 s");
        });
        new
    }

    /// Tries to resolve the hosts that are not. Returns whether one was resolved.
    fn attempt(&mut self, mut failed: impl FnMut(&UdpPeer, String)) -> bool {
        let mut has_new = false;
        for (peer, address) in self.hosts.iter_mut().filter(|(_, address)| address.is_none()) {
            match address_of(peer, self.local) {
                Ok(found) => {
                    *address = Some(found);
                    has_new = true;
                }
                Err(error) => failed(peer, error),
            }
        }
        let missing = self.hosts.iter().filter(|(_, address)| address.is_none());
        self.unresolved.set(&self.link, missing.map(|(peer, _)| name_of(peer)));
        has_new
    }

    /// Returns the hosts that are resolved.
    pub(super) fn known(&self) -> Vec<Peer> {
        let addresses = self.hosts.iter().filter_map(|(_, address)| *address);
        addresses.map(|address| Peer { address, nics: self.nics.clone() }).collect()
    }

    /// Returns whether a host is not resolved.
    pub(super) fn has_unresolved(&self) -> bool {
        self.hosts.iter().any(|(_, address)| address.is_none())
    }

    /// Tries again on a thread of its own, until all hosts are resolved or the link is gone.
    pub(super) fn retry(mut self, updates: Sender<Vec<Peer>>) -> std::io::Result<()> {
        let resolve = move || {
            while self.has_unresolved() {
                std::thread::sleep(RETRY);
                if self.attempt(|_, _| {}) {
                    tracing::info!(link = %self.link, unresolved = ?self.unresolved.of(&self.link), "resolved hosts of an MX link");
                    if updates.send(self.known()).is_err() {
                        return;
                    }
                }
            }
        };
        std::thread::Builder::new().name("resolver".to_owned()).spawn(resolve).map(drop)
    }
}

fn name_of(peer: &UdpPeer) -> String {
    match peer {
        UdpPeer::Address(address) => address.to_string(),
        UdpPeer::Name { host, .. } => host.clone(),
    }
}

/// Resolves the address of a host, in the address family of `local`.
fn address_of(peer: &UdpPeer, local: SocketAddr) -> Result<SocketAddr, String> {
    match peer {
        UdpPeer::Address(address) => Ok(*address),
        UdpPeer::Name { host, port } => {
            let mut found = (host.as_str(), *port).to_socket_addrs().map_err(|error| error.to_string())?;
            let found = found.find(|address| address.is_ipv4() == local.is_ipv4());
            found.ok_or_else(|| format!("the host has no address that {local} can send to"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_resolve_are_known_while_others_do_not() {
        let name = |host: &str| UdpPeer::Name { host: host.to_owned(), port: 7 };
        let peers = [name("nosuch.invalid"), UdpPeer::Address("127.0.0.1:9".parse().unwrap()), name("127.0.0.2")];
        let local = "127.0.0.1:1".parse().unwrap();
        let unresolved = UnresolvedHosts::default();
        let mut hosts = PeerHosts::resolve("udp:a", &peers, local, std::iter::empty(), &unresolved);
        let known: Vec<_> = hosts.known().iter().map(|peer| peer.address.to_string()).collect();
        assert_eq!(known, ["127.0.0.1:9", "127.0.0.2:7"]);
        assert_eq!((unresolved.of("udp:a"), unresolved.of("udp:b")), (vec!["nosuch.invalid".to_owned()], vec![]));
        assert!(!hosts.attempt(|_, _| {}) && hosts.has_unresolved());
        // As after a change of the name server.
        hosts.hosts[0].0 = name("127.0.0.3");
        assert!(hosts.attempt(|_, _| {}) && !hosts.has_unresolved());
        assert_eq!(hosts.known()[0].address.to_string(), "127.0.0.3:7", "the order is that of the configuration");
        assert_eq!(unresolved.of("udp:a"), Vec::<String>::new());
    }
}
