//! Programs that outlive their daemon, and get streams from the next one.

use isthmus_sockets_tests::{Stage, build, timeout};
use isthmus_testbed::{Proc, eventually};

/// Requests without end.
const ENDLESS: [&str; 6] = ["--connections", "1", "--rounds", "1000000000000", "--tick", "100"];

fn start(stage: &Stage, words: &[&str]) -> Proc {
    let launch = stage.launch(build::program("exchange")).args(words);
    launch.spawn().unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn expect_progress(client: &mut Proc) {
    for _ in 0..10 {
        client.wait_prefix("at ", timeout()).unwrap_or_else(|error| panic!("{error}"));
    }
}

fn new_streams_after_a_restart(mode: &str) {
    let Some(mut stage) = Stage::library() else { return };
    let server = ["server", "127.0.0.1", "--connections", "3", "--late", "2", "--mode", mode];
    let mut server = start(&stage, &server);
    let port = server.wait_prefix("port ", timeout()).unwrap_or_else(|error| panic!("{error}"));
    let client = [&["client", "127.0.0.1", &port], &ENDLESS[..]].concat();
    let mut old = start(&stage, &client);
    stage.wait_for_stream(&port);

    stage.daemon().unwrap().kill_and_restart(timeout()).unwrap_or_else(|error| panic!("{error}"));
    expect_progress(&mut old);
    // The server learns of the new daemon when it accepts a connection, which may stay on TCP.
    let mut first = start(&stage, &client);
    expect_progress(&mut first);
    let is_listed = || stage.streams()["listening"].as_u64() == Some(1);
    eventually(timeout(), is_listed).unwrap_or_else(|error| panic!("{error}: {:#}", stage.streams()));
    let mut new = start(&stage, &client);
    stage.wait_for_stream(&port);
    for client in [&mut old, &mut first, &mut new] {
        expect_progress(client);
    }
    assert_eq!(server.stderr(), "");
    for proc in [old, first, new, server] {
        proc.kill().unwrap();
    }
}

#[test]
fn epoll_set_with_an_old_stream_gets_new_ones_after_a_restart() {
    ["level", "edge"].into_iter().for_each(new_streams_after_a_restart);
}
