//! A shell in a machine of QEMU's, which is told what to do on a serial line.

use std::time::Duration;

use isthmus_testbed::{Deadline, Proc, ProcError};

/// How long something may take that must happen, on a busy machine without hardware for it; it never judges speed.
pub fn timeout() -> Deadline {
    Deadline::secs(180)
}

/// QEMU, with the shell's line at its standard input and output. Methods panic where something fails: that fails the test.
#[derive(Debug)]
pub(crate) struct Shell {
    name: String,
    qemu: Proc,
    orders: u32,
    needs_keepalive: bool,
}

/// How long a machine that dozes is left alone.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// What came of an order.
#[derive(Debug)]
pub struct CommandOutput {
    /// Its exit code.
    pub code: i32,
    /// What it said.
    pub lines: Vec<String>,
}

impl Shell {
    pub(crate) fn new(name: String, qemu: Proc) -> Self {
        Self { name, qemu, orders: 0, needs_keepalive: false }
    }

    /// Of a machine that may stop when it has nothing to do, with the clocks of all its domains, until somebody says something to it. Xen does, in
    /// QEMU 7.2: once no domain ran for 165 s, to Xen's own surprise ("Platform timer appears to have unexpectedly wrapped 4 times"), and all
    /// went on at the next order. So it hears a word now and then, which is no order.
    pub(crate) fn with_keepalive(self) -> Self {
        Self { needs_keepalive: true, ..self }
    }

    /// The next line.
    fn line(&mut self, deadline: Deadline) -> Result<String, ProcError> {
        while self.needs_keepalive && deadline.remaining() > KEEPALIVE_INTERVAL {
            match self.qemu.line(Deadline::after(KEEPALIVE_INTERVAL)) {
                Err(ProcError::TimedOut { .. }) => self.qemu.send_line("@")?,
                line => return line,
            }
        }
        self.qemu.line(deadline)
    }

    /// Waits until it has started, and says how many seconds that took by its own clock.
    #[track_caller]
    pub(crate) fn ready(&mut self) -> String {
        let line = self.qemu.wait_prefix("@ready ", timeout()).unwrap_or_else(|error| panic!("{error}"));
        line.trim().to_owned()
    }

    /// Gives an order. Only one at a time.
    #[track_caller]
    pub(crate) fn start_command(&mut self, order: &str) {
        self.orders += 1;
        let order = format!("{} {order}", self.orders);
        self.qemu.send_line(&order).unwrap_or_else(|error| panic!("{}: {order}: {error}", self.name));
    }

    /// Waits until that is done.
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

    /// Waits for a line of the present order that begins so, and returns the rest of it.
    #[track_caller]
    pub(crate) fn wait_for_line(&mut self, prefix: &str) -> String {
        let heard = self.qemu.wait_prefix(prefix, timeout());
        heard.unwrap_or_else(|error| panic!("{}: {error}", self.name)).trim_end().to_owned()
    }

    /// The line goes on with another QEMU. What is returned is the one before.
    pub(crate) fn move_to(&mut self, qemu: Proc) -> Proc {
        std::mem::replace(&mut self.qemu, qemu)
    }

    /// Ends QEMU as a power cut does.
    pub(crate) fn kill(&self) {
        self.qemu.kill().unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// Gives an order that has to end well, and returns what it says.
    #[track_caller]
    pub(crate) fn run(&mut self, order: &str) -> Vec<String> {
        self.start_command(order);
        self.finish_command().expect_success(order)
    }
}

impl CommandOutput {
    /// What was said, if it ended well.
    #[track_caller]
    pub fn expect_success(self, order: &str) -> Vec<String> {
        assert_eq!(self.code, 0, "{order}\n{}", self.lines.join("\n"));
        self.lines
    }
}
