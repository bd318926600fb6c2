//! A guest's device without the driver: its resources as the kernel shows them to root in `/sys`.
//!
//! The window is then not cached, and nobody can be woken. The kernel gives all of it or nothing: whoever has a descriptor of a part has the
//! window, and nothing is taken away from anybody. What remains to be known is who still has a part ([`file_claim`]). It is for guests in
//! which no module may be loaded.

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

/// A device by its resources.
#[derive(Debug)]
pub struct BareDevice {
    path: PathBuf,
    window: OwnedFd,
    size: RegionSize,
    registers: SharedMapping,
}

/// Where the kernel shows PCI functions.
const FUNCTIONS: &str = "/sys/bus/pci/devices";

/// QEMU's ivshmem.
const PCI_IDS: (&str, &str) = ("0x1af4", "0x1110");

/// What switches a function on.
const ENABLE: &str = "enable";

/// The window. Not `resource2_wc`: writes to memory of that type may be seen in another order than they were made.
const WINDOW: &str = "resource2";

/// Words of the registers.
const IV_POSITION: u32 = 2;
const DOORBELL: u32 = 3;

const PAGE: usize = 4096;

impl BareDevice {
    /// The folders of all such functions, whether or not a driver has them.
    pub fn functions() -> Vec<PathBuf> {
        let entries = std::fs::read_dir(FUNCTIONS).into_iter().flatten().flatten();
        let says = |folder: &Path, file: &str| std::fs::read_to_string(folder.join(file)).unwrap_or_default();
        let ours = |path: &PathBuf| (says(path, "vendor").trim(), says(path, "device").trim()) == PCI_IDS;
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(ours).collect();
        found.sort();
        found
    }

    /// The driver that has a function, by its name.
    pub fn driver(function: &Path) -> Option<String> {
        let driver = std::fs::read_link(function.join("driver")).ok()?;
        Some(driver.file_name()?.to_string_lossy().into_owned())
    }

    /// Switches a function on and takes its resources. One that a driver has is left to it.
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

    /// The function's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the window.
    pub fn size(&self) -> RegionSize {
        self.size
    }

    /// How it is cached: not at all.
    pub fn memory_type(&self) -> MemoryType {
        MemoryType::UncachedMinus
    }

    /// Our number among the device's peers.
    pub fn peer(&self) -> Option<u16> {
        u16::try_from(self.registers.load(IV_POSITION, Relaxed)).ok()
    }

    /// True when it was unplugged.
    pub fn is_gone(&self) -> bool {
        !self.path.exists()
    }

    /// A descriptor of the window for one of its parts, claimed as long as anybody has this descriptor or maps it. It begins in the file where it
    /// does in the window. [`Errno::AGAIN`] if somebody has any byte of it already.
    pub fn claim_extent(&self, at: u64, size: RegionSize) -> Result<OwnedFd, Errno> {
        self.check_range(at, size)?;
        let piece = open(&self.path, WINDOW, OFlags::RDWR)?;
        file_claim::claim(&piece, at, size.0)?;
        Ok(piece)
    }

    /// Whether anybody has any byte of this by [`Self::claim_extent`], be it of another process that served the device before.
    pub fn is_claimed(&self, at: u64, size: RegionSize) -> bool {
        file_claim::is_claimed(&self.window, at, size.0).unwrap_or(true)
    }

    fn check_range(&self, at: u64, size: RegionSize) -> Result<(), Errno> {
        let is_inside = size.0 > 0 && at.checked_add(size.0).is_some_and(|end| end <= self.size.0);
        if is_inside { Ok(()) } else { Err(Errno::RANGE) }
    }

    /// Maps a part of the window, whole pages. Where the device is unplugged, whoever touches that mapping is ended with SIGBUS: that is
    /// one of the things which the driver is for.
    pub fn map(&self, at: u64, size: RegionSize, access: Access) -> Result<Mapping, Errno> {
        self.check_range(at, size)?;
        let bytes = usize::try_from(size.0).map_err(|_| Errno::NOMEM)?;
        map(&self.window, at, bytes, access)
    }

    /// Rings a vector of a peer.
    pub fn ring(&self, peer: u16, vector: u16) {
        self.registers.fence(); // What was written to the window before has been seen.
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
    // SAFETY: made above, by us alone, and nobody unmaps it before its new owner; it is written only where it was mapped so. What a
    // device that is unplugged does to it ends the process and lets nothing be seen.
    Ok(unsafe { Mapping::from_raw(base, bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_shm::Payload;
    use std::fs;

    /// A folder as the kernel's, of files.
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
