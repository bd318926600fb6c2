//! Forks, limits and locked memory: each in a process of its own.
#![cfg(not(miri))] // No memory files, mappings of them, or forks there.
#![allow(clippy::unwrap_used, reason = "tests")]

mod regcache_common;

use std::os::fd::AsFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use isthmus_shm::regcache::{CacheConfig, ColdReason, PeerRegion, Prepared, RegionGrantError, RegistrationCache};
use regcache_common::*;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, munlock};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

#[test]
fn fork_keeps_memory_private_both_ways() {
    in_own_process("fork_keeps_memory_private_both_ways", || {
        let cache = RegistrationCache::new(config());
        let mut pages = Pages::filled(MIB, 1);
        let region = warm(&cache, pages.bytes());
        let theirs = granted(&cache, &region);
        let (from_parent, to_child) = rustix::pipe::pipe().unwrap();
        let (from_child, to_parent) = rustix::pipe::pipe().unwrap();
        // SAFETY: the child only uses what this thread has made.
        let pid = unsafe { fork() };
        if pid == 0 {
            let mut byte = [0];
            rustix::io::read(&from_parent, &mut byte).unwrap();
            let unseen = pages.bytes() == pattern(1, MIB);
            pages.fill(3);
            rustix::io::write(&to_parent, &[1]).unwrap();
            std::process::exit(if unseen { 0 } else { 1 });
        }
        pages.fill(2);
        rustix::io::write(&to_child, &[1]).unwrap();
        rustix::io::read(&from_child, &mut [0]).unwrap();
        assert_eq!(pages.bytes(), pattern(2, MIB), "the child's write is seen by the parent");
        assert!(wait(pid), "the parent's write was seen by the child");
        let mut copy = vec![0; MIB];
        theirs.copy_out(region.offset, &mut copy).unwrap();
        assert_eq!(copy, pattern(1, MIB), "what was sent stays what was sent");
        assert_eq!(cache.take_released(), [region.region]);
        assert_eq!((cache.counts().forked, cache.counts().entries), (1, 0));
        assert_eq!(cache.grant(region.region).unwrap_err(), RegionGrantError::Gone);
        // And everything can begin again.
        let again = warm(&cache, pages.bytes());
        assert_eq!(seen_by_peer(&cache, &again), pattern(2, MIB));
    });
}

#[test]
fn a_child_starts_with_caches_of_its_own() {
    in_own_process("a_child_starts_with_caches_of_its_own", || {
        let cache = RegistrationCache::new(config());
        let pages = Pages::filled(MIB, 4);
        let region = warm(&cache, pages.bytes());
        let ended = in_child(fork, || {
            drop(region.region_use);
            assert_eq!(settled(&cache, pages.start, MIB).unwrap_err(), ColdReason::ForkChild);
            assert_eq!(cache.take_released(), [], "the parent tells the peers");
            drop(cache);
            let own = RegistrationCache::new(config());
            let region = warm(&own, pages.bytes());
            assert_eq!(seen_by_peer(&own, &region), pattern(4, MIB));
            assert!(in_child(fork, || assert_eq!(settled(&own, pages.start, MIB).unwrap_err(), ColdReason::ForkChild)));
        });
        assert!(ended);
    });
}

/// `_Fork` runs no handlers: memory stays shared, which is documented; the child's caches must find out all the same.
#[test]
fn a_child_of_a_bare_fork_finds_out() {
    in_own_process("a_child_of_a_bare_fork_finds_out", || {
        let cache = RegistrationCache::new(config());
        let pages = Pages::filled(MIB, 5);
        let region = warm(&cache, pages.bytes());
        let ended = in_child(_Fork, || {
            assert_eq!(settled(&cache, pages.start, MIB).unwrap_err(), ColdReason::ForkChild);
            assert_eq!(cache.grant(region.region).unwrap_err(), RegionGrantError::Gone);
            let own = RegistrationCache::new(config());
            assert_eq!(settled(&own, pages.start, MIB).unwrap_err(), ColdReason::Shared);
            let fresh = Pages::filled(MIB, 6);
            assert_eq!(seen_by_peer(&own, &warm(&own, fresh.bytes())), pattern(6, MIB));
        });
        assert!(ended);
        assert!(matches!(prepare(&cache, pages.bytes()), Prepared::Warm(_)), "the parent notices nothing");
    });
}

