//! `isthmusd`: the daemon of a host, or of one user.
//!
//! Everything it does is in `isthmus-control` and `isthmus-service`; here are its command line, its log, and how it starts:
//! in the foreground, or with `--detach` in a session of its own, in which case the command comes back when the daemon answers.
#![forbid(unsafe_code)]

mod detach;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use isthmus_config::{self as config, Inputs, Loaded, Role};
use isthmus_control::daemon::{Daemon, DaemonError, DaemonOptions, HostAccess};
use isthmus_layout::reason::Reason;
use isthmus_platform::activation::{self, InheritedFds};
use isthmus_platform_kvm::Device;
use isthmus_platform_xen::Devices;

/// Introduces domains of one host to one another and carries what cannot go directly.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    /// Serve this user alone, in its own runtime directory
    #[arg(long)]
    user: bool,
    /// Serve a guest: its programs meet at its host's daemon, which this one reaches by the guest's device, or by grants of Xen's
    #[arg(long, conflicts_with = "user")]
    guest: bool,
    /// With --guest: the node of the device; else the first that has a daemon at its other side
    #[arg(long, value_name = "NODE", requires = "guest")]
    device: Option<PathBuf>,
    /// Read this configuration instead of the usual file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set a key, over the file and the environment: policy.talk=all
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Leave when nobody has been attached for so many seconds; 0 stays
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<u32>,
    /// Print the configuration in force, with defaults, and leave
    #[arg(long)]
    check: bool,
    /// Go on in the background; come back when the daemon answers
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

    /// By what a guest's daemon reaches its host; none for that of a host.
    fn host_access(&self) -> Result<Option<HostAccess>> {
        if !self.guest {
            return Ok(None);
        }
        let found = self.device.clone().or_else(Device::of_host).map(HostAccess::Device);
        let found = found.or_else(HostAccess::bare).or_else(|| Devices::check().is_ok().then_some(HostAccess::Xen));
        let missing = "there is no device here by which a guest reaches its host, nor Xen's; `isthmus doctor` says what is missing";
        found.map(Some).context(missing)
    }

    fn load(&self) -> Result<Loaded, String> {
        config::load(&self.inputs()).map_err(|error| error.to_string())
    }
}

fn main() -> ExitCode {
    // Before anything else is opened: sockets that a service manager opened for us, and what it kept.
    let given = activation::take_inherited();
    let arguments = Arguments::parse();
    match run(arguments, given) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("isthmusd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments, mut given: InheritedFds) -> Result<ExitCode> {
    let loaded = match arguments.load() {
        Ok(loaded) => loaded,
        Err(problems) => {
            eprintln!("{problems}");
            return Ok(ExitCode::FAILURE);
        }
    };
    loaded.warnings.iter().for_each(|warning| eprintln!("{warning}"));
    if arguments.check {
        print!("{}", loaded.check_text());
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.detach {
        return detach::detach(loaded.config.daemon.socket.path());
    }
    log(&loaded)?;
    if arguments.detached {
        detach::start_session();
    }
    let detached = arguments.detached;
    let mut options = DaemonOptions::new(loaded);
    options.socket = given.sockets.pop();
    options.restored_fds = given.stored;
    options.fd_store = activation::fd_store_socket().context("reaching the service manager")?;
    options.guest = arguments.host_access()?;
    options.reload = Some(Box::new(move || arguments.load()));
    let daemon = match Daemon::open(options) {
        Err(DaemonError::Socket(error)) if detached && error.reason() == Some(Reason::DaemonSocketInUse) => {
            return Ok(ExitCode::from(detach::SOCKET_IN_USE));
        }
        opened => opened?,
    };
    let ended = daemon.run(|| {
        if let Err(error) = activation::notify("READY=1") {
            tracing::warn!(%error, "cannot tell the service manager that the daemon is ready");
        }
        if detached {
            detach::ready();
        }
    })?;
    tracing::info!(?ended, "ends");
    Ok(ExitCode::SUCCESS)
}

fn log(loaded: &Loaded) -> Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(loaded.config.daemon.log.as_str()).context("daemon.log")?;
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(terminal).init();
    Ok(())
}
