//! Runs the daemon in the background. The command starts itself again as a session leader, waits until that process answers,
//! and returns. The library starts daemons in this way, so that it has no child process.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use isthmus_platform::seqpacket;

/// The exit code of the background process if another daemon serves the socket.
pub(crate) const SOCKET_IN_USE: u8 = 3;

/// The message of the background process when it answers.
const READY: &[u8] = b"ready\n";

/// The time in which another daemon that has the socket must answer on it.
const OTHER_DAEMON_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts the background process and waits for it.
pub(crate) fn detach(socket: &Path) -> Result<ExitCode> {
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
    let mut reply = [0; READY.len()];
    let answered = child.stdout.take().is_some_and(|mut out| out.read_exact(&mut reply).is_ok());
    if answered && reply == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait().context("waiting for the background process")?;
    if status.code() == Some(i32::from(SOCKET_IN_USE)) {
        return wait_for_other(socket);
    }
    let stderr_text = stderr.and_then(|thread| thread.join().ok()).unwrap_or_default();
    bail!("the background process ended with {status}: {}", error_of(&stderr_text))
}

/// Returns the error in the output of the background process, without the log before it.
fn error_of(stderr_text: &str) -> &str {
    let start = stderr_text.rfind("\nisthmusd: ").map_or(0, |at| at + 1);
    stderr_text[start..].trim().trim_start_matches("isthmusd: ")
}

/// Waits until the other daemon that has the socket answers, because that one serves as well.
fn wait_for_other(socket: &Path) -> Result<ExitCode> {
    let deadline = Instant::now() + OTHER_DAEMON_TIMEOUT;
    loop {
        match seqpacket::connect(socket) {
            Ok(_) => return Ok(ExitCode::SUCCESS),
            Err(errno) if Instant::now() >= deadline => {
                bail!("the daemon of {} does not answer: {errno}", socket.display())
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
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

/// Reports that the background process answers, so that the command returns. Later output goes to /dev/null, because there is no reader.
pub(crate) fn ready() {
    let mut out = std::io::stdout();
    let _ = out.write_all(READY).and_then(|()| out.flush());
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null.as_fd());
        let _ = rustix::stdio::dup2_stderr(null.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::error_of;

    #[test]
    fn error_of_the_background_process_is_shown_without_its_log() {
        let log = "2026-01-01T00:00:00Z  INFO isthmusd: starting version=0.1.0\n";
        let error = "isthmusd: daemon.socket: /x: taken\n  remedy: Stop it.\n";
        assert_eq!(error_of(&format!("{log}{error}")), "daemon.socket: /x: taken\n  remedy: Stop it.");
        assert_eq!(error_of(error), "daemon.socket: /x: taken\n  remedy: Stop it.");
        assert_eq!(error_of("panicked\n"), "panicked");
    }
}
