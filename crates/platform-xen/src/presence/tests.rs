use super::*;
use crate::fake::{FakeDomain, FakeHost, FakeStoreTransport};
use crate::kernel::Kernel;

/// Events of the fake host are pending at once, so no test waits.
const NOW: Duration = Duration::ZERO;

fn domid(number: u16) -> Domid {
    Domid::new(number).unwrap()
}

fn store(domain: &FakeDomain) -> Store<FakeStoreTransport> {
    Store::new(domain.store().unwrap())
}

fn announce(
    domain: &FakeDomain,
    incarnation: u64,
    readers: &[Domid],
) -> (PresenceAnnouncer, Store<FakeStoreTransport>) {
    let mut store = store(domain);
    let mut announcement = PresenceAnnouncer::new(incarnation, vec![5], readers).unwrap();
    announcement.renew(&mut store, Instant::now()).unwrap();
    (announcement, store)
}

fn advertisement(incarnation: u64, heartbeat: u32) -> Advertisement {
    Advertisement { incarnation, heartbeat, offer: vec![5] }
}

#[test]
fn domain_0_sees_guests_come_and_go() {
    let host = FakeHost::new();
    let mut watcher = PresenceWatcher::new(store(&host.domain(Domid::ZERO)));
    watcher.follow_all().unwrap();
    assert_eq!(watcher.poll(NOW).unwrap(), []);
    let guest = host.start(domid(3));
    assert_eq!(watcher.poll(NOW).unwrap(), [], "it has said nothing yet");
    let (mut announcement, mut own) = announce(&guest, 9, &[]);
    assert_eq!(watcher.poll(NOW).unwrap(), [PresenceEvent::Appeared(domid(3), advertisement(9, 1))]);
    announcement.remove(&mut own).unwrap();
    assert_eq!(watcher.poll(NOW).unwrap(), [PresenceEvent::Disappeared(domid(3), DisappearReason::Removed)]);
    let _again = announce(&guest, 10, &[]);
    assert_eq!(watcher.poll(NOW).unwrap(), [PresenceEvent::Appeared(domid(3), advertisement(10, 1))]);
    host.destroy(domid(3));
    assert_eq!(watcher.poll(NOW).unwrap(), [PresenceEvent::Disappeared(domid(3), DisappearReason::Removed)]);
    // Xen reuses the number for another domain.
    let _next = announce(&host.start(domid(3)), 11, &[]);
    assert_eq!(watcher.poll(NOW).unwrap(), [PresenceEvent::Appeared(domid(3), advertisement(11, 1))]);
}

#[test]
fn guest_sees_only_guests_that_allow_reading() {
    let host = FakeHost::new();
    let [one, two, three] = [1, 2, 3].map(|number| host.start(domid(number)));
    let mut watchers = [&two, &three].map(|domain| PresenceWatcher::new(store(domain)));
    for watcher in &mut watchers {
        watcher.follow(domid(1)).unwrap();
        assert_eq!(watcher.poll(NOW).unwrap(), []);
    }
    let _present = announce(&one, 1, &[domid(2)]);
    let [two, three] = &mut watchers;
    assert_eq!(two.poll(NOW).unwrap(), [PresenceEvent::Appeared(domid(1), advertisement(1, 1))]);
    assert_eq!(three.poll(NOW).unwrap(), []);
    host.destroy(domid(1));
    assert_eq!(two.poll(NOW).unwrap(), [PresenceEvent::Disappeared(domid(1), DisappearReason::Removed)]);
    assert_eq!(three.poll(NOW).unwrap(), []);
}

#[test]
fn reports_only_missed_changes_after_reconnecting() {
    let host = FakeHost::new();
    let [one, two, three] = [1, 2, 3].map(|number| host.start(domid(number)));
    let own = || store(&host.domain(Domid::ZERO));
    let mut watchers = [PresenceWatcher::new(own()), PresenceWatcher::new(own())];
    let [all, two_of_them] = &mut watchers;
    all.follow_all().unwrap();
    two_of_them.follow_only(&[domid(1), domid(2)].into()).unwrap();
    let (mut stays, mut its) = announce(&one, 1, &[]);
    let _goes = announce(&two, 2, &[]);
    let came = |number, incarnation| PresenceEvent::Appeared(domid(number), advertisement(incarnation, 1));
    for watcher in &mut watchers {
        assert_eq!(watcher.poll(NOW).unwrap(), [came(1, 1), came(2, 2)]);
    }
    host.disconnect_store(Domid::ZERO);
    stays.set_readers(&[]); // Due at once.
    stays.renew(&mut its, Instant::now()).unwrap();
    host.destroy(domid(2));
    let _comes = announce(&three, 3, &[]);
    for watcher in &mut watchers {
        assert!(matches!(watcher.poll(NOW).unwrap_err(), StoreError::Broken(_)));
        watcher.reconnect(own()).unwrap();
    }
    let [all, two_of_them] = &mut watchers;
    assert_eq!(all.poll(NOW).unwrap(), [PresenceEvent::Disappeared(domid(2), DisappearReason::Removed), came(3, 3)]);
    assert_eq!(two_of_them.poll(NOW).unwrap(), [PresenceEvent::Disappeared(domid(2), DisappearReason::Removed)]);
    two_of_them.follow_only(&[domid(3)].into()).unwrap();
    assert_eq!(two_of_them.poll(NOW).unwrap(), [came(3, 3)]);
}

