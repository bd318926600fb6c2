//! System calls that rustix lacks: many messages at once, addresses of packet sockets, options by number, and ioctls about interfaces. Only
//! this file calls libc.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

pub(crate) use libc::{iovec, mmsghdr};

/// `PACKET_QDISC_BYPASS` and `PACKET_IGNORE_OUTGOING` of linux/if_packet.h.
pub(crate) const PACKET_QDISC_BYPASS: Opt = Opt { level: libc::SOL_PACKET, name: 20 };
pub(crate) const PACKET_IGNORE_OUTGOING: Opt = Opt { level: libc::SOL_PACKET, name: 23 };
pub(crate) const RECEIVE_BUFFER: Opt = Opt { level: libc::SOL_SOCKET, name: libc::SO_RCVBUF };
pub(crate) const RECEIVE_BUFFER_FORCE: Opt = Opt { level: libc::SOL_SOCKET, name: libc::SO_RCVBUFFORCE };
pub(crate) const SEND_BUFFER: Opt = Opt { level: libc::SOL_SOCKET, name: libc::SO_SNDBUF };
pub(crate) const SEND_BUFFER_FORCE: Opt = Opt { level: libc::SOL_SOCKET, name: libc::SO_SNDBUFFORCE };
/// `UDP_SEGMENT` and `UDP_GRO` of linux/udp.h.
pub(crate) const UDP_SEGMENT: Opt = Opt { level: libc::SOL_UDP, name: 103 };
pub(crate) const UDP_GRO: Opt = Opt { level: libc::SOL_UDP, name: 104 };
pub(crate) const PATH_MTU_V4: Opt = Opt { level: libc::IPPROTO_IP, name: libc::IP_MTU };
pub(crate) const PATH_MTU_V6: Opt = Opt { level: libc::IPPROTO_IPV6, name: libc::IPV6_MTU };
pub(crate) const DISCOVER_V4: Opt = Opt { level: libc::IPPROTO_IP, name: libc::IP_MTU_DISCOVER };
pub(crate) const DISCOVER_V6: Opt = Opt { level: libc::IPPROTO_IPV6, name: libc::IPV6_MTU_DISCOVER };

pub(crate) const PACKET_HOST: u8 = 0;
pub(crate) const PACKET_MULTICAST: u8 = 2;
pub(crate) const FAMILY_V4: u16 = libc::AF_INET as u16;
pub(crate) const FAMILY_V6: u16 = libc::AF_INET6 as u16;
/// Datagrams that are too long are refused instead of fragmented: `IP_PMTUDISC_DO`.
pub(crate) const DISCOVER_DO: i32 = libc::IP_PMTUDISC_DO;
/// Datagrams that are too long are fragmented: `IP_PMTUDISC_DONT`.
pub(crate) const DISCOVER_DONT: i32 = libc::IP_PMTUDISC_DONT;
/// Hardware types with an Ethernet header at the start of frames: `ARPHRD_ETHER` and `ARPHRD_LOOPBACK`.
pub(crate) const ETHERNET: [u16; 2] = [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK];

/// A socket option.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opt {
    level: i32,
    name: i32,
}

impl Opt {
    /// Returns an option of AF_XDP sockets.
    #[cfg(feature = "af-xdp")]
    pub(crate) const fn xdp(name: i32) -> Self {
        Self { level: libc::SOL_XDP, name }
    }

    /// Returns the level, as in a control message.
    pub(crate) const fn level(self) -> u32 {
        self.level as u32
    }

    /// Returns the number, as in a control message.
    pub(crate) const fn name(self) -> u32 {
        self.name as u32
    }
}

/// Plain words that the kernel reads or writes unchanged.
pub(crate) trait KernelWords: Copy + Default {}
impl KernelWords for i32 {}
impl<const N: usize> KernelWords for [u32; N] where Self: Default {}

fn checked(returned: libc::c_int) -> Result<usize, Errno> {
    usize::try_from(returned).map_err(|_| last())
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

pub(crate) fn set_option<T: KernelWords>(socket: impl AsFd, opt: Opt, value: T) -> Result<(), Errno> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads as many bytes as `value` has.
    let returned = unsafe {
        libc::setsockopt(fd, opt.level, opt.name, (&raw const value).cast(), size_of::<T>() as libc::socklen_t)
    };
    checked(returned).map(drop)
}

/// A constant of asm-generic/socket.h that libc lacks.
const SO_MEMINFO: i32 = 55;

/// Returns the number of messages that the kernel dropped for lack of room since the socket was opened, for any kind of socket
/// (`SK_MEMINFO_DROPS`). Returns `None` before Linux 4.12.
pub(crate) fn overruns(socket: impl AsFd) -> Option<u64> {
    let about = option::<[u32; 9]>(socket, Opt { level: libc::SOL_SOCKET, name: SO_MEMINFO }).ok()?;
    Some(about[8].into())
}

/// Returns the value of an option, filled with zeros if the kernel returns fewer bytes.
pub(crate) fn option<T: KernelWords>(socket: impl AsFd, opt: Opt) -> Result<T, Errno> {
    let (mut value, mut len) = (T::default(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel writes `len` bytes at most, and any bytes are words.
    let returned = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), opt.level, opt.name, (&raw mut value).cast(), &raw mut len)
    };
    checked(returned).map(|_| value)
}

/// Binds a packet socket to the frames of one ethertype on one interface.
pub(crate) fn bind_packet(socket: impl AsFd, ethertype: u16, index: u32) -> Result<(), Errno> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: ethertype.to_be(),
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the kernel reads as many bytes as the address has.
    let returned = unsafe {
        libc::bind(socket.as_fd().as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
    };
    checked(returned).map(drop)
}

