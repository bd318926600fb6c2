//! Runs the daemon in the background. The command starts itself again as a session leader, waits until that process answers,
//! and returns. The library starts daemons in this way, so that it has no child process.
//!
//! ```text
//!   isthmusd --detach ◄── standard output: READY, or why the daemon did not start ── isthmusd --detached ──► isthmus-helper
//!                     ◄── standard error, until it has its socket ──────────────────────┘ │                     │
//!                                                            then <folder>/isthmus.log ◄──┴─ standard error ────┘
//! ```

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use isthmus_layout::control::version::VersionRange;
use isthmus_layout::control::{Hello, Magic, Name, RequestSerial, ToClient, ToDaemon};
use isthmus_layout::limits::CONTROL_BYTES_MAX;
use isthmus_platform::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::retry_on_intr;

/// The exit code of the background process if another daemon serves the socket.
pub(crate) const SOCKET_IN_USE: u8 = 3;

/// The message of the background process when it answers.
const READY: &[u8] = b"ready\n";

/// The permissions of the log. It has names of users and programs.
const LOG_MODE: u32 = 0o600;

/// The size from which a log is put aside when a daemon starts.
const LOG_BYTES_MAX: u64 = 4 << 20;

/// The time in which another daemon that has the socket must answer on it.
const OTHER_DAEMON_TIMEOUT: Duration = Duration::from_secs(5);

/// The time before the second start while another daemon has the socket, and does not answer yet. It doubles with each further start.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// Starts the background process and waits until it, or another daemon that has the socket, answers.
pub(crate) fn detach(socket: &Path) -> Result<ExitCode> {
    let (deadline, mut pause) = (Instant::now() + OTHER_DAEMON_TIMEOUT, FIRST_PAUSE);
    while !start(socket)? && !answers(socket, deadline)? {
        if Instant::now() >= deadline {
            bail!("another daemon has {}, and does not answer", socket.display());
        }
        std::thread::sleep(pause);
        pause *= 2;
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the background process and waits for it. Returns false if another daemon has the socket.
fn start(socket: &Path) -> Result<bool> {
    let program = std::env::current_exe().context("finding this program")?;
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--detach");
    let mut child = Command::new(program)
        .args(arguments)
        .arg("--detached")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting the background process")?;
    // Read while the process starts, because a full pipe would stop it.
    let stderr = child.stderr.take().map(|mut stderr| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text); // As far as it can be read.
            String::from_utf8_lossy(&text).into_owned()
        })
    });
    let mut out = child.stdout.take().context("reading from the background process")?;
    let mut reply = vec![0; READY.len()];
    let answered = out.read_exact(&mut reply).is_ok();
    if answered && reply == READY {
        return Ok(true);
    }
    let _ = out.read_to_end(&mut reply); // As far as it can be read.
    let status = child.wait().context("waiting for the background process")?;
    if status.code() == Some(i32::from(SOCKET_IN_USE)) {
        return Ok(false);
    }
    let stderr_text = stderr.and_then(|thread| thread.join().ok()).unwrap_or_default();
    let reply = if answered { String::from_utf8_lossy(&reply).into_owned() } else { String::new() };
    let said = if reply.is_empty() { &stderr_text } else { &reply };
    let log = log_path(socket);
    let hint = if log.is_file() { format!("\n  log: {}", log.display()) } else { String::new() };
    bail!("the background process ended with {status}: {}{hint}", error_of(said))
}

/// The log of the daemon of a socket.
fn log_path(socket: &Path) -> PathBuf {
    socket.with_extension("log")
}

/// Makes the log beside the socket the standard error of the background process, and so that of the helper that it starts.
pub(crate) fn log_to_file(socket: &Path) -> Result<()> {
    crate::log::flush(); // What was said before is for the command.
    let path = log_path(socket);
    let file = open_log(&path).with_context(|| format!("daemon.socket: opening the log {}", path.display()))?;
    rustix::stdio::dup2_stderr(file.as_fd()).context("writing the log")
}

