//! A guest: QEMU, and a shell in it that is told what to do (`guest/init`).

use std::path::Path;

use isthmus_netns::Host;
use isthmus_testbed::{Launch, Proc};

use crate::guest_kit::GuestKit;
use crate::shell::{CommandOutput, Shell};

/// What the kernel is told: nothing that takes time where time is emulated, no word that nobody reads, and a panic ends QEMU.
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 nokaslr mitigations=off audit=0 apparmor=0 tsc=reliable \
                            no_timer_check nowatchdog random.trust_cpu=on";

/// What the kernel is told of its clock, which is this machine's time stamp counter where that is emulated: measured beside other work its
/// frequency comes out wrong, and a guest's seconds with it. Empty where it is not known here either.
fn clock() -> String {
    let told = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value =
        |key| told.lines().find_map(|line| line.strip_prefix(key)?.split_once(':')).map(|(_, value)| value.trim());
    let is_known = value("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "tsc_known_freq"));
    let mhz = value("cpu MHz").filter(|_| is_known).and_then(|mhz| mhz.parse::<f64>().ok());
    mhz.map(|mhz| format!(" tsc_early_khz={:.0}", mhz * 1e3)).unwrap_or_default()
}

/// All that it is told.
pub(crate) fn kernel_line() -> String {
    format!("{COMMAND_LINE}{}", clock())
}

/// A machine of its own, gone when dropped. Methods panic where it fails: that fails the test.
#[derive(Debug)]
pub struct Guest {
    /// Its number; it is called `guest0`, `guest1` and so on.
    pub number: u32,
    shell: Shell,
}

impl Guest {
    /// One that is switched on by others, at its line.
    pub(crate) fn at_line(number: u32, line: Proc) -> Self {
        Self { number, shell: Shell::new(format!("guest{number}"), line) }
    }

    /// Switches it on, with these files and these devices.
    pub(crate) fn boot(kit: &GuestKit, number: u32, files: &Path, devices: &[String]) -> Self {
        Self::boot_on(None, kit, number, files, devices)
    }

    /// The same on a host of a testbed, whose cards are the guest's to use.
    pub(crate) fn boot_on(host: Option<&Host>, kit: &GuestKit, number: u32, files: &Path, devices: &[String]) -> Self {
        Self::at_line(number, Self::start_qemu(host, kit, files, devices))
    }

    /// QEMU for such a guest.
    fn start_qemu(host: Option<&Host>, kit: &GuestKit, files: &Path, devices: &[String]) -> Proc {
        // A processor of the kind "max" would copy memory by an instruction that is emulated byte by byte. Where there is no room for a
        // second one, barriers and atomic instructions are none, and whoever shares memory with others misses what they do. CMPXCHG16B without
        // LOCK leaves flags of chance in QEMU 7.2, by which many a start of Linux 6.12 ends in its allocator.
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

    /// Goes on in another QEMU with these devices, which waits to be sent what is in this one. What is returned is this one.
    pub(crate) fn move_to(&mut self, kit: &GuestKit, files: &Path, devices: &[String]) -> Proc {
        self.shell.move_to(Self::start_qemu(None, kit, files, devices))
    }

    /// Waits until it has started, and says how many seconds that took by its own clock.
    pub(crate) fn ready(&mut self) -> String {
        self.shell.ready()
    }

    /// What its board is called.
    pub fn board(&self) -> String {
        format!("guest{}:0", self.number)
    }

    /// Gives an order. Only one at a time.
    #[track_caller]
    pub fn start_command(&mut self, order: &str) {
        self.shell.start_command(order);
    }

    /// Waits until that is done.
    #[track_caller]
    pub fn finish_command(&mut self) -> CommandOutput {
        self.shell.finish_command()
    }

    /// Kills what serves, however that ends.
    #[track_caller]
    pub fn end_server(&mut self) {
        self.start_command("kill $served_pid; served");
        self.finish_command();
    }

    /// Waits for a line of the present order that begins so, and returns the rest of it.
    #[track_caller]
    pub fn wait_for_line(&mut self, prefix: &str) -> String {
        self.shell.wait_for_line(prefix)
    }

    /// Ends it as a power cut does.
    pub fn kill(&self) {
        self.shell.kill();
    }

    /// Starts a program that serves, and returns the endpoint that it says. The order `served` waits for its end.
    #[track_caller]
    pub fn serve(&mut self, program: &str) -> String {
        let said = self.run(&format!("serve {program}"));
        let endpoint = said.iter().find_map(|line| line.strip_prefix("endpoint "));
        endpoint.unwrap_or_else(|| panic!("{said:?}")).to_owned()
    }

    /// Gives an order that has to end well, and returns what it says.
    #[track_caller]
    pub fn run(&mut self, order: &str) -> Vec<String> {
        self.shell.run(order)
    }

    /// What its kernel complains of.
    #[track_caller]
    pub fn complaints(&mut self) -> Vec<String> {
        let bad = ["BUG", "WARNING", "Oops", "Call Trace", "general protection", "unable to handle", "hung task"];
        let said = self.run("dmesg");
        said.into_iter().filter(|line| bad.iter().any(|word| line.contains(word))).collect()
    }
}
