//! The cache of migrated buffers against the kernel: what is warm, what is stale, what is left alone.
#![cfg(not(miri))] // No memory files, mappings of them, or forks there.
#![allow(clippy::unwrap_used, reason = "tests")]

mod regcache_common;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use isthmus_shm::regcache::{CacheConfig, ColdReason, Prepared, RegionGrantError, RegistrationCache};
use regcache_common::*;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap, mprotect, mremap, mremap_fixed, munmap,
};

#[test]
fn the_second_use_is_warm_and_no_byte_changes() {
    let cache = RegistrationCache::new(config());
    let all = pattern(1, MIB + 12_345);
    let buffer = &all[777..];
    let expected = buffer.to_vec();
    assert_eq!(cold(prepare(&cache, buffer)), ColdReason::FirstUse);
    for _ in 0..3 {
        let Prepared::Warm(warm) = prepare(&cache, buffer) else { panic!("cold at the second use") };
        assert_eq!(buffer, expected);
        assert_eq!(seen_by_peer(&cache, &warm), expected[warm.body.clone()]);
        assert_eq!((warm.head.start, warm.head.end), (0, warm.body.start));
        assert_eq!((warm.tail.start, warm.tail.end), (warm.body.end, buffer.len()));
        assert!(warm.head.len() < PAGE && warm.tail.len() < PAGE);
    }
    assert_eq!((cache.counts().migrated, cache.counts().warm, cache.counts().entries), (1, 2, 1));
    drop(cache);
    assert_eq!(buffer, expected, "given back");
    assert!(is_private(buffer[PAGE..].as_ptr()));
}

/// Which of the buffers needs an extent, each used once.
fn needing(cache: &RegistrationCache, buffers: &[Pages]) -> Vec<usize> {
    let needs = |buffer: &Pages| match prepare_onto_extents(cache, buffer.bytes()) {
        Prepared::NeedsExtent { .. } => true,
        cold => {
            assert_eq!(regcache_common::cold(cold), ColdReason::FirstUse);
            false
        }
    };
    (0..buffers.len()).filter(|&at| needs(&buffers[at])).collect()
}

#[test]
fn buffers_that_come_in_turn_leave_one_another_the_extents_that_were_asked_for_them() {
    let cache = RegistrationCache::new(config());
    let buffers: Vec<Pages> = (0..16).map(|seed| Pages::filled(MIB / 4, seed)).collect();
    assert_eq!(needing(&cache, &buffers), [], "the first use is no sign of another one");
    assert_eq!(needing(&cache, &buffers), [0, 1, 2, 3]);
    for _ in 0..4 {
        assert_eq!(needing(&cache, &buffers), []);
    }
    assert_eq!(cache.take_released().len(), 0);
    // Buffers that do not come again do not keep them for ever.
    let needed: usize = (0..100).map(|_| needing(&cache, &buffers[8..]).len()).sum();
    assert!(needed > 0 && cache.take_released().len() >= 4, "{needed}");
}

#[test]
fn off_and_small_are_cold() {
    let off = RegistrationCache::new(CacheConfig { enabled: false, ..config() });
    let buffer = pattern(2, MIB);
    assert_eq!(settled(&off, buffer.as_ptr(), buffer.len()).unwrap_err(), ColdReason::Disabled);
    let cache = RegistrationCache::new(CacheConfig { bytes_min: 0, ..config() });
    assert_eq!(settled(&cache, buffer.as_ptr(), 100).unwrap_err(), ColdReason::TooSmall);
    let cache = RegistrationCache::new(config());
    assert_eq!(settled(&cache, buffer.as_ptr(), 65_535).unwrap_err(), ColdReason::TooSmall);
    assert_eq!(cache.cold_counts().find(|(reason, _)| *reason == ColdReason::TooSmall).unwrap().1, 1);
}

