//! Sockets of UDP, paths to hosts, and what the kernel's refusals say of either.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, connect_unspec, socket_with, sockopt};

use crate::OpenError;
use crate::sys;

/// A socket at this address that never fragments.
pub(super) fn open_socket(address: SocketAddr) -> Result<OwnedFd, OpenError> {
    let operation = "opening a UDP socket";
    let refused = |source| OpenError::Refused { operation, source };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, flags, None).map_err(|source| match source {
        Errno::AFNOSUPPORT => OpenError::NotSupported { operation, what: "IPv6 is off; bind to an IPv4 address" },
        source => refused(source),
    })?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, !address.ip().is_unspecified()).map_err(refused)?;
        sys::set_option(&socket, sys::DISCOVER_V6, sys::DISCOVER_DO).map_err(refused)?;
    }
    // On a socket of IPv6 it is about the IPv4 that goes by it, if any does.
    let v4 = sys::set_option(&socket, sys::DISCOVER_V4, sys::DISCOVER_DO);
    if address.is_ipv4() {
        v4.map_err(refused)?;
    }
    bind(&socket, &address).map_err(|source| match source {
        Errno::ADDRINUSE => OpenError::AddressInUse { address },
        Errno::ADDRNOTAVAIL => OpenError::AddressNotLocal { address },
        source => OpenError::from_errno("binding a UDP socket", "CAP_NET_BIND_SERVICE", source),
    })?;
    Ok(socket)
}

/// Bytes of a datagram's headers.
pub(super) fn overhead(to: IpAddr) -> u32 {
    8 + if to.is_ipv4() { 20 } else { 40 }
}

/// Sockets that ask for routes, IPv4 and IPv6: in the network namespace where they were opened, whoever calls.
#[derive(Debug)]
pub(super) struct Routes([Option<OwnedFd>; 2]);

impl Routes {
    pub(super) fn open() -> Self {
        let open = |family| socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok();
        Self([AddressFamily::INET, AddressFamily::INET6].map(open))
    }

    /// The longest frame on the path to a host, as the kernel knows it now.
    pub(super) fn frame_bytes_to(&self, to: SocketAddr) -> Result<u32, Errno> {
        let (socket, opt) = match to {
            SocketAddr::V4(_) => (&self.0[0], sys::PATH_MTU_V4),
            SocketAddr::V6(_) => (&self.0[1], sys::PATH_MTU_V6),
        };
        let socket = socket.as_ref().ok_or(Errno::AFNOSUPPORT)?;
        connect_unspec(socket)?; // Forgets the last route, and the source address that it had.
        connect(socket, &to)?; // Finds the route, sends nothing.
        let mtu: i32 = sys::option(socket, opt)?;
        let mtu = u32::try_from(mtu).map_err(|_| Errno::NETUNREACH)?;
        Ok(mtu.saturating_sub(overhead(to.ip())))
    }
}

/// Errors by which kernels refuse to cut a message; the frames of it may be good one by one.
pub(super) fn is_about_cutting(errno: Errno) -> bool {
    [Errno::MSGSIZE, Errno::INVAL, Errno::IO, Errno::OPNOTSUPP, Errno::NOPROTOOPT].contains(&errno)
}

/// Errors that are about one host, or will pass: routes, rules, neighbours.
pub(super) fn is_about_the_path(errno: Errno) -> bool {
    [
        Errno::NETUNREACH,
        Errno::HOSTUNREACH,
        Errno::NETDOWN,
        Errno::HOSTDOWN,
        Errno::ADDRNOTAVAIL,
        Errno::PERM,
        Errno::ACCESS,
        Errno::INVAL,
        Errno::NODEV,
        Errno::NXIO,
        Errno::CONNREFUSED,
    ]
    .contains(&errno)
}
