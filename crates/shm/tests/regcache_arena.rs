//! Registered memory: what peers may do in it by themselves, and what is left of that when it is closed.
#![cfg(not(any(miri, loom)))] // No memory files or mappings of them there.
#![allow(clippy::unwrap_used, reason = "tests")]

mod regcache_common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use isthmus_layout::DomainId;
use isthmus_layout::arena::{READ, WRITE};
use isthmus_shm::regcache::ColdReason;
use isthmus_shm::regcache::arena::{AccessRights, Arena, ArenaMapping, Evicted, Registration};
use regcache_common::*;
use rustix::mm::{Advice, MremapFlags, madvise, mremap_fixed};

/// Pages as numbers, which threads touch by atomics only.
fn words(pages: &Pages) -> &[AtomicU64] {
    // SAFETY: mapped as long as `pages`, aligned; these tests reach them by this only, and by accesses.
    unsafe { std::slice::from_raw_parts(pages.start.cast(), pages.len / 8) }
}

fn registration(pages: &Pages, key: u64, rights: u32) -> Registration {
    // SAFETY: the registrations of these tests are closed before their pages are unmapped, or the tests know what they do.
    unsafe { Registration::new(pages.start, pages.len, key, rights) }
}

/// Whether memory can be registered here at all: a test has more than one thread.
fn possible() -> bool {
    let pages = Pages::new(PAGE);
    let here = arena().register(&registration(&pages, 1, WRITE)).err();
    if let Some(why) = here {
        eprintln!("skipped: {why}: it takes userfaultfd (CAP_SYS_PTRACE) and memory that may be locked");
    }
    here.is_none()
}

fn arena() -> Arc<Arena> {
    Arc::new(Arena::new().unwrap())
}

fn arena_mapping(arena: &Arena) -> ArenaMapping {
    mapping_of(arena, 7)
}

fn mapping_of(arena: &Arena, domain: u32) -> ArenaMapping {
    ArenaMapping::new(arena.grant().unwrap(), DomainId::new(domain).unwrap()).unwrap()
}

/// Adds one to a number that lies in an arena. False if it has to be asked of its owner.
fn add(arena_mapping: &mut ArenaMapping, key: u64, offset: u64) -> bool {
    let Some(access) = arena_mapping.access(key, offset, 8, AccessRights::Both) else { return false };
    // SAFETY: eight aligned bytes, which the access keeps in place.
    unsafe { AtomicU64::from_ptr(access.pointer().as_ptr().cast()) }.fetch_add(1, Ordering::Relaxed);
    access.finish().is_ok()
}

#[test]
fn peers_access_memory_only_while_it_is_registered() {
    if !possible() {
        return;
    }
    let (arena, pages) = (arena(), Pages::new(3 << 20));
    words(&pages)[5].store(41, Ordering::Relaxed);
    let mut arena_mapping = arena_mapping(&arena);
    assert!(!add(&mut arena_mapping, 1, 40), "nothing is there yet");
    let registered = arena.register(&registration(&pages, 1, READ | WRITE)).unwrap();
    assert!(add(&mut arena_mapping, 1, 40));
    assert_eq!(words(&pages)[5].load(Ordering::Relaxed), 42);
    assert!(!add(&mut arena_mapping, 2, 40), "another key");
    assert!(!add(&mut arena_mapping, 1, (3 << 20) - 7), "beyond the end");
    assert!(!add(&mut arena_mapping, 1, u64::MAX - 3), "beyond all ends");
    drop(registered);
    assert!(!add(&mut arena_mapping, 1, 40));
    assert_eq!(words(&pages)[5].load(Ordering::Relaxed), 42, "the bytes stay");
    // And once more, under another key.
    let _registered = arena.register(&registration(&pages, 9, READ | WRITE)).unwrap();
    assert!(!add(&mut arena_mapping, 1, 40) && add(&mut arena_mapping, 9, 40));
    assert_eq!(words(&pages)[5].load(Ordering::Relaxed), 43);
}

