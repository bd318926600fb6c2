//! Two guests' daemons, and what the one can do to the other.

use isthmus_layout::border::lots::FIRST_LOT;
use isthmus_platform_xen::fake;
use isthmus_platform_xen::kernel::Kernel as _;
use isthmus_platform_xen::{EvtchnPort, Grant, Names};
use isthmus_shm::Payload as _;

use super::*;

const WINDOW: WindowNumber = WindowNumber(5);
const BYTES: u64 = 20 * 4096;

fn domid(number: u16) -> Domid {
    Domid::new(number).unwrap()
}

type Side = Neighbours<fake::Domain>;

/// A host, the guests 7 and 8, and what each has in common with others: nothing.
fn two() -> (fake::Host, [fake::Domain; 2], [Side; 2]) {
    let host = fake::Host::new();
    let guests = [7, 8].map(|number| host.start(domid(number)));
    let sides = guests
        .each_ref()
        .map(|guest| Neighbours::new(Xen::new(guest.clone(), guest.domid()), Domid::ZERO, Bells::new().unwrap()));
    (host, guests, sides)
}

fn share(domain: u16, offer: &[u8]) -> Share<'_> {
    Share { window: WINDOW, domain, offer }
}

/// Guest 7 has granted the window to guest 8.
fn shared() -> (fake::Host, [fake::Domain; 2], [Side; 2]) {
    let (host, guests, sides) = two();
    let offer = sides[0].share(&share(8, b"")).unwrap().unwrap();
    assert_eq!(sides[1].share(&share(7, &offer)).unwrap(), None);
    (host, guests, sides)
}

fn wanted(place: u64) -> Wanted {
    Wanted { window: WINDOW, place, bytes: BYTES }
}

fn lend(place: u64, grant: &[u8]) -> Lend<'_> {
    Lend { window: WINDOW, place, bytes: BYTES, grant }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(tokio::task::LocalSet::new().run_until(test));
}

async fn until(side: &Side, what: impl Fn(&Neighbour<fake::Domain>) -> bool) {
    while !what(&side.get(WINDOW).unwrap()) {
        side.changed.notified().await;
    }
}

