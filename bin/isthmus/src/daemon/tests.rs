use serde_json::{Value, json};

use super::*;
use isthmus_report::{Channels, Why};

fn explained(reason: isthmus_client::Reason) -> Value {
    json!(isthmus_report::ReasonRow::from(reason))
}

fn channel() -> Value {
    json!({
        "id": "c2a", "state": "open", "connector": 7, "age_s": 75, "slab_bytes": 262144, "memory_bytes": 20480,
        "directions": [
            { "from": 7, "messages": 1, "bytes": 8, "wakeups": 0 },
            { "from": 3, "messages": 1000000, "bytes": 5000000, "wakeups": 12 },
        ],
    })
}

fn side() -> Value {
    json!({
        "may_talk": true, "may_channel": true, "rule": null, "last": null, "channels": 1, "channels_max": 1024, "ready_maps": 1,
        "ready_maps_max": 16, "backlog": 0, "grants": 0,
    })
}

fn why(path: &str) -> Value {
    json!({
        "schema": 1, "a": { "id": 3, "name": "web" }, "b": { "id": 7, "name": "db" }, "path": path, "reason": null, "large": null,
        "channel": null, "from_a": side(), "from_b": side(),
    })
}

fn why_text(answer: &Value) -> String {
    why::text(&read::<Why>(answer).expect("an answer"))
}

#[test]
fn status_is_printed_as_lines() {
    let worker = json!({
        "worker": 0, "records": 12, "bytes": 3500, "bounces": 0, "queued_bytes": 0, "sleeps": 4, "wakeups": 3, "drops": [],
        "faults": [{ "reason": "credit-exceeded", "kind": "fault", "count": 1 }],
    });
    let answer = json!({
        "schema": 1, "daemon": "isthmusd 0.1.0", "protocol": "1.1", "pid": 42, "uid": 1000, "uptime_s": 7500, "epoch": 99,
        "socket": "/run/isthmus/isthmus.sock", "wait": "adaptive", "domains": 3, "domains_max": 1024, "domains_resumable": 1,
        "connections": 4, "endpoints": 5, "channels": 2, "workers": [worker],
        "reasons": [{ "reason": "peer-connection-lost", "kind": "ended", "count": 2 }], "of a later version": true,
    });
    insta::assert_snapshot!(status_text(&read(&answer).expect("an answer")));
}

#[test]
fn rows_of_others_are_counted() {
    for (others, line) in
        [(json!(null), ""), (json!(0), ""), (json!(1), "1 other is not shown"), (json!(7), "7 others are not shown")]
    {
        let last = |text: String| text.lines().last().map(str::to_owned).filter(|line| line.contains("not shown"));
        let reports = [
            domains_text(&read(&json!({ "schema": 1, "domains": [], "hidden": others })).expect("a report")),
            endpoints_text(&read(&json!({ "schema": 1, "endpoints": [], "hidden": others })).expect("a report")),
            channels_text(&json!({ "schema": 1, "pairs": [], "hidden": others })).expect("a report"),
        ];
        for text in reports {
            assert!(last(text).unwrap_or_default().starts_with(line), "{line}");
        }
    }
}

#[test]
fn domains_are_printed_in_columns() {
    let row = |id: u32, name: &str, pid: Option<i32>| {
        json!({
            "id": id, "name": name, "uid": 1000, "pid": pid, "library": "isthmus-client 0.1.0", "protocol": "1.1", "age_s": 90061,
            "endpoints": 1, "channels": 2, "channels_max": 1024, "ready_maps": 1, "worker": 0, "daemon_path_sent": 1,
            "daemon_path_sent_bytes": 64, "daemon_path_received": 0, "daemon_path_received_bytes": 0, "queued_bytes": 0, "bounces": 0, "backlog": 0,
        })
    };
    let mut in_unit = row(3, "web", Some(4242));
    in_unit["cgroup"] = "/system.slice/web.service".into();
    let answer = json!({ "schema": 1, "domains": [in_unit, row(17, "a-rather-long-name", None)] });
    insta::assert_snapshot!(domains_text(&read(&answer).expect("an answer")));
}

#[test]
fn container_is_shown_by_the_part_of_the_cgroup_that_names_it() {
    let id = "0123456789abcdef".repeat(4);
    for (cgroup, shown) in [
        (format!("/system.slice/docker-{id}.scope"), Some("docker-0123456789ab")),
        (format!("/docker/{id}/init"), Some("0123456789ab")),
        (format!("/user.slice/user-5.slice/libpod-{id}.scope/container"), Some("libpod-0123456789ab")),
        (format!("/kubepods.slice/kubepods-pod7.slice/cri-containerd-{id}.scope"), Some("cri-containerd-0123456789ab")),
        ("/lxc.payload.web/system.slice/x.service".to_owned(), Some("lxc.payload.web")),
        ("/system.slice/web.service/worker".to_owned(), Some("web.service")),
        ("/jobs/7".to_owned(), Some("7")),
        ("/".to_owned(), None),
    ] {
        assert_eq!(container(&cgroup).as_deref(), shown, "{cgroup}");
    }
}

#[test]
fn endpoints_are_printed_in_columns() {
    let row = |id: u32, index: u8, label: Option<&str>| json!({ "domain": { "id": id, "name": "web" }, "index": index, "label": label });
    let mut with_number = row(4, 0, None);
    with_number["mx"] = json!({ "board": 1, "endpoint": 31 });
    let answer = json!({ "schema": 1, "endpoints": [row(3, 0, Some("requests")), row(3, 1, None), with_number] });
    insta::assert_snapshot!(endpoints_text(&read(&answer).expect("an answer")));
}

#[test]
fn channel_list_shows_path_and_traffic() {
    let pair = |b: u32, path: &str, reason: Value, channel: Value| json!({ "a": { "id": 3, "name": "web" }, "b": { "id": b, "name": "db" }, "path": path, "reason": reason, "channel": channel });
    let mut offered = channel();
    offered["state"] = "offered".into();
    offered["directions"] = Value::Null;
    let answer = json!({ "schema": 1, "pairs": [
        pair(7, "channel", Value::Null, channel()),
        pair(8, "daemon", explained(isthmus_client::Reason::ChannelPending), offered),
        pair(9, "none", explained(isthmus_client::Reason::TalkForbidden), Value::Null),
    ] });
    assert!(has_channel(&answer));
    insta::assert_snapshot!(channels_text(&answer).expect("an answer"));
    let none: Channels = read(&json!({ "schema": 1, "pairs": [] })).expect("an answer");
    assert!(!has_channel(&json!(none)));
}

#[test]
fn why_shows_the_channel_from_both_ends() {
    let mut answer = why("channel");
    answer["channel"] = channel();
    answer["from_a"]["grants"] = 1.into();
    insta::assert_snapshot!(why_text(&answer));
}

#[test]
fn why_shows_the_reason_and_remedy_of_a_slower_path() {
    let mut answer = why("daemon");
    answer["reason"] = explained(isthmus_client::Reason::ChannelsForbidden);
    answer["large"] = explained(isthmus_client::Reason::ChannelsForbidden);
    answer["from_a"]["may_channel"] = false.into();
    answer["from_a"]["rule"] = 0.into();
    answer["from_b"]["last"] = explained(isthmus_client::Reason::ChannelTimeout);
    answer["from_b"]["backlog"] = 3.into();
    insta::assert_snapshot!(why_text(&answer));
}

#[test]
fn report_of_another_version_is_refused_with_a_hint() {
    let error = read::<Why>(&json!({ "schema": 9 })).expect_err("no answer");
    assert!(error.to_string().contains("--json"), "{error:#}");
}
