//! Two guests, each with its own daemon: messages, their cost, and a killed daemon.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_guests_tests::{CommandOutput, ConnectedGuests, Guest, GuestKit};
use isthmus_testbed::binary;

/// Only one test runs guests at a time, because each emulated processor takes a whole one.
static MACHINE: Mutex<()> = Mutex::new(());

fn kit() -> Option<(GuestKit, MutexGuard<'static, ()>)> {
    match GuestKit::find() {
        Ok(kit) => Some((kit, MACHINE.lock().unwrap_or_else(PoisonError::into_inner))),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// Runs a program's server in one guest and its client in the other. Returns the client's output.
#[track_caller]
fn both(pair: &mut ConnectedGuests, name: &str, arguments: &str) -> Vec<String> {
    let [client, server] = &mut pair.guests;
    let order = call(server, name, arguments);
    let lines = client.run(&order);
    server.run("served");
    lines
}

/// Starts the server, and returns the command of the client.
#[track_caller]
fn call(server: &mut Guest, name: &str, arguments: &str) -> String {
    let said = server.run(&format!("serve {name} -w"));
    let endpoint = said.iter().find_map(|line| line.strip_prefix("endpoint ")).unwrap_or_else(|| panic!("{said:?}"));
    format!("{name} -w -d {} -r {endpoint} {arguments}", server.board())
}

/// Measures the kernels' own protocols by the same cards, for comparison.
fn baseline(pair: &mut ConnectedGuests) {
    let [client, server] = &mut pair.guests;
    let ping = client.run("ping -q -c 50 -A -s 8 10.86.223.2");
    println!("# ICMP echo, 8 bytes: {}", ping.last().unwrap());
    server.run("sink");
    let took = client.run("clock 'dd if=/dev/zero bs=64k count=512 2>/dev/null | nc 10.86.223.2 9'");
    assert_eq!(server.run("sunk"), ["33554432"]);
    let centiseconds: u32 = took.last().unwrap().strip_prefix("centiseconds ").unwrap().parse().unwrap();
    println!("# TCP, 32 MiB one way: {:.1} MB/s", f64::from(32 << 20) / 1e4 / f64::from(centiseconds.max(1)));
}

#[test]
fn every_byte_arrives_between_two_guests() {
    let Some((kit, _alone)) = kit() else { return };
    let mut pair = ConnectedGuests::start(&kit, 9000, "");
    println!("# bridged: virtio-net, MTU 9000, Linux {}, emulated processors, both sides sleeping", kit.release());
    println!("# {}", binary("isthmusd", "isthmusd").unwrap().display());
    let lines = both(&mut pair, "mx_pingpong", "-n 5 -W 3 -v -S 0 -E 1048576");
    println!("{}", lines.join("\n"));
    assert_eq!(lines.len(), 1 + 1 + 21, "{lines:?}"); // A heading, zero bytes, and powers of two.
    for size in ["8", "32768", "1048576"] {
        let lines = both(&mut pair, "mx_stream", &format!("-s {size} -N 40 -v"));
        println!("{}", lines.join("\n"));
        assert!(lines[1].trim_start().starts_with(&format!("{size} ")), "{lines:?}");
    }
    baseline(&mut pair);
}

#[test]
fn exchanges_messages_in_the_mx_dialect() {
    let Some((kit, _alone)) = kit() else { return };
    let mut pair = ConnectedGuests::start(&kit, 9000, "dialect = \"mx\"\n");
    let lines = both(&mut pair, "mx_pingpong", "-n 1 -W 1 -v -S 1 -E 1048576");
    assert_eq!(lines.len(), 1 + 21, "{lines:?}");
}

/// Returns true if a program has reported that its peer is unreachable.
fn unreachable(done: &CommandOutput) -> bool {
    done.lines.iter().any(|line| line.ends_with("the endpoint cannot be reached"))
}

#[test]
fn killed_daemon_is_an_error_on_the_other_guest() {
    const LONG: u32 = 64 << 20;
    let Some((kit, _alone)) = kit() else { return };
    let mut pair = ConnectedGuests::start(&kit, 1500, "resend_ms = 100\ngive_up_s = 5\n");
    let [client, server] = &mut pair.guests;
    // A program without a daemon waits for the next one. Its peer gets an error after `give_up_s` without a frame.
    let order = call(server, "mx_pingpong", &format!("-n 100 -W 0 -S {LONG} -E {LONG}"));
    client.start_command(&format!("clock '{order}'"));
    server.start_command(&format!("strike {}", LONG / 8));
    assert_eq!(server.finish_command().code, 128 + 9);
    let done = client.finish_command();
    println!("{}", done.lines.join("\n"));
    assert_ne!(done.code, 0);
    assert!(unreachable(&done), "{:?}", done.lines);
    server.run("daemon");
    pair.wait_for_peers();
    let [_, server] = &mut pair.guests;
    server.start_command("served");
    let served = server.finish_command();
    println!("{}", served.lines.join("\n"));
    assert_ne!(served.code, 0);
    assert!(unreachable(&served), "{:?}", served.lines);
    // Then messages arrive again.
    both(&mut pair, "mx_pingpong", "-n 1 -W 1 -v -S 1 -E 65536");
}
