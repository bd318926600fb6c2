//! The built program, as a user calls it: real workers over real sockets, short, with nothing asserted about their speed.

use std::collections::BTreeSet;
use std::thread::available_parallelism;

use assert_cmd::Command;
use isthmus_testbed::{DaemonProcess, Deadline, Scratch, binary};
use serde_json::Value;

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("isthmus-bench").expect("the program is built for its tests");
    command.args(arguments);
    command
}

fn lines(command: &mut Command) -> Vec<Value> {
    let output = command.assert().success().get_output().stdout.clone();
    results(&output)
}

/// The lines after the first one, which is the run.
fn results(output: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(output).expect("JSON is UTF-8");
    let mut lines = text.lines().map(|line| serde_json::from_str(line).expect("each line is one JSON object"));
    let run: Value = lines.next().expect("a line of the run");
    let machine = &run["machine"];
    assert!(machine["pinned"].is_string() && machine["cpu_placement"].is_string(), "{run}");
    assert!(run["command"].as_str().is_some_and(|command| command.starts_with("isthmus-bench ")), "{run}");
    lines.collect()
}

/// Sides are pinned to two CPUs: on a machine with one there is nothing to measure, and the program says so.
fn one_cpu() -> bool {
    let one = available_parallelism().is_ok_and(|cpus| cpus.get() < 2);
    if one {
        eprintln!("skipped: needs two CPUs");
    }
    one
}

#[test]
fn every_path_carries_every_size_intact() {
    if one_cpu() {
        return;
    }
    let arguments =
        ["paths", "--path", "tcp,unix,seqpacket,pipe,cma,ring,eventfd", "--size", "0,8,4k,300000", "--json", "-"];
    let points = lines(bench(&arguments).args(["--runs", "1", "--run-ms", "2"]));
    let seen: BTreeSet<_> = points.iter().map(|point| point["path"].to_string()).collect();
    assert_eq!(seen.len(), 7);
    for point in points {
        assert!(point.get("why").is_none(), "{point}");
        assert!(point["rate_mmsg_s"].is_number() || point["path"] == "eventfd", "{point}");
    }
}

#[test]
fn several_pairs_run_at_once_and_are_drawn() {
    if one_cpu() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("plot.svg");
    let arguments = ["paths", "--path", "unix", "--wait", "sleep", "--size", "8,64k", "--pairs", "3", "--json", "-"];
    let points = lines(bench(&arguments).args(["--runs", "1", "--run-ms", "2", "--svg"]).arg(&svg));
    assert!(points.iter().all(|point| point["pairs"] == 3 && point["half_rtt_us"].is_number()), "{points:?}");
    let drawn = std::fs::read_to_string(&svg).expect("a plot");
    assert!(drawn.starts_with("<svg") && drawn.contains("unix (sleep)"));
}

#[test]
fn a_figure_is_one_line_with_its_baseline() {
    if one_cpu() {
        return;
    }
    let arguments = ["figures", "--path", "unix", "--only", "local.half_rtt.8b.sleep", "--json", "-"];
    let figures = lines(bench(&arguments).args(["--runs", "2", "--run-ms", "2"]));
    let named: Vec<_> = figures.iter().map(|figure| (&figure["name"], &figure["baseline"])).collect();
    let row = ["local.half_rtt.8b.sleep", "local.half_rtt.8b.sleep.one_cpu"].map(Value::from);
    let baseline = ["tcp.half_rtt.8b.sleep", "tcp.half_rtt.8b.sleep.one_cpu"].map(Value::from);
    assert_eq!(named, [(&row[0], &baseline[0]), (&row[1], &baseline[1])]);
    for figure in &figures {
        for field in ["value", "baseline_value", "ratio", "spread", "floor_value", "floor_ratio"] {
            assert!(figure[field].is_number(), "{field} in {figure}");
        }
        assert_eq!((&figure["target"]["vs"], &figure["target"]["of"]), (&"peer".into(), &figure["baseline"]));
        assert_eq!((&figure["runs"], &figure["unit"]), (&2.into(), &"us".into()));
    }
}

