//! Hello, attach, endpoints, names, and the ends of domains and daemons.

use isthmus_control::server::Ended;
use isthmus_layout::control::*;
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::reason::Reason;

use crate::bed::{Bed, name, speaks};

#[test]
fn a_domain_is_welcomed_with_its_memory() {
    let bed = Bed::new();
    let (_client, welcomed) = bed.attached("web");
    let message = &welcomed.message;
    assert_eq!((message.domain.number(), message.name.as_str()), (1, "web"));
    assert!(message.fresh && message.channels);
    let sizes: Vec<i64> = welcomed.fds.iter().map(|fd| rustix::fs::fstat(fd).unwrap().st_size).collect();
    assert_eq!(sizes[0], 20480 + 2 * i64::from(message.slab.bytes()));
    assert_eq!((sizes[1], sizes[3], sizes.len()), (4096, 4096, 5));
}

#[test]
fn a_domain_without_a_name_gets_one() {
    let bed = Bed::new();
    let (mut first, mut second) = (bed.greeted(), bed.greeted());
    let (first, second) = (first.attach(None).unwrap(), second.attach(None).unwrap());
    assert!(first.message.name.as_str().ends_with(&format!("-{}", std::process::id())), "{}", first.message.name);
    assert_eq!(second.message.name.as_str(), format!("{}-2", first.message.name));
}

#[test]
fn names_are_taken_once_and_free_again_after_any_end() {
    let bed = Bed::new();
    let (mut web, _) = bed.attached("web");
    assert_eq!(bed.greeted().attach(Some("web")).err(), Some(Reason::NameTaken));
    assert_eq!(bed.greeted().attach(Some("d7")).err(), Some(Reason::NameInvalid));
    web.ask(Close {}, &[]).unwrap();
    let (web, _) = bed.attached("web");
    drop(web);
    let (_web, welcomed) = bed.attached("web");
    assert_eq!(welcomed.id().number(), 3);
}

#[test]
fn a_library_one_version_apart_is_served_and_two_are_refused() {
    let bed = Bed::speaking(speaks(3));
    let outcomes: Vec<_> = (0..=6)
        .map(|minor| {
            let hello = Hello { magic: Magic, spoken: speaks(minor), library: name("test") };
            match bed.connect().ask(hello, &[]).map(|heard| heard.message) {
                Ok(ToClient::HelloBack(back)) => Ok(back.minor),
                Ok(other) => panic!("{other:?}"),
                Err(reason) => Err(reason),
            }
        })
        .collect();
    let (old, new) = (Err(Reason::VersionTooOld), Err(Reason::VersionTooNew));
    assert_eq!(outcomes, [old, old, Ok(2), Ok(3), Ok(3), new, new]);
    let other =
        Hello { magic: Magic, spoken: Spoken::new(Version { major: 3, minor: 3 }, 3).unwrap(), library: name("test") };
    assert_eq!(bed.connect().ask(other, &[]).err(), Some(Reason::VersionOtherMajor));
}

#[test]
fn messages_have_their_turn() {
    let bed = Bed::new();
    let mut client = bed.connect();
    assert_eq!(client.ask(Lookup { name: name("web") }, &[]).err(), Some(Reason::OutOfTurn));
    let mut client = bed.greeted();
    assert_eq!(client.ask(Lookup { name: name("web") }, &[]).err(), Some(Reason::OutOfTurn));
    client.attach(Some("web")).unwrap();
    assert_eq!(client.attach(Some("web")).err(), Some(Reason::OutOfTurn));
}

#[test]
fn who_says_nothing_is_let_go() {
    let bed = Bed::with("[limits]\nhandshake_timeout_ms = 50\n");
    assert_eq!(bed.connect().ended(), Some(Reason::HandshakeTimeout));
    let (mut web, _) = bed.attached("web");
    assert_eq!(bed.connect().ended(), Some(Reason::HandshakeTimeout));
    web.hears_nothing();
}

