//! A real `isthmusd` on a directory of its own: started, stopped, killed, and started again where it was.
//!
//! ```text
//!  SCRATCH/run/isthmus.sock    the socket; `run` is all a sandbox is shown (at /run/isthmus)
//!  SCRATCH/state/              what the daemon keeps for its next life
//!  SCRATCH/isthmusd.toml       its configuration
//!  SCRATCH/notify              where it says READY=1
//! ```

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use isthmus_netns::Host;
use rustix::process::Signal;

use crate::binary::{BinaryError, binary};
use crate::deadline::Deadline;
use crate::launch::{Launch, LaunchError, Limit};
use crate::notify::{NotifyError, NotifySocket};
use crate::proc::{Exit, Proc, ProcError};
use crate::sandbox::Sandbox;
use crate::scratch::Scratch;
use crate::view::View;

/// The path at which a sandbox sees the daemon's `run` folder.
const RUN_INSIDE: &str = "/run/isthmus";
const SOCKET: &str = "isthmus.sock";

/// The plan of a daemon's start.
#[derive(Debug)]
pub struct DaemonPlan {
    dir: PathBuf,
    program: Option<PathBuf>,
    config: Option<String>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    owner: Option<u32>,
    limits: Vec<Limit>,
    host: Option<Host>,
    has_fd_store: bool,
    stderr: Option<OwnedFd>,
}

/// A running daemon that has said READY=1; killed when dropped.
#[derive(Debug)]
pub struct DaemonProcess {
    plan: DaemonPlan,
    notify: NotifySocket,
    proc: Proc,
}

/// A daemon that has ended and can be started again.
#[derive(Debug)]
pub struct StoppedDaemon {
    /// The exit of the daemon.
    pub exit: Exit,
    /// All of its standard error.
    pub stderr: String,
    plan: DaemonPlan,
}

