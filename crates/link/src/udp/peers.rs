//! Which host answers to which address of frames, and who may say so.
//!
//! Hosts are configured; a datagram from anybody else is nobody's. The names of a host (its boards' addresses) are configured
//! with it, or it announces them: a broadcast frame from a configured host says that its source is reached there. A configured
//! name is never learned otherwise, and a frame in the name of one host from another one is forged.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use isthmus_layout::NicId;

use crate::frame::is_group;

/// Hosts of one link.
pub(super) const HOSTS_MAX: usize = 1024;

/// Names that one host can announce.
pub(super) const NAMES_MAX: u32 = 64;

/// A host that is reached by UDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where it receives, and what it sends from.
    pub address: SocketAddr,
    /// Its addresses in frames, as far as they are known beforehand. Others it announces.
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

/// The table.
#[derive(Debug, Default)]
pub(super) struct Peers {
    hosts: Vec<Host>,
    by_address: HashMap<SocketAddr, usize>,
    by_nic: HashMap<NicId, Name>,
}

/// Why a frame is dropped, or a name not learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// Its source is another host's, or nobody's.
    Forged,
    /// The host has announced too many names. The frame is good.
    TooManyNames,
}

impl Peers {
    /// Other peers from now on. Names that were announced by hosts which stay are kept.
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

    /// Where a frame for this address goes.
    pub(super) fn address_of(&self, nic: NicId) -> Option<SocketAddr> {
        self.by_nic.get(&nic).map(|name| self.hosts[name.host].address)
    }

    /// Where frames for everybody go.
    pub(super) fn addresses(&self) -> impl ExactSizeIterator<Item = SocketAddr> {
        self.hosts.iter().map(|host| host.address)
    }

    /// Which host this is.
    pub(super) fn host_at(&self, address: SocketAddr) -> Option<usize> {
        self.by_address.get(&plain(address)).copied()
    }

    /// Whether a frame from `source` may come from this host; and learns the name if the frame is for everybody.
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
            self.hosts[name.host].names_learned -= 1; // It has moved.
        }
        self.hosts[host].names_learned += 1;
        self.by_nic.insert(source, Name { host, is_configured: false });
        Ok(())
    }
}

/// The one form of an address: IPv4 as such, and no more of IPv6 than names a host.
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
