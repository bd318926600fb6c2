//! Finding the daemon's socket, and starting a daemon for this user where none answers.

use crate::error::Refusal;
use crate::options::Options;
use isthmus_layout::reason::Reason;
use isthmus_platform::seqpacket;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The socket of the daemon that serves all users of the host.
pub(crate) const SYSTEM_SOCKET: &str = "/run/isthmus/isthmus.sock";

/// The first device of a QEMU guest, which the driver makes.
const GUEST_DEVICE: &str = "/dev/isthmus0";

/// Seconds without an attached domain after which a daemon that this library started exits.
const IDLE_EXIT_S: &str = "5";

/// The name of the daemon's program.
const DAEMON: &str = "isthmusd";

/// The socket of a daemon of this user: in its runtime directory, or in one that only it can write to.
pub(crate) fn user_socket(options: &Options) -> PathBuf {
    let runtime = options.runtime_dir.clone().or_else(|| std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from));
    let runtime = runtime.filter(|path| path.is_absolute());
    let directory = runtime.map_or_else(
        || PathBuf::from(format!("/tmp/isthmus-{}", rustix::process::geteuid().as_raw())),
        |runtime| runtime.join("isthmus"),
    );
    directory.join("isthmus.sock")
}

/// A connection to the first daemon that answers, and where it was.
pub(crate) fn connect(options: &Options) -> Result<(OwnedFd, PathBuf), Refusal> {
    if let Some(path) = &options.socket {
        return Ok((reconnect(path)?, path.clone()));
    }
    let user = user_socket(options);
    let mut denied = None;
    for path in [Path::new(SYSTEM_SOCKET), &user] {
        match connect_trusted(path, path == user) {
            Ok(socket) => return Ok((socket, path.to_owned())),
            Err(refused) if refused.reason == Reason::DaemonUnreachable => {}
            Err(refused) if refused.reason == Reason::SocketUntrusted => return Err(refused), // A new one would refuse it too.
            Err(refused) => denied = denied.or(Some(refused)),
        }
    }
    let is_guest = is_in_guest();
    if is_guest || options.no_autostart {
        let mut looked = format!("{SYSTEM_SOCKET} and {}", user.display());
        if is_guest {
            looked += &format!(" of this guest ({GUEST_DEVICE} is there): `isthmusd --guest` does not run");
        }
        return Err(denied.unwrap_or_else(|| Refusal::new(Reason::DaemonUnreachable, looked)));
    }
    start(options.daemon.clone().unwrap_or_else(daemon_program))?;
    Ok((connect_trusted(&user, true)?, user))
}

/// Returns whether this is a QEMU guest with its device. No library starts a daemon there: it would serve programs apart from those of the
/// guest's daemon, so a program that should reach another guest would wait for ever.
pub fn is_in_guest() -> bool {
    is_device(Path::new(GUEST_DEVICE))
}

fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device())
}

/// A connection to the daemon at `path`.
pub(crate) fn reconnect(path: &Path) -> Result<OwnedFd, Refusal> {
    seqpacket::connect(path).map_err(|errno| refusal(path, errno))
}

fn connect_trusted(path: &Path, own: bool) -> Result<OwnedFd, Refusal> {
    if own {
        check_owner(path.parent().unwrap_or(path))?;
    }
    reconnect(path)
}

/// Checks that this user owns the directory. Any user can create a directory in /tmp, and the daemon sees this domain's messages.
fn check_owner(directory: &Path) -> Result<(), Refusal> {
    let Ok(found) = std::fs::symlink_metadata(directory) else {
        return Err(Refusal::new(Reason::DaemonUnreachable, directory.display().to_string()));
    };
    let ours = found.uid() == rustix::process::geteuid().as_raw() && found.is_dir() && found.mode() & 0o022 == 0;
    if ours { Ok(()) } else { Err(Refusal::new(Reason::SocketUntrusted, directory.display().to_string())) }
}

fn refusal(path: &Path, errno: Errno) -> Refusal {
    let reason = match errno {
        Errno::ACCESS | Errno::PERM => Reason::SocketDenied,
        Errno::MFILE | Errno::NFILE => Reason::OutOfFds,
        _ => Reason::DaemonUnreachable,
    };
    let cause = match alone_served(path) {
        Some(user) if reason == Reason::SocketDenied => {
            format!("{errno}; the daemon serves user {user} alone (`policy.attach = \"same-user\"`)")
        }
        _ if errno == Errno::AGAIN => "the daemon accepts no connections: it is stopped, or too busy".to_owned(),
        _ => errno.to_string(),
    };
    Refusal::new(reason, format!("{}: {cause}", path.display()))
}

/// Returns the user that the daemon of a socket serves alone, if that is another user than this one.
fn alone_served(path: &Path) -> Option<u32> {
    let found = std::fs::symlink_metadata(path).ok()?;
    (found.mode() & 0o022 == 0 && found.uid() != rustix::process::geteuid().as_raw()).then(|| found.uid())
}

/// Runs `isthmusd --user --detach --idle-exit 5`, which comes back when the daemon answers and leaves it running in a session of its own:
/// no child of ours remains.
fn start(program: PathBuf) -> Result<(), Refusal> {
    let failed = |detail: String| Refusal::new(Reason::DaemonNotStarted, detail);
    let status = Command::new(&program)
        .args(["--user", "--detach", "--idle-exit", IDLE_EXIT_S])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| failed(format!("{}: {error}", program.display())))?;
    if status.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&status.stderr);
    Err(failed(format!("{} ended with {}: {}", program.display(), status.status, said.trim())))
}

/// Beside the running program, where a build puts both; else from the PATH.
fn daemon_program() -> PathBuf {
    let beside = std::env::current_exe().ok().and_then(|exe| {
        let directory = exe.parent()?;
        [directory, directory.parent()?].map(|place| place.join(DAEMON)).into_iter().find(|path| path.is_file())
    });
    beside.unwrap_or_else(|| PathBuf::from(DAEMON))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_says_that_this_is_a_guest() {
        assert!(is_device(Path::new("/dev/null")));
        assert!(!is_device(Path::new("/dev")) && !is_device(Path::new("/dev/isthmus-none")));
    }
}