#[test]
fn a_policy_keeps_users_out() {
    let bed = Bed::with("[policy]\nattach = [4000000]\n");
    let mut client = bed.greeted();
    assert_eq!(client.attach(Some("web")).err(), Some(Reason::AttachForbidden));
    assert_eq!(client.report::<serde_json::Value>(Topic::Status, &[]).err(), Some(Reason::AttachForbidden));
}

#[test]
fn domains_have_limits() {
    let bed = Bed::with("[limits]\ndomains_max = 2\nendpoints_per_domain_max = 2\n");
    let ((mut a, _), (_b, _)) = (bed.attached("a"), bed.attached("b"));
    assert_eq!(bed.greeted().attach(Some("c")).err(), Some(Reason::DomainsFull));
    let open = |index| OpenEndpoint { index: EndpointIndex::new(index), label: None };
    let opened = a.ask(open(5), &[]).unwrap().message;
    assert_eq!(opened, EndpointOpened { index: EndpointIndex::new(5).unwrap() }.into());
    assert_eq!(a.ask(open(5), &[]).err(), Some(Reason::EndpointTaken));
    a.ask(OpenEndpoint { index: None, label: Some(name("mpi")) }, &[]).unwrap();
    assert_eq!(a.ask(open(7), &[]).err(), Some(Reason::EndpointsFull));
    let close = |index| CloseEndpoint { index: EndpointIndex::new(index).unwrap() };
    a.ask(close(5), &[]).unwrap();
    assert_eq!(a.ask(close(5), &[]).err(), Some(Reason::EndpointClosed));
    let bed = Bed::with("[limits]\ndomains_per_user_max = 1\n");
    let _a = bed.attached("a");
    assert_eq!(bed.greeted().attach(Some("b")).err(), Some(Reason::OwnerDomainsFull));
}

#[test]
fn connections_have_a_limit() {
    let bed = Bed::with("[limits]\ndomains_max = 1\ndomains_per_user_max = 1\n");
    let _held: Vec<_> = (0..33).map(|_| bed.greeted()).collect();
    assert_eq!(bed.connect().ended(), Some(Reason::ConnectionsFull));
}

#[test]
fn those_who_looked_a_domain_up_hear_of_its_end() {
    let bed = Bed::new();
    let ((mut a, _), (mut b, peer), (mut c, other)) = (bed.attached("a"), bed.attached("b"), bed.attached("c"));
    assert_eq!(a.ask(Lookup { name: name("nobody") }, &[]).err(), Some(Reason::NoSuchDomain));
    let found = a.ask(Lookup { name: name("b") }, &[]).unwrap().message;
    assert_eq!(found, Found { domain: peer.id(), name: name("b"), owner: peer.message.owner }.into());
    a.ask(Lookup { name: name("d3") }, &[]).unwrap();
    b.ask(Close {}, &[]).unwrap();
    assert_eq!(a.hear().message, PeerGone { peer: peer.id(), reason: Reason::PeerDetached }.into());
    c.hears_nothing();
    drop(c);
    assert_eq!(a.hear().message, PeerGone { peer: other.id(), reason: Reason::PeerVanished }.into());
}

#[test]
fn a_daemon_leaves_nothing_behind() {
    let mut bed = Bed::new();
    let (mut web, _) = bed.attached("web");
    web.ask(Close {}, &[]).unwrap();
    assert_eq!(bed.stop(), Some(Ended::Stopped));
    assert_eq!(std::fs::read_dir(bed.folder()).unwrap().count(), 0);
}

#[test]
fn domains_hear_that_the_daemon_ends() {
    let mut bed = Bed::new();
    let (mut web, _) = bed.attached("web");
    assert_eq!(bed.stop(), Some(Ended::Stopped));
    assert_eq!(web.ended(), Some(Reason::DaemonShutdown));
}

#[test]
fn a_daemon_that_nobody_needs_leaves() {
    let mut bed = Bed::with("[limits]\nslab_kib = 64\n");
    let folder = bed.folder().to_owned();
    bed.stop();
    bed.start("idle_exit_s = 1\n", Spoken::CURRENT);
    let (web, _) = bed.attached("web");
    drop(web);
    assert_eq!(bed.ended(), Ended::Idle);
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
}
