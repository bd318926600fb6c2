//! `isthmus-helper`: creates network interfaces for `isthmusd`, which has given up its capabilities.
//!
//! It serves the socket that a service manager gave it (`isthmus-helper.socket`), a socket of its own (`--socket`), or one connection to the
//! program that started it (`--stdin`), or it starts helpers of that kind for a daemon (`--starter`). Then it gives up what it does not need and handles requests; it has no configuration.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use isthmus_helper::{Permissions, server, starter};
use isthmus_platform::{activation, seqpacket};
use rustix::fs::Mode;
use rustix::io::Errno;

/// Creates network interfaces for isthmusd.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    /// Listen at this path, for root and the user of --user
    #[arg(long, value_name = "PATH", conflicts_with = "stdin")]
    socket: Option<PathBuf>,
    /// The number of the user that may connect to --socket, beside root
    #[arg(long, value_name = "UID", requires = "socket")]
    user: Option<u32>,
    /// Serve the connected socket that is standard input, and end with it
    #[arg(long)]
    stdin: bool,
    /// Start a helper for each socket that arrives on the connected socket that is standard input, and end with it
    #[arg(long, conflicts_with_all = ["socket", "stdin"])]
    starter: bool,
    /// Create interfaces in other network namespaces as well; keeps CAP_SYS_ADMIN
    #[arg(long)]
    namespaces: bool,
    /// Make interfaces ports of bridges as well
    #[arg(long)]
    bridges: bool,
}

/// The sockets that the program serves.
enum Service {
    Listener(OwnedFd),
    Connection(OwnedFd),
    Starter(OwnedFd),
}

impl Arguments {
    fn permissions(&self) -> Permissions {
        Permissions { namespaces: self.namespaces, bridges: self.bridges }
    }
}

fn main() -> ExitCode {
    // Before anything is opened here.
    let inherited = activation::take_inherited().sockets;
    let arguments = Arguments::parse();
    // A line that cannot be written is lost. The subscriber would report that on standard error too, and panic there.
    let log = tracing_subscriber::fmt().with_writer(io::stderr).log_internal_errors(false);
    log.with_ansi(false).without_time().with_target(false).init();
    match open(&arguments, inherited).and_then(|service| serve(service, arguments.permissions())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn open(arguments: &Arguments, mut inherited: Vec<OwnedFd>) -> io::Result<Service> {
    if arguments.stdin || arguments.starter {
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        return Ok(if arguments.stdin { Service::Connection(socket) } else { Service::Starter(socket) });
    }
    match (&arguments.socket, inherited.pop()) {
        (Some(path), _) => listen(path, arguments.user).map(Service::Listener),
        (None, Some(socket)) if inherited.is_empty() => Ok(Service::Listener(socket)),
        (None, Some(_)) => Err(io::Error::other("the service manager gave more than one socket")),
        (None, None) => {
            Err(io::Error::other("there is nothing to serve: start isthmus-helper.socket, or give --socket PATH"))
        }
    }
}

/// Listens at a path that only root and this user can open. A socket that another helper has left there is replaced.
fn listen(path: &Path, user: Option<u32>) -> io::Result<OwnedFd> {
    let about = |error: io::Error| io::Error::new(error.kind(), format!("listening at {}: {error}", path.display()));
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && matches!(seqpacket::connect(path), Err(Errno::CONNREFUSED)) {
        fs::remove_file(path).map_err(about)?;
    }
    let umask = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = seqpacket::listen(path, 16).map_err(|errno| about(errno.into()))?;
    rustix::process::umask(umask);
    if user.is_some() {
        chown(path, user, None).map_err(about)?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(about)?;
    Ok(listener)
}

fn serve(service: Service, permissions: Permissions) -> io::Result<()> {
    if let Service::Starter(socket) = &service {
        server::enter_starter(permissions).map_err(io::Error::other)?;
        return starter::serve(socket, &std::env::current_exe()?, permissions);
    }
    let abilities = server::enter_sandbox(permissions).map_err(io::Error::other)?;
    if !abilities.has_net_admin {
        tracing::warn!("without CAP_NET_ADMIN no interface can be created");
    }
    if permissions.namespaces && !abilities.may_enter_namespaces {
        tracing::warn!("without CAP_SYS_ADMIN no interface can be created in other network namespaces");
    }
    match service {
        Service::Listener(listener) => {
            tracing::info!("listening");
            server::serve_listener(&listener, abilities)
        }
        Service::Connection(socket) => {
            server::serve_connection(&socket, abilities);
            Ok(())
        }
        Service::Starter(_) => unreachable!("served above"),
    }
}
