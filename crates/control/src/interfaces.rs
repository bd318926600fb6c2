//! The addresses of network interfaces, in the network namespace of this process.

use std::io;
use std::net::{Ipv6Addr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

/// The groups of messages about interfaces and their addresses: `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV6_IFADDR`.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// Returns the addresses of all interfaces that are up, except loopback, with the name of the interface. IPv4 addresses are mapped into IPv6.
pub fn addresses() -> io::Result<Vec<(Ipv6Addr, String)>> {
    Ok(getifaddrs()?.filter_map(address).collect())
}

fn address(of: InterfaceAddress) -> Option<(Ipv6Addr, String)> {
    if !of.flags.contains(InterfaceFlags::IFF_UP) || of.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
        return None;
    }
    let address = of.address?;
    let ipv4 = address.as_sockaddr_in().map(|ipv4| SocketAddrV4::from(*ipv4).ip().to_ipv6_mapped());
    let ipv6 = || address.as_sockaddr_in6().map(|ipv6| *SocketAddrV6::from(*ipv6).ip());
    Some((ipv4.or_else(ipv6)?, of.interface_name))
}

/// The kernel's messages about changes of interfaces and their addresses.
#[derive(Debug)]
pub struct AddressChanges(OwnedFd);

impl AsFd for AddressChanges {
    /// The descriptor is readable when anything may have changed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AddressChanges {
    /// Listens from now on.
    pub fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Without a protocol it is NETLINK_ROUTE.
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self(socket))
    }

    /// Returns whether anything may have changed since the last call.
    pub fn any(&self) -> bool {
        let mut changed = false;
        loop {
            match rustix::net::recv(&self.0, &mut [0; 4096][..], RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => return changed,
                Err(Errno::INTR) => {}
                Ok(_) | Err(Errno::NOBUFS) => changed = true, // NOBUFS: messages were lost.
                Err(_) => return true,
            }
        }
    }
}
