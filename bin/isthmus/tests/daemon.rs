//! Commands that query a daemon, against a real one with real domains.

use std::path::Path;
use std::time::Duration;

use assert_cmd::Command;
use isthmus_client::{Domain, EndpointAddress, Options, PathKind};
use isthmus_layout::control::Name;
use isthmus_testbed::{DaemonProcess, Deadline, Scratch};
use serde_json::Value;

const CONFIG: &str = "daemon.socket = \"{socket}\"\ndaemon.runtime_dir = \"{state}\"\n";

fn deadline() -> Deadline {
    Deadline::secs(30)
}

fn start(scratch: &Scratch, config: &str) -> DaemonProcess {
    DaemonProcess::on(scratch).config(&format!("{CONFIG}{config}")).arg("--user").start(deadline()).expect("a daemon")
}

fn attach(daemon: &DaemonProcess, name: &str) -> Domain {
    let options =
        Options { name: Name::new(name).ok(), socket: Some(daemon.socket()), no_autostart: true, ..Options::default() };
    Domain::attach_with(&options).expect("attached")
}

/// Two domains with a channel between them, if there is to be one.
fn exchange(daemon: &DaemonProcess, by_channel: bool) -> (Domain, Domain) {
    let (mut web, mut db) = (attach(daemon, "web"), attach(daemon, "db"));
    let (from, at) = (web.open(None, "requests").expect("open"), db.open(None, "").expect("open"));
    let to = EndpointAddress { domain: db.id(), endpoint: at };
    let deadline = deadline();
    loop {
        assert!(!deadline.has_passed(), "no message or no channel: {:?}", web.channels());
        db.receive(at, vec![0; 8].into()).expect("posted");
        web.send(from, to, 1, vec![1; 8].into()).expect("posted");
        let mut ends = 0;
        while ends < 2 {
            ends += usize::from(web.poll().is_some()) + usize::from(db.poll().is_some());
        }
        let paths: Vec<PathKind> = web.channels().iter().map(|status| status.path).collect();
        let settled = match paths[..] {
            [PathKind::Channel(_)] => true,
            [PathKind::Daemon(reason)] => !["channel-pending", "channel-not-requested"].contains(&reason.name()),
            _ => false,
        };
        if settled {
            assert_eq!(matches!(paths[..], [PathKind::Channel(_)]), by_channel, "{paths:?}");
            return (web, db);
        }
    }
}

fn isthmus(daemon: &DaemonProcess, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isthmus"));
    command.args(arguments).arg("--socket").arg(daemon.socket()).timeout(Duration::from_secs(60));
    command
}

fn object(daemon: &DaemonProcess, arguments: &[&str], kind: &str) -> Value {
    let output = isthmus(daemon, arguments).arg("--json").assert().success().get_output().stdout.clone();
    let value: Value = serde_json::from_slice(&output).expect("one JSON object");
    assert_eq!((&value["schema"], &value["kind"]), (&1.into(), &kind.into()));
    value
}

fn text(daemon: &DaemonProcess, arguments: &[&str]) -> String {
    let output = isthmus(daemon, arguments).assert().success().get_output().stdout.clone();
    String::from_utf8(output).expect("UTF-8")
}

