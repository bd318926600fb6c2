//! The test's side of a domain in a process of its own.

use isthmus_testbed::{DaemonPlan, DaemonProcess, Deadline, Launch, Proc, ProcError, Sandbox, Scratch, View, binary};
use std::path::PathBuf;

/// Seconds after which something that must happen counts as a hang. It never judges speed.
pub const TIMEOUT_S: u64 = 60;

/// A domain in a process of its own, driven line by line. Killed when dropped.
#[derive(Debug)]
pub struct TestProgram {
    proc: Proc,
    name: String,
}

/// A daemon on a scratch directory.
///
/// # Panics
///
/// When it cannot be started.
pub fn daemon(scratch: &Scratch, toml: &str) -> DaemonProcess {
    binary("isthmusd", "isthmusd").unwrap_or_else(|error| panic!("{error}")); // Built before its time runs.
    plan(scratch, toml).start(Deadline::secs(TIMEOUT_S)).unwrap_or_else(|error| panic!("{error}"))
}

/// How it is started.
pub fn plan(scratch: &Scratch, toml: &str) -> DaemonPlan {
    DaemonProcess::on(scratch)
        .config(&format!("daemon.socket = \"{{socket}}\"\ndaemon.runtime_dir = \"{{state}}\"\n{toml}"))
}

/// The program.
///
/// # Panics
///
/// When it is not built.
pub fn program() -> PathBuf {
    binary("isthmus-suites", "isthmus-test-program").unwrap_or_else(|error| panic!("{error}"))
}

impl TestProgram {
    /// One that runs as `launch` says; not attached yet.
    ///
    /// # Panics
    ///
    /// When it cannot be started. All methods panic where the program fails: that fails the test.
    pub fn start(launch: Launch) -> Self {
        let proc = launch.with_stdin().spawn().unwrap_or_else(|error| panic!("{error}"));
        Self { proc, name: String::new() }
    }

    /// One beside the daemon, attached under `name`.
    pub fn launch_on_host(daemon: &DaemonProcess, name: &str) -> Self {
        Self::start_attached(daemon.launch_on_host(program()), name, "")
    }

    /// One in a sandbox, attached under `name`.
    pub fn launch_in_sandbox(daemon: &DaemonProcess, sandbox: Sandbox, name: &str) -> Self {
        Self::start_attached(daemon.launch_in_sandbox(sandbox, program()), name, "")
    }

    /// One that runs as `launch` says, attached under `name`, with options of the command `attach`. Endpoint 0 is open.
    pub fn start_attached(launch: Launch, name: &str, options: &str) -> Self {
        let mut actor = Self::start(launch);
        name.clone_into(&mut actor.name);
        let answer = actor.ask(&format!("attach name={name} {options}"));
        assert!(answer.starts_with("attached "), "{name}: {answer}");
        assert_eq!(actor.ask("open"), "open e0");
        actor
    }

    /// Gives an order and waits for the answer.
    pub fn ask(&mut self, order: &str) -> String {
        self.send_line(order);
        self.answer()
    }

    /// Gives an order and asserts that the answer is `answer`.
    #[track_caller]
    pub fn expect(&mut self, order: &str, answer: &str) {
        let is = self.ask(order);
        assert_eq!(is, answer, "{} was told: {order}", self.name);
    }

    /// Gives an order; its answer is asked for later.
    pub fn send_line(&mut self, order: &str) {
        self.try_say(order).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Gives an order to a program that may be dead.
    pub fn try_say(&mut self, order: &str) -> Result<(), ProcError> {
        self.proc.send_line(order)
    }

    /// The answer to the oldest order not answered yet.
    pub fn answer(&mut self) -> String {
        self.answer_within(Deadline::secs(TIMEOUT_S)).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// Returns the answer, or an error if the program ended or said nothing in time.
    pub fn answer_within(&mut self, deadline: Deadline) -> Result<String, ProcError> {
        self.proc.line(deadline)
    }

    /// Returns the process of the program.
    pub fn proc(&mut self) -> &mut Proc {
        &mut self.proc
    }

    /// Returns the program's state as shown by /proc.
    pub fn view(&self) -> View {
        self.proc.view().unwrap_or_else(|error| panic!("{error}"))
    }

    /// SIGKILL, and its end.
    pub fn kill(mut self) {
        self.proc.kill().unwrap_or_else(|error| panic!("{error}"));
        self.proc.wait(Deadline::secs(TIMEOUT_S)).unwrap_or_else(|error| panic!("{error}"));
    }
}
