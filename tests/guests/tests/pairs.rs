//! Two guests with a pair window: their programs use the direct path.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_guests_tests::{GuestKit, Monitors, TwoGuests};
use serde_json::Value;

/// Only one test runs guests at a time, because each emulated processor takes a whole one.
static MACHINE: Mutex<()> = Mutex::new(());

fn hosted(monitors: Monitors) -> Option<(TwoGuests, MutexGuard<'static, ()>)> {
    let alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    match GuestKit::find().and_then(|kit| TwoGuests::start_with(&kit, monitors)) {
        Ok(mut hosted) => {
            hosted.guests.iter_mut().for_each(|guest| drop(guest.run("by window")));
            Some((hosted, alone))
        }
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

fn print(what: &str, lines: &[String]) {
    println!("# {what}");
    lines.iter().for_each(|line| println!("{line}"));
}

/// Returns half the round trip of a size in µs, from the output of `mx_pingpong`.
fn half_us(lines: &[String], bytes: &str) -> f64 {
    let row = lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = row.into_iter().find(|row| row.len() == 3 && row[0] == bytes).unwrap();
    row[1].parse().unwrap()
}

/// Returns the path of the only pair of domains, and the reason for it.
fn path(listed: &str) -> Option<(String, String)> {
    let listed: Value = serde_json::from_str(listed).unwrap();
    let pair = listed["pairs"].as_array().unwrap().first()?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some((text(&pair["path"]), text(&pair["reason"]["reason"])))
}

/// Ends the server, and waits until the client has ended with an error.
fn end_both(hosted: &mut TwoGuests) {
    hosted.guests[0].end_server();
    assert_ne!(hosted.guests[1].finish_command().code, 0);
}

/// Runs round trips between the guests and checks every byte.
fn measure(hosted: &mut TwoGuests, how: &str, through: &str) -> Vec<String> {
    let endpoint = hosted.guests[0].serve(&format!("mx_pingpong {how}"));
    let client = &mut hosted.guests[1];
    let lines = client.run(&format!("mx_pingpong {how} {through} -r {endpoint} -n 50 -W 10 -v -S 0 -E 65536"));
    assert_eq!(lines.len(), 1 + 1 + 17, "{lines:?}");
    hosted.guests[0].run("served");
    lines
}

const WAIT_MODES: [(&str, &str); 2] = [("", "both sides polling"), ("-w", "both sides sleeping")];

#[test]
fn programs_of_two_guests_use_the_direct_path() {
    let Some((mut hosted, _alone)) = hosted(Monitors::Both) else { return };
    hosted.transfer_by_channel();
    end_both(&mut hosted);
    let common = WAIT_MODES.map(|(how, manner)| {
        let lines = measure(&mut hosted, how, "");
        print(&format!("guest to guest by a pair window, {manner}"), &lines);
        lines
    });

    // The same programs with a card and a daemon in each guest.
    let [server, client] = &mut hosted.guests;
    for guest in [&mut *server, &mut *client] {
        guest.run("by isthmus && daemon");
    }
    client.run("until isthmus peer list | grep -q guest0:0; do usleep 20000; done");
    for ((how, manner), common) in WAIT_MODES.into_iter().zip(common) {
        let bridged = measure(&mut hosted, how, "-d guest0:0");
        print(&format!("guest to guest by virtio-net, a daemon in each, {manner}"), &bridged);
        let (ours, theirs) = (half_us(&common, "8"), half_us(&bridged, "8"));
        println!("# 8 B, {manner}: 1/{:.1} of bridged ({ours} and {theirs} us)", theirs / ours);
    }
}

#[test]
fn pair_window_closes_when_one_guest_is_switched_off() {
    let Some((mut hosted, _alone)) = hosted(Monitors::Both) else { return };
    hosted.transfer_by_channel();
    hosted.guests[0].kill();
    let done = hosted.guests[1].finish_command();
    print("the other program", &done.lines);
    assert_ne!(done.code, 0);
    let survivor = &mut hosted.guests[1];
    survivor.run("while test -e /dev/isthmus1; do usleep 20000; done");
    let endpoint = survivor.serve("mx_pingpong -w");
    survivor.run(&format!("mx_pingpong -w -r {endpoint} -n 1 -W 1 -v -S 1 -E 65536"));
    survivor.run("served");
    assert_eq!(survivor.complaints(), [""; 0]);
    let listed: Value = serde_json::from_str(&hosted.isthmus(&["guest", "list", "--json"])).unwrap();
    assert_eq!((&listed["guests"][0]["used_bytes"], &listed["guests"][1]["daemon"]), (&Value::Null, &true.into()));
}

#[test]
fn unresponsive_monitor_falls_back_to_the_daemon_path_with_a_reason() {
    let Some((mut hosted, _alone)) = hosted(Monitors::OneAndAnUnusedPath) else { return };
    let endpoint = hosted.guests[0].serve("mx_stream -w");
    hosted.guests[1].start_command(&format!("mx_stream -w -r {endpoint} -s 65536 -N 10000000"));
    hosted.isthmus_until(&["channel", "list", "--json"], |listed| {
        path(listed).is_some_and(|(path, reason)| path == "daemon" && reason == "pair-window-refused")
    });
    // The error needs a sender with messages under way. A program that only waits for a reply gets none.
    hosted.isthmus_until(&["domain", "list", "--json"], |listed| {
        let listed: Value = serde_json::from_str(listed).unwrap();
        let sent = |domain: &Value| domain["daemon_path_sent_bytes"].as_u64();
        listed["domains"].as_array().unwrap().iter().filter_map(sent).sum::<u64>() > 1 << 20
    });
    end_both(&mut hosted);
    measure(&mut hosted, "-w", "");
}