#[test]
fn rights_and_edges_are_kept() {
    if !possible() {
        return;
    }
    let (arena, pages) = (arena(), Pages::new(1 << 20));
    let page = rustix::param::page_size();
    // SAFETY: closed before the pages are unmapped.
    let inner = unsafe { Registration::new(pages.start.wrapping_add(100), pages.len - 200, 1, READ) };
    let _registered = arena.register(&inner).unwrap();
    let mut arena_mapping = arena_mapping(&arena);
    let (head, tail) = ((page - 100) as u64, (pages.len - page - 100) as u64);
    let mut may = |offset, len, rights| arena_mapping.access(1, offset, len, rights).is_some();
    assert!(may(head, 8, AccessRights::Read) && may(tail - 8, 8, AccessRights::Read));
    assert!(!may(head - 1, 8, AccessRights::Read) && !may(tail - 7, 8, AccessRights::Read), "what shares its page");
    assert!(!may(head, 8, AccessRights::Write) && !may(head, 8, AccessRights::Both));
    assert!(!may(head, 0, AccessRights::Read));
}

#[test]
fn requests_name_memory_from_its_base() {
    if !possible() {
        return;
    }
    let (arena, pages) = (arena(), Pages::new(MIB));
    let base = u64::MAX - 2 * MIB as u64;
    let _registered = arena.register(&registration(&pages, 1, READ).named_from(base)).unwrap();
    let mut arena_mapping = arena_mapping(&arena);
    let mut may = |named, len| arena_mapping.access(1, named, len, AccessRights::Read).is_some();
    assert!(may(base, 8) && may(base + MIB as u64 - 8, 8));
    assert!(!may(base - 1, 8) && !may(0, 8) && !may(base + MIB as u64 - 7, 8));
}

#[test]
fn registration_refuses_invalid_ranges() {
    let (arena, pages) = (arena(), Pages::new(MIB));
    // SAFETY: refused.
    let everything = unsafe { Registration::new(std::ptr::null(), usize::MAX, 2, WRITE) };
    assert!(arena.register(&everything).is_err());
    // SAFETY: refused.
    let nothing = unsafe { Registration::new(pages.start, 8, 3, WRITE) };
    assert_eq!(arena.register(&nothing).err(), Some(ColdReason::TooSmall));
}

#[test]
fn registrations_of_the_same_memory_share_it_until_the_last_is_closed() {
    if !possible() {
        return;
    }
    let (arena, pages) = (arena(), Pages::new(1 << 20));
    let mut arena_mapping = arena_mapping(&arena);
    let one = arena.register(&registration(&pages, 1, READ | WRITE)).unwrap();
    let other = arena.register(&registration(&pages, 2, READ | WRITE)).unwrap();
    drop(one);
    assert!(!add(&mut arena_mapping, 1, 0) && add(&mut arena_mapping, 2, 0));
    assert_eq!(words(&pages)[0].load(Ordering::Relaxed), 1);
    other.unpublish();
    assert!(!add(&mut arena_mapping, 2, 0));
}

/// Other threads use memory while it is registered and closed, also by atomic operations, and must see no difference.
#[test]
fn registration_is_invisible_to_other_threads() {
    if !possible() {
        return;
    }
    let (arena, pages) = (arena(), Pages::new(2 * MIB));
    let over = AtomicBool::new(false);
    let count = || {
        let mut rounds = 0_u64;
        while !over.load(Ordering::Relaxed) {
            rounds += 1;
            words(&pages).iter().step_by(61).for_each(|word| _ = word.fetch_add(1, Ordering::Relaxed));
        }
        rounds
    };
    let rounds = std::thread::scope(|scope| {
        let counters = [scope.spawn(count), scope.spawn(count)];
        for key in 0..100 {
            drop(arena.register(&registration(&pages, key, READ | WRITE)).unwrap());
        }
        over.store(true, Ordering::Relaxed);
        counters.map(|counter| counter.join().unwrap()).iter().sum::<u64>()
    });
    assert!(words(&pages).iter().step_by(61).all(|word| word.load(Ordering::Relaxed) == rounds));
}

