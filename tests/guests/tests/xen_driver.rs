//! Two backends: a driver domain, which is a guest of Xen, serves some guests, and domain 0 serves others.
//! The short form exchanges messages and destroys the driver domain once.
//!
//! ```text
//!  a, b ═══ windows ═══ driver: isthmusd ── eth0 ═══ br0 ── isthmusd: domain 0 ═══ window ═══ c
//! ```
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_guests_tests::{XenKit, XenMachine, XenTestbed, timeout};
use isthmus_testbed::eventually;

/// The guests of the driver domain.
const GUESTS: [&str; 2] = ["a", "b"];

const ALL: [&str; 3] = ["a", "b", "c"];

/// The arguments for some sizes to a program of the driver domain's board, with every byte checked.
const BY_WIRE: &str = "-d driver:0 -n 1 -W 0 -v -S 1 -E 65536";

#[test]
fn two_backends_serve_guests() {
    let kit = match XenKit::find() {
        Ok(kit) => kit,
        Err(why) => return println!("skipped: {why}"),
    };
    println!("# {}, emulated processors", kit.versions);
    let mut bed = XenTestbed { xen: XenMachine::boot(&kit), backend: "driver", channels: false };
    bed.xen.run("bridge 1500 && ip link set br0 address 00:16:3e:86:df:00");
    for name in ALL {
        bed.xen.create(name, "pv");
    }
    bed.xen.configure("dom0", &board("zero", "br0"), &ALL);
    bed.xen.run("isthmus guest allow c; backend");
    start(&mut bed);
    for name in ALL {
        bed.frontend(name);
    }
    bed.check("each backend lists its guests by their names", check_attached);
    bed.check("programs of two guests of the driver domain communicate", |bed| bed.pingpong("b", "a"));
    bed.check_long("programs of a guest and of the driver domain communicate", |bed| bed.pingpong("driver", "a"));
    bed.check_long("programs of domain 0 and of its guest communicate", |bed| bed.pingpong("dom0", "c"));
    bed.check_long("two programs of one guest use a channel", |bed| bed.pingpong("a", "a"));
    bed.check("a guest reaches one of the other backend by the wire between the backends", by_wire);
    bed.check("a destroyed driver domain is an error for its guests, and the next one serves them", destroyed);
    bed.check_long("a killed backend of domain 0 is an error for its own guests", killed);
    bed.check_long("a guest moves from one backend to the other", |bed| moved(bed, "dom0"));
    bed.check_long("the guest moves back", |bed| moved(bed, "driver"));
    bed.check("a denied guest detaches", |bed| {
        bed.xen.run("isthmus guest deny a");
        ask(bed, "driver").expect_state("a", "no device");
    });
    bed.check("no granted page is left", |bed| {
        for guest in ["b", "c"] {
            bed.xen.run_in_guest(guest, "strike frontend");
        }
        let numbers = ALL.map(|guest| bed.number(guest));
        let is_ours = |pages: usize| pages > 2; // The others are the console's and the store's.
        eventually(timeout(), || {
            let grants = bed.xen.grants();
            !numbers.iter().any(|guest| is_ours(grants[guest]))
        })
        .expect("pages of guests are mapped");
    });
}

/// Returns the configuration of a board with this name and the wire.
fn board(name: &str, interface: &str) -> String {
    format!("[[mx.board]]\\nname = \\\"{name}:0\\\"\\nlinks = [{{ interface = \\\"{interface}\\\" }}]")
}

/// Starts a driver domain, which gets a new number each time, and allows its guests to attach to it only.
fn start(bed: &mut XenTestbed) {
    bed.xen.create_with("driver", "pv", "vif = [ \"mac=00:16:3e:86:df:01,bridge=br0,script=/bin/vif\" ]");
    bed.xen.run_in_guest("driver", "card && ip link set eth0 up");
    bed.xen.configure("driver", &board("driver", "eth0"), &ALL);
    for guest in GUESTS {
        bed.xen.run(&format!("isthmus guest allow {guest} --backend driver"));
    }
    bed.xen.run_in_guest("driver", "backend");
}

