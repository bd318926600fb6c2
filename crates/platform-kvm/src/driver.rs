//! The requests of the driver in `kmod/`, as in `kmod/isthmus.h`; `docs/spec/device.md` describes them.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, Updater, ioctl, opcode};

/// The version of the interface.
pub const ABI: u32 = 1;

/// The value of `RawInfo::peer` without a peer number.
pub(crate) const NO_PEER: u32 = u32::MAX;

/// The flag in `RawInfo::flags` that the memory type is that of a program's mapping.
pub(crate) const INFO_MAPPED: u32 = 1;

/// `struct isthmus_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawInfo {
    /// The version of the interface.
    pub abi: u32,
    /// The driver's version.
    pub driver: u32,
    /// The size of the window in bytes.
    pub window_bytes: u64,
    /// The guest's number among the peers.
    pub peer: u32,
    /// The number of vectors that can be listened to.
    pub vectors: u32,
    /// The caching of the window.
    pub memory_type: u32,
    /// Flags about the memory type.
    pub flags: u32,
    /// The address of the window.
    pub window_address: u64,
    /// Zero.
    pub reserved: [u64; 3],
}

/// `struct isthmus_piece`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawPiece {
    /// The version of the interface.
    pub abi: u32,
    /// The access: 1 to read, 3 to read and write, 7 for a private extent.
    pub access: u32,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// Set by the driver.
    pub descriptor: RawFd,
    /// Zero.
    pub reserved: u32,
}

/// `struct isthmus_withdraw`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawWithdraw {
    /// The version of the interface.
    pub abi: u32,
    /// The descriptor of a piece.
    pub descriptor: RawFd,
}

/// `struct isthmus_listen`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawListen {
    /// The version of the interface.
    pub abi: u32,
    /// The vector.
    pub vector: u32,
    /// An eventfd, or -1.
    pub descriptor: RawFd,
    /// Zero.
    pub reserved: u32,
}

/// `struct isthmus_ringer`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawRinger {
    /// The version of the interface.
    pub abi: u32,
    /// The peer to ring.
    pub peer: u32,
    /// The vector.
    pub vector: u32,
    /// Set by the driver.
    pub descriptor: RawFd,
}

/// `struct isthmus_ring`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawRing {
    /// The version of the interface.
    pub abi: u32,
    /// The peer to ring.
    pub peer: u32,
    /// The vector.
    pub vector: u32,
    /// Zero.
    pub reserved: u32,
}

/// `struct isthmus_loop`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawLoop {
    /// The version of the interface.
    pub abi: u32,
    /// The side of the extent: 0 or 1.
    pub side: u32,
    /// The descriptor of the piece with the rings.
    pub piece: RawFd,
    /// The descriptor that rings the peer.
    pub ringer: RawFd,
    /// The vector that the peer rings.
    pub vector: u32,
    /// The index of the interface on which frames arrive, or 0.
    pub lower: u32,
    /// The maximum size of packets, or 0.
    pub mtu: u32,
    /// Zero.
    pub reserved: u32,
    /// Set by the driver: the index of the network device.
    pub index: i32,
    /// Set by the driver.
    pub descriptor: RawFd,
}

const _: () = assert!(size_of::<RawInfo>() == 64 && size_of::<RawPiece>() == 32 && size_of::<RawWithdraw>() == 8);
const _: () = assert!(size_of::<RawListen>() == 16 && size_of::<RawRinger>() == 16 && size_of::<RawRing>() == 16);
/// `struct isthmus_steer`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawSteer {
    /// The version of the interface.
    pub abi: u32,
    /// The index of the network interface.
    pub interface: u32,
    /// Zero.
    pub reserved: u32,
    /// Set by the driver.
    pub descriptor: RawFd,
}

/// `struct isthmus_route`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawRoute {
    /// The address of the receiver.
    pub mac: [u8; 6],
    /// Zero.
    pub reserved: u16,
    /// The index of a loop device, or 0.
    pub device: u32,
}

/// The size of an address that a steering returns: six bytes, and two zero bytes.
pub(crate) const WANTED_BYTES: usize = 8;

/// The maximum number of routes.
pub const ROUTES_MAX: usize = 256;

const _: () = assert!(size_of::<RawLoop>() == 40 && size_of::<RawSteer>() == 16 && size_of::<RawRoute>() == 12);

const GROUP: u8 = 0xb1;

