//! Hello, attach, endpoints, names, and the ends of domains and daemons.

use isthmus_control::server::Ended;
use isthmus_layout::control::*;
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::reason::Reason;

use crate::testbed::{Testbed, name, versions_of};

#[test]
fn a_domain_is_welcomed_with_its_memory() {
    let bed = Testbed::new();
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
    let bed = Testbed::new();
    let (mut first, mut second) = (bed.greeted(), bed.greeted());
    let (first, second) = (first.attach(None).unwrap(), second.attach(None).unwrap());
    assert!(first.message.name.as_str().ends_with(&format!("-{}", std::process::id())), "{}", first.message.name);
    assert_eq!(second.message.name.as_str(), format!("{}-2", first.message.name));
}

#[test]
fn names_are_taken_once_and_free_again_after_any_end() {
    let bed = Testbed::new();
    let (mut web, _) = bed.attached("web");
    assert_eq!(bed.greeted().attach(Some("web")).err(), Some(Reason::NameTaken));
    assert_eq!(bed.greeted().attach(Some("d7")).err(), Some(Reason::NameInvalid));
    web.request(Detach {}, &[]).unwrap();
    let (web, _) = bed.attached("web");
    drop(web);
    let (_web, welcomed) = bed.attached("web");
    assert_eq!(welcomed.id().number(), 3);
}

#[test]
fn a_library_one_version_apart_is_served_and_two_are_refused() {
    let bed = Testbed::with_versions(versions_of(3));
    let outcomes: Vec<_> = (0..=6)
        .map(|minor| {
            let hello = Hello { magic: Magic, versions: versions_of(minor), library: name("test") };
            match bed.connect().request(hello, &[]).map(|heard| heard.message) {
                Ok(ToClient::HelloReply(back)) => Ok(back.minor),
                Ok(other) => panic!("{other:?}"),
                Err(reason) => Err(reason),
            }
        })
        .collect();
    let (old, new) = (Err(Reason::VersionTooOld), Err(Reason::VersionTooNew));
    assert_eq!(outcomes, [old, old, Ok(2), Ok(3), Ok(3), new, new]);
    let other = Hello {
        magic: Magic,
        versions: VersionRange::new(Version { major: 3, minor: 3 }, 3).unwrap(),
        library: name("test"),
    };
    assert_eq!(bed.connect().request(other, &[]).err(), Some(Reason::VersionOtherMajor));
}

#[test]
fn rejects_messages_in_the_wrong_state() {
    let bed = Testbed::new();
    let mut client = bed.connect();
    assert_eq!(client.request(Lookup { name: name("web") }, &[]).err(), Some(Reason::UnexpectedMessageType));
    let mut client = bed.greeted();
    assert_eq!(client.request(Lookup { name: name("web") }, &[]).err(), Some(Reason::UnexpectedMessageType));
    client.attach(Some("web")).unwrap();
    assert_eq!(client.attach(Some("web")).err(), Some(Reason::UnexpectedMessageType));
}

#[test]
fn closes_a_connection_that_sends_no_hello() {
    let bed = Testbed::with("[limits]\nhandshake_timeout_ms = 50\n");
    assert_eq!(bed.connect().ended(), Some(Reason::HandshakeTimeout));
    let (mut web, _) = bed.attached("web");
    assert_eq!(bed.connect().ended(), Some(Reason::HandshakeTimeout));
    web.expect_no_message();
}

#[test]
fn a_policy_keeps_users_out() {
    let bed = Testbed::with("[policy]\nattach = [4000000]\n");
    let mut client = bed.greeted();
    assert_eq!(client.attach(Some("web")).err(), Some(Reason::AttachForbidden));
    assert_eq!(client.report::<serde_json::Value>(Topic::Status, &[]).err(), Some(Reason::AttachForbidden));
}

#[test]
fn domains_have_limits() {
    let bed = Testbed::with("[limits]\ndomains_max = 2\nendpoints_per_domain_max = 2\n");
    let ((mut a, _), (_b, _)) = (bed.attached("a"), bed.attached("b"));
    assert_eq!(bed.greeted().attach(Some("c")).err(), Some(Reason::DomainsFull));
    let open = |index| OpenEndpoint { index: EndpointIndex::new(index), label: None };
    let opened = a.request(open(5), &[]).unwrap().message;
    assert_eq!(opened, EndpointOpened { index: EndpointIndex::new(5).unwrap() }.into());
    assert_eq!(a.request(open(5), &[]).err(), Some(Reason::EndpointTaken));
    a.request(OpenEndpoint { index: None, label: Some(name("mpi")) }, &[]).unwrap();
    assert_eq!(a.request(open(7), &[]).err(), Some(Reason::EndpointsFull));
    let close = |index| CloseEndpoint { index: EndpointIndex::new(index).unwrap() };
    a.request(close(5), &[]).unwrap();
    assert_eq!(a.request(close(5), &[]).err(), Some(Reason::EndpointClosed));
    let bed = Testbed::with("[limits]\ndomains_per_user_max = 1\n");
    let _a = bed.attached("a");
    assert_eq!(bed.greeted().attach(Some("b")).err(), Some(Reason::UserDomainsFull));
}

#[test]
fn connections_have_a_limit() {
    let bed = Testbed::with("[limits]\ndomains_max = 1\ndomains_per_user_max = 1\n");
    let _held: Vec<_> = (0..33).map(|_| bed.greeted()).collect();
    assert_eq!(bed.connect().ended(), Some(Reason::ConnectionsFull));
}

#[test]
fn those_who_looked_a_domain_up_hear_of_its_end() {
    let bed = Testbed::new();
    let ((mut a, _), (mut b, peer), (mut c, other)) = (bed.attached("a"), bed.attached("b"), bed.attached("c"));
    assert_eq!(a.request(Lookup { name: name("unknown") }, &[]).err(), Some(Reason::NoSuchDomain));
    let found = a.request(Lookup { name: name("b") }, &[]).unwrap().message;
    assert_eq!(found, Found { domain: peer.id(), name: name("b"), owner: peer.message.owner }.into());
    a.request(Lookup { name: name("d3") }, &[]).unwrap();
    b.request(Detach {}, &[]).unwrap();
    assert_eq!(a.receive_message().message, PeerGone { peer: peer.id(), reason: Reason::PeerDetached }.into());
    c.expect_no_message();
    drop(c);
    assert_eq!(a.receive_message().message, PeerGone { peer: other.id(), reason: Reason::PeerConnectionLost }.into());
}

#[test]
fn a_daemon_leaves_nothing_behind() {
    let mut bed = Testbed::new();
    let (mut web, _) = bed.attached("web");
    web.request(Detach {}, &[]).unwrap();
    assert_eq!(bed.stop(), Some(Ended::Stopped));
    assert_eq!(std::fs::read_dir(bed.folder()).unwrap().count(), 0);
}

#[test]
fn domains_hear_that_the_daemon_ends() {
    let mut bed = Testbed::new();
    let (mut web, _) = bed.attached("web");
    assert_eq!(bed.stop(), Some(Ended::Stopped));
    assert_eq!(web.ended(), Some(Reason::DaemonShutdown));
}

#[test]
fn exits_when_idle() {
    let mut bed = Testbed::with("[limits]\nslab_kib = 64\n");
    let folder = bed.folder().to_owned();
    bed.stop();
    bed.start("idle_exit_s = 1\n", VersionRange::CURRENT);
    let (web, _) = bed.attached("web");
    drop(web);
    assert_eq!(bed.ended(), Ended::Idle);
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
}