/// Uses the reports of this backend from now on.
fn ask<'a>(bed: &'a mut XenTestbed, backend: &'static str) -> &'a mut XenTestbed {
    bed.backend = backend;
    bed
}

/// Checks that each backend has its own guests.
fn check_attached(bed: &mut XenTestbed) {
    for (backend, there, absent) in [("dom0", ["c"].as_slice(), GUESTS.as_slice()), ("driver", &GUESTS, &["c"])] {
        let bed = ask(bed, backend);
        there.iter().for_each(|guest| bed.expect_state(guest, "attached"));
        absent.iter().for_each(|guest| bed.expect_state(guest, "no device"));
    }
}

fn by_wire(bed: &mut XenTestbed) {
    for (backend, other) in [("dom0", "driver:0"), ("driver", "zero:0")] {
        bed.xen.run_in_guest(backend, &format!("until isthmus peer list | grep -q {other}; do usleep 20000; done"));
    }
    bed.connect_programs("c", "a", "mx_pingpong", BY_WIRE).iter().for_each(|line| println!("{line}"));
}

/// Starts a transfer between two guests of the driver domain, and one between domain 0 and its guest.
fn exchange_all(bed: &mut XenTestbed) {
    bed.start_stream("a", "b");
    bed.start_stream("c", "dom0");
    for backend in ["driver", "dom0"] {
        ask(bed, backend).expect_forwarded(1 << 20);
    }
}

/// Ends the remaining programs.
fn end_programs(bed: &mut XenTestbed, client: &str, servers: &[&str]) {
    bed.xen.run_in_guest(client, "strike client");
    for server in servers {
        bed.xen.run_in_guest(server, "strike server");
    }
}

fn destroyed(bed: &mut XenTestbed) {
    exchange_all(bed);
    bed.xen.run("xl destroy driver");
    bed.expect_peer_gone("a");
    ask(bed, "dom0").expect_forwarded(1 << 20);
    start(bed);
    check_attached(bed);
    ask(bed, "dom0").expect_forwarded(1 << 20);
    end_programs(bed, "c", &["b", "dom0"]);
    bed.pingpong("b", "a");
}

fn killed(bed: &mut XenTestbed) {
    exchange_all(bed);
    bed.xen.run("strike backend");
    bed.expect_peer_gone("c");
    ask(bed, "driver").expect_forwarded(1 << 20);
    bed.xen.run("strike server; backend");
    check_attached(bed);
    ask(bed, "driver").expect_forwarded(1 << 20);
    end_programs(bed, "a", &["b"]);
    bed.pingpong("dom0", "c");
}

/// Moves `b` to this backend, during a transfer between it and a guest that stays.
fn moved(bed: &mut XenTestbed, to: &'static str) {
    let (from, stays, comes) = if to == "dom0" { ("driver", "a", "c") } else { ("dom0", "c", "a") };
    bed.start_stream(stays, "b");
    ask(bed, from).expect_forwarded(1 << 20);
    let numbers = ["b", from, to].map(|name| bed.number(name));
    for line in bed.xen.run(&format!("isthmus guest allow b --backend {}", numbers[2])) {
        println!("#   {line}");
    }
    bed.expect_peer_gone(stays);
    bed.xen.run_in_guest("b", "strike server");
    ask(bed, to).expect_state("b", "attached");
    ask(bed, from).expect_state("b", "no device");
    let [b, from, _] = numbers;
    let kept = if from == 0 { 2 } else { 0 }; // The console and the store.
    let has_unmapped = |bed: &mut XenTestbed| bed.xen.grants_to().get(&(b, from)).is_none_or(|pages| *pages <= kept);
    eventually(timeout(), || has_unmapped(bed)).expect("the previous backend has pages of the guest");
    bed.pingpong("b", comes);
    bed.pingpong(comes, "b");
}
