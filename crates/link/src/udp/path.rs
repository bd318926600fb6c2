//! UDP sockets, paths to hosts, and the meaning of the kernel's errors for both.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, connect_unspec, socket_with, sockopt};

use crate::OpenError;
use crate::sys;

/// Whether IP may fragment the datagrams of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fragments {
    /// Datagrams that are too long are fragmented.
    Allowed,
    /// Datagrams that are too long are refused.
    Refused,
}

/// Opens a socket at this address.
pub(crate) fn open_socket(address: SocketAddr, fragments: Fragments) -> Result<OwnedFd, OpenError> {
    let discover = if fragments == Fragments::Allowed { sys::DISCOVER_DONT } else { sys::DISCOVER_DO };
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
        sys::set_option(&socket, sys::DISCOVER_V6, discover).map_err(refused)?;
    }
    // On an IPv6 socket the option applies to the IPv4 traffic, if there is any.
    let v4 = sys::set_option(&socket, sys::DISCOVER_V4, discover);
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

/// Returns the number of bytes of a datagram's headers.
pub(crate) fn overhead(to: IpAddr) -> u32 {
    8 + if to.is_ipv4() { 20 } else { 40 }
}

/// Sockets that query routes, IPv4 and IPv6. They query the network namespace in which they were opened, independent of the caller's.
#[derive(Debug)]
pub(crate) struct Routes([Option<OwnedFd>; 2]);

impl Routes {
    pub(crate) fn open() -> Self {
        let open = |family| socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok();
        Self([AddressFamily::INET, AddressFamily::INET6].map(open))
    }

    /// Returns the length of the longest frame on the path to a host, as the kernel knows it now.
    pub(crate) fn frame_bytes_to(&self, to: SocketAddr) -> Result<u32, Errno> {
        let (socket, opt) = match to {
            SocketAddr::V4(_) => (&self.0[0], sys::PATH_MTU_V4),
            SocketAddr::V6(_) => (&self.0[1], sys::PATH_MTU_V6),
        };
        let socket = socket.as_ref().ok_or(Errno::AFNOSUPPORT)?;
        connect_unspec(socket)?; // Forgets the last route and its source address.
        connect(socket, &to)?; // Finds the route, sends nothing.
        let mtu: i32 = sys::option(socket, opt)?;
        let mtu = u32::try_from(mtu).map_err(|_| Errno::NETUNREACH)?;
        Ok(mtu.saturating_sub(overhead(to.ip())))
    }
}

/// Returns true for errors by which kernels refuse to split a message. Its frames may be valid individually.
pub(crate) fn is_about_cutting(errno: Errno) -> bool {
    [Errno::MSGSIZE, Errno::INVAL, Errno::IO, Errno::OPNOTSUPP, Errno::NOPROTOOPT].contains(&errno)
}

/// Returns true for errors that concern one host or are temporary: routes, rules, neighbours.
pub(crate) fn is_about_the_path(errno: Errno) -> bool {
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
