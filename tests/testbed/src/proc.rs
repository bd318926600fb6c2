//! A running child: what it says, what is done to it, how it ended.
//!
//! In a sandbox there are three processes: bwrap outside, bwrap inside as pid 1, and the program. Lines and the end come by
//! the first; signals and [`View`]s go to the program.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, pidfd_send_signal, waitid,
};

use crate::deadline::{Deadline, TimedOut, eventually, eventually_some};
use crate::launch::{LaunchError, first_pid, is_tool};
use crate::lines::Lines;
use crate::view::View;

/// The longest wait for those steps of a start and an end that need no cooperation of the program.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);

/// The exit of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The process exited with this code.
    Code(i32),
    /// A signal ended it. (In a sandbox: an exit code above 128, which is how bwrap passes on a signal.)
    Signal(i32),
}

/// A process that has ended, and all it said that had not been asked for before.
#[derive(Debug)]
pub struct Finished {
    /// The exit status.
    pub exit: Exit,
    /// The lines of its standard output not yet taken.
    pub lines: Vec<String>,
    /// All of its standard error.
    pub stderr: String,
}

/// Waiting for a process, or reaching it, failed.
#[derive(Debug, thiserror::Error)]
pub enum ProcError {
    /// The awaited event did not happen in time.
    #[error("{program}: waiting for {awaited}: {late}{said}")]
    TimedOut {
        /// The program.
        program: String,
        /// The event that was awaited.
        awaited: String,
        /// The time waited.
        #[source]
        late: TimedOut,
        /// The program's last lines and its standard error.
        said: String,
    },
    /// The process ended before what we waited for.
    #[error("{program}: ended before {awaited}{said}")]
    Ended {
        /// The program.
        program: String,
        /// The event that was awaited.
        awaited: String,
        /// The program's last lines and its standard error.
        said: String,
    },
    /// The program cannot be signalled or written to.
    #[error("{program}: {action} refused{said}")]
    Refused {
        /// The program.
        program: String,
        /// The action that was tried.
        action: &'static str,
        /// The program's last lines and its standard error.
        said: String,
        /// The error of the system call.
        #[source]
        source: std::io::Error,
    },
}

/// A child process, killed with all its children when dropped.
#[derive(Debug)]
pub struct Proc {
    program: PathBuf,
    child: Child,
    /// A pidfd of `child`, readable once it has ended.
    life: Arc<OwnedFd>,
    inside: Option<InnerProcess>,
    lines: Lines,
    stdin: Option<ChildStdin>,
    stderr: File,
    exit: Option<Exit>,
}

/// The sandbox's processes behind bwrap.
#[derive(Debug)]
struct InnerProcess {
    first: i32,
    first_life: OwnedFd,
    program: OnceLock<(i32, Arc<OwnedFd>)>,
    /// bwrap writes its last word here; closed, it would die of SIGPIPE.
    _status: File,
}

