//! Starts of the daemon: by hand, asked for its configuration, and by a service manager.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use isthmus_client::{Domain, Options};
use isthmus_layout::control::Name;
use isthmus_platform::seqpacket;
use isthmus_suites::TIMEOUT_S;
use isthmus_testbed::{DaemonProcess, Deadline, Launch, NotifySocket, Scratch, Signal, binary, eventually};

fn program() -> PathBuf {
    binary("isthmusd", "isthmusd").unwrap()
}

/// The daemon, with none of the variables that the caller of these tests may have set for it.
fn isthmusd(arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    let ours = std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_string_lossy().starts_with("ISTHMUS_"));
    for name in ours {
        command.env_remove(name);
    }
    command.args(arguments).env("HOME", "/nonexistent").env("XDG_RUNTIME_DIR", "/nonexistent");
    command
}

/// Returns the output of a command that must succeed.
#[track_caller]
fn printed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn check_prints_the_configuration_and_starts_nothing() {
    let scratch = Scratch::new().unwrap();
    let socket = scratch.join("isthmus.sock");
    let file = scratch.write("isthmus.toml", format!("[daemon]\nsocket = {socket:?}\n\n[wait]\nspin_us = 7\n"));
    let file = file.unwrap();
    let arguments = ["--check", "--config", text(&file), "--set", "policy.talk=all", "--idle-exit", "3"];
    let shown = printed(isthmusd(&arguments).env("ISTHMUS_DAEMON_WORKERS", "2"));
    let table: toml::Table = shown.parse().unwrap();
    let value = |table_of: &str, key: &str| table[table_of][key].to_string();
    assert_eq!(value("wait", "spin_us"), "7", "of the file");
    assert_eq!(value("daemon", "workers"), "2", "of the environment");
    assert_eq!((value("policy", "talk"), value("daemon", "idle_exit_s")), ("\"all\"".into(), "3".into()));
    assert_eq!(value("limits", "endpoints_per_domain_max"), "32", "a default");
    assert!(!socket.exists());
    // What it prints is a configuration.
    let again = scratch.write("again.toml", &shown).unwrap();
    let arguments = ["--check", "--config", text(&again)];
    assert_eq!(printed(&mut isthmusd(&arguments)).parse::<toml::Table>().unwrap(), table);
}

#[test]
fn config_errors_name_the_line_and_a_suggestion() {
    let scratch = Scratch::new().unwrap();
    for (wrong, line, meant) in [
        ("[wait]\nspin_us = 7\n\n[polcy]\ntalk = \"all\"\n", ":4", "policy"),
        ("[policy]\ntolk = \"all\"\n", ":2", "talk"),
        ("[policy]\ntalk = \"everybody\"\n", ":2", "same-user"),
    ] {
        let file = scratch.write("wrong.toml", wrong).unwrap();
        for check in [&["--check"][..], &[]] {
            let output = isthmusd(&["--config", text(&file)]).args(check).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains(&format!("wrong.toml{line}")) && said.contains(meant), "{said}");
            assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{said}");
        }
    }
}

fn file_of(unit: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd").join(unit)
}

/// The assignments of a unit, of all its sections.
fn unit(name: &str) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(file_of(name)).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with(['#', '[']));
    lines.filter_map(|line| line.split_once('=')).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

const UNITS: [&str; 3] = ["isthmusd.service", "user/isthmusd.service", "isthmusd-guest.service"];

#[test]
fn units_start_the_daemon_with_options_that_it_has() {
    for (name, expected) in UNITS.into_iter().zip([&[][..], &["--user"], &["--guest"]]) {
        let unit = unit(name);
        let mut words = unit["ExecStart"].split(' ');
        assert_eq!(words.next(), Some("@bindir@/isthmusd"), "{name}");
        let arguments: Vec<&str> = words.collect();
        assert_eq!(arguments, expected, "{name}");
        assert_eq!((unit["Type"].as_str(), unit["Restart"].as_str()), ("notify", "always"), "{name}");
        assert_eq!(unit["WatchdogSec"], "30s", "{name}: a daemon that hangs is started again");
        assert!(!printed(isthmusd(&arguments).arg("--check")).is_empty(), "{name}");
    }
}