#[test]
fn lists_domains_channels_and_endpoints() {
    let scratch = Scratch::new().expect("a folder");
    // As many as any machine has descriptors for.
    let daemon = start(&scratch, "[limits]\ndomains_max = 100\n");
    let (web, db) = exchange(&daemon, true);
    let status = object(&daemon, &["status"], "status");
    assert_eq!((&status["domains"], &status["channels"], &status["endpoints"]), (&2.into(), &1.into(), &2.into()));
    let domains = object(&daemon, &["domain", "list"], "domains");
    let names: Vec<&Value> = domains["domains"].as_array().expect("a list").iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["web", "db"]);
    let endpoints = object(&daemon, &["endpoint", "list"], "endpoints");
    assert_eq!(endpoints["endpoints"][0]["label"], "requests");
    let boards = object(&daemon, &["board", "list"], "mx");
    assert_eq!(
        (&boards["boards"][0]["endpoints_max"], &boards["boards"][0]["nic"]),
        (&32.into(), &boards["peers"][0]["nic"])
    );
    assert!(text(&daemon, &["peer", "list"]).contains(boards["boards"][0]["mac"].as_str().expect("a string")));
    let channels = object(&daemon, &["channel", "list"], "channels");
    let pair = &channels["pairs"][0];
    assert_eq!(
        (&pair["path"], &pair["a"]["name"], &pair["b"]["name"]),
        (&"channel".into(), &"web".into(), &"db".into())
    );
    assert!(text(&daemon, &["status"]).contains("domains       2 of 100\n"));
    assert!(text(&daemon, &["domain", "list"]).contains(&format!("{}      web", web.id())));
    assert!(text(&daemon, &["endpoint", "list"]).contains("requests"));
    assert!(text(&daemon, &["channel", "list"]).lines().any(|line| line.contains("web") && line.contains("channel")));
    drop((web, db));
}

#[test]
fn writes_the_files_of_the_rdma_device() {
    let scratch = Scratch::new().expect("a folder");
    let daemon = start(&scratch, "");
    let device = object(&daemon, &["verbs", "list"], "verbs");
    assert_eq!((&device["device"], &device["gids"][0]["interface"]), (&"isthmus0".into(), &Value::Null));
    assert!(text(&daemon, &["verbs", "list"]).starts_with("isthmus0, node GUID "));
    let enabled = object(&daemon, &["verbs", "enable"], "verbs enable");
    assert_eq!(enabled["changed"], true);
    let sysfs = daemon.socket().parent().expect("it lies in a folder").join("verbs/sys");
    assert_eq!(enabled["sysfs"].as_str(), sysfs.to_str());
    let gid = std::fs::read_to_string(sysfs.join("class/infiniband/isthmus0/ports/1/gids/0")).expect("written");
    assert_eq!(Some(gid.trim_end()), device["gids"][0]["gid"].as_str());
    assert!(text(&daemon, &["verbs", "enable"]).starts_with("unchanged: "));
    let folder = daemon.socket().with_file_name("elsewhere");
    let elsewhere = folder.to_str().expect("UTF-8");
    assert!(text(&daemon, &["verbs", "enable", "--dir", elsewhere]).starts_with("written: "));
    let sys = |file: &str| std::fs::read_to_string(folder.join("sys/class").join(file)).expect("written");
    assert_eq!([sys("infiniband_verbs/uverbs0/dev"), sys("misc/rdma_cm/dev")], ["1:3\n", "1:7\n"]);
    assert_eq!(sys("misc/rdma_cm/abi_version"), "4\n");
    if !Path::new("/dev/infiniband").exists() {
        let remedy = enabled["missing"][0]["remedy"].as_str().expect("a text");
        for link in ["/dev/null /dev/infiniband/uverbs0", "/dev/full /dev/infiniband/rdma_cm"] {
            assert!(
                remedy.contains(&format!("ln -s {link}")) && remedy.contains(&format!("--symlink {link}")),
                "{remedy}"
            );
        }
    }
    drop(daemon);
    let scratch = Scratch::new().expect("a folder");
    let daemon = start(&scratch, "verbs.enabled = false\n");
    let refused = isthmus(&daemon, &["verbs", "enable"]).assert().failure().get_output().stderr.clone();
    assert!(String::from_utf8_lossy(&refused).contains("verbs.enabled = true"), "{refused:?}");
}

#[test]
fn why_accepts_names_and_numbers() {
    let scratch = Scratch::new().expect("a folder");
    let daemon = start(&scratch, "");
    let (web, db) = exchange(&daemon, true);
    let by_name = object(&daemon, &["why", "web", "db"], "why");
    let by_number = object(&daemon, &["why", &web.id().to_string(), &db.id().to_string()], "why");
    assert_eq!((&by_name["path"], &by_name["reason"]), (&"channel".into(), &Value::Null));
    assert_eq!(by_name["channel"]["id"], by_number["channel"]["id"]);
    assert!(text(&daemon, &["why", "web", "db"]).contains("by a channel (direct path)"));
    let stderr = isthmus(&daemon, &["why", "web", "absent"]).assert().code(1).get_output().stderr.clone();
    assert!(String::from_utf8_lossy(&stderr).contains("[no-such-domain]"));
}

