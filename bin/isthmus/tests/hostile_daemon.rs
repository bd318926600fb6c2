//! Commands against a daemon that lies: its reports must not lead root to write a file elsewhere, to paste a command, or to change the terminal.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::thread;
use std::time::Duration;

use assert_cmd::Command;
use isthmus_layout::control::{
    BoundedBytes, HelloReply, Magic, Name, QUERY_REPLY_BYTES_MAX, QueryReply, Refused, Text, ToClient, ToDaemon, Topic,
    VersionRange,
};
use isthmus_layout::reason::Reason;
use isthmus_testbed::Scratch;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};
use serde_json::{Value, json};

/// A text that clears a terminal in three ways, turns its direction and begins a line.
const HOSTILE: &str = "\u{1b}[2J\u{9b}2J\u{7f}\u{202e}\r\u{7}web\nPROBLEM";

/// A daemon that sends the reports of the test.
struct HostileDaemon {
    scratch: Scratch,
    socket: PathBuf,
}

impl HostileDaemon {
    fn new(reports: &[(Topic, Value)]) -> Self {
        let scratch = Scratch::new().expect("a folder");
        let socket = scratch.dir("a/b/run").expect("a folder").join("isthmus.sock");
        let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
        rustix::net::bind(&listener, &SocketAddrUnix::new(&socket).expect("short")).expect("bound");
        rustix::net::listen(&listener, 8).expect("it listens");
        let reports = reports.to_vec();
        // The thread ends with the test.
        thread::spawn(move || {
            while let Ok(client) = rustix::net::accept(&listener) {
                serve(&client, &reports);
            }
        });
        Self { scratch, socket }
    }

    fn isthmus(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isthmus"));
        command.args(arguments).arg("--socket").arg(&self.socket).timeout(Duration::from_secs(300));
        command.output().expect("it runs")
    }

    /// Everything that lies in the folder of the test.
    fn content(&self) -> Vec<PathBuf> {
        self.scratch.content().expect("readable")
    }
}

fn serve(client: &OwnedFd, reports: &[(Topic, Value)]) {
    let mut packet = [0; 65536];
    while let Ok((length @ 1.., _)) = rustix::net::recv(client, &mut packet[..], RecvFlags::empty()) {
        let (serial, request) = ToDaemon::parse(&packet[..length], 0).expect("a request");
        let replies = match request {
            ToDaemon::Hello(_) => {
                let version = VersionRange::CURRENT.version();
                let (major, minor) = (version.major, version.minor);
                vec![HelloReply { magic: Magic, major, minor, daemon: Name::new("liar").expect("a name") }.into()]
            }
            ToDaemon::Query(query) => match reports.iter().find(|(topic, _)| *topic == query.topic) {
                Some((_, report)) => replies(report),
                None => vec![Refused { reason: Reason::RequestInvalid, text: Text::clip("no report") }.into()],
            },
            _ => break,
        };
        for reply in replies {
            rustix::net::send(client, &reply.emit(serial), SendFlags::empty()).expect("sent");
        }
    }
    let _ = rustix::net::shutdown(client, rustix::net::Shutdown::Both);
}

fn replies(report: &Value) -> Vec<ToClient> {
    let json = report.to_string();
    let parts: Vec<_> = json.as_bytes().chunks(QUERY_REPLY_BYTES_MAX).collect();
    let reply = |(at, part): (usize, &&[u8])| {
        QueryReply { last: at + 1 == parts.len(), json: BoundedBytes::new(part.to_vec()).expect("a part") }.into()
    };
    parts.iter().enumerate().map(reply).collect()
}

/// Checks that a terminal shows the text and obeys nothing in it.
#[track_caller]
fn assert_harmless(text: &[u8]) -> String {
    let text = String::from_utf8(text.to_vec()).expect("UTF-8");
    let bad = text.chars().find(|sign| (sign.is_control() && *sign != '\n') || *sign == '\u{202e}');
    assert_eq!(bad, None, "{text:?}");
    text
}

fn domains() -> Value {
    let mut row = json!({ "id": 1, "name": HOSTILE, "uid": 0, "pid": 1, "guest": HOSTILE, "cgroup": HOSTILE, "library": HOSTILE, "protocol": HOSTILE });
    for count in [
        "age_s",
        "endpoints",
        "channels",
        "channels_max",
        "ready_maps",
        "worker",
        "daemon_path_sent",
        "daemon_path_sent_bytes",
        "daemon_path_received",
        "daemon_path_received_bytes",
        "queued_bytes",
        "bounces",
        "backlog",
    ] {
        row[count] = 0.into();
    }
    json!({ "schema": 1, "domains": [row] })
}

/// The report of a daemon with one guest.
fn status(guest: &Value) -> Value {
    let mut status = json!({ "schema": 1, "daemon": HOSTILE, "protocol": HOSTILE, "socket": "/etc/isthmus.sock", "wait": HOSTILE, "workers": [], "guests": [guest], "reasons": [] });
    for count in [
        "pid",
        "uid",
        "uptime_s",
        "epoch",
        "domains",
        "domains_max",
        "domains_resumable",
        "connections",
        "endpoints",
        "channels",
    ] {
        status[count] = 0.into();
    }
    status
}

