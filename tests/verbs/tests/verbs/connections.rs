//! Programs that connect by rdma_cm, with the stock librdmacm: those of `rdmacm-utils`, perftest with `-R`, and one in C.

use isthmus_testbed::{Finished, Proc};
use isthmus_verbs_tests::{Stage, programs, timeout};

/// Starts a server, runs its client, and returns the ends of both: the client's first.
fn run(stage: &Stage, server: &str, client: &str, port: u16) -> [Finished; 2] {
    let mut waiting = start(stage, true, server);
    stage.server().wait_for_rdma_listener(port, &mut waiting);
    [start(stage, false, client), waiting].map(|proc| proc.finish(timeout()).unwrap_or_else(|error| panic!("{error}")))
}

/// Starts a command. `ADDRESS` stands for the server's address.
fn start(stage: &Stage, is_server: bool, command: &str) -> Proc {
    let address = stage.address();
    let mut words = command.split_whitespace().map(|word| if word == "ADDRESS" { address.as_str() } else { word });
    let program = words.next().expect("a program");
    let program = if program.contains('/') { program.to_owned() } else { format!("/usr/bin/{program}") };
    let container = if is_server { stage.server() } else { stage.client() };
    let words: Vec<&str> = words.collect();
    stage.launch(container, &program, &words, &[]).spawn().unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the lines of both ends. rping closes its channel at the end while a thread of it may be about to read there, also with the
/// kernel's rdma_cm: it then says so and exits with an error, after all its data were checked.
#[track_caller]
fn expect_success(ends: [Finished; 2]) -> [Vec<String>; 2] {
    let is_late = |end: &Finished| {
        ["DISCONNECT EVENT", "rdma_get_cm_event: Bad file descriptor"].iter().all(|said| end.stderr.contains(said))
    };
    ends.map(|end| if is_late(&end) { end.lines } else { end.expect_success() })
}

#[test]
fn examples_connect_and_carry_their_data() {
    let Some(stage) = Stage::new() else { return };
    for (server, client, port, last) in [
        ("rping -s -C 20 -V -v", "rping -c -a ADDRESS -C 20 -V -v", 7174, "rdma-ping-19"),
        ("rping -s -C 5 -S 60000 -V", "rping -c -a ADDRESS -C 5 -S 60000 -V", 7174, ""),
        ("ucmatose -c 20 -C 50 -S 4096", "ucmatose -s ADDRESS -c 20 -C 50 -S 4096", 7471, "return status 0"),
        ("udaddy -c 5 -C 20", "udaddy -s ADDRESS -c 5 -C 20", 7174, "return status 0"),
        ("rdma_server", "rdma_client -s ADDRESS", 7471, "end 0"),
        ("rdma_xserver", "rdma_xclient -s ADDRESS", 7471, "end 0"),
        ("rstream -S 4096 -I 100 -C 10", "rstream -s ADDRESS -S 4096 -I 100 -C 10", 7471, "4k"),
        ("riostream -S 4096 -I 100 -C 10", "riostream -s ADDRESS -S 4096 -I 100 -C 10", 7471, "4k"),
    ] {
        let [of_client, _] = expect_success(run(&stage, server, client, port));
        assert!(last.is_empty() || of_client.iter().any(|line| line.contains(last)), "{client}: {of_client:#?}");
    }
}

#[test]
fn perftest_connects_by_rdma_cm() {
    let Some(stage) = Stage::new() else { return };
    for (at, words) in [
        "ib_send_lat -R -n 200",
        "ib_send_bw -R -e -n 200",
        "ib_write_bw -R -q 4 -n 200",
        "ib_read_lat -R -n 200",
        "ib_atomic_bw -R -n 200",
        "ib_send_lat -R -c UD -n 200",
    ]
    .iter()
    .enumerate()
    {
        let port = 18_515 + at as u16;
        let server = format!("{words} -p {port}");
        let [of_client, _] = expect_success(run(&stage, &server, &format!("{server} ADDRESS"), port));
        let line = of_client.iter().find(|line| line.split_whitespace().nth(1).is_some_and(|count| count == "200"));
        let line = line.or_else(|| of_client.iter().find(|line| line.split_whitespace().nth(1) == Some("800")));
        assert!(line.is_some(), "{words}: {of_client:#?}");
    }
}

#[test]
fn without_a_listener_a_connection_is_rejected() {
    let Some(stage) = Stage::new() else { return };
    let refused = start(&stage, false, "rping -c -a ADDRESS -C 1").finish(timeout()).unwrap();
    assert!(refused.stderr.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{refused:#?}");
}

#[test]
fn odd_uses_of_librdmacm_are_as_with_the_kernel() {
    let Some(stage) = Stage::new() else { return };
    if programs().is_none() {
        return;
    }
    let done = stage.run("/programs/connect", &[], &[]).expect_success();
    assert_eq!(done.last().map(String::as_str), Some("all cases passed"), "{done:#?}");
}

/// All three take `write`, two take sockets. The first of these two makes the sockets of a program, as TCP or as rsockets.
#[test]
fn preloaded_libraries_work_in_every_order() {
    let Some(stage) = Stage::new() else { return };
    let [verbs, sockets] = ["verbs", "sockets"].map(|name| format!("/program/libisthmus-{name}.so"));
    let rsockets = format!("/usr/lib/{}-linux-gnu/rsocket/librspreload.so", std::env::consts::ARCH);
    let all = [verbs, sockets, rsockets];
    for first in 0..3 {
        for second in (0..3).filter(|second| *second != first) {
            let order = [&*all[first], &all[second], &all[3 - first - second]].join(":");
            println!("# {order}");
            let env = format!("/usr/bin/env LD_PRELOAD={order}");
            let [server, client] = ["-s", "-c -a ADDRESS"].map(|side| format!("{env} rping {side} -C 5 -S 1000 -V"));
            expect_success(run(&stage, &server, &client, 7174));
            let python = |is_server: bool, script: &str| {
                let container = if is_server { stage.server() } else { stage.client() };
                let preload = format!("LD_PRELOAD={order}");
                let words = [&preload, "/usr/bin/python3", "-c", script, &stage.address()];
                stage.launch(container, "/usr/bin/env", &words, &[]).spawn().unwrap_or_else(|error| panic!("{error}"))
            };
            let mut server = python(true, ECHO);
            server.wait_prefix("listens", timeout()).unwrap_or_else(|error| panic!("{error}"));
            let ends = [python(false, ASK), server].map(|proc| proc.finish(timeout()).unwrap());
            let [of_client, _] = expect_success(ends);
            assert_eq!(of_client, ["the same bytes came back"]);
        }
    }
}

const ECHO: &str = "
import socket
listener = socket.create_server(('0.0.0.0', 7180))
print('listens', flush=True)
stream, _ = listener.accept()
while (some := stream.recv(4096)):
    stream.sendall(some)
";

const ASK: &str = "
import os, socket, sys
stream = socket.create_connection((sys.argv[1], 7180))
sent, back = os.urandom(100000), b''
for at in range(0, len(sent), 1000):
    stream.sendall(sent[at:at + 1000])
    want = at + 1000
    while len(back) < want:
        back += stream.recv(want - len(back))
assert back == sent
stream.close()
print('the same bytes came back')
";
