//! Messages that go through io_uring, past the library: `c/uring.c`. Both programs check their contents.

use isthmus_sockets_tests::{Stage, build, timeout};
use isthmus_testbed::{Finished, Proc};
use serde_json::Value;

const BYTES: u64 = 1 << 20;

/// Exchanges messages, the last `calls` bytes by write and read. Returns the report of streams while both programs still run; none, with
/// the reason on standard error, where the kernel has no io_uring.
fn exchange(stage: &Stage, calls: u64) -> Option<Value> {
    let (bytes, calls) = (BYTES.to_string(), calls.to_string());
    let options = ["--bytes", &bytes, "--calls", &calls];
    let start = |words: &[&str]| -> Proc {
        let launch = stage.launch(build::program("uring")).args(words).args(options);
        launch.with_stdin().spawn().unwrap_or_else(|error| panic!("{error}"))
    };
    let mut server = start(&["server", "127.0.0.1"]);
    let first = server.line(timeout()).unwrap_or_else(|error| panic!("{error}"));
    let Some(port) = first.strip_prefix("port ") else {
        eprintln!("skipped: {first}");
        return None;
    };
    let mut client = start(&["client", "127.0.0.1", port]);
    for proc in [&mut client, &mut server] {
        proc.wait_line(&format!("bytes {BYTES}"), timeout()).unwrap_or_else(|error| panic!("{error}"));
    }
    let report = stage.streams();
    for mut proc in [client, server] {
        proc.close_stdin();
        proc.finish(timeout()).map(Finished::expect_success).unwrap_or_else(|error| panic!("{error}"));
    }
    Some(report)
}

#[test]
fn kernel_exchanges_messages_by_io_uring() {
    exchange(&Stage::Kernel, 0);
    exchange(&Stage::Kernel, BYTES / 4);
}

/// The library sees no exchange, so it does not ask for a stream.
#[test]
fn library_leaves_a_connection_of_io_uring_to_tcp() {
    let Some(stage) = Stage::library() else { return };
    let Some(report) = exchange(&stage, 0) else { return };
    assert_eq!(report["paired"], 0, "{report:#}");
}

/// The later calls of the library are worth a stream. Neither program attaches to it, because TCP has carried more bytes than these calls.
#[test]
fn library_leaves_a_connection_that_used_io_uring_to_tcp() {
    let Some(stage) = Stage::library() else { return };
    let Some(report) = exchange(&stage, BYTES / 4) else { return };
    assert_eq!(report["paired"], 1, "{report:#}");
    let streams = report["streams"].as_array().unwrap();
    for end in streams.iter().flat_map(|stream| [&stream["connector"], &stream["acceptor"]]) {
        // An end that has made no call since is still waiting.
        assert!(end["state"] == "left" || end["state"] == "waiting", "{end:#}");
        assert_eq!((&end["path"], &end["shared_bytes"]), (&"tcp".into(), &0.into()), "{end:#}");
    }
}
