//! Which versions of the control protocol get along, decided without any I/O.
//!
//! ```text
//!   library ── Hello { its version, the oldest it can speak } ──► daemon
//!   library ◄── HelloReply { the version both speak from now on } ── daemon      or Refused { reason, text }
//! ```
//!
//! The rule: the same major version, and minor versions that differ by at most one. Both then speak the lower of the two. Within
//! a major version no message changes, and nothing in memory that two domains share; a new minor version adds messages and topics,
//! which the lower one never sees. The bytes of `Hello`, `HelloReply` and `Refused` never change at all, so that any two versions can
//! tell each other that they do not match.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::RequestSerial;
use super::codec::{Field, FieldReader, MalformedControl, Width};
use super::messages::{HelloReply, Refused, ToClient, ToDaemon};
use super::name::{Name, Text};
use super::values::Magic;
use crate::reason::Reason;

/// A version of the control protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Changes when a message changes, or what lies in memory that both sides map.
    pub major: u16,
    /// Changes when messages are added; it goes on counting from one major version to the next.
    pub minor: u16,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The versions that a program speaks: its own, and older ones of the same major down to some minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    version: Version,
    oldest_minor: u16,
}

impl VersionRange {
    /// The versions of this source tree.
    pub const CURRENT: Self = Self { version: Version { major: 2, minor: 5 }, oldest_minor: 4 };

    /// None where the oldest is newer than the version. Tests claim to be any version with it.
    pub const fn new(version: Version, oldest_minor: u16) -> Option<Self> {
        if oldest_minor <= version.minor { Some(Self { version, oldest_minor }) } else { None }
    }

    /// The newest that it speaks.
    pub const fn version(self) -> Version {
        self.version
    }

    /// The oldest that it speaks.
    pub const fn oldest(self) -> Version {
        Version { major: self.version.major, minor: self.oldest_minor }
    }
}

/// A library and a daemon that do not get along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the library speaks {library}, the daemon {daemon}: {}", reason.summary())]
pub struct VersionRefused {
    /// Which of the two is behind.
    pub reason: Reason,
    /// The newest that the library speaks.
    pub library: Version,
    /// The newest that the daemon speaks.
    pub daemon: Version,
}

/// The version that a daemon and a library speak with each other.
pub fn negotiate(daemon: VersionRange, library: VersionRange) -> Result<Version, VersionRefused> {
    let refused = |reason| Err(VersionRefused { reason, library: library.version, daemon: daemon.version });
    if daemon.version.major != library.version.major {
        return refused(Reason::VersionOtherMajor);
    }
    let chosen = if library.version.minor < daemon.version.minor { library.version } else { daemon.version };
    let too_old = chosen.minor < daemon.oldest_minor || daemon.version.minor - chosen.minor > 1;
    let too_new = chosen.minor < library.oldest_minor || library.version.minor - chosen.minor > 1;
    match (too_old, too_new) {
        (true, _) => refused(Reason::VersionTooOld),
        (_, true) => refused(Reason::VersionTooNew),
        _ => Ok(chosen),
    }
}

/// Returns the reply to the first packet of a connection. If the versions are compatible, also returns the version and the name of the library.
pub fn reply_to_hello(
    packet: &[u8],
    descriptors: usize,
    daemon: VersionRange,
    name: Name,
) -> (Option<RequestSerial>, ToClient, Result<(Version, Name), Reason>) {
    let refused = |reason, text: &str| (ToClient::from(Refused { reason, text: Text::clip(text) }), Err(reason));
    let (message, outcome) = match ToDaemon::parse(packet, descriptors) {
        Ok((_, ToDaemon::Hello(hello))) => match negotiate(daemon, hello.versions) {
            Ok(version) => {
                let Version { major, minor } = version;
                (HelloReply { magic: Magic, major, minor, daemon: name }.into(), Ok((version, hello.library)))
            }
            Err(versions) => refused(versions.reason, &format!("{versions}")),
        },
        Ok(_) => refused(Reason::UnexpectedMessageType, "the first message is Hello"),
        Err(malformed @ (MalformedControl::Magic(_) | MalformedControl::Kind(_) | MalformedControl::Reserved(_))) => {
            refused(Reason::NotIsthmus, &format!("{malformed}"))
        }
        Err(malformed) => refused(Reason::MalformedControl, &format!("{malformed}")),
    };
    (super::serial_of(packet), message, outcome)
}

