//! Redis in one container, redis-benchmark in another: as they are packaged, started by `isthmus run`.

use std::path::Path;

use isthmus_sockets_tests::{End, Stage, TwoPrograms, build, timeout};
use isthmus_testbed::{Exit, Finished, Launch, Proc, Scratch, binary};
use serde_json::Value;

const SERVER: &str = "/usr/bin/redis-server";
const BENCHMARK: &str = "/usr/bin/redis-benchmark";

/// Starts a server without files, and waits until it is ready.
fn start_server(programs: &TwoPrograms) -> Proc {
    let address = programs.address();
    let words = ["--bind", &address, "--save", "", "--appendonly", "no", "--protected-mode", "no"];
    let launch = programs.container(End::Server).isthmus_run(Path::new(SERVER), &words);
    let mut server = launch.spawn().unwrap_or_else(|error| panic!("{error}"));
    let ready =
        server.find_line(timeout(), "a server that is ready", |line| line.contains("Ready to accept connections"));
    ready.unwrap_or_else(|error| panic!("{error}"));
    server
}

fn start_benchmark(programs: &TwoPrograms, words: &[&str]) -> Proc {
    let address = programs.address();
    let all = [&["-h", &address, "-t", "get,set", "-c", "50"], words].concat();
    let launch = programs.container(End::Client).isthmus_run(Path::new(BENCHMARK), &all);
    launch.spawn().unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a benchmark to its end, and checks that it has a rate for each command.
fn benchmark(programs: &TwoPrograms) {
    let benchmark = start_benchmark(programs, &["-n", "20000", "--csv"]);
    let lines = benchmark.finish(timeout()).map(Finished::expect_success).unwrap_or_else(|error| panic!("{error}"));
    for command in ["SET", "GET"] {
        let rate = lines
            .iter()
            .find_map(|line| line.strip_prefix(&format!("\"{command}\",\""))?.split('"').next()?.parse().ok());
        assert!(rate.is_some_and(|rate: f64| rate > 0.0), "{command}: {lines:?}");
    }
}

/// Waits until connections of a benchmark without end carry bytes by shared memory.
fn expect_shared_memory(programs: &TwoPrograms) {
    let benchmark = start_benchmark(programs, &["-n", "1000000", "-l"]);
    let is_shared = |end: &Value| end["shared_bytes"].as_u64().is_some_and(|bytes| bytes > 0);
    let is_used = |stream: &Value| is_shared(&stream["connector"]) && is_shared(&stream["acceptor"]);
    programs.stage.wait_for_streams("stream of the benchmark", |streams| streams.iter().any(is_used));
    programs.kill(&benchmark);
}

fn redis_in_two_containers(stage: Stage) {
    if !Path::new(SERVER).exists() || !Path::new(BENCHMARK).exists() {
        return eprintln!(
            "skipped: redis-server or redis-benchmark is not installed (packages redis-server, redis-tools)"
        );
    }
    let Some(programs) = TwoPrograms::two_containers(stage) else { return };
    let server = start_server(&programs);
    benchmark(&programs);
    if programs.stage.has_library() {
        expect_shared_memory(&programs);
        benchmark(&programs);
    }
    programs.kill(&server);
}

#[test]
fn kernel_serves_redis_in_two_containers() {
    redis_in_two_containers(Stage::Kernel);
}

#[test]
fn library_serves_redis_in_two_containers() {
    if let Some(stage) = Stage::library_across() {
        redis_in_two_containers(stage);
    }
}

/// Measures a row of `isthmus-bench`, in a folder that has the programs and the library as an installation has them. Returns how it ended,
/// and the row.
fn measure(row: &str, variable: (&str, &str)) -> (Exit, Value) {
    let folder = Scratch::new().unwrap_or_else(|error| panic!("{error}"));
    let programs =
        ["isthmus-bench", "isthmusd"].map(|name| binary(name, name).unwrap_or_else(|error| panic!("{error}")));
    let library = build::library().unwrap().join(build::LIBRARY);
    for file in [&programs[0], &programs[1], &library] {
        std::fs::copy(file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    let bench = Launch::new(folder.path().join("isthmus-bench")).env(variable.0, variable.1);
    let words = ["figures", "--only", row, "--runs", "1", "--run-ms", "2", "--json", "-"];
    let bench = bench.args(words).spawn().unwrap_or_else(|error| panic!("{error}"));
    let ended = bench.finish(timeout()).unwrap_or_else(|error| panic!("{error}"));
    let row = ended.lines.iter().rfind(|line| line.contains(row)).unwrap_or_else(|| panic!("no row: {ended:?}"));
    (ended.exit, serde_json::from_str(row).unwrap_or_else(|error| panic!("{error}: {row}")))
}

/// Rows with bytes by TCP are no measurements of streams, and fail.
#[test]
fn rows_of_the_benchmark_fail_without_streams() {
    if let Err(why) = build::library() {
        return eprintln!("skipped: {why}");
    }
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2) {
        return eprintln!("skipped: needs two CPUs");
    }
    let (switched_off, unused) = (("ISTHMUS_SOCKETS", "off"), ("UNUSED", ""));
    let has_redis = Path::new(SERVER).exists() && Path::new(BENCHMARK).exists();
    let rows: &[_] = if has_redis {
        &["sock.rr.64b.sleep.one_cpu", "sock.redis.get.one_client"]
    } else {
        &["sock.rr.64b.sleep.one_cpu"]
    };
    for row in rows {
        let (exit, measured) = measure(row, unused);
        assert!(exit == Exit::Code(0) && measured["value"].as_f64() > Some(0.0), "{exit:?}: {measured}");
        let (exit, failed) = measure(row, switched_off);
        let why = failed["why"].as_str().unwrap_or_default();
        assert!(exit == Exit::Code(1) && failed["value"].is_null(), "{exit:?}: {failed}");
        // The sides of a pair notice it one after the other, and either may say so first.
        let expected = if row.contains("redis") { "failed: 0 of " } else { "failed: sockets PingPong" };
        assert!(why.contains(expected), "{why}");
    }
}
