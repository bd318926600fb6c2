//! The identity of the virtual RDMA device: its node GUID, and the GIDs of the host.
//!
//! ```text
//!   index 0    fe80::/64 and the node GUID          without any interface, too
//!   index 1…   the addresses of the interfaces      IPv4 first, as ::ffff:a.b.c.d
//! ```
//!
//! The interfaces are those of the daemon's network namespace. They change while the daemon runs, so the table is read again when it is
//! older than a second or lacks a GID.

use std::net::{Ipv6Addr, SocketAddrV4, SocketAddrV6};

use isthmus_layout::verbs::GIDS_MAX;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;

use crate::host::HostIdentity;

/// The time in nanoseconds after which the table is read again.
const FRESH_NS: u64 = 1_000_000_000;

/// A GID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GidEntry {
    pub(super) gid: Ipv6Addr,
    /// The interface that has the address; none for the GID that is made of the node GUID.
    pub(super) interface: Option<String>,
}

/// The GIDs of this host.
#[derive(Debug, Default)]
pub(super) struct GidTable {
    node_guid: u64,
    entries: Vec<GidEntry>,
    read_at: Option<u64>,
    /// True if the interfaces could not be read the last time.
    has_failed: bool,
}

impl GidTable {
    pub(super) fn new(host: &HostIdentity) -> Self {
        Self { node_guid: node_guid(host), ..Self::default() }
    }

    pub(super) fn node_guid(&self) -> u64 {
        self.node_guid
    }

    /// Returns whether the host has a GID now.
    pub(super) fn contains(&mut self, gid: Ipv6Addr, now: u64) -> bool {
        let is_listed = |table: &Self| table.entries.iter().any(|entry| entry.gid == gid);
        let is_fresh = self.read_at.is_some_and(|read_at| now.saturating_sub(read_at) < FRESH_NS);
        if is_fresh && is_listed(self) {
            return true;
        }
        match read_interfaces() {
            Ok(interfaces) => (self.entries, self.has_failed) = (entries(self.node_guid, interfaces), false),
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    tracing::warn!(%error, "cannot read the addresses of interfaces: queue pairs with their GIDs are refused");
                }
                self.entries = entries(self.node_guid, Vec::new());
            }
        }
        self.read_at = Some(now);
        is_listed(self)
    }

    /// Reads the table again.
    pub(super) fn read(&self) -> Vec<GidEntry> {
        entries(self.node_guid, read_interfaces().unwrap_or_default())
    }
}

/// Derives the node GUID. Another name or another machine gives another one.
fn node_guid(host: &HostIdentity) -> u64 {
    let mut hasher = blake3::Hasher::new_keyed(&host.id);
    hasher.update(b"isthmus verbs node 1");
    hasher.update(host.name.as_bytes());
    let [mut first, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
    first = first & !1 | 2; // An EUI-64 that is assigned locally, of one device.
    u64::from_be_bytes([first, b, c, d, e, f, g, h])
}

fn entries(node_guid: u64, interfaces: Vec<GidEntry>) -> Vec<GidEntry> {
    let link_local = 0xFE80_u128 << 112 | u128::from(node_guid);
    let mut entries = vec![GidEntry { gid: Ipv6Addr::from_bits(link_local), interface: None }];
    let (ipv4, ipv6): (Vec<_>, Vec<_>) = interfaces.into_iter().partition(|entry| entry.gid.to_ipv4_mapped().is_some());
    for entry in ipv4.into_iter().chain(ipv6) {
        if entries.len() < GIDS_MAX && entries.iter().all(|other| other.gid != entry.gid) {
            entries.push(entry);
        }
    }
    entries
}

/// Returns the addresses of all interfaces that are up, except loopback.
fn read_interfaces() -> std::io::Result<Vec<GidEntry>> {
    Ok(getifaddrs()?.filter_map(entry).collect())
}

fn entry(of: InterfaceAddress) -> Option<GidEntry> {
    if !of.flags.contains(InterfaceFlags::IFF_UP) || of.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
        return None;
    }
    let address = of.address?;
    let ipv4 = address.as_sockaddr_in().map(|ipv4| SocketAddrV4::from(*ipv4).ip().to_ipv6_mapped());
    let ipv6 = || address.as_sockaddr_in6().map(|ipv6| *SocketAddrV6::from(*ipv6).ip());
    Some(GidEntry { gid: ipv4.or_else(ipv6)?, interface: Some(of.interface_name) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, id: u8) -> HostIdentity {
        HostIdentity { name: name.to_owned(), id: [id; 32] }
    }

    fn of(interface: &str, gid: &str) -> GidEntry {
        GidEntry { gid: gid.parse().unwrap(), interface: Some(interface.to_owned()) }
    }

    #[test]
    fn node_guid_depends_on_the_host_alone() {
        assert_eq!(node_guid(&host("a", 1)), node_guid(&host("a", 1)));
        assert_ne!(node_guid(&host("a", 1)), node_guid(&host("b", 1)));
        assert_ne!(node_guid(&host("a", 1)), node_guid(&host("a", 2)));
        assert_eq!(node_guid(&host("a", 1)).to_be_bytes()[0] & 3, 2);
    }

    #[test]
    fn table_begins_with_the_node_and_lists_each_address_once() {
        let found = vec![of("eth0", "fd00::1"), of("eth0", "::ffff:10.0.0.1"), of("eth1", "fd00::1")];
        let listed = entries(0x0211_2233_4455_6677, found);
        assert_eq!(listed[0].gid.to_string(), "fe80::211:2233:4455:6677");
        assert_eq!(listed[1..], [of("eth0", "::ffff:10.0.0.1"), of("eth0", "fd00::1")]);
        let many = (0..1000_u128).map(|at| GidEntry { gid: Ipv6Addr::from_bits(at << 64), interface: None }).collect();
        assert_eq!(entries(2, many).len(), GIDS_MAX);
    }

    #[test]
    fn the_node_is_found_and_the_loopback_address_is_not() {
        let mut table = GidTable::new(&host("a", 1));
        let own = Ipv6Addr::from_bits(0xFE80_u128 << 112 | u128::from(table.node_guid()));
        assert!(table.contains(own, 5));
        assert!(!table.contains(Ipv6Addr::LOCALHOST, 5));
        assert!(!table.contains("::ffff:127.0.0.1".parse().unwrap(), 5));
        for entry in table.read() {
            assert!(table.contains(entry.gid, 6), "{entry:?}");
        }
    }
}
