//! UCX: its list of transports, its tests of single transports, and its tests of messages with ours as the only transports, two containers.

use isthmus_verbs_tests::{Pair, Stage};

/// The device and its port, as UCX names them.
const DEVICE: &str = "isthmus0:1";

const PERFTEST: &str = "/usr/bin/ucx_perftest";

/// Its log goes to standard error: it mentions failures that are none, such as that there is no `/sys/class/net`.
const LOG: (&str, &str) = ("UCX_LOG_FILE", "stderr");

/// Runs a test of `ucx_perftest`, and asserts that the client has done this number of iterations. Returns the logs of both.
#[track_caller]
fn measure(stage: &Stage, words: &str, count: u32, variables: &[(&str, &str)]) -> [String; 2] {
    let iterations = count.to_string();
    let words: Vec<&str> = ["-n", &iterations, "-w", "10"].into_iter().chain(words.split_whitespace()).collect();
    let pair = Pair::run(stage, PERFTEST, &words, &[&[LOG], variables].concat());
    let [client, _] = pair.expect_success();
    let done = client.iter().find_map(|line| line.strip_prefix("Final:")?.split_whitespace().next());
    assert_eq!(done, Some(iterations.as_str()), "{words:?}: {client:#?}");
    [&pair.client, &pair.server].map(|finished| finished.stderr.clone())
}

/// The transports of the connections that UCX has logged, as `rc_verbs/isthmus0:1`. A line is `… ep_cfg[0]: tag(rc_verbs/isthmus0:1)`.
fn transports(log: &str) -> Vec<&str> {
    let connections = log.lines().filter_map(|line| line.split_once("ep_cfg[")?.1.split_once("]: "));
    let words = connections.flat_map(|(_, used)| used.split([' ', '(', ')']));
    words.filter(|word| word.contains('/')).collect()
}

/// Asserts that UCX has logged connections, and on these transports of the device only.
#[track_caller]
pub(crate) fn expect_only(allowed: &[&str], log: &str) {
    let used = transports(log);
    let is_allowed = |used: &&str| allowed.iter().any(|name| **used == format!("{name}/{DEVICE}"));
    assert!(!used.is_empty() && used.iter().all(is_allowed), "{used:?}\n{log}");
}

/// Runs a test of messages with these transports only.
#[track_caller]
fn exchange(stage: &Stage, allowed: &[&str], words: &str, count: u32) {
    let list = allowed.join(",");
    for log in measure(stage, words, count, &[("UCX_TLS", &list), ("UCX_LOG_LEVEL", "info")]) {
        expect_only(allowed, &log);
    }
}

#[test]
fn transports_of_the_device_are_listed() {
    let Some(stage) = Stage::new() else { return };
    let listed = stage.run("/usr/bin/ucx_info", &["-d"], &[LOG]).expect_success();
    let fields = listed.iter().filter_map(|line| line.trim_start_matches(['#', ' ']).split_once(": "));
    let fields: Vec<_> = fields.filter(|(name, _)| ["Transport", "Device"].contains(name)).collect();
    for transport in ["rc_verbs", "ud_verbs"] {
        let expected = [("Transport", transport), ("Device", DEVICE)];
        assert!(fields.windows(2).any(|pair| pair == expected), "{transport}: {listed:#?}");
    }
}

#[test]
fn connections_are_measured() {
    let Some(stage) = Stage::new() else { return };
    for words in [
        "am_lat",
        "am_lat -D bcopy -s 4096",
        "am_lat -D zcopy -s 4096",
        "am_bw",
        "put_lat",
        "put_bw -D zcopy -s 65536",
        "get -D bcopy",
        "get -D zcopy -s 65536",
        "fadd",
        "cswap",
    ] {
        measure(&stage, &format!("-x rc_verbs -d {DEVICE} -t {words}"), 100, &[]);
    }
}

#[test]
fn datagrams_are_measured() {
    let Some(stage) = Stage::new() else { return };
    for words in ["am_lat", "am_lat -D bcopy -s 2048", "am_bw -D zcopy -s 2048"] {
        measure(&stage, &format!("-x ud_verbs -d {DEVICE} -t {words}"), 100, &[]);
    }
}

#[test]
fn messages_go_by_connections_that_datagrams_set_up() {
    let Some(stage) = Stage::new() else { return };
    let allowed = ["rc_verbs", "ud_verbs"];
    for words in [
        "tag_lat",
        "tag_bw -s 65536",
        "tag_lat -U -s 1024",
        "ucp_put_lat",
        "ucp_get -s 65536",
        "ucp_fadd",
        "ucp_am_lat",
        "stream_bw -s 4096",
    ] {
        exchange(&stage, &allowed, &format!("-t {words}"), 100);
    }
    exchange(&stage, &allowed, "-t tag_bw -s 4194304", 8);
}

#[test]
fn messages_go_by_datagrams() {
    let Some(stage) = Stage::new() else { return };
    exchange(&stage, &["ud_verbs"], "-t tag_lat", 100);
    exchange(&stage, &["ud_verbs"], "-t tag_bw -s 65536", 50);
}

#[test]
fn programs_sleep_until_messages_come() {
    let Some(stage) = Stage::new() else { return };
    for words in ["tag_lat", "tag_bw -s 65536", "ucp_am_lat"] {
        exchange(&stage, &["rc_verbs", "ud_verbs"], &format!("-E sleep -t {words}"), 200);
    }
    exchange(&stage, &["ud_verbs"], "-E sleep -t tag_lat", 200);
}