#[test]
fn programs_of_all_users_reach_the_folder_of_the_daemon() {
    for name in UNITS {
        let unit = unit(name);
        let is_private = unit.get("DynamicUser").is_some_and(|dynamic| dynamic == "yes")
            && unit.get("RuntimeDirectoryPreserve").is_some_and(|preserved| preserved != "no");
        assert!(!is_private, "{name}: systemd would make the folder in /run/private");
    }
}

/// The last line of the filter decides, and `@privileged` has the calls.
#[test]
fn units_let_the_daemon_give_up_its_capabilities_and_read_records() {
    for (name, calls) in [("isthmusd.service", "capset bpf"), ("isthmusd-guest.service", "capset")] {
        assert_eq!(unit(name)["SystemCallFilter"], calls, "{name}");
    }
}

/// A container has the folder mounted: after a stop and a start it needs the same one.
#[test]
fn folder_of_the_socket_outlives_a_stop() {
    for name in ["isthmusd.service", "isthmusd-guest.service"] {
        assert_eq!(unit(name)["RuntimeDirectoryPreserve"], "yes", "{name}");
    }
}

#[test]
fn systemd_verifies_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return println!("skipped: systemd-analyze is not installed");
    }
    for name in UNITS {
        let scratch = Scratch::new().unwrap();
        let program = program();
        let unit = std::fs::read_to_string(file_of(name)).unwrap().replace("@bindir@", text(program.parent().unwrap()));
        let unit = scratch.write(Path::new(name).file_name().unwrap(), unit).unwrap();
        let manager = if name.starts_with("user/") { "--user" } else { "--system" };
        let mut verify = Command::new("systemd-analyze");
        verify.args([manager, "--man=no", "verify"]).arg(&unit).env("XDG_RUNTIME_DIR", scratch.path());
        let said = String::from_utf8(verify.output().unwrap().stderr).unwrap();
        // About this file; other units of this machine may have faults of their own.
        let wrong: Vec<&str> = said.lines().filter(|line| line.contains("isthmusd")).collect();
        assert!(wrong.is_empty(), "{name}: {said}");
    }
}

/// As a service manager does it: the socket is there before the daemon is, and stays when it goes.
#[test]
fn inherited_socket_is_served_and_not_removed() {
    let scratch = Scratch::new().unwrap();
    let path = scratch.join("isthmus.sock");
    let listener = seqpacket::listen(&path, 16).unwrap();
    let mut notify = NotifySocket::listen(scratch.join("notify")).unwrap();
    let name = Name::new("served").ok();
    let options = Options { name, socket: Some(path.clone()), no_autostart: true, ..Options::default() };
    for _ in 0..2 {
        let inherited = rustix::io::fcntl_dupfd_cloexec(&listener, 3).unwrap();
        let config = format!("[daemon]\nsocket = {path:?}\nruntime_dir = {:?}\n", scratch.path());
        let config = scratch.write("isthmus.toml", config).unwrap();
        // It is for the process of this number and for no other.
        let launch = Launch::new("/bin/sh").args(["-c", "export LISTEN_PID=$$; exec \"$@\"", "sh"]);
        let launch = launch.arg(program()).arg("--config").arg(config);
        let launch = launch.env("LISTEN_FDS", "1").env("NOTIFY_SOCKET", notify.path()).fd(3, inherited);
        notify.forget().unwrap();
        let mut daemon = launch.spawn().unwrap();
        notify.wait("READY=1", daemon.pidfd(), Deadline::secs(TIMEOUT_S)).unwrap();
        let mut domain = Domain::attach_with(&options).unwrap();
        assert_eq!(domain.lookup("served").ok(), Some(domain.id()));
        drop(domain);
        daemon.signal(Signal::TERM).unwrap();
        assert!(daemon.wait(Deadline::secs(TIMEOUT_S)).unwrap().success());
        assert!(path.exists(), "only the socket's owner removes it");
    }
}

