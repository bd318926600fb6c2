use super::*;
use crate::fake::{Domain, FakeWire, Host};
use crate::kernel::Kernel;

/// Events of the fake host are there at once: nothing is waited for.
const NOW: Duration = Duration::ZERO;

fn domid(number: u16) -> Domid {
    Domid::new(number).unwrap()
}

fn store(domain: &Domain) -> Store<FakeWire> {
    Store::new(domain.store().unwrap())
}

fn announce(domain: &Domain, incarnation: u64, readers: &[Domid]) -> (Announcement, Store<FakeWire>) {
    let mut store = store(domain);
    let mut announcement = Announcement::new(incarnation, vec![5], readers).unwrap();
    announcement.renew(&mut store, Instant::now()).unwrap();
    (announcement, store)
}

fn advert(incarnation: u64, beat: u32) -> Advert {
    Advert { incarnation, beat, offer: vec![5] }
}

#[test]
fn domain_0_sees_guests_come_and_go() {
    let host = Host::new();
    let mut lookout = Lookout::new(store(&host.domain(Domid::ZERO)));
    lookout.follow_all().unwrap();
    assert_eq!(lookout.look(NOW).unwrap(), []);
    let guest = host.start(domid(3));
    assert_eq!(lookout.look(NOW).unwrap(), [], "it has said nothing yet");
    let (mut announcement, mut own) = announce(&guest, 9, &[]);
    assert_eq!(lookout.look(NOW).unwrap(), [News::Came(domid(3), advert(9, 1))]);
    announcement.withdraw(&mut own).unwrap();
    assert_eq!(lookout.look(NOW).unwrap(), [News::Went(domid(3), Gone::Vanished)]);
    let _again = announce(&guest, 10, &[]);
    assert_eq!(lookout.look(NOW).unwrap(), [News::Came(domid(3), advert(10, 1))]);
    host.destroy(domid(3));
    assert_eq!(lookout.look(NOW).unwrap(), [News::Went(domid(3), Gone::Vanished)]);
    // Its number is used again.
    let _next = announce(&host.start(domid(3)), 11, &[]);
    assert_eq!(lookout.look(NOW).unwrap(), [News::Came(domid(3), advert(11, 1))]);
}

#[test]
fn a_guest_hears_of_the_guest_that_lets_it() {
    let host = Host::new();
    let [one, two, three] = [1, 2, 3].map(|number| host.start(domid(number)));
    let mut lookouts = [&two, &three].map(|domain| Lookout::new(store(domain)));
    for lookout in &mut lookouts {
        lookout.follow(domid(1)).unwrap();
        assert_eq!(lookout.look(NOW).unwrap(), []);
    }
    let _present = announce(&one, 1, &[domid(2)]);
    let [two, three] = &mut lookouts;
    assert_eq!(two.look(NOW).unwrap(), [News::Came(domid(1), advert(1, 1))]);
    assert_eq!(three.look(NOW).unwrap(), []);
    host.destroy(domid(1));
    assert_eq!(two.look(NOW).unwrap(), [News::Went(domid(1), Gone::Vanished)]);
    assert_eq!(three.look(NOW).unwrap(), []);
}

#[test]
fn a_connection_that_breaks_is_no_news_and_what_was_missed_is() {
    let host = Host::new();
    let [one, two, three] = [1, 2, 3].map(|number| host.start(domid(number)));
    let own = || store(&host.domain(Domid::ZERO));
    let mut lookouts = [Lookout::new(own()), Lookout::new(own())];
    let [all, two_of_them] = &mut lookouts;
    all.follow_all().unwrap();
    two_of_them.follow_only(&[domid(1), domid(2)].into()).unwrap();
    let (mut stays, mut its) = announce(&one, 1, &[]);
    let _goes = announce(&two, 2, &[]);
    let came = |number, incarnation| News::Came(domid(number), advert(incarnation, 1));
    for lookout in &mut lookouts {
        assert_eq!(lookout.look(NOW).unwrap(), [came(1, 1), came(2, 2)]);
    }
    host.break_store(Domid::ZERO);
    stays.set_readers(&[]); // Due at once.
    stays.renew(&mut its, Instant::now()).unwrap();
    host.destroy(domid(2));
    let _comes = announce(&three, 3, &[]);
    for lookout in &mut lookouts {
        assert!(matches!(lookout.look(NOW).unwrap_err(), StoreError::Broken(_)));
        lookout.reopen(own()).unwrap();
    }
    let [all, two_of_them] = &mut lookouts;
    assert_eq!(all.look(NOW).unwrap(), [News::Went(domid(2), Gone::Vanished), came(3, 3)]);
    assert_eq!(two_of_them.look(NOW).unwrap(), [News::Went(domid(2), Gone::Vanished)]);
    two_of_them.follow_only(&[domid(3)].into()).unwrap();
    assert_eq!(two_of_them.look(NOW).unwrap(), [came(3, 3)]);
}

