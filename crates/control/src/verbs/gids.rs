//! The identities of the virtual RDMA device: its node GUID and GIDs on the host, and in each guest.
//!
//! ```text
//!   index 0    fe80::/64 and the node GUID          without any interface, too
//!   index 1…   the addresses of the interfaces      IPv4 first, as ::ffff:a.b.c.d
//! ```
//!
//! The host's interfaces are those of the daemon's network namespace. They change while the daemon runs, so the table is read again when it
//! is older than a second or lacks a GID. A guest's daemon states the addresses of the guest, and again after they have changed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use isthmus_layout::control::Name;
use isthmus_layout::proxy::addresses::InterfaceAddress;
use isthmus_layout::verbs::GIDS_MAX;
use isthmus_window::GuestId;

use crate::host::HostIdentity;
use crate::interfaces;

/// The time in nanoseconds after which the table is read again.
const FRESH_NS: u64 = 1_000_000_000;

/// A GID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GidEntry {
    pub(super) gid: Ipv6Addr,
    /// The interface that has the address; none for the GID that is made of the node GUID.
    pub(super) interface: Option<String>,
}

/// The device as programs of one place see it.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) guid: u64,
    pub(super) gids: Vec<GidEntry>,
}

/// The GIDs of this host and its guests.
#[derive(Debug, Default)]
pub(super) struct GidTable {
    host: HostIdentity,
    own: Node,
    read_at: Option<u64>,
    /// True if the interfaces could not be read the last time.
    has_failed: bool,
    /// The guests that have stated their addresses. Several may have the same ones, behind translation.
    guests: BTreeMap<GuestId, Node>,
}

impl GidTable {
    pub(super) fn new(host: HostIdentity) -> Self {
        Self { own: Node::new(node_guid(&host, None), Vec::new()), host, ..Self::default() }
    }

    /// Replaces the addresses of a guest. One without addresses is forgotten, because the rest of its device follows from its name.
    pub(super) fn set_guest(&mut self, id: GuestId, name: &Name, addresses: &[InterfaceAddress]) {
        if addresses.is_empty() {
            self.guests.remove(&id);
            return;
        }
        let interface =
            |of: &InterfaceAddress| GidEntry { gid: of.address(), interface: Some(of.interface.to_string()) };
        let guid = node_guid(&self.host, Some(name));
        self.guests.insert(id, Node::new(guid, addresses.iter().map(interface).collect()));
    }

    /// Returns whether the host, or a guest, has a GID now.
    pub(super) fn contains(&mut self, guest: Option<(GuestId, &Name)>, gid: Ipv6Addr, now: u64) -> bool {
        match guest {
            Some((id, name)) => self.node_of_guest(Some(id), name).has(gid),
            None => self.is_of_host(gid, now),
        }
    }

    fn is_of_host(&mut self, gid: Ipv6Addr, now: u64) -> bool {
        let is_fresh = self.read_at.is_some_and(|read_at| now.saturating_sub(read_at) < FRESH_NS);
        if is_fresh && self.own.has(gid) {
            return true;
        }
        let (guid, read) = (self.own.guid, interfaces::addresses());
        match &read {
            Ok(_) => self.has_failed = false,
            Err(error) if !std::mem::replace(&mut self.has_failed, true) => {
                tracing::warn!(%error, "cannot read the addresses of interfaces: queue pairs with their GIDs are refused");
            }
            Err(_) => {}
        }
        self.own = Node::of_host(guid, read.unwrap_or_default());
        self.read_at = Some(now);
        self.own.has(gid)
    }

    /// Returns the device of the host, from its interfaces now.
    pub(super) fn node_of_host(&self) -> Node {
        Node::of_host(self.own.guid, interfaces::addresses().unwrap_or_default())
    }

    /// Returns the device of a guest. One that has no window now has stated no addresses.
    pub(super) fn node_of_guest(&self, id: Option<GuestId>, name: &Name) -> Cow<'_, Node> {
        let without = || Cow::Owned(Node::new(node_guid(&self.host, Some(name)), Vec::new()));
        id.and_then(|id| self.guests.get(&id)).map_or_else(without, Cow::Borrowed)
    }
}

impl Node {
    fn of_host(guid: u64, addresses: Vec<(Ipv6Addr, String)>) -> Self {
        let entry = |(gid, interface)| GidEntry { gid, interface: Some(interface) };
        Self::new(guid, addresses.into_iter().map(entry).collect())
    }

    fn has(&self, gid: Ipv6Addr) -> bool {
        self.gids.iter().any(|entry| entry.gid == gid)
    }

    fn new(guid: u64, interfaces: Vec<GidEntry>) -> Self {
        let link_local = 0xFE80_u128 << 112 | u128::from(guid);
        let mut gids = vec![GidEntry { gid: Ipv6Addr::from_bits(link_local), interface: None }];
        let (ipv4, ipv6): (Vec<_>, Vec<_>) =
            interfaces.into_iter().partition(|entry| entry.gid.to_ipv4_mapped().is_some());
        for entry in ipv4.into_iter().chain(ipv6) {
            if gids.len() < GIDS_MAX && gids.iter().all(|other| other.gid != entry.gid) {
                gids.push(entry);
            }
        }
        Self { guid, gids }
    }
}

