//! Extents of a guest's window: descriptors of the driver in `kmod/`, which map one extent of a device's memory and nothing else.
//!
//! What makes such a descriptor as safe to map as a sealed memory file is the driver, so what counts is that it is the driver's:
//! the kernel says that by the type of the file system it belongs to, which no file system of a user's can take (a FUSE file is of
//! FUSE's type whatever its server answers). How many bytes there are is then asked of the driver.
//!
//! Under Xen an extent is an allocation of the kernel's own driver for pages that are granted to other domains, `xen/gntalloc`. It maps
//! pages that exist or nothing, and a process that maps them keeps them.

use crate::mapping::Access;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, Opcode, Updater, ioctl, opcode};

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
    /// 1 to read, 3 to read and write, 7 for a private extent.
    pub access: u32,
    /// How many can be mapped.
    pub bytes: u64,
    /// How they are cached.
    pub memory_type: u32,
    /// 1: revoked, or settled.
    pub flags: u32,
    /// Zero.
    pub reserved: u64,
}

const _: () = assert!(size_of::<RawExtent>() == 32);

/// `struct isthmus_shows`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawShows {
    /// The version of the interface.
    pub abi: u32,
    /// Answered.
    pub shows: u32,
    /// Of the calling process.
    pub address: u64,
    /// How many.
    pub bytes: u64,
    /// In the extent.
    pub offset: u64,
}

const _: () = assert!(size_of::<RawShows>() == 32);

/// Asks what an extent is.
pub const EXTENT: Opcode = opcode::read::<RawExtent>(0xb1, 0x48);
/// Asks whether addresses of the caller show an extent.
pub const SHOWS: Opcode = opcode::read_write::<RawShows>(0xb1, 0x49);
/// Has a private extent keep its bytes in pages of its own from now on.
pub const SETTLE: Opcode = opcode::none(0xb1, 0x4a);
/// `RawExtent::memory_type`: as ordinary memory.
pub const WRITE_BACK: u32 = 1;

/// The driver's description of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentInfo {
    /// Number of bytes that can be mapped, from 0. It never falls: an extent never changes its size, and if its device is removed,
    /// its mappings show pages of their own.
    pub bytes: u64,
    /// The permitted access.
    pub access: Access,
    /// How the pages are cached, by the driver's number (`ISTHMUS_MEMORY_…`), once they have been touched.
    pub memory_type: u32,
    /// The extent was revoked or settled, or its device is gone: no other process sees what is mapped.
    pub gone: bool,
    /// The bytes stay, whatever happens to the window.
    pub is_private: bool,
}

/// Returns the driver's description of this descriptor; None if it is not an extent of the driver.
pub fn extent(file: impl AsFd) -> Option<ExtentInfo> {
    let found = rustix::fs::fstatfs(&file).ok()?;
    if found.f_type as u64 != MAGIC {
        return None;
    }
    // SAFETY: the file is of the driver's file system (its type says so), so the driver answers, and to this number it writes a
    // `struct isthmus_extent` of this size, of which any bytes are a value.
    let raw = unsafe { ioctl(&file, Getter::<EXTENT, RawExtent>::new()) }.ok()?;
    let access = match raw.access {
        1 => Access::Read,
        3 | ACCESS_PRIVATE => Access::ReadWrite,
        _ => return None,
    };
    let gone = raw.flags & 1 != 0;
    let is_private = raw.access == ACCESS_PRIVATE;
    (raw.abi == ABI).then_some(ExtentInfo { bytes: raw.bytes, access, memory_type: raw.memory_type, gone, is_private })
}

/// `RawExtent::access` of a private extent.
const ACCESS_PRIVATE: u32 = 7;

/// An extent in which a program may keep memory of its own: its bytes stay when the window or the device is removed.
#[derive(Debug)]
pub struct PrivateExtent(OwnedFd);

impl PrivateExtent {
    /// Wraps a private extent. Returns None for any other file, or for an extent that is not shared any more.
    pub fn new(file: OwnedFd) -> Option<Self> {
        extent(&file).filter(|extent| extent.is_private && !extent.gone).map(|_| Self(file))
    }

    /// Returns the driver's current description of the extent.
    pub fn extent(&self) -> Option<ExtentInfo> {
        extent(&self.0)
    }

    /// Returns true if these addresses show the extent from `offset` on, shared, and others can see it, too. All values are multiples of
    /// the page size. The driver checks the mappings there, so the result is exact.
    pub fn is_mapped_at(&self, addresses: &core::ops::Range<usize>, offset: u64) -> Result<bool, Errno> {
        let (address, bytes) = (addresses.start as u64, addresses.len() as u64);
        let mut asked = RawShows { abi: ABI, shows: 0, address, bytes, offset };
        // SAFETY: the file is an extent of the driver's (`new`), which reads this structure and writes one field of it.
        unsafe { ioctl(&self.0, Updater::<SHOWS, RawShows>::new(&mut asked)) }?;
        Ok(asked.shows != 0)
    }

    /// Copies the bytes to pages of the extent's own, which every mapping of it shows from now on. The content stays the same, but others
    /// do not see what is written afterwards. Only then can the extent be mapped privately.
    pub fn make_private(&self) -> Result<(), Errno> {
        // SAFETY: as above; nothing is passed, and no byte changes.
        unsafe { ioctl(&self.0, NoArg::<SETTLE>::new()) }
    }
}

impl AsFd for PrivateExtent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Drivers of granted pages under Xen, by their names in the kernel's list of miscellaneous devices: one for pages that this domain
/// grants, one for pages that others granted to it.
const XEN_GRANT_DEVICES: [&str; 2] = ["xen/gntalloc", "xen/gntdev"];

/// The major number of all miscellaneous devices.
const MISC_MAJOR: u32 = 10;

/// Returns true for an open file of a driver that maps granted pages under Xen. The device number identifies it, because the kernel gives
/// this number to no other driver. If something that is not a driver claims the number (a FUSE file can), the kernel does not open it.
pub fn is_xen_grant_file(file: impl AsFd) -> bool {
    let Ok(found) = rustix::fs::fstat(&file) else { return false };
    let is_device = rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::CharacterDevice;
    is_device
        && rustix::fs::major(found.st_rdev) == MISC_MAJOR
        && std::fs::read_to_string("/proc/misc").is_ok_and(|listed| {
            XEN_GRANT_DEVICES.iter().any(|driver| misc_minor(&listed, driver) == Some(rustix::fs::minor(found.st_rdev)))
        })
}

/// Returns the minor number of a device in the kernel's list, which has a number and a name in each line.
fn misc_minor(listed: &str, name: &str) -> Option<u32> {
    let found = listed.lines().filter_map(|line| line.trim().split_once(' ')).find(|(_, listed)| listed.trim() == name);
    found?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_in_the_kernels_list() {
        let listed = "122 xen/privcmd\n 58 xen/gntalloc\n 59 xen/gntdev\n  1 psaux\n";
        assert_eq!(XEN_GRANT_DEVICES.map(|driver| misc_minor(listed, driver)), [Some(58), Some(59)]);
        assert_eq!(misc_minor(listed, "xen/gnt"), None);
        assert_eq!(misc_minor("58xen/gntalloc", XEN_GRANT_DEVICES[0]), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn only_the_drivers_files_are_extents() {
        let memory = rustix::fs::memfd_create("extent", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        assert_eq!([extent(&memory), extent(&event), extent(std::io::stdin())], [None; 3]);
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(!is_xen_grant_file(&memory) && !is_xen_grant_file(&event) && !is_xen_grant_file(&null));
    }
}
