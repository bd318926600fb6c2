//! A guest: QEMU, and a shell in it that runs commands from the serial line (`guest/init`).

use std::path::Path;

use isthmus_netns::Host;
use isthmus_testbed::{Launch, Proc};

use crate::guest_kit::GuestKit;
use crate::shell::{CommandOutput, Shell};

/// The kernel's command line. It disables what is slow on an emulated processor and messages that no test reads. A panic ends QEMU.
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 nokaslr mitigations=off audit=0 apparmor=0 tsc=reliable \
                            no_timer_check nowatchdog random.trust_cpu=on";

/// Returns the kernel parameter with the frequency of the guest's clock. An emulated time stamp counter is that of this machine. Under load
/// the guest would measure a wrong frequency, and its seconds would be wrong. Empty if the frequency is not known here either.
fn clock() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value =
        |key| cpuinfo.lines().find_map(|line| line.strip_prefix(key)?.split_once(':')).map(|(_, value)| value.trim());
    let is_known = value("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "tsc_known_freq"));
    let mhz = value("cpu MHz").filter(|_| is_known).and_then(|mhz| mhz.parse::<f64>().ok());
    mhz.map(|mhz| format!(" tsc_early_khz={:.0}", mhz * 1e3)).unwrap_or_default()
}

/// Returns the kernel's whole command line.
pub(crate) fn kernel_line() -> String {
    format!("{COMMAND_LINE}{}", clock())
}

/// A virtual machine. Dropping it ends QEMU. Methods panic on failure, which fails the test.
#[derive(Debug)]
pub struct Guest {
    /// The guest's number. Guests are named `guest0`, `guest1` and so on.
    pub number: u32,
    shell: Shell,
}

impl Guest {
    /// Wraps a guest that something else starts, by its serial line.
    pub(crate) fn at_line(number: u32, line: Proc) -> Self {
        Self { number, shell: Shell::new(format!("guest{number}"), line) }
    }

    /// Boots a guest with these files and devices.
    pub(crate) fn boot(kit: &GuestKit, number: u32, files: &Path, devices: &[String]) -> Self {
        Self::boot_on(None, kit, number, files, devices)
    }

    /// Boots a guest on a host of a testbed, so that it can use the cards of that host.
    pub(crate) fn boot_on(host: Option<&Host>, kit: &GuestKit, number: u32, files: &Path, devices: &[String]) -> Self {
        Self::at_line(number, Self::start_qemu(host, kit, files, devices))
    }

    /// Starts QEMU.
    fn start_qemu(host: Option<&Host>, kit: &GuestKit, files: &Path, devices: &[String]) -> Proc {
        // A processor of the type "max" would copy memory by an instruction that is emulated byte by byte. Without a possible second
        // processor, QEMU emulates no barriers and no atomic instructions, so shared memory does not work. In QEMU 7.2, CMPXCHG16B without
        // LOCK leaves random flags, which often crashes the allocator of Linux 6.12 at boot.
        let launch = Launch::new("/usr/bin/nice").args(["-n", &kit.nice.to_string()]).arg(&kit.qemu).with_stdin();
        let launch = launch.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        let launch = launch.args([
            "-accel",
            "tcg",
            "-cpu",
            "Nehalem,-cx16",
            "-smp",
            "1,maxcpus=2",
            "-m",
            "512",
            "-serial",
            "stdio",
        ]);
        let launch = launch.arg("-kernel").arg(&kit.kernel).arg("-initrd").arg(files);
        let mut launch = launch.args(["-append", &kernel_line()]).args(devices);
        if let Some(host) = host {
            launch = launch.host(host);
        }
        launch.spawn().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Continues in another QEMU with these devices, which waits for a migration. Returns the previous QEMU.
    pub(crate) fn move_to(&mut self, kit: &GuestKit, files: &Path, devices: &[String]) -> Proc {
        self.shell.move_to(Self::start_qemu(None, kit, files, devices))
    }

    /// Waits until the guest has booted. Returns its uptime in seconds, by its own clock.
    pub(crate) fn ready(&mut self) -> String {
        self.shell.ready()
    }

    /// Returns the name of the guest's board.
    pub fn board(&self) -> String {
        format!("guest{}:0", self.number)
    }

    /// Starts a command. Only one runs at a time.
    #[track_caller]
    pub fn start_command(&mut self, order: &str) {
        self.shell.start_command(order);
    }

    /// Waits until the command has ended.
    #[track_caller]
    pub fn finish_command(&mut self) -> CommandOutput {
        self.shell.finish_command()
    }

    /// Ends the server and ignores its exit code.
    #[track_caller]
    pub fn end_server(&mut self) {
        self.start_command("kill $served_pid; served");
        self.finish_command();
    }

    /// Waits for a line of the running command that begins with `prefix`, and returns the rest of it.
    #[track_caller]
    pub fn wait_for_line(&mut self, prefix: &str) -> String {
        self.shell.wait_for_line(prefix)
    }

    /// Ends the guest as a power cut does.
    pub fn kill(&self) {
        self.shell.kill();
    }

    /// Starts a server, and returns the endpoint that it prints. The command `served` waits until it has ended.
    #[track_caller]
    pub fn serve(&mut self, program: &str) -> String {
        let said = self.run(&format!("serve {program}"));
        let endpoint = said.iter().find_map(|line| line.strip_prefix("endpoint "));
        endpoint.unwrap_or_else(|| panic!("{said:?}")).to_owned()
    }

    /// Runs a command, which must succeed, and returns its output.
    #[track_caller]
    pub fn run(&mut self, order: &str) -> Vec<String> {
        self.shell.run(order)
    }

    /// Returns the lines of the kernel's log that report a fault.
    #[track_caller]
    pub fn complaints(&mut self) -> Vec<String> {
        let bad = ["BUG", "WARNING", "Oops", "Call Trace", "general protection", "unable to handle", "hung task"];
        let said = self.run("dmesg");
        said.into_iter().filter(|line| bad.iter().any(|word| line.contains(word))).collect()
    }
}