#[test]
fn what_the_one_grants_the_other_hands_to_its_programs() {
    run(async {
        let (host, _, [grants, maps]) = shared();
        for side in [&grants, &maps] {
            until(side, |of| of.shown.get()).await;
        }
        let made = grants.get(WINDOW).unwrap().grant(Domid::ZERO, wanted(FIRST_LOT)).unwrap();
        maps.get(WINDOW).unwrap().borrow(&lend(FIRST_LOT, &made)).unwrap();
        let [ours, theirs] = [&grants, &maps].map(|side| side.get(WINDOW).unwrap().piece(FIRST_LOT, BYTES).unwrap());
        let window = |fd| Window::new(isthmus_shm::Mapping::new(fd, RegionSize(BYTES), Access::ReadWrite).unwrap());
        let (ours, theirs) = (window(ours), window(theirs));
        ours.copy_in(BYTES - 1, &[7]);
        let mut byte = [0];
        theirs.copy_out(BYTES - 1, &mut byte);
        assert_eq!(byte, [7]);
        // A program of the one rings one of the other, past both daemons' own vector.
        let heard = maps.bells.listen(3).unwrap();
        rustix::io::write(grants.get(WINDOW).unwrap().bells.ringer(3).unwrap(), &1_u64.to_ne_bytes()).unwrap();
        drop(crate::watched::watched(heard).unwrap().readable().await.unwrap());
        drop((ours, theirs));
        grants.part(WINDOW);
        until(&maps, |of| of.over.get()).await;
        maps.part(WINDOW);
        while host.grants() > 0 {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn whatever_another_guest_says_that_it_granted_what_cannot_be_mapped_is_none() {
    run(async {
        let (host, [liar, _], [grants, maps]) = shared();
        let pages = liar.offer(domid(8), 20, Access::ReadWrite).unwrap();
        let read_only = liar.offer(domid(8), 20, Access::Read).unwrap();
        let foreign = liar.offer(Domid::ZERO, 16, Access::ReadWrite).unwrap();
        let list = liar.offer(domid(8), 1, Access::ReadWrite).unwrap();
        Window::new(list.map().unwrap()).copy_in(0, &[0xff; 4096]);
        let grant = |pages: u32, names| {
            let pages = Grant { from: domid(7), access: Access::ReadWrite, pages, names };
            SharedLot { line: None, pages }.emit()
        };
        let listed = |first: GrantRef| grant(20, Names::Listed(first));
        let honest = grants.get(WINDOW).unwrap().grant(Domid::ZERO, wanted(FIRST_LOT)).unwrap();
        let lies = [
            vec![],
            b"nonsense".to_vec(),
            vec![0xff; GRANT_BYTES_MAX],
            grant(16, Names::Inline(pages.refs()[..16].to_vec())),
            grant(16, Names::Inline(foreign.refs().to_vec())),
            listed(list.refs()[0]),
            listed(pages.refs()[0]),
            listed(foreign.refs()[0]),
            listed(GrantRef(4_000_000)),
            listed(read_only.refs()[0]),
            honest[..honest.len() - 1].to_vec(),
        ];
        let neighbour = maps.get(WINDOW).unwrap();
        let before = host.grants();
        for lie in &lies {
            assert!(neighbour.borrow(&lend(FIRST_LOT, lie)).is_err(), "{lie:?}");
            assert!(neighbour.piece(FIRST_LOT, BYTES).is_err());
        }
        assert_eq!(host.grants(), before);
        neighbour.borrow(&lend(FIRST_LOT, &honest)).unwrap();
        assert!(neighbour.borrow(&lend(FIRST_LOT, &honest)).is_err(), "a place is used once");
        assert!(neighbour.piece(FIRST_LOT, BYTES + 1).is_err() && neighbour.piece(FIRST_LOT, BYTES).is_ok());
        assert!(neighbour.grant(Domid::ZERO, wanted(FIRST_LOT + BYTES)).is_err(), "it is the other one who grants");
    });
}

/// A lot of one page.
fn board(place: u64) -> Wanted {
    Wanted { window: WINDOW, place, bytes: PAGE_BYTES.into() }
}

fn lend_board(grant: &[u8]) -> Lend<'_> {
    Lend { window: WINDOW, place: FIRST_LOT, bytes: PAGE_BYTES.into(), grant }
}

fn has_rung(bell: &OwnedFd) -> bool {
    rustix::io::read(bell, &mut [0; 8]).is_ok()
}

#[test]
fn a_lot_for_a_board_comes_with_a_line_between_programs() {
    run(async {
        let (_host, _, [grants, maps]) = shared();
        let [grants, maps] = [&grants, &maps].map(|side| side.get(WINDOW).unwrap());
        let made = grants.grant(Domid::ZERO, board(FIRST_LOT)).unwrap();
        maps.borrow(&lend_board(&made)).unwrap();
        let [granted, mapped] = [&grants, &maps].map(|of| of.line_end(FIRST_LOT).unwrap());
        has_rung(&mapped.end); // Binding is an event.
        for (from, to) in [(&grants, &mapped), (&maps, &granted)] {
            let lots = from.lots.borrow();
            let line = lots[&FIRST_LOT].line.as_ref().unwrap();
            line.port.notify().unwrap();
            assert!(has_rung(&to.end) && !has_rung(&to.end));
        }
        assert_eq!(granted.port, grants.lots.borrow()[&FIRST_LOT].line.as_ref().unwrap().port.number().0);
        let longer = grants.grant(Domid::ZERO, wanted(FIRST_LOT + BYTES)).unwrap();
        assert_eq!(SharedLot::parse(&longer, domid(7)).unwrap().line, None);
        assert!(grants.line_end(FIRST_LOT + BYTES).is_err() && maps.line_end(FIRST_LOT + BYTES).is_err());
    });
}

#[test]
fn a_lot_for_a_board_without_a_line_is_none() {
    run(async {
        let (_host, [liar, other], [grants, maps]) = shared();
        let [grants, maps] = [&grants, &maps].map(|side| side.get(WINDOW).unwrap());
        let made = grants.grant(Domid::ZERO, board(FIRST_LOT)).unwrap();
        let honest = SharedLot::parse(&made, domid(7)).unwrap();
        let (taken, foreign) = (liar.listen(domid(8)).unwrap(), liar.listen(Domid::ZERO).unwrap());
        let _bound = other.bind(domid(7), taken.number()).unwrap();
        for line in [None, Some(EvtchnPort(4_000_000)), Some(taken.number()), Some(foreign.number())] {
            let lie = SharedLot { line, ..honest.clone() };
            assert!(maps.borrow(&lend_board(&lie.emit())).is_err(), "{lie:?}");
            assert!(maps.line_end(FIRST_LOT).is_err() && maps.piece(FIRST_LOT, PAGE_BYTES.into()).is_err());
        }
        maps.borrow(&lend_board(&made)).unwrap();
    });
}

#[test]
fn what_another_guest_offers_is_a_window_or_is_none() {
    run(async {
        let (host, [liar, _], [_, maps]) = two();
        let (page, port) = (liar.offer(domid(8), 1, Access::ReadWrite).unwrap(), liar.listen(domid(8)).unwrap());
        let head = |reference: GrantRef| Grant {
            from: domid(7),
            access: Access::ReadWrite,
            pages: 1,
            names: Names::Inline(vec![reference]),
        };
        let offer = |head: Grant, port| SharedHead { port, head }.emit();
        let nobodys = EvtchnPort(4_000_000);
        for offer in [
            b"nonsense".to_vec(),
            offer(head(GrantRef(4_000_000)), port.number()),
            offer(head(page.refs()[0]), nobodys),
            offer(head(page.refs()[0]), port.number()), // It does not say that it is there.
        ] {
            assert!(maps.share(&share(7, &offer)).is_err(), "{offer:?}");
        }
        assert!(maps.share(&share(0, b"")).is_err(), "the backend is no guest");
        assert!(maps.share(&share(0xffff, b"")).is_err(), "that is no domain");
        assert!(maps.known.borrow().is_empty());
        drop(page);
        assert_eq!(host.grants(), 0);
    });
}

#[test]
fn whatever_another_guest_writes_into_the_head_page_ends_no_more_than_the_window() {
    run(async {
        let (_host, [_, other], [grants, maps]) = shared();
        until(&grants, |of| of.shown.get()).await;
        let reference = grants.get(WINDOW).unwrap().head_memory.as_ref().unwrap().pages().refs()[0];
        let head = Window::new(other.map(domid(7), &[reference], Access::ReadWrite, None).unwrap());
        let crossing = grants.bells.listen(0).unwrap();
        let program = grants.bells.listen(9).unwrap();
        head.copy_in(0, &[0xff; 4096]);
        rustix::io::write(maps.get(WINDOW).unwrap().bells.ringer(1).unwrap(), &1_u64.to_ne_bytes()).unwrap();
        drop(crate::watched::watched(program).unwrap().readable().await.unwrap());
        assert!(rustix::io::read(&crossing, &mut [0; 8]).is_err(), "another guest calls the daemon to its crossing");
        assert!(!grants.get(WINDOW).unwrap().over.get());
        head.copy_in(0, &[0; 4096]);
        rustix::io::write(maps.get(WINDOW).unwrap().bells.ringer(1).unwrap(), &1_u64.to_ne_bytes()).unwrap();
        until(&grants, |of| of.over.get()).await;
    });
}

#[test]
fn what_other_guests_keep_leaves_enough_for_ones_own_programs() {
    run(async {
        let (host, _, [grants, maps]) = shared();
        let pages = (BYTES / 4096) as usize;
        // A lot has a list beside its pages.
        host.limit(domid(7), host.grants_of(domid(7)) + 2 * (pages + 1) + RESERVE_PAGES as usize);
        let made = |place: u64| grants.get(WINDOW).unwrap().grant(Domid::ZERO, wanted(place));
        let kept: Vec<_> = (0..4).filter_map(|lot| made(FIRST_LOT + lot * BYTES).ok()).collect();
        assert_eq!(kept.len(), 2);
        for (lot, grant) in (0..).zip(&kept) {
            maps.get(WINDOW).unwrap().borrow(&lend(FIRST_LOT + lot * BYTES, grant)).unwrap();
        }
        assert!(grants.xen.kernel().offer(Domid::ZERO, RESERVE_PAGES, Access::ReadWrite).is_ok());
    });
}
