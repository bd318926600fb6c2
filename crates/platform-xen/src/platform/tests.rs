use super::*;
use crate::fake::{FakeDomain, FakeHost};
use isthmus_platform::conformance::check_in_process;
use isthmus_shm::Words;
use proptest::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

fn domids() -> [Domid; 2] {
    [1, 2].map(|number| Domid::new(number).unwrap())
}

fn pair(host: &FakeHost) -> [Xen<FakeDomain>; 2] {
    domids().map(|domid| Xen::new(host.start(domid), domid))
}

#[test]
fn fake_host_passes_the_conformance_suite() {
    let host = FakeHost::new();
    let ([ours, theirs], [us, them]) = (pair(&host), domids());
    check_in_process(&ours, &them, &theirs, &us);
    assert_eq!(host.grants(), 0, "grants are left over");
}

#[test]
fn any_number_of_pages_is_mapped_by_lists() {
    let host = FakeHost::new();
    let ([ours, theirs], [_, them]) = (pair(&host), domids());
    for pages in [1, 16, 17, 1020, 1021, 3000] {
        let size = RegionSize(u64::from(pages) * PAGE_BYTES);
        let mut memory = ours.allocate(size, &them, Access::ReadWrite).unwrap();
        let own = SharedMapping::new(ours.map_own(&memory).unwrap());
        for page in 0..pages {
            own.store(page * 1024, page + 1, Relaxed);
        }
        let grant = ours.grant(&memory, &them, Access::ReadWrite).unwrap();
        assert_eq!(matches!(grant.refs, GrantRefs::Inline(_)), pages <= 16);
        let window = SharedMapping::new(theirs.map(grant.clone(), size, Access::ReadWrite).unwrap());
        assert!((0..pages).all(|page| window.load(page * 1024, Relaxed) == page + 1), "{pages} pages are out of order");
        memory.drop_lists();
        assert_eq!(
            theirs.map(grant, size, Access::ReadWrite).is_err(),
            pages > 16,
            "lists are there after they were dropped"
        );
    }
    assert_eq!(host.grants(), 0);
}

#[test]
fn rejects_inconsistent_reference_lists() {
    let host = FakeHost::new();
    let ([ours, theirs], [_, them]) = (pair(&host), domids());
    let size = RegionSize(2000 * PAGE_BYTES);
    let memory = ours.allocate(size, &them, Access::ReadWrite).unwrap();
    let grant = ours.grant(&memory, &them, Access::ReadWrite).unwrap();
    for list in &memory.lists {
        let window = SharedMapping::new(list.map().unwrap());
        for word in 0..4 {
            let good = window.load(word, Relaxed);
            window.store(word, good ^ 1, Relaxed);
            assert!(theirs.map(grant.clone(), size, Access::ReadWrite).is_err(), "word {word}");
            window.store(word, good, Relaxed);
        }
    }
    let leaves = SharedMapping::new(memory.lists[0].map().unwrap());
    let good = leaves.load(4, Relaxed);
    leaves.store(4, memory.pages.refs()[0].0, Relaxed); // The reference of a data page replaces that of a list.
    assert!(theirs.map(grant.clone(), size, Access::ReadWrite).is_err());
    leaves.store(4, good, Relaxed);
    assert!(theirs.map(grant, size, Access::ReadWrite).is_ok());
}

#[test]
fn grants_memory_only_to_the_domain_it_was_allocated_for() {
    let host = FakeHost::new();
    let ([ours, _], [us, them]) = (pair(&host), domids());
    let memory = ours.allocate(RegionSize(4096), &them, Access::Read).unwrap();
    assert!(ours.grant(&memory, &us, Access::Read).is_err());
    assert!(ours.grant(&memory, &them, Access::ReadWrite).is_err());
    assert!(ours.grant(&memory, &them, Access::Read).is_ok());
}

