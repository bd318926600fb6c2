//! The programs of `examples/mx`, between two hosts where they have two sides.

use isthmus_hosts::{TwoHosts, timeout};

/// Server on b, client on a; what the client says.
#[track_caller]
fn both(world: &TwoHosts, name: &str, client: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
    let mut serving = world.b.example(name, &[], variables);
    let endpoint = serving.wait_prefix("endpoint ", timeout()).unwrap();
    let arguments = [client, &["-d", "b:0", "-r", &endpoint]].concat();
    let lines = world.a.example(name, &arguments, variables).finish(timeout()).unwrap().expect_success();
    serving.finish(timeout()).unwrap().expect_success();
    lines
}

const CACHES: [&[(&str, &str)]; 3] = [&[], &[("MX_RCACHE", "1")], &[("MX_RCACHE", "0")]];

#[test]
fn pingpong_loses_no_byte() {
    let Some((world, _cable)) = TwoHosts::plain(9000, "") else { return };
    for variables in CACHES {
        for way in [&["-w"][..], &[]] {
            let arguments = [way, &["-n", "3", "-W", "3", "-v", "-S", "0", "-E", "1048576"]].concat();
            let lines = both(&world, "mx_pingpong", &arguments, variables);
            assert_eq!(lines.len(), 1 + 1 + 21, "{lines:?}"); // A heading, nothing, and powers of two.
        }
    }
}

#[test]
fn stream_arrives_in_order() {
    let Some((world, _cable)) = TwoHosts::plain(1500, "") else { return };
    for variables in CACHES {
        for size in ["0", "8", "4000", "32768", "32769", "1048576"] {
            let lines = both(&world, "mx_stream", &["-w", "-s", size, "-N", "40", "-v"], variables);
            assert!(lines[1].trim_start().starts_with(&format!("{size} ")), "{lines:?}");
        }
    }
}

#[test]
fn loop_finds_every_length_and_alignment_whole() {
    let Some((world, _cable)) = TwoHosts::plain(9000, "") else { return };
    for variables in [CACHES[0], CACHES[2]] {
        let lines = both(&world, "mx_loop", &["-a", "1", "-y"], variables);
        assert!(lines[0].ends_with(" round trips"), "{lines:?}");
    }
}

#[test]
fn programs_of_one_host_work_where_there_is_a_wire() {
    let Some((world, _cable)) = TwoHosts::plain(1500, "") else { return };
    for (name, arguments) in [
        ("mx_alltoall", &["-n", "4", "-s", "100000", "-R", "3", "-w"][..]),
        ("mx_waitany", &["-n", "500"]),
        ("mx_wakeup", &["-R", "5"]),
        ("mx_info", &["-c"]),
    ] {
        world.a.example(name, arguments, &[]).finish(timeout()).unwrap().expect_success();
    }
}