/// Returns the properties of the device.
pub const INFO: Opcode = opcode::read::<RawInfo>(GROUP, 0x40);
/// Returns the descriptor of a piece.
pub const PIECE: Opcode = opcode::read_write::<RawPiece>(GROUP, 0x41);
/// Revokes a piece.
pub const WITHDRAW: Opcode = opcode::write::<RawWithdraw>(GROUP, 0x42);
/// Sets the eventfd of a vector.
pub const LISTEN: Opcode = opcode::write::<RawListen>(GROUP, 0x43);
/// Returns a descriptor that rings a vector.
pub const RINGER: Opcode = opcode::read_write::<RawRinger>(GROUP, 0x44);
/// Rings a vector.
pub const RING: Opcode = opcode::write::<RawRing>(GROUP, 0x45);
/// Makes a loop device.
pub const LOOP: Opcode = opcode::read_write::<RawLoop>(GROUP, 0x46);
/// Steers a network interface.
pub const STEER: Opcode = opcode::read_write::<RawSteer>(GROUP, 0x47);

/// A device's node, known to belong to the driver: the driver handles all requests to it.
#[derive(Debug)]
pub(crate) struct DeviceNode(OwnedFd);

impl DeviceNode {
    /// # Safety
    ///
    /// `file` is an open node of the driver, or of something that knows none of the numbers above.
    pub(crate) unsafe fn new(file: OwnedFd) -> Self {
        Self(file)
    }

    pub(crate) fn info(&self) -> Result<RawInfo, Errno> {
        // SAFETY: the driver writes a `struct isthmus_info` of this size, of which any bytes are a value (`DeviceNode`).
        unsafe { ioctl(&self.0, Getter::<INFO, RawInfo>::new()) }
    }

    pub(crate) fn piece(&self, access: u32, offset: u64, bytes: u64) -> Result<OwnedFd, Errno> {
        let mut request = RawPiece { abi: ABI, access, offset, bytes, descriptor: -1, reserved: 0 };
        // SAFETY: the driver reads this structure and writes one field of it (`DeviceNode`).
        unsafe { ioctl(&self.0, Updater::<PIECE, RawPiece>::new(&mut request)) }?;
        // SAFETY: on success the driver has opened this descriptor for us, and no other code knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(request.descriptor) })
    }

    pub(crate) fn withdraw(&self, piece: BorrowedFd<'_>) -> Result<(), Errno> {
        let request = RawWithdraw { abi: ABI, descriptor: piece.as_raw_fd() };
        // SAFETY: the driver reads this structure (`DeviceNode`). The contents of our mappings of the piece change as foreign memory may.
        unsafe { ioctl(&self.0, Setter::<WITHDRAW, RawWithdraw>::new(request)) }
    }

    pub(crate) fn listen(&self, vector: u32, listener: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let descriptor = listener.map_or(-1, |listener| listener.as_raw_fd());
        let request = RawListen { abi: ABI, vector, descriptor, reserved: 0 };
        // SAFETY: the driver reads this structure, and holds the eventfd by a count of its own (`DeviceNode`).
        unsafe { ioctl(&self.0, Setter::<LISTEN, RawListen>::new(request)) }
    }

    pub(crate) fn ringer(&self, peer: u32, vector: u32) -> Result<OwnedFd, Errno> {
        let mut request = RawRinger { abi: ABI, peer, vector, descriptor: -1 };
        // SAFETY: the driver reads this structure and writes one field of it (`DeviceNode`).
        unsafe { ioctl(&self.0, Updater::<RINGER, RawRinger>::new(&mut request)) }?;
        // SAFETY: on success the driver has opened this descriptor for us, and no other code knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(request.descriptor) })
    }

    pub(crate) fn ring(&self, peer: u32, vector: u32) -> Result<(), Errno> {
        let request = RawRing { abi: ABI, peer, vector, reserved: 0 };
        // SAFETY: the driver reads this structure (`DeviceNode`).
        unsafe { ioctl(&self.0, Setter::<RING, RawRing>::new(request)) }
    }

    /// Makes a loop device: the caller sets all fields of `request` but the last two. Returns the index and the descriptor.
    pub(crate) fn loop_device(&self, mut request: RawLoop) -> Result<(u32, OwnedFd), Errno> {
        // SAFETY: the driver reads this structure and writes two fields of it (`DeviceNode`). It counts the descriptors that it uses. The
        // contents of our mappings of the piece change as foreign memory may.
        unsafe { ioctl(&self.0, Updater::<LOOP, RawLoop>::new(&mut request)) }?;
        // SAFETY: on success the driver has opened this descriptor for us, and no other code knows it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(request.descriptor) };
        Ok((request.index.unsigned_abs(), descriptor))
    }

    pub(crate) fn steer(&self, interface: u32) -> Result<OwnedFd, Errno> {
        let mut request = RawSteer { abi: ABI, interface, reserved: 0, descriptor: -1 };
        // SAFETY: the driver reads this structure and writes one field of it (`DeviceNode`).
        unsafe { ioctl(&self.0, Updater::<STEER, RawSteer>::new(&mut request)) }?;
        // SAFETY: on success the driver has opened this descriptor for us, and no other code knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(request.descriptor) })
    }
}

impl AsFd for DeviceNode {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
