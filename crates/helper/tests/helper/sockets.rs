//! The ways to a helper: a socket of a service manager, a socket of its own, a child of the daemon.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};

use isthmus_helper::server::CONNECTIONS_MAX;
use isthmus_helper::{HelperClient, HelperError, HelperStarter, Mtu, Permissions, RefusalReason};
use isthmus_platform::seqpacket;
use rustix::process::{Pid, Signal};

use crate::{PROGRAM, Running, TwoHosts, bed, link, open, open_in, reason, tap};

/// Starts a helper as a service manager does, with a listening socket.
pub(crate) fn activated(bed: &TwoHosts, path: &Path, options: &[&str]) -> Running {
    let listener = seqpacket::listen(path, 16).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"", PROGRAM]);
    command.args(options);
    Running(
        bed.a
            .spawn({
                command.stdin(listener).stderr(Stdio::null());
                command
            })
            .unwrap(),
    )
}

#[test]
fn connections_have_interfaces_of_their_own() {
    let Some(bed) = bed() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("helper.sock");
    let _helper = activated(&bed, &path, &[]);
    let (mut first, mut second) = (HelperClient::connect(&path).unwrap(), HelperClient::connect(&path).unwrap());
    let opened = open(&mut first, "tap0");
    let (interface, mtu) = (opened.info.interface, Mtu::new(2000).unwrap());
    assert_eq!(reason(second.set_mtu(interface, mtu)), RefusalReason::NoSuchInterface);
    assert_eq!(reason(second.set_up(interface, false)), RefusalReason::NoSuchInterface);
    assert_eq!(reason(second.add_address(interface, "10.9.0.1/24".parse().unwrap())), RefusalReason::NoSuchInterface);
    assert_eq!(reason(second.del_address(interface, "10.9.0.1/24".parse().unwrap())), RefusalReason::NoSuchInterface);
    assert_eq!(reason(second.release(interface)), RefusalReason::NoSuchInterface);
    // The number means the second connection's own interface once it has one.
    let other = open(&mut second, "tap1");
    assert_eq!(other.info.interface, interface);
    second.set_mtu(interface, mtu).unwrap();
    assert!(link(&bed.a, "tap0").contains("mtu 1500") && link(&bed.a, "tap1").contains("mtu 2000"));
    drop(first);
    second.set_up(interface, false).unwrap();
}

#[test]
fn connections_beyond_the_limit_are_closed_and_places_come_back() {
    let Some(bed) = bed() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("helper.sock");
    let _helper = activated(&bed, &path, &[]);
    let mut clients: Vec<_> = (0..CONNECTIONS_MAX).map(|_| HelperClient::connect(&path).unwrap()).collect();
    assert!(matches!(HelperClient::connect(&path), Err(HelperError::Closed)));
    clients[0].hello().unwrap();
    clients.pop();
    // The helper gives the place back when it has seen the end of that connection.
    let next = loop {
        match HelperClient::connect(&path) {
            Err(HelperError::Closed) => {}
            next => break next,
        }
    };
    next.unwrap().hello().unwrap();
}

#[test]
fn socket_of_a_helper_belongs_to_one_user() {
    let Some(bed) = bed() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("helper.sock");
    for _ in 0..2 {
        // The second one replaces what the first has left.
        let mut command = Command::new(PROGRAM);
        command.arg("--socket").arg(&path).args(["--user", "0"]).stderr(Stdio::piped());
        let mut helper = Running(bed.a.spawn(command).unwrap());
        let mut log = BufReader::new(helper.0.stderr.take().unwrap()).lines();
        assert!(log.any(|line| line.unwrap().contains("listening")), "the helper says when it listens");
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.permissions().mode() & 0o777, found.uid()), (0o600, 0));
        open(&mut HelperClient::connect(&path).unwrap(), "tap0");
        let mut second = Command::new(PROGRAM);
        second.arg("--socket").arg(&path).stderr(Stdio::null());
        assert!(!bed.a.output(second).unwrap().status.success(), "a helper that listens keeps its socket");
    }
}

