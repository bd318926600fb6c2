//! Offloads of an interface: what lets frames longer than its MTU cross a veth pair in one piece.
//!
//! With segmentation offloads on, TCP and UDP hand over "frames" of up to 64 KB, and veth passes them on whole, which no wire
//! between two hosts does. An interface that cuts has none of these, so that each frame fits the MTU, as behind a plain NIC.

use std::collections::BTreeSet;
use std::io;

use crate::netlink::{Attributes, Family, attributes};

const FEATURES_GET: u8 = 11; // ETHTOOL_MSG_FEATURES_GET
const FEATURES_SET: u8 = 12; // ETHTOOL_MSG_FEATURES_SET
const HEADER: u16 = 1; // ETHTOOL_A_FEATURES_HEADER
const HEADER_NAME: u16 = 2; // ETHTOOL_A_HEADER_DEV_NAME
const WANTED: u16 = 3; // ETHTOOL_A_FEATURES_WANTED
const ACTIVE: u16 = 4; // ETHTOOL_A_FEATURES_ACTIVE
const BITS: u16 = 3; // ETHTOOL_A_BITSET_BITS
const BIT: u16 = 1; // ETHTOOL_A_BITSET_BITS_BIT
const BIT_NAME: u16 = 2; // ETHTOOL_A_BITSET_BIT_NAME

/// True for what merges or splits segments, under the kernel's names: TSO, GSO and USO on the way out, of all protocols and
/// tunnels, GRO and LRO on the way in.
pub(crate) fn is_segmentation(name: &str) -> bool {
    name.contains("segmentation")
        || ["rx-gro", "rx-lro", "tx-gso-list", "rx-udp-gro"].iter().any(|start| name.starts_with(start))
}

/// True for what leaves checksums to the other end: fatal where a packet socket stands between both.
pub(crate) fn is_checksum(name: &str) -> bool {
    name.starts_with("tx-checksum-")
}

/// The names of what is switched on at an interface of this thread's network namespace.
pub fn active_offloads(interface: &str) -> io::Result<BTreeSet<String>> {
    let answer = Family::open("ethtool")?.ask(FEATURES_GET, of(interface))?;
    let active = attributes(&answer).find(|(kind, _)| *kind == ACTIVE);
    let bits = active.and_then(|(_, set)| attributes(set).find(|(kind, _)| *kind == BITS));
    let (_, bits) = bits.ok_or_else(|| io::Error::other("the kernel does not tell the offloads"))?;
    let name = |bit: &[u8]| {
        let (_, name) = attributes(bit).find(|(kind, _)| *kind == BIT_NAME)?;
        Some(String::from_utf8_lossy(name.strip_suffix(&[0]).unwrap_or(name)).into_owned())
    };
    Ok(attributes(bits).filter(|(kind, _)| *kind == BIT).filter_map(|(_, bit)| name(bit)).collect())
}

/// Switches those off that are `unwanted`, and makes sure that they are.
pub(crate) fn switch_off(interface: &str, unwanted: impl Fn(&str) -> bool) -> io::Result<()> {
    let on = active_offloads(interface)?;
    let ours = on.iter().filter(|name| unwanted(name));
    let bits = ours.fold(Attributes::default(), |bits, name| {
        bits.nest(BIT, Attributes::default().text(BIT_NAME, name)) // Without a value: off.
    });
    let request = of(interface).nest(WANTED, Attributes::default().nest(BITS, bits));
    Family::open("ethtool")?.ask(FEATURES_SET, request)?;
    match active_offloads(interface)?.iter().find(|name| unwanted(name)) {
        None => Ok(()),
        Some(name) => Err(io::Error::other(format!("{name} of {interface} cannot be switched off"))),
    }
}

fn of(interface: &str) -> Attributes {
    Attributes::default().nest(HEADER, Attributes::default().text(HEADER_NAME, interface))
}
