//! A guest's device without the driver: its resources, as the kernel shows them to root in `/sys`.
//!
//! The window is not cached then, and the guest receives no doorbells. The kernel hands out only the whole window: every descriptor of an
//! extent reaches all of it, and no access can be revoked. The daemon therefore has to know which extents are still in use
//! ([`file_claim`]). This is for guests in which no module may be loaded.

use crate::device::{DeviceError, MemoryType};
use isthmus_layout::RegionSize;
use isthmus_platform::file_claim;
use isthmus_shm::{Access, Mapping, SharedMapping, Words};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

/// A device, accessed through its resource files.
#[derive(Debug)]
pub struct BareDevice {
    path: PathBuf,
    window: OwnedFd,
    size: RegionSize,
    registers: SharedMapping,
}

/// The folder of all PCI functions.
const FUNCTIONS: &str = "/sys/bus/pci/devices";

/// The vendor and device number of QEMU's ivshmem.
const PCI_IDS: (&str, &str) = ("0x1af4", "0x1110");

/// The file that enables a function.
const ENABLE: &str = "enable";

/// The file of the window. `resource2_wc` is not used, because stores to write-combining memory may become visible in another order.
const WINDOW: &str = "resource2";

/// Indexes of registers, in words.
const IV_POSITION: u32 = 2;
const DOORBELL: u32 = 3;

const PAGE: usize = 4096;

impl BareDevice {
    /// Returns the folders of all ivshmem functions, whether or not a driver is bound to them.
    pub fn functions() -> Vec<PathBuf> {
        let entries = std::fs::read_dir(FUNCTIONS).into_iter().flatten().flatten();
        let says = |folder: &Path, file: &str| std::fs::read_to_string(folder.join(file)).unwrap_or_default();
        let ours = |path: &PathBuf| (says(path, "vendor").trim(), says(path, "device").trim()) == PCI_IDS;
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(ours).collect();
        found.sort();
        found
    }

    /// Returns the name of the driver bound to a function.
    pub fn driver(function: &Path) -> Option<String> {
        let driver = std::fs::read_link(function.join("driver")).ok()?;
        Some(driver.file_name()?.to_string_lossy().into_owned())
    }

    /// Enables a function and opens its resources. Returns an error if a driver is bound to it.
    pub fn open(function: &Path) -> Result<Self, DeviceError> {
        if let Some(driver) = Self::driver(function) {
            return Err(DeviceError::NotOurs {
                path: function.to_owned(),
                what: format!("the driver {driver} has it"),
            });
        }
        let failed = |name: &str, source| DeviceError::Open { path: function.join(name), source };
        let open = |name: &str, flags| open(function, name, flags).map_err(|source| failed(name, source));
        let enabled = std::fs::read_to_string(function.join(ENABLE)).unwrap_or_default();
        if matches!(enabled.trim(), "" | "0") {
            let enable = open(ENABLE, OFlags::WRONLY)?;
            rustix::io::write(&enable, b"1").map_err(|source| failed(ENABLE, source))?;
        }
        let (window, registers) = (open(WINDOW, OFlags::RDWR)?, open("resource0", OFlags::RDWR)?);
        let size = rustix::fs::fstat(&window).map_err(|source| failed(WINDOW, source))?.st_size as u64;
        let registers = map(&registers, 0, PAGE, Access::ReadWrite).map_err(|source| failed("resource0", source))?;
        Ok(Self { path: function.to_owned(), window, size: RegionSize(size), registers: SharedMapping::new(registers) })
    }

    /// Returns the function's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the size of the window.
    pub fn size(&self) -> RegionSize {
        self.size
    }

    /// Returns the memory type of the window, which is not cached.
    pub fn memory_type(&self) -> MemoryType {
        MemoryType::UncachedMinus
    }

    /// Returns the guest's number among the device's peers.
    pub fn peer(&self) -> Option<u16> {
        u16::try_from(self.registers.load(IV_POSITION, Relaxed)).ok()
    }

    /// Returns true if the device was unplugged.
    pub fn is_gone(&self) -> bool {
        !self.path.exists()
    }

    /// Returns a descriptor of the window with a claim on this extent, which lasts as long as the descriptor or a mapping of it exists.
    /// Offsets in the file are offsets in the window. Returns [`Errno::AGAIN`] if any byte of the extent is claimed already.
    pub fn claim_extent(&self, at: u64, size: RegionSize) -> Result<OwnedFd, Errno> {
        self.check_range(at, size)?;
        let piece = open(&self.path, WINDOW, OFlags::RDWR)?;
        file_claim::claim(&piece, at, size.0)?;
        Ok(piece)
    }

    /// Returns true if any byte of this extent is claimed by [`Self::claim_extent`], also by a process that served the device before.
    pub fn is_claimed(&self, at: u64, size: RegionSize) -> bool {
        file_claim::is_claimed(&self.window, at, size.0).unwrap_or(true)
    }

