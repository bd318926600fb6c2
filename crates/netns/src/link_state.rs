//! When an interface can really send and receive.
//!
//! The kernel notes at once that a carrier came or went, but lets packets through, or stops them, when a work queue gets to
//! it: up to a second later. What is sent in between is dropped without a word. To ask for the state of the link settles it.
//! An IPv6 address can be bound at once, but what comes for it is dropped until another work queue has made its route.

use std::io;
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::netlink::{Attributes, Family, attributes};

const LINKSTATE_GET: u8 = 6; // ETHTOOL_MSG_LINKSTATE_GET
const HEADER: u16 = 1; // ETHTOOL_A_LINKSTATE_HEADER
const HEADER_NAME: u16 = 2; // ETHTOOL_A_HEADER_DEV_NAME
const LINK: u16 = 2; // ETHTOOL_A_LINKSTATE_LINK

/// News of IPv6 routes (RTMGRP_IPV6_ROUTE).
const ROUTES: u32 = 0x400;

/// The longest time that the kernel's own work may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// True if an interface of this thread's network namespace has a carrier; from now on the kernel acts on it.
pub(crate) fn sync_link_state(interface: &str) -> io::Result<bool> {
    let request = Attributes::default().nest(HEADER, Attributes::default().text(HEADER_NAME, interface));
    let answer = Family::open("ethtool")?.ask(LINKSTATE_GET, request)?;
    let link = attributes(&answer).find(|(kind, _)| *kind == LINK);
    let state = link.and_then(|(_, state)| state.first().copied());
    state
        .map(|state| state == 1)
        .ok_or_else(|| io::Error::other(format!("the kernel does not tell the state of {interface}")))
}

/// Waits until this thread's network namespace receives what comes for an address that it has.
pub(crate) fn wait_for_address(address: Ipv6Addr) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let netlink = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&netlink, &SocketAddrNetlink::new(0, ROUTES))?; // Before the first look, so that nothing happens in between.
    let end = Instant::now() + TIMEOUT;
    while !has_route(address)? {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("the kernel makes no route for {address}")));
        }
        let patience = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&netlink, PollFlags::IN)], Some(&patience)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        while recv(&netlink, &mut [0; 8192][..], RecvFlags::empty()).is_ok() {} // What it says, we look up.
    }
    Ok(())
}

/// True if there is a route to this very address, which is how the kernel knows it for its own.
fn has_route(address: Ipv6Addr) -> io::Result<bool> {
    let own = format!("{:032x} 80 ", u128::from(address)); // 0x80 bits of prefix.
    Ok(std::fs::read_to_string("/proc/thread-self/net/ipv6_route")?.lines().any(|line| line.starts_with(&own)))
}
