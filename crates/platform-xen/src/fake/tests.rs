use super::*;
use crate::kernel::{Pages, Port};
use crate::store::protocol::{NodeRights, Permission, StoreRefusal};
use crate::store::{Store, StoreEvent};
use isthmus_shm::{Payload, SharedMapping};
use std::time::Duration;

const NOW: Duration = Duration::ZERO;

fn domid(number: u16) -> Domid {
    Domid::new(number).unwrap()
}

fn pair(host: &FakeHost) -> [FakeDomain; 2] {
    [1, 2].map(|number| host.start(domid(number)))
}

fn byte(mapping: Mapping) -> u8 {
    let mut bytes = [0];
    SharedMapping::new(mapping).copy_out(0, &mut bytes);
    bytes[0]
}

#[test]
fn what_a_destroyed_domain_granted_stays_where_it_is_mapped() {
    let host = FakeHost::new();
    let [one, two] = pair(&host);
    let pages = one.offer(domid(2), 1, Access::Read).unwrap();
    SharedMapping::new(pages.map().unwrap()).copy_in(0, &[7]);
    let kept = two.map(domid(1), pages.refs(), Access::Read, None).unwrap();
    host.destroy(domid(1));
    assert!(two.map(domid(1), pages.refs(), Access::Read, None).is_err());
    assert_eq!(byte(kept), 7);
    assert_eq!(host.grants(), 0);
}

#[test]
fn what_a_destroyed_domain_has_mapped_is_its_owners_again() {
    let host = FakeHost::new();
    let [one, two] = pair(&host);
    let pages = one.offer(domid(2), 1, Access::Read).unwrap();
    let mapping = two.map(domid(1), pages.refs(), Access::Read, None).unwrap();
    drop(pages);
    assert_eq!(host.grants(), 1);
    host.destroy(domid(2));
    assert_eq!(host.grants(), 0);
    drop(mapping);
}

#[test]
fn a_refused_map_leaves_nothing_mapped() {
    let host = FakeHost::new();
    let [one, two] = pair(&host);
    let pages = one.offer(domid(2), 2, Access::ReadWrite).unwrap();
    let refs = [pages.refs()[0], GrantRef(9999)];
    assert!(two.map(domid(1), &refs, Access::Read, None).is_err());
    drop(pages);
    assert_eq!(host.grants(), 0);
}

#[test]
fn binding_raises_an_event_and_notifying_a_closed_port_succeeds() {
    let host = FakeHost::new();
    let [one, two] = pair(&host);
    let here = one.listen(domid(2)).unwrap();
    assert!(host.start(domid(3)).bind(domid(1), here.number()).is_err(), "it was for another domain");
    let there = two.bind(domid(1), here.number()).unwrap();
    assert!(two.bind(domid(1), here.number()).is_err(), "it is bound already");
    assert!(there.wait(NOW).unwrap() && !there.wait(NOW).unwrap());
    host.destroy(domid(1));
    there.notify().unwrap();
    assert!(!there.wait(NOW).unwrap(), "the end of a domain is silent");
}

#[test]
fn sends_no_unmap_notify_when_a_domain_is_destroyed() {
    let host = FakeHost::new();
    let [one, two] = pair(&host);
    let pages = one.offer(domid(2), 1, Access::ReadWrite).unwrap();
    let here = one.listen(domid(2)).unwrap();
    let bound = two.bind(domid(1), here.number()).unwrap();
    while here.wait(NOW).unwrap() {}
    let unmap_notify = Some(UnmapNotify { byte_at: 0, port: &bound });
    let mapping = two.map(domid(1), pages.refs(), Access::ReadWrite, unmap_notify).unwrap();
    let own = SharedMapping::new(pages.map().unwrap());
    own.copy_in(0, &[1]);
    host.destroy(domid(2));
    drop(mapping);
    assert!(!here.wait(NOW).unwrap());
    let mut bytes = [0];
    own.copy_out(0, &mut bytes);
    assert_eq!(bytes, [1]);
}

#[test]
fn a_guest_writes_below_its_data_only() {
    let host = FakeHost::new();
    let [one, two] = pair(&host);
    let [mut one, mut two] = [&one, &two].map(|domain| Store::new(domain.store().unwrap()));
    one.write("data/a/b", b"x").unwrap();
    for path in ["device/a", "/local/domain/2/data/a", "/a"] {
        assert_eq!(one.write(path, b"").unwrap_err().refusal(), Some(StoreRefusal::Forbidden), "{path}");
    }
    assert_eq!(two.read("/local/domain/1/data/a/b").unwrap_err().refusal(), Some(StoreRefusal::Forbidden));
    let readers = [(1, NodeRights::None), (2, NodeRights::Read)];
    let readers = readers.map(|(number, rights)| Permission { domid: domid(number), rights });
    one.set_permissions("data/a/b", &readers).unwrap();
    assert_eq!(two.read("/local/domain/1/data/a/b").unwrap(), b"x");
}

#[test]
fn watch_fires_when_a_readable_domain_is_destroyed() {
    let host = FakeHost::new();
    let [one, two] = pair(&host);
    let [mut one, mut two] = [&one, &two].map(|domain| Store::new(domain.store().unwrap()));
    one.write("data/a", b"x").unwrap();
    let readers = [(1, NodeRights::None), (2, NodeRights::Read)];
    one.set_permissions("data/a", &readers.map(|(number, rights)| Permission { domid: domid(number), rights }))
        .unwrap();
    let path = "/local/domain/1/data/a";
    two.watch(path, "t").unwrap();
    let event = Some(StoreEvent::Changed { path: path.to_owned(), token: "t".to_owned() });
    assert_eq!(two.event(NOW).unwrap(), event);
    assert_eq!(two.event(NOW).unwrap(), None);
    host.destroy(domid(1));
    assert_eq!(two.event(NOW).unwrap(), event);
    assert_eq!(two.read(path).unwrap_err().refusal(), Some(StoreRefusal::Forbidden));
}

#[test]
fn lend_fd_maps_granted_pages_in_order() {
    let host = FakeHost::new();
    let [one, two] = pair(&host);
    let [pages, others] = [3, 1].map(|count| one.offer(domid(2), count, Access::ReadWrite).unwrap());
    SharedMapping::new(pages.map().unwrap()).copy_in(2 * 4096, &[7]);
    let refs = pages.refs();
    let lent = two.lend_fd(domid(1), refs).unwrap();
    let mut bytes = [0];
    assert_eq!((rustix::io::pread(&lent, &mut bytes, 2 * 4096), bytes), (Ok(1), [7]));
    assert!(two.lend_fd(domid(1), &refs[..2]).is_ok());
    let turned: Vec<_> = refs.iter().rev().copied().collect();
    let mixed = [refs[0], others.refs()[0]];
    for wrong in [&turned[..], &mixed[..], &refs[1..], &[], &[GrantRef(4_000_000)]] {
        assert!(two.lend_fd(domid(1), wrong).is_err(), "{wrong:?}");
    }
    assert!(one.lend_fd(domid(1), refs).is_err(), "they were granted to another domain");
}

#[test]
fn a_domain_grants_no_more_than_it_may() {
    let host = FakeHost::new();
    let [one, _] = pair(&host);
    host.limit_grants(domid(1), 3);
    let two_pages = one.offer(domid(2), 2, Access::Read).unwrap();
    assert_eq!(one.offer(domid(2), 2, Access::Read).err(), Some(Errno::NOSPC));
    drop(two_pages);
    assert!(one.offer(domid(2), 3, Access::Read).is_ok());
}