/// Checks the `HelloReply` of a daemon: the library has to support the version that the daemon chose.
pub fn check_hello_reply(library: VersionRange, reply: &HelloReply) -> Result<Version, VersionRefused> {
    let daemon = Version { major: reply.major, minor: reply.minor };
    let refused = |reason| Err(VersionRefused { reason, library: library.version, daemon });
    if daemon.major != library.version.major {
        return refused(Reason::VersionOtherMajor);
    }
    match daemon.minor {
        minor if minor > library.version.minor => refused(Reason::VersionTooOld),
        minor if minor < library.oldest_minor => refused(Reason::VersionTooNew),
        _ => Ok(daemon),
    }
}

impl Field for VersionRange {
    const WIDTH: Width = Width::fixed(6);

    fn describe() -> String {
        String::from("u16 major, u16 minor, u16 oldest minor (not above the minor)")
    }

    fn emit(&self, out: &mut Vec<u8>) {
        self.version.major.emit(out);
        self.version.minor.emit(out);
        self.oldest_minor.emit(out);
    }

    fn parse(from: &mut FieldReader<'_>) -> Result<Self, MalformedControl> {
        let version = Version { major: u16::parse(from)?, minor: u16::parse(from)? };
        let oldest = u16::parse(from)?;
        Self::new(version, oldest).ok_or(MalformedControl::Versions { minor: version.minor, oldest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speaks(major: u16, minor: u16) -> VersionRange {
        VersionRange::new(Version { major, minor }, minor.saturating_sub(1)).unwrap()
    }

    #[test]
    fn one_minor_apart_works_both_ways_and_nothing_else() {
        let outcome =
            |daemon, library| negotiate(speaks(1, daemon), speaks(1, library)).map_err(|refused| refused.reason);
        for minor in [1, 2, 7, u16::MAX - 2] {
            assert_eq!(outcome(minor, minor), Ok(Version { major: 1, minor }));
            assert_eq!(outcome(minor, minor - 1), Ok(Version { major: 1, minor: minor - 1 }));
            assert_eq!(outcome(minor, minor + 1), Ok(Version { major: 1, minor }));
            assert_eq!(outcome(minor, minor + 2), Err(Reason::VersionTooNew));
            assert_eq!(outcome(minor + 2, minor), Err(Reason::VersionTooOld));
        }
    }

    #[test]
    fn negotiate_ignores_ranges_wider_than_one_minor() {
        let wide = VersionRange::new(Version { major: 1, minor: 9 }, 0).unwrap();
        assert_eq!(negotiate(speaks(1, 1), wide).unwrap_err().reason, Reason::VersionTooNew);
        assert_eq!(negotiate(wide, speaks(1, 1)).unwrap_err().reason, Reason::VersionTooOld);
        let stubborn = VersionRange::new(Version { major: 1, minor: 2 }, 2).unwrap();
        assert_eq!(negotiate(speaks(1, 1), stubborn).unwrap_err().reason, Reason::VersionTooNew);
        assert_eq!(negotiate(stubborn, speaks(1, 1)).unwrap_err().reason, Reason::VersionTooOld);
    }

    #[test]
    fn another_major_is_refused_with_both_versions_in_the_text() {
        let refused = negotiate(speaks(1, 1), speaks(2, 1)).unwrap_err();
        assert_eq!(refused.reason, Reason::VersionOtherMajor);
        assert!(format!("{refused}").starts_with("the library speaks 2.1, the daemon 1.1: "));
    }

    #[test]
    fn a_library_takes_only_versions_that_it_speaks() {
        let back = |major, minor| HelloReply { magic: Magic, major, minor, daemon: Name::new("isthmusd").unwrap() };
        let outcome =
            |major, minor| check_hello_reply(speaks(1, 3), &back(major, minor)).map_err(|refused| refused.reason);
        assert_eq!(outcome(1, 3), Ok(Version { major: 1, minor: 3 }));
        assert_eq!(outcome(1, 2), Ok(Version { major: 1, minor: 2 }));
        assert_eq!(outcome(1, 1), Err(Reason::VersionTooNew));
        assert_eq!(outcome(1, 4), Err(Reason::VersionTooOld));
        assert_eq!(outcome(2, 3), Err(Reason::VersionOtherMajor));
    }
}