/// Returns the messages of a log with their fields, without time, level and target.
fn messages(log: &str) -> Vec<&str> {
    log.lines().filter_map(|line| line.split_once(" INFO ")?.1.split_once(": ")).map(|(_, message)| message).collect()
}

#[test]
fn start_is_logged_from_the_version_to_ready() {
    let scratch = Scratch::new().unwrap();
    // Other runs of these tests have other addresses of the loopback interface.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let udp = format!("127.{}.{middle}.{}:21000", 64 | high, low.clamp(1, 254));
    let config = format!(
        "daemon.socket = \"{{socket}}\"\ndaemon.runtime_dir = \"{{state}}\"\n\
         [[mx.board]]\nmac = \"02:00:00:00:00:01\"\nname = \"one:0\"\nlinks = [{{ udp = \"{udp}\", peers = [\"127.0.0.1:9\"] }}]\n\
         [[kvm.guest]]\nname = \"web\"\nuser = {}\nwindow_mib = 32\nvectors = 4\n",
        rustix::process::geteuid().as_raw()
    );
    let plan = DaemonProcess::on(&scratch).arg("--user").config(&config);
    let mut daemon = plan.start(Deadline::secs(TIMEOUT_S)).unwrap();
    let (socket, run) = (daemon.socket(), daemon.run_dir());
    let expected = |resumable: u32| {
        [
            format!(
                "starting version={} config={} socket={}",
                env!("CARGO_PKG_VERSION"),
                scratch.join("isthmusd.toml").display(),
                socket.display()
            ),
            "MX board board=0 nic=02:00:00:00:00:01 name=one:0".to_owned(),
            format!("MX link board=0 link=udp:{udp} kind=udp state=up"),
            format!("guest guest=web platform=\"kvm\" device={}", run.join("guest-web.sock").display()),
            format!("resumable domains count={resumable}"),
            "ready".to_owned(),
        ]
    };
    // The daemon writes its log on a thread of its own, so "ready" may come after the notification.
    let log_of_start = |daemon: &mut DaemonProcess| {
        eventually(Deadline::secs(TIMEOUT_S), || messages(&daemon.proc().stderr()).contains(&"ready")).unwrap();
        daemon.proc().stderr()
    };
    assert_eq!(messages(&log_of_start(&mut daemon)), expected(0));
    let options = Options { socket: Some(socket.clone()), no_autostart: true, ..Options::default() };
    let domain = Domain::attach_with(&options).unwrap();
    daemon.kill_and_restart(Deadline::secs(TIMEOUT_S)).unwrap();
    assert_eq!(messages(&log_of_start(&mut daemon))[..6], expected(1));
    drop(domain);
}

#[test]
fn second_daemon_with_one_runtime_folder_warns() {
    let folder = Scratch::new().unwrap();
    let config = format!("daemon.socket = \"{{socket}}\"\ndaemon.runtime_dir = {:?}\n", folder.path());
    let warned = |daemon: &mut DaemonProcess| daemon.proc().stderr().contains("another daemon has this runtime folder");
    let scratches = [Scratch::new().unwrap(), Scratch::new().unwrap()];
    let start =
        |scratch| DaemonProcess::on(scratch).arg("--user").config(&config).start(Deadline::secs(TIMEOUT_S)).unwrap();
    let mut first = start(&scratches[0]);
    let is_locked = || {
        let opened = std::fs::File::open(folder.path()).unwrap();
        rustix::fs::flock(&opened, rustix::fs::FlockOperation::NonBlockingLockShared).is_err()
    };
    eventually(Deadline::secs(TIMEOUT_S), is_locked).unwrap();
    let mut second = start(&scratches[1]);
    eventually(Deadline::secs(TIMEOUT_S), || warned(&mut second)).unwrap();
    assert!(!warned(&mut first));
    second.stop(Deadline::secs(TIMEOUT_S)).unwrap();
    first.stop(Deadline::secs(TIMEOUT_S)).unwrap();
    assert!(!is_locked(), "the lock goes with its daemon");
}

