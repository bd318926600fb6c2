//! The daemon's configuration: one TOML file, overridden by variables, overridden by `--set`.
//!
//! ```text
//! keys::KEYS ── the one table: name, type, range, default, unit, text
//!    │
//!    ├─► load(Inputs)  defaults, file, ISTHMUS_…, --set  ──►  Loaded { Config, entries with their origin, warnings }
//!    │                                                   └─►  ConfigError: every problem, with line, column, suggestion
//!    ├─► Loaded::check_text    isthmusd --check
//!    ├─► Loaded::show_text     isthmus config show --origin
//!    └─► document::document    docs/operate/configuration.md
//! ```
//!
//! A [`Config`] needs no more checks. Loading one reads only its file and `/etc/passwd`. It either succeeds as a whole,
//! or the error lists all mistakes.
//!
//! ```
//! use isthmus_config::{self as config, ConfigFile, Inputs, Role};
//!
//! let file = ConfigFile::Given { path: "isthmus.toml".into(), bytes: b"[wait]\nmode = \"spinn\"\n".to_vec() };
//! let inputs = Inputs { file, ..Inputs::bare(Role::System) };
//! let error = config::load(&inputs).unwrap_err();
//! assert!(error.to_string().starts_with(
//!     "isthmus.toml:2:8: wait.mode is \"spinn\", but must be \"adaptive\", \"spin\" or \"sleep\""
//! ));
//! ```
#![forbid(unsafe_code)]

mod document;
mod fields;
mod guests;
mod keys;
mod kvm;
mod mx;
mod origin;
pub mod overlay;
mod parse;
mod paths;
mod policy;
mod problem;
mod setting;
mod show;
mod sockets;
mod sources;
mod suggest;
mod users;
mod xen;

use std::ffi::OsString;
use std::path::PathBuf;

pub use document::document;
pub use guests::{GuestName, Guests};
pub use keys::{
    Config, DaemonConfig, Effect, KEYS, Key, KvmConfig, LimitsConfig, MetricsConfig, MxConfig, OverlayConfig,
    PolicyConfig, SocketsConfig, TABLES, Table, VerbsConfig, WaitConfig, XenConfig, key,
};
pub use kvm::{KvmGuest, LoopInterface};
pub use mx::{
    BoardNic, Carrier, LinkPlan, MX_LINKS_MAX, Mac, MxBoardConfig, MxBoardEntry, MxBoardList, MxBoardName, MxBoardPlan,
    MxHost, Network, StaticPeer, UDP_FRAME_BYTES_MAX, UDP_PORT, UdpPeer,
};
pub use origin::{Excerpt, Origin};
pub use parse::{Entry, Pending};
pub use paths::{Dir, FilePath, LogFilter, MetricsListen, Role, RoleDefaults, SocketPath};
pub use policy::{
    AttachPolicy, CgroupPattern, Glob, Group, IdentityPattern, NameBinding, NameBindings, PolicySubject, Rule, Rules,
    Selector, User, Verdict,
};
pub use problem::{ConfigError, PROBLEMS_MAX, Problem, ProblemKind};
pub use setting::{
    Bytes, Cpus, Grants, Integer, Micros, Millis, PowerOfTwoKib, PowerOfTwoMib, Seconds, Talk, WorkerWaitMode,
};
pub use show::{VariableRow, variables, variables_text};
pub use sockets::AddressPatterns;
pub use users::Users;
pub use xen::XenGuest;

use parse::{Assignments, ConfigReader};
use sources::{ConfigSources, Target};

/// The inputs of a configuration.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The role of the daemon.
    pub role: Role,
    /// The user that the daemon runs as.
    pub uid: u32,
    /// The file.
    pub file: ConfigFile,
    /// All variables; only those with `ISTHMUS_` and the XDG ones are read.
    pub environment: Vec<(OsString, OsString)>,
    /// Each `--set key=value`, in order.
    pub sets: Vec<String>,
    /// The users and groups that the policy can name.
    pub users: Users,
}

/// The file that is read.
#[derive(Clone, Debug)]
pub enum ConfigFile {
    /// The file of the role; it may be missing.
    Usual,
    /// `--config FILE`; it must exist.
    Named(PathBuf),
    /// A file that was read already.
    Given {
        /// The path of the file, for messages.
        path: PathBuf,
        /// The content of the file.
        bytes: Vec<u8>,
    },
    /// None.
    None,
}

impl Inputs {
    /// Returns this process's variables and user, and this host's users.
    #[must_use]
    pub fn of_this_process(role: Role, config: Option<PathBuf>, sets: Vec<String>) -> Self {
        Self {
            role,
            uid: rustix::process::geteuid().as_raw(),
            file: config.map_or(ConfigFile::Usual, ConfigFile::Named),
            environment: std::env::vars_os().collect(),
            sets,
            users: Users::of_this_host(),
        }
    }

    /// Returns inputs without any setting.
    #[must_use]
    pub fn bare(role: Role) -> Self {
        Self {
            role,
            uid: 0,
            file: ConfigFile::None,
            environment: Vec::new(),
            sets: Vec::new(),
            users: Users::default(),
        }
    }

    /// Returns the defaults of this daemon's role.
    #[must_use]
    pub fn role_defaults(&self) -> RoleDefaults {
        RoleDefaults::new(self.role, self.uid, &self.environment)
    }
}

/// A valid configuration, and the origin of its values.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration to run with.
    pub config: Config,
    /// Each key with its origin, in the order of [`KEYS`].
    pub entries: Vec<Entry>,
    /// The file that was read, if there was one.
    pub file: Option<PathBuf>,
    /// Warnings about unknown variables with our prefix.
    pub warnings: Vec<Problem>,
}

