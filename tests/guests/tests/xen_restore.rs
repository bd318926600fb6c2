//! Guests of Xen that are paused, saved and restored, by the toolstack: programs hear of it, and meet again.
//!
//! The short form has a pause and one restore.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_guests::{XenBed, XenKit, XenMachine, patience};
use isthmus_testbed::eventually;

#[test]
fn guests_of_xen_come_back() {
    let kit = match XenKit::find() {
        Ok(kit) => kit,
        Err(why) => return println!("skipped: {why}"),
    };
    println!("# {}, emulated processors", kit.versions);
    let mut bed = XenBed { xen: XenMachine::boot(&kit), backend: "dom0", channels: false };
    bed.xen.configure_each("dom0", "", &[("a", "maps = false"), ("b", "")]);
    bed.xen.run("backend");
    for name in ["a", "b"] {
        bed.xen.create(name, "pv");
        bed.xen.run(&format!("isthmus guest allow {name}"));
        bed.frontend(name);
    }
    bed.check("a guest that is paused looks silent, and goes on", paused);
    bed.check_long("a guest that is saved and goes on has lost nothing", checkpoint);
    bed.check_long("a guest that was forbidden lets go, is saved, restored and allowed, and comes back", prepared);
    bed.check("a guest that is saved as it is comes back under another number", |bed| unprepared(bed, "dom0", "a", 1));
    bed.check_long("and once more, with its peer in another guest", |bed| unprepared(bed, "a", "b", 2));
    bed.check_long("what it was asking of XenStore is refused", interrupted);
    bed.check_long("and while it talks past the backend", granting);
    bed.check("its daemon ends and starts as any other", restarted);
    bed.check("nothing that was granted is left", |bed| {
        for guest in ["a", "b"] {
            bed.xen.on(guest, "strike frontend");
        }
        eventually(patience(), || {
            bed.xen.grants().into_iter().filter(|(domain, _)| *domain > 0).all(|(_, pages)| pages <= 2)
        })
        .expect("pages of guests are mapped");
    });
}

fn paused(bed: &mut XenBed) {
    bed.talk("dom0", "a");
    bed.passes_on(1 << 20);
    bed.xen.run("xl pause a");
    bed.is("a", "silent");
    bed.xen.run("xl unpause a");
    bed.is("a", "there");
    bed.passes_on(1 << 20);
    silence(bed, "dom0", "a");
}

fn checkpoint(bed: &mut XenBed) {
    bed.talk("dom0", "a");
    bed.passes_on(1 << 20);
    let number = bed.number("a");
    bed.xen.run("save -c a && rm /save/a");
    assert_eq!(bed.number("a"), number);
    bed.passes_on(1 << 20);
    silence(bed, "dom0", "a");
    bed.pingpong("a", "b");
}

/// Ends two that talk.
fn silence(bed: &mut XenBed, client: &str, server: &str) {
    bed.xen.on(client, "strike client");
    bed.xen.on(server, "strike server");
}

fn prepared(bed: &mut XenBed) {
    bed.talk("dom0", "a");
    bed.passes_on(1 << 20);
    let number = bed.number("a");
    bed.xen.run("isthmus guest forbid a");
    assert_eq!(bed.guest("a")["state"], "absent", "who was forbidden and let go is there");
    bed.lose("dom0");
    bed.xen.on("a", "strike server");
    bed.xen.run("save a");
    restore(bed, "a", number);
    assert_eq!(bed.xen.on("a", "ps | grep -c '[s]leep infinity' || true"), ["0"], "a port was open");
    bed.pingpong("dom0", "a");
}

/// `a` is one of the two. Whoever talks is told: who stayed, of its peer; who was saved, of its daemon. Then so many ports of before are held.
fn unprepared(bed: &mut XenBed, client: &str, server: &str, held: u32) {
    bed.talk(client, server);
    bed.passes_on(1 << 20);
    let number = bed.number("a");
    bed.xen.run("save a");
    bed.is("a", "absent");
    restore(bed, "a", number);
    bed.lose(client);
    bed.xen.on(server, "strike server");
    assert_eq!(bed.xen.on("a", "ps | grep -c '[s]leep infinity'"), [held.to_string()], "of ports of before");
    bed.pingpong(client, server);
    bed.pingpong("a", "a");
}

/// Nobody knows a transaction of before, so whatever is asked in it is refused: as what its daemon may have been asking just then.
fn interrupted(bed: &mut XenBed) {
    bed.xen.on("a", "begin transaction xen-side transact; await transaction begun");
    let number = bed.number("a");
    bed.xen.run("save a");
    bed.is("a", "absent");
    restore(bed, "a", number);
    bed.xen.on("a", "tell transaction go on");
    let said = bed.ended("a", "transaction").expect_success("the transaction");
    assert_eq!(said, ["begun", "the store refuses to write data/transaction: ENOENT: no such node"]);
}

/// Restores a guest, which comes back once it is allowed; its number before is not its number now.
fn restore(bed: &mut XenBed, name: &str, before: u16) {
    let now = bed.xen.say(&format!("restore {name}"));
    assert_ne!(now, before.to_string());
    bed.xen.run(&format!("isthmus guest allow {name}"));
    bed.is(name, "there");
    bed.xen.on(name, "answers frontend");
    is_whole(bed, name);
}

/// Its kernel has stopped at nothing.
fn is_whole(bed: &mut XenBed, name: &str) {
    let said = bed.xen.on(name, "dmesg | grep -e BUG -e Oops -e 'kernel bug' || true");
    assert!(said.is_empty(), "{said:?}");
}

/// One that never maps what others grant comes back; the other one would not. A program of it has an end of an event channel of before when it ends.
fn granting(bed: &mut XenBed) {
    bed.channels = true;
    bed.talk("a", "b");
    bed.until_channel();
    let maps = |program: &str| format!("ls -l /proc/$(cat /tmp/{program}.pid)/fd | grep -c /dev/xen/gntdev || true");
    assert_eq!(bed.xen.on("a", &maps("client")), ["0"]);
    assert_ne!(bed.xen.on("b", &maps("server")), ["0"]);
    let number = bed.number("a");
    bed.xen.run("save a");
    bed.is("a", "absent");
    restore(bed, "a", number);
    bed.lose("a");
    bed.xen.on("b", "strike server");
    is_whole(bed, "a");
    bed.channels = false;
    bed.pingpong("a", "b");
    is_whole(bed, "a");
}

fn restarted(bed: &mut XenBed) {
    bed.xen.on("a", "strike frontend; frontend");
    bed.is("a", "there");
    bed.pingpong("b", "a");
}
