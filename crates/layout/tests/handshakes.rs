//! Recorded handshakes (`handshakes/<version>/*.hex`): what a library sent first and what the daemon answered. They never change: a new
//! version adds a folder. In those called `daemon-*` the library is of the folder's version, in all others the daemon is.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use isthmus_layout::control::version::{check_hello_reply, reply_to_hello};
use isthmus_layout::control::{Name, ToClient, Version, VersionRange};
use isthmus_layout::reason::Reason;

/// The versions there are recordings of, each one able to go back to the one before; [`VersionRange::CURRENT`] is the last.
const VERSIONS: [Version; 6] =
    [version(1, 1), version(1, 2), version(1, 3), version(1, 4), version(2, 4), version(2, 5)];

const fn version(major: u16, minor: u16) -> Version {
    Version { major, minor }
}

fn version_range(version: Version) -> VersionRange {
    VersionRange::new(version, version.minor - 1).unwrap()
}

struct Recording {
    name: String,
    library: Vec<u8>,
    daemon: Vec<u8>,
}

fn recordings(version: Version) -> Vec<Recording> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/handshakes/{version}"));
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| recording(&path)).collect()
}

fn recording(path: &Path) -> Recording {
    let text = std::fs::read_to_string(path).unwrap();
    let side = |who: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(who)).unwrap().trim();
        (0..line.len()).step_by(2).map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap()).collect()
    };
    let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
    Recording { name, library: side("library"), daemon: side("daemon") }
}

/// The relevant part of a reply: the version or the reason. Texts may change.
fn outcome(answer: &ToClient) -> Result<Version, Reason> {
    match answer {
        ToClient::HelloReply(reply) => Ok(Version { major: reply.major, minor: reply.minor }),
        ToClient::Refused(refused) => Err(refused.reason),
        other => panic!("{} is no answer to a handshake", other.name()),
    }
}

#[test]
fn todays_version_is_recorded() {
    assert_eq!(
        Some(VersionRange::CURRENT),
        VERSIONS.last().map(|version| version_range(*version)),
        "a new version adds a folder"
    );
}

#[test]
fn the_daemon_answers_as_recorded() {
    VERSIONS.into_iter().for_each(daemon_answers_as_recorded);
}

fn daemon_answers_as_recorded(version: Version) {
    let (mut seen, name) = (0, Name::new("isthmusd 0.1.0").unwrap());
    for recording in recordings(version).iter().filter(|recording| !recording.name.starts_with("daemon-")) {
        let (serial, answer, chosen) = reply_to_hello(&recording.library, 0, version_range(version), name.clone());
        let (then_serial, then) = ToClient::parse(&recording.daemon, 0).unwrap();
        assert_eq!((serial, outcome(&answer)), (then_serial, outcome(&then)), "{}", recording.name);
        assert_eq!(chosen.map(|(both, _)| both).map_err(drop), outcome(&then).map_err(drop), "{}", recording.name);
        if outcome(&then).is_ok() {
            assert_eq!(answer.emit(serial), recording.daemon, "{}", recording.name);
        }
        seen += 1;
    }
    assert!(seen >= 12, "only {seen} recordings");
}

#[test]
fn the_library_takes_the_answers_recorded() {
    VERSIONS.into_iter().for_each(library_takes_the_answers_recorded);
}

fn library_takes_the_answers_recorded(version: Version) {
    let mut outcomes = Vec::new();
    for recording in recordings(version).iter().filter(|recording| recording.name.starts_with("daemon-")) {
        let (_, answer) = ToClient::parse(&recording.daemon, 0).unwrap();
        let taken = match &answer {
            ToClient::HelloReply(reply) => check_hello_reply(version_range(version), reply)
                .map(|chosen| chosen.minor)
                .map_err(|refused| refused.reason),
            other => Err(outcome(other).unwrap_err()),
        };
        outcomes.push((recording.name.clone(), taken));
    }
    outcomes.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [
        ("daemon-much-newer", Err(Reason::VersionTooOld)),
        ("daemon-newer", Ok(version.minor)),
        ("daemon-older", Ok(version.minor - 1)),
        ("daemon-other-major", Err(Reason::VersionOtherMajor)),
    ];
    assert_eq!(outcomes, expected.map(|(name, taken)| (name.to_owned(), taken)));
}