impl Loaded {
    /// Notes that a running daemon has read its configuration again, and applied what it can. `failed` are the keys that it could not apply.
    ///
    /// The entries are then what is in force: other values wait for a restart. Returns the keys that need one. `config` stays the one that
    /// the daemon has started with.
    pub fn note_reload(&mut self, new: Self, failed: &[&str]) -> Vec<&'static str> {
        let mut need_restart = Vec::new();
        for (entry, new) in self.entries.iter_mut().zip(new.entries) {
            let is_restart = entry.key.effect == Effect::Restart;
            if !is_restart && !failed.contains(&entry.key.path) {
                *entry = new;
                continue;
            }
            entry.after_restart =
                (entry.value != new.value).then_some(Pending { value: new.value, origin: new.origin });
            if is_restart && entry.after_restart.is_some() {
                need_restart.push(entry.key.path);
            }
        }
        self.file = new.file;
        need_restart
    }
}

/// Reads the configuration.
pub fn load(inputs: &Inputs) -> Result<Loaded, ConfigError> {
    let ConfigSources { sources, targets, findings, warnings, file } = ConfigSources::collect(inputs);
    let mut assignments = Assignments { list: Vec::new(), findings };
    for (index, (source, target)) in sources.iter().zip(targets).enumerate() {
        match target {
            Target::File => assignments.add_file(index, source),
            Target::Key(key) => assignments.add_value(index, source, key),
            Target::Unused => {}
        }
    }

    let Assignments { list, mut findings } = assignments;
    let mut reader = ConfigReader::new(&list, &inputs.users);
    let config = Config::read(&mut reader);
    // What a broken line was meant to say fits nothing.
    let is_toml = !findings.iter().any(|finding| matches!(finding.wrong, ProblemKind::Syntax { .. }));
    if let Some(config) = config.as_ref().filter(|_| is_toml) {
        check_together(config, inputs.role, &mut reader);
    }
    findings.append(&mut reader.findings);
    match config {
        Some(config) if findings.is_empty() => {
            let (warnings, _) = problem::problems(&sources, warnings);
            Ok(Loaded { config, entries: reader.entries, file, warnings })
        }
        _ => {
            let (problems, more) = problem::problems(&sources, findings);
            Err(ConfigError { problems, more })
        }
    }
}

/// Checks values which are right alone, but not together.
fn check_together(config: &Config, role: Role, reader: &mut ConfigReader<'_>) {
    let (cpus, workers) = (config.daemon.worker_cpus.numbers().len(), config.daemon.workers.get());
    if cpus > 0 && cpus != workers as usize {
        reader.conflict("daemon.workers", "daemon.worker_cpus", &format!("{workers} workers, {cpus} CPUs"));
    }
    if config.metrics.listen == MetricsListen::Unix(config.daemon.socket.clone()) {
        reader.conflict("daemon.socket", "metrics.listen", "both are the same socket");
    }
    if config.sockets.across && role == Role::System {
        let conflict = "is for daemons that are started with --user";
        let help =
            "remove it: streams between network namespaces need `sockets.connection_records`, which is true by default";
        reader.refuse("sockets.across", conflict, help);
    }
    let has_loops = config.kvm.guest.as_slice().iter().any(|guest| !guest.loops().is_empty());
    if has_loops && config.kvm.pair_window_mib.get() < LOOP_WINDOW_MIB_MIN {
        let conflict = "has no room for the packets of guests, and `loops` of a guest asks for it";
        let help = format!("{LOOP_WINDOW_MIB_MIN} or more; the default is 32");
        reader.refuse("kvm.pair_window_mib", conflict, &help);
    }
    check_policy(config, reader);
}

/// The size of a pair window for packets: rings that are being given back, the next ones, and some room for channels.
const LOOP_WINDOW_MIB_MIN: u32 = 16;

/// Checks that rules do not allow by names that every user can choose, and that the guests of the policy exist.
fn check_policy(config: &Config, reader: &mut ConfigReader<'_>) {
    let of_kvm = config.kvm.guest.as_slice().iter().map(|guest| &guest.name);
    let guests: Vec<_> = of_kvm.chain(config.xen.guest.as_slice().iter().map(|guest| &guest.name)).collect();
    let check_guest = |identity: &IdentityPattern, place, reader: &mut ConfigReader<'_>| {
        if let Some(guest) = identity.guest.as_ref().filter(|guest| !guests.contains(guest)) {
            let conflict = format!("names the guest \"{}\", but no such guest is configured", guest.name());
            reader.member_conflict(place, &conflict, "guests are configured in [[kvm.guest]] and [[xen.guest]]");
        }
    };
    for (index, binding) in config.policy.names.as_slice().iter().enumerate() {
        check_guest(&binding.identity, ("policy.names", index, "guest"), reader);
    }
    for (index, rule) in config.policy.rules.as_slice().iter().enumerate() {
        for (side, selector) in [("from", &rule.from), ("to", &rule.to)] {
            let place = ("policy.rules", index, side);
            check_guest(&selector.identity, place, reader);
            let unbound = selector.unbound_name(&config.policy.names);
            if let Some(name) = unbound.filter(|_| config.policy.allows_across_users(rule)) {
                let name = name.as_str();
                let conflict = format!("allows domains by the name \"{name}\", which programs of all users can choose");
                let help = format!(
                    "add a user, group, cgroup or guest: {side} = {{ name = \"{name}\", user = \"www\" }}; \
                     or bind the name in policy.names: {{ name = \"{name}\", user = \"www\" }}"
                );
                reader.member_conflict(place, &conflict, &help);
            }
        }
    }
}
