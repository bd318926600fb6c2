//! A guest: QEMU, and a shell in it that is told what to do (`guest/init`).

use std::path::Path;

use isthmus_testbed::{Deadline, Launch, Proc};

use crate::kit::Kit;

/// How long something may take that must happen, on a busy machine without hardware for it; it never judges speed.
pub fn patience() -> Deadline {
    Deadline::secs(180)
}

/// What the kernel is told: nothing that takes time where time is emulated, no word that nobody reads, and a panic ends QEMU.
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 nokaslr mitigations=off audit=0 apparmor=0 tsc=reliable \
                            no_timer_check nowatchdog random.trust_cpu=on";

/// A machine of its own, gone when dropped. Methods panic where it fails: that fails the test.
#[derive(Debug)]
pub struct Guest {
    /// Its number; it is called `guest0` or `guest1`.
    pub number: u32,
    qemu: Proc,
    orders: u32,
}

/// What came of an order.
#[derive(Debug)]
pub struct Done {
    /// Its exit code.
    pub code: i32,
    /// What it said.
    pub lines: Vec<String>,
}

impl Guest {
    /// Switches it on, with these files and these devices.
    pub(crate) fn boot(kit: &Kit, number: u32, files: &Path, devices: &[String]) -> Self {
        // A processor of the kind "max" would copy memory by an instruction that is emulated byte by byte.
        let launch = Launch::new("/usr/bin/nice").args(["-n", "10"]).arg(&kit.qemu).talking();
        let launch = launch.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        let launch = launch.args(["-accel", "tcg", "-cpu", "Nehalem", "-smp", "1", "-m", "512", "-serial", "stdio"]);
        let launch = launch.arg("-kernel").arg(&kit.kernel).arg("-initrd").arg(files);
        let launch = launch.args(["-append", COMMAND_LINE]).args(devices);
        let qemu = launch.spawn().unwrap_or_else(|error| panic!("{error}"));
        Self { number, qemu, orders: 0 }
    }

    /// Waits until it has started, and says how many seconds that took by its own clock.
    pub(crate) fn ready(&mut self) -> String {
        let line = self.qemu.wait_prefix("@ready ", patience()).unwrap_or_else(|error| panic!("{error}"));
        line.trim().to_owned()
    }

    /// What its board is called.
    pub fn board(&self) -> String {
        format!("guest{}:0", self.number)
    }

    /// Gives an order. Only one at a time.
    #[track_caller]
    pub fn begin(&mut self, order: &str) {
        self.orders += 1;
        let order = format!("{} {order}", self.orders);
        self.qemu.say(&order).unwrap_or_else(|error| panic!("guest{}: {order}: {error}", self.number));
    }

    /// Waits until that is done.
    #[track_caller]
    pub fn end(&mut self) -> Done {
        let (deadline, mark) = (patience(), format!("@done {} ", self.orders));
        let mut lines = Vec::new();
        loop {
            let line = self.qemu.line(deadline);
            let line = line.unwrap_or_else(|error| panic!("guest{}: {}\n{error}", self.number, lines.join("\n")));
            let line = line.trim_end();
            if let Some(code) = line.strip_prefix(&mark) {
                let code = code.parse().unwrap_or_else(|_| panic!("guest{}: {line}", self.number));
                return Done { code, lines };
            }
            if !line.is_empty() {
                lines.push(line.to_owned());
            }
        }
    }

    /// Waits for a line of the present order that begins so, and returns the rest of it.
    #[track_caller]
    pub fn hear(&mut self, prefix: &str) -> String {
        let heard = self.qemu.wait_prefix(prefix, patience());
        heard.unwrap_or_else(|error| panic!("guest{}: {error}", self.number)).trim_end().to_owned()
    }

    /// Ends it as a power cut does.
    pub fn kill(&self) {
        self.qemu.kill().unwrap_or_else(|error| panic!("guest{}: {error}", self.number));
    }

    /// Gives an order that has to end well, and returns what it says.
    #[track_caller]
    pub fn run(&mut self, order: &str) -> Vec<String> {
        self.begin(order);
        self.end().expect_success(order)
    }
}

impl Done {
    /// What was said, if it ended well.
    #[track_caller]
    pub fn expect_success(self, order: &str) -> Vec<String> {
        assert_eq!(self.code, 0, "{order}\n{}", self.lines.join("\n"));
        self.lines
    }
}
