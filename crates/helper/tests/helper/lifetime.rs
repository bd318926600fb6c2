//! The order in which programs end: an interface lives as long as the descriptor of its client, and neither connection nor helper keeps it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use isthmus_helper::{HelperError, Mtu, RefusalReason};

use crate::{Running, bed, ip, link, open, open_in, reason, start, start_raw, tap};

const CLIENT_VARIABLE: &str = "ISTHMUS_HELPER_TEST_CLIENT";

#[test]
fn interface_goes_with_its_descriptor_and_not_with_the_connection() {
    let Some(bed) = bed() else { return };
    let (mut helper, mut client) = start(&bed.a, &[]);
    let (first, second) = (open(&mut client, "first"), open(&mut client, "second"));
    drop(first);
    assert_eq!(link(&bed.a, "first"), "");
    drop(client);
    assert!(helper.0.wait().unwrap().success(), "a helper with one connection ends with it");
    assert!(link(&bed.a, "second").contains(",UP,"));
    drop(second);
    assert_eq!(link(&bed.a, "second"), "");
}

#[test]
fn helper_that_is_killed_takes_no_interface_along() {
    let Some(bed) = bed() else { return };
    let (helper, mut client) = start(&bed.a, &[]);
    let opened = open(&mut client, "tap0");
    drop(helper); // Killed.
    let mtu = Mtu::new(2000).unwrap();
    assert!(matches!(client.set_mtu(opened.info.interface, mtu), Err(HelperError::Closed)));
    assert!(matches!(client.set_mtu(opened.info.interface, mtu), Err(HelperError::Closed)));
    assert!(link(&bed.a, "tap0").contains(",UP,"));
}

#[test]
fn helper_keeps_no_descriptor_of_an_interface_or_its_namespace() {
    let Some(bed) = bed() else { return };
    let (helper, mut client) = start(&bed.a, &["--namespaces"]);
    let open_files = || fs::read_dir(format!("/proc/{}/fd", helper.0.id())).unwrap().count();
    let before = open_files();
    let opened = open_in(&mut client, tap("tap0", &[]), &bed.b).unwrap();
    client.hello().unwrap(); // The helper closes its copy of the device after its reply.
    assert_eq!(open_files(), before);
    client.release(opened.info.interface).unwrap();
    assert_eq!(reason(client.set_up(opened.info.interface, false)), RefusalReason::NoSuchInterface);
    assert_eq!(reason(client.release(opened.info.interface)), RefusalReason::NoSuchInterface);
    assert!(link(&bed.b, "tap0").contains(",UP,"));
}

#[test]
fn refused_requests_leave_no_descriptor() {
    let Some(bed) = bed() else { return };
    let (helper, mut client) = start(&bed.a, &["--namespaces"]);
    let open_files = || fs::read_dir(format!("/proc/{}/fd", helper.0.id())).unwrap().count();
    let before = open_files();
    let _tap = open(&mut client, "lo0");
    for _ in 0..5 {
        assert_eq!(reason(open_in(&mut client, tap("lo", &[]), &bed.b)), RefusalReason::NameTaken);
        assert_eq!(reason(client.open_tap(tap("lo", &[]), None)), RefusalReason::NameTaken);
    }
    client.hello().unwrap();
    assert_eq!(open_files(), before);
}

/// The client is this program again. It is killed while it holds interfaces in two namespaces.
#[test]
fn interfaces_of_a_killed_client_are_gone() {
    let Some(bed) = bed() else { return };
    let (mut helper, socket) = start_raw(&bed.a, &["--namespaces"]);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "lifetime::client_that_waits_to_be_killed", "--nocapture"]).env(CLIENT_VARIABLE, "1");
    command.stdin(socket).stdout(Stdio::piped());
    let mut client = Running(bed.b.spawn(command).unwrap());
    let mut lines = BufReader::new(client.0.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("client: ready")), "the client has its interfaces");
    assert!(link(&bed.a, "here").contains(",UP,") && link(&bed.b, "there").contains(",UP,"));
    drop(client);
    assert_eq!(
        (ip(&bed.a, "-o link").lines().count(), ip(&bed.b, "-o link").lines().count()),
        (1, 1),
        "only lo is left"
    );
    assert!(helper.0.wait().unwrap().success());
}

#[test]
fn client_that_waits_to_be_killed() {
    if std::env::var_os(CLIENT_VARIABLE).is_none() {
        return; // A part of the test above.
    }
    use std::os::fd::AsFd as _;
    let socket: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut client = isthmus_helper::HelperClient::from_socket(socket).unwrap();
    let own = fs::File::open("/proc/thread-self/ns/net").unwrap();
    let _here = client.open_tap(tap("here", &[]), None).unwrap();
    let _there = client.open_tap(tap("there", &[]), Some(own.as_fd())).unwrap();
    println!("client: ready");
    loop {
        std::thread::park();
    }
}
