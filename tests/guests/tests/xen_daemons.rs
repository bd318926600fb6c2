//! Programs in Xen domains: unmodified MX programs in guests and in domain 0 communicate through the daemon of domain 0.
//!
//! The long form repeats checks with the domains in other roles.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_guests_tests::{XenKit, XenMachine, XenTestbed, timeout};
use isthmus_layout::limits::DAEMON_PATH_CREDIT_BYTES;
use isthmus_testbed::eventually;

/// The arguments for sizes up to 1 MiB, with every byte checked.
const EVERY_SIZE: &str = "-n 2 -W 1 -v -S 0 -E 1048576";

/// The number of lines of output: a heading, zero bytes, and powers of two.
const LINES: usize = 1 + 1 + 21;

const SHORT: &str = "-n 1 -W 1 -v -S 1 -E 65536";

/// The arguments for enough messages that some follow after the channel is open.
const MANY: &str = "-n 2000 -W 0 -v -S 32768 -E 32768";

#[test]
fn programs_of_domains_of_xen() {
    let kit = match XenKit::find() {
        Ok(kit) => kit,
        Err(why) => return println!("skipped: {why}"),
    };
    println!("# {}, emulated processors", kit.versions);
    let mut bed = XenTestbed { xen: XenMachine::boot(&kit), backend: "dom0", channels: true };
    let kind = match bed.xen.done("xl info | grep -q virt_caps.*hvm").code {
        0 => "pvh",
        _ => {
            println!("SKIP a PVH guest: this QEMU's processor cannot run any; b is a PV guest, too");
            "pv"
        }
    };
    bed.xen.configure("dom0", "[xen]\\npair_window_idle_s = 5", &["a", "b"]);
    for (name, kind) in [("a", "pv"), ("b", kind)] {
        bed.xen.create(name, kind);
        bed.xen.run(&format!("isthmus guest allow {name}"));
        bed.xen.may_grant(name);
    }
    let before = bed.xen.grants();
    bed.xen.run("backend");
    for guest in ["a", "b"] {
        bed.xen.run_in_guest(guest, "frontend");
    }
    bed.check("the backend lists its guests", |bed| {
        for guest in ["a", "b"] {
            let shown = bed.guest(guest);
            assert!(shown["daemon"] == true, "{shown}");
        }
    });
    for (what, client, server, sizes) in [
        ("a program of domain 0 reaches one of a guest", "dom0", "a", EVERY_SIZE),
        ("a program of a guest reaches one of another guest", "b", "a", EVERY_SIZE),
        ("two programs of one guest use a channel", "a", "a", SHORT),
    ] {
        bed.check(what, |bed| {
            let said = bed.connect_programs(client, server, "mx_pingpong", sizes);
            said.iter().for_each(|line| println!("{line}"));
            assert!(sizes != EVERY_SIZE || said.len() == LINES, "{said:?}");
        });
    }
    for (what, client, server) in
        [("a guest sends to another one", "a", "b"), ("two programs of the other guest use a channel", "b", "b")]
    {
        bed.check_long(what, |bed| {
            assert_eq!(bed.connect_programs(client, server, "mx_pingpong", EVERY_SIZE).len(), LINES);
        });
    }
    bed.check("many messages under way at once arrive whole and in order", |bed| many_messages(bed, "b", "a"));
    bed.check_long("so do those of domain 0", |bed| many_messages(bed, "dom0", "b"));
    bed.check("programs of two guests use the direct path", direct_path);
    bed.check("programs of two guests wake each other while both guest daemons are stopped", without_daemons);
    bed.check("an unused pair window is closed", unused_window);
    bed.check("a killed guest daemon ends its channels, and no others", |bed| killed_peer_guest(bed, "b"));
    bed.check_long("the same with the other guest daemon", |bed| killed_peer_guest(bed, "a"));
    bed.check("a killed guest daemon attaches again", killed_frontend);
    bed.check("guests attach again after the backend was killed", killed_backend);
    bed.check("invalid text in a guest's node does not affect other guests", corrupted_messages);
    bed.check("a destroyed guest is an error for its peers only", destroyed);
    bed.check("no granted page is left", |bed| {
        bed.xen.run_in_guest("a", "strike frontend");
        let a = bed.number("a");
        let then = before[&a];
        eventually(timeout(), || bed.xen.grants().get(&a) == Some(&then)).expect("pages of a are mapped");
    });
}

fn many_messages(bed: &mut XenTestbed, client: &str, server: &str) {
    let said = bed.connect_programs(client, server, "mx_stream", "-s 40000 -N 20 -q 5 -v");
    said.iter().for_each(|line| println!("{line}"));
}

