//! The table of hosts and of their addresses in frames.
//!
//! Hosts are configured; datagrams from other hosts are dropped. The NIC addresses of a host (those of its boards) are configured with it,
//! or the host announces them: a broadcast frame from a configured host announces its source address. A configured address is never learned
//! from another host. A frame with a source address that belongs to another host counts as forged.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use isthmus_layout::NicId;

use crate::frame::is_group;

/// The maximum number of hosts of one link.
pub(super) const HOSTS_MAX: usize = 1024;

/// The maximum number of NIC addresses that one host can announce.
pub(super) const NAMES_MAX: u32 = 64;

/// A host that is reached by UDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address at which the host receives and from which it sends.
    pub address: SocketAddr,
    /// The NIC addresses that are known beforehand. The host announces any others.
    pub nics: Vec<NicId>,
}

#[derive(Debug)]
struct Host {
    address: SocketAddr,
    names_learned: u32,
}

#[derive(Clone, Copy, Debug)]
struct Name {
    host: usize,
    is_configured: bool,
}

/// The table of hosts and addresses.
#[derive(Debug, Default)]
pub(super) struct Peers {
    hosts: Vec<Host>,
    by_address: HashMap<SocketAddr, usize>,
    by_nic: HashMap<NicId, Name>,
}

/// The reason why a frame is dropped, or an address not learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// The source address belongs to another host, or to none.
    Forged,
    /// The host has announced too many addresses. The frame is valid.
    TooManyNames,
}

impl Peers {
    /// Replaces the peers. Addresses announced by hosts that stay are kept.
    pub(super) fn set(&mut self, peers: &[Peer]) {
        let before = std::mem::take(self);
        for peer in peers {
            let address = plain(peer.address);
            let next = self.hosts.len();
            let host = *self.by_address.entry(address).or_insert(next);
            if host == next {
                self.hosts.push(Host { address, names_learned: 0 });
            }
            for &nic in &peer.nics {
                self.by_nic.insert(nic, Name { host, is_configured: true });
            }
        }
        for (nic, name) in before.by_nic.into_iter().filter(|(_, name)| !name.is_configured) {
            if let Some(&host) = self.by_address.get(&before.hosts[name.host].address)
                && !self.by_nic.contains_key(&nic)
            {
                self.by_nic.insert(nic, Name { host, is_configured: false });
                self.hosts[host].names_learned += 1;
            }
        }
    }

    /// Returns the host to which frames for this address go.
    pub(super) fn address_of(&self, nic: NicId) -> Option<SocketAddr> {
        self.by_nic.get(&nic).map(|name| self.hosts[name.host].address)
    }

    /// Returns the hosts to which broadcast frames go.
    pub(super) fn addresses(&self) -> impl ExactSizeIterator<Item = SocketAddr> {
        self.hosts.iter().map(|host| host.address)
    }

    /// Returns the index of the host with this address.
    pub(super) fn host_at(&self, address: SocketAddr) -> Option<usize> {
        self.by_address.get(&plain(address)).copied()
    }

    /// Checks that a frame from `source` may come from this host. Learns the address if the frame is a broadcast.
    pub(super) fn admit(&mut self, host: usize, source: NicId, destination: NicId) -> Result<(), Doubt> {
        if is_group(source) {
            return Err(Doubt::Forged);
        }
        let before = self.by_nic.get(&source).copied();
        match before {
            Some(name) if name.host == host => return Ok(()),
            Some(name) if name.is_configured || !is_group(destination) => return Err(Doubt::Forged),
            None if !is_group(destination) => return Ok(()),
            _ => {}
        }
        if self.hosts[host].names_learned >= NAMES_MAX {
            return Err(Doubt::TooManyNames);
        }
        if let Some(name) = before {
            self.hosts[name.host].names_learned -= 1; // The address has moved to another host.
        }
        self.hosts[host].names_learned += 1;
        self.by_nic.insert(source, Name { host, is_configured: false });
        Ok(())
    }
}