/// Derives the node GUID of the host or of a guest. Another name or another machine gives another one.
fn node_guid(host: &HostIdentity, guest: Option<&Name>) -> u64 {
    let mut hasher = blake3::Hasher::new_keyed(&host.id);
    hasher.update(b"isthmus verbs node 1");
    hasher.update(host.name.as_bytes());
    if let Some(guest) = guest {
        hasher.update(b"\0"); // No name of a host has one.
        hasher.update(guest.as_str().as_bytes());
    }
    let [mut first, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
    first = first & !1 | 2; // An EUI-64 that is assigned locally, of one device.
    u64::from_be_bytes([first, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, id: u8) -> HostIdentity {
        HostIdentity { name: name.to_owned(), id: [id; 32] }
    }

    fn name(of: &str) -> Name {
        Name::new(of).unwrap()
    }

    fn of(interface: &str, gid: &str) -> GidEntry {
        GidEntry { gid: gid.parse().unwrap(), interface: Some(interface.to_owned()) }
    }

    fn stated(address: &str) -> InterfaceAddress {
        InterfaceAddress::new(address.parse().unwrap(), name("eth0"))
    }

    #[test]
    fn node_guid_depends_on_the_machine_and_the_guest_alone() {
        let guid = |host_name, id, guest: Option<&str>| node_guid(&host(host_name, id), guest.map(name).as_ref());
        assert_eq!(guid("a", 1, None), guid("a", 1, None));
        let others = [guid("b", 1, None), guid("a", 2, None), guid("a", 1, Some("x")), guid("a", 1, Some("y"))];
        assert!(!others.contains(&guid("a", 1, None)));
        assert_ne!(others[2], others[3]);
        assert_eq!(guid("a", 1, Some("x")).to_be_bytes()[0] & 3, 2);
    }

    #[test]
    fn table_begins_with_the_node_and_lists_each_address_once() {
        let found = vec![of("eth0", "fd00::1"), of("eth0", "::ffff:10.0.0.1"), of("eth1", "fd00::1")];
        let listed = Node::new(0x0211_2233_4455_6677, found).gids;
        assert_eq!(listed[0].gid.to_string(), "fe80::211:2233:4455:6677");
        assert_eq!(listed[1..], [of("eth0", "::ffff:10.0.0.1"), of("eth0", "fd00::1")]);
        let many = (0..1000_u128).map(|at| GidEntry { gid: Ipv6Addr::from_bits(at << 64), interface: None }).collect();
        assert_eq!(Node::new(2, many).gids.len(), GIDS_MAX);
    }

    #[test]
    fn the_node_is_found_and_the_loopback_address_is_not() {
        let mut table = GidTable::new(host("a", 1));
        let own = table.node_of_host().gids[0].gid;
        assert!(table.contains(None, own, 5));
        assert!(!table.contains(None, Ipv6Addr::LOCALHOST, 5));
        assert!(!table.contains(None, "::ffff:127.0.0.1".parse().unwrap(), 5));
        for entry in table.node_of_host().gids {
            assert!(table.contains(None, entry.gid, 6), "{entry:?}");
        }
    }

    #[test]
    fn each_guest_has_the_gids_that_it_has_stated_last() {
        let mut table = GidTable::new(host("a", 1));
        let names = [name("one"), name("two")];
        let [one, two] = [(GuestId(1), &names[0]), (GuestId(2), &names[1])];
        let [shared, old, new] = ["::ffff:192.0.2.15", "2001:db8::1", "2001:db8::2"];
        table.set_guest(one.0, one.1, &[shared, old].map(stated));
        table.set_guest(two.0, two.1, &[shared].map(stated));
        let found = |table: &mut GidTable, text: &str| {
            [Some(one), Some(two), None].map(|place| table.contains(place, text.parse().unwrap(), 5))
        };
        assert_eq!(found(&mut table, shared), [true, true, false]);
        assert_eq!(found(&mut table, old), [true, false, false]);
        table.set_guest(one.0, one.1, &[new].map(stated));
        assert_eq!(
            [shared, old, new].map(|gid| found(&mut table, gid)),
            [[false, true, false], [false; 3], [true, false, false]]
        );
        let own = table.node_of_guest(Some(one.0), one.1).gids.clone();
        assert_eq!(own[1..], [of("eth0", new)]);
        table.set_guest(one.0, one.1, &[]);
        // The first GID is the guest's with and without a statement.
        assert_eq!(found(&mut table, &own[0].gid.to_string()), [true, false, false]);
        assert_eq!(found(&mut table, new), [false; 3]);
        for id in [Some(one.0), None] {
            assert_eq!(table.node_of_guest(id, one.1).gids, own[..1]);
        }
    }
}
