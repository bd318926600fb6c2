//! Guests of one host, while the host daemon, the guest daemon, programs, devices or the machine end or stop.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_guests_tests::{CommandOutput, Guest, GuestKit, TwoGuests, example, timeout};
use isthmus_mx_tests::build;
use isthmus_testbed::{Exit, Launch, Proc, Scratch, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Only one test runs guests at a time, because each emulated processor takes a whole one.
static MACHINE: Mutex<()> = Mutex::new(());

fn hosted() -> Option<(GuestKit, TwoGuests, MutexGuard<'static, ()>)> {
    let alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let found = GuestKit::find().and_then(|kit| TwoGuests::start(&kit).map(|hosted| (kit, hosted)));
    match found {
        Ok((kit, mut hosted)) => {
            hosted.guests.iter_mut().for_each(|guest| drop(guest.run("by window")));
            Some((kit, hosted, alone))
        }
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

const SHORT: &str = "-n 1 -W 1 -v -S 1 -E 65536";

/// Checks that the program has ended with an error of MX, with any text.
#[track_caller]
fn expect_failure(done: &CommandOutput) {
    println!("# the other program\n{}", done.lines.join("\n"));
    assert_ne!(done.code, 0, "{:?}", done.lines);
    assert!(done.lines.iter().any(|line| line.contains("mx_")), "{:?}", done.lines);
}

/// Exchanges messages between a program of each guest.
fn exchange_once(hosted: &mut TwoGuests) {
    let endpoint = hosted.guests[0].serve("mx_pingpong -w");
    hosted.guests[1].run(&format!("mx_pingpong -w -r {endpoint} {SHORT}"));
    hosted.guests[0].run("served");
}

/// Prepares a client on the host for an endpoint.
fn client(hosted: &TwoGuests, endpoint: &str) -> Launch {
    let client = hosted.program(build::example("mx_pingpong")).args(["-w", "-r", endpoint]);
    client.args(SHORT.split(' '))
}

/// Programs that exchange messages by the window of `guest0` until something ends them.
struct Load {
    /// The programs on the host: a sender and a receiver.
    host: [Proc; 2],
}

/// The senders, which always have sends under way and get an error when their peer ends.
const SENDERS: [(usize, &str); 3] = [(0, "inside"), (0, "to_host"), (1, "from_other")];
/// The receivers, which may continue to wait for messages. Both sides of a ping-pong are among them: after its message has arrived, a side
/// waits for the next one, and a receive does not fail with a peer.
const RECEIVERS: [(usize, &str); 5] =
    [(0, "inside_server"), (0, "from_host"), (0, "from_other_server"), (0, "both_ways_server"), (1, "both_ways")];

/// The shell's exit code for a signal, less the number of the signal. A program exits with 255 when a call of MX fails.
const SIGNALLED: i32 = 128;

/// Returns true if an exit code in a guest means an error and no signal.
fn is_error(code: i32) -> bool {
    code != 0 && !(SIGNALLED..SIGNALLED + 65).contains(&code)
}

impl Load {
    /// Starts transfers of long and short messages within the guest, to the other guest and to the host, in both directions. With the program
    /// that waits, the guest has as many domains as it has vectors for.
    fn start(hosted: &mut TwoGuests) -> Self {
        let host = |hosted: &TwoGuests, arguments: &str| {
            let program = hosted.program(example("mx_stream")).args(arguments.split(' '));
            program.with_stdin().spawn().unwrap()
        };
        let mut server = host(hosted, "-w");
        let of_host = server.wait_prefix("endpoint ", timeout()).unwrap();
        let serve = |guest: &mut Guest, name: &str, program: &str| {
            let said = guest.run(&format!("keep {name} {program} -w; serves {name}"));
            said.iter().find_map(|line| line.strip_prefix("endpoint ")).unwrap_or_else(|| panic!("{said:?}")).to_owned()
        };
        let [here, other] = &mut hosted.guests;
        let [inside, from_host, from_other] =
            ["inside_server", "from_host", "from_other_server"].map(|name| serve(here, name, "mx_stream"));
        let both_ways = serve(here, "both_ways_server", "mx_pingpong");
        let send = |guest: &mut Guest, name: &str, how: &str| drop(guest.run(&format!("keep {name} {how}")));
        let (long, short) = ("-s 1048576 -N 100000000", "-s 64 -N 100000000");
        send(here, "inside", &format!("mx_stream -w -r {inside} {long}"));
        send(here, "to_host", &format!("mx_stream -w -r {} {long}", of_host.trim()));
        send(other, "from_other", &format!("mx_stream -w -r {from_other} {short}"));
        send(other, "both_ways", &format!("mx_pingpong -w -r {both_ways} -n 100000000 -W 0 -S 1048576 -E 1048576"));
        let client = host(hosted, &format!("-w -r {from_host} {short}"));
        let load = Self { host: [client, server] };
        load.until_under_way(hosted);
        load
    }

    /// Waits until all programs have sent messages, by any path.
    fn until_under_way(&self, hosted: &TwoGuests) {
        let json = |said: &str| serde_json::from_str::<Value>(said).unwrap();
        hosted.isthmus_until(&["domain", "list", "--json"], |listed| {
            let listed = json(listed);
            let rows = listed["domains"].as_array().unwrap().iter().filter(|row| row["guest"] == "guest0");
            let many = |key: &str| rows.clone().filter(|row| row[key].as_u64() > Some(1 << 14)).count();
            // To and from the other guest and the host.
            many("daemon_path_sent_bytes") >= 2 && many("daemon_path_received_bytes") >= 3
        });
        hosted.isthmus_until(&["channel", "list", "--json"], |listed| {
            let listed = json(listed);
            let pairs = listed["pairs"].as_array().into_iter().flatten();
            let mut directions = pairs.filter_map(|pair| pair["channel"]["directions"].as_array()).flatten();
            directions.any(|direction| direction["messages"].as_u64() > Some(100))
        });
    }

    /// Checks that all programs have ended with errors, and none by a signal, after the window was unplugged.
    fn expect_errors(self, hosted: &mut TwoGuests) {
        for (guest, name) in SENDERS {
            hosted.guests[guest].start_command(&format!("kept {name}"));
            let done = hosted.guests[guest].finish_command();
            println!("# guest{guest}, {name}: exit code {}: {}", done.code, done.lines.join("; "));
            assert!(is_error(done.code), "{name}");
            assert!(done.lines.iter().any(|line| line.contains("mx_")), "{name}: {:?}", done.lines);
        }
        for (guest, name) in RECEIVERS {
            hosted.guests[guest].start_command(&format!("kill $(cat /tmp/kept.{name}.pid) 2>/dev/null; kept {name}"));
            let done = hosted.guests[guest].finish_command();
            println!("# guest{guest}, {name}: exit code {}: {}", done.code, done.lines.join("; "));
            assert!(is_error(done.code) || done.code == SIGNALLED + Signal::TERM.as_raw(), "{name}");
        }
        let [client, server] = self.host;
        let ended = client.finish(timeout()).unwrap();
        println!("# host, client: {:?}: {}", ended.exit, ended.stderr.trim_end());
        assert!(matches!(ended.exit, Exit::Code(1..)) && ended.stderr.contains("mx_"), "{ended:?}");
        server.signal(Signal::TERM).unwrap();
        let ended = server.finish(timeout()).unwrap();
        println!("# host, server: {:?}: {}", ended.exit, ended.stderr.trim_end());
        assert!(matches!(ended.exit, Exit::Code(1..) | Exit::Signal(15)), "{ended:?}");
    }
}

/// Returns the number of times that the host daemon has reported this reason.
fn reason_count(hosted: &TwoGuests, reason: &str) -> u64 {
    let status: Value = serde_json::from_str(&hosted.isthmus(&["status", "--json"])).unwrap();
    let reasons = status["reasons"].as_array().unwrap();
    reasons.iter().filter(|row| row["reason"] == reason).filter_map(|row| row["count"].as_u64()).sum()
}

fn state(row: &Value) -> &str {
    row["state"].as_str().unwrap()
}

#[test]
fn restarted_host_daemon_finds_its_guests() {
    let Some((_kit, mut hosted, _alone)) = hosted() else { return };
    for number in 0..2 {
        hosted.row_until(number, |row| row["keeps_device"] == true);
    }
    // One program waits for a client, and two others transfer messages.
    let waiting = hosted.guests[1].run("serve mx_pingpong -w");
    let waiting = waiting.iter().find_map(|line| line.strip_prefix("endpoint ")).unwrap().to_owned();
    hosted.transfer();
    hosted.daemon.kill_and_restart(timeout()).unwrap();
    expect_failure(&hosted.guests[1].finish_command());
    hosted.guests[0].end_server();
    for number in 0..2 {
        let row = hosted.row_until(number, |row| state(row) == "attached");
        assert_eq!(row["keeps_device"], true, "{row}");
    }
    // The waiting program resumes with its previous endpoint number, without a restart.
    hosted.isthmus_until(&["endpoint", "list", "--json"], |list| {
        let list: Value = serde_json::from_str(list).unwrap();
        list["endpoints"].as_array().unwrap().iter().any(|endpoint| !endpoint["mx"].is_null())
    });
    client(&hosted, &waiting).spawn().unwrap().finish(timeout()).unwrap().expect_success();
    hosted.guests[1].run("served");
    exchange_once(&mut hosted);
    // The descriptor store works a second time, now while all programs are idle.
    hosted.daemon.kill_and_restart(timeout()).unwrap();
    for number in 0..2 {
        hosted.row_until(number, |row| state(row) == "attached");
    }
    exchange_once(&mut hosted);
}

#[test]
fn paused_guest_and_stopped_daemon_are_reported_and_resume() {
    let Some((_kit, mut hosted, _alone)) = hosted() else { return };
    let mut monitor = hosted.monitor(0, 0);
    let endpoint = hosted.guests[0].serve("mx_pingpong -w");
    hosted.guests[1].start_command(&format!("mx_pingpong -w -r {endpoint} -n 300 -W 0 -v -S 65536 -E 65536"));
    hosted.until_received(1 << 20);
    // The machine is paused. Other programs continue, and no domain ends.
    monitor.command("stop", &json!({}));
    let row = hosted.row_until(0, |row| state(row) == "not responding");
    println!("# paused: {row}");
    assert!(row["last_seen_s"].as_u64() >= Some(5) && row["domains"] == 1, "{row}");
    hosted.row_until(1, |row| state(row) == "attached");
    let host = hosted.program(build::example("mx_pingpong")).arg("-w").with_stdin().spawn();
    let mut host = host.unwrap();
    let own = host.wait_prefix("endpoint ", timeout()).unwrap();
    client(&hosted, own.trim()).spawn().unwrap().finish(timeout()).unwrap().expect_success();
    drop(host);
    monitor.command("cont", &json!({}));
    hosted.row_until(0, |row| state(row) == "attached");
    hosted.guests[1].finish_command().expect_success("a transfer over a pause");
    hosted.guests[0].run("served");
    // Only the guest daemon is stopped.
    hosted.guests[0].run("kill -STOP $window_pid");
    hosted.row_until(0, |row| state(row) == "not responding");
    hosted.guests[0].run("kill -CONT $window_pid");
    hosted.row_until(0, |row| state(row) == "attached");
    exchange_once(&mut hosted);
    // The host daemon is stopped. The guest daemon logs it and refuses programs, so that none waits.
    hosted.daemon.proc().freeze().unwrap();
    let refused = "until isthmus status 2>&1 | grep host-daemon-unreachable; do usleep 100000; done; grep 'no heartbeat' /tmp/window.log";
    println!("# the host's daemon is stopped\n{}", hosted.guests[0].run(refused).join("\n"));
    hosted.daemon.proc().thaw().unwrap();
    for guest in &mut hosted.guests {
        guest.run("until isthmus status >/dev/null 2>&1; do usleep 100000; done");
    }
    exchange_once(&mut hosted);
}

#[test]
fn process_killed_in_a_transfer_ends_alone() {
    let Some((_kit, mut hosted, _alone)) = hosted() else { return };
    exchange_once(&mut hosted);
    let fds = hosted.daemon.view().unwrap().held_fds().unwrap();
    let used = [0, 1].map(|number| hosted.row(number)["used_bytes"].clone());
    for strike in [
        "kill -9 $served_pid",
        "kill -9 $window_pid; wait $window_pid; window",
        "kill $window_pid; wait $window_pid; window",
    ] {
        println!("# {strike}");
        hosted.transfer();
        hosted.guests[0].run(strike);
        expect_failure(&hosted.guests[1].finish_command());
        hosted.guests[0].end_server();
        exchange_once(&mut hosted);
        // The host has freed the memory.
        for (number, used) in (0..).zip(&used) {
            hosted.row_until(number, |row| row["used_bytes"] == *used && row["domains"] == 0);
        }
        // Descriptors of connections for reports are closed shortly afterwards.
        let now = || hosted.daemon.view().unwrap().held_fds().unwrap();
        let freed = eventually(timeout(), || now() <= fds);
        assert!(freed.is_ok(), "{} descriptors instead of {fds} after {strike}", now());
    }
}

#[test]
fn guest_migrates_during_a_transfer_and_reattaches() {
    let Some((kit, mut hosted, _alone)) = hosted() else { return };
    // A board of the guest's own, on its card.
    for guest in &mut hosted.guests {
        guest.run("by isthmus && daemon");
    }
    hosted.guests[0].run("until isthmus peer list | grep -q guest1:0; do usleep 20000; done");
    hosted.guests[0].run("by window");
    // A program uses the window and waits for a client. It is the same process until the end.
    let waiting = hosted.guests[0].run("serve mx_pingpong -w");
    let waiting = waiting.iter().find_map(|line| line.strip_prefix("endpoint ")).unwrap().to_owned();
    hosted.guests[0].run("waiting_pid=$served_pid; mv /tmp/served /tmp/waiting");
    // Other programs transfer messages.
    hosted.guests[1].run("by window");
    let load = Load::start(&mut hosted);
    let (domains, vanished) =
        (hosted.row(0)["domains"].as_u64().unwrap(), reason_count(&hosted, "peer-connection-lost"));
    hosted.unplug(0);
    hosted.row_until(0, |row| state(row) == "no device" && row["domains"] == 0);
    let vanished = reason_count(&hosted, "peer-connection-lost") - vanished;
    println!("# {domains} domains ended, peer-connection-lost was reported {vanished} times");
    assert!(domains >= 7 && vanished > 0, "{domains} domains, {vanished} times peer-connection-lost");
    load.expect_errors(&mut hosted);
    hosted.guests[0].run("kill -0 $window_pid");
    let lines =
        hosted.guests[0].run("until isthmus status 2>&1 | grep host-daemon-unreachable; do usleep 100000; done");
    println!("# in the guest without a window\n{}", lines.join("\n"));
    // The guest migrates while one of its programs uses the card.
    hosted.guests[1].run("by isthmus");
    hosted.guests[0].run("by isthmus");
    let endpoint = hosted.guests[0].serve("mx_pingpong -w");
    hosted.guests[1]
        .start_command(&format!("mx_pingpong -w -d guest0:0 -r {endpoint} -n 100 -W 0 -v -S 65536 -E 65536"));
    hosted.migrate(&kit, 0);
    hosted.guests[1].finish_command().expect_success("a transfer over a migration");
    hosted.guests[0].run("served");
    // The daemon of the new host serves a window. Programs of the guest reach that host once they have their endpoint numbers again.
    let scratch = Scratch::new().unwrap();
    let there = TwoGuests::another_daemon(&scratch);
    hosted.plug((0, 1), &there);
    hosted.guests[0].run("by window; until isthmus endpoint list --json | grep -q '\"mx\":{'; do usleep 100000; done");
    let client =
        there.launch_on_host(build::example("mx_pingpong")).args(["-w", "-r", &waiting]).args(SHORT.split(' '));
    client.spawn().unwrap().finish(timeout()).unwrap().expect_success();
    hosted.guests[0].run("wait $waiting_pid && cat /tmp/waiting");
    // A program that is started there works, too.
    let endpoint = hosted.guests[0].serve("mx_pingpong -w");
    let client =
        there.launch_on_host(build::example("mx_pingpong")).args(["-w", "-r", &endpoint]).args(SHORT.split(' '));
    client.spawn().unwrap().finish(timeout()).unwrap().expect_success();
    hosted.guests[0].run("served");
    for guest in &mut hosted.guests {
        assert_eq!(guest.complaints(), [""; 0], "guest{}", guest.number);
    }
}