/// Sends messages in order; returns the number that the kernel took.
///
/// # Safety
///
/// All addresses in the headers are readable for the lengths beside them, until the call ends.
pub(crate) unsafe fn send_messages(socket: impl AsFd, messages: &mut [mmsghdr]) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let (fd, count) = (socket.as_fd().as_raw_fd(), messages.len() as u32);
    // SAFETY: the caller's promise; the headers are borrowed for the call.
    checked(unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count, flags as _) })
}

/// Sends one message, made of `parts`, to a socket address. `control` is a whole control message.
pub(crate) fn send_parts(
    socket: impl AsFd,
    (name, name_len): &([u32; 7], u32),
    parts: &[IoSlice<'_>],
    control: Option<[u64; 3]>,
) -> Result<usize, Errno> {
    // SAFETY: a header of zeroes has no name, no vectors and no control.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = name.as_ptr().cast_mut().cast();
    header.msg_namelen = (*name_len).min(size_of_val(name) as u32);
    header.msg_iov = parts.as_ptr().cast_mut().cast();
    header.msg_iovlen = parts.len() as _;
    if let Some(control) = &control {
        header.msg_control = std::ptr::from_ref(control).cast_mut().cast();
        header.msg_controllen = size_of_val(control) as _;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header names memory that is borrowed for the call, with its lengths; an `IoSlice` is laid out as an iovec. The kernel
    // only reads all of it.
    let sent = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const header, flags) };
    usize::try_from(sent).map_err(|_| last())
}

/// Receives at most `count` messages; returns their number.
///
/// # Safety
///
/// There are `count` headers at `messages`. All addresses in them are writable for the lengths beside them until the call ends, and no
/// other code uses that memory meanwhile.
pub(crate) unsafe fn receive_messages(socket: impl AsFd, messages: *mut mmsghdr, count: u32) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: the caller's promise.
    checked(unsafe { libc::recvmmsg(socket.as_fd().as_raw_fd(), messages, count, flags as _, std::ptr::null_mut()) })
}

/// Binds an AF_XDP socket to a queue of an interface.
#[cfg(feature = "af-xdp")]
pub(crate) fn bind_xdp(socket: impl AsFd, index: u32, queue: u32, flags: u16) -> Result<(), Errno> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    // SAFETY: the kernel reads as many bytes as the address has.
    let returned = unsafe {
        libc::bind(socket.as_fd().as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
    };
    checked(returned).map(drop)
}

/// Tells an AF_XDP socket that there are frames to send or buffers to fill.
#[cfg(feature = "af-xdp")]
pub(crate) fn kick(socket: impl AsFd, is_send: bool) -> Result<(), Errno> {
    let (fd, flags, nobody) = (socket.as_fd().as_raw_fd(), libc::MSG_DONTWAIT, std::ptr::null_mut());
    let returned = if is_send {
        // SAFETY: no bytes, no address.
        unsafe { libc::sendto(fd, nobody, 0, flags, nobody.cast(), 0) }
    } else {
        // SAFETY: no bytes, no address.
        unsafe { libc::recvfrom(fd, nobody, 0, flags, nobody.cast(), nobody.cast()) }
    };
    if returned < 0 { Err(last()) } else { Ok(()) }
}

/// Calls `bpf(2)` with words as its attribute. Returns its result, which is a descriptor if the command creates an object.
///
/// # Safety
///
/// All addresses in the attribute are readable, or writable, as that command uses them.
pub(crate) unsafe fn bpf(command: u32, attribute: &mut [u64; 16]) -> Result<i32, Errno> {
    // SAFETY: the kernel reads the attribute, of which the words that a command does not know are zero; and the caller's promise.
    let returned = unsafe { libc::syscall(libc::SYS_bpf, command, attribute.as_mut_ptr(), size_of_val(attribute)) };
    i32::try_from(returned).ok().filter(|number| *number >= 0).ok_or_else(last)
}

/// The properties of an interface that can be queried by its name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InterfaceQuery {
    Index,
    Mtu,
    Flags,
    Hardware,
}

/// `IFF_UP` and `IFF_RUNNING`.
pub(crate) const UP_AND_RUNNING: u32 = (libc::IFF_UP | libc::IFF_RUNNING) as u32;

/// Queries the kernel about an interface; returns the union in `struct ifreq`.
pub(crate) fn query_interface(socket: impl AsFd, name: &str, query: InterfaceQuery) -> Result<[u8; 24], Errno> {
    let request = match query {
        InterfaceQuery::Index => libc::SIOCGIFINDEX,
        InterfaceQuery::Mtu => libc::SIOCGIFMTU,
        InterfaceQuery::Flags => libc::SIOCGIFFLAGS,
        InterfaceQuery::Hardware => libc::SIOCGIFHWADDR,
    };
    let mut text = [0_u8; libc::IFNAMSIZ + 24]; // The name with its terminating zero, and the union.
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() >= libc::IFNAMSIZ || bytes.contains(&0) {
        return Err(Errno::NODEV);
    }
    text[..bytes.len()].copy_from_slice(bytes);
    const _: () = assert!(size_of::<libc::ifreq>() <= libc::IFNAMSIZ + 24);
    // SAFETY: `text` is as large as `struct ifreq`, which these requests read and write.
    checked(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), request as _, text.as_mut_ptr()) })?;
    Ok(text[libc::IFNAMSIZ..].try_into().expect("24 bytes follow the name"))
}