#[test]
fn a_part_of_a_region_is_warm_at_once() {
    let cache = RegistrationCache::new(config());
    let pages = Pages::filled(MIB, 3);
    let whole = warm(&cache, pages.bytes());
    let part = &pages.bytes()[300_000..500_000];
    let Prepared::Warm(inner) = prepare(&cache, part) else { panic!("cold") };
    assert_eq!(inner.region, whole.region);
    assert_eq!(seen_by_peer(&cache, &inner), &pages.bytes()[300_000..500_000][inner.body.clone()]);
    let theirs = granted(&cache, &whole);
    let mut copy = vec![0; inner.body.len()];
    theirs.copy_out(inner.offset, &mut copy).unwrap();
    assert_eq!(copy, part[inner.body], "offsets count from the same place");
}

#[test]
fn a_peer_sees_later_writes_until_the_region_is_given_back() {
    let cache = RegistrationCache::new(config());
    let mut pages = Pages::filled(MIB, 4);
    let region = warm(&cache, pages.bytes());
    let theirs = granted(&cache, &region);
    let mut copy = vec![0; MIB];
    drop(region.region_use);
    for seed in 5..8 {
        pages.fill(seed);
        theirs.copy_out(region.offset, &mut copy).unwrap();
        assert_eq!(copy, pages.bytes());
    }
    let before = copy.clone();
    drop(cache);
    pages.fill(9);
    theirs.copy_out(region.offset, &mut copy).unwrap();
    assert_eq!(copy, before, "what was written after the end of the cache is private");
    assert_eq!(pages.bytes(), pattern(9, MIB));
}

#[test]
fn other_memory_at_the_same_addresses_is_stale() {
    let cache = RegistrationCache::new(config());
    let mut pages = Pages::filled(MIB, 10);
    let old = warm(&cache, pages.bytes());
    let theirs = granted(&cache, &old);
    drop(old.region_use);
    pages.map_anew();
    pages.fill(11);
    assert_eq!(cold(prepare(&cache, pages.bytes())), ColdReason::Stale);
    assert_eq!(pages.bytes(), pattern(11, MIB));
    assert_eq!(cache.take_released(), [old.region]);
    assert_eq!(cache.grant(old.region).unwrap_err(), RegionGrantError::Gone);
    let mut copy = vec![0; MIB];
    theirs.copy_out(old.offset, &mut copy).unwrap();
    assert_eq!(copy, pattern(10, MIB), "a descriptor sent before remains good");
    let new = warm(&cache, pages.bytes());
    assert_ne!(new.region, old.region);
    assert_eq!(seen_by_peer(&cache, &new), pattern(11, MIB));
}

#[test]
fn a_freed_and_reallocated_vector_never_shows_old_bytes() {
    let cache = RegistrationCache::new(config());
    let (mut seen, mut same_place) = (None, 0);
    for seed in 0..40 {
        let buffer = pattern(seed, 3 * MIB + 1);
        same_place += usize::from(seen.replace(buffer.as_ptr()) == Some(buffer.as_ptr()));
        for _ in 0..4 {
            if let Prepared::Warm(warm) = prepare(&cache, &buffer) {
                assert_eq!(seen_by_peer(&cache, &warm), buffer[warm.body]);
            }
        }
        assert!(buffer == pattern(seed, 3 * MIB + 1));
    }
    assert!(same_place > 0, "the allocator never used an address again: this test has shown nothing");
}

#[test]
fn another_file_at_the_same_place_and_offset_does_not_pass() {
    let cache = RegistrationCache::new(config());
    let pages = Pages::filled(MIB, 12);
    let Warmed { offset, .. } = Warmed::of(&cache, &pages);
    let file = rustix::fs::memfd_create("isthmus-migrated", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 1 << 40).unwrap();
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
    // SAFETY: within our own reservation.
    unsafe { mmap(pages.start.cast(), MIB, rights, flags, &file, offset) }.unwrap();
    assert_eq!(cold(prepare(&cache, pages.bytes())), ColdReason::Stale);
    assert_eq!(settled(&cache, pages.start, MIB).unwrap_err(), ColdReason::Shared);
}

#[test]
fn a_private_mapping_of_the_same_file_does_not_pass() {
    let cache = RegistrationCache::new(config());
    let mut pages = Pages::filled(MIB, 26);
    let grant = cache.grant(Warmed::of(&cache, &pages).region).unwrap();
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
    // SAFETY: within our own reservation.
    unsafe { mmap(pages.start.cast(), MIB, rights, flags, &grant.fd, grant.start) }.unwrap();
    pages.fill(27);
    assert_eq!(cold(prepare(&cache, pages.bytes())), ColdReason::Stale);
    assert_eq!(seen_by_peer(&cache, &warm(&cache, pages.bytes())), pattern(27, MIB));
}