/// As some MPIs do it: the pages in which a buffer lies, with whatever the program, and its libraries, keep beside it.
#[test]
fn pages_of_the_heap_are_registered_with_all_that_lies_there() {
    if !possible() {
        return;
    }
    let page = rustix::param::page_size();
    let arena = arena();
    let over = AtomicBool::new(false);
    let churn = |seed: usize| {
        let mut kept = std::collections::VecDeque::new();
        let mut round = 0_usize;
        while !over.load(Ordering::Relaxed) {
            round += 1;
            kept.push_back(vec![round as u8; 1 + (round * seed) % 3000]);
            if kept.len() > 100 {
                let old = kept.pop_front().unwrap();
                assert!(old.iter().all(|byte| *byte == old[0]));
            }
        }
    };
    std::thread::scope(|scope| {
        for seed in [7, 11] {
            scope.spawn(move || churn(seed));
        }
        let mut moved = 0;
        for key in 0..200 {
            let buffer = vec![key as u8; 20_000];
            let start = buffer.as_ptr().map_addr(|at| at & !(page - 1));
            let len = (buffer.as_ptr().addr() + buffer.len()).next_multiple_of(page) - start.addr();
            // SAFETY: closed before the buffer is freed; what else is there is mapped as long as the heap is.
            let registered = arena.register(&unsafe { Registration::new(start, len, key, READ | WRITE) });
            assert!(buffer.iter().all(|byte| *byte == key as u8));
            moved += u32::from(registered.is_ok());
        }
        assert!(moved > 0);
        over.store(true, Ordering::Relaxed);
    });
}

/// Memory that a thread of the program needs to get on with moving it.
#[test]
fn registration_refuses_a_stack() {
    let on_the_stack = [1_u8; 1 << 16];
    // SAFETY: refused.
    let stack = unsafe { Registration::new(on_the_stack.as_ptr(), on_the_stack.len(), 1, WRITE) };
    assert!(arena().register(&stack).is_err());
    assert!(on_the_stack.iter().all(|&byte| byte == 1));
}

/// Allocators take zeroes for granted where this succeeds.
#[test]
fn registered_memory_is_not_cleared_by_advice() {
    if !possible() {
        return;
    }
    let (arena, pages) = (arena(), Pages::filled(MIB, 9));
    let _registered = arena.register(&registration(&pages, 1, READ | WRITE)).unwrap();
    let advice = rustix::mm::Advice::LinuxDontNeed;
    // SAFETY: these pages are ours, and nothing in them matters.
    let cleared = unsafe { rustix::mm::madvise(pages.start.cast(), pages.len, advice) };
    assert_eq!(cleared, Err(rustix::io::Errno::INVAL));
    assert!(pages.bytes() == pattern(9, MIB));
}

