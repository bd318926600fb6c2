//! Containers of podman, each with a network namespace of its own, get streams by the device of `isthmus cdi`: the lines of
//! `docs/start/sockets.md` in a guest with systemd, cgroups of version 2 and the services of the installation.
//!
//! ```text
//!  container redis: redis-server, user 999 ── network isthmus-try, port 7000 of the host ── a container, or the host: Python, user 999 or 1000
//! ```
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Instant;

use isthmus_guests_tests::{GuestKit, SystemdGuest, timeout};
use isthmus_testbed::{eventually, short_or_long};
use serde_json::Value;

/// The number of values that a client sets and gets, of up to 100,000 bytes each, and the fewest bytes that are then in shared memory.
const VALUES: u32 = 200;
const SHARED_MIN: u64 = 5_000_000;

/// The files of `/test` in the guest.
const FILES: [(&str, &[u8]); 3] = [
    ("containers", include_bytes!("../guest/containers")),
    ("exchange.py", include_bytes!("../guest/exchange.py")),
    ("rules.toml", include_bytes!("../guest/rules.toml")),
];

#[test]
fn containers_of_podman_get_streams() {
    if !short_or_long(false, true) {
        return println!("skipped: containers of podman are part of the long form (`make test-long`)");
    }
    let mut bed = match GuestKit::find().and_then(|kit| SystemdGuest::boot(&kit, &FILES)) {
        Ok(bed) => bed,
        Err(why) => return println!("skipped: {why}"),
    };
    bed.guest.run("systemctl enable --now isthmus-helper.socket isthmusd 2>&1");
    bed.guest.run("until isthmus doctor | grep -q '^ok *sockets.records'; do sleep 1; done");
    bed.guest.run("isthmus cdi --with sockets --write && podman network create --subnet 10.77.0.0/24 isthmus-try");
    bed.guest.run(". /test/containers; server 999 --publish 7000:6379");

    expect_stream(&mut bed, "redis 6379 in_container", [999, 999]);
    let report = exchange(&mut bed, "redis 6379 in_container 1000");
    assert_eq!(report["streams"], serde_json::json!([]), "without a rule for two users");
    assert!(report["refused"].to_string().contains("talk-forbidden"), "{report}");
    bed.guest.run("cp /test/rules.toml /etc/isthmus/isthmus.toml && systemctl reload isthmusd");
    expect_stream(&mut bed, "redis 6379 in_container", [1000, 999]);
    expect_stream(&mut bed, "10.77.0.1 7000 in_container", [1000, 999]);
    expect_stream(&mut bed, "10.77.0.1 7000 on_host", [1000, 999]);
    expect_stream(&mut bed, "127.0.0.1 7000 on_host", [1000, 999]);
    // Redis learns of the next daemon by a connection, which may stay on TCP.
    bed.guest.run("systemctl restart isthmusd");
    exchange(&mut bed, "redis 6379 in_container 1000");
    expect_stream(&mut bed, "redis 6379 in_container", [1000, 999]);

    bed.guest.run("podman stop redis");
    let nothing_left = |bed: &mut SystemdGuest| {
        let report = parsed(&bed.guest.run("isthmus stream list --json"));
        report["programs"] == 0 && report["listening"] == 0 && report["streams"] == serde_json::json!([])
    };
    eventually(timeout(), || nothing_left(&mut bed)).expect("a program of a stopped container is listed");
    assert_eq!(bed.guest.complaints(), [""; 0]);
}

/// Runs a client at this address and place, and expects that its connection is a stream of these users.
#[track_caller]
fn expect_stream(bed: &mut SystemdGuest, how: &str, [client, server]: [u32; 2]) {
    let report = exchange(bed, &format!("{how} {client}"));
    let streams = report["streams"].as_array().expect("a list");
    assert_eq!(streams.len(), 1, "{report}");
    for (end, program, user) in [("connector", "python3", client), ("acceptor", "redis-server", server)] {
        let end = &streams[0][end];
        assert_eq!((&end["program"], &end["uid"], &end["state"]), (&program.into(), &user.into(), &"attached".into()));
        assert!(end["shared_bytes"].as_u64() > Some(SHARED_MIN), "{end}");
    }
}

/// Runs a client, which compares what it gets with what it has set. Returns the list of streams from before its end.
#[track_caller]
fn exchange(bed: &mut SystemdGuest, how: &str) -> Value {
    let start = Instant::now();
    let said = bed.guest.run(&format!("exchange {VALUES} {how}"));
    println!("# {how}: {:.0} s", start.elapsed().as_secs_f32());
    parsed(&said)
}

/// Returns the object of JSON among lines of output.
#[track_caller]
fn parsed(said: &[String]) -> Value {
    let line = said.iter().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("{said:?}"));
    serde_json::from_str(line).unwrap()
}
