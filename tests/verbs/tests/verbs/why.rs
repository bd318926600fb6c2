//! `isthmus why qp:NUMBER` about queue pairs of programs that run.

use isthmus_testbed::eventually;
use isthmus_verbs_tests::{Stage, Started, timeout};
use serde_json::Value;

/// Variables of the server, and of the client.
type Variables<'a> = [&'a [(&'a str, &'a str)]; 2];

/// A program that writes to its server without an end.
fn start(stage: &Stage, variables: Variables<'_>) -> Started {
    Started::new(stage, "/usr/bin/ib_write_bw", &["-F", "-s", "4096", "--run_infinitely"], variables)
}

fn json(stage: &Stage, words: &[&str]) -> Value {
    let lines = stage.isthmus(&[words, &["--json"]].concat()).expect_success();
    serde_json::from_str(&lines.join("\n")).unwrap()
}

/// The answers about the queue pairs of all programs that have a peer. The first queue pair of a program has the first number of its block.
fn answers(stage: &Stage) -> Vec<Value> {
    let list = json(stage, &["verbs", "list"]);
    let firsts = list["domains"].as_array().unwrap().iter().map(|domain| domain["blocks"][0]["first"].to_string());
    let answers = firsts.map(|first| json(stage, &["why", &format!("qp:{first}")]));
    answers.filter(|answer| answer["peers"].as_array().is_some_and(|peers| !peers.is_empty())).collect()
}

/// Waits until the direction of one of the two programs in their channel satisfies a condition. Returns the answers about both.
#[track_caller]
fn wait_for(stage: &Stage, is_wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut last = Vec::new();
    let waited = eventually(timeout(), || {
        last = answers(stage);
        let directions = |answer: &Value| answer["peers"][0]["path"]["channel"]["directions"].clone();
        let has_wanted = |answer: &Value| directions(answer).as_array().is_some_and(|rows| rows.iter().any(&is_wanted));
        last.len() == 2 && last.iter().all(has_wanted)
    });
    waited.unwrap_or_else(|error| panic!("{error}: {last:#?}"));
    last
}

#[test]
fn direct_writes_between_two_programs_are_counted() {
    let Some(stage) = Stage::new() else { return };
    let _programs = start(&stage, [&[], &[]]);
    let answers = wait_for(&stage, |row| row["direct"].as_u64() > Some(1000));
    for (answer, other) in answers.iter().zip(answers.iter().rev()) {
        let peer = &answer["peers"][0];
        assert_eq!((&answer["kind"], &answer["peers"][1]), (&"why queue pair".into(), &Value::Null));
        assert_eq!((&peer["program"]["domain"], &peer["refused"]), (&other["holder"]["domain"], &Value::Null));
        assert_eq!(peer["path"]["path"], "channel");
        assert_eq!([&answer["holder"]["serving_thread"], &peer["program"]["serving_thread"]], [true, true]);
    }
    let number = format!("qp:{:#x}", answers[0]["number"].as_u64().unwrap());
    let said = stage.isthmus(&["why", &number]).expect_success().join("\n");
    for part in [": by a channel (direct path)", "its serving thread runs", ": directly, ", ": none yet"] {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
}

#[test]
fn memory_that_stays_with_its_owner_is_named_with_the_reason() {
    let Some(stage) = Stage::new() else { return };
    let _programs = start(&stage, [&[("ISTHMUS_RCACHE", "0")], &[]]);
    let is_served =
        |row: &Value| row["served"].as_u64() > Some(1000) && row["assisted"]["reason"] == "buffer-cache-disabled";
    let answers = wait_for(&stage, is_served);
    let number = format!("qp:{}", answers[1]["number"]);
    let said = stage.isthmus(&["why", &number]).expect_success().join("\n");
    for part in ["remedy: Unset `ISTHMUS_RCACHE`", " performed them, "] {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
}

#[test]
fn programs_that_poll_memory_are_served_at_a_doorbell_and_not_at_a_tick() {
    let Some(stage) = Stage::new() else { return };
    let variables: &[(&str, &str)] = &[("ISTHMUS_RCACHE", "0")];
    let words = ["-F", "-s", "8", "-n", "5000000"];
    let _programs = Started::new(&stage, "/usr/bin/ib_write_lat", &words, [variables; 2]);
    // A program that polls the library as well takes some writes itself, without a doorbell.
    let is_rung = |row: &Value| {
        let count = |name: &str| row[name].as_u64().unwrap_or(0);
        count("served") > 300 && 10 * count("wakeups") > count("served")
    };
    wait_for(&stage, is_rung);
}

#[test]
fn packets_through_the_daemon_and_unknown_numbers_have_a_reason() {
    let Some(stage) = Stage::new() else { return };
    let _programs = start(&stage, [&[], &[("ISTHMUS_CHANNELS", "0")]]);
    let mut known = Vec::new();
    eventually(timeout(), || {
        known = answers(&stage);
        known.len() == 2
    })
    .unwrap();
    assert_eq!(known[0]["peers"][0]["path"]["path"], "daemon", "{known:#?}");
    let said = stage.isthmus(&["why", &format!("qp:{}", known[0]["number"])]).expect_success().join("\n");
    assert!(said.contains("performs them, because there is no channel"), "{said}");
    let finished = stage.isthmus(&["why", "qp:1"]);
    assert!(finished.stderr.contains("[verbs-number-unknown]"), "{finished:?}");
}