/// A daemon did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum DaemonProcessError {
    /// The daemon's program is not there.
    #[error("isthmusd cannot be run")]
    Program(#[from] BinaryError),
    /// The daemon could not be started.
    #[error("isthmusd cannot be started")]
    Launch(#[from] LaunchError),
    /// The daemon was started and did not get ready.
    #[error("isthmusd did not get ready: {error}\n{stderr}")]
    NotReady {
        /// The cause.
        error: NotifyError,
        /// Output of the daemon.
        stderr: String,
    },
    /// The daemon did not end on request.
    #[error("isthmusd cannot be stopped")]
    Stop(#[from] ProcError),
    /// The daemon's directory could not be prepared.
    #[error("the directory of isthmusd")]
    Directory(#[from] io::Error),
}

impl DaemonPlan {
    /// A daemon that will live in `scratch`.
    pub fn on(scratch: &Scratch) -> Self {
        let (args, env) = (Vec::new(), Vec::new());
        Self {
            dir: scratch.path().into(),
            program: None,
            config: None,
            args,
            env,
            owner: None,
            limits: Vec::new(),
            host: None,
            has_fd_store: false,
            stderr: None,
        }
    }

    /// Sets the daemon's configuration, passed with `--config`. `{run}`, `{state}` and `{socket}` become paths.
    pub fn config(mut self, toml: &str) -> Self {
        self.config = Some(toml.to_owned());
        self
    }

    /// Adds an argument, in which `{run}`, `{state}` and `{socket}` become paths too.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Sets a variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Runs the daemon as another user, which gets its folders. Needs root and a [`Scratch::shared`].
    pub fn owner(mut self, uid: u32) -> Self {
        self.owner = Some(uid);
        self
    }

    /// Sets a resource limit of the daemon, soft and hard.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Runs it on a host of a testbed, and so the programs that [`DaemonProcess::launch_on_host`] and
    /// [`DaemonProcess::launch_in_sandbox`] start. Its folders are those of this machine.
    pub fn host(mut self, host: &Host) -> Self {
        self.host = Some(host.clone());
        self
    }

    /// Keeps descriptors for its next life, as systemd does with `FileDescriptorStoreMax=`.
    pub fn with_fd_store(mut self) -> Self {
        self.has_fd_store = true;
        self
    }

    /// Gives the daemon this standard error in place of a file.
    pub fn stderr(mut self, fd: impl Into<OwnedFd>) -> Self {
        self.stderr = Some(fd.into());
        self
    }

    /// Another program than the workspace's isthmusd.
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }

    /// Starts it and waits until it is ready.
    pub fn start(self, deadline: Deadline) -> Result<DaemonProcess, DaemonProcessError> {
        let (run, state) = (self.run(), self.state());
        for dir in [&run, &state] {
            std::fs::create_dir_all(dir)?;
            std::fs::set_permissions(dir, std::fs::metadata(&self.dir)?.permissions())?;
            if self.owner.is_some() {
                chown(dir, self.owner, self.owner)?;
            }
        }
        let path = self.dir.join("notify");
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let mut notify = NotifySocket::listen(&path)?;
        if self.owner.is_some() {
            chown(&path, self.owner, self.owner)?;
        }
        let proc = self.launch(&mut notify, deadline)?;
        Ok(DaemonProcess { plan: self, notify, proc })
    }

    fn launch(&self, notify: &mut NotifySocket, deadline: Deadline) -> Result<Proc, DaemonProcessError> {
        notify.forget()?;
        let program = match &self.program {
            Some(program) => program.clone(),
            None => binary("isthmusd", "isthmusd")?,
        };
        let mut launch = Launch::new(program).env("NOTIFY_SOCKET", notify.path()).env_remove("ISTHMUS_SOCKET");
        if let Some(file) = self.write_config()? {
            launch = launch.arg("--config").arg(file);
        }
        for arg in &self.args {
            launch = match arg.to_str() {
                Some(arg) => launch.arg(self.fill(arg)),
                None => launch.arg(arg),
            };
        }
        for (name, value) in &self.env {
            launch = launch.env(name, value);
        }
        if self.has_fd_store {
            launch = launch.env("FDSTORE", "512").listen_fds(notify.store()?.copies()?);
        }
        if let Some(stderr) = &self.stderr {
            launch = launch.stderr(stderr.try_clone()?);
        }
        if let Some(owner) = self.owner {
            launch = launch.owner(owner);
        }
        for limit in &self.limits {
            launch = launch.limit(*limit);
        }
        if let Some(host) = &self.host {
            launch = launch.host(host);
        }
        let proc = launch.spawn()?;
        let ready = notify.wait("READY=1", proc.pidfd(), deadline);
        ready.map_err(|error| DaemonProcessError::NotReady { error, stderr: proc.stderr() })?;
        Ok(proc)
    }

    /// Writes the configuration, and returns its file.
    fn write_config(&self) -> io::Result<Option<PathBuf>> {
        let Some(config) = &self.config else { return Ok(None) };
        let file = self.dir.join("isthmusd.toml");
        std::fs::write(&file, self.fill(config))?;
        Ok(Some(file))
    }

    fn run(&self) -> PathBuf {
        self.dir.join("run")
    }

    fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    fn fill(&self, text: &str) -> String {
        let (run, state) = (self.run(), self.state());
        let text = text.replace("{socket}", &run.join(SOCKET).to_string_lossy());
        text.replace("{run}", &run.to_string_lossy()).replace("{state}", &state.to_string_lossy())
    }
}

impl DaemonProcess {
    /// A plan for a daemon in `scratch`.
    pub fn on(scratch: &Scratch) -> DaemonPlan {
        DaemonPlan::on(scratch)
    }

    /// Returns the path of the daemon's socket.
    pub fn socket(&self) -> PathBuf {
        self.plan.run().join(SOCKET)
    }

    /// The folder with its socket.
    pub fn run_dir(&self) -> PathBuf {
        self.plan.run()
    }

    /// Returns the folder with the state that a restarted daemon reads.
    pub fn state_dir(&self) -> PathBuf {
        self.plan.state()
    }

    /// Returns the daemon's process.
    pub fn proc(&mut self) -> &mut Proc {
        &mut self.proc
    }

    /// Returns the daemon's state as shown by /proc.
    pub fn view(&self) -> Result<View, ProcError> {
        self.proc.view()
    }

    /// Returns the messages that the daemon sends to its service manager.
    pub fn notify(&mut self) -> &mut NotifySocket {
        &mut self.notify
    }

    /// A program on the host that will find this daemon and never start another.
    pub fn launch_on_host(&self, program: impl Into<PathBuf>) -> Launch {
        self.with_daemon_variables(Launch::new(program), &self.socket())
    }

    /// Launches a program as [`launch_on_host`](Self::launch_on_host) does, but in a sandbox, which gets only the folder with the socket.
    pub fn launch_in_sandbox(&self, sandbox: Sandbox, program: impl Into<PathBuf>) -> Launch {
        let launch = sandbox.bind(self.run_dir(), RUN_INSIDE).command(program);
        self.with_daemon_variables(launch, &Path::new(RUN_INSIDE).join(SOCKET))
    }

    /// SIGTERM, and the wait for its end.
    pub fn stop(self, deadline: Deadline) -> Result<StoppedDaemon, DaemonProcessError> {
        self.end(Signal::TERM, deadline)
    }

    /// SIGKILL, and the wait for its end.
    pub fn kill(self, deadline: Deadline) -> Result<StoppedDaemon, DaemonProcessError> {
        self.end(Signal::KILL, deadline)
    }

    /// Has the daemon read another configuration, now (SIGHUP) and in its next lives.
    pub fn reload(&mut self, toml: &str) -> Result<(), DaemonProcessError> {
        self.set_config(toml);
        self.plan.write_config()?;
        Ok(self.proc.signal(Signal::HUP)?)
    }

    /// Sets the configuration of the next lives.
    pub fn set_config(&mut self, toml: &str) {
        self.plan.config = Some(toml.to_owned());
    }

    /// SIGKILL, and the next life, in place.
    pub fn kill_and_restart(&mut self, deadline: Deadline) -> Result<(), DaemonProcessError> {
        self.proc.kill()?;
        self.start_again(deadline)
    }

    /// The next life, in place, of one that ends or has ended.
    pub fn start_again(&mut self, deadline: Deadline) -> Result<(), DaemonProcessError> {
        self.proc.wait(deadline)?;
        self.proc = self.plan.launch(&mut self.notify, deadline)?;
        Ok(())
    }

    fn end(mut self, signal: Signal, deadline: Deadline) -> Result<StoppedDaemon, DaemonProcessError> {
        self.proc.signal(signal)?;
        let exit = self.proc.wait(deadline)?;
        Ok(StoppedDaemon { exit, stderr: self.proc.stderr(), plan: self.plan })
    }

    fn with_daemon_variables(&self, launch: Launch, socket: &Path) -> Launch {
        let launch = launch.env("ISTHMUS_SOCKET", socket).env("ISTHMUS_AUTOSTART", "0");
        match &self.plan.host {
            Some(host) => launch.host(host),
            None => launch,
        }
    }
}

impl StoppedDaemon {
    /// Starts it again on the same directory.
    pub fn start(self, deadline: Deadline) -> Result<DaemonProcess, DaemonProcessError> {
        self.plan.start(deadline)
    }

    /// Starts it again with another configuration.
    pub fn start_with(self, toml: &str, deadline: Deadline) -> Result<DaemonProcess, DaemonProcessError> {
        self.plan.config(toml).start(deadline)
    }
}
