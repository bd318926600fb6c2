//! Pieces of a guest's window: descriptors of the driver in `kmod/`, which map one piece of a device's memory and nothing else.
//!
//! What makes such a descriptor as safe to map as a sealed memory file is the driver, so what counts is that it is the driver's:
//! the kernel says that by the type of the file system it belongs to, which no file system of a user's can take (a FUSE file is of
//! FUSE's type whatever its server answers). How many bytes there are is then asked of the driver.

use crate::window::Access;
use rustix::fd::AsFd;
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};

/// The type of the driver's file system (`ISTHMUS_MAGIC`).
const MAGIC: u64 = 0x4953_5448;

/// The version of the driver's interface that we know (`ISTHMUS_ABI`).
const ABI: u32 = 1;

/// `struct isthmus_extent`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawExtent {
    /// The version of the interface.
    pub abi: u32,
    /// 1 to read, 3 to read and write.
    pub access: u32,
    /// How many can be mapped.
    pub bytes: u64,
    /// How they are cached.
    pub memory_type: u32,
    /// 1: withdrawn.
    pub flags: u32,
    /// Zero.
    pub reserved: u64,
}

const _: () = assert!(size_of::<RawExtent>() == 32);

/// Asks what a piece is.
pub const EXTENT: Opcode = opcode::read::<RawExtent>(0xb1, 0x48);

/// What the driver says of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes that can be mapped, from 0. There are never less: a piece has its size for good, and where its device goes away
    /// what is mapped shows pages of its own.
    pub bytes: u64,
    /// What may be done with them.
    pub access: Access,
    /// How they are cached, by the driver's number (`ISTHMUS_MEMORY_…`), once they have been touched.
    pub memory_type: u32,
    /// The piece was withdrawn, or its device is gone: nobody else sees what is mapped.
    pub gone: bool,
}

/// What the driver says of this descriptor; None where it is none of the driver's pieces.
pub fn extent(file: impl AsFd) -> Option<Extent> {
    let found = rustix::fs::fstatfs(&file).ok()?;
    if found.f_type as u64 != MAGIC {
        return None;
    }
    // SAFETY: the file is of the driver's file system (its type says so), so the driver answers, and to this number it writes a
    // `struct isthmus_extent` of this size, of which any bytes are a value.
    let raw = unsafe { ioctl(&file, Getter::<EXTENT, RawExtent>::new()) }.ok()?;
    let access = match raw.access {
        1 => Access::Read,
        3 => Access::ReadWrite,
        _ => return None,
    };
    let gone = raw.flags & 1 != 0;
    (raw.abi == ABI).then_some(Extent { bytes: raw.bytes, access, memory_type: raw.memory_type, gone })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn only_the_drivers_files_are_pieces() {
        let memory = rustix::fs::memfd_create("piece", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        assert_eq!([extent(&memory), extent(&event), extent(std::io::stdin())], [None; 3]);
    }
}
