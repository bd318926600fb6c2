//! Datagrams of a socket without an address of its own: each reply leaves from the address at which the question arrived.

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsFd;

/// The place of one control message, aligned as `struct cmsghdr` is.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Where a datagram came from, and the address at which it arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) from: SocketAddr,
    at: Option<IpAddr>,
}

/// Requests the address at which each datagram of a socket arrives.
pub(super) fn request(fd: BorrowedFd<'_>, is_v6: bool) {
    let on: libc::c_int = 1;
    let set = |level, name| {
        // SAFETY: an open socket, and the value of an option with its size.
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const on).cast(), size_of_val(&on) as u32) }
    };
    set(libc::IPPROTO_IP, libc::IP_PKTINFO);
    if is_v6 {
        set(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO);
    }
}

/// Receives a datagram without waiting. Returns its length, as much as there is room for.
pub(super) fn receive(fd: impl AsFd, into: &mut [u8]) -> Result<(usize, Option<Arrival>), Errno> {
    let mut control = Control([0; 64]);
    // SAFETY: zeroes are valid for both.
    let (mut name, mut header): (libc::sockaddr_storage, libc::msghdr) = unsafe { std::mem::zeroed() };
    let mut vector = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = size_of_val(&name) as u32;
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of_val(&control);
    // SAFETY: an open socket; all pointers lead to memory of this function, or to `into`, with their sizes.
    let count = unsafe { libc::recvmsg(fd.as_fd().as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    if count < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    // SAFETY: the kernel has filled in the header and the control messages.
    let at = unsafe { arrived_at(&header) };
    Ok((count.cast_unsigned(), address(&name).map(|from| Arrival { from, at })))
}

/// # Safety
///
/// The kernel has filled in the header.
unsafe fn arrived_at(header: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: by the caller's promise.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !message.is_null() {
        // SAFETY: a message that the kernel has written, with data of the type that its kind says.
        unsafe {
            match ((*message).cmsg_level, (*message).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info = libc::CMSG_DATA(message).cast::<libc::in_pktinfo>().read_unaligned();
                    return Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(info.ipi_spec_dst.s_addr))));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info = libc::CMSG_DATA(message).cast::<libc::in6_pktinfo>().read_unaligned();
                    return Some(IpAddr::V6(Ipv6Addr::from(info.ipi6_addr.s6_addr)));
                }
                _ => message = libc::CMSG_NXTHDR(header, message),
            }
        }
    }
    None
}

/// Replies to a datagram. If this fails, the peer asks again.
pub(super) fn reply(fd: impl AsFd, bytes: &[u8], arrival: &Arrival) {
    let mut control = Control([0; 64]);
    // SAFETY: zeroes are valid.
    let (mut name, mut header): (libc::sockaddr_storage, libc::msghdr) = unsafe { std::mem::zeroed() };
    let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    header.msg_namelen = fill(&mut name, arrival.from);
    header.msg_name = (&raw mut name).cast();
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of_val(&control);
    // SAFETY: the control messages have room for either kind, and the sizes are those of the structures.
    unsafe {
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        header.msg_controllen = match arrival.at {
            Some(IpAddr::V4(at)) => {
                let mut info: libc::in_pktinfo = std::mem::zeroed();
                info.ipi_spec_dst.s_addr = u32::from(at).to_be();
                let len = size_of_val(&info) as u32;
                (*message).cmsg_level = libc::IPPROTO_IP;
                (*message).cmsg_type = libc::IP_PKTINFO;
                (*message).cmsg_len = libc::CMSG_LEN(len) as usize;
                libc::CMSG_DATA(message).cast::<libc::in_pktinfo>().write_unaligned(info);
                libc::CMSG_SPACE(len) as usize
            }
            Some(IpAddr::V6(at)) => {
                let mut info: libc::in6_pktinfo = std::mem::zeroed();
                info.ipi6_addr.s6_addr = at.octets();
                let len = size_of_val(&info) as u32;
                (*message).cmsg_level = libc::IPPROTO_IPV6;
                (*message).cmsg_type = libc::IPV6_PKTINFO;
                (*message).cmsg_len = libc::CMSG_LEN(len) as usize;
                libc::CMSG_DATA(message).cast::<libc::in6_pktinfo>().write_unaligned(info);
                libc::CMSG_SPACE(len) as usize
            }
            None => 0,
        };
        libc::sendmsg(fd.as_fd().as_raw_fd(), &raw const header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    }
}

/// The address in the kernel's form.
fn address(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which structure it is.
            let name = unsafe { (&raw const *name).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(name.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { (&raw const *name).cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            let port = u16::from_be(name.sin6_port);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, port, name.sin6_flowinfo, name.sin6_scope_id)))
        }
        _ => None,
    }
}

/// Stores an address in the kernel's form, and returns its length.
pub(super) fn fill(name: &mut libc::sockaddr_storage, address: SocketAddr) -> libc::socklen_t {
    // SAFETY: zeroes are valid, and the storage has room for either structure.
    unsafe {
        match address {
            SocketAddr::V4(address) => {
                let mut v4: libc::sockaddr_in = std::mem::zeroed();
                v4.sin_family = libc::AF_INET as libc::sa_family_t;
                v4.sin_port = address.port().to_be();
                v4.sin_addr.s_addr = u32::from(*address.ip()).to_be();
                (&raw mut *name).cast::<libc::sockaddr_in>().write(v4);
                size_of_val(&v4) as libc::socklen_t
            }
            SocketAddr::V6(address) => {
                let mut v6: libc::sockaddr_in6 = std::mem::zeroed();
                v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                v6.sin6_port = address.port().to_be();
                v6.sin6_flowinfo = address.flowinfo();
                v6.sin6_addr.s6_addr = address.ip().octets();
                v6.sin6_scope_id = address.scope_id();
                (&raw mut *name).cast::<libc::sockaddr_in6>().write(v6);
                size_of_val(&v6) as libc::socklen_t
            }
        }
    }
}