#[test]
fn threads_migrate_while_another_forks() {
    in_own_process("threads_migrate_while_another_forks", || {
        let cache = RegistrationCache::new(CacheConfig { uses_before_migration: 1, entries_max: 3, ..config() });
        let (go, stop) = (Barrier::new(3), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (cache, go, stop) = (&cache, &go, &stop);
                scope.spawn(move || {
                    let mut pages: Vec<_> = (0..3).map(|_| Pages::new(MIB / 4)).collect();
                    go.wait();
                    for seed in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let pages = &mut pages[seed % 3];
                        pages.fill(seed as u64 + thread);
                        if let Prepared::Warm(warm) = prepare(cache, pages.bytes()) {
                            // Given back in between, if a fork came: then there is nothing to grant.
                            if let Ok(grant) = cache.grant(warm.region) {
                                let theirs = PeerRegion::map(&grant.fd, grant.start, grant.len, 1 << 30).unwrap();
                                let mut copy = vec![0; warm.body.len()];
                                theirs.copy_out(warm.offset, &mut copy).unwrap();
                                assert!(copy == pages.bytes()[warm.body.clone()]);
                            }
                        }
                        assert!(pages.bytes() == pattern(seed as u64 + thread, MIB / 4));
                    }
                });
            }
            let mine = Pages::filled(MIB, 7);
            go.wait();
            for _ in 0..200 {
                drop(prepare(&cache, mine.bytes()));
                let ended = in_child(fork, || {
                    // The lock is free, and the memory is this child's own.
                    assert_eq!(cold(prepare(&cache, mine.bytes())), ColdReason::ForkChild);
                    assert!(is_private(mine.start) && mine.bytes() == pattern(7, MIB));
                    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
                    let shared = maps.lines().find(|line| line.contains("isthmus-migrated") && line.contains("rw-s"));
                    assert_eq!(shared, None, "migrated by another thread in the middle of the fork");
                });
                assert!(ended);
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(cache.counts().forked > 0);
    });
}

#[test]
fn a_heap_that_shrinks_and_grows_is_stale() {
    in_own_process("a_heap_that_shrinks_and_grows_is_stale", || {
        let cache = RegistrationCache::new(config());
        // SAFETY: malloc copes with a break that others move.
        let start = unsafe { sbrk(0) };
        let start = start.wrapping_add(start.align_offset(PAGE));
        let room = || {
            // SAFETY: as above; the memory is ours until the break goes back. No allocation happens in between.
            unsafe {
                let by = start.addr() + MIB - sbrk(0).addr();
                assert_ne!(sbrk(by as isize).addr(), usize::MAX);
                std::slice::from_raw_parts_mut(start, MIB)
            }
        };
        let bytes = room();
        let (old, new) = (pattern(8, MIB), pattern(9, MIB));
        bytes.copy_from_slice(&old);
        let region = warm(&cache, bytes);
        assert_eq!(seen_by_peer(&cache, &region), old);
        drop(region.region_use);
        assert!(bytes == old);
        // SAFETY: gives back what was taken. A large allocation of another thread would have moved the break: there
        // is none.
        assert_ne!(unsafe { sbrk(-(MIB as isize)) }.addr(), usize::MAX);
        let bytes = room();
        assert!(bytes.iter().all(|&byte| byte == 0), "fresh memory of the kernel's");
        bytes.copy_from_slice(&new);
        assert_eq!(cold(prepare(&cache, bytes)), ColdReason::Stale);
        let region = warm(&cache, bytes);
        assert_eq!(seen_by_peer(&cache, &region), new);
        drop((region, cache));
        assert!(bytes == new);
    });
}

#[test]
fn locked_memory_is_left_alone() {
    in_own_process("locked_memory_is_left_alone", || {
        let cache = RegistrationCache::new(config());
        let (pages, other) = (Pages::filled(MIB, 10), Pages::filled(MIB, 10));
        // SAFETY: plain memory of ours.
        unsafe { mlock(other.start.cast(), PAGE) }.unwrap();
        assert_eq!(settled(&cache, pages.start, MIB).unwrap_err(), ColdReason::Pinned);
        // SAFETY: as above.
        unsafe { munlock(other.start.cast(), PAGE) }.unwrap();
        assert!(settled(&cache, pages.start, MIB).is_ok());
    });
}

#[test]
fn prepare_is_cold_without_file_descriptors() {
    in_own_process("prepare_is_cold_without_file_descriptors", || {
        let cache = RegistrationCache::new(config());
        let (first, second) = (Pages::filled(MIB, 11), Pages::filled(MIB, 12));
        let early = RegistrationCache::new(config());
        let all = hoard();
        assert_eq!(
            settled(&early, first.start, MIB).unwrap_err(),
            ColdReason::DescriptorLimit,
            "not even /proc/self/maps"
        );
        drop(all);
        let region = warm(&cache, first.bytes());
        let all = hoard();
        assert_eq!(settled(&cache, second.start, MIB).unwrap_err(), ColdReason::DescriptorLimit);
        assert!(matches!(cache.grant(region.region).unwrap_err(), RegionGrantError::Descriptor(_)));
        assert!(matches!(prepare(&cache, first.bytes()), Prepared::Warm(_)), "what is warm stays warm");
        assert_eq!((first.bytes(), second.bytes()), (&pattern(11, MIB)[..], &pattern(12, MIB)[..]));
        drop(all);
        assert_eq!(rights(second.start).unwrap(), "rw-p");
        assert!(settled(&cache, second.start, MIB).is_ok());
    });
}

/// Takes every descriptor there is.
fn hoard() -> Vec<std::os::fd::OwnedFd> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
    std::iter::from_fn(|| rustix::io::fcntl_dupfd_cloexec(std::io::stdout().as_fd(), 3).ok()).collect()
}