/// With the right to rename files in the folder, a user could have root give another file away.
#[test]
fn socket_of_root_is_in_no_folder_that_another_user_can_write_to() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (own, below) = (folder.path().join("own"), folder.path().join("own/below"));
    fs::create_dir_all(&below).unwrap();
    let refuses = |at: &Path, problem: &str| {
        let mut command = Command::new(PROGRAM);
        let path = at.join("helper.sock");
        command.arg("--socket").arg(&path).args(["--user", "4711"]).stderr(Stdio::piped());
        let mut helper = Running(command.spawn().unwrap());
        let line = BufReader::new(helper.0.stderr.take().unwrap()).lines().next().unwrap().unwrap();
        assert!(line.contains(&format!("{}: {problem}", own.display())), "{line}");
        assert!(line.contains("root alone can write"), "{line}");
        assert!(!helper.0.wait().unwrap().success() && !path.exists());
    };
    std::os::unix::fs::chown(&own, Some(4711), None).unwrap();
    for at in [&own, &below] {
        refuses(at, "the folder belongs to user 4711");
    }
    std::os::unix::fs::chown(&own, Some(0), None).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o1777)).unwrap();
    refuses(&own, "others can write to it (mode 1777)");
    fs::set_permissions(&own, fs::Permissions::from_mode(0o775)).unwrap();
    refuses(&below, "others can write to it (mode 0775)");
}

/// The processes that a process has started.
fn children(process: u32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
    text.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

#[test]
fn starter_starts_another_helper_when_one_has_ended_or_hangs() {
    let Some(bed) = bed() else { return };
    // The processes get the namespace of the thread that starts the first one.
    let spawn = |program: &str| HelperStarter::spawn(Path::new(program), Permissions::ALL);
    let mut starter = bed.a.with(|| spawn(PROGRAM)).unwrap().unwrap();
    let process = starter.id();
    for (name, signal) in [("tap0", Signal::KILL), ("tap1", Signal::STOP), ("tap2", Signal::KILL)] {
        let mut client = starter.connect().unwrap();
        let [helper] = children(process)[..] else { panic!("{:?}", children(process)) };
        let _tap = open(&mut client, name);
        open_in(&mut client, tap(name, &[]), &bed.b).unwrap();
        assert!(link(&bed.a, name).contains(",UP,"));
        rustix::process::kill_process(Pid::from_raw(helper).unwrap(), signal).unwrap();
        if signal == Signal::KILL {
            assert!(matches!(client.hello(), Err(HelperError::Closed)));
        }
        assert!(link(&bed.a, name).contains(",UP,"), "an interface does not end with its helper");
    }
    drop(starter);
    let error = spawn("/bin/true").unwrap().connect().unwrap_err();
    assert!(matches!(error, HelperError::Closed), "{error}");
}

/// The reader of the helper's log has gone, as that of a daemon's launcher.
#[test]
fn log_that_cannot_be_written_ends_no_helper() {
    let Some(bed) = bed() else { return };
    let (ours, theirs) = seqpacket::pair().unwrap();
    let mut command = Command::new(PROGRAM);
    command.arg("--stdin").stdin(theirs).stderr(Stdio::piped());
    let mut helper = Running(bed.a.spawn(command).unwrap());
    drop(helper.0.stderr.take());
    let mut client = HelperClient::from_socket(ours).unwrap();
    for _ in 0..2 {
        // Each is logged.
        let refused = client.open_tap(tap("lo", &[]), None).unwrap_err();
        assert!(matches!(refused, HelperError::Refused(_)), "{refused}");
    }
    let _tap = open(&mut client, "tap0");
    drop(client);
    assert!(helper.0.wait().unwrap().success());
}

#[test]
fn helper_without_a_socket_says_how_to_start_it() {
    let output = Command::new(PROGRAM).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("isthmus-helper.socket"), "{said}");
}
