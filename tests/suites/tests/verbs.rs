//! Queue pair numbers, by the library and a real `isthmusd`: taken, found, and taken again from the next daemon.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_client::{Domain, EndpointAddress, EndpointIndex, Options, QueryClient, Reason};
use isthmus_layout::control::Name;
use isthmus_suites::{TIMEOUT_S, daemon as start};
use isthmus_testbed::{DaemonProcess, Deadline, Scratch, eventually};
use std::path::PathBuf;
use std::time::Duration;

/// The GID that stands for this host.
const HERE: [u8; 16] = [0; 16];

fn options(socket: PathBuf, name: &str) -> Options {
    Options { name: Name::new(name).ok(), socket: Some(socket), no_autostart: true, ..Options::default() }
}

fn attach(daemon: &DaemonProcess, name: &str) -> (Domain, EndpointIndex) {
    let mut domain = Domain::attach_with(&options(daemon.socket(), name)).unwrap();
    let at = domain.open(None, "").unwrap();
    (domain, at)
}

fn reason<T: std::fmt::Debug>(outcome: Result<T, isthmus_client::Refusal>) -> Reason {
    outcome.unwrap_err().reason
}

#[test]
fn programs_find_each_other_by_gid_and_number() {
    let scratch = Scratch::new().unwrap();
    let daemon = start(&scratch, "");
    let ((mut a, _), (mut b, at_b)) = (attach(&daemon, "a"), attach(&daemon, "b"));
    let numbers = b.verbs_take(at_b).unwrap();
    assert_eq!(numbers.len(), 256);
    let to_b = EndpointAddress { domain: b.id(), endpoint: at_b };
    let device = QueryClient::connect(&options(daemon.socket(), "asks")).unwrap().verbs().unwrap();
    assert_eq!((device.enabled, device.name.as_str()), (true, "isthmus0"));
    assert_eq!(device.gids[0].gid.to_bits(), 0xFE80 << 112 | u128::from(device.node_guid));
    for gid in device.gids.iter().map(|row| row.gid.octets()).chain([HERE]) {
        assert_eq!(a.verbs_resolve(gid, numbers.end - 1), Ok(to_b), "{gid:?}");
    }
    assert_eq!(reason(a.verbs_resolve(HERE, numbers.start - 1)), Reason::VerbsNumberUnknown);
    assert_eq!(reason(a.verbs_resolve([0xFF; 16], numbers.start)), Reason::VerbsGidUnknown);
    let [domain] = &a.verbs().unwrap().domains[..] else { panic!("one domain has numbers") };
    assert_eq!((domain.domain.id, domain.blocks[0].first), (b.id().number(), numbers.start));
    b.close(at_b).unwrap();
    assert_eq!(reason(a.verbs_resolve(HERE, numbers.start)), Reason::VerbsNumberUnknown);
}

#[test]
fn the_next_daemon_knows_the_numbers_again() {
    let scratch = Scratch::new().unwrap();
    let mut daemon = start(&scratch, "");
    let ((mut a, at_a), (mut b, at_b)) = (attach(&daemon, "a"), attach(&daemon, "b"));
    let blocks = [b.verbs_take(at_b).unwrap(), b.verbs_take(at_b).unwrap()];
    let closed = b.open(None, "").unwrap();
    let returned = b.verbs_take(closed).unwrap();
    b.close(closed).unwrap();
    daemon.kill_and_restart(Deadline::secs(TIMEOUT_S)).unwrap();
    // A program that comes first cannot take the numbers of another one that will come back.
    let taken = a.verbs_take(at_a).unwrap();
    assert!(!blocks.contains(&taken), "{taken:?}");
    let to_b = EndpointAddress { domain: b.id(), endpoint: at_b };
    eventually(Deadline::secs(TIMEOUT_S), || {
        b.wait(Some(Duration::from_millis(10)));
        b.is_connected() && a.verbs_resolve(HERE, blocks[1].start) == Ok(to_b)
    })
    .unwrap();
    assert_eq!(a.verbs_resolve(HERE, blocks[0].start), Ok(to_b));
    assert_eq!(b.verbs_resolve(HERE, taken.start), Ok(EndpointAddress { domain: a.id(), endpoint: at_a }));
    if returned != taken {
        assert_eq!(reason(a.verbs_resolve(HERE, returned.start)), Reason::VerbsNumberUnknown, "it was returned before");
    }
}

#[test]
fn domains_that_attach_anew_have_their_numbers_again() {
    let scratch = Scratch::new().unwrap();
    let mut daemon = start(&scratch, "");
    let ((mut a, _), (mut b, at_b)) = (attach(&daemon, "a"), attach(&daemon, "b"));
    let numbers = b.verbs_take(at_b).unwrap();
    // Without this file the next daemon rejects all tickets.
    std::fs::remove_file(daemon.state_dir().join("resume")).unwrap();
    daemon.kill_and_restart(Deadline::secs(TIMEOUT_S)).unwrap();
    eventually(Deadline::secs(TIMEOUT_S), || {
        b.wait(Some(Duration::from_millis(10)));
        b.is_connected() && a.verbs_resolve(HERE, numbers.start).is_ok()
    })
    .unwrap();
    let to_b = EndpointAddress { domain: b.id(), endpoint: at_b };
    assert_eq!(a.verbs_resolve(HERE, numbers.start), Ok(to_b));
}
