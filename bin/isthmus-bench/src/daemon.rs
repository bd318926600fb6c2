//! A daemon of our own, in a folder of its own, with no configuration but ours, which ends with us.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use isthmus_netns::Host;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::case::not_installed;
use crate::pin;

/// The time that it may take to get ready, and to end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A daemon that is ready. Dropping it ends it.
#[derive(Debug)]
pub struct PrivateDaemon {
    child: Child,
    socket: PathBuf,
}

/// The configuration and place of a daemon.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan<'a> {
    /// The configuration, without the paths.
    pub(crate) config: &'a str,
    /// The host, if it is not this one.
    pub(crate) host: Option<&'a Host>,
    /// The CPUs that it may use; all, if none is named.
    pub(crate) cpus: &'a [usize],
    /// Serves all users, as root.
    pub(crate) is_of_system: bool,
}

impl PrivateDaemon {
    /// Starts it with the usual configuration and waits until it is ready.
    pub fn start(folder: &Path) -> Result<Self> {
        Self::start_as(folder, &Plan::default())
    }

    /// Starts it in a folder that is there, and waits until it is ready.
    pub(crate) fn start_as(folder: &Path, plan: &Plan<'_>) -> Result<Self> {
        let program = program()?;
        let (socket, config, log) = (folder.join("isthmus.sock"), folder.join("isthmusd.toml"), folder.join("log"));
        let prepare = |text: String| {
            fs::write(&config, text)?;
            let notify = UnixDatagram::bind(folder.join("notify"))?;
            Ok::<_, io::Error>((notify, File::create(&log)?))
        };
        let place = toml::Value::String(folder.to_string_lossy().into_owned());
        let at = toml::Value::from(socket.to_string_lossy().as_ref());
        let text = format!("daemon.runtime_dir = {place}\ndaemon.socket = {at}\n{}", plan.config);
        let (notify, stderr) = prepare(text).with_context(|| format!("cannot write into {}", folder.display()))?;
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        command.arg("run-bound");
        if !plan.cpus.is_empty() {
            command.arg(format!("{}{}", crate::worker::CPUS, pin::list(plan.cpus)));
        }
        command.arg(&program).args((!plan.is_of_system).then_some("--user")).arg("--config").arg(&config);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ISTHMUS_")) {
            command.env_remove(name);
        }
        command.env("NOTIFY_SOCKET", folder.join("notify")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let child = match plan.host {
            Some(host) => host.spawn(command),
            None => command.spawn(),
        };
        let child = child.with_context(|| format!("cannot start {}", program.display()))?;
        let mut daemon = Self { child, socket };
        daemon.wait_ready(&notify, &log)?;
        Ok(daemon)
    }

    /// The process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// The variables by which programs find it, and start no other.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        let variable = |name: &str, value: &std::ffi::OsStr| (OsString::from(name), value.to_owned());
        vec![variable("ISTHMUS_SOCKET", self.socket.as_os_str()), variable("ISTHMUS_AUTOSTART", "0".as_ref())]
    }

    /// The path of the socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    fn wait_ready(&mut self, notify: &UnixDatagram, log: &Path) -> Result<()> {
        let life = self.pidfd()?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()))?;
            let mut fds = [PollFd::new(notify, PollFlags::IN), PollFd::new(&life, PollFlags::IN)];
            let ready = match poll(&mut fds, Some(&left)) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.context("cannot wait for isthmusd")?,
            };
            let (is_ready, ended) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
            if is_ready {
                let mut packet = [0; 4096];
                let bytes = notify.recv(&mut packet).context("cannot hear isthmusd")?;
                if packet[..bytes].split(|&byte| byte == b'\n').any(|line| line == b"READY=1") {
                    return Ok(());
                }
            } else if ended {
                let status = self.child.wait().context("cannot wait for isthmusd")?;
                bail!("isthmusd ended before it was ready ({status}):\n{}", log_text(log));
            } else if ready == 0 {
                bail!("isthmusd was not ready after {} s:\n{}", TIMEOUT.as_secs(), log_text(log));
            }
        }
    }

    fn pidfd(&self) -> Result<rustix::fd::OwnedFd> {
        let pid = Pid::from_child(&self.child);
        pidfd_open(pid, PidfdFlags::empty()).context("cannot watch isthmusd")
    }

    /// In order, or else by force.
    fn stop(&mut self) -> Result<()> {
        let life = self.pidfd()?;
        pidfd_send_signal(&life, Signal::TERM).context("cannot stop isthmusd")?;
        let deadline = Instant::now() + TIMEOUT;
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
        if self.stop().is_err() {
            // It may have ended already.
            let _: std::io::Result<()> = self.child.kill();
        }
        let _: std::io::Result<_> = self.child.wait();
    }
}

/// Returns the reason that no daemon can be started, if there is one.
pub(crate) fn unavailable_reason() -> Option<String> {
    program().err().map(|error| format!("{error:#}"))
}

/// The daemon that was built or installed together with this program.
fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let beside = own.with_file_name("isthmusd");
    if !beside.is_file() {
        bail!(not_installed("isthmusd", "`make build` makes it, beside this program"));
    }
    Ok(beside)
}

fn log_text(log: &Path) -> String {
    fs::read_to_string(log).unwrap_or_default()
}