fn guest(socket: &str, monitor: Option<&str>) -> Value {
    json!({
        "name": "web", "uid": 0, "platform": "kvm", "socket": socket, "window_bytes": 1 << 26, "used_bytes": null, "vectors": 16,
        "daemon": false, "state": HOSTILE, "last_seen_s": null, "keeps_device": null, "last_error": HOSTILE, "domains": 0,
        "monitor": monitor, "pair_window_bytes": null,
    })
}

fn verbs(device: &str, interface: &str) -> Value {
    let gid = json!({ "index": 0, "gid": "fe80:0000:0000:0000:0000:0000:0000:0001", "interface": interface, "kind": "RoCE v2" });
    json!({ "schema": 1, "enabled": true, "device": device, "node_guid": "0211:2233:4455:6677", "gids": [gid], "domains": [] })
}

#[test]
fn nothing_is_written_for_a_device_that_is_a_path() {
    for (device, interface, field) in [("../../x", "eth0", "device"), ("isthmus0", "../../x", "gids[0].interface")] {
        let daemon = HostileDaemon::new(&[
            (Topic::Verbs, verbs(device, interface)),
            (Topic::Status, status(&guest("/x", None))),
        ]);
        let before = daemon.content();
        let output = daemon.isthmus(&["verbs", "enable"]);
        let said = assert_harmless(&output.stderr);
        assert!(!output.status.success() && said.contains(field) && said.contains("nothing was written"), "{said}");
        assert_eq!(daemon.content(), before);
    }
    // An honest device is written beside the socket by which the daemon was reached, and not beside the one that it reports.
    let daemon =
        HostileDaemon::new(&[(Topic::Verbs, verbs("isthmus0", "eth0")), (Topic::Status, status(&guest("/x", None)))]);
    let output = daemon.isthmus(&["verbs", "enable"]);
    assert!(output.status.success(), "{output:?}");
    assert!(daemon.socket.with_file_name("verbs/sys/class/infiniband/isthmus0/ports/1/gids/0").is_file());
    assert!(!Path::new("/etc/verbs").exists());
}

#[test]
fn reports_do_not_control_the_terminal() {
    let reports = [
        (Topic::Domains, domains()),
        (Topic::Status, status(&guest(HOSTILE, None))),
        (Topic::Verbs, verbs(HOSTILE, HOSTILE)),
    ];
    let daemon = HostileDaemon::new(&reports);
    for (words, lines) in
        [(&["domain", "list"][..], 2), (&["guest", "list"], 3), (&["status"], 8), (&["verbs", "list"], 4)]
    {
        let output = daemon.isthmus(words);
        let text = assert_harmless(&output.stdout);
        assert!(
            output.status.success() && text.contains("\\u001b[2J\\u009b2J\\u007f\\u202e\\u000d\\u0007web"),
            "{text:?}"
        );
        // A table has a line for each row, whatever the cells contain.
        assert!(words[0] != "domain" || text.lines().count() == lines, "{text}");
        let output = daemon.isthmus(&[words, &["--json"]].concat());
        let text = assert_harmless(&output.stdout);
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert!(value.to_string().contains(&json!(HOSTILE).to_string()), "programs get the text as it is: {value}");
    }
    for words in [&["verbs", "enable"][..], &["doctor"], &["channel", "list"], &["why", "a", "b"]] {
        let output = daemon.isthmus(words);
        assert_harmless(&output.stdout);
        assert_harmless(&output.stderr);
    }
}

#[test]
fn device_of_a_guest_is_no_command_for_a_shell() {
    let printed = |guest: Value, words: &[&str]| {
        let daemon = HostileDaemon::new(&[(Topic::Status, status(&guest))]);
        daemon.isthmus(&[&["guest", "xml", "web"], words].concat())
    };
    let good = printed(guest("/run/a b/$(x).sock", None), &["--qemu"]);
    let text = assert_harmless(&good.stdout);
    assert!(text.contains("-chardev 'socket,id=isthmus,path=/run/a b/$(x).sock' -device"), "{text}");
    for path in ["run/x.sock", "", "/run/../etc/x", "/run/x\n<y/>", "/run/\u{1b}[2J", "unix:/x"] {
        for guest in [guest(path, None), guest("/run/x.sock", Some(path))] {
            for words in [&["--qemu"][..], &[]] {
                let output = printed(guest.clone(), words);
                let said = assert_harmless(&output.stderr);
                assert!(
                    !output.status.success() && output.stdout.is_empty() && said.contains("is no path of a socket"),
                    "{output:?}"
                );
            }
        }
    }
}

#[test]
fn networks_for_the_configuration_contain_nothing_else() {
    let shown = |toml: &str| {
        let table = json!({ "schema": 1, "toml": toml, "changes": 0 });
        HostileDaemon::new(&[(Topic::Overlay, table)]).isthmus(&["overlay", "show"])
    };
    let network = "[[overlay.network]]\nname = \"lan\"\n";
    let output = shown(network);
    assert!(output.status.success() && output.stdout == network.as_bytes(), "{output:?}");
    for other in [
        "[policy]\nattach = \"any\"\n",
        "[overlay]\nx = 1\n",
        "\u{1b}[2J",
        "# only a note\n[daemon]\nsocket = \"/x\"\n",
    ] {
        for toml in [other.to_owned(), format!("{network}{other}")] {
            let output = shown(&toml);
            assert!(!output.status.success() && output.stdout.is_empty(), "{toml}: {output:?}");
        }
    }
}
