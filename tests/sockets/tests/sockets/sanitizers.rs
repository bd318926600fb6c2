//! Programs that are compiled with a sanitizer of gcc.

use isthmus_sockets_tests::{Stage, build, timeout};
use isthmus_testbed::{Finished, Proc};

/// As `isthmus run` sets it. A static runtime needs none.
const LINK_ORDER: (&str, &str) = ("ASAN_OPTIONS", "verify_asan_link_order=0");

const ADDRESS: &str = "127.0.0.1";
const WORK: [&str; 4] = ["--connections", "2", "--rounds", "20000"];

/// Exchanges messages between two programs with a sanitizer, which must find nothing, and asserts that they used a stream.
fn exchange(sanitizer: &str, options: &[&str], variable: Option<(&str, &str)>) {
    let program = match build::sanitized_program("exchange", sanitizer, options) {
        Ok(program) => program,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let Some(stage) = Stage::library() else { return };
    let start = |words: &[&str]| {
        let launch = stage.launch(&program).args(words);
        let launch = variable.iter().fold(launch, |launch, (name, value)| launch.env(name, value));
        launch.spawn().unwrap_or_else(|error| panic!("{error}"))
    };
    let mut server = start(&[&["server", ADDRESS], &WORK[..]].concat());
    let port = server.wait_prefix("port ", timeout()).unwrap_or_else(|error| panic!("{error}"));
    let client = start(&[&["client", ADDRESS, &port], &WORK[..]].concat());
    let finish = |proc: Proc| proc.finish(timeout()).map(Finished::expect_success);
    for proc in [client, server] {
        finish(proc).unwrap_or_else(|error| panic!("{error}"));
    }
    stage.expect_paired();
    let ended = &stage.streams()["ended"];
    assert!(ended["shared_bytes"].as_u64() > ended["tcp_bytes"].as_u64(), "{ended}");
}

#[test]
fn library_serves_programs_with_address_sanitizer() {
    exchange("address", &[], Some(LINK_ORDER));
}

#[test]
fn library_serves_programs_with_a_static_address_sanitizer() {
    exchange("address", &["-static-libasan"], None);
}

#[test]
fn library_serves_programs_with_thread_sanitizer() {
    exchange("thread", &[], None);
}
