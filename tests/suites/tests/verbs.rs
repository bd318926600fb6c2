//! Queue pair numbers, by the library and a real `isthmusd`: taken, found, and taken again from the next daemon; and the GIDs.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_client::{Domain, EndpointAddress, QueryClient, Reason};
use isthmus_netns::Testbed;
use isthmus_suites::attach::{attach, options, reason};
use isthmus_suites::test_program::plan;
use isthmus_suites::{TIMEOUT_S, daemon as start};
use isthmus_testbed::{Deadline, Scratch, binary, eventually};
use std::net::Ipv6Addr;
use std::process::Command;
use std::time::Duration;

/// The GID that stands for this host.
const HERE: [u8; 16] = [0; 16];

#[test]
fn programs_find_each_other_by_gid_and_number() {
    let scratch = Scratch::new().unwrap();
    let daemon = start(&scratch, "");
    let ((mut a, _), (mut b, at_b)) = (attach(&daemon, "a"), attach(&daemon, "b"));
    let numbers = b.verbs_take(at_b).unwrap();
    assert_eq!(numbers.len(), 256);
    let to_b = EndpointAddress { domain: b.id(), endpoint: at_b };
    let device = QueryClient::connect(&options(&daemon, "asks")).unwrap().verbs().unwrap();
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
    let daemon = start(&scratch, "");
    let ((mut a, _), (mut b, at_b)) = (attach(&daemon, "a"), attach(&daemon, "b"));
    let numbers = b.verbs_take(at_b).unwrap();
    // Without this file the next daemon rejects all tickets. The daemon before would write it again.
    let file = daemon.state_dir().join("resume");
    let killed = daemon.kill(Deadline::secs(TIMEOUT_S)).unwrap();
    std::fs::remove_file(file).unwrap();
    let _daemon = killed.start(Deadline::secs(TIMEOUT_S)).unwrap();
    eventually(Deadline::secs(TIMEOUT_S), || {
        b.wait(Some(Duration::from_millis(10)));
        b.is_connected() && a.verbs_resolve(HERE, numbers.start).is_ok()
    })
    .unwrap();
    let to_b = EndpointAddress { domain: b.id(), endpoint: at_b };
    assert_eq!(a.verbs_resolve(HERE, numbers.start), Ok(to_b));
}

#[test]
fn gids_follow_the_addresses_of_the_interfaces() {
    let made = Testbed::new().and_then(|mut bed| Ok((bed.host("a")?, bed)));
    let (host, _bed) = match made {
        Ok(made) => made,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let ip = |arguments: &str| {
        let mut command = Command::new("ip");
        command.args(arguments.split(' '));
        assert!(host.output(command).unwrap().status.success(), "ip {arguments}");
    };
    let scratch = Scratch::new().unwrap();
    binary("isthmusd", "isthmusd").unwrap(); // Built before its time runs.
    let daemon = plan(&scratch, "").host(&host).start(Deadline::secs(TIMEOUT_S)).unwrap();
    let (mut a, at) = attach(&daemon, "a");
    let number = a.verbs_take(at).unwrap().start;
    let gids = |a: &mut Domain| -> Vec<_> {
        let rows = a.verbs().unwrap().gids.into_iter().skip(1);
        rows.filter(|row| row.gid.segments()[0] != 0xFE80).map(|row| (row.gid.to_string(), row.interface)).collect()
    };
    let [ipv4, ipv6] = ["::ffff:10.9.0.1", "fd00:9::1"].map(|gid| gid.parse::<Ipv6Addr>().unwrap());
    let own = EndpointAddress { domain: a.id(), endpoint: at };
    ip("link add dummy9 type veth peer name dummy8");
    ip("address add fd00:9::1/64 dev dummy9 nodad");
    assert_eq!(gids(&mut a), [], "the interface is down");
    assert_eq!(reason(a.verbs_resolve(ipv6.octets(), number)), Reason::VerbsGidUnknown);
    ip("link set dummy9 up");
    assert_eq!(a.verbs_resolve(ipv6.octets(), number), Ok(own), "without IPv4");
    ip("address add 10.9.0.1/24 dev dummy9");
    let interface = Some("dummy9".to_owned());
    assert_eq!(gids(&mut a), [(ipv4.to_string(), interface.clone()), (ipv6.to_string(), interface)]);
    assert_eq!(a.verbs_resolve(ipv4.octets(), number), Ok(own));
    ip("address del 10.9.0.1/24 dev dummy9");
    eventually(Deadline::secs(TIMEOUT_S), || a.verbs_resolve(ipv4.octets(), number) != Ok(own)).unwrap();
    assert_eq!(reason(a.verbs_resolve(ipv4.octets(), number)), Reason::VerbsGidUnknown);
    assert_eq!(a.verbs_resolve(HERE, number), Ok(own), "an address without a GRH");
}
