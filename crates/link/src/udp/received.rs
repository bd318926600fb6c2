//! Checks received messages: their sender, and whether they are frames for this host.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::UdpOptions;
use super::peers::{Doubt, Peers};
use crate::frame::{HEADER_BYTES, is_group, nic};
use crate::incoming::NAME_BYTES;
use crate::sys::{FAMILY_V4, FAMILY_V6};

/// The reason why a frame is dropped.
pub(super) enum Drop {
    Short,
    Ethertype,
    NotForUs,
    Forged,
    Name,
}

/// Checks that a frame from this host is for this link.
pub(super) fn check(frame: &[u8], options: &UdpOptions, peers: &mut Peers, host: usize) -> Result<(), Drop> {
    let (Some(destination), Some(source), Some(ethertype)) =
        (nic(frame, 0), nic(frame, 6), frame.get(12..HEADER_BYTES))
    else {
        return Err(Drop::Short);
    };
    if ethertype != options.ethertype.to_be_bytes() {
        return Err(Drop::Ethertype);
    }
    if destination != options.nic && !is_group(destination) {
        return Err(Drop::NotForUs);
    }
    if source == options.nic {
        // The board judges announcements: another host may have the same address, or this host may be among its own peers.
        return if is_group(destination) { Ok(()) } else { Err(Drop::Forged) };
    }
    peers.admit(host, source, destination).map_err(|doubt| match doubt {
        Doubt::Forged => Drop::Forged,
        Doubt::TooManyNames => Drop::Name,
    })
}

/// Returns the sender of a message.
pub(crate) fn sender(name: &[u8; NAME_BYTES]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes([name[2], name[3]]);
    let four = |at: usize| [name[at], name[at + 1], name[at + 2], name[at + 3]];
    match u16::from_ne_bytes([name[0], name[1]]) {
        FAMILY_V4 => Some(SocketAddr::from((Ipv4Addr::from(four(4)), port))),
        FAMILY_V6 => {
            let octets: [u8; 16] = name[8..24].try_into().ok()?;
            let scope = u32::from_ne_bytes(four(24));
            Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope)))
        }
        _ => None,
    }
}