#[test]
fn why_shows_the_policy_that_forbids_a_path() {
    let scratch = Scratch::new().expect("a folder");
    let daemon = start(&scratch, "policy.channels = false\n");
    let (_web, _db) = exchange(&daemon, false);
    let why = object(&daemon, &["why", "web", "db"], "why");
    assert_eq!((&why["path"], &why["reason"]["reason"]), (&"daemon".into(), &"channels-forbidden".into()));
    assert!([&why["from_a"], &why["from_b"]].iter().all(|side| side["may_channel"] == false), "{why}");
    let said = text(&daemon, &["why", "db", "web"]);
    assert!(said.contains("remedy: Set `policy.channels`") && said.matches("\nfrom ").count() == 2, "{said}");
}

#[test]
fn the_configuration_in_force_is_shown_with_its_origin() {
    let scratch = Scratch::new().expect("a folder");
    let daemon = start(&scratch, "wait.spin_us = 7\n");
    let said = text(&daemon, &["config", "show", "--origin"]);
    let line = said.lines().find(|line| line.starts_with("wait.spin_us = 7 ")).expect("the key");
    assert!(line.contains("isthmusd.toml:3"), "{line}");
    let shown = object(&daemon, &["config", "show"], "config");
    let entries = shown["entries"].as_array().expect("a list");
    assert!(entries.iter().any(|entry| entry["key"] == "wait.spin_us" && entry["value"] == 7), "{shown}");
}

#[test]
fn doctor_exchanges_messages_and_leaves_nothing() {
    let scratch = Scratch::new().expect("a folder");
    let daemon = start(&scratch, "");
    let report = object(&daemon, &["doctor"], "doctor");
    let findings = report["findings"].as_array().expect("a list");
    for id in [
        "daemon.reachable",
        "daemon.socket-directory",
        "domain.attach",
        "domain.loopback",
        "domain.message",
        "domain.channel",
        "sockets.enabled",
    ] {
        let finding = findings.iter().find(|finding| finding["id"] == id).unwrap_or(&Value::Null);
        assert_eq!(finding["severity"], "ok", "{id} in {report}");
    }
    let document = include_str!("../../../docs/operate/cli.md");
    let ids: Vec<&str> = findings.iter().filter_map(|finding| finding["id"].as_str()).collect();
    assert!(
        ids.iter().all(|id| document.contains(&format!("`{id}`"))) && ids.contains(&"domain.large-messages"),
        "{ids:?}"
    );
    assert_eq!(object(&daemon, &["status"], "status")["domains"], 0);
}

#[test]
fn the_doctor_names_the_setting_that_switches_sockets_off() {
    let scratch = Scratch::new().expect("a folder");
    let daemon = start(&scratch, "sockets.enabled = false\n");
    let report = object(&daemon, &["doctor"], "doctor");
    let findings = report["findings"].as_array().expect("a list");
    let enabled = findings.iter().find(|finding| finding["id"] == "sockets.enabled").expect("the finding");
    assert_eq!(enabled["severity"], "warning");
    assert!(enabled["remedy"].as_str().is_some_and(|remedy| remedy.contains("sockets.enabled = true")), "{enabled}");
}

#[test]
fn the_doctor_names_a_policy_that_keeps_domains_from_their_channel() {
    let scratch = Scratch::new().expect("a folder");
    let daemon = start(&scratch, "policy.channels = false\n");
    let report = object(&daemon, &["doctor"], "doctor");
    let findings = report["findings"].as_array().expect("a list");
    let channel = findings.iter().find(|finding| finding["id"] == "domain.channel").expect("the finding");
    assert_eq!((&channel["severity"], &channel["reason"]), (&"warning".into(), &"channels-forbidden".into()));
}
