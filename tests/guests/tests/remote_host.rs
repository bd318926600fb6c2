//! Guests and another host: programs of guests reach it by the host daemon, behind one address.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_guests_tests::{Extra, Guest, GuestKit, GuestLab};
use isthmus_hosts::{Flow, MxProgram, code, program_path};
use serde_json::Value;

/// Only one test runs guests at a time, because each emulated processor takes a whole one.
static MACHINE: Mutex<()> = Mutex::new(());

fn site() -> Option<(GuestLab, MutexGuard<'static, ()>)> {
    let alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let extra = Extra { programs: vec![program_path()], ..Extra::default() };
    match GuestKit::find().and_then(|kit| GuestLab::start(&kit, 2, 2, &extra)) {
        Ok(mut site) => {
            site.guests.iter_mut().for_each(|guest| drop(guest.run("by window")));
            Some((site, alone))
        }
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// Returns the stream numbers of a guest's program: to the far host, and from it.
fn streams(guest: u32) -> [u32; 2] {
    [10 + guest, 20 + guest]
}

/// Returns the endpoint number of a guest's program.
fn endpoint(guest: u32) -> u32 {
    4 + guest
}

/// Starts a program in a guest that connects to the one of the far host, exchanges messages, and checks that nothing is left over. Returns
/// once the endpoint of the program is open.
#[track_caller]
fn exchange(guest: &mut Guest, remote: &MxProgram, count: u64, sizes: &str) {
    let [to, from] = streams(guest.number);
    let orders = [
        &format!("open 0 {} 7", endpoint(guest.number)),
        &format!("connect 0 {} 0", remote.address()),
        &format!("run {count} 4 {sizes} 0 to:0:{to} from:{from}"),
        "quiet",
        "close",
    ];
    guest.start_command(&format!("printf '{}\\n' | mx_program", orders.join("\\n")));
    assert_eq!(guest.wait_for_line("open "), format!("near:0 {}", endpoint(guest.number)));
}

/// Returns the flows of the far program to and from the guest that it is connected to in this slot.
fn flows(slot: usize, guest: u32) -> [Flow; 2] {
    let [to, from] = streams(guest);
    [Flow::To(slot, from), Flow::From(to)]
}

fn connect(remote: &mut MxProgram, slot: usize, guest: u32) {
    remote.expect(&format!("connect {slot} near:0 {} 7 0", endpoint(guest)), "connected");
}

#[test]
fn remote_host_distinguishes_guests_behind_one_address() {
    let Some((mut site, _alone)) = site() else { return };
    for (count, sizes) in [(60, "mixed"), (3, "large")] {
        let mut remote = MxProgram::open(&site.remote);
        for guest in &mut site.guests {
            exchange(guest, &remote, count, sizes);
            connect(&mut remote, guest.number as usize, guest.number);
        }
        let all: Vec<Flow> = site.guests.iter().flat_map(|guest| flows(guest.number as usize, guest.number)).collect();
        remote.begin(count, 4, sizes, 0, &all);
        remote.done(4 * count);
        for guest in &mut site.guests {
            let said = guest.finish_command().expect_success("mx_program");
            println!("# guest{}, {sizes}: {}", guest.number, said.join(", "));
            let done = said[1].strip_prefix(&format!("done {} ", 2 * count));
            assert!(
                done.is_some() && (&said[0], &said[2..]) == (&"connected".into(), &["quiet".into(), "closed".into()])
            );
        }
        remote.close();
    }
    // The other host sees one board besides its own, because no guest has a board.
    let peers = site.remote.list("peer");
    let names: Vec<&Value> = peers["peers"].as_array().unwrap().iter().map(|peer| &peer["name"]).collect();
    assert_eq!(names, ["far:0", "near:0"], "{peers}");
}

#[test]
fn switched_off_guest_is_an_error_only_for_its_peers_on_the_other_host() {
    let Some((mut site, _alone)) = site() else { return };
    const MANY: u64 = 4000;
    const FEW: u64 = 200;
    let [mut dying, mut staying] = [0, 1].map(|_| MxProgram::open(&site.remote));
    for (remote, guest, count) in [(&mut dying, 0, MANY), (&mut staying, 1, FEW)] {
        exchange(&mut site.guests[guest], remote, count, "mixed");
        connect(remote, 0, guest as u32);
    }
    dying.begin(MANY, 4, "mixed", 50, &flows(0, 0));
    staying.begin(FEW, 4, "mixed", 50, &flows(0, 1));
    dying.until(50);
    staying.until(50);
    site.guests[0].kill();
    let status = dying.expect_failure();
    println!("# the peer of the guest that was switched off: status {status}");
    assert!([code::STATUS_ENDPOINT_CLOSED, code::STATUS_UNREACHABLE].contains(&status.as_str()), "{status}");
    staying.done(2 * FEW);
    site.guests[1].finish_command().expect_success("mx_program");
    staying.close();
    // The endpoint number of that guest is free again.
    site.local.wait_until("that no endpoint is open", |near| near.board(0)["endpoints"].as_array().unwrap().is_empty());
}