/// Rows of two domains, and the row of a hundred silent ones, which counts the CPU time of them and of their daemon.
#[test]
fn rows_of_domains_are_measured_beside_their_daemon() {
    if one_cpu() {
        return;
    }
    let scratch = Scratch::new().expect("a folder");
    binary("isthmusd", "isthmusd").expect("the daemon");
    let config = "[daemon]\nsocket = \"{socket}\"\nruntime_dir = \"{state}\"\n";
    let daemon = DaemonProcess::on(&scratch).config(config).start(Deadline::secs(60)).expect("a daemon");
    let names = ["local.half_rtt.8b.poll", "local.bandwidth.1m.warm", "local.attach_us", "local.first_message_us"];
    let only = names.iter().chain(&["local.idle_cpu_ms"]).flat_map(|name| ["--only", *name]);
    let mut command = bench(&["figures", "--quick", "--runs", "1", "--run-ms", "2", "--json", "-"]);
    let rows = lines(command.args(only).env("ISTHMUS_SOCKET", daemon.socket()));
    assert_eq!(rows.len(), names.len() + 1);
    for row in &rows {
        assert!(row["value"].is_number() && row["why"].is_null(), "{row}");
        let is_idle = row["name"] == "local.idle_cpu_ms";
        assert!(is_idle || row["value"].as_f64() > Some(0.0), "{row}");
    }
}

#[test]
fn baselines_run_alone_and_missing_ones_have_a_reason() {
    if one_cpu() {
        return;
    }
    let arguments = ["baselines", "--only", "cache_line", "--only", "ucx.posix.rate", "--only", "cma", "--json", "-"];
    let rows = lines(bench(&arguments).args(["--runs", "1", "--run-ms", "2"]).env("PATH", "/nonexistent"));
    for row in rows {
        assert!(row["baseline"].is_null());
        let is_ucx = row["name"].as_str().is_some_and(|name| name.starts_with("ucx"));
        assert_eq!(row["value"].is_null(), is_ucx, "{row}");
        assert_eq!(row["why"].as_str().is_some_and(|why| why.contains("ucx-utils")), is_ucx, "{row}");
    }
}

/// The programs are looked for beside this one first: it is called from a folder where it is alone.
#[test]
fn mx_rows_name_missing_programs() {
    if one_cpu() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let alone = folder.path().join("isthmus-bench");
    std::fs::hard_link(env!("CARGO_BIN_EXE_isthmus-bench"), &alone).expect("a link");
    let arguments = ["figures", "--only", "mx.match", "--runs", "1", "--run-ms", "2", "--json", "-"];
    let output =
        Command::new(alone).args(arguments).env("PATH", "/nonexistent").assert().success().get_output().clone();
    let [row] = &results(&output.stdout)[..] else { panic!("one row: {output:?}") };
    assert!(row["value"].is_null() && row["baseline_value"].is_null(), "{row}");
    let why = row["why"].as_str().expect("a reason");
    assert_eq!(why, "not installed: mx_measure (run `make build`)");
}

/// Programs and libraries are named that are missing, and nothing has failed.
#[test]
fn rdma_rows_name_what_is_missing() {
    if one_cpu() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let alone = folder.path().join("isthmus-bench");
    std::fs::hard_link(env!("CARGO_BIN_EXE_isthmus-bench"), &alone).expect("a link");
    let arguments =
        ["figures", "--only", "verbs.read_lat", "--only", "verbs.idle", "--runs", "1", "--run-ms", "2", "--json", "-"];
    let output =
        Command::new(alone).args(arguments).env("PATH", "/nonexistent").assert().success().get_output().clone();
    let rows = results(&output.stdout);
    let why: Vec<_> = rows.iter().map(|row| (row["value"].is_null(), row["why"].as_str().expect("a reason"))).collect();
    let perftest = "not installed: perftest (package perftest)";
    assert_eq!(why, [(true, perftest), (true, "not installed: libisthmus-rdmav34.so (run `make build`)")]);
    assert!(rows[0]["floor_value"].is_number(), "{rows:?}");
}

/// Where this machine cannot make hosts, all rows have the same reason, and nothing has failed.
#[test]
fn bare_frames_go_from_host_to_host() {
    if one_cpu() {
        return;
    }
    for (arguments, sizes) in [(&["raw"][..], ["9014b", "60b"]), (&["raw", "--udp", "--mtu", "1500"], ["1472b", "60b"])]
    {
        let rows = lines(bench(arguments).args(["--runs", "1", "--run-ms", "2", "--json", "-"]));
        let names: Vec<_> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
        let path = if arguments.len() == 1 { "raw" } else { "raw_udp" };
        let name = |wait: &str| {
            let [stream, ping] = sizes;
            [format!("{path}.bandwidth.{stream}.warm.{wait}.veth"), format!("{path}.half_rtt.{ping}.{wait}.veth")]
        };
        assert_eq!(names, [name("poll"), name("sleep")].concat());
        let whys: BTreeSet<_> = rows.iter().filter_map(|row| row["why"].as_str()).collect();
        match whys.first() {
            None => assert!(rows.iter().all(|row| row["value"].as_f64() > Some(0.0)), "{rows:?}"),
            Some(why) => {
                assert!(whys.len() == 1 && rows.iter().all(|row| row["value"].is_null()), "{rows:?}");
                eprintln!("skipped: {why}");
            }
        }
    }
}