#[test]
fn the_same_file_at_another_offset_does_not_pass() {
    // Other tests must not find the holes that this one makes.
    in_own_process("the_same_file_at_another_offset_does_not_pass", || {
        let cache = RegistrationCache::new(config());
        let pages = Pages::filled(MIB, 13);
        let _ = Warmed::of(&cache, &pages);
        // Two parts of the region change places: file, rights and addresses are as before.
        let aside = Pages::new(MIB / 2);
        let flags = MremapFlags::MAYMOVE;
        // SAFETY: within our own reservations.
        unsafe {
            mremap_fixed(pages.start.cast(), MIB / 2, MIB / 2, flags, aside.start.cast()).unwrap();
            mremap_fixed(pages.at(MIB / 2).cast(), MIB / 2, MIB / 2, flags, pages.start.cast()).unwrap();
            mremap_fixed(aside.start.cast(), MIB / 2, MIB / 2, flags, pages.at(MIB / 2).cast()).unwrap();
        }
        assert_eq!(cold(prepare(&cache, &pages.bytes()[..MIB / 2])), ColdReason::Stale);
        let expected = pattern(13, MIB);
        assert!(pages.bytes()[..MIB / 2] == expected[MIB / 2..] && pages.bytes()[MIB / 2..] == expected[..MIB / 2]);
        assert!(is_private(pages.start) && is_private(pages.at(MIB / 2)));
    });
}

#[test]
fn moved_pages_are_found_and_given_back() {
    // Other tests must not find the holes that this one makes.
    in_own_process("moved_pages_are_found_and_given_back", || {
        let cache = RegistrationCache::new(config());
        let mut pages = Pages::filled(MIB, 14);
        let before = Warmed::of(&cache, &pages);
        let elsewhere = Pages::new(MIB);
        let flags = MremapFlags::MAYMOVE;
        // SAFETY: within our own reservations.
        unsafe { mremap_fixed(pages.start.cast(), MIB, MIB, flags, elsewhere.start.cast()) }.unwrap();
        pages.map_anew();
        assert!(!is_private(elsewhere.start), "still the region's pages");
        assert_eq!(cold(prepare(&cache, pages.bytes())), ColdReason::Stale);
        assert!(is_private(elsewhere.start));
        assert_eq!(elsewhere.bytes(), pattern(14, MIB));
        // What was given back can be migrated again.
        let again = warm(&cache, elsewhere.bytes());
        assert_ne!(again.region, before.region);
        assert_eq!(seen_by_peer(&cache, &again), pattern(14, MIB));
    });
}

#[test]
fn a_mapping_enlarged_by_mremap_has_memory_at_its_end() {
    // Other tests must not find the holes that this one makes.
    in_own_process("a_mapping_enlarged_by_mremap_has_memory_at_its_end", || {
        let cache = RegistrationCache::new(config());
        let pages = Pages::filled(MIB, 15);
        let _ = Warmed::of(&cache, &pages);
        // SAFETY: within our own reservation; the kernel finds a place for the larger mapping.
        let grown = unsafe { mremap(pages.start.cast(), MIB, 8 * MIB, MremapFlags::MAYMOVE) }.unwrap().cast::<u8>();
        // SAFETY: mapped for this length, by the line above.
        let bytes = unsafe { std::slice::from_raw_parts_mut(grown, 8 * MIB) };
        assert!(bytes[..MIB] == pattern(15, MIB) && bytes[MIB..].iter().all(|&byte| byte == 0));
        bytes[MIB..].copy_from_slice(&pattern(16, 7 * MIB));
        drop(cache);
        assert!(is_private(grown) && is_private(grown.wrapping_add(8 * MIB - 1)));
        assert!(bytes[..MIB] == pattern(15, MIB) && bytes[MIB..] == pattern(16, 7 * MIB));
        // SAFETY: mapped above.
        unsafe { munmap(grown.cast(), 8 * MIB) }.unwrap();
    });
}

