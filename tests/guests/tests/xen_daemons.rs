//! Programs of Xen's domains: unchanged MX programs in guests and in domain 0 meet at the daemon of domain 0.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_guests::{XenBed, XenKit, XenMachine, patience};
use isthmus_layout::limits::ORDINARY_CREDIT_BYTES;
use isthmus_testbed::eventually;

/// Sizes to 1 MiB, every byte looked at.
const EVERY_SIZE: &str = "-n 2 -W 1 -v -S 0 -E 1048576";

/// A heading, nothing, and powers of two.
const LINES: usize = 1 + 1 + 21;

const SHORT: &str = "-n 1 -W 1 -v -S 1 -E 65536";

/// Messages of a pair that go on after there is a channel.
const MANY: &str = "-n 2000 -W 0 -v -S 32768 -E 32768";

#[test]
fn programs_of_domains_of_xen() {
    let kit = match XenKit::find() {
        Ok(kit) => kit,
        Err(why) => return println!("skipped: {why}"),
    };
    println!("# {}, emulated processors", kit.versions);
    let mut bed = XenBed { xen: XenMachine::boot(&kit), backend: "dom0", channels: true };
    let kind = match bed.xen.done("xl info | grep -q virt_caps.*hvm").code {
        0 => "pvh",
        _ => {
            println!("SKIP a PVH guest: this QEMU's processor cannot run any; b is a PV guest, too");
            "pv"
        }
    };
    bed.xen.configure("dom0", "[xen]\\ncommon_idle_s = 5", &["a", "b"]);
    for (name, kind) in [("a", "pv"), ("b", kind)] {
        bed.xen.create(name, kind);
        bed.xen.run(&format!("isthmus guest allow {name}"));
        bed.xen.may_grant(name);
    }
    let before = bed.xen.grants();
    bed.xen.run("backend");
    for guest in ["a", "b"] {
        bed.xen.on(guest, "frontend");
    }
    bed.check("the backend shows its guests", |bed| {
        for guest in ["a", "b"] {
            let shown = bed.guest(guest);
            assert!(shown["daemon"] == true, "{shown}");
        }
    });
    for (what, client, server, sizes) in [
        ("programs of a guest and of domain 0 meet", "dom0", "a", EVERY_SIZE),
        ("programs of two guests meet", "b", "a", EVERY_SIZE),
        ("programs of two guests meet the other way round", "a", "b", SHORT),
        ("two programs of one guest meet, by a channel", "a", "a", EVERY_SIZE),
        ("two programs of the other guest meet, by a channel", "b", "b", SHORT),
    ] {
        bed.check(what, |bed| {
            let said = bed.meet(client, server, "mx_pingpong", sizes);
            said.iter().for_each(|line| println!("{line}"));
            assert!(sizes != EVERY_SIZE || said.len() == LINES, "{said:?}");
        });
    }
    for [client, server] in [["dom0", "b"], ["b", "a"]] {
        bed.check("many messages under way at once come whole and in order", |bed| {
            let said = bed.meet(client, server, "mx_stream", "-s 40000 -N 20 -q 5 -v");
            said.iter().for_each(|line| println!("{line}"));
        });
    }
    bed.check("programs of two guests talk past the backend", past_the_backend);
    bed.check("they wake each other while both daemons are stopped", without_daemons);
    bed.check("what two guests have in common goes when nobody uses it", |bed| {
        let gone =
            |bed: &mut XenBed| bed.xen.done("grep -q \"common window goes: nobody uses it\" /tmp/backend").code == 0;
        eventually(patience(), || gone(bed)).expect("it stays");
    });
    bed.check("a guest's daemon that is killed ends its channels, and nothing else", |bed| killed_neighbour(bed, "b"));
    bed.check("so does the other one's", |bed| killed_neighbour(bed, "a"));
    bed.check("a guest's daemon that is killed comes back", killed_frontend);
    bed.check("a backend that is killed comes back", killed_backend);
    bed.check("whatever stands in a guest's node, the others go on", garbled);
    bed.check("a guest that is destroyed is an error for its peers and nothing else", destroyed);
    bed.check("nothing that was granted is left", |bed| {
        bed.xen.on("a", "strike frontend");
        let a = bed.number("a");
        let then = before[&a];
        eventually(patience(), || bed.xen.grants().get(&a) == Some(&then)).expect("pages of a are mapped");
    });
}