/// The owner waits for a writer that is inside, so that a closed registration is not written any more.
#[test]
fn nothing_is_written_after_the_end() {
    if !possible() {
        return;
    }
    let (arena, pages) = (arena(), Pages::new(1 << 20));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut arena_mapping = arena_mapping(&arena);
            while !over.load(Ordering::Relaxed) {
                add(&mut arena_mapping, 1, 64);
            }
        });
        for _ in 0..200 {
            let registered = arena.register(&registration(&pages, 1, READ | WRITE)).unwrap();
            drop(registered);
            let now = words(&pages)[8].load(Ordering::Relaxed);
            std::thread::yield_now();
            assert_eq!(words(&pages)[8].load(Ordering::Relaxed), now);
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn access_reports_eviction_when_the_entry_was_closed() {
    if !possible() {
        return;
    }
    let (arena, pages) = (arena(), Pages::new(1 << 20));
    let registered = arena.register(&registration(&pages, 1, READ | WRITE)).unwrap();
    let mut arena_mapping = arena_mapping(&arena);
    let access = arena_mapping.access(1, 0, 8, AccessRights::Both).unwrap();
    drop(registered);
    // SAFETY: eight aligned bytes of a mapping that the access keeps.
    unsafe { AtomicU64::from_ptr(access.pointer().as_ptr().cast()) }.store(1, Ordering::Relaxed);
    assert_eq!(access.finish(), Err(Evicted));
    assert_eq!(words(&pages)[0].load(Ordering::Relaxed), 0);
    let registered = arena.register(&registration(&pages, 1, READ | WRITE)).unwrap();
    let access = arena_mapping.access(1, 0, 8, AccessRights::Read).unwrap();
    drop(registered);
    assert_eq!(access.finish(), Err(Evicted), "what was read may be anything");
}

#[test]
fn closed_memory_can_be_cleared_by_the_program() {
    if !possible() {
        return;
    }
    let (arena, pages) = (arena(), Pages::new(1 << 20));
    words(&pages)[0].store(1, Ordering::Relaxed);
    drop(arena.register(&registration(&pages, 1, READ | WRITE)).unwrap());
    // SAFETY: these pages are ours, and nothing in them matters.
    unsafe { rustix::mm::madvise(pages.start.cast(), pages.len, rustix::mm::Advice::LinuxDontNeed) }.unwrap();
    assert!(words(&pages).iter().all(|word| word.load(Ordering::Relaxed) == 0));
}

/// A peer that is still writing when a registration is closed does not write into another one of the same memory either.
#[test]
fn evicted_access_does_not_write_memory_registered_again() {
    if !possible() {
        return;
    }
    let (arena, pages) = (arena(), Pages::new(MIB));
    let one = arena.register(&registration(&pages, 1, READ | WRITE)).unwrap();
    let other = arena.register(&registration(&pages, 2, READ | WRITE)).unwrap();
    let (mut late, mut other_mapping) = (arena_mapping(&arena), mapping_of(&arena, 8));
    let access = late.access(1, 0, 8, AccessRights::Write).unwrap();
    drop(one);
    // SAFETY: eight aligned bytes of a mapping that the access keeps.
    unsafe { AtomicU64::from_ptr(access.pointer().as_ptr().cast()) }.store(1, Ordering::Relaxed);
    assert_eq!(access.finish(), Err(Evicted));
    assert_eq!(words(&pages)[0].load(Ordering::Relaxed), 0);
    assert!(!add(&mut other_mapping, 2, 0), "asked for from now on");
    drop(other);
    let _again = arena.register(&registration(&pages, 2, READ | WRITE)).unwrap();
    assert!(add(&mut late, 2, 0) && add(&mut other_mapping, 2, 0));
    assert_eq!(words(&pages)[0].load(Ordering::Relaxed), 2);
}

#[test]
fn fork_keeps_registered_memory_private_both_ways() {
    in_own_process("fork_keeps_registered_memory_private_both_ways", || {
        if !possible() {
            return;
        }
        let (arena, pages) = (arena(), Pages::new(MIB));
        let registered = arena.register(&registration(&pages, 1, READ | WRITE)).unwrap();
        let mut arena_mapping = arena_mapping(&arena);
        assert!(add(&mut arena_mapping, 1, 0));
        let [first, second] = [0, 1].map(|at| &words(&pages)[at]);
        let (from_parent, to_child) = rustix::pipe::pipe().unwrap();
        let (from_child, to_parent) = rustix::pipe::pipe().unwrap();
        // SAFETY: the child only uses what this thread has made.
        let pid = unsafe { fork() };
        if pid == 0 {
            rustix::io::read(&from_parent, &mut [0]).unwrap();
            let unseen = first.load(Ordering::Relaxed) == 1 && second.load(Ordering::Relaxed) == 0;
            first.store(77, Ordering::Relaxed);
            drop(registered); // The parent's, in a child: nothing happens.
            let refused = arena.register(&registration(&pages, 2, READ)).err() == Some(ColdReason::ForkChild);
            rustix::io::write(&to_parent, &[1]).unwrap();
            std::process::exit(if unseen && refused { 0 } else { 1 });
        }
        second.store(5, Ordering::Relaxed);
        assert!(!add(&mut arena_mapping, 1, 0), "asked for after a fork");
        rustix::io::write(&to_child, &[1]).unwrap();
        rustix::io::read(&from_child, &mut [0]).unwrap();
        assert!(wait(pid), "the child saw what the parent wrote, or registered memory");
        assert_eq!(first.load(Ordering::Relaxed), 1);
        // And everything can begin again.
        drop(registered);
        let _again = arena.register(&registration(&pages, 1, READ | WRITE)).unwrap();
        assert!(add(&mut arena_mapping, 1, 8));
        assert_eq!(second.load(Ordering::Relaxed), 6);
    });
}

fn advise(start: *mut u8, len: usize, advice: Advice) {
    // SAFETY: pages of a test, which keep their contents.
    unsafe { madvise(start.cast(), len, advice) }.unwrap();
}

fn has_no_child(pages: &Pages, offset: usize) -> bool {
    flags(pages.at(offset)).contains(" dc")
}

/// The sequence of libibverbs after `ibv_fork_init`, which marks memory before it registers it, and unmarks it after it was closed.
#[test]
fn fork_leaves_memory_registered_that_no_child_gets() {
    in_own_process("fork_leaves_memory_registered_that_no_child_gets", || {
        if !possible() {
            return;
        }
        let (arena, marked, plain) = (arena(), Pages::filled(MIB, 3), Pages::filled(MIB, 4));
        advise(marked.start, MIB, Advice::LinuxDontFork);
        let registered = arena.register(&registration(&marked, 1, READ | WRITE)).unwrap();
        let also = arena.register(&registration(&plain, 2, READ | WRITE)).unwrap();
        assert!(has_no_child(&marked, 0) && !has_no_child(&plain, 0));
        let mut arena_mapping = arena_mapping(&arena);
        let before = words(&marked)[5].load(Ordering::Relaxed);
        let (from_parent, to_child) = rustix::pipe::pipe().unwrap();
        // SAFETY: the child only uses what this thread has made.
        let pid = unsafe { fork() };
        if pid == 0 {
            drop(to_child); // Ends the wait below if the parent fails.
            let unmapped = !is_mapped(marked.start) && !is_mapped(marked.at(MIB - 1));
            let private = plain.bytes() == pattern(4, MIB) && is_private(plain.start);
            drop(registered);
            let refused = arena.register(&registration(&plain, 2, READ)).err() == Some(ColdReason::ForkChild);
            rustix::io::read(&from_parent, &mut [0]).unwrap();
            std::process::exit(if unmapped && private && refused { 0 } else { 1 });
        }
        assert!(registered.is_in_place() && !also.is_in_place());
        assert!(add(&mut arena_mapping, 1, 40) && !add(&mut arena_mapping, 2, 40), "while the child lives");
        rustix::io::write(&to_child, &[1]).unwrap();
        assert!(wait(pid), "the child has the memory, or not its own");
        assert!(add(&mut arena_mapping, 1, 40), "when it is gone");
        assert_eq!(words(&marked)[5].load(Ordering::Relaxed), before.wrapping_add(2));
        drop(registered);
        assert!(is_private(marked.start) && has_no_child(&marked, 0), "closed");
        assert!(!add(&mut arena_mapping, 1, 40));
        assert!(in_child(_Fork, || assert!(!is_mapped(marked.start))));
        let again = arena.register(&registration(&marked, 3, READ | WRITE)).unwrap();
        assert!(in_child(fork, || assert!(!is_mapped(marked.start))) && again.is_in_place());
        drop(again);
        advise(marked.start, MIB, Advice::LinuxDoFork);
        let child_has = || assert_eq!(words(&marked)[5].load(Ordering::Relaxed), before.wrapping_add(2));
        assert!(in_child(fork, child_has));
    });
}

/// Memory that a child gets, even in part, is taken back; the rest of it is still kept from the child.
#[test]
fn fork_takes_back_memory_that_a_child_gets_in_part() {
    in_own_process("fork_takes_back_memory_that_a_child_gets_in_part", || {
        if !possible() {
            return;
        }
        let (arena, half) = (arena(), MIB / 2);
        let [partly, unmarked] = [5, 6].map(|seed| Pages::filled(MIB, seed));
        advise(partly.start, half, Advice::LinuxDontFork);
        advise(unmarked.start, MIB, Advice::LinuxDontFork);
        let _registered =
            [&partly, &unmarked].map(|pages| arena.register(&registration(pages, 1, READ | WRITE)).unwrap());
        assert!(has_no_child(&partly, 0) && has_no_child(&partly, half - 1) && !has_no_child(&partly, half));
        advise(unmarked.at(half), half, Advice::LinuxDoFork);
        let ended = in_child(fork, || {
            for (pages, seed) in [(&partly, 5), (&unmarked, 6)] {
                assert!(!is_mapped(pages.start) && !is_mapped(pages.at(half - 1)));
                // SAFETY: seen to be mapped.
                let rest = unsafe { std::slice::from_raw_parts_mut(pages.at(half), half) };
                assert!(is_private(rest.as_ptr()) && rest == &pattern(seed, MIB)[half..]);
                rest.fill(0);
            }
        });
        assert!(ended);
        for (pages, registered) in [(&partly, 5), (&unmarked, 6)].into_iter().zip(&_registered) {
            assert!(!registered.is_in_place());
            assert!(pages.0.bytes() == pattern(pages.1, MIB), "what the child wrote is the child's");
        }
    });
}

/// Memory that no child gets, registered beside memory that is mapped elsewhere meanwhile.
#[test]
fn moved_mappings_do_not_stay_registered_over_a_fork() {
    in_own_process("moved_mappings_do_not_stay_registered_over_a_fork", || {
        if !possible() {
            return;
        }
        let (arena, mut pages, elsewhere) = (arena(), Pages::filled(MIB, 7), Pages::new(MIB));
        advise(pages.start, MIB, Advice::LinuxDontFork);
        let registered = arena.register(&registration(&pages, 1, READ | WRITE)).unwrap();
        let flags = MremapFlags::MAYMOVE;
        // SAFETY: both are pages of this test.
        unsafe { mremap_fixed(pages.start.cast(), MIB, MIB, flags, elsewhere.start.cast()) }.unwrap();
        pages.map_anew();
        advise(pages.start, MIB, Advice::LinuxDontFork);
        advise(elsewhere.start, MIB, Advice::LinuxDoFork);
        assert!(in_child(fork, || elsewhere.bytes().iter().zip(pattern(7, MIB)).for_each(|(a, b)| assert_eq!(*a, b))));
        assert!(!registered.is_in_place() && is_private(elsewhere.start));
    });
}

/// A program that unmaps what it has registered gets what it maps there next, whatever peers do to the old.
#[test]
fn registration_refuses_unmapped_memory() {
    if !possible() {
        return;
    }
    let (arena, mut pages) = (arena(), Pages::new(MIB));
    let registered = arena.register(&registration(&pages, 1, READ | WRITE)).unwrap();
    let mut arena_mapping = arena_mapping(&arena);
    assert!(add(&mut arena_mapping, 1, 0));
    pages.map_anew();
    assert!(add(&mut arena_mapping, 1, 0), "into pages that are only in the file");
    assert_eq!(words(&pages)[0].load(Ordering::Relaxed), 0);
    assert_eq!(arena.register(&registration(&pages, 2, WRITE)).err(), Some(ColdReason::InUse));
    drop(registered);
    assert_eq!(words(&pages)[0].load(Ordering::Relaxed), 0, "the new memory is not replaced");
    let _again = arena.register(&registration(&pages, 2, READ | WRITE)).unwrap();
    assert!(add(&mut arena_mapping, 2, 0));
    assert_eq!(words(&pages)[0].load(Ordering::Relaxed), 1);
}

/// Besides its header, the file contains registered memory in whole pages, and nothing after that is closed.
#[test]
fn nothing_but_registered_pages_is_in_the_file() {
    if !possible() {
        return;
    }
    let (arena, mut pages) = (arena(), Pages::new(MIB));
    pages.fill(3);
    let page = rustix::param::page_size();
    let stat = || rustix::fs::fstat(arena.grant().unwrap()).unwrap().st_blocks as u64 * 512;
    let empty = stat();
    // SAFETY: closed before the pages are unmapped.
    let inner = unsafe { Registration::new(pages.at(100), MIB - 200, 1, READ | WRITE) };
    let registered = arena.register(&inner).unwrap();
    let header = isthmus_layout::arena::HEADER.0;
    assert!(stat() <= header.max(empty) + (MIB - 2 * page) as u64 + page as u64, "the edges are not there");
    assert!(pages.bytes() == pattern(3, MIB));
    drop(registered);
    assert!(stat() <= header.max(empty), "nothing stays behind");
    assert!(pages.bytes() == pattern(3, MIB));
    assert!(is_private(pages.at(MIB / 2)));
}