/// Opens a log, to which lines are added. A long one is put aside, and what is not a file of this user. The caller is the daemon that has the
/// socket, so no other daemon does the same.
fn open_log(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let open = || File::options().append(true).create(true).mode(LOG_MODE).custom_flags(flags).open(path);
    let fits = |file: &File| {
        let found = file.metadata()?;
        let is_own = found.is_file() && found.uid() == rustix::process::geteuid().as_raw();
        Ok::<_, io::Error>(is_own && found.len() <= LOG_BYTES_MAX)
    };
    let file = match open() {
        Ok(file) if fits(&file)? => file,
        _ => {
            std::fs::rename(path, path.with_extension("log.old"))?;
            open()?
        }
    };
    file.set_permissions(Permissions::from_mode(LOG_MODE))?; // The file may be older.
    Ok(file)
}

/// Tells the command why the background process does not start. Without a command that waits, it has no reader.
pub(crate) fn report(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Returns the error in the output of the background process, without the log before it.
fn error_of(stderr_text: &str) -> &str {
    let start = stderr_text.rfind("\nisthmusd: ").map_or(0, |at| at + 1);
    stderr_text[start..].trim().trim_start_matches("isthmusd: ")
}

/// Returns whether the daemon that has the socket answers, because that one serves as well. One that was killed may still have it for a
/// moment, and accepts connections.
fn answers(socket: &Path, deadline: Instant) -> Result<bool> {
    let Ok(other) = seqpacket::connect(socket) else { return Ok(false) };
    let library = Name::new("isthmusd --detach").context("naming this program")?;
    let hello = Hello { magic: Magic, versions: VersionRange::CURRENT, library };
    if seqpacket::send(&other, &ToDaemon::from(hello).emit(RequestSerial::new(1)), &[]).is_err() {
        return Ok(false);
    }
    let left = deadline.saturating_duration_since(Instant::now()).as_millis();
    let timeout = Timespec { tv_sec: (left / 1000) as i64, tv_nsec: (left % 1000 * 1_000_000) as i64 };
    let mut fds = [PollFd::new(&other, PollFlags::IN)];
    match retry_on_intr(|| poll(&mut fds, Some(&timeout))).context("waiting for the other daemon")? {
        0 => bail!("the daemon that has {} does not answer", socket.display()),
        _ => {
            let (mut packet, mut fds) = ([0; CONTROL_BYTES_MAX], Vec::new());
            let len = seqpacket::receive(&other, &mut packet, &mut fds, false).unwrap_or(0);
            let reply = ToClient::parse(&packet[..len], fds.len());
            Ok(matches!(reply, Ok((_, ToClient::HelloReply(_)))))
        }
    }
}

/// Makes the background process a session leader, so that it receives no signals of a terminal, and leaves the folder that the command was
/// started in, so that its file system can be unmounted.
pub(crate) fn start_session() {
    let _ = std::env::set_current_dir("/"); // Without it, only the unmounting fails.
    // Fails only if the process is a session leader already.
    let _ = rustix::process::setsid();
}

/// Reports that the background process answers, so that the command returns. There is no reader of later output.
pub(crate) fn ready() {
    let mut out = std::io::stdout();
    let _ = out.write_all(READY).and_then(|()| out.flush());
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn log_grows_over_starts_until_it_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("isthmus.log"), folder.path().join("isthmus.log.old"));
        std::fs::write(&path, "before\n").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        open_log(&path).unwrap().write_all(b"after\n").unwrap();
        assert_eq!((std::fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("before\nafter\n", 0o600));
        File::options().write(true).open(&path).unwrap().set_len(LOG_BYTES_MAX + 1).unwrap();
        open_log(&path).unwrap().write_all(b"new\n").unwrap();
        assert_eq!((std::fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("new\n", 0o600));
        assert_eq!(std::fs::metadata(&old).unwrap().len(), LOG_BYTES_MAX + 1);
    }

    #[test]
    fn what_is_no_file_of_ours_is_put_aside_and_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("isthmus.log"), folder.path().join("target"));
        std::fs::write(&target, "kept").unwrap();
        symlink(&target, &path).unwrap();
        open_log(&path).unwrap().write_all(b"line\n").unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "line\n");
    }

    #[test]
    fn error_of_the_background_process_is_shown_without_its_log() {
        let log = "2026-01-01T00:00:00Z  INFO isthmusd: starting version=0.1.0\n";
        let error = "isthmusd: daemon.socket: /x: taken\n  remedy: Stop it.\n";
        assert_eq!(error_of(&format!("{log}{error}")), "daemon.socket: /x: taken\n  remedy: Stop it.");
        assert_eq!(error_of(error), "daemon.socket: /x: taken\n  remedy: Stop it.");
        assert_eq!(error_of("panicked\n"), "panicked");
    }
}