#[test]
fn reload_applies_what_it_can_and_names_what_needs_a_restart() {
    let scratch = Scratch::new().unwrap();
    let metrics = [scratch.join("one.sock"), scratch.join("two.sock")];
    let config = |rest: &str, metrics: &Path| {
        format!(
            "daemon.socket = \"{{socket}}\"\ndaemon.runtime_dir = \"{{state}}\"\nmetrics.listen = {metrics:?}\n{rest}"
        )
    };
    let plan = DaemonProcess::on(&scratch).arg("--user").config(&config("daemon.log = \"error\"\n", &metrics[0]));
    let mut daemon = plan.start(Deadline::secs(TIMEOUT_S)).unwrap();
    assert!(metrics[0].exists());
    let rest = "daemon.log = \"warn\"\nwait.mode = \"sleep\"\nlimits.slab_kib = 64\npolicy.talk = \"all\"\npolicy.attach = \"any-user\"\n";
    daemon.reload(&config(rest, &metrics[1])).unwrap();
    // A warning is logged only because the level of the log has changed.
    let text = "needs a restart: wait.mode, limits.slab_kib, policy.attach\n";
    eventually(Deadline::secs(TIMEOUT_S), || daemon.proc().stderr().contains(text)).unwrap();
    eventually(Deadline::secs(TIMEOUT_S), || !metrics[0].exists()).unwrap();
    assert!(metrics[1].exists());
    let options = Options { socket: Some(daemon.socket()), no_autostart: true, ..Options::default() };
    let mut domain = Domain::attach_with(&options).unwrap();
    let report: serde_json::Value =
        serde_json::from_str(&domain.query(isthmus_client::Topic::Config, &[]).unwrap()).unwrap();
    let entry = |key: &str| report["entries"].as_array().unwrap().iter().find(|entry| entry["key"] == key).unwrap();
    let shown = |key: &str| (entry(key)["value"].clone(), entry(key)["after_restart"]["value"].clone());
    assert_eq!(shown("wait.mode"), ("adaptive".into(), "sleep".into()));
    assert_eq!(shown("limits.slab_kib"), (256.into(), 64.into()));
    assert_eq!(shown("policy.talk"), ("all".into(), serde_json::Value::Null));
    assert_eq!(shown("policy.attach"), ("same-user".into(), "any-user".into()), "the socket keeps its mode");
}

#[test]
fn start_error_names_the_key_and_the_address_once_with_a_remedy() {
    let scratch = Scratch::new().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = listener.local_addr().unwrap();
    let socket = scratch.join("isthmus.sock");
    let _other = seqpacket::listen(&socket, 1).unwrap();
    let free = scratch.join("free.sock");
    let interface = "[[mx.board]]\nmac = \"02:00:00:00:00:01\"\nlinks = [{ interface = \"nosuch0\" }]\n";
    for (socket, config, key, address, remedy) in [
        (&socket, String::new(), "daemon.socket", text(&socket), "\n  remedy: Stop the other one first"),
        (
            &free,
            format!("[metrics]\nlisten = \"{busy}\"\n"),
            "metrics.listen",
            &busy.to_string(),
            "\n  remedy: Stop the other program",
        ),
        (&free, interface.to_owned(), "mx.board[0].links[0]", "nosuch0", "`ip link` lists them"),
    ] {
        let config = format!("[daemon]\nsocket = {socket:?}\nruntime_dir = {:?}\n{config}", scratch.path());
        let file = scratch.write("start.toml", config).unwrap();
        let output = isthmusd(&["--user", "--config", text(&file)]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let (_, error) = stderr.split_once("\nisthmusd: ").unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(error.starts_with(&format!("{key}: ")) && error.contains(remedy), "{error}");
        let line = error.lines().next().unwrap();
        assert_eq!((line.matches(key).count(), line.matches(address).count()), (1, 1), "{error}");
    }
    drop(listener);
}