    fn check_range(&self, at: u64, size: RegionSize) -> Result<(), Errno> {
        let is_inside = size.0 > 0 && at.checked_add(size.0).is_some_and(|end| end <= self.size.0);
        if is_inside { Ok(()) } else { Err(Errno::RANGE) }
    }

    /// Maps whole pages of the window. If the device is unplugged, a process that accesses the mapping is ended with SIGBUS. Avoiding this
    /// is one of the purposes of the driver.
    pub fn map(&self, at: u64, size: RegionSize, access: Access) -> Result<Mapping, Errno> {
        self.check_range(at, size)?;
        let bytes = usize::try_from(size.0).map_err(|_| Errno::NOMEM)?;
        map(&self.window, at, bytes, access)
    }

    /// Rings a vector of a peer.
    pub fn ring(&self, peer: u16, vector: u16) {
        self.registers.fence(); // Earlier stores to the window become visible first.
        self.registers.store(DOORBELL, u32::from(peer) << 16 | u32::from(vector), Relaxed);
    }
}

fn open(function: &Path, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(function.join(name), flags | OFlags::CLOEXEC, Mode::empty())
}

fn map(file: &OwnedFd, at: u64, bytes: usize, access: Access) -> Result<Mapping, Errno> {
    let protection = match access {
        Access::Read => ProtFlags::READ,
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    };
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs no memory of ours.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, at) }?;
    let base = NonNull::new(base.cast()).expect("the kernel maps nothing at address zero unasked");
    // SAFETY: made above, by us alone, and no other code unmaps it before its new owner; it is written only where it was mapped so. If the
    // device is unplugged, an access ends the process and returns no data.
    Ok(unsafe { Mapping::from_raw(base, bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_shm::Payload;
    use std::fs;

    /// Creates a folder with the files of a function.
    fn function(window: usize) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("enable"), "0").unwrap();
        let mut registers = vec![0; PAGE];
        registers[8] = 1;
        fs::write(folder.path().join("resource0"), registers).unwrap();
        fs::write(folder.path().join("resource2"), vec![0; window]).unwrap();
        folder
    }

    #[test]
    fn maps_and_rings_by_the_resource_files() {
        let folder = function(4 * PAGE);
        let device = BareDevice::open(folder.path()).unwrap();
        assert_eq!((device.size(), device.peer()), (RegionSize(4 * PAGE as u64), Some(1)));
        assert_eq!(fs::read(folder.path().join("enable")).unwrap(), b"1");
        let window = SharedMapping::new(device.map(PAGE as u64, RegionSize(PAGE as u64), Access::ReadWrite).unwrap());
        window.copy_in(7, b"hello");
        assert_eq!(&fs::read(folder.path().join("resource2")).unwrap()[PAGE + 7..][..5], b"hello");
        device.ring(0, 3);
        device.ring(2, 1);
        assert_eq!(fs::read(folder.path().join("resource0")).unwrap()[12..16], [1, 0, 2, 0]);
    }

    #[test]
    fn rejects_ranges_outside_the_window() {
        let folder = function(4 * PAGE);
        let device = BareDevice::open(folder.path()).unwrap();
        for (at, size) in [(0, 5 * PAGE), (4 * PAGE, PAGE), (PAGE, 0), (usize::MAX, PAGE)] {
            let mapped = device.map(at as u64, RegionSize(size as u64), Access::Read);
            assert_eq!(mapped.err(), Some(Errno::RANGE), "{at} {size}");
        }
    }

    #[test]
    fn extent_stays_claimed_while_mapped_even_after_a_restart() {
        let folder = function(4 * PAGE);
        let page = |pages: u64| pages * PAGE as u64;
        let device = BareDevice::open(folder.path()).unwrap();
        assert_eq!(device.claim_extent(page(3), RegionSize(page(2))).err(), Some(Errno::RANGE));
        let piece = device.claim_extent(page(1), RegionSize(page(2))).unwrap();
        assert_eq!(device.claim_extent(page(2), RegionSize(page(2))).err(), Some(Errno::AGAIN));
        let mapping = map(&piece, page(1), PAGE, Access::ReadWrite).unwrap();
        drop((piece, device));
        let next = BareDevice::open(folder.path()).unwrap();
        let held = || [0, 1, 2, 3].map(|at| next.is_claimed(page(at), RegionSize(page(1))));
        assert_eq!(held(), [false, true, true, false]);
        drop(mapping);
        assert_eq!(held(), [false; 4]);
        next.claim_extent(page(2), RegionSize(page(2))).unwrap();
    }

    #[test]
    fn refuses_a_function_that_is_bound_to_a_driver() {
        let folder = function(PAGE);
        std::os::unix::fs::symlink("../../drivers/isthmus", folder.path().join("driver")).unwrap();
        assert_eq!(BareDevice::driver(folder.path()).as_deref(), Some("isthmus"));
        assert!(matches!(BareDevice::open(folder.path()), Err(DeviceError::NotOurs { .. })));
    }
}
