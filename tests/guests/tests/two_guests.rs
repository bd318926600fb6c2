//! Guests of one host: their programs, and those of the host, communicate through the host daemon.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_guests_tests::{CommandOutput, GuestKit, TwoGuests, timeout};
use isthmus_mx_tests::build;
use serde_json::Value;

/// Only one test runs guests at a time, because each emulated processor takes a whole one.
static MACHINE: Mutex<()> = Mutex::new(());

fn hosted() -> Option<(TwoGuests, MutexGuard<'static, ()>)> {
    let alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    match GuestKit::find().and_then(|kit| TwoGuests::start(&kit)) {
        Ok(hosted) => Some((hosted, alone)),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// The arguments for all sizes up to 1 MiB, with every byte checked.
const EVERY_SIZE: &str = "-n 5 -W 3 -v -S 0 -E 1048576";

/// The number of lines of output: a heading, zero bytes, and powers of two.
const LINES: usize = 1 + 1 + 21;

fn print(what: &str, lines: &[String]) {
    println!("# {what}");
    lines.iter().for_each(|line| println!("{line}"));
}

/// Returns half the round trip in µs and the bandwidth in MB/s of a size, from the output of `mx_pingpong`.
fn figures(lines: &[String], bytes: &str) -> (f64, f64) {
    let row = lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = row.into_iter().find(|row| row.len() == 3 && row[0] == bytes).unwrap();
    (row[1].parse().unwrap(), row[2].parse().unwrap())
}

#[test]
fn programs_of_guests_and_host_exchange_messages() {
    let Some((mut hosted, _alone)) = hosted() else { return };
    hosted.guests.iter_mut().for_each(|guest| drop(guest.run("by window")));
    let endpoint = hosted.guests[0].serve("mx_pingpong -w");
    let listed: Value = serde_json::from_str(&hosted.isthmus(&["domain", "list", "--json"])).unwrap();
    assert_eq!(listed["domains"][0]["guest"], "guest0", "{listed}");
    let listed: Value = serde_json::from_str(&hosted.isthmus(&["guest", "list", "--json"])).unwrap();
    for guest in listed["guests"].as_array().unwrap() {
        assert_eq!(guest["daemon"], true, "{listed}");
    }
    let doctor = hosted.guests[0].run("isthmus doctor --json || true");
    let doctor: Value = serde_json::from_str(&doctor.concat()).unwrap();
    let severity = |id| {
        doctor["findings"].as_array().unwrap().iter().find(|finding| finding["id"] == id).unwrap()["severity"].clone()
    };
    assert_eq!(["guest.driver", "guest.processors"].map(severity), ["ok", "ok"], "{doctor:#}");
    let [server, client] = &mut hosted.guests;
    let window = client.run(&format!("mx_pingpong -w -r {endpoint} {EVERY_SIZE}"));
    print("guest to guest by the host daemon, both sides sleeping", &window);
    assert_eq!(window.len(), LINES, "{window:?}");
    server.run("served");

    let endpoint = server.serve("mx_pingpong -w");
    let inside = server.run(&format!("mx_pingpong -w -r {endpoint} {EVERY_SIZE}"));
    print("two programs of one guest, by a channel in its window, both sides sleeping on one processor", &inside);
    assert_eq!(inside.len(), LINES, "{inside:?}");
    server.run("served");

    let endpoint = server.serve("mx_pingpong -w");
    let outside = hosted.program(build::example("mx_pingpong")).args(["-w", "-r", &endpoint]);
    let outside = outside.args(EVERY_SIZE.split(' ')).spawn().unwrap().finish(timeout()).unwrap().expect_success();
    print("the host to a guest, both sides sleeping", &outside);
    assert_eq!(outside.len(), LINES, "{outside:?}");
    hosted.guests[0].run("served");

    // The same programs with a card and a daemon in each guest.
    let [server, client] = &mut hosted.guests;
    for guest in [&mut *server, &mut *client] {
        guest.run("by isthmus && daemon");
    }
    let endpoint = server.serve("mx_pingpong -w");
    client.run("until isthmus peer list | grep -q guest0:0; do usleep 20000; done");
    let bridged = client.run(&format!("mx_pingpong -w -d guest0:0 -r {endpoint} {EVERY_SIZE}"));
    print("guest to guest by virtio-net, a daemon in each, both sides sleeping", &bridged);
    assert_eq!(bridged.len(), LINES, "{bridged:?}");
    let (ours, theirs) = (figures(&window, "8"), figures(&bridged, "8"));
    println!("# 8 B: {:.2} of bridged ({} and {} us)", ours.0 / theirs.0, ours.0, theirs.0);
    let (ours, theirs) = (figures(&window, "1048576"), figures(&bridged, "1048576"));
    println!("# 1 MiB: {:.2} of bridged ({} and {} MB/s)", ours.1 / theirs.1, ours.1, theirs.1);
}

/// Returns true if a program has reported that its peer is unreachable.
fn unreachable(done: &CommandOutput) -> bool {
    done.lines.iter().any(|line| line.ends_with("the endpoint cannot be reached"))
}

#[test]
fn switched_off_guest_is_an_error_only_for_its_peers() {
    let Some((mut hosted, _alone)) = hosted() else { return };
    hosted.guests.iter_mut().for_each(|guest| drop(guest.run("by window")));
    hosted.transfer();
    hosted.guests[0].kill();
    let done = hosted.guests[1].finish_command();
    print("the other program", &done.lines);
    assert_ne!(done.code, 0);
    assert!(unreachable(&done), "{:?}", done.lines);
    hosted.isthmus_until(&["guest", "list", "--json"], |guests| {
        let guests: Value = serde_json::from_str(guests).unwrap();
        guests["guests"][0]["domains"] == 0 && guests["guests"][0]["used_bytes"].is_null()
    });
    // Then messages arrive again.
    let survivor = &mut hosted.guests[1];
    let endpoint = survivor.serve("mx_pingpong -w");
    survivor.run(&format!("mx_pingpong -w -r {endpoint} -n 1 -W 1 -v -S 1 -E 65536"));
    survivor.run("served");
}

#[test]
fn restarted_guest_daemon_attaches_again() {
    let Some((mut hosted, _alone)) = hosted() else { return };
    hosted.guests.iter_mut().for_each(|guest| drop(guest.run("by window")));
    hosted.transfer();
    hosted.guests[0].run("kill -9 $window_pid; wait $window_pid; window");
    let done = hosted.guests[1].finish_command();
    print("the peer of the program without a daemon", &done.lines);
    assert_ne!(done.code, 0);
    assert!(unreachable(&done), "{:?}", done.lines);
    hosted.guests[0].end_server();
    let endpoint = hosted.guests[0].serve("mx_pingpong -w");
    hosted.guests[1].run(&format!("mx_pingpong -w -r {endpoint} -n 1 -W 1 -v -S 1 -E 65536"));
    hosted.guests[0].run("served");
}
