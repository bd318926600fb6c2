//! `isthmusd`: the daemon of a host, or of one user.
//!
//! The work is done by `isthmus-daemon`. This program adds the command line, the log, and the start: in the
//! foreground, or with `--detach` in a session of its own. The command then returns when the daemon answers.
#![forbid(unsafe_code)]

mod detach;
mod log;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use isthmus_config::{self as config, Inputs, Loaded, Role};
use isthmus_daemon::{Daemon, DaemonError, DaemonOptions, HostAccess, host_warnings};
use isthmus_layout::reason::Reason;
use isthmus_platform::activation::{self, InheritedFds};
use isthmus_platform_kvm::Device;
use isthmus_platform_xen::Devices;
use tracing_subscriber::EnvFilter;

/// Connects the domains of one host, and forwards the messages that have no direct path.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    /// Serve this user alone, in its own runtime directory
    #[arg(long)]
    user: bool,
    /// Serve a guest: its programs attach to the daemon of its host, which this one reaches by the guest's device or by Xen grants
    #[arg(long, conflicts_with = "user")]
    guest: bool,
    /// With --guest: the node of the device [default: the first device that a host daemon serves]
    #[arg(long, value_name = "NODE", requires = "guest")]
    device: Option<PathBuf>,
    /// Read this configuration instead of the usual file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set a key; takes precedence over the file and the environment: policy.talk=all
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// End after this number of seconds without an attached domain; 0 means never
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<u32>,
    /// Print the configuration in force, with defaults, and exit
    #[arg(long)]
    check: bool,
    /// Run in the background; the command returns when the daemon answers. The log is the file isthmus.log beside the socket
    #[arg(long)]
    detach: bool,
    /// The background's side of --detach
    #[arg(long, hide = true)]
    detached: bool,
}

impl Arguments {
    fn inputs(&self) -> Inputs {
        let role = if self.user { Role::User } else { Role::System };
        let idle_exit = self.idle_exit.map(|seconds| format!("daemon.idle_exit_s={seconds}"));
        let sets = self.set.iter().cloned().chain(idle_exit).collect();
        Inputs::of_this_process(role, self.config.clone(), sets)
    }

    /// Returns the way by which a guest's daemon reaches its host; none for the daemon of a host.
    fn host_access(&self) -> Result<Option<HostAccess>> {
        if !self.guest {
            return Ok(None);
        }
        let found = self.device.clone().or_else(Device::of_host).map(HostAccess::Device);
        let found = found.or_else(|| Devices::check().is_ok().then_some(HostAccess::Xen));
        let missing = "this guest has no device of the isthmus driver and no devices of Xen; `isthmus doctor` shows what is missing";
        found.map(Some).context(missing)
    }

    fn load(&self) -> Result<Loaded, String> {
        config::load(&self.inputs()).map_err(|error| error.to_string())
    }
}

fn main() -> ExitCode {
    // Taken before anything else is opened: the sockets and the stored descriptors of the service manager.
    let given = activation::take_inherited();
    let mut arguments = Arguments::parse();
    // The configuration is read again later, when a background process has left this folder.
    arguments.config = arguments.config.map(|path| std::path::absolute(&path).unwrap_or(path));
    let is_detached = arguments.detached;
    let ended = log::start().context("starting the log").and_then(|()| run(arguments, given));
    let code = ended.unwrap_or_else(|error| {
        let text = error_text(&error);
        log::print(format_args!("{text}"));
        if is_detached {
            detach::report(&text);
        }
        ExitCode::FAILURE
    });
    log::flush();
    code
}

/// Returns an error and its remedy, if the text does not contain it. The text of a [`DaemonError`] contains its causes.
fn error_text(error: &anyhow::Error) -> String {
    let Some(error) = error.downcast_ref::<DaemonError>() else {
        return format!("isthmusd: {error:#}");
    };
    let remedy = error.remedy().map(|remedy| format!("\n  remedy: {remedy}")).unwrap_or_default();
    format!("isthmusd: {error}{remedy}")
}

fn run(arguments: Arguments, mut given: InheritedFds) -> Result<ExitCode> {
    let loaded = match arguments.load() {
        Ok(loaded) => loaded,
        Err(problems) => {
            log::print(format_args!("{problems}"));
            return Ok(ExitCode::FAILURE);
        }
    };
    loaded.warnings.iter().for_each(|warning| log::print(format_args!("{warning}")));
    if arguments.check {
        host_warnings(&loaded.config).iter().for_each(|warning| log::print(format_args!("{warning}")));
        std::io::stdout().write_all(loaded.check_text().as_bytes()).context("printing the configuration")?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.detach {
        return detach::detach(loaded.config.daemon.socket.path());
    }
    let set_filter = subscribe(&loaded)?;
    let (detached, socket) = (arguments.detached, loaded.config.daemon.socket.path().to_owned());
    let log_start = start_logger(&loaded);
    if detached {
        detach::start_session();
    } else {
        log_start();
    }
    let mut options = DaemonOptions::new(loaded);
    options.socket = given.sockets.pop();
    options.restored_fds = given.stored;
    options.fd_store = activation::fd_store_socket().context("reaching the service manager")?;
    options.watchdog = activation::watchdog().context("reaching the service manager")?;
    options.guest = arguments.host_access()?;
    options.reload = Some(Box::new(move || arguments.load().inspect(&set_filter)));
    let daemon = match Daemon::open(options) {
        Err(DaemonError::Socket(error)) if detached && error.reason() == Some(Reason::DaemonSocketInUse) => {
            return Ok(ExitCode::from(detach::SOCKET_IN_USE));
        }
        opened => opened?,
    };
    if detached {
        detach::log_to_file(&socket)?;
        log_start();
    }
    let ended = daemon.run(|| {
        tracing::info!("ready");
        if let Err(error) = activation::notify("READY=1") {
            tracing::warn!(%error, "cannot tell the service manager that the daemon is ready");
        }
        if detached {
            detach::ready();
        }
    })?;
    tracing::info!(?ended, "ended");
    Ok(ExitCode::SUCCESS)
}

/// Returns a function that logs the version of the daemon, its configuration file and its socket.
fn start_logger(loaded: &Loaded) -> impl Fn() + use<> {
    let config = loaded.file.as_ref().map_or("none".into(), |file| file.to_string_lossy().into_owned());
    let socket = loaded.config.daemon.socket.path().to_owned();
    move || tracing::info!(version = %env!("CARGO_PKG_VERSION"), %config, socket = %socket.display(), "starting")
}

/// Sends the events that the configuration asks for to the log. Returns a function that does so for another configuration.
fn subscribe(loaded: &Loaded) -> Result<impl Fn(&Loaded) + use<>> {
    let filter = |loaded: &Loaded| EnvFilter::try_new(loaded.config.daemon.log.as_str());
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let builder = tracing_subscriber::fmt().with_env_filter(filter(loaded).context("daemon.log")?);
    let builder = builder.with_writer(log::writer).with_ansi(terminal).with_filter_reloading();
    let handle = builder.reload_handle();
    builder.init();
    // The configuration has checked the text, and the subscriber is never dropped.
    Ok(move |loaded: &Loaded| drop(filter(loaded).map(|filter| handle.reload(filter))))
}