/// Starts a transfer from `client` to `server`, calls `strike` once messages arrive (between guests, by a channel), and checks the client's error.
fn kill_during_transfer(bed: &mut XenTestbed, client: &str, server: &str, strike: impl FnOnce(&mut XenTestbed)) {
    match client {
        "dom0" => {
            bed.start_stream(client, server);
            bed.expect_forwarded(1 << 20);
        }
        _ => bed.start_stream_with_channel(client, server),
    }
    strike(bed);
    bed.expect_peer_gone(client);
}

fn direct_path(bed: &mut XenTestbed) {
    bed.start_with_channel("b", "a", "mx_pingpong", MANY);
    let first = bed.forwarded_bytes();
    // Until both programs have ended.
    let mut last = first;
    while bed.paths() == ["channel"] {
        last = last.max(bed.forwarded_bytes());
    }
    bed.xen.run_in_guest("b", "ended client").iter().for_each(|line| println!("{line}"));
    bed.xen.run_in_guest("a", "ended server");
    println!("# through the backend: {first} bytes before there was a channel, {} after", last - first);
    // At most the messages that were under way when the channel opened, in both directions.
    assert!(last - first <= 2 * u64::from(DAEMON_PATH_CREDIT_BYTES));
}

/// More exchanges than the test waits for: the programs are killed at its end.
const WITHOUT_END: &str = "-n 3000 -W 0 -v -S 1 -E 1048576";

fn without_daemons(bed: &mut XenTestbed) {
    bed.start_with_channel("b", "a", "mx_pingpong", WITHOUT_END);
    bed.until_direct_path("b");
    for guest in ["a", "b"] {
        bed.xen.run_in_guest(guest, "kill -STOP $(cat /tmp/frontend.pid)");
    }
    let before = bed.lines_of_client("b");
    eventually(timeout(), || bed.lines_of_client("b") > before).expect("the programs go on without their daemons");
    for guest in ["a", "b"] {
        bed.xen.run_in_guest(guest, "kill -CONT $(cat /tmp/frontend.pid)");
    }
    bed.xen.run_in_guest("b", "cat /tmp/client; strike client").iter().for_each(|line| println!("{line}"));
    bed.xen.run_in_guest("a", "strike server");
    for guest in ["a", "b"] {
        bed.expect_state(guest, "attached");
    }
}

/// On a busy machine the daemons of the guests were stopped for so long that the backend has missed their heartbeats, or taken a guest for
/// gone, and closed it before.
fn unused_window(bed: &mut XenTestbed) {
    let closed = "grep 'pair window is closed' /tmp/backend";
    let reason = |bed: &mut XenTestbed| bed.xen.done(closed).lines.into_iter().next();
    let mut shown = None;
    eventually(timeout(), || {
        shown = reason(bed);
        shown.is_some()
    })
    .expect("the pair window stays");
    let shown = shown.expect("it was closed");
    println!("#   {shown}");
    let reasons = ["was unused", "does not show the window", "is not there any more"];
    assert!(reasons.iter().any(|reason| shown.contains(reason)), "{shown}");
}

fn killed_peer_guest(bed: &mut XenTestbed, guest: &str) {
    let other = if guest == "a" { "b" } else { "a" };
    kill_during_transfer(bed, other, guest, |bed| drop(bed.xen.run_in_guest(guest, "strike frontend")));
    bed.xen.run_in_guest(guest, "strike server; frontend");
    bed.pingpong(other, guest);
}

fn killed_frontend(bed: &mut XenTestbed) {
    kill_during_transfer(bed, "dom0", "a", |bed| drop(bed.xen.run_in_guest("a", "strike frontend")));
    bed.xen.run_in_guest("a", "strike server; frontend");
    bed.pingpong("dom0", "a");
}

fn killed_backend(bed: &mut XenTestbed) {
    bed.xen.run("strike backend; backend");
    for guest in ["a", "b"] {
        bed.xen.run_in_guest(guest, "answers frontend");
    }
    bed.pingpong("b", "a");
}

fn corrupted_messages(bed: &mut XenTestbed) {
    let b = bed.number("b");
    bed.xen.run_in_guest("b", "strike frontend");
    for value in ["", "isthmus", "isthmus 1 0000000000000001 1 5701", "isthmus 1 ffffffffffffffff 4294967295"] {
        bed.xen.run(&format!("xenstore-write /local/domain/{b}/data/isthmus \"{value}\""));
    }
    bed.pingpong("dom0", "a");
    bed.xen.run_in_guest("b", "frontend");
}

fn destroyed(bed: &mut XenTestbed) {
    kill_during_transfer(bed, "a", "b", |bed| drop(bed.xen.run("xl destroy b")));
    eventually(timeout(), || bed.xen.run("xl list").len() == 3).expect("b ends, with its pages");
    let shown = bed.guest("b");
    assert!(shown["daemon"] == false && shown["used_bytes"].is_null(), "{shown}");
    bed.pingpong("dom0", "a");
}
