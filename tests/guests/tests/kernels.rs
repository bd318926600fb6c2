//! Two guests with the two kernels that the driver supports: Debian's own and that of its backports.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_guests_tests::{Extra, GuestKit, Machine, Monitors, TwoGuests};
use isthmus_mx_tests::build;

/// Only one test runs guests at a time, because each emulated processor takes a whole one.
static MACHINE: Mutex<()> = Mutex::new(());

const WINDOW_MIB: u32 = 32;

/// Starts `guest0` with Debian's own kernel, and `guest1` with that of backports and the root ports that `isthmus guest xml` prints.
fn hosted() -> Option<(GuestKit, TwoGuests, MutexGuard<'static, ()>)> {
    let alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let program = build::compiled(&Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/regions.c"));
    let extra = Extra { programs: vec![program], ..Extra::default() };
    let start = |own: GuestKit, newer: GuestKit| {
        let parts = [(&own, Machine::Pc), (&newer, Machine::Q35)];
        let hosted = TwoGuests::start_of(parts, (Monitors::Both, WINDOW_MIB), &extra)?;
        Ok((newer, hosted))
    };
    match GuestKit::find().and_then(|own| start(own, GuestKit::backported()?)) {
        Ok((newer, mut hosted)) => {
            for guest in &mut hosted.guests {
                let release = guest.run("by window; uname -r").concat();
                println!("# guest{}: Linux {release}", guest.number);
            }
            Some((newer, hosted, alone))
        }
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// Runs round trips between a program of each guest and checks every byte.
fn round_trips(hosted: &mut TwoGuests, how: &str, [server, client]: [usize; 2]) {
    let endpoint = hosted.guests[server].serve(&format!("mx_pingpong {how}"));
    let lines = hosted.guests[client].run(&format!("mx_pingpong {how} -r {endpoint} -n 5 -W 3 -v -S 0 -E 1048576"));
    println!("# guest{client} to guest{server} {how}\n{}", lines.join("\n"));
    assert_eq!(lines.len(), 1 + 1 + 21, "{lines:?}"); // A heading, zero bytes, and powers of two.
    hosted.guests[server].run("served");
}

/// Runs the memory suite with buffers in the window, between programs of these guests.
fn buffers(hosted: &mut TwoGuests, [server, client]: [usize; 2]) {
    let endpoint = hosted.guests[server].serve("env MX_RCACHE=1 regions");
    let said = hosted.guests[client].run(&format!("MX_RCACHE=1 regions -r {endpoint}"));
    said.iter().for_each(|line| println!("# {line}"));
    assert_eq!(said.last().map(String::as_str), Some("all is well"));
    assert!(said.iter().all(|line| !line.ends_with("homes 0")), "no buffer was moved");
    hosted.guests[server].run("served");
}

#[test]
fn guests_with_different_kernels_communicate_and_replace_a_window() {
    let Some((newer, mut hosted, _alone)) = hosted() else { return };
    hosted.guests[1].run("grep 'isthmus0: a window of .* write-back' /tmp/window.log");
    // Messages use the daemon path first, then the pair window.
    hosted.transfer_by_channel();
    hosted.guests[0].end_server();
    hosted.expect_error();
    hosted.guests[1].run("test -c /dev/isthmus1");
    round_trips(&mut hosted, "-w", [1, 0]);
    round_trips(&mut hosted, "", [0, 1]);
    buffers(&mut hosted, [0, 1]);
    buffers(&mut hosted, [1, 0]);
    // When its own window is unplugged, the guest loses the pair window, too, during a transfer.
    hosted.transfer_by_channel();
    hosted.unplug(1);
    hosted.expect_error();
    hosted.guests[0].end_server();
    hosted.row_until(1, |row| row["state"] == "no device" && row["domains"] == 0);
    hosted.guests[1].run("while test -e /dev/isthmus0 || test -e /dev/isthmus1; do usleep 20000; done");
    hosted.guests[1].run("until isthmus status 2>&1 | grep host-daemon-unreachable; do usleep 100000; done");
    hosted.guests[0].run("while test -e /dev/isthmus1; do usleep 20000; done");
    // This QEMU may crash if it continues without its doorbells.
    hosted.migrate(&newer, 1);
    hosted.plug((1, 1), &hosted.daemon);
    hosted.guests[1].run("until isthmus status >/dev/null 2>&1; do usleep 100000; done");
    round_trips(&mut hosted, "-w", [1, 0]);
    for guest in &mut hosted.guests {
        assert_eq!(guest.complaints(), [""; 0], "guest{}", guest.number);
    }
}