#[test]
fn unmap_notify_reaches_the_other_side() {
    let host = FakeHost::new();
    let ([ours, theirs], [us, them]) = (pair(&host), domids());
    let size = RegionSize(2 * PAGE_BYTES);
    for mapper_first in [true, false] {
        let memory = ours.allocate(size, &them, Access::ReadWrite).unwrap();
        let own = SharedMapping::new(ours.map_own(&memory).unwrap());
        let here = ours.kernel().listen(them).unwrap();
        let there = theirs.kernel().bind(us, here.number()).unwrap();
        while there.wait(Duration::ZERO).unwrap() {}
        memory.pages().set_unmap_notify(UnmapNotify { byte_at: 4096, port: &here }).unwrap();
        let grant = ours.grant(&memory, &them, Access::ReadWrite).unwrap();
        let unmap_notify = Some(UnmapNotify { byte_at: 4100, port: &there });
        let window = SharedMapping::new(theirs.map_with_notify(&grant, size, Access::ReadWrite, unmap_notify).unwrap());
        window.copy_in(4096, &[1; 8]);
        if mapper_first {
            drop(window);
            assert!(here.wait(Duration::ZERO).unwrap());
            assert_eq!(own.load(1025, Relaxed), 0x0101_0100);
            drop((own, memory));
        } else {
            drop((own, memory));
            assert!(there.wait(Duration::ZERO).unwrap());
            assert_eq!(window.load(1024, Relaxed), 0x0101_0100);
        }
    }
    assert_eq!(host.grants(), 0);
}

#[test]
fn rejects_allocations_above_pages_max() {
    let host = FakeHost::new();
    let ([ours, _], [_, them]) = (pair(&host), domids());
    for bytes in [0, (u64::from(PAGES_MAX) + 1) * PAGE_BYTES, u64::MAX] {
        assert!(ours.allocate(RegionSize(bytes), &them, Access::Read).is_err());
    }
}

#[test]
fn does_not_map_inconsistent_grants() {
    let host = FakeHost::new();
    let ([ours, theirs], [_, them]) = (pair(&host), domids());
    let size = RegionSize(PAGE_BYTES);
    let memory = ours.allocate(size, &them, Access::ReadWrite).unwrap();
    let good = ours.grant(&memory, &them, Access::ReadWrite).unwrap();
    let first = memory.pages.refs()[0];
    for pages in [0, 2, PAGES_MAX + 1, u32::MAX] {
        for refs in [good.refs.clone(), GrantRefs::Listed(first)] {
            let forged = XenGrant { pages, refs, ..good.clone() };
            assert!(theirs.map(forged, size, Access::ReadWrite).is_err(), "{pages} pages");
        }
    }
    assert!(theirs.map(good, size, Access::ReadWrite).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Lists with arbitrary contents give access only to pages granted to the reader, and never cause a panic.
    #[test]
    fn lists_may_say_anything(
        writes in prop::collection::vec((0..3_usize, 0..1024_u32, prop_oneof![any::<u32>(), 0..2000_u32]), 0..8),
    ) {
        let host = FakeHost::new();
        let ([ours, theirs], [us, them]) = (pair(&host), domids());
        let size = RegionSize(1500 * PAGE_BYTES);
        let secret = ours.allocate(RegionSize(PAGE_BYTES), &us, Access::ReadWrite).unwrap();
        SharedMapping::new(ours.map_own(&secret).unwrap()).store(0, 0x5ec7e7, Relaxed);
        let memory = ours.allocate(size, &them, Access::ReadWrite).unwrap();
        for (list, word, value) in writes {
            SharedMapping::new(memory.lists[list].map().unwrap()).store(word, value, Relaxed);
        }
        let grant = ours.grant(&memory, &them, Access::ReadWrite).unwrap();
        if let Ok(mapping) = theirs.map(grant, size, Access::ReadWrite) {
            let window = SharedMapping::new(mapping);
            prop_assert_eq!(window.size(), size);
            prop_assert!((0..1500).all(|page| window.load(page * 1024, Relaxed) != 0x5ec7e7));
            drop(window);
        }
        drop((memory, secret));
        prop_assert_eq!(host.grants(), 0);
    }
}
