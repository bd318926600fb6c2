//! Settings for the daemon's paths, its metrics address and its log.

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::problem::Finding;
use super::setting::{ConfigValue, Grants, Setting};
use super::suggest;

/// The role of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The host's daemon, started by the system.
    System,
    /// A user's own daemon, without privilege.
    User,
}

/// The defaults that depend on the role of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleDefaults {
    /// The configuration file; none if the user has no home.
    pub config_file: Option<PathBuf>,
    /// The folder for socket, lock and ticket key, which need not survive a boot.
    pub runtime_dir: PathBuf,
    /// Whether a region stays granted when its message is over.
    pub grants: Grants,
}

impl RoleDefaults {
    /// Returns the defaults for `role`. The paths follow the XDG variables in `environment`.
    #[must_use]
    pub fn new(role: Role, uid: u32, environment: &[(OsString, OsString)]) -> Self {
        if role == Role::System {
            return Self {
                config_file: Some("/etc/isthmus/isthmus.toml".into()),
                runtime_dir: "/run/isthmus".into(),
                grants: Grants::SameContainer,
            };
        }
        // XDG: what is not absolute does not count. Ours: neither does what could not stand in the file.
        let absolute = |name: &str| {
            let (_, value) = environment.iter().find(|(known, _)| known == name)?;
            let text = value.to_str().filter(|text| is_absolute_path(text))?;
            Some(PathBuf::from(text))
        };
        let config_home = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
        Self {
            config_file: config_home.map(|folder| folder.join("isthmus/isthmus.toml")),
            runtime_dir: match absolute("XDG_RUNTIME_DIR") {
                Some(runtime) => runtime.join("isthmus"),
                None => format!("/tmp/isthmus-{uid}").into(),
            },
            grants: Grants::SameUser,
        }
    }
}

fn is_absolute_path(text: &str) -> bool {
    text.starts_with('/') && !text.contains(char::is_control)
}

fn absolute_help(text: &str) -> Option<String> {
    if text.starts_with("~") || text.contains('$') {
        return Some("neither ~ nor variables are expanded here".to_owned());
    }
    None
}

/// The absolute path of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dir(PathBuf);

impl Dir {
    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Setting for Dir {
    const TYPE: &'static str = "string";
    const BARE: bool = true;

    fn expected() -> String {
        "an absolute path".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        if !is_absolute_path(text) {
            findings.push(item.wrong_text(&Self::expected(), absolute_help(text)));
            return None;
        }
        Some(Self(text.into()))
    }

    fn to_toml(&self) -> toml::Value {
        path_value(&self.0)
    }
}

/// The absolute path of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath(PathBuf);

impl FilePath {
    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Setting for FilePath {
    const TYPE: &'static str = "string";
    const BARE: bool = true;

    fn expected() -> String {
        "the absolute path of a file".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        if !is_absolute_path(text) || text.ends_with('/') {
            findings.push(item.wrong_text(&Self::expected(), absolute_help(text)));
            return None;
        }
        Some(Self(text.into()))
    }

    fn to_toml(&self) -> toml::Value {
        path_value(&self.0)
    }
}

/// The absolute path of a Unix socket, short enough for the kernel's `sun_path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketPath(PathBuf);

impl SocketPath {
    /// `sun_path` has 108 bytes, and the last is zero.
    pub const BYTES_MAX: usize = 107;

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn new(text: &str) -> Option<Self> {
        let fits = is_absolute_path(text) && !text.ends_with('/') && text.len() <= Self::BYTES_MAX;
        fits.then(|| Self(text.into()))
    }
}

impl Setting for SocketPath {
    const TYPE: &'static str = "string";
    const BARE: bool = true;

    fn expected() -> String {
        format!("the absolute path of a socket, of at most {} bytes", Self::BYTES_MAX)
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let path = Self::new(text);
        if path.is_none() {
            let help = match text.len() {
                bytes if bytes > Self::BYTES_MAX => Some(format!("it has {bytes} bytes")),
                _ => absolute_help(text),
            };
            findings.push(item.wrong_text(&Self::expected(), help));
        }
        path
    }

    fn to_toml(&self) -> toml::Value {
        path_value(&self.0)
    }
}

fn path_value(path: &Path) -> toml::Value {
    path.to_str().expect("paths are read from TOML strings, which are UTF-8").into()
}

/// The address at which metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsListen {
    /// None: metrics are not served.
    Off,
    /// A Unix socket.
    Unix(SocketPath),
    /// A port of the loopback interface.
    Tcp(SocketAddr),
}

impl Setting for MetricsListen {
    const TYPE: &'static str = "string";
    const BARE: bool = true;

    fn expected() -> String {
        "\"\" (off), the absolute path of a socket, or a loopback address with a port, as in 127.0.0.1:9419".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        if text.is_empty() {
            return Some(Self::Off);
        }
        if let Some(path) = SocketPath::new(text) {
            return Some(Self::Unix(path));
        }
        let help = match text.parse::<SocketAddr>() {
            Ok(address) if !address.ip().is_loopback() => {
                Some("metrics have no passwords, so other hosts do not reach them: put a proxy in front".to_owned())
            }
            Ok(address) if address.port() == 0 => Some("name a port from 1 to 65535".to_owned()),
            Ok(address) => return Some(Self::Tcp(address)),
            Err(_) if text.len() > SocketPath::BYTES_MAX => Some(format!("it has {} bytes", text.len())),
            Err(_) => text.strip_prefix("localhost:").map(|port| format!("did you mean \"127.0.0.1:{port}\"?")),
        };
        findings.push(item.wrong_text(&Self::expected(), help));
        None
    }

    fn to_toml(&self) -> toml::Value {
        match self {
            Self::Off => "".into(),
            Self::Unix(path) => path.to_toml(),
            Self::Tcp(address) => address.to_string().into(),
        }
    }
}

/// The events that are logged: a level, or levels for parts of the program.
///
/// Each value is also a valid `tracing_subscriber::EnvFilter`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

impl LogFilter {
    /// The levels, loudest last.
    pub const LEVELS: &'static [&'static str] = &["off", "error", "warn", "info", "debug", "trace"];

    /// The text, as `EnvFilter` accepts it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Finds the first word that is no level, or no part of a program.
    fn invalid_directive(text: &str) -> Option<&str> {
        text.split(',').find_map(|directive| {
            let (target, level) = match directive.split_once('=') {
                Some((target, level)) => (Some(target), level),
                None => (None, directive),
            };
            let is_target = |target: &str| {
                !target.is_empty() && target.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':'))
            };
            match target {
                Some(target) if !is_target(target) => Some(target),
                _ if !Self::LEVELS.contains(&level) => Some(level),
                _ => None,
            }
        })
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Setting for LogFilter {
    const TYPE: &'static str = "string";
    const BARE: bool = true;

    fn expected() -> String {
        "a level (off, error, warn, info, debug, trace) or levels for parts, as in info,isthmus_control=debug"
            .to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let Some(wrong) = Self::invalid_directive(text) else { return Some(Self(text.to_owned())) };
        let help =
            suggest::nearest(wrong, Self::LEVELS.iter().copied()).map(|level| format!("did you mean \"{level}\"?"));
        findings.push(item.wrong_text(&Self::expected(), help));
        None
    }

    fn to_toml(&self) -> toml::Value {
        self.0.as_str().into()
    }
}
