//! `isthmus try --quick`: its report and its files; it leaves nothing else behind, however it ends.

use std::path::Path;

use isthmus_testbed::{Deadline, Exit, Launch, Scratch, Signal, binary, eventually};
use serde_json::Value;

/// The limit only catches a hang: a busy machine may need minutes.
fn deadline() -> Deadline {
    Deadline::secs(120)
}

/// Returns true on a machine with one CPU: two sides that poll need a CPU each.
fn one_cpu() -> bool {
    let one = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2);
    if one {
        eprintln!("skipped: needs two CPUs");
    }
    one
}

fn demo(scratch: &Scratch, out: &Path) -> Launch {
    binary("isthmusd", "isthmusd").expect("the daemon beside the tool");
    let place = scratch.dir("place").expect("a folder");
    let launch = Launch::new(env!("CARGO_BIN_EXE_isthmus")).arg("try").arg("--quick").arg("--out").arg(out);
    launch.env("TMPDIR", place).env_remove("ISTHMUS_SOCKET")
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut content| content.next().is_none())
}

/// Checks the rates of Redis, or the reason why there are none.
fn expect_redis(redis: &Value, said: &str) {
    let transports = ["tcp", "sockets"];
    match redis["tcp"]["why"].as_str() {
        None => {
            let measured = |transport: &str| redis[transport]["requests_per_s"].as_f64() > Some(0.0);
            assert!(
                transports.iter().all(|transport| measured(transport)) && said.contains("\nredis-benchmark, GET"),
                "{said}"
            );
            assert!(said.contains("\nSockets: redis-benchmark, GET: "), "{said}");
        }
        Some(why) => {
            assert!(said.contains("Redis over sockets: not measured: not installed: "), "{said}");
            assert!(transports.iter().all(|transport| redis[*transport]["failed"] == false), "{redis}");
            eprintln!("skipped: {why}");
        }
    }
}

/// Checks the times of RDMA programs, or the reason why there are none.
fn expect_perftest(times: &Value, said: &str) {
    let all = times.as_array().expect("a list");
    assert_eq!(all.iter().map(|time| &time["program"]).collect::<Vec<_>>(), ["ib_write_lat", "ib_send_lat"]);
    match all[0]["why"].as_str() {
        None => {
            assert!(all.iter().all(|time| time["half_rtt_us"].as_f64() > Some(0.0)), "{times}");
            assert!(
                said.contains("\nperftest over verbs: ") && said.contains("\nVerbs: ib_write_lat, 8 bytes: "),
                "{said}"
            );
        }
        Some(why) => {
            assert!(said.contains("RDMA programs: not measured: "), "{said}");
            assert!(all.iter().all(|time| time["failed"] == false), "{times}");
            eprintln!("skipped: {why}");
        }
    }
}

#[test]
fn try_leaves_only_its_results() {
    if one_cpu() {
        return;
    }
    let scratch = Scratch::new().expect("a folder");
    let out = scratch.join("out");
    let finished = demo(&scratch, &out).spawn().expect("started").finish(deadline()).expect("an end");
    let said = finished.lines.join("\n");
    assert_eq!(finished.exit, Exit::Code(0), "{}\n{said}", finished.stderr);
    assert!(
        finished.lines[0].starts_with("Isthmus: 8 bytes: ") && finished.lines[0].contains(" TCP; 1 MiB: "),
        "{said}"
    );
    let row = |label: &str, wait: &str| {
        finished.lines.iter().filter(|line| line.starts_with(label)).any(|line| line.contains(wait))
    };
    for wait in ["adaptive (default)", "poll", "sleep"] {
        assert!(row("Isthmus ", wait), "{wait} in {said}");
    }
    assert!(row("TCP ", "poll") && row("TCP ", "sleep (default)") && !row("TCP ", "adaptive"), "{said}");
    assert!(said.contains("Higher is better in every column"), "{said}");
    let json = std::fs::read_to_string(out.join("try.json")).expect("results");
    let results: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&results["schema"], &results["kind"]), (&1.into(), &"try".into()));
    assert_eq!(results["headline"][0], finished.lines[0]);
    let points = results["points"].as_array().expect("a list");
    let ours = points.iter().filter(|point| point["path"] == "isthmus");
    assert!(ours.clone().count() == 6 && ours.clone().all(|point| point["half_rtt_us"].is_number()), "{results}");
    let mx = points.iter().filter(|point| point["path"] == "mx");
    if Path::new(env!("CARGO_BIN_EXE_isthmus")).with_file_name("mx_measure").is_file() {
        assert!(mx.clone().count() == 6 && mx.clone().all(|point| point["rate_mmsg_s"].is_number()), "{results}");
        assert!(results["unavailable"].as_array().is_some_and(Vec::is_empty), "{results}");
    } else {
        eprintln!("skipped: the programs of examples/mx are not built (cargo xtask mx-programs)");
        assert!(mx.clone().count() == 0 && said.contains("MX: not installed: mx_measure (run `make build`)"), "{said}");
    }
    let hosts = results["hosts"].as_array().expect("a list");
    let has_mx = mx.count() > 0;
    assert_eq!(hosts.len(), 9, "{results}");
    match hosts.iter().find_map(|measurement| measurement["why"].as_str().filter(|_| measurement["path"] == "raw")) {
        None => {
            assert!(said.contains("Between two hosts on this machine") && said.contains("bare frames"), "{said}");
            let measured = hosts.iter().filter(|measurement| has_mx || measurement["path"] != "mx");
            measured.for_each(|measurement| assert!(measurement["value"].as_f64() > Some(0.0), "{measurement}"));
        }
        Some(why) => {
            assert!(said.contains("Between two hosts: not measured: "), "{said}");
            assert!(hosts.iter().all(|measurement| measurement["failed"] == false), "{results}");
            eprintln!("skipped: {why}");
        }
    }
    expect_redis(&results["redis"], &said);
    expect_perftest(&results["perftest"], &said);
    assert_eq!(results["channels"]["pairs"][0]["path"], "channel");
    assert!(std::fs::read_to_string(out.join("try.svg")).expect("a picture").starts_with("<svg"));
    assert!(is_empty(&scratch.join("place")));
}

#[test]
fn try_leaves_nothing_when_killed() {
    if one_cpu() {
        return;
    }
    for signal in [Signal::KILL, Signal::INT] {
        let scratch = Scratch::new().expect("a folder");
        let mut process = demo(&scratch, &scratch.join("out")).spawn().expect("started");
        let place = scratch.join("place");
        let running = || {
            let folders = std::fs::read_dir(&place).into_iter().flatten().flatten();
            folders.map(|folder| folder.path()).any(|folder| folder.join("isthmus.sock").exists())
        };
        eventually(deadline(), running).expect("a daemon of its own");
        process.signal(signal).expect("sent");
        process.wait(deadline()).expect("its end");
        eventually(deadline(), || is_empty(&place)).expect("nothing left");
    }
}
