//! Guests of Xen that the toolstack pauses, saves and restores: programs get errors, and communicate again afterwards.
//!
//! The short form has a pause and one restore.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_guests_tests::{XenKit, XenMachine, XenTestbed, timeout};
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
    bed.check("a paused guest is shown as not responding, and resumes", paused);
    bed.check_long("a guest that is saved and continues has lost nothing", checkpoint);
    bed.check_long("a guest that is denied, saved, restored and allowed again attaches", prepared);
    bed.check("a guest that is saved while attached attaches again under another number", |bed| {
        unprepared(bed, "dom0", "a", 1)
    });
    bed.check_long("the same with its peer in another guest", |bed| unprepared(bed, "a", "b", 2));
    bed.check_long("XenStore refuses requests of a transaction from before the save", interrupted);
    bed.check_long("the same during a transfer on the direct path", granting);
    bed.check("the daemon of a restored guest can be restarted", restarted);
    bed.check("no granted page is left", |bed| {
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

/// Ends both programs of a transfer.
fn end_programs(bed: &mut XenTestbed, client: &str, server: &str) {
    bed.xen.run_in_guest(client, "strike client");
    bed.xen.run_in_guest(server, "strike server");
}

fn prepared(bed: &mut XenTestbed) {
    bed.start_stream("dom0", "a");
    bed.expect_forwarded(1 << 20);
    let number = bed.number("a");
    bed.xen.run("isthmus guest deny a");
    assert_eq!(bed.guest("a")["state"], "no device", "a denied guest is attached");
    bed.expect_peer_gone("dom0");
    bed.xen.run_in_guest("a", "strike server");
    bed.xen.run("save a");
    restore(bed, "a", number);
    assert_eq!(bed.xen.run_in_guest("a", "ps | grep -c '[s]leep infinity' || true"), ["0"], "a port was open");
    bed.pingpong("dom0", "a");
}

/// Saves and restores `a`, which is the client or the server, during a transfer. The client gets an error, because of its peer or of its
/// daemon. Afterwards `a` holds `held` ports from before the save.
fn unprepared(bed: &mut XenTestbed, client: &str, server: &str, held: u32) {
    bed.start_stream(client, server);
    bed.expect_forwarded(1 << 20);
    let number = bed.number("a");
    bed.xen.run("save a");
    bed.expect_state("a", "no device");
    restore(bed, "a", number);
    bed.expect_peer_gone(client);
    bed.xen.run_in_guest(server, "strike server");
    assert_eq!(
        bed.xen.run_in_guest("a", "ps | grep -c '[s]leep infinity'"),
        [held.to_string()],
        "ports from before the save"
    );
    bed.pingpong(client, server);
    bed.pingpong("a", "a");
}

/// Saves and restores a guest in a transaction of XenStore. The store does not know the transaction any more, and refuses requests in it. A
/// daemon may be in such a transaction.
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

/// Restores a guest, which gets a new number, allows it, and waits until it has attached.
fn restore(bed: &mut XenTestbed, name: &str, before: u16) {
    let now = bed.xen.run_for_line(&format!("restore {name}"));
    assert_ne!(now, before.to_string());
    bed.xen.run(&format!("isthmus guest allow {name}"));
    bed.expect_state(name, "attached");
    bed.xen.run_in_guest(name, "answers frontend");
    check_kernel_log(bed, name);
}

/// Checks that the guest's kernel has reported no bug.
fn check_kernel_log(bed: &mut XenTestbed, name: &str) {
    let said = bed.xen.run_in_guest(name, "dmesg | grep -e BUG -e Oops -e 'kernel bug' || true");
    assert!(said.is_empty(), "{said:?}");
}

/// Saves and restores a guest that never maps grants of others, during a transfer on the direct path. Its peer maps grants, and could not be
/// restored. A program of the guest ends with an end of an event channel from before the save.
fn granting(bed: &mut XenTestbed) {
    bed.channels = true;
    bed.start_stream_with_channel("a", "b");
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
