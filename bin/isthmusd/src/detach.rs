//! Going on in the background. The command starts itself again as a session leader, waits for its word that it answers, and
//! comes back; the library calls it that way, and keeps no child.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use isthmus_platform::seqpacket;

/// The background's exit code where another daemon serves the socket.
pub(crate) const SOCKET_IN_USE: u8 = 3;

/// What the background says when it answers.
const READY: &[u8] = b"ready\n";

/// How long another daemon that has the socket may take to answer on it.
const OTHER_DAEMON_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts the background and waits for it.
pub(crate) fn detach(socket: &Path) -> Result<ExitCode> {
    let program = std::env::current_exe().context("finding this program")?;
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--detach");
    let mut child = Command::new(program)
        .args(arguments)
        .arg("--detached")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting the background process")?;
    let mut reply = [0; READY.len()];
    let answered = child.stdout.take().is_some_and(|mut out| out.read_exact(&mut reply).is_ok());
    if answered && reply == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let mut stderr_text = String::new();
    if let Some(mut err) = child.stderr.take() {
        let _ = err.read_to_string(&mut stderr_text);
    }
    let status = child.wait().context("waiting for the background process")?;
    if status.code() == Some(i32::from(SOCKET_IN_USE)) {
        return wait_for_other(socket);
    }
    bail!("the background process ended with {status}: {}", stderr_text.trim())
}

/// Another daemon has the socket: that is as good, once it answers.
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

/// In the background: no terminal's signals reach us.
pub(crate) fn start_session() {
    // It fails only for a session leader, which is what we want to be.
    let _ = rustix::process::setsid();
}

/// In the background: tells the command to come back. From here on nobody reads what we say, so we say it to nobody.
pub(crate) fn ready() {
    let mut out = std::io::stdout();
    let _ = out.write_all(READY).and_then(|()| out.flush());
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null.as_fd());
        let _ = rustix::stdio::dup2_stderr(null.as_fd());
    }
}
