//! Nothing needs to be set up on one machine: the library starts one daemon for all programs of the user. The daemon leaves when it is not
//! needed any more.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_platform::seqpacket;
use isthmus_suites::test_program::program;
use isthmus_suites::{TIMEOUT_S, TestProgram};
use isthmus_testbed::{Deadline, Launch, Scratch, View, binary, eventually, eventually_some};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

const SYSTEM_SOCKET: &str = "/run/isthmus/isthmus.sock";

fn launch(runtime: &Path) -> Launch {
    let launch = Launch::new(program()).env("XDG_RUNTIME_DIR", runtime);
    launch.env_remove("ISTHMUS_SOCKET").env_remove("ISTHMUS_AUTOSTART")
}

/// The process that listens at a socket, as the socket says.
fn daemon_of(socket: &Path) -> i32 {
    let connected = seqpacket::connect(socket).unwrap();
    rustix::net::sockopt::socket_peercred(&connected).unwrap().pid.as_raw_nonzero().get()
}

#[test]
fn racing_libraries_start_one_daemon() {
    if Path::new(SYSTEM_SOCKET).exists() {
        return println!("skipped: a daemon serves all users of this machine, at {SYSTEM_SOCKET}");
    }
    binary("isthmusd", "isthmusd").unwrap();
    let runtime = Scratch::new().unwrap();
    let mut actors: Vec<_> = (0..4).map(|_| TestProgram::start(launch(runtime.path()))).collect();
    for (number, actor) in actors.iter_mut().enumerate() {
        actor.send_line(&format!("attach name=actor{number}"));
    }
    for actor in &mut actors {
        let answer = actor.answer();
        assert!(answer.starts_with("attached "), "{answer}");
        actor.expect("open", "open e0");
    }
    // All four found the same one.
    for actor in &mut actors {
        for number in 0..4 {
            let answer = actor.ask(&format!("lookup actor{number}"));
            assert!(answer.starts_with("found "), "{answer}");
        }
    }
    let socket = runtime.join("isthmus/isthmus.sock");
    let daemon = View::of(daemon_of(&socket));
    assert_eq!(daemon.status("Name").unwrap(), "isthmusd");
    // The daemon is no child of any program: not of the one that happened to start it.
    let parents: Vec<_> = actors.iter().map(|actor| actor.view().pid().to_string()).collect();
    assert!(!parents.contains(&daemon.status("PPid").unwrap()));
    for actor in &actors {
        let children = format!("/proc/{0}/task/{0}/children", actor.view().pid());
        assert_eq!(std::fs::read_to_string(children).unwrap_or_default(), "");
    }
    drop(actors);
    let gone = eventually(Deadline::secs(TIMEOUT_S), || !socket.exists() && daemon.status("Name").is_err());
    gone.unwrap_or_else(|late| panic!("the daemon stays: {late}"));
    let left: Vec<_> = runtime.content().unwrap().into_iter().filter(|path| !path.is_dir()).collect();
    assert_eq!(left, [socket.with_extension("log")]);
}

