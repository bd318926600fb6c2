//! Recorded handshakes of other versions, played to a real daemon and to a real library: one minor version apart works, anything else
//! is refused with the reason.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_client::{AttachError, Domain, Options, Reason, Topic};
use isthmus_config::{self as config, ConfigFile, Inputs, Role};
use isthmus_daemon as control;
use isthmus_layout::control::{Attach, Name, RequestSerial, ToClient, ToDaemon, Version, VersionRange};
use isthmus_layout::limits::CONTROL_BYTES_MAX;
use isthmus_platform::seqpacket;
use isthmus_suites::{TIMEOUT_S, daemon};
use isthmus_testbed::{Deadline, Scratch};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

struct Recording {
    name: String,
    library: Vec<u8>,
    daemon: Vec<u8>,
}

/// The recordings of `isthmus-layout` for today's version: what a library of some version said first, and what was answered.
fn recordings() -> Vec<Recording> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/layout/tests/handshakes");
    let folder = folder.join(today().to_string());
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let recordings = files.map(|path| {
        let text = std::fs::read_to_string(&path).unwrap();
        let side = |who: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(who)).unwrap().trim();
            (0..line.len()).step_by(2).map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap()).collect()
        };
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        Recording { name, library: side("library"), daemon: side("daemon") }
    });
    recordings.collect()
}

fn receive(socket: &OwnedFd) -> (Option<RequestSerial>, ToClient) {
    let (mut bytes, mut fds) = (vec![0; CONTROL_BYTES_MAX], Vec::new());
    Deadline::secs(TIMEOUT_S).readable([socket.as_fd()]).unwrap();
    let len = seqpacket::receive(socket, &mut bytes, &mut fds, false).unwrap();
    ToClient::parse(&bytes[..len], fds.len()).unwrap()
}

/// Reduces a reply to the version agreed on, or the reason of the refusal.
fn outcome(answer: &ToClient) -> Result<Version, Reason> {
    match answer {
        ToClient::HelloReply(back) => Ok(Version { major: back.major, minor: back.minor }),
        ToClient::Refused(refused) => Err(refused.reason),
        other => panic!("{} is no answer to a handshake", other.name()),
    }
}

fn today() -> Version {
    VersionRange::CURRENT.version()
}

#[test]
fn a_running_daemon_answers_libraries_of_other_versions_as_recorded() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let mut attached = Vec::new();
    for recording in recordings().into_iter().filter(|recording| !recording.name.starts_with("daemon-")) {
        let socket = seqpacket::connect(&daemon.socket()).unwrap();
        seqpacket::send(&socket, &recording.library, &[]).unwrap();
        let (serial, answer) = receive(&socket);
        let (then_serial, then) = ToClient::parse(&recording.daemon, 0).unwrap();
        assert_eq!((serial, outcome(&answer)), (then_serial, outcome(&then)), "{}", recording.name);
        if let Ok(version) = outcome(&answer) {
            // Not only a greeting: it becomes a domain.
            let name = Name::new(&recording.name).unwrap();
            let attach = ToDaemon::from(Attach { name: Some(name), resume: None });
            seqpacket::send(&socket, &attach.emit(RequestSerial::new(2)), &[]).unwrap();
            let (_, answer) = receive(&socket);
            assert!(matches!(answer, ToClient::Welcome(_)), "{}: {}", recording.name, answer.name());
            attached.push((recording.name, version, socket));
        } else {
            let ended = Deadline::secs(TIMEOUT_S).readable([socket.as_fd()]);
            assert!(ended.is_ok(), "{}: refused, and kept open", recording.name);
        }
    }
    let minors: Vec<_> = attached.iter().map(|(name, version, _)| (name.as_str(), version.minor)).collect();
    let minor = today().minor;
    for right in [("current", minor), ("current-1", minor - 1), ("current+1", minor)] {
        assert!(minors.contains(&right), "{minors:?}");
    }
}

#[test]
fn a_library_takes_daemons_of_other_versions_as_recorded() {
    let expected = [
        ("daemon-much-newer", Some(Reason::VersionTooOld)),
        ("daemon-newer", None),
        ("daemon-older", None),
        ("daemon-other-major", Some(Reason::VersionOtherMajor)),
    ];
    let recordings = recordings();
    for (name, reason) in expected {
        let recording = recordings.iter().find(|recording| recording.name == name).unwrap();
        let scratch = Scratch::new().unwrap();
        let path = scratch.join("sock");
        let listener = seqpacket::listen(&path, 1).unwrap();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                Deadline::secs(TIMEOUT_S).readable([listener.as_fd()]).unwrap();
                let socket = seqpacket::accept(&listener).unwrap();
                let (mut bytes, mut fds) = (vec![0; CONTROL_BYTES_MAX], Vec::new());
                for answer in [Some(&recording.daemon), None] {
                    Deadline::secs(TIMEOUT_S).readable([socket.as_fd()]).unwrap();
                    let asked = seqpacket::receive(&socket, &mut bytes, &mut fds, false);
                    let (Ok(_), Some(answer)) = (asked, answer) else { break };
                    seqpacket::send(&socket, answer, &[]).unwrap();
                }
            });
            let options = Options { socket: Some(path.clone()), no_autostart: true, ..Options::default() };
            Domain::attach_with(&options).unwrap_err()
        });
        let AttachError::Refused(refusal) = error else { panic!("{name}: {error}") };
        // One that is accepted asks to attach, and is hung up on.
        assert_eq!(refusal.reason, reason.unwrap_or(Reason::DaemonConnectionLost), "{name}: {refusal}");
        if reason == Some(Reason::VersionTooOld) || reason == Some(Reason::VersionOtherMajor) {
            assert!(refusal.detail.contains(&today().to_string()), "the text names both versions: {refusal}");
        }
    }
}

#[test]
fn a_daemon_of_the_version_before_serves_todays_programs() {
    let scratch = Scratch::new().unwrap();
    let (socket, folder) = (scratch.join("sock"), scratch.path().display());
    let text = format!("daemon.socket = \"{}\"\ndaemon.runtime_dir = \"{folder}\"\n", socket.display());
    let file = ConfigFile::Given { path: "old.toml".into(), bytes: text.into_bytes() };
    let uid = rustix::process::geteuid().as_raw();
    let loaded = config::load(&Inputs { file, uid, ..Inputs::bare(Role::User) }).unwrap();
    let before = Version { minor: today().minor - 1, ..today() };
    let versions = VersionRange::new(before, before.minor - 1).unwrap();
    let (told, stop) = std::sync::mpsc::channel();
    let serving = std::thread::spawn(move || {
        let options = control::DaemonOptions { versions, signals: false, ..control::DaemonOptions::new(loaded) };
        let daemon = control::Daemon::open(options).unwrap();
        let stop = daemon.stop();
        daemon.run(move || told.send(stop).unwrap()).unwrap()
    });
    let stop = stop.recv().unwrap();
    let options = Options { socket: Some(socket), no_autostart: true, ..Options::default() };
    let mut domain = Domain::attach_with(&options).unwrap();
    let at = domain.open(None, "").unwrap();
    assert!(domain.mx_open(None, None, 0, at).is_ok());
    assert!(domain.query(Topic::Status, &[]).unwrap().contains(&format!("\"{before}\"")));
    drop(domain);
    stop.stop();
    serving.join().unwrap();
}
