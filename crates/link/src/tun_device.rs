//! Creates TAP devices: network interfaces with frames that a program reads and writes.
//!
//! ```text
//!   /dev/net/tun ── open ── TUNSETIFF ── TUNSETVNETHDRSZ ── TUNSETOFFLOAD ──► a descriptor: frames behind a virtio-net header
//! ```
//!
//! This needs CAP_NET_ADMIN. The device is not persistent: the interface is gone when its last descriptor closes. An interface that exists
//! is never taken over (`IFF_TUN_EXCL`). Frames are not read here.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Getter, IntegerSetter, Opcode, Setter, Updater, ioctl, opcode};

/// The number of bytes of the virtio-net header in front of each frame, with the count of merged buffers.
pub const TAP_HEADER_BYTES: usize = 12;

const NAME_BYTES: usize = libc::IFNAMSIZ;

const SET_INTERFACE: Opcode = opcode::write::<i32>(b'T', 202); // TUNSETIFF
const SET_OFFLOADS: Opcode = opcode::write::<u32>(b'T', 208); // TUNSETOFFLOAD
const GET_INTERFACE: Opcode = opcode::read::<u32>(b'T', 210); // TUNGETIFF
const SET_HEADER_BYTES: Opcode = opcode::write::<i32>(b'T', 216); // TUNSETVNETHDRSZ

/// `IFF_TAP`, `IFF_NO_PI`, `IFF_VNET_HDR` and `IFF_TUN_EXCL` of linux/if_tun.h.
const TAP_FLAGS: u16 = 0x0002 | 0x1000 | 0x4000 | 0x8000;

bitflags::bitflags! {
    /// The work that the kernel may leave to the reader of a TAP device, because the reader understands it in the virtio-net header.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TapOffloads: u32 {
        /// Checksums; all others need it (`TUN_F_CSUM`).
        const CHECKSUM = 0x01;
        /// TCP segments over IPv4 (`TUN_F_TSO4`).
        const TCP_V4 = 0x02;
        /// TCP segments over IPv6 (`TUN_F_TSO6`).
        const TCP_V6 = 0x04;
        /// TCP segments with ECN bits (`TUN_F_TSO_ECN`).
        const TCP_ECN = 0x08;
        /// UDP datagrams over IPv4, from Linux 6.2 on (`TUN_F_USO4`).
        const UDP_V4 = 0x20;
        /// UDP datagrams over IPv6, from Linux 6.2 on (`TUN_F_USO6`).
        const UDP_V6 = 0x40;
    }
}

impl TapOffloads {
    /// The offloads that every supported kernel has.
    pub const TCP: Self = Self::CHECKSUM.union(Self::TCP_V4).union(Self::TCP_V6).union(Self::TCP_ECN);
    /// The offloads of UDP.
    pub const UDP: Self = Self::UDP_V4.union(Self::UDP_V6);
}

/// A TAP device that was created.
#[derive(Debug)]
pub struct NewTap {
    /// The device, non-blocking. The interface lives as long as this descriptor and its copies.
    pub descriptor: OwnedFd,
    /// The name of the interface.
    pub name: String,
    /// The offloads that the kernel accepted.
    pub offloads: TapOffloads,
}

/// The reason why a TAP device was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateTapError {
    /// The kernel has no TUN driver, or its device node cannot be opened.
    #[error("opening /dev/net/tun: {0}")]
    Open(#[source] Errno),
    /// The kernel did not create the interface; `EBUSY` if there is one with that name.
    #[error("creating the interface: {0}")]
    Create(#[source] Errno),
    /// The kernel refused the header or the offloads.
    #[error("setting up the device: {0}")]
    SetUp(#[source] Errno),
}

/// The part of `struct ifreq` that TUNSETIFF reads and writes.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    flags: u16,
    rest: [u8; 22],
}
const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());

impl InterfaceRequest {
    fn name(&self) -> String {
        let name = self.name.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }
}

/// Returns true if the TUN driver is there and can be opened.
pub fn has_tun_driver() -> bool {
    open_driver().is_ok()
}

fn open_driver() -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, "/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}

/// Creates a TAP device in the network namespace of the calling thread, with all offloads that the kernel has. In `name` the kernel replaces
/// `%d` by the first number that is free. The interface is down.
pub fn create_tap(name: &str) -> Result<NewTap, CreateTapError> {
    let descriptor = open_driver().map_err(CreateTapError::Open)?;
    let mut request = InterfaceRequest { name: [0; NAME_BYTES], flags: TAP_FLAGS, rest: [0; 22] };
    if name.is_empty() || name.len() >= NAME_BYTES || name.contains('\0') {
        return Err(CreateTapError::Create(Errno::INVAL));
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, which has the size and the layout of `InterfaceRequest` (asserted above).
    unsafe { ioctl(&descriptor, Updater::<SET_INTERFACE, _>::new(&mut request)) }.map_err(CreateTapError::Create)?;
    // SAFETY: TUNSETVNETHDRSZ reads one `int`.
    unsafe { ioctl(&descriptor, Setter::<SET_HEADER_BYTES, i32>::new(TAP_HEADER_BYTES as i32)) }
        .map_err(CreateTapError::SetUp)?;
    let offloads = match set_tap_offloads(&descriptor, TapOffloads::all()) {
        Err(Errno::INVAL) => set_tap_offloads(&descriptor, TapOffloads::TCP).map(|()| TapOffloads::TCP),
        set => set.map(|()| TapOffloads::all()),
    };
    let offloads = offloads.map_err(CreateTapError::SetUp)?;
    Ok(NewTap { descriptor, name: request.name(), offloads })
}

/// Returns the name of the interface of a TAP device. This needs no capability. Returns `EBADFD` if the interface no longer exists, and
/// `ENOTTY` for other files.
pub fn tap_interface(tap: impl AsFd) -> Result<String, Errno> {
    // SAFETY: TUNGETIFF writes a whole `struct ifreq`, which has the size and the layout of `InterfaceRequest` (asserted above); every bit
    // pattern is one. Other files refuse the request.
    let request = unsafe { ioctl(tap, Getter::<GET_INTERFACE, InterfaceRequest>::new()) }?;
    Ok(request.name())
}

/// Sets the offloads of a TAP device. This needs no capability. The kernel does the work of those that are absent before it hands out a
/// frame. Returns `EINVAL` for an offload that the kernel does not know.
pub fn set_tap_offloads(tap: impl AsFd, offloads: TapOffloads) -> Result<(), Errno> {
    // SAFETY: TUNSETOFFLOAD takes the flags as its argument and accesses no memory of this process; other files refuse the request.
    unsafe { ioctl(tap, IntegerSetter::<SET_OFFLOADS>::new_usize(offloads.bits() as usize)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_refused_before_the_kernel_sees_them() {
        for name in ["", "a-name-that-is-too-long", "nul\0"] {
            match create_tap(name) {
                Err(CreateTapError::Create(Errno::INVAL) | CreateTapError::Open(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn other_files_have_no_offloads_and_no_interface() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(set_tap_offloads(&null, TapOffloads::TCP), Err(Errno::NOTTY));
        assert_eq!(tap_interface(&null), Err(Errno::NOTTY));
    }
}
