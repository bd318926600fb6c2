//! A shell in a machine of QEMU, which runs commands from a serial line.

use std::time::Duration;

use isthmus_testbed::{Deadline, Proc, ProcError};

/// Returns the deadline for something that must happen. It only catches hangs, on a busy machine without hardware virtualization.
pub fn timeout() -> Deadline {
    Deadline::secs(100)
}

/// QEMU, with the shell's serial line at its standard input and output. Methods panic on failure, which fails the test.
#[derive(Debug)]
pub(crate) struct Shell {
    name: String,
    qemu: Proc,
    orders: u32,
    needs_keepalive: bool,
}

/// The interval at which an idle machine gets a line.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// The result of a command.
#[derive(Debug)]
pub struct CommandOutput {
    /// The exit code.
    pub code: i32,
    /// The lines of output.
    pub lines: Vec<String>,
}

impl Shell {
    pub(crate) fn new(name: String, qemu: Proc) -> Self {
        Self { name, qemu, orders: 0, needs_keepalive: false }
    }

    /// Sends a line now and then while a command runs, which the shell ignores. Xen in QEMU 7.2 may stop while it is idle, with the clocks of
    /// all its domains, until input arrives. No domain ran for 165 s once ("Platform timer appears to have unexpectedly wrapped 4 times"), and
    /// all continued at the next command.
    pub(crate) fn with_keepalive(self) -> Self {
        Self { needs_keepalive: true, ..self }
    }

    /// Returns the next line.
    fn line(&mut self, deadline: Deadline) -> Result<String, ProcError> {
        while self.needs_keepalive && deadline.remaining() > KEEPALIVE_INTERVAL {
            match self.qemu.line(Deadline::after(KEEPALIVE_INTERVAL)) {
                Err(ProcError::TimedOut { .. }) => self.qemu.send_line("@")?,
                line => return line,
            }
        }
        self.qemu.line(deadline)
    }

    /// Waits until the machine has booted. Returns its uptime in seconds, by its own clock.
    #[track_caller]
    pub(crate) fn ready(&mut self) -> String {
        let line = self.qemu.wait_prefix("@ready ", timeout()).unwrap_or_else(|error| panic!("{error}"));
        line.trim().to_owned()
    }

    /// Starts a command. Only one runs at a time.
    #[track_caller]
    pub(crate) fn start_command(&mut self, order: &str) {
        self.orders += 1;
        let order = format!("{} {order}", self.orders);
        self.qemu.send_line(&order).unwrap_or_else(|error| panic!("{}: {order}: {error}", self.name));
    }

    /// Waits until the command has ended.
    #[track_caller]
    pub(crate) fn finish_command(&mut self) -> CommandOutput {
        let (deadline, mark) = (timeout(), format!("@done {} ", self.orders));
        let mut lines = Vec::new();
        loop {
            let line = self.line(deadline);
            let line = line.unwrap_or_else(|error| panic!("{}: {}\n{error}", self.name, lines.join("\n")));
            let line = line.trim_end();
            if let Some(code) = line.strip_prefix(&mark) {
                let code = code.parse().unwrap_or_else(|_| panic!("{}: {line}", self.name));
                return CommandOutput { code, lines };
            }
            if !line.is_empty() {
                lines.push(line.to_owned());
            }
        }
    }

    /// Waits for a line of the running command that begins with `prefix`, and returns the rest of it.
    #[track_caller]
    pub(crate) fn wait_for_line(&mut self, prefix: &str) -> String {
        let heard = self.qemu.wait_prefix(prefix, timeout());
        heard.unwrap_or_else(|error| panic!("{}: {error}", self.name)).trim_end().to_owned()
    }

    /// Continues the serial line with another QEMU. Returns the previous one.
    pub(crate) fn move_to(&mut self, qemu: Proc) -> Proc {
        std::mem::replace(&mut self.qemu, qemu)
    }

    /// Ends QEMU as a power cut does.
    pub(crate) fn kill(&self) {
        self.qemu.kill().unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// Runs a command, which must succeed, and returns its output.
    #[track_caller]
    pub(crate) fn run(&mut self, order: &str) -> Vec<String> {
        self.start_command(order);
        self.finish_command().expect_success(order)
    }
}

impl CommandOutput {
    /// Returns the output, if the command has succeeded.
    #[track_caller]
    pub fn expect_success(self, order: &str) -> Vec<String> {
        assert_eq!(self.code, 0, "{order}\n{}", self.lines.join("\n"));
        self.lines
    }
}
