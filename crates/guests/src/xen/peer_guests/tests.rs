//! Two guest daemons, and the effects that one can have on the other.

use isthmus_layout::proxy::grants::FIRST_GRANT_BATCH;
use isthmus_platform_xen::fake;
use isthmus_platform_xen::kernel::Kernel as _;
use isthmus_platform_xen::{EvtchnPort, GrantRefs, XenGrant};
use isthmus_shm::Payload as _;

use super::*;

const WINDOW: WindowId = WindowId(5);
const BYTES: u64 = 20 * 4096;

fn domid(number: u16) -> Domid {
    Domid::new(number).unwrap()
}

type Side = PeerGuests<fake::FakeDomain>;

/// A host, the guests 7 and 8, and their sets of pair windows, which are empty.
fn two() -> (fake::FakeHost, [fake::FakeDomain; 2], [Side; 2]) {
    let host = fake::FakeHost::new();
    let guests = [7, 8].map(|number| host.start(domid(number)));
    let sides = guests.each_ref().map(|guest| {
        PeerGuests::new(Xen::new(guest.clone(), guest.domid()), Domid::ZERO, VectorDoorbells::new().unwrap())
    });
    (host, guests, sides)
}

fn invite(domid: u16, offer: &[u8]) -> PairInvite<'_> {
    PairInvite { window: WINDOW, domid, offer }
}

/// Guest 7 has granted the window to guest 8.
fn shared() -> (fake::FakeHost, [fake::FakeDomain; 2], [Side; 2]) {
    let (host, guests, sides) = two();
    let offer = sides[0].join_pair(&invite(8, b"")).unwrap().unwrap();
    assert_eq!(sides[1].join_pair(&invite(7, &offer)).unwrap(), None);
    (host, guests, sides)
}

fn request(offset: u64) -> GrantRequest {
    GrantRequest { window: WINDOW, offset, bytes: BYTES }
}

fn map_request(offset: u64, grant: &[u8]) -> MapRequest<'_> {
    MapRequest { window: WINDOW, offset, bytes: BYTES, grant }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(tokio::task::LocalSet::new().run_until(test));
}

async fn until(side: &Side, what: impl Fn(&PeerGuest<fake::FakeDomain>) -> bool) {
    while !what(&side.get(WINDOW).unwrap()) {
        side.changed.notified().await;
    }
}

