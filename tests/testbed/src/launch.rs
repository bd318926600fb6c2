//! A program about to be started, on the host or in a [`Sandbox`]: the same builder for both, so that a test can ask the same
//! of either.
//!
//! Either may be on a host of a [`Testbed`](isthmus_netns::Testbed) instead of this one: in another network namespace.
//!
//! The command line is `[bash …] [prlimit …] setpriv --pdeathsig KILL PROGRAM …` on the host and `[bash …] [prlimit …] bwrap … PROGRAM …`
//! in a sandbox. bash closes the descriptors that this process itself inherited, if any. All of these `exec`, so nothing survives a killed
//! test, and no code of ours runs between fork and exec.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use command_fds::{CommandFdExt, FdMapping};
use isthmus_netns::Host;

use crate::deadline::Deadline;
use crate::proc::Proc;
use crate::sandbox::{Sandbox, SandboxCommand};
use crate::view::View;

/// The setpriv options that make the program die with us.
const SETPRIV: [&str; 3] = ["--pdeathsig", "KILL", "--"];

/// A resource limit of the program to start (`prlimit(1)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// RLIMIT_MEMLOCK.
    LockedBytes(u64),
    /// RLIMIT_NOFILE.
    OpenFiles(u64),
    /// RLIMIT_AS.
    AddressSpaceBytes(u64),
    /// RLIMIT_FSIZE, which also bounds a memfd.
    FileBytes(u64),
    /// RLIMIT_NPROC.
    Processes(u64),
}

/// The reason why a program could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A tool the test bed rests on is not installed.
    #[error("{tool} is not installed; it comes with the package {package}")]
    ToolMissing {
        /// The program that was to be run.
        tool: &'static str,
        /// The package to install.
        package: &'static str,
    },
    /// The program does not exist.
    #[error("no program at {}", path.display())]
    NoProgram {
        /// The path at which it was looked for.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// Only root can start a program as another user.
    #[error("a process of uid {owner} can be started by root only")]
    OwnerNeedsRoot {
        /// The uid asked for.
        owner: u32,
    },
    /// The sandbox could not be made: most often, user namespaces are not allowed here.
    #[error("bwrap did not make the sandbox: {stderr}")]
    Sandbox {
        /// Standard error of bwrap.
        stderr: String,
    },
    /// A system call failed on the way.
    #[error("starting {}", program.display())]
    System {
        /// The program that was to be started.
        program: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
}

/// A program with its arguments, environment and surroundings; each [`Launch::spawn`] starts it once more.
#[derive(Debug)]
pub struct Launch {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, Option<OsString>)>,
    limits: Vec<Limit>,
    fds: Vec<(RawFd, OwnedFd)>,
    given: bool,
    piped_stdin: bool,
    stderr: Option<OwnedFd>,
    owner: Option<u32>,
    sandbox: Option<Sandbox>,
    host: Option<Host>,
}