#[test]
fn readers_can_be_changed_at_any_time() {
    let host = FakeHost::new();
    let [one, two] = [1, 2].map(|number| host.start(domid(number)));
    let (mut announcement, mut own) = announce(&one, 1, &[]);
    let mut watcher = PresenceWatcher::new(store(&two));
    watcher.follow(domid(1)).unwrap();
    assert_eq!(watcher.poll(NOW).unwrap(), []);
    announcement.set_readers(&[domid(2)]);
    announcement.renew(&mut own, Instant::now()).unwrap();
    assert_eq!(watcher.poll(NOW).unwrap(), [PresenceEvent::Appeared(domid(1), advertisement(1, 2))]);
}

#[test]
fn renews_the_advertisement_only_when_due() {
    let host = FakeHost::new();
    let one = host.start(domid(1));
    let mut own = store(&one);
    let mut announcement = PresenceAnnouncer::new(1, Vec::new(), &[]).unwrap();
    let begun = Instant::now();
    let due = announcement.renew(&mut own, begun).unwrap();
    assert_eq!(due, begun + HEARTBEAT_INTERVAL);
    assert_eq!(announcement.renew(&mut own, due - Duration::from_millis(1)).unwrap(), due);
    assert_eq!(own.read(NODE).unwrap(), b"isthmus 1 0000000000000001 1");
    own.remove(NODE).unwrap(); // Another domain may remove the node; the next renewal restores it.
    announcement.renew(&mut own, due).unwrap();
    assert_eq!(own.read(NODE).unwrap(), b"isthmus 1 0000000000000001 2");
}

#[test]
fn ignores_a_guest_with_a_malformed_advertisement() {
    let host = FakeHost::new();
    let one = host.start(domid(1));
    let mut watcher = PresenceWatcher::new(store(&host.domain(Domid::ZERO)));
    watcher.follow(domid(1)).unwrap();
    let (_announcement, mut own) = announce(&one, 1, &[]);
    assert_eq!(watcher.poll(NOW).unwrap().len(), 1);
    own.write(NODE, &[0xff; 3000]).unwrap();
    assert_eq!(
        watcher.poll(NOW).unwrap(),
        [PresenceEvent::Disappeared(domid(1), DisappearReason::Malformed(AdvertisementError::Unknown))]
    );
    // More changes than the queue holds: all domains are read again.
    for number in 0..3000 {
        own.write(&format!("{NODE}/{number}"), b"").unwrap();
    }
    own.write(NODE, advertisement(2, 1).emit().as_bytes()).unwrap();
    let mut events = Vec::new();
    while events.is_empty() {
        events = watcher.poll(NOW).unwrap();
    }
    assert_eq!(events, [PresenceEvent::Appeared(domid(1), advertisement(2, 1))]);
}

#[test]
fn an_offer_has_a_limit() {
    assert!(PresenceAnnouncer::new(1, vec![0; OFFER_BYTES_MAX], &[]).is_ok());
    assert_eq!(PresenceAnnouncer::new(1, vec![0; OFFER_BYTES_MAX + 1], &[]).unwrap_err(), AdvertisementError::Offer);
}

#[test]
fn no_more_domains_are_followed_than_the_limit() {
    let host = FakeHost::new();
    let mut watcher = PresenceWatcher::new(store(&host.domain(Domid::ZERO)));
    for number in 0..FOLLOWED_MAX as u16 {
        watcher.follow(domid(number)).unwrap();
    }
    assert!(matches!(watcher.follow(domid(FOLLOWED_MAX as u16)), Err(FollowError::Full)));
    watcher.follow(domid(5)).unwrap();
    watcher.unfollow(domid(5)).unwrap();
    watcher.follow(domid(FOLLOWED_MAX as u16)).unwrap();
}