#[test]
fn readers_can_be_changed_at_any_time() {
    let host = Host::new();
    let [one, two] = [1, 2].map(|number| host.start(domid(number)));
    let (mut announcement, mut own) = announce(&one, 1, &[]);
    let mut lookout = Lookout::new(store(&two));
    lookout.follow(domid(1)).unwrap();
    assert_eq!(lookout.look(NOW).unwrap(), []);
    announcement.set_readers(&[domid(2)]);
    announcement.renew(&mut own, Instant::now()).unwrap();
    assert_eq!(lookout.look(NOW).unwrap(), [News::Came(domid(1), advert(1, 2))]);
}

#[test]
fn it_is_said_again_only_when_due() {
    let host = Host::new();
    let one = host.start(domid(1));
    let mut own = store(&one);
    let mut announcement = Announcement::new(1, Vec::new(), &[]).unwrap();
    let begun = Instant::now();
    let due = announcement.renew(&mut own, begun).unwrap();
    assert_eq!(due, begun + BEAT);
    assert_eq!(announcement.renew(&mut own, due - Duration::from_millis(1)).unwrap(), due);
    assert_eq!(own.read(NODE).unwrap(), b"isthmus 1 0000000000000001 1");
    own.remove(NODE).unwrap(); // Whoever did that: it comes back.
    announcement.renew(&mut own, due).unwrap();
    assert_eq!(own.read(NODE).unwrap(), b"isthmus 1 0000000000000001 2");
}

#[test]
fn a_guest_that_writes_anything_is_not_there() {
    let host = Host::new();
    let one = host.start(domid(1));
    let mut lookout = Lookout::new(store(&host.domain(Domid::ZERO)));
    lookout.follow(domid(1)).unwrap();
    let (_announcement, mut own) = announce(&one, 1, &[]);
    assert_eq!(lookout.look(NOW).unwrap().len(), 1);
    own.write(NODE, &[0xff; 3000]).unwrap();
    assert_eq!(lookout.look(NOW).unwrap(), [News::Went(domid(1), Gone::Garbled(AdvertFault::Unknown))]);
    // More changes than are remembered: everybody is looked at.
    for number in 0..3000 {
        own.write(&format!("{NODE}/{number}"), b"").unwrap();
    }
    own.write(NODE, advert(2, 1).emit().as_bytes()).unwrap();
    let mut news = Vec::new();
    while news.is_empty() {
        news = lookout.look(NOW).unwrap();
    }
    assert_eq!(news, [News::Came(domid(1), advert(2, 1))]);
}

#[test]
fn an_offer_has_a_limit() {
    assert!(Announcement::new(1, vec![0; OFFER_BYTES_MAX], &[]).is_ok());
    assert_eq!(Announcement::new(1, vec![0; OFFER_BYTES_MAX + 1], &[]).unwrap_err(), AdvertFault::Offer);
}

#[test]
fn no_more_domains_are_followed_than_the_limit() {
    let host = Host::new();
    let mut lookout = Lookout::new(store(&host.domain(Domid::ZERO)));
    for number in 0..FOLLOWED_MAX as u16 {
        lookout.follow(domid(number)).unwrap();
    }
    assert!(matches!(lookout.follow(domid(FOLLOWED_MAX as u16)), Err(FollowError::Full)));
    lookout.follow(domid(5)).unwrap();
    lookout.unfollow(domid(5)).unwrap();
    lookout.follow(domid(FOLLOWED_MAX as u16)).unwrap();
}