#[test]
fn granted_batch_is_mapped_by_programs_of_the_peer() {
    run(async {
        let (host, _, [grants, maps]) = shared();
        for side in [&grants, &maps] {
            until(side, |of| of.present.get()).await;
        }
        let made = grants.get(WINDOW).unwrap().grant(Domid::ZERO, request(FIRST_GRANT_BATCH)).unwrap();
        maps.get(WINDOW).unwrap().map_grant(&map_request(FIRST_GRANT_BATCH, &made)).unwrap();
        let [ours, theirs] =
            [&grants, &maps].map(|side| side.get(WINDOW).unwrap().extent(FIRST_GRANT_BATCH, BYTES).unwrap());
        let window =
            |fd| SharedMapping::new(isthmus_shm::Mapping::new(fd, RegionSize(BYTES), Access::ReadWrite).unwrap());
        let (ours, theirs) = (window(ours), window(theirs));
        ours.copy_in(BYTES - 1, &[7]);
        let mut byte = [0];
        theirs.copy_out(BYTES - 1, &mut byte);
        assert_eq!(byte, [7]);
        // A program of one guest rings a program of the other, on a vector that is not a daemon's.
        let heard = maps.doorbells.listen(3).unwrap();
        rustix::io::write(grants.get(WINDOW).unwrap().doorbells.sender(3).unwrap(), &1_u64.to_ne_bytes()).unwrap();
        drop(isthmus_control::async_fd::register(heard).unwrap().readable().await.unwrap());
        drop((ours, theirs));
        grants.leave_pair(WINDOW);
        until(&maps, |of| of.closed.get()).await;
        maps.leave_pair(WINDOW);
        while host.grants() > 0 {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn rejects_grants_that_cannot_be_mapped() {
    run(async {
        let (host, [liar, _], [grants, maps]) = shared();
        let pages = liar.offer(domid(8), 20, Access::ReadWrite).unwrap();
        let read_only = liar.offer(domid(8), 20, Access::Read).unwrap();
        let foreign = liar.offer(Domid::ZERO, 16, Access::ReadWrite).unwrap();
        let list = liar.offer(domid(8), 1, Access::ReadWrite).unwrap();
        SharedMapping::new(list.map().unwrap()).copy_in(0, &[0xff; 4096]);
        let grant = |pages: u32, refs| {
            let pages = XenGrant { from: domid(7), access: Access::ReadWrite, pages, refs };
            SharedBatch { event_channel: None, pages }.emit()
        };
        let listed = |first: GrantRef| grant(20, GrantRefs::Listed(first));
        let honest = grants.get(WINDOW).unwrap().grant(Domid::ZERO, request(FIRST_GRANT_BATCH)).unwrap();
        let lies = [
            vec![],
            b"nonsense".to_vec(),
            vec![0xff; GRANT_DESCRIPTION_BYTES_MAX],
            grant(16, GrantRefs::Inline(pages.refs()[..16].to_vec())),
            grant(16, GrantRefs::Inline(foreign.refs().to_vec())),
            listed(list.refs()[0]),
            listed(pages.refs()[0]),
            listed(foreign.refs()[0]),
            listed(GrantRef(4_000_000)),
            listed(read_only.refs()[0]),
            honest[..honest.len() - 1].to_vec(),
        ];
        let peer_guest = maps.get(WINDOW).unwrap();
        let before = host.grants();
        for lie in &lies {
            assert!(peer_guest.map_grant(&map_request(FIRST_GRANT_BATCH, lie)).is_err(), "{lie:?}");
            assert!(peer_guest.extent(FIRST_GRANT_BATCH, BYTES).is_err());
        }
        assert_eq!(host.grants(), before);
        peer_guest.map_grant(&map_request(FIRST_GRANT_BATCH, &honest)).unwrap();
        assert!(peer_guest.map_grant(&map_request(FIRST_GRANT_BATCH, &honest)).is_err(), "an offset is used once");
        assert!(
            peer_guest.extent(FIRST_GRANT_BATCH, BYTES + 1).is_err()
                && peer_guest.extent(FIRST_GRANT_BATCH, BYTES).is_ok()
        );
        assert!(peer_guest.grant(Domid::ZERO, request(FIRST_GRANT_BATCH + BYTES)).is_err(), "the other guest grants");
    });
}

/// A request for a batch of one page.
fn page_request(offset: u64) -> GrantRequest {
    GrantRequest { window: WINDOW, offset, bytes: PAGE_BYTES.into() }
}

fn map_request_of_page(grant: &[u8]) -> MapRequest<'_> {
    MapRequest { window: WINDOW, offset: FIRST_GRANT_BATCH, bytes: PAGE_BYTES.into(), grant }
}

fn has_rung(doorbell: &OwnedFd) -> bool {
    rustix::io::read(doorbell, &mut [0; 8]).is_ok()
}

#[test]
fn page_batch_has_an_event_channel_between_programs() {
    run(async {
        let (_host, _, [grants, maps]) = shared();
        let [grants, maps] = [&grants, &maps].map(|side| side.get(WINDOW).unwrap());
        let made = grants.grant(Domid::ZERO, page_request(FIRST_GRANT_BATCH)).unwrap();
        maps.map_grant(&map_request_of_page(&made)).unwrap();
        let [granted, mapped] = [&grants, &maps].map(|of| of.event_channel_fd(FIRST_GRANT_BATCH).unwrap());
        has_rung(&mapped.end); // Binding raises an event.
        for (from, to) in [(&grants, &mapped), (&maps, &granted)] {
            let batches = from.batches.borrow();
            let event_channel = batches[&FIRST_GRANT_BATCH].event_channel.as_ref().unwrap();
            event_channel.port.notify().unwrap();
            assert!(has_rung(&to.end) && !has_rung(&to.end));
        }
        assert_eq!(
            granted.port,
            grants.batches.borrow()[&FIRST_GRANT_BATCH].event_channel.as_ref().unwrap().port.number().0
        );
        let longer = grants.grant(Domid::ZERO, request(FIRST_GRANT_BATCH + BYTES)).unwrap();
        assert_eq!(SharedBatch::parse(&longer, domid(7)).unwrap().event_channel, None);
        assert!(
            grants.event_channel_fd(FIRST_GRANT_BATCH + BYTES).is_err()
                && maps.event_channel_fd(FIRST_GRANT_BATCH + BYTES).is_err()
        );
    });
}

#[test]
fn rejects_a_page_batch_without_an_event_channel() {
    run(async {
        let (_host, [liar, other], [grants, maps]) = shared();
        let [grants, maps] = [&grants, &maps].map(|side| side.get(WINDOW).unwrap());
        let made = grants.grant(Domid::ZERO, page_request(FIRST_GRANT_BATCH)).unwrap();
        let honest = SharedBatch::parse(&made, domid(7)).unwrap();
        let (taken, foreign) = (liar.listen(domid(8)).unwrap(), liar.listen(Domid::ZERO).unwrap());
        let _bound = other.bind(domid(7), taken.number()).unwrap();
        for event_channel in [None, Some(EvtchnPort(4_000_000)), Some(taken.number()), Some(foreign.number())] {
            let lie = SharedBatch { event_channel, ..honest.clone() };
            assert!(maps.map_grant(&map_request_of_page(&lie.emit())).is_err(), "{lie:?}");
            assert!(
                maps.event_channel_fd(FIRST_GRANT_BATCH).is_err()
                    && maps.extent(FIRST_GRANT_BATCH, PAGE_BYTES.into()).is_err()
            );
        }
        maps.map_grant(&map_request_of_page(&made)).unwrap();
    });
}

#[test]
fn rejects_invalid_pair_offers() {
    run(async {
        let (host, [liar, _], [_, maps]) = two();
        let (page, port) = (liar.offer(domid(8), 1, Access::ReadWrite).unwrap(), liar.listen(domid(8)).unwrap());
        let head = |reference: GrantRef| XenGrant {
            from: domid(7),
            access: Access::ReadWrite,
            pages: 1,
            refs: GrantRefs::Inline(vec![reference]),
        };
        let offer = |head: XenGrant, port| SharedHead { port, head }.emit();
        let nobodys = EvtchnPort(4_000_000);
        for offer in [
            b"nonsense".to_vec(),
            offer(head(GrantRef(4_000_000)), port.number()),
            offer(head(page.refs()[0]), nobodys),
            offer(head(page.refs()[0]), port.number()), // The head page does not report its presence.
        ] {
            assert!(maps.join_pair(&invite(7, &offer)).is_err(), "{offer:?}");
        }
        assert!(maps.join_pair(&invite(0, b"")).is_err(), "the backend is no guest");
        assert!(maps.join_pair(&invite(0xffff, b"")).is_err(), "that is no domain");
        assert!(maps.open.borrow().is_empty());
        drop(page);
        assert_eq!(host.grants(), 0);
    });
}

#[test]
fn hostile_head_page_ends_only_the_pair_window() {
    run(async {
        let (_host, [_, other], [grants, maps]) = shared();
        until(&grants, |of| of.present.get()).await;
        let reference = grants.get(WINDOW).unwrap().head_memory.as_ref().unwrap().pages().refs()[0];
        let head = SharedMapping::new(other.map(domid(7), &[reference], Access::ReadWrite, None).unwrap());
        let daemon = grants.doorbells.listen(0).unwrap();
        let program = grants.doorbells.listen(9).unwrap();
        head.copy_in(0, &[0xff; 4096]);
        rustix::io::write(maps.get(WINDOW).unwrap().doorbells.sender(1).unwrap(), &1_u64.to_ne_bytes()).unwrap();
        drop(isthmus_control::async_fd::register(program).unwrap().readable().await.unwrap());
        assert!(rustix::io::read(&daemon, &mut [0; 8]).is_err(), "another guest calls the daemon to its proxy ring");
        assert!(!grants.get(WINDOW).unwrap().closed.get());
        head.copy_in(0, &[0; 4096]);
        rustix::io::write(maps.get(WINDOW).unwrap().doorbells.sender(1).unwrap(), &1_u64.to_ne_bytes()).unwrap();
        until(&grants, |of| of.closed.get()).await;
    });
}

#[test]
fn keeps_reserve_pages_for_own_programs() {
    run(async {
        let (host, _, [grants, maps]) = shared();
        let pages = (BYTES / 4096) as usize;
        // A batch consists of a list and its pages.
        host.limit_grants(domid(7), host.grants_of(domid(7)) + 2 * (pages + 1) + RESERVE_PAGES as usize);
        let made = |offset: u64| grants.get(WINDOW).unwrap().grant(Domid::ZERO, request(offset));
        let kept: Vec<_> = (0..4).filter_map(|batch| made(FIRST_GRANT_BATCH + batch * BYTES).ok()).collect();
        assert_eq!(kept.len(), 2);
        for (batch, grant) in (0..).zip(&kept) {
            maps.get(WINDOW).unwrap().map_grant(&map_request(FIRST_GRANT_BATCH + batch * BYTES, grant)).unwrap();
        }
        assert!(grants.xen.kernel().offer(Domid::ZERO, RESERVE_PAGES, Access::ReadWrite).is_ok());
    });
}
