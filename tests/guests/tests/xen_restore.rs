//! Guests of Xen that are paused, saved and restored, by the toolstack: programs hear of it, and meet again.
//!
//! The short form has a pause and one restore.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_guests::{XenKit, XenMachine, XenTestbed, timeout};
use isthmus_testbed::eventually;

#[test]
fn xen_guests_reattach_after_restore() {
    let kit = match XenKit::find() {
        Ok(kit) => kit,
        Err(why) => return println!("skipped: {why}"),
    };
    println!("# {}, emulated processors", kit.versions);
    let mut bed = XenTestbed { xen: XenMachine::boot(&kit), backend: "dom0", channels: false };
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
            bed.xen.run_in_guest(guest, "strike frontend");
        }
        eventually(timeout(), || {
            bed.xen.grants().into_iter().filter(|(domain, _)| *domain > 0).all(|(_, pages)| pages <= 2)
        })
        .expect("pages of guests are mapped");
    });
}

fn paused(bed: &mut XenTestbed) {
    bed.start_stream("dom0", "a");
    bed.expect_forwarded(1 << 20);
    bed.xen.run("xl pause a");
    bed.expect_state("a", "not responding");
    bed.xen.run("xl unpause a");
    bed.expect_state("a", "attached");
    bed.expect_forwarded(1 << 20);
    end_programs(bed, "dom0", "a");
}

fn checkpoint(bed: &mut XenTestbed) {
    bed.start_stream("dom0", "a");
    bed.expect_forwarded(1 << 20);
    let number = bed.number("a");
    bed.xen.run("save -c a && rm /save/a");
    assert_eq!(bed.number("a"), number);
    bed.expect_forwarded(1 << 20);
    end_programs(bed, "dom0", "a");
    bed.pingpong("a", "b");
}

/// Ends two that talk.
fn end_programs(bed: &mut XenTestbed, client: &str, server: &str) {
    bed.xen.run_in_guest(client, "strike client");
    bed.xen.run_in_guest(server, "strike server");
}

fn prepared(bed: &mut XenTestbed) {
    bed.start_stream("dom0", "a");
    bed.expect_forwarded(1 << 20);
    let number = bed.number("a");
    bed.xen.run("isthmus guest deny a");
    assert_eq!(bed.guest("a")["state"], "no device", "who was forbidden and let go is there");
    bed.expect_peer_gone("dom0");
    bed.xen.run_in_guest("a", "strike server");
    bed.xen.run("save a");
    restore(bed, "a", number);
    assert_eq!(bed.xen.run_in_guest("a", "ps | grep -c '[s]leep infinity' || true"), ["0"], "a port was open");
    bed.pingpong("dom0", "a");
}

/// `a` is one of the two. Whoever talks is told: who stayed, of its peer; who was saved, of its daemon. Then so many ports of before are held.
fn unprepared(bed: &mut XenTestbed, client: &str, server: &str, held: u32) {
    bed.start_stream(client, server);
    bed.expect_forwarded(1 << 20);
    let number = bed.number("a");
    bed.xen.run("save a");
    bed.expect_state("a", "no device");
    restore(bed, "a", number);
    bed.expect_peer_gone(client);
    bed.xen.run_in_guest(server, "strike server");
    assert_eq!(bed.xen.run_in_guest("a", "ps | grep -c '[s]leep infinity'"), [held.to_string()], "of ports of before");
    bed.pingpong(client, server);
    bed.pingpong("a", "a");
}

/// Nobody knows a transaction of before, so whatever is asked in it is refused: as what its daemon may have been asking just then.
fn interrupted(bed: &mut XenTestbed) {
    bed.xen.run_in_guest("a", "begin transaction xen-test-agent hold-transaction; await transaction begun");
    let number = bed.number("a");
    bed.xen.run("save a");
    bed.expect_state("a", "no device");
    restore(bed, "a", number);
    bed.xen.run_in_guest("a", "tell transaction go on");
    let said = bed.ended("a", "transaction").expect_success("the transaction");
    assert_eq!(said, ["begun", "the store refuses to write data/transaction: ENOENT: no such node"]);
}

/// Restores a guest, which comes back once it is allowed; its number before is not its number now.
fn restore(bed: &mut XenTestbed, name: &str, before: u16) {
    let now = bed.xen.run_for_line(&format!("restore {name}"));
    assert_ne!(now, before.to_string());
    bed.xen.run(&format!("isthmus guest allow {name}"));
    bed.expect_state(name, "attached");
    bed.xen.run_in_guest(name, "answers frontend");
    check_kernel_log(bed, name);
}

/// Its kernel has stopped at nothing.
fn check_kernel_log(bed: &mut XenTestbed, name: &str) {
    let said = bed.xen.run_in_guest(name, "dmesg | grep -e BUG -e Oops -e 'kernel bug' || true");
    assert!(said.is_empty(), "{said:?}");
}

/// One that never maps what others grant comes back; the other one would not. A program of it has an end of an event channel of before when it ends.
fn granting(bed: &mut XenTestbed) {
    bed.channels = true;
    bed.start_stream("a", "b");
    bed.until_channel();
    let maps = |program: &str| format!("ls -l /proc/$(cat /tmp/{program}.pid)/fd | grep -c /dev/xen/gntdev || true");
    assert_eq!(bed.xen.run_in_guest("a", &maps("client")), ["0"]);
    assert_ne!(bed.xen.run_in_guest("b", &maps("server")), ["0"]);
    let number = bed.number("a");
    bed.xen.run("save a");
    bed.expect_state("a", "no device");
    restore(bed, "a", number);
    bed.expect_peer_gone("a");
    bed.xen.run_in_guest("b", "strike server");
    check_kernel_log(bed, "a");
    bed.channels = false;
    bed.pingpong("a", "b");
    check_kernel_log(bed, "a");
}

fn restarted(bed: &mut XenTestbed) {
    bed.xen.run_in_guest("a", "strike frontend; frontend");
    bed.expect_state("a", "attached");
    bed.pingpong("b", "a");
}
