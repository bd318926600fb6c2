//! A daemon of our own, in a folder of its own, with no configuration but that, which ends with us.

use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::folder::Folder;

/// How long it may take to get ready, and to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Running and ready; told to end when dropped.
#[derive(Debug)]
pub(super) struct PrivateDaemon {
    child: Child,
    socket: PathBuf,
}

impl PrivateDaemon {
    /// Starts it and waits until it is ready.
    pub(super) fn start(folder: &Folder) -> Result<Self> {
        let folder = folder.path();
        let program = program()?;
        let (socket, config, log) = (folder.join("isthmus.sock"), folder.join("isthmusd.toml"), folder.join("log"));
        let prepare = |text: String| {
            fs::write(&config, text)?;
            let notify = UnixDatagram::bind(folder.join("notify"))?;
            Ok::<_, std::io::Error>((notify, File::create(&log)?))
        };
        let place = toml::Value::String(folder.to_string_lossy().into_owned());
        let text = format!(
            "daemon.runtime_dir = {place}\ndaemon.socket = {}\n",
            toml::Value::from(socket.to_string_lossy().as_ref())
        );
        let (notify, stderr) = prepare(text).with_context(|| format!("cannot write into {}", folder.display()))?;
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        command.arg("bound").arg(&program).arg("--user").arg("--config").arg(&config);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ISTHMUS_")) {
            command.env_remove(name);
        }
        let child = command
            .env("NOTIFY_SOCKET", folder.join("notify"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mut daemon = Self { child, socket };
        daemon.wait_ready(&notify, &log)?;
        Ok(daemon)
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    fn wait_ready(&mut self, notify: &UnixDatagram, log: &Path) -> Result<()> {
        let life = self.life()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()))?;
            let mut fds = [PollFd::new(notify, PollFlags::IN), PollFd::new(&life, PollFlags::IN)];
            let ready = match poll(&mut fds, Some(&left)) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.context("cannot wait for isthmusd")?,
            };
            let (told, ended) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
            if told {
                let mut packet = [0; 4096];
                let bytes = notify.recv(&mut packet).context("cannot hear isthmusd")?;
                if packet[..bytes].split(|&byte| byte == b'\n').any(|line| line == b"READY=1") {
                    return Ok(());
                }
            } else if ended {
                let status = self.child.wait().context("cannot wait for isthmusd")?;
                bail!("isthmusd ended before it was ready ({status}):\n{}", said(log));
            } else if ready == 0 {
                bail!("isthmusd was not ready after {} s:\n{}", PATIENCE.as_secs(), said(log));
            }
        }
    }

    fn life(&self) -> Result<rustix::fd::OwnedFd> {
        let pid = Pid::from_child(&self.child);
        pidfd_open(pid, PidfdFlags::empty()).context("cannot watch isthmusd")
    }

    /// In order, or else by force.
    fn end(&mut self) -> Result<()> {
        let life = self.life()?;
        pidfd_send_signal(&life, Signal::TERM).context("cannot stop isthmusd")?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()))?;
            match poll(&mut [PollFd::new(&life, PollFlags::IN)], Some(&left)) {
                Ok(0) => bail!("isthmusd does not end"),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno).context("cannot wait for isthmusd"),
            }
        }
    }
}

impl Drop for PrivateDaemon {
    fn drop(&mut self) {
        if self.end().is_err() {
            // It may have ended by itself.
            let _: std::io::Result<()> = self.child.kill();
        }
        let _: std::io::Result<_> = self.child.wait();
    }
}

/// The daemon that was built or installed together with this program.
fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let beside = own.with_file_name("isthmusd");
    if !beside.is_file() {
        bail!("isthmusd is not at {}; build it (`make build`) or install it beside this program", beside.display());
    }
    Ok(beside)
}

fn said(log: &Path) -> String {
    fs::read_to_string(log).unwrap_or_default()
}