#[test]
fn detached_daemon_and_its_command_say_why_it_does_not_start() {
    let program = binary("isthmusd", "isthmusd").unwrap();
    let folder = Scratch::new().unwrap();
    let socket = folder.join("isthmus.sock");
    let mut command = std::process::Command::new(program);
    command.args(["--user", "--detach", "--set", &format!("daemon.socket={}", socket.display())]);
    command.arg("--set").arg(format!("metrics.listen={}", folder.join("missing/metrics.sock").display()));
    let output = command.env("XDG_RUNTIME_DIR", folder.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let log = socket.with_extension("log");
    for text in [&said, &std::fs::read_to_string(&log).unwrap()] {
        assert!(
            text.contains("metrics.listen: ") && text.contains("remedy: Create the folder of the socket."),
            "{text}"
        );
    }
    assert!(!output.status.success() && said.contains(&format!("log: {}", log.display())), "{said}");
    assert!(!said.contains("starting"), "{said}");
}

/// Without the folder no domain would resume after a restart, and sends that have completed would be lost.
#[test]
fn daemon_without_a_runtime_folder_does_not_start_and_says_what_to_do() {
    let program = binary("isthmusd", "isthmusd").unwrap();
    let folder = Scratch::new().unwrap();
    let taken = folder.join("taken");
    std::fs::write(&taken, "").unwrap();
    for runtime_dir in [taken.clone(), taken.join("below")] {
        let set = |key: &str, path: &Path| format!("daemon.{key}={}", path.display());
        let mut command = std::process::Command::new(&program);
        command.args(["--user", "--set", &set("socket", &folder.join("isthmus.sock"))]);
        command.args(["--set", &set("runtime_dir", &runtime_dir)]);
        let output = command.env("XDG_RUNTIME_DIR", folder.path()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{said}");
        let named = format!("daemon.runtime_dir: {}: ", runtime_dir.display());
        assert!(said.contains(&named) && said.contains("remedy: Create the folder"), "{said}");
    }
}

#[test]
fn detached_daemon_reads_a_configuration_file_with_a_relative_path() {
    let program = binary("isthmusd", "isthmusd").unwrap();
    let folder = Scratch::new().unwrap();
    let socket = folder.join("isthmus.sock");
    let text = format!("[daemon]\nsocket = \"{}\"\nidle_exit_s = 1\n", socket.display());
    std::fs::write(folder.join("own.toml"), text).unwrap();
    let mut command = std::process::Command::new(program);
    command.args(["--user", "--detach", "--config", "own.toml"]).current_dir(folder.path());
    let output = command.env("XDG_RUNTIME_DIR", folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let daemon = View::of(daemon_of(&socket));
    assert_eq!(std::fs::read_link(format!("/proc/{}/cwd", daemon.pid())).unwrap(), Path::new("/"));
    let gone = eventually(Deadline::secs(TIMEOUT_S), || !socket.exists() && daemon.status("Name").is_err());
    gone.unwrap_or_else(|late| panic!("the daemon stays: {late}"));
}

/// A daemon that was killed may have its socket, and accept connections, until its process is gone.
#[test]
fn detached_daemon_follows_one_that_ends_meanwhile() {
    let program = binary("isthmusd", "isthmusd").unwrap();
    let folder = Scratch::new().unwrap();
    let socket = folder.join("isthmus.sock");
    let lock = std::fs::File::create(folder.join("isthmus.lock")).unwrap();
    lock.lock().unwrap();
    let other = seqpacket::listen(&socket, 1).unwrap();
    let mut command = std::process::Command::new(program);
    command.args(["--user", "--detach", "--idle-exit", "1", "--set", &format!("daemon.socket={}", socket.display())]);
    let command = command.env("XDG_RUNTIME_DIR", folder.path()).stderr(Stdio::piped()).spawn().unwrap();
    let asked = eventually_some(Deadline::secs(TIMEOUT_S), || seqpacket::accept(&other).ok());
    asked.expect("the command asks whether the other daemon answers");
    drop((other, lock));
    let output = command.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let daemon = View::of(daemon_of(&socket));
    let gone = eventually(Deadline::secs(TIMEOUT_S), || !socket.exists() && daemon.status("Name").is_err());
    gone.unwrap_or_else(|late| panic!("the daemon stays: {late}"));
}

#[test]
fn starts_no_daemon_when_autostart_is_disabled() {
    if Path::new(SYSTEM_SOCKET).exists() {
        return println!("skipped: a daemon serves all users of this machine, at {SYSTEM_SOCKET}");
    }
    let runtime = Scratch::new().unwrap();
    let mut actor = TestProgram::start(launch(runtime.path()).env("ISTHMUS_AUTOSTART", "0"));
    let answer = actor.ask("attach");
    assert!(answer.starts_with("refused ") && answer.ends_with("[daemon-unreachable]"), "{answer}");
    assert!(runtime.content().unwrap().is_empty());
}

#[test]
fn socket_folder_writable_by_others_is_not_trusted() {
    if Path::new(SYSTEM_SOCKET).exists() {
        return println!("skipped: a daemon serves all users of this machine, at {SYSTEM_SOCKET}");
    }
    let runtime = Scratch::new().unwrap();
    let folder = runtime.dir("isthmus").unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    for autostart in ["0", "1"] {
        let mut actor = TestProgram::start(launch(runtime.path()).env("ISTHMUS_AUTOSTART", autostart));
        let answer = actor.ask("attach");
        assert!(answer.starts_with("refused "), "{answer}");
        assert!(answer.contains("socket-untrusted"), "{autostart}: {answer}");
    }
}

/// The test program in a folder of its own, where no daemon lies beside it.
fn without_nearby_daemon(folder: &Scratch) -> Launch {
    let copy = folder.join("actor");
    // By a process of its own: another test that forks meanwhile would have the copy open for writing, and it could not be started.
    let copied = std::process::Command::new("cp").arg(program()).arg(&copy).status().unwrap();
    assert!(copied.success());
    Launch::new(copy).env_remove("ISTHMUS_SOCKET").env_remove("ISTHMUS_AUTOSTART")
}

#[test]
fn failed_daemon_start_is_reported() {
    if Path::new(SYSTEM_SOCKET).exists() {
        return println!("skipped: a daemon serves all users of this machine, at {SYSTEM_SOCKET}");
    }
    let (runtime, folder) = (Scratch::new().unwrap(), Scratch::new().unwrap());
    let mut actor = TestProgram::start(
        without_nearby_daemon(&folder).env("XDG_RUNTIME_DIR", runtime.path()).env("PATH", "/nonexistent"),
    );
    let answer = actor.ask("attach");
    assert!(answer.contains("isthmusd: No such file") && answer.ends_with("[daemon-not-started]"), "{answer}");
}

#[test]
fn denied_socket_is_named() {
    const OTHER_UID: u32 = 4321;
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can be two users");
    }
    let (shared, folder) = (Scratch::shared().unwrap(), Scratch::shared().unwrap());
    let daemon = isthmus_suites::daemon(&shared, "");
    std::fs::set_permissions(daemon.run_dir(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let launch = without_nearby_daemon(&folder).env("ISTHMUS_SOCKET", daemon.socket()).owner(OTHER_UID);
    let answer = TestProgram::start(launch).ask("attach");
    assert!(answer.contains("Permission denied") && answer.ends_with("[socket-denied]"), "{answer}");
}

#[test]
fn daemon_that_serves_one_user_alone_is_named_as_such_to_others() {
    const OTHER_UID: u32 = 4321;
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can be two users");
    }
    let (shared, folder) = (Scratch::shared().unwrap(), Scratch::shared().unwrap());
    let daemon = isthmus_suites::daemon(&shared, "");
    std::fs::set_permissions(daemon.run_dir(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(daemon.socket(), std::fs::Permissions::from_mode(0o600)).unwrap();
    let launch = without_nearby_daemon(&folder).env("ISTHMUS_SOCKET", daemon.socket()).owner(OTHER_UID);
    let answer = TestProgram::start(launch).ask("attach");
    assert!(answer.contains("the daemon serves user 0 alone") && answer.ends_with("[socket-denied]"), "{answer}");
}

#[test]
fn query_connection_is_told_that_the_idle_daemon_exits() {
    use isthmus_layout::control::{ToClient, ToDaemon};
    use std::os::fd::AsFd;
    let scratch = Scratch::new().unwrap();
    let mut daemon = isthmus_suites::daemon(&scratch, "daemon.idle_exit_s = 1\n");
    let socket = isthmus_platform::seqpacket::connect(&daemon.socket()).unwrap();
    let hello = isthmus_layout::control::Hello {
        magic: isthmus_layout::control::Magic,
        versions: isthmus_layout::control::VersionRange::CURRENT,
        library: isthmus_layout::control::Name::new("asker").unwrap(),
    };
    let serial = isthmus_layout::control::RequestSerial::new(1);
    isthmus_platform::seqpacket::send(&socket, &ToDaemon::from(hello).emit(serial), &[]).unwrap();
    let (mut bytes, mut fds, mut last) = (vec![0; 16384], Vec::new(), None);
    loop {
        Deadline::secs(TIMEOUT_S).readable([socket.as_fd()]).unwrap();
        let Ok(len) = isthmus_platform::seqpacket::receive(&socket, &mut bytes, &mut fds, false) else { break };
        last = Some(ToClient::parse(&bytes[..len], fds.len()).unwrap().1);
    }
    let Some(ToClient::Refused(refused)) = last else { panic!("{last:?}") };
    assert_eq!(refused.reason.name(), "daemon-idle");
    assert!(daemon.proc().wait(Deadline::secs(TIMEOUT_S)).unwrap().success());
}
