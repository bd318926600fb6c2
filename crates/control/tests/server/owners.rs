//! Domains of different users are isolated unless the policy allows communication. Even then a domain cannot grant memory to a domain of
//! another user.

use std::os::fd::AsFd as _;

use isthmus_layout::RegionSize;
use isthmus_layout::control::*;
use isthmus_layout::ids::RegionId;
use isthmus_layout::reason::Reason;
use isthmus_platform::local;

use crate::testbed::{AttachedDomain, Client, Testbed, channel, inode};

const USERS: &str = "[policy]\nattach = \"any-user\"\n";

/// Attaches two domains of two users. Returns `None` if the test cannot change its user.
fn two(bed: &Testbed) -> Option<[(Client, AttachedDomain); 2]> {
    let attached = |uid: u32, name: &str| {
        let mut client = bed.greeted_as(uid)?;
        let welcomed = client.attach(Some(name)).unwrap();
        assert_eq!(welcomed.message.owner, Owner(uid));
        Some((client, welcomed))
    };
    let both = attached(70001, "a").zip(attached(70002, "b"));
    if both.is_none() {
        eprintln!("skipped: only root can be other users");
    }
    both.map(|(a, b)| [a, b])
}

#[test]
fn users_do_not_reach_each_other_by_default() {
    let bed = Testbed::with(USERS);
    let Some([(mut a, _), (mut b, theirs)]) = two(&bed) else { return };
    a.send(RequestChannel { peer: theirs.id(), attempt: 1 }, &[]);
    let refused = ChannelRefused { peer: theirs.id(), reason: Reason::TalkForbidden, permanent: true };
    assert_eq!(a.receive_message().message, refused.into());
    b.expect_no_message();
}

#[test]
fn users_that_may_talk_have_ready_maps_of_their_own_and_no_grants() {
    let bed = Testbed::with(&format!("{USERS}talk = \"all\"\n"));
    let Some([(mut a, ours), (mut b, theirs)]) = two(&bed) else { return };
    let [(at_a, fds_a), (at_b, fds_b)] = channel(&mut a, &mut b, theirs.id());
    assert!(at_a.new_ready_map && at_b.new_ready_map && at_a.ready_map != ReadyMapIndex::DAEMON);
    assert_eq!((at_a.peer_owner, at_b.peer_owner), (Owner(70002), Owner(70001)));
    // Each domain sets bits in the other's new ready map, not in the one that domains of the other's own user share.
    assert_eq!((inode(&fds_a[1]), inode(&fds_b[1])), (inode(&fds_b[3]), inode(&fds_a[3])));
    assert_ne!(inode(&fds_a[1]), inode(&theirs.fds[3]));
    // Rings go through a socket. Its two ends are different files, so neither side can block the other.
    assert!(
        rustix::net::sockopt::socket_type(&fds_a[2]).is_ok() && rustix::net::sockopt::socket_type(&fds_b[4]).is_ok()
    );
    assert_ne!(inode(&fds_a[2]), inode(&fds_b[4]));
    let memory = local::memory(RegionSize(4096)).unwrap();
    let grant = Grant { peer: theirs.id(), region: RegionId(1), start: 0, bytes: 4096 };
    assert_eq!(a.request(grant, &[memory.as_fd()]).err(), Some(Reason::DifferentOwner));
    let why: isthmus_report::Why = a.report(Topic::Why, &["a", "b"]).unwrap();
    assert_eq!((why.path.as_str(), why.large.unwrap().reason.as_str()), ("channel", "different-owner"));
    // The daemon has a separate ready map for each of them.
    assert_ne!(inode(&ours.fds[1]), inode(&theirs.fds[1]));
    b.expect_no_message();
}

