//! A peer of a granted region can read it and do nothing else. A peer maps only memory that is sealed, filled and
//! plain.
#![cfg(not(miri))] // No memory files, mappings of them, or forks there.
#![allow(clippy::unwrap_used, reason = "tests")]

mod regcache_common;

use std::os::fd::{AsFd, OwnedFd};

use isthmus_shm::regcache::{OutsideRegion, PeerRegion, RegionGrant, RegionRefused, RegistrationCache};
use regcache_common::*;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect, munmap};

#[test]
fn a_granted_file_can_only_be_read() {
    let cache = RegistrationCache::new(config());
    let pages = Pages::filled(MIB, 1);
    let region = warm(&cache, pages.bytes());
    let RegionGrant { fd, start, len } = cache.grant(region.region).unwrap();
    attack(&fd, start, len);
    // A peer of the same user can open the file anew, with all rights: that helps it nothing.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    let anew = rustix::fs::open(path, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
    attack(&anew, start, len);
    assert_eq!(pages.bytes(), pattern(1, MIB));
    assert_eq!(seen_by_peer(&cache, &region), pattern(1, MIB));
}

fn attack(fd: &OwnedFd, start: u64, len: u64) {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    let map = |rights, flags| {
        // SAFETY: a new mapping at a place of the kernel's choice.
        unsafe { mmap(std::ptr::null_mut(), len as usize, rights, flags, fd.as_fd(), start) }
    };
    assert_eq!(map(both, MapFlags::SHARED), Err(Errno::PERM), "mapped writable");
    assert_eq!(rustix::io::pwrite(fd, b"x", start), Err(Errno::PERM), "written");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(fd, punch, start, len), Err(Errno::PERM), "punched");
    assert!(fallocate(fd, FallocateFlags::ZERO_RANGE, start, len).is_err(), "zeroed");
    for size in [0, start + 1, 1 << 41] {
        assert_eq!(ftruncate(fd, size), Err(Errno::PERM), "resized to {size}");
    }
    assert_eq!(fcntl_add_seals(fd, SealFlags::WRITE), Err(Errno::PERM), "sealed against its owner");
    let mapped = map(ProtFlags::READ, MapFlags::SHARED).unwrap();
    // SAFETY: the mapping just made.
    unsafe {
        let writable = mprotect(mapped, len as usize, MprotectFlags::READ | MprotectFlags::WRITE);
        assert_eq!(writable, Err(Errno::ACCESS), "made writable afterwards");
        assert!(madvise(mapped, len as usize, Advice::LinuxRemove).is_err(), "removed");
        munmap(mapped, len as usize).unwrap();
    }
}

#[test]
fn copies_stay_inside_the_extent() {
    let cache = RegistrationCache::new(config());
    let pages = Pages::filled(MIB, 2);
    let region = warm(&cache, pages.bytes());
    let theirs = granted(&cache, &region);
    let extent = theirs.extent();
    assert_eq!(extent, region.offset..region.offset + MIB as u64);
    let mut two = [0; 2];
    for offset in [extent.start.wrapping_sub(1), extent.end - 1, extent.end, u64::MAX, u64::MAX - 1] {
        assert_eq!(theirs.copy_out(offset, &mut two), Err(OutsideRegion { offset, len: 2 }));
    }
    assert_eq!(theirs.copy_out(extent.end - 2, &mut two), Ok(()));
    assert_eq!(two, pattern(2, MIB)[MIB - 2..]);
    assert_eq!(theirs.copy_out(extent.end, &mut []), Ok(()));
}

#[test]
fn gather_stays_inside_the_extent() {
    let cache = RegistrationCache::new(config());
    let pages = Pages::filled(MIB, 3);
    let region = warm(&cache, pages.bytes());
    let theirs = granted(&cache, &region);
    let extent = theirs.extent();
    for (offset, len) in
        [(extent.start.wrapping_sub(1), 2), (extent.end - 1, 2), (extent.start, MIB + 1), (u64::MAX, 2)]
    {
        assert_eq!(theirs.gather(offset, len).map(|found| found.len()), Err(OutsideRegion { offset, len }));
    }
    let mut copy = vec![0; MIB - 100];
    theirs.gather(extent.start + 100, MIB - 100).unwrap().copy_out(&mut copy);
    assert_eq!(copy, pattern(3, MIB)[100..]);
    assert!(theirs.gather(extent.end, 0).unwrap().is_empty());
}

#[test]
fn only_sealed_and_filled_plain_memory_is_mapped() {
    let full = |seals| memfd(MemfdFlags::ALLOW_SEALING, 1 << 20, 1 << 20, seals);
    let (shrink, write, future) = (SealFlags::SHRINK, SealFlags::WRITE, SealFlags::FUTURE_WRITE);
    let map = |fd: &OwnedFd, start, len| PeerRegion::map(fd, start, len, 1 << 20).map(drop);
    assert_eq!(map(&full(shrink | future), 0, 1 << 20), Ok(()));
    assert_eq!(map(&full(shrink | write), 4096, 4096), Ok(()));
    for seals in [SealFlags::empty(), shrink, future, write, SealFlags::GROW | future] {
        assert_eq!(map(&full(seals), 0, 1 << 20), Err(RegionRefused::NotSealed), "{seals:?}");
    }
    let fd = full(shrink | future);
    for (start, len) in [(0, 0), (1, 4096), (0, 4097), (0, (1 << 20) + 4096), (u64::MAX - 4095, 4096), (0, u64::MAX)] {
        assert_eq!(map(&fd, start, len), Err(RegionRefused::Extent { start, len, len_max: 1 << 20 }));
    }
    assert_eq!(map(&fd, 4096, 1 << 20), Err(RegionRefused::Short { have: 1 << 20, end: (1 << 20) + 4096 }));
    let holed = memfd(MemfdFlags::ALLOW_SEALING, 1 << 20, (1 << 20) - 4096, shrink | future);
    assert_eq!(map(&holed, 0, 1 << 20), Err(RegionRefused::Holes));
    assert_eq!(map(&holed, 0, (1 << 20) - 4096), Ok(()));
    let huge = memfd(MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB, 2 << 20, 0, shrink | future);
    assert_eq!(map(&huge, 0, 1 << 20), Err(RegionRefused::NotMemfd));
    for path in ["/proc/self/exe", "/dev/zero", "/dev/shm"] {
        let Ok(file) = std::fs::File::open(path) else { continue };
        let refused = map(&file.into(), 0, 4096).unwrap_err();
        assert!(matches!(refused, RegionRefused::NotMemfd | RegionRefused::NotSealed), "{path}: {refused}");
    }
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    assert_eq!(map(&pipe, 0, 4096), Err(RegionRefused::NotMemfd));
}

#[test]
fn region_stays_mapped_after_the_owner_releases_it() {
    let cache = RegistrationCache::new(config());
    let pages = Pages::filled(MIB, 3);
    let region = warm(&cache, pages.bytes());
    let theirs = granted(&cache, &region);
    let offset = region.offset;
    drop((region, cache, pages));
    let mut copy = vec![0; MIB];
    theirs.copy_out(offset, &mut copy).unwrap();
    assert_eq!(copy, pattern(3, MIB), "no SIGBUS, whatever the owner does");
}

fn memfd(flags: MemfdFlags, size: u64, filled: usize, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("test", flags | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, size).unwrap();
    if filled > 0 {
        assert_eq!(rustix::io::pwrite(&fd, &vec![1; filled], 0), Ok(filled));
    }
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}