#[test]
fn a_hole_in_the_middle_is_stale_and_the_rest_is_kept() {
    // Other tests must not find the holes that this one makes.
    in_own_process("a_hole_in_the_middle_is_stale_and_the_rest_is_kept", || {
        let cache = RegistrationCache::new(config());
        let pages = Pages::filled(MIB, 17);
        let _ = Warmed::of(&cache, &pages);
        // SAFETY: within our own reservation.
        unsafe { munmap(pages.at(MIB / 2).cast(), 8 * PAGE) }.unwrap();
        let rest = &pages.bytes()[MIB / 2 + 8 * PAGE..];
        assert!(matches!(prepare(&cache, rest), Prepared::Warm(_)), "this part is as it was");
        assert_eq!(cold(prepare_at(&cache, pages.start, MIB)), ColdReason::Stale);
        assert_eq!(settled(&cache, pages.start, MIB).unwrap_err(), ColdReason::Unmapped);
        let expected = pattern(17, MIB);
        assert!(rest == &expected[MIB / 2 + 8 * PAGE..] && pages.bytes()[..MIB / 2] == expected[..MIB / 2]);
        assert!(is_private(pages.start) && is_private(rest.as_ptr()));
        assert_eq!(rights(pages.at(MIB / 2)), None, "the hole stays a hole");
    });
}

#[test]
fn rights_are_respected_and_kept() {
    let cache = RegistrationCache::new(config());
    let pages = Pages::filled(MIB, 18);
    // SAFETY: within our own reservation.
    let protect = |flags| unsafe { mprotect(pages.start.cast(), MIB / 2, flags) }.unwrap();
    protect(MprotectFlags::READ);
    assert_eq!(settled(&cache, pages.start, MIB).unwrap_err(), ColdReason::NotWritable);
    protect(MprotectFlags::READ | MprotectFlags::WRITE);
    let region = warm(&cache, pages.bytes());
    assert_eq!(rights(pages.start).unwrap(), "rw-s");
    protect(MprotectFlags::READ);
    assert!(matches!(prepare(&cache, pages.bytes()), Prepared::Warm(_)), "still the region, in two mappings");
    drop(region);
    drop(cache);
    assert_eq!([0, MIB / 2].map(|at| rights(pages.at(at)).unwrap()), ["r--p", "rw-p"]);
    assert_eq!(pages.bytes(), pattern(18, MIB));
}

#[test]
fn special_memory_is_left_alone() {
    let cache = RegistrationCache::new(config());
    let refused = |pages: &Pages| {
        let reason = settled(&cache, pages.start, pages.len).unwrap_err();
        assert_eq!(rights(pages.start).unwrap(), "rw-p");
        reason
    };
    for advice in [Advice::LinuxDontDump, Advice::LinuxWipeOnFork, Advice::LinuxDontFork] {
        let pages = Pages::filled(MIB, 19);
        // SAFETY: within our own reservation; changes no contents.
        unsafe { madvise(pages.at(MIB / 2).cast(), PAGE, advice) }.unwrap();
        assert_eq!(refused(&pages), ColdReason::SpecialMemory, "{advice:?}");
    }
    let pages = Pages::filled(MIB, 20);
    let exe = std::fs::File::open("/proc/self/exe").unwrap();
    let (rights, fixed) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::FIXED);
    // SAFETY: within our own reservation.
    unsafe { mmap(pages.at(PAGE).cast(), PAGE, rights, MapFlags::PRIVATE | fixed, exe.as_fd(), 0) }.unwrap();
    assert_eq!(refused(&pages), ColdReason::NotAnonymous, "one page of a file");
    let pages = Pages::filled(MIB, 21);
    // SAFETY: within our own reservation.
    unsafe { rustix::mm::mmap_anonymous(pages.at(PAGE).cast(), PAGE, rights, MapFlags::SHARED | fixed) }.unwrap();
    assert_eq!(refused(&pages), ColdReason::Shared);
    let pages = Pages::filled(MIB, 22);
    // SAFETY: within our own reservation.
    unsafe {
        rustix::mm::mmap_anonymous(pages.at(PAGE).cast(), PAGE, rights | ProtFlags::EXEC, MapFlags::PRIVATE | fixed)
    }
    .unwrap();
    assert_eq!(refused(&pages), ColdReason::SpecialMemory, "a page to be executed");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let stack = range_of(maps.lines().find(|line| line.ends_with("[stack]")).unwrap());
    let reason = settled(&cache, std::ptr::with_exposed_provenance(stack.start), stack.len()).unwrap_err();
    assert!(matches!(reason, ColdReason::SpecialMemory | ColdReason::NotAnonymous), "{reason}");
    assert_eq!(cache.counts().migrated, 0);
}