/// From the same folder as above, where neither the programs of MX nor a daemon are; frames and TCP need neither.
#[test]
fn rows_between_hosts_have_their_baselines_without_mx() {
    if one_cpu() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let alone = folder.path().join("isthmus-bench");
    std::fs::hard_link(env!("CARGO_BIN_EXE_isthmus-bench"), &alone).expect("a link");
    let arguments = ["figures", "--only", "wire.goodput.1m.1gbit", "--only", "wire.half_rtt.8b.sleep", "--json", "-"];
    let mut command = Command::new(alone);
    let output = command.args(arguments).args(["--runs", "1", "--run-ms", "2"]).assert().success().get_output().clone();
    let rows = results(&output.stdout);
    let [goodput, half_rtt] = &rows[..] else { panic!("two rows, not {rows:?}") };
    // 1 Gbit/s, of which 56 octets of 9038 are not payload.
    assert_eq!(goodput["floor"], "line.payload.1gbit");
    let payload = 0.125 * 8982.0 / 9038.0;
    assert!(goodput["floor_value"].as_f64().is_some_and(|value| (value - payload).abs() < 1e-5), "{goodput}");
    assert_eq!((&half_rtt["floor"], &half_rtt["unit"]), (&"raw.half_rtt.60b.sleep.veth".into(), &"us".into()));
    assert_eq!(half_rtt["baseline"], "tcp.half_rtt.8b.sleep.veth");
    for row in &rows {
        assert!(row["value"].is_null() && row["why"].is_string(), "{row}");
    }
    match half_rtt["floor_why"].as_str() {
        None => assert!(half_rtt["floor_value"].is_number() && half_rtt["baseline_value"].is_number(), "{half_rtt}"),
        Some(why) => {
            assert!(!why.starts_with("failed"), "{why}");
            eprintln!("skipped: {why}");
        }
    }
}

#[test]
fn usage_errors_have_a_distinct_exit_status() {
    for wrong in [
        &["figures", "--path", "unix", "--only", "local.nonsense"][..],
        &["baselines", "--only", "nonsense"],
        &["paths", "--size", "many"],
        &["paths", "--cpus", "3-1"],
        &["figures", "--placement", "anywhere"],
        &["raw", "--size", "59"],
        &["raw", "--mtu", "1500", "--size", "9000"],
        &["raw", "--poll", "--sleep"],
        &["nonsense"],
    ] {
        bench(wrong).assert().code(2);
    }
    bench(&["baselines", "--json", "/nonexistent/file"]).assert().code(1);
    bench(&["baselines", "--cpus", "0"]).assert().code(1);
}

#[test]
fn worker_started_manually_explains_itself() {
    let output = bench(&["worker"]).write_stdin("").assert().code(1).get_output().stderr.clone();
    assert!(String::from_utf8_lossy(&output).contains("only for isthmus-bench itself"));
}

#[test]
fn help_names_each_command_and_option() {
    let help = |arguments: &[&str]| {
        let output = bench(arguments).assert().success().get_output().stdout.clone();
        String::from_utf8(output).expect("help is UTF-8")
    };
    let top = help(&["--help"]);
    for word in ["figures", "baselines", "paths", "raw", "--json -", "Exit status"] {
        assert!(top.contains(word), "{word} in {top}");
    }
    assert!(!top.contains("worker") && !top.contains("remove-on-exit"));
    for (command, options) in [
        ("figures", &["--only", "--list", "--quick", "--runs", "--cpus", "--placement"][..]),
        ("baselines", &["--only", "--copy-size"]),
        ("paths", &["--path", "--wait", "--size", "--pairs", "--svg"]),
        ("raw", &["--udp", "--size", "--poll", "--sleep", "--mtu", "--offloads"]),
    ] {
        let text = help(&[command, "--help"]);
        assert!(options.iter().all(|option| text.contains(option)), "{text}");
    }
}
