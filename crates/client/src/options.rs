//! Options of an attachment, from the program and from the environment.

use isthmus_channel::WaitMode;
use isthmus_layout::control::Name;
use isthmus_layout::environment::{self, Variable};
use std::path::PathBuf;
use std::time::Duration;

/// Longest time that an adaptive wait spins, in microseconds.
const SPIN_US_MAX: u64 = 1000;

/// Longest time that a closing endpoint waits for receivers, in seconds.
const LINGER_S_MAX: u64 = 3600;

/// The time for which it does so by default.
const LINGER: Duration = Duration::from_secs(30);

/// Options of an attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The name of the domain. Without it, the daemon makes one of the program's name and the process number.
    pub name: Option<Name>,
    /// The daemon's socket. Without it, the first of the default sockets at which a daemon answers.
    pub socket: Option<PathBuf>,
    /// The folder for sockets of this user. Without it, `XDG_RUNTIME_DIR` of the environment at the time of an attachment.
    pub runtime_dir: Option<PathBuf>,
    /// True to start no daemon if none answers.
    pub no_autostart: bool,
    /// The daemon's program, to start a daemon. Without it, the one beside this program, or else in the PATH.
    pub daemon: Option<PathBuf>,
    /// How to wait.
    pub wait: WaitMode,
    /// True to disable the registration cache: no page of the program is ever moved to shared memory.
    pub no_regcache: bool,
    /// True to enable the registration cache in guests, too, where shared pages lie in a device. `no_regcache` overrides it.
    pub regcache_in_guests: bool,
    /// True to use the daemon path only.
    pub no_channels: bool,
    /// The longest time that a protocol waits for receivers of sends that are over, when it closes. Without it, 30 seconds.
    pub linger: Option<Duration>,
}

/// A variable of the environment that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value} cannot be: {expected}")]
pub struct OptionError {
    /// The variable.
    pub name: &'static str,
    /// The value of the variable.
    pub value: String,
    /// The values that the variable may have.
    pub expected: &'static str,
}

impl Options {
    /// Reads the options from the environment.
    pub fn from_environment() -> Result<Self, OptionError> {
        let read =
            |variable: Variable| std::env::var_os(variable.name).map(|value| value.to_string_lossy().into_owned());
        Ok(Self { runtime_dir: std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from), ..Self::from_variables(read)? })
    }

    /// Reads the options from the variables that `read` returns. An empty variable counts as unset.
    pub fn from_variables(read: impl Fn(Variable) -> Option<String>) -> Result<Self, OptionError> {
        let value = |variable| read(variable).filter(|value| !value.is_empty());
        let flag = |variable: Variable| match value(variable).as_deref() {
            None | Some("1") => Ok(true),
            Some("0") => Ok(false),
            Some(other) => Err(refuse(variable, other, "1 or 0")),
        };
        let name = match value(environment::DOMAIN) {
            None => None,
            Some(text) => match Name::new(&text) {
                Ok(name) => Some(name),
                Err(_) => return Err(refuse(environment::DOMAIN, &text, "up to 64 printable characters without /")),
            },
        };
        let spin = match value(environment::SPIN_US) {
            None => None,
            Some(text) => match text.parse() {
                Ok(us) if us <= SPIN_US_MAX => Some(Duration::from_micros(us)),
                _ => return Err(refuse(environment::SPIN_US, &text, "microseconds from 0 to 1000")),
            },
        };
        let linger = match value(environment::LINGER_S) {
            None => None,
            Some(text) => match text.parse() {
                Ok(seconds) if seconds <= LINGER_S_MAX => Some(Duration::from_secs(seconds)),
                _ => return Err(refuse(environment::LINGER_S, &text, "seconds from 0 to 3600")),
            },
        };
        let wait = match value(environment::WAIT).as_deref() {
            None | Some("adaptive") => spin.map_or(WaitMode::default(), WaitMode::Adaptive),
            Some("spin") => WaitMode::Spin,
            Some("sleep") => WaitMode::Sleep,
            Some(other) => return Err(refuse(environment::WAIT, other, "adaptive, spin or sleep")),
        };
        Ok(Self {
            name,
            socket: value(environment::SOCKET).map(PathBuf::from),
            runtime_dir: None,
            no_autostart: !flag(environment::AUTOSTART)?,
            daemon: None,
            wait,
            no_regcache: !flag(environment::RCACHE)?,
            regcache_in_guests: value(environment::RCACHE).is_some_and(|value| value == "1"),
            no_channels: !flag(environment::CHANNELS)?,
            linger,
        })
    }

    /// The longest time that a protocol waits for receivers of sends that are over, when it closes.
    pub fn linger(&self) -> Duration {
        self.linger.unwrap_or(LINGER)
    }
}

fn refuse(variable: Variable, value: &str, expected: &'static str) -> OptionError {
    OptionError { name: variable.name, value: value.to_owned(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Options, OptionError> {
        Options::from_variables(|variable| (variable.name == name).then(|| value.to_owned()))
    }

    #[test]
    fn an_empty_environment_is_the_default() {
        assert_eq!(Options::from_variables(|_| None), Ok(Options::default()));
        assert_eq!(with("ISTHMUS_WAIT", ""), Ok(Options::default()));
    }

    #[test]
    fn each_variable_sets_its_option() {
        assert_eq!(with("ISTHMUS_WAIT", "spin").unwrap().wait, WaitMode::Spin);
        assert_eq!(with("ISTHMUS_SPIN_US", "7").unwrap().wait, WaitMode::Adaptive(Duration::from_micros(7)));
        assert!(with("ISTHMUS_AUTOSTART", "0").unwrap().no_autostart);
        assert!(with("ISTHMUS_RCACHE", "0").unwrap().no_regcache);
        let in_guests = ["0", "1", ""].map(|value| with("ISTHMUS_RCACHE", value).unwrap().regcache_in_guests);
        assert_eq!(in_guests, [false, true, false], "only where that was asked for");
        assert!(with("ISTHMUS_CHANNELS", "0").unwrap().no_channels);
        assert_eq!(with("ISTHMUS_LINGER_S", "0").unwrap().linger(), Duration::ZERO);
        assert_eq!(with("ISTHMUS_LINGER_S", "").unwrap().linger(), LINGER);
        assert_eq!(with("ISTHMUS_SOCKET", "/x/y").unwrap().socket, Some(PathBuf::from("/x/y")));
        assert_eq!(with("ISTHMUS_DOMAIN", "web").unwrap().name, Name::new("web").ok());
    }

    #[test]
    fn invalid_variables_are_reported() {
        let text = |name, value| with(name, value).unwrap_err().to_string();
        assert_eq!(text("ISTHMUS_WAIT", "poll"), "ISTHMUS_WAIT=poll cannot be: adaptive, spin or sleep");
        assert_eq!(text("ISTHMUS_SPIN_US", "1001"), "ISTHMUS_SPIN_US=1001 cannot be: microseconds from 0 to 1000");
        assert_eq!(text("ISTHMUS_LINGER_S", "3601"), "ISTHMUS_LINGER_S=3601 cannot be: seconds from 0 to 3600");
        assert!(text("ISTHMUS_DOMAIN", "a/b").contains("without /"));
        assert_eq!(text("ISTHMUS_RCACHE", "yes"), "ISTHMUS_RCACHE=yes cannot be: 1 or 0");
    }
}