#[test]
fn a_second_cache_leaves_the_pages_of_the_first_alone() {
    let (first, second) = (RegistrationCache::new(config()), RegistrationCache::new(config()));
    let pages = Pages::filled(MIB, 23);
    let _held = warm(&first, pages.bytes());
    assert_eq!(settled(&second, pages.start, MIB).unwrap_err(), ColdReason::Shared);
}

#[test]
fn the_least_recently_used_goes_first() {
    let cache = small_cache(2, 1 << 30);
    let pages: Vec<_> = (0..3).map(|seed| Pages::filled(MIB, seed)).collect();
    let keys: Vec<_> = pages[..2].iter().map(|pages| warm(&cache, pages.bytes()).region).collect();
    keys.iter().for_each(|&key| drop(cache.grant(key).unwrap()));
    assert!(matches!(prepare(&cache, pages[0].bytes()), Prepared::Warm(_)), "now the other one is the older");
    let third = warm(&cache, pages[2].bytes());
    assert_eq!(cache.take_released(), [keys[1]]);
    assert!(cache.grant(keys[0]).is_ok() && is_private(pages[1].start) && cache.counts().evicted == 1);
    drop(third);
    let fourth = Pages::filled(MIB, 4);
    let _fourth = warm(&cache, fourth.bytes());
    assert_eq!(cache.take_released(), [keys[0]]);
    let fifth = Pages::filled(MIB, 5);
    let _fifth = warm(&cache, fifth.bytes());
    assert_eq!(cache.take_released(), [], "the third was never granted, so no peer needs a release");
    (0..3).for_each(|seed| assert_eq!(pages[seed].bytes(), pattern(seed as u64, MIB)));
}

#[test]
fn bytes_are_bounded_and_what_is_in_use_stays() {
    let cache = small_cache(8, 3 * MIB);
    let pages: Vec<_> = (0..3).map(|seed| Pages::filled(3 * MIB / 2, seed)).collect();
    let (first, second) = (warm(&cache, pages[0].bytes()), warm(&cache, pages[1].bytes()));
    assert_eq!(settled(&cache, pages[2].start, 3 * MIB / 2).unwrap_err(), ColdReason::CacheFull);
    drop(second);
    let third = warm(&cache, pages[2].bytes());
    assert_eq!((cache.counts().evicted, cache.counts().bytes), (1, 3 * MIB));
    assert!(cache.grant(first.region).is_ok() && cache.grant(third.region).is_ok() && is_private(pages[1].start));
    let large = Pages::filled(4 * MIB, 9);
    drop((first, third));
    assert_eq!(settled(&cache, large.start, large.len).unwrap_err(), ColdReason::CacheFull);
    assert_eq!(cache.counts().evicted, 1, "no eviction is useless");
}

#[test]
fn a_larger_buffer_takes_the_place_of_a_smaller_one() {
    let cache = RegistrationCache::new(config());
    let pages = Pages::filled(2 * MIB, 24);
    let small = warm(&cache, &pages.bytes()[..MIB]);
    assert_eq!(settled(&cache, pages.start, 2 * MIB).unwrap_err(), ColdReason::InUse);
    drop(small.region_use);
    let large = warm(&cache, pages.bytes());
    assert_eq!((large.body.clone(), cache.counts().overlapped, cache.counts().entries), (0..2 * MIB, 1, 1));
    assert_eq!(seen_by_peer(&cache, &large), pattern(24, 2 * MIB));
    assert_eq!(cache.grant(small.region).unwrap_err(), RegionGrantError::Gone);
}