impl Proc {
    pub(crate) fn started(
        program: PathBuf,
        mut child: Child,
        stderr: File,
        status: Option<File>,
    ) -> Result<Self, LaunchError> {
        let failed = |source| LaunchError::System { program: program.clone(), source };
        let life = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).map_err(|errno| failed(errno.into()))?;
        let stdout = child.stdout.take().expect("its standard output is piped");
        let lines = Lines::new(stdout.into()).map_err(failed)?;
        let stdin = child.stdin.take();
        let mut proc = Self { program, child, life: Arc::new(life), inside: None, lines, stdin, stderr, exit: None };
        if let Some(status) = status {
            proc.inside = InnerProcess::of(status);
            if proc.inside.is_none() {
                let _ended = proc.wait(Deadline::after(KILL_TIMEOUT)); // If it has not, dropping it will see to that.
                return Err(LaunchError::Sandbox { stderr: proc.stderr() });
            }
        }
        match proc.await_program() {
            Ok(()) => Ok(proc),
            Err(ProcError::Ended { .. }) if !proc.stderr().starts_with("bwrap: ") => Ok(proc), // It was quick.
            Err(_) => Err(LaunchError::Sandbox { stderr: proc.stderr() }),
        }
    }

    /// Waits until the program runs in the place of the tools that started it.
    fn await_program(&self) -> Result<(), ProcError> {
        if self.inside.is_some() {
            return self.target().map(drop);
        }
        let cmdline = format!("/proc/{}/cmdline", self.child.id()); // Empty once it has ended.
        let started = || !std::fs::read(&cmdline).is_ok_and(|words| is_tool(&words));
        eventually(Deadline::after(KILL_TIMEOUT), started).map_err(|late| self.timed_out("its program", late))
    }

    /// The next line of its standard output.
    pub fn line(&mut self, deadline: Deadline) -> Result<String, ProcError> {
        self.find_line(deadline, "a line", |_| true)
    }

    /// Takes lines up to one that is `wanted`.
    pub fn wait_line(&mut self, wanted: &str, deadline: Deadline) -> Result<(), ProcError> {
        self.find_line(deadline, &format!("the line {wanted:?}"), |line| line == wanted).map(drop)
    }

    /// Takes lines up to one that starts with `prefix`, and returns the rest of that one.
    pub fn wait_prefix(&mut self, prefix: &str, deadline: Deadline) -> Result<String, ProcError> {
        let line = self.find_line(deadline, &format!("a line {prefix:?}…"), |line| line.starts_with(prefix))?;
        Ok(line[prefix.len()..].to_owned())
    }

    /// Takes lines up to the first that `fits`, and returns that one. `awaited` says what that is, for the error.
    pub fn find_line(
        &mut self,
        deadline: Deadline,
        awaited: &str,
        mut fits: impl FnMut(&str) -> bool,
    ) -> Result<String, ProcError> {
        loop {
            match self.lines.next(self.life.as_fd(), deadline) {
                Ok(Some(line)) if fits(&line) => return Ok(line),
                Ok(Some(_)) => {}
                Ok(None) => return Err(self.ended(awaited)),
                Err(late) => return Err(self.timed_out(awaited, late)),
            }
        }
    }

    /// Writes a line to its standard input (see [`crate::Launch::with_stdin`]).
    ///
    /// # Panics
    ///
    /// When it has none.
    pub fn send_line(&mut self, line: &str) -> Result<(), ProcError> {
        let stdin = self.stdin.as_mut().expect("a Launch that is talking()");
        let written = stdin.write_all(format!("{line}\n").as_bytes());
        written.map_err(|source| self.refused("its input", source))
    }

    /// Ends its standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// All of its standard error so far.
    pub fn stderr(&self) -> String {
        let mut bytes = Vec::new();
        let mut chunk = [0; 4096];
        while let Ok(read @ 1..) = self.stderr.read_at(&mut chunk, bytes.len() as u64) {
            bytes.extend_from_slice(&chunk[..read]);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The pid of the program, as the host numbers it.
    pub fn pid(&self) -> Result<i32, ProcError> {
        self.target().map(|(pid, _)| pid)
    }

    /// A pidfd that can be read once it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.life.as_fd()
    }

    /// Returns the program's state as shown by /proc.
    pub fn view(&self) -> Result<View, ProcError> {
        self.target().map(|(pid, life)| View::with_life(pid, life))
    }

    /// Sends a signal to the program. One that has ended is no error: it may end at any time.
    pub fn signal(&self, signal: Signal) -> Result<(), ProcError> {
        let life = match self.target() {
            Ok((_, life)) => life,
            Err(ProcError::Ended { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        match pidfd_send_signal(&life, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(self.refused("a signal", errno.into())),
        }
    }

    /// SIGKILL.
    pub fn kill(&self) -> Result<(), ProcError> {
        self.signal(Signal::KILL)
    }

    /// SIGSTOP.
    pub fn freeze(&self) -> Result<(), ProcError> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub fn thaw(&self) -> Result<(), ProcError> {
        self.signal(Signal::CONT)
    }

    /// Waits for its end.
    pub fn wait(&mut self, deadline: Deadline) -> Result<Exit, ProcError> {
        if let Some(exit) = self.exit {
            return Ok(exit);
        }
        if let Err(late) = deadline.readable([self.life.as_fd()]) {
            return Err(self.timed_out("its end", late));
        }
        self.reap()
    }

    /// Returns the exit of the program, if it has ended.
    pub fn try_wait(&mut self) -> Result<Option<Exit>, ProcError> {
        match self.wait(Deadline::after(Duration::ZERO)) {
            Ok(exit) => Ok(Some(exit)),
            Err(ProcError::TimedOut { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Ends its input and waits for its end and for all it says.
    pub fn finish(mut self, deadline: Deadline) -> Result<Finished, ProcError> {
        self.close_stdin();
        let mut lines = Vec::new();
        loop {
            match self.lines.next(self.life.as_fd(), deadline) {
                Ok(Some(line)) => lines.push(line),
                Ok(None) => break,
                Err(late) => return Err(self.timed_out("its last line", late)),
            }
        }
        let exit = self.wait(deadline)?;
        Ok(Finished { exit, lines, stderr: self.stderr() })
    }

    /// Learns how it ended. It stays a zombie until dropped, so that its process group keeps its number until then.
    fn reap(&mut self) -> Result<Exit, ProcError> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = retry_on_intr(|| waitid(WaitId::PidFd(self.life.as_fd()), options));
        let status = status.map_err(|errno| self.refused("a wait", errno.into()))?;
        let status = status.expect("without NOHANG, waitid returns when there is a status");
        let exit = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) if code > 128 && self.inside.is_some() => Exit::Signal(code - 128),
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.expect("what did not exit was ended by a signal")),
        };
        self.exit = Some(exit);
        Ok(exit)
    }

    /// Pid and pidfd of the program itself.
    fn target(&self) -> Result<(i32, Arc<OwnedFd>), ProcError> {
        let awaited = "its program runs";
        let Some(inside) = &self.inside else {
            return Ok((self.child.id().cast_signed(), Arc::clone(&self.life)));
        };
        if let Some((pid, life)) = inside.program.get() {
            return Ok((*pid, Arc::clone(life)));
        }
        let deadline = Deadline::after(KILL_TIMEOUT);
        let found = eventually_some(deadline, || match inside.find_program() {
            Some(found) => Some(Some(found)),
            None if self.has_ended() => Some(None),
            None => None,
        });
        let (pid, life) = match found {
            Ok(Some(found)) => found,
            Ok(None) => return Err(self.ended(awaited)),
            Err(late) => return Err(self.timed_out(awaited, late)),
        };
        let (pid, life) = inside.program.get_or_init(|| (pid, Arc::new(life)));
        Ok((*pid, Arc::clone(life)))
    }

    fn has_ended(&self) -> bool {
        Deadline::after(Duration::ZERO).readable([self.life.as_fd()]).is_ok()
    }

    fn timed_out(&self, awaited: &str, late: TimedOut) -> ProcError {
        ProcError::TimedOut { program: self.name(), awaited: awaited.into(), late, said: self.said() }
    }

    fn ended(&self, awaited: &str) -> ProcError {
        ProcError::Ended { program: self.name(), awaited: awaited.into(), said: self.said() }
    }

    fn refused(&self, action: &'static str, source: std::io::Error) -> ProcError {
        ProcError::Refused { program: self.name(), action, said: self.said(), source }
    }

    fn name(&self) -> String {
        self.program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn said(&self) -> String {
        let errors = self.stderr().lines().map(|line| format!("\n  ! {line}")).collect::<String>();
        self.lines.seen() + &errors
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        // Whatever is refused here is refused because it is dead already.
        let group = Pid::from_child(&self.child); // Its number is not free before the wait below.
        let _ = kill_process_group(group, Signal::KILL);
        if let Some(inside) = &self.inside {
            let _ = pidfd_send_signal(&inside.first_life, Signal::KILL); // The pid namespace dies with its first process.
            let _ = Deadline::after(KILL_TIMEOUT).readable([inside.first_life.as_fd()]);
        }
        let _ = self.child.wait();
    }
}

impl Exit {
    /// True for an exit with code 0.
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }
}

impl Finished {
    /// Returns the program's lines if it exited with code 0.
    ///
    /// # Panics
    ///
    /// When it did not; the text shows what it said.
    pub fn expect_success(self) -> Vec<String> {
        let Self { exit, lines, stderr } = self;
        assert!(exit.success(), "{exit:?}\n{}\n{stderr}", lines.join("\n"));
        lines
    }
}

impl InnerProcess {
    fn of(status: File) -> Option<Self> {
        let first = first_pid(&status, Deadline::after(KILL_TIMEOUT))?;
        let first_life = pidfd_open(Pid::from_raw(first)?, PidfdFlags::empty()).ok()?;
        Some(Self { first, first_life, program: OnceLock::new(), _status: status })
    }

    /// The one child of the first process, once it runs something else than bwrap.
    fn find_program(&self) -> Option<(i32, OwnedFd)> {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.first)).ok()?;
        let pid = children.split_whitespace().next()?.parse().ok()?;
        let life = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        let exe = |pid: i32| std::fs::read_link(format!("/proc/{pid}/exe"));
        let started = exe(pid).ok()? != exe(self.first).ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok();
        // Still a child of it after the pidfd was opened: the pid had not passed to another process.
        (started && parent == Some(self.first)).then_some((pid, life))
    }
}