#[test]
fn a_second_channel_between_the_same_users_uses_the_same_ready_map() {
    let bed = Testbed::with(&format!("{USERS}talk = \"all\"\n"));
    let Some([(mut a, _), (mut b, first)]) = two(&bed) else { return };
    let mut c = bed.greeted_as(70002).unwrap();
    let second = c.attach(Some("c")).unwrap();
    let [(one, fds), _] = channel(&mut a, &mut b, first.id());
    let [(two, _), (_, at_c)] = channel(&mut a, &mut c, second.id());
    assert_eq!((two.ready_map, two.new_ready_map), (one.ready_map, false));
    assert_ne!(two.ready_bit, one.ready_bit);
    assert_eq!(inode(&at_c[1]), inode(&fds[3]));
}

#[test]
fn rejects_a_ticket_of_another_user() {
    let mut bed = Testbed::with(USERS);
    let Some([(_a, ours), (_b, _)]) = two(&bed) else { return };
    bed.stop();
    bed.start(USERS, VersionRange::CURRENT);
    let mut thief = bed.greeted_as(70002).unwrap();
    let Welcome { domain, ticket, name, .. } = ours.message;
    let attach = Attach { name: Some(name), resume: Some(Resume { domain, ticket }) };
    let refused = thief.attach_with(attach, &[ours.fds[3].as_fd(), ours.fds[4].as_fd()]).err();
    assert_eq!(refused, Some(Reason::TicketInvalid));
}

#[test]
fn one_user_cannot_take_all_domains() {
    let bed = Testbed::with(&format!("{USERS}[limits]\ndomains_max = 8\n"));
    let Some([(_a, _), (_b, _)]) = two(&bed) else { return };
    let mut attached: Vec<_> = (0..3).map(|_| bed.greeted_as(70001).unwrap()).collect();
    // It may have half of what is left: of eight places, one is kept for users that have none, and another user has one.
    let outcomes: Vec<_> = attached.iter_mut().map(|client| client.attach(None).map(|_| ())).collect();
    assert_eq!(outcomes, [Ok(()), Ok(()), Err(Reason::UserDomainsFull)]);
    let mut others: Vec<_> = (70003..70010).map(|uid| bed.greeted_as(uid).unwrap()).collect();
    let outcomes: Vec<_> = others.iter_mut().map(|client| client.attach(None).is_ok()).collect();
    assert_eq!(outcomes, [true, true, true, true, false, false, false], "all eight");
    assert_eq!(others[5].attach(None).err(), Some(Reason::DomainsFull));
    drop(attached);
    while others[5].attach(None).is_err() {} // As soon as the daemon has seen the end of the ones before.
}

/// Users 70001 may have names that begin with `web-`, and may talk with user 70002.
const BOUND: &str = "names = [{ name = \"web-*\", user = 70001 }]\nrules = [\
    { from = \"web-*\", to = { user = 70002 }, allow = true }, { from = { user = 70002 }, to = \"web-*\", allow = true }]\n";

#[test]
fn impostor_is_refused_a_bound_name_and_is_not_let_in_by_another() {
    let bed = Testbed::with(&format!("{USERS}{BOUND}"));
    let (Some(mut web), Some(mut db)) = (bed.greeted_as(70001), bed.greeted_as(70002)) else {
        return eprintln!("skipped: only root can be other users");
    };
    let (_, theirs) = (web.attach(Some("web-1")).unwrap(), db.attach(Some("db")).unwrap());
    channel(&mut web, &mut db, theirs.id());
    let mut impostor = bed.greeted_as(70003).unwrap();
    assert_eq!(impostor.attach(Some("web-evil")).err(), Some(Reason::NameForbidden));
    impostor.attach(Some("evil")).unwrap();
    impostor.send(RequestChannel { peer: theirs.id(), attempt: 1 }, &[]);
    let refused = ChannelRefused { peer: theirs.id(), reason: Reason::TalkForbidden, permanent: true };
    assert_eq!(impostor.receive_message().message, refused.into());
    db.expect_no_message();
    let rows: isthmus_report::Domains = bed.greeted().report(Topic::Domains, &[]).unwrap();
    let names: Vec<_> = rows.domains.iter().map(|row| (row.name.as_str(), row.uid)).collect();
    assert_eq!(names, [("web-1", 70001), ("db", 70002), ("evil", 70003)]);
}
