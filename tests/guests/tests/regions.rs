//! Large messages between programs of guests, from buffers in a window that both can map.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_guests_tests::{Extra, GuestKit, Monitors, TwoGuests};
use isthmus_mx_tests::build;
use serde_json::Value;

/// Only one test runs guests at a time, because each emulated processor takes a whole one.
static MACHINE: Mutex<()> = Mutex::new(());

/// The size of a window that firmware maps above 4 GiB, where a processor may cache it.
const CACHED_MIB: u32 = 4096;

fn hosted(monitors: Monitors, window_mib: u32) -> Option<(TwoGuests, MutexGuard<'static, ()>)> {
    let alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let program = build::compiled(&Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/regions.c"));
    let extra = Extra { programs: vec![program], ..Extra::default() };
    match GuestKit::find().and_then(|kit| TwoGuests::start_as(&kit, (monitors, window_mib), &extra)) {
        Ok(mut hosted) => {
            hosted.guests.iter_mut().for_each(|guest| drop(guest.run("by window; export MX_RCACHE=1")));
            Some((hosted, alone))
        }
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// Returns true if the only pair of domains sends long messages in fragments for this reason.
fn has_fragment_reason(listed: &str, reason: &str) -> bool {
    let listed: Value = serde_json::from_str(listed).unwrap();
    let directions = listed["pairs"][0]["channel"]["directions"].as_array();
    directions.into_iter().flatten().any(|direction| direction["fragmented"]["reason"] == reason)
}

/// Runs the memory suite between a program of `server` and one of `client`.
fn run_memory_suite(hosted: &mut TwoGuests, (server, client): (usize, usize)) {
    let endpoint = hosted.guests[server].serve("regions");
    hosted.guests[client].start_command(&format!("regions -r {endpoint}"));
    let done = hosted.guests[client].finish_command();
    done.lines.iter().for_each(|line| println!("# {line}"));
    let served = hosted.guests[server].run("served");
    assert_eq!((done.code, done.lines.last().map(String::as_str)), (0, Some("all is well")), "{served:?}");
    let homes = |line: &str| line.rsplit_once("homes ").and_then(|(_, count)| count.parse::<u32>().ok());
    let counts: Vec<u32> = done.lines.iter().filter_map(|line| homes(line)).collect();
    assert!(counts.len() == 8 && counts.iter().all(|count| *count > 0), "no buffer was moved: {counts:?}");
    assert!(done.lines.iter().any(|line| line == "DONTNEED Invalid argument"), "old bytes would pass for zeroes");
}

/// Exchanges messages between the guests until they have a pair window.
fn until_channel(hosted: &mut TwoGuests) {
    hosted.transfer_by_channel();
    hosted.guests[0].end_server();
    assert_ne!(hosted.guests[1].finish_command().code, 0);
}

fn complaints(hosted: &mut TwoGuests) -> Vec<String> {
    hosted.guests.iter_mut().flat_map(|guest| guest.complaints()).collect()
}

#[test]
fn programs_of_two_guests_send_from_their_pair_window() {
    let Some((mut hosted, _alone)) = hosted(Monitors::Both, 32) else { return };
    until_channel(&mut hosted);
    run_memory_suite(&mut hosted, (0, 1));
    assert_eq!(complaints(&mut hosted), [""; 0]);
}

#[test]
fn programs_of_one_guest_send_from_its_window() {
    let Some((mut hosted, _alone)) = hosted(Monitors::None, CACHED_MIB) else { return };
    run_memory_suite(&mut hosted, (0, 0));
    assert_eq!(complaints(&mut hosted), [""; 0]);
}

#[test]
fn buffers_move_only_when_enabled_and_the_window_is_cached() {
    let Some((mut hosted, _alone)) = hosted(Monitors::None, 32) else { return };
    let ways = [
        ("unset MX_RCACHE", "buffer-cache-guest-default"),
        ("export MX_RCACHE=0", "buffer-cache-disabled"),
        // A window that exists when the guest boots is not cached.
        ("export MX_RCACHE=1", "buffer-uncached"),
    ];
    for (setting, reason) in ways {
        let endpoint = hosted.guests[0].serve("regions");
        hosted.guests[0].run(&format!("{setting}; regions -r {endpoint} on >/tmp/sender 2>&1 & sender=$!"));
        hosted.isthmus_until(&["channel", "list", "--json"], |listed| has_fragment_reason(listed, reason));
        hosted.guests[0].run("kill $sender $served_pid; wait $sender; ! served");
    }
}

/// Runs `meanwhile` while a program has a buffer in use, and checks the buffer afterwards.
fn hold(hosted: &mut TwoGuests, (server, client): (usize, usize), meanwhile: impl FnOnce(&mut TwoGuests)) {
    let endpoint = hosted.guests[server].serve("regions");
    let order =
        format!("regions -r {endpoint} hold >/tmp/holder 2>&1 & until grep holds /tmp/holder; do usleep 20000; done");
    hosted.guests[client].run(&format!("{order}; holder=$!; grep homes /tmp/holder"));
    meanwhile(hosted);
    hosted.guests[client].start_command("touch /tmp/go; wait $holder; cat /tmp/holder; rm /tmp/go /tmp/holder");
    let said = hosted.guests[client].finish_command().lines;
    assert_eq!(said.last().map(String::as_str), Some("all is well"), "{said:?}");
}

#[test]
fn memory_survives_the_closing_of_its_window() {
    let Some((mut hosted, _alone)) = hosted(Monitors::Both, CACHED_MIB) else { return };
    // The guest daemon that opened the extents is killed.
    hold(&mut hosted, (1, 1), |hosted| {
        hosted.guests[1].run("kill -9 $window_pid; wait $window_pid; kill -9 $served_pid; window");
    });
    // The other guest is killed, and the pair window closes.
    until_channel(&mut hosted);
    hold(&mut hosted, (0, 1), |hosted| {
        hosted.guests[0].kill();
        hosted.guests[1].run("while test -e /dev/isthmus1; do usleep 20000; done");
    });
    assert_eq!(hosted.guests[1].complaints(), [""; 0]);
}