/// Returns the canonical form of an address: IPv4-mapped addresses as IPv4, and only those parts of IPv6 that identify a host.
fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::from((ip, address.port())),
        IpAddr::V6(ip) => {
            let scope = match address {
                SocketAddr::V6(v6) if ip.is_unicast_link_local() => v6.scope_id(),
                _ => 0,
            };
            SocketAddr::V6(SocketAddrV6::new(ip, address.port(), 0, scope))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: NicId = NicId::from_octets([0xFF; 6]);

    fn nic(last: u8) -> NicId {
        NicId::from_octets([2, 0, 0, 0, 0, last])
    }

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 34527))
    }

    fn peers(list: &[(u8, &[u8])]) -> Peers {
        let mut peers = Peers::default();
        let list: Vec<Peer> = list.iter().map(|&(host, names)| peer(host, names)).collect();
        peers.set(&list);
        peers
    }

    fn peer(host: u8, names: &[u8]) -> Peer {
        Peer { address: address(host), nics: names.iter().copied().map(nic).collect() }
    }

    #[test]
    fn a_configured_name_is_never_learned_from_another_host() {
        let mut peers = peers(&[(1, &[11]), (2, &[])]);
        assert_eq!(peers.admit(1, nic(11), ALL), Err(Doubt::Forged));
        assert_eq!(peers.admit(1, nic(11), nic(9)), Err(Doubt::Forged));
        assert_eq!(peers.admit(0, nic(11), nic(9)), Ok(()));
        assert_eq!(peers.address_of(nic(11)), Some(address(1)));
    }

    #[test]
    fn a_name_is_learned_from_a_broadcast_and_moves_with_it() {
        let mut peers = peers(&[(1, &[]), (2, &[])]);
        assert_eq!(peers.admit(0, nic(11), nic(9)), Ok(()));
        assert_eq!(peers.address_of(nic(11)), None);
        assert_eq!(peers.admit(0, nic(11), ALL), Ok(()));
        assert_eq!(peers.address_of(nic(11)), Some(address(1)));
        assert_eq!(peers.admit(1, nic(11), nic(9)), Err(Doubt::Forged));
        assert_eq!(peers.admit(1, nic(11), ALL), Ok(()));
        assert_eq!(peers.address_of(nic(11)), Some(address(2)));
        assert_eq!(peers.hosts.iter().map(|host| host.names_learned).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn one_host_cannot_fill_the_table() {
        let mut peers = peers(&[(1, &[])]);
        for name in 0..1000_u64 {
            let name = NicId::new(0x0200_0000_0000 + name).unwrap();
            let learned = peers.admit(0, name, ALL);
            assert_eq!(learned.is_ok(), name.number() - 0x0200_0000_0000 < u64::from(NAMES_MAX));
        }
        assert_eq!(peers.by_nic.len(), NAMES_MAX as usize);
    }

    #[test]
    fn multicast_addresses_are_never_learned() {
        let mut peers = peers(&[(1, &[])]);
        assert_eq!(peers.admit(0, ALL, nic(9)), Err(Doubt::Forged));
    }

    #[test]
    fn learned_names_survive_reconfiguration() {
        let mut peers = peers(&[(1, &[11]), (2, &[])]);
        peers.admit(1, nic(22), ALL).unwrap();
        peers.set(&[peer(3, &[]), peer(2, &[])]);
        assert_eq!((peers.address_of(nic(22)), peers.address_of(nic(11))), (Some(address(2)), None));
        peers.set(&[peer(3, &[22])]);
        assert_eq!(peers.address_of(nic(22)), Some(address(3)));
        assert_eq!(peers.addresses().collect::<Vec<_>>(), [address(3)]);
    }

    #[test]
    fn ipv4_is_the_same_however_it_is_written() {
        let peers = peers(&[(1, &[])]);
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:34527".parse().unwrap();
        assert_eq!(peers.host_at(mapped), Some(0));
        assert_eq!(peers.host_at(SocketAddr::from(([192, 0, 2, 1], 1))), None);
    }
}