#[test]
fn no_address_space_is_needed() {
    in_own_process("no_address_space_is_needed", || {
        let cache = RegistrationCache::new(config());
        let pages = Pages::filled(64 * MIB, 13);
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages_used: u64 = status.split(' ').next().unwrap().parse().unwrap();
        let limit = getrlimit(Resource::As);
        let tight = Some(pages_used * PAGE as u64 + (2 << 20));
        setrlimit(Resource::As, Rlimit { current: tight, ..limit }).unwrap();
        let region = warm(&cache, pages.bytes());
        drop(region);
        drop(cache);
        setrlimit(Resource::As, limit).unwrap();
        assert!(is_private(pages.start) && pages.bytes() == pattern(13, 64 * MIB));
    });
}

#[test]
fn a_limit_of_file_sizes_sends_no_signal() {
    in_own_process("a_limit_of_file_sizes_sends_no_signal", || {
        let cache = RegistrationCache::new(config());
        let pages = Pages::filled(MIB, 14);
        let limit = getrlimit(Resource::Fsize);
        setrlimit(Resource::Fsize, Rlimit { current: Some(1 << 20), ..limit }).unwrap();
        assert_eq!(settled(&cache, pages.start, MIB).unwrap_err(), ColdReason::FileSizeLimit);
        setrlimit(Resource::Fsize, limit).unwrap();
        assert!(pages.bytes() == pattern(14, MIB));
        assert!(settled(&cache, pages.start, MIB).is_ok());
    });
}

#[test]
fn at_the_limit_of_mappings_nothing_is_lost() {
    in_own_process("at_the_limit_of_mappings_nothing_is_lost", || {
        let max: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
        if max > 200_000 {
            eprintln!("skipped: {max} mappings are too many to make");
            return;
        }
        let cache = RegistrationCache::new(config());
        // In the middle of a mapping, which would have to become three.
        let pages = Pages::filled(MIB, 15);
        let many = Pages::new(max * PAGE);
        let page_of = |index: usize, rights| {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            // SAFETY: within our own reservation.
            unsafe { rustix::mm::mmap_anonymous(many.at(index * PAGE).cast(), PAGE, rights, flags) }
        };
        let made = (0..max / 2).take_while(|index| page_of(2 * index, ProtFlags::READ).is_ok()).count();
        assert!(made < max / 2 && page_of(2 * made + 1, ProtFlags::READ).is_err(), "the limit is reached");
        let middle = &pages.bytes()[MIB / 4..MIB / 2];
        assert_eq!(settled(&cache, middle.as_ptr(), middle.len()).unwrap_err(), ColdReason::MemoryLimit);
        assert!(pages.bytes() == pattern(15, MIB));
        drop(many);
        assert!(settled(&cache, middle.as_ptr(), middle.len()).is_ok());
        assert!(pages.bytes() == pattern(15, MIB));
    });
}

/// Allocators use `MADV_DONTNEED` to clear memory. On our pages it cannot do that, so it must not pretend to.
#[test]
fn a_request_for_zeroes_is_refused_rather_than_ignored() {
    in_own_process("a_request_for_zeroes_is_refused_rather_than_ignored", || {
        let cache = RegistrationCache::new(CacheConfig::default());
        let mut pages = Pages::filled(MIB, 16);
        let discard = |pages: &Pages| {
            // SAFETY: within our own reservation.
            let answer = unsafe { madvise(pages.start.cast(), MIB, Advice::LinuxDontNeed) };
            answer.is_err() || pages.bytes().iter().all(|&byte| byte == 0)
        };
        let region = warm(&cache, pages.bytes());
        assert!(discard(&pages) && pages.bytes() == pattern(16, MIB), "refused while migrated");
        drop(region.region_use);
        assert!(in_child(fork, || assert!(discard(&pages), "old bytes in a child")));
        assert!(discard(&pages), "old bytes after a fork");
        pages.fill(17);
        drop(warm(&cache, pages.bytes()));
        drop(cache);
        pages.fill(18);
        assert!(discard(&pages), "old bytes after the end of the cache");
    });
}

#[test]
fn the_limit_of_locked_memory_is_respected() {
    in_own_process("the_limit_of_locked_memory_is_respected", || {
        let mut mine = capabilities(None).unwrap();
        mine.effective.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, mine).unwrap();
        let limit = getrlimit(Resource::Memlock);
        setrlimit(Resource::Memlock, Rlimit { current: Some(4 << 20), ..limit }).unwrap();
        let cache = RegistrationCache::new(CacheConfig::default());
        let (first, second) = (Pages::filled(3 * MIB, 19), Pages::filled(MIB, 20));
        let region = warm(&cache, first.bytes());
        assert_eq!(settled(&cache, second.start, MIB).unwrap_err(), ColdReason::LockLimit);
        assert_eq!(rights(second.start).unwrap(), "rw-p");
        drop(region);
        drop(first);
        assert!(settled(&cache, second.start, MIB).is_ok(), "freed memory is not locked any more");
        let vouched = RegistrationCache::new(config());
        let large = Pages::filled(8 * MIB, 21);
        assert!(settled(&vouched, large.start, large.len).is_ok());
        assert!(second.bytes() == pattern(20, MIB) && large.bytes() == pattern(21, 8 * MIB));
    });
}
