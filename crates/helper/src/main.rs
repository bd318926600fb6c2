//! `isthmus-helper`: creates network interfaces for `isthmusd`, which has given up its capabilities, and makes the kernel record connections.
//!
//! It serves the socket that a service manager gave it (`isthmus-helper.socket`), a socket of its own (`--socket`), or one connection to the
//! program that started it (`--stdin`), or it starts helpers of that kind for a daemon (`--starter`). Then it gives up what it does not need and handles requests; it has no configuration.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use isthmus_helper::server::{self, RecordStore};
use isthmus_helper::{Permissions, starter};
use isthmus_platform::folder::{self, Purpose};
use isthmus_platform::{activation, seqpacket};
use rustix::fs::{AtFlags, FileType, Mode, Uid, chmodat, chownat, statat, unlinkat};
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
    /// Make the kernel record TCP connections, by which isthmusd recognises their two ends; keeps CAP_BPF
    #[arg(long)]
    connection_records: bool,
}

/// The sockets that the program serves.
enum Service {
    Listener(OwnedFd),
    Connection(OwnedFd),
    Starter(OwnedFd),
}

impl Arguments {
    fn permissions(&self) -> Permissions {
        let &Self { namespaces, bridges, connection_records, .. } = self;
        Permissions { namespaces, bridges, connection_records }
    }
}

fn main() -> ExitCode {
    // Before anything is opened here.
    let inherited = activation::take_inherited();
    let arguments = Arguments::parse();
    // A line that cannot be written is lost. The subscriber would report that on standard error too, and panic there.
    let log = tracing_subscriber::fmt().with_writer(io::stderr).log_internal_errors(false);
    log.with_ansi(false).without_time().with_target(false).init();
    let store = RecordStore::new(inherited.stored);
    let served = open(&arguments, inherited.sockets).and_then(|service| serve(service, arguments.permissions(), store));
    match served {
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
/// Root listens only where root alone can write, so the path names the same file in each step.
fn listen(path: &Path, user: Option<u32>) -> io::Result<OwnedFd> {
    let about = |error: String| io::Error::other(format!("listening at {}: {error}", path.display()));
    let refused = |errno: Errno| about(errno.to_string());
    let name = path.file_name().ok_or_else(|| about("the path names no file".to_owned()))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (folder, _) = folder::open(parent, Purpose::Write).map_err(|error| {
        about(format!("{error}; name a socket in a folder that, with all above it, root alone can write to, as /run"))
    })?;
    let found = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW);
    let is_socket = found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Socket);
    if is_socket && matches!(seqpacket::connect(path), Err(Errno::CONNREFUSED)) {
        unlinkat(&folder, name, AtFlags::empty()).map_err(refused)?;
    }
    let umask = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = seqpacket::listen(path, 16).map_err(refused)?;
    rustix::process::umask(umask);
    if let Some(user) = user {
        chownat(&folder, name, Some(Uid::from_raw(user)), None, AtFlags::SYMLINK_NOFOLLOW).map_err(refused)?;
    }
    // A default access list of the folder takes the place of the umask.
    chmodat(&folder, name, Mode::from_raw_mode(0o600), AtFlags::empty()).map_err(refused)?;
    Ok(listener)
}

fn serve(service: Service, permissions: Permissions, store: RecordStore) -> io::Result<()> {
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
    if permissions.connection_records && !abilities.may_record_connections {
        tracing::warn!("without CAP_BPF the kernel cannot be made to record connections");
    }
    match service {
        Service::Listener(listener) => {
            tracing::info!("listening");
            server::serve_listener(&listener, abilities, store)
        }
        Service::Connection(socket) => {
            server::serve_connection(&socket, abilities, store);
            Ok(())
        }
        Service::Starter(_) => unreachable!("served above"),
    }
}