#[test]
fn a_buffer_that_is_freed_each_time_soon_costs_nothing() {
    let cache = RegistrationCache::new(config());
    let mut pages = Pages::new(MIB);
    for seed in 0..500 {
        pages.map_anew();
        pages.bytes_mut()[..8].copy_from_slice(&u64::to_ne_bytes(seed));
        if let Prepared::Warm(warm) = prepare(&cache, pages.bytes()) {
            assert_eq!(seen_by_peer(&cache, &warm)[..8], u64::to_ne_bytes(seed));
        }
    }
    assert!(cache.counts().migrated <= 9, "migrated {} times for nothing", cache.counts().migrated);
}

/// Threads which write a buffer that is *not* being sent lose no write, whatever happens to its region.
#[test]
fn giving_back_loses_no_write_of_another_thread() {
    let pages = Pages::filled(MIB, 0);
    let counters = MIB / PAGE;
    let counter = |index: usize| {
        // SAFETY: aligned, mapped, and touched by atomics only.
        unsafe { &*pages.at(index * PAGE).cast::<AtomicU64>() }
    };
    (0..counters).for_each(|index| counter(index).store(0, Ordering::Relaxed));
    for _ in 0..30 {
        let cache = RegistrationCache::new(CacheConfig { uses_before_migration: 1, ..config() });
        drop(warm(&cache, pages.bytes()));
        let started = AtomicBool::new(false);
        let before = counter(0).load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0..200 {
                    (0..counters).for_each(|index| _ = counter(index).fetch_add(1, Ordering::Relaxed));
                    started.store(round > 3, Ordering::Release);
                }
            });
            while !started.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            drop(cache);
            writer.join().unwrap();
        });
        (0..counters).for_each(|index| assert_eq!(counter(index).load(Ordering::Relaxed), before + 200));
    }
}

/// Buffers are written, sent, resized and freed in any order; a peer that copies out of regions always sees what was
/// sent.
#[test]
fn a_peer_always_sees_what_was_sent() {
    let cache = small_cache(6, 4 * MIB);
    let random = pattern(25, 8 * 6000).into_iter().array_chunks_of_8().map(u64::from_ne_bytes);
    let mut buffers: Vec<Vec<u8>> = (0..12).map(|seed| pattern(seed, 100_000)).collect();
    let mut shadows = buffers.clone();
    for word in random {
        let which = (word >> 8) as usize % buffers.len();
        let (buffer, shadow) = (&mut buffers[which], &mut shadows[which]);
        match word % 16 {
            0 => {
                let len = 64_000 + (word >> 16) as usize % 900_000;
                *shadow = pattern(word, len);
                *buffer = shadow.clone();
            }
            1 => {
                let len = 64_000 + (word >> 16) as usize % 900_000;
                buffer.resize(len, word as u8);
                shadow.resize(len, word as u8);
                buffer.shrink_to_fit();
            }
            2..6 => {
                let at = (word >> 16) as usize % (shadow.len() - 5000);
                let bytes = pattern(word, 5000);
                buffer[at..at + 5000].copy_from_slice(&bytes);
                shadow[at..at + 5000].copy_from_slice(&bytes);
            }
            _ => {
                if let Prepared::Warm(warm) = prepare(&cache, buffer) {
                    assert!(seen_by_peer(&cache, &warm) == shadow[warm.body]);
                }
            }
        }
        assert!(buffer == shadow);
        drop(cache.take_released());
    }
    let counts = cache.counts();
    assert!(counts.warm > 100 && counts.migrated > 20 && counts.evicted + counts.stale > 5, "{counts:?}");
}

/// The facts about a region that was warm and is not in use any more.
struct Warmed {
    region: isthmus_shm::regcache::RegionKey,
    offset: u64,
}

impl Warmed {
    fn of(cache: &RegistrationCache, pages: &Pages) -> Self {
        let warm = warm(cache, pages.bytes());
        Self { region: warm.region, offset: warm.offset }
    }
}

trait Chunks: Iterator<Item = u8> + Sized {
    fn array_chunks_of_8(mut self) -> impl Iterator<Item = [u8; 8]> {
        std::iter::from_fn(move || {
            let mut chunk = [0; 8];
            for byte in &mut chunk {
                *byte = self.next()?;
            }
            Some(chunk)
        })
    }
}

impl<I: Iterator<Item = u8>> Chunks for I {}