/// A program of `client` sends to one of `server`; once it does, by a channel between guests, that happens; and the survivor is told.
fn struck(bed: &mut XenBed, client: &str, server: &str, strike: impl FnOnce(&mut XenBed)) {
    bed.talk(client, server);
    match client {
        "dom0" => bed.passes_on(1 << 20),
        _ => bed.until_channel(),
    }
    strike(bed);
    bed.lose(client);
}

fn past_the_backend(bed: &mut XenBed) {
    bed.begin("b", "a", "mx_pingpong", MANY);
    bed.until_channel();
    let first = bed.passed_on();
    // As long as both are there.
    let mut last = first;
    while bed.paths() == ["channel"] {
        last = last.max(bed.passed_on());
    }
    bed.xen.on("b", "ended client").iter().for_each(|line| println!("{line}"));
    bed.xen.on("a", "ended server");
    println!("# through the backend: {first} bytes before there was a channel, {} after", last - first);
    // What was on its way there when the channel came, both ways, and nothing else.
    assert!(last - first <= 2 * u64::from(ORDINARY_CREDIT_BYTES));
}

/// Sizes, and the last of them as the client's line begins.
const TO_64K: &str = "-n 200 -W 0 -v -S 1 -E 65536";
const LAST: &str = "       65536 ";

fn without_daemons(bed: &mut XenBed) {
    bed.begin("b", "a", "mx_pingpong", TO_64K);
    bed.until_past_the_daemons("b");
    bed.xen.on("a", "kill -STOP $(cat /tmp/frontend.pid)");
    bed.xen.on("b", &format!("kill -STOP $(cat /tmp/frontend.pid); ! grep -q '^{LAST}' /tmp/client"));
    bed.xen.on("b", &format!("await client '{LAST}'"));
    for guest in ["a", "b"] {
        bed.xen.on(guest, "kill -CONT $(cat /tmp/frontend.pid)");
    }
    bed.xen.on("b", "ended client").iter().for_each(|line| println!("{line}"));
    bed.xen.on("a", "ended server");
    for guest in ["a", "b"] {
        bed.is(guest, "there");
    }
}

fn killed_neighbour(bed: &mut XenBed, whose: &str) {
    let other = if whose == "a" { "b" } else { "a" };
    struck(bed, other, whose, |bed| drop(bed.xen.on(whose, "strike frontend")));
    bed.xen.on(whose, "strike server; frontend");
    bed.pingpong(other, whose);
}

fn killed_frontend(bed: &mut XenBed) {
    struck(bed, "dom0", "a", |bed| drop(bed.xen.on("a", "strike frontend")));
    bed.xen.on("a", "strike server; frontend");
    bed.pingpong("dom0", "a");
}

fn killed_backend(bed: &mut XenBed) {
    bed.xen.run("strike backend; backend");
    for guest in ["a", "b"] {
        bed.xen.on(guest, "answers frontend");
    }
    bed.pingpong("b", "a");
}

fn garbled(bed: &mut XenBed) {
    let b = bed.number("b");
    bed.xen.on("b", "strike frontend");
    for value in ["", "isthmus", "isthmus 1 0000000000000001 1 5701", "isthmus 1 ffffffffffffffff 4294967295"] {
        bed.xen.run(&format!("xenstore-write /local/domain/{b}/data/isthmus \"{value}\""));
    }
    bed.pingpong("dom0", "a");
    bed.xen.on("b", "frontend");
}

fn destroyed(bed: &mut XenBed) {
    struck(bed, "a", "b", |bed| drop(bed.xen.run("xl destroy b")));
    eventually(patience(), || bed.xen.run("xl list").len() == 3).expect("b goes, and its pages with it");
    let shown = bed.guest("b");
    assert!(shown["daemon"] == false && shown["used_bytes"].is_null(), "{shown}");
    bed.pingpong("dom0", "a");
}