impl Launch {
    /// `program` (a path) on the host, which sees this path as its name even if it is a symbolic link: some programs decide by it.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        let (args, env, limits, fds) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (piped_stdin, stderr, owner, sandbox, host) = (false, None, None, None, None);
        let program = program.into();
        Self { program, args, env, limits, fds, given: false, piped_stdin, stderr, owner, sandbox, host }
    }

    /// `program` in a sandbox.
    pub(crate) fn inside(sandbox: Sandbox, program: PathBuf) -> Self {
        Self { owner: sandbox.owner_uid(), sandbox: Some(sandbox), ..Self::new(program) }
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets a variable. On the host the others are inherited; a sandbox has only what is set, and a PATH.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), Some(value.as_ref().to_owned())));
        self
    }

    /// Removes an inherited variable.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), None));
        self
    }

    /// Sets a resource limit, soft and hard.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Runs the program as this uid (and gid), as seen from the host, without supplementary groups. Needs root, unless the uid is ours.
    pub fn owner(mut self, uid: u32) -> Self {
        self.owner = Some(uid);
        self
    }

    /// Starts the program on a host of a testbed; it ends with that host. (A sandbox has a network namespace of its own
    /// even there, unless it has [`Sandbox::host_network`].)
    pub fn host(mut self, host: &Host) -> Self {
        self.host = Some(host.clone());
        self
    }

    /// Gives the program a descriptor, under the number `number`.
    pub fn fd(mut self, number: RawFd, fd: OwnedFd) -> Self {
        self.fds.push((number, fd));
        self
    }

    /// Gives the program descriptors as systemd does: their names in a variable, and its own number in another.
    pub fn listen_fds(mut self, fds: Vec<(String, OwnedFd)>) -> Self {
        let names: Vec<&str> = fds.iter().map(|(name, _)| name.as_str()).collect();
        self = self.env("LISTEN_FDS", fds.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        self.given = true;
        self.fds.extend((3..).zip(fds.into_iter().map(|(_, fd)| fd)));
        self
    }

    /// Gives the program a standard input we can write to with [`Proc::send_line`]; otherwise it reads nothing.
    pub fn with_stdin(mut self) -> Self {
        self.piped_stdin = true;
        self
    }

    /// Gives the program this standard error, which [`Proc::stderr`] does not show.
    pub fn stderr(mut self, fd: OwnedFd) -> Self {
        self.stderr = Some(fd);
        self
    }

    /// Starts it.
    pub fn spawn(&self) -> Result<Proc, LaunchError> {
        let file = std::fs::canonicalize(&self.program)
            .map_err(|source| LaunchError::NoProgram { path: self.program.clone(), source })?;
        let failed = |source| LaunchError::System { program: self.program.clone(), source };
        let enclosure = self.sandbox.as_ref().map(|sandbox| sandbox.command_for(&file)).transpose()?;
        let program = std::path::absolute(&self.program).map_err(failed)?;
        let stderr = tempfile::tempfile().map_err(failed)?; // A file never fills up, even if no process reads it.
        let mut command = self.command(&program, enclosure.as_ref())?;
        command.stdin(if self.piped_stdin { Stdio::piped() } else { Stdio::null() });
        let own_stderr = match &self.stderr {
            Some(fd) => fd.try_clone(),
            None => stderr.try_clone().map(OwnedFd::from),
        };
        command.stdout(Stdio::piped()).stderr(own_stderr.map_err(failed)?);
        let status = self.give_descriptors(&mut command, enclosure).map_err(failed)?;
        let child = match &self.host {
            Some(host) => host.spawn(command), // Its spawning thread lives as long as the host.
            None => crate::spawner::spawn(command),
        };
        let child = child.map_err(failed)?;
        Proc::started(self.program.clone(), child, stderr, status)
    }

    fn command(&self, program: &Path, enclosure: Option<&SandboxCommand>) -> Result<Command, LaunchError> {
        let mut words = Vec::<OsString>::new();
        let inherited = self.inherited();
        if !inherited.is_empty() || self.given {
            let closes = inherited.iter().map(|number| format!("{number}>&- ")).collect::<String>();
            let own = if self.given { "export LISTEN_PID=$$; " } else { "" };
            words.push(tool("bash", "bash")?.into());
            words.extend(["-c".into(), format!("exec {closes}; {own}exec \"$@\"").into(), "bash".into()]);
        }
        if !self.limits.is_empty() {
            words.push(tool("prlimit", "util-linux")?.into());
            words.extend(self.limits.iter().map(|limit| limit.option().into()));
            words.push("--".into());
        }
        match enclosure {
            Some(enclosure) => words.extend_from_slice(&enclosure.words),
            None => {
                words.push(tool("setpriv", "util-linux")?.into());
                words.extend(SETPRIV.map(OsString::from));
                words.push(program.into());
            }
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(&self.args).process_group(0);
        if enclosure.is_some() {
            command.env_clear().env("PATH", "/usr/bin:/bin").current_dir("/");
        }
        if let Some(owner) = self.other_owner()? {
            command.uid(owner).gid(owner); // Supplementary groups go too: the standard library sees to it.
        }
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Ok(command)
    }

    /// The uid to change to, if any.
    fn other_owner(&self) -> Result<Option<u32>, LaunchError> {
        let ours = rustix::process::geteuid();
        match self.owner {
            Some(owner) if owner == ours.as_raw() => Ok(None),
            Some(owner) if !ours.is_root() => Err(LaunchError::OwnerNeedsRoot { owner }),
            owner => Ok(owner),
        }
    }

    /// Returns the descriptors that the program would inherit although the test did not pass them: those this process was started with.
    fn inherited(&self) -> Vec<RawFd> {
        let fds = View::own().fds().unwrap_or_default();
        let open = fds.iter().filter(|fd| fd.number > 2 && !fd.closes_on_exec).map(|fd| fd.number);
        let given = |number: &RawFd| self.fds.iter().any(|(given, _)| given == number);
        open.filter(|number| !given(number) && !SandboxCommand::FDS.contains(number)).collect()
    }

    /// Hands over the descriptors of the program and of the sandbox; returns where bwrap will tell its child's pid.
    fn give_descriptors(&self, command: &mut Command, enclosure: Option<SandboxCommand>) -> io::Result<Option<File>> {
        let mut given = Vec::new();
        for (number, fd) in &self.fds {
            given.push(FdMapping { parent_fd: fd.try_clone()?, child_fd: *number });
        }
        let status = match enclosure {
            Some(enclosure) => {
                let (fds, status) = enclosure.descriptors()?;
                given.extend(fds);
                Some(status)
            }
            None => None,
        };
        if !given.is_empty() {
            command.fd_mappings(given).map_err(|collision| io::Error::new(io::ErrorKind::InvalidInput, collision))?;
        }
        Ok(status)
    }
}

impl Limit {
    fn option(self) -> String {
        match self {
            Self::LockedBytes(max) => format!("--memlock={max}:{max}"),
            Self::OpenFiles(max) => format!("--nofile={max}:{max}"),
            Self::AddressSpaceBytes(max) => format!("--as={max}:{max}"),
            Self::FileBytes(max) => format!("--fsize={max}:{max}"),
            Self::Processes(max) => format!("--nproc={max}:{max}"),
        }
    }
}

/// True if this command line (of /proc) is still one of the tools before the program.
pub(crate) fn is_tool(cmdline: &[u8]) -> bool {
    let words = cmdline.split(|&byte| byte == 0).collect::<Vec<_>>();
    words.windows(SETPRIV.len()).any(|three| three == SETPRIV.map(str::as_bytes))
}

/// Finds a tool on the PATH.
pub(crate) fn tool(tool: &'static str, package: &'static str) -> Result<PathBuf, LaunchError> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let found = std::env::split_paths(&path).map(|dir| dir.join(tool)).find(|file| file.is_file());
    found.ok_or(LaunchError::ToolMissing { tool, package })
}

/// Reads what bwrap says of itself until it names the pid of the first process of the sandbox.
pub(crate) fn first_pid(status: &File, deadline: Deadline) -> Option<i32> {
    use std::io::Read;
    use std::os::fd::AsFd;
    let (mut text, mut buffer) = (String::new(), [0; 512]);
    while !text.contains('\n') {
        deadline.readable([status.as_fd()]).ok()?;
        let mut status = status;
        match status.read(&mut buffer) {
            Ok(0) | Err(_) => return None, // bwrap has gone; its stderr tells why, and our caller shows that.
            Ok(bytes) => text.push_str(&String::from_utf8_lossy(&buffer[..bytes])),
        }
    }
    let (_, after) = text.split_once("\"child-pid\":")?;
    after.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tool_is_named_with_its_package() {
        let error = tool("no-such-tool", "its-package").unwrap_err().to_string();
        assert!(error.contains("no-such-tool") && error.contains("package its-package"), "{error}");
    }
}
