//! A guest with a window, the device of which the test serves.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use isthmus_platform::conformance::LineTransport;
use isthmus_testbed::{Scratch, run_tool, workspace_root};

use crate::guest::Guest;
use crate::guest_kit::GuestKit;
use crate::qmp::{self, Monitor};
use crate::system::{self, Content, Extra};

/// The guest's side of the tests.
const PROGRAM: &str = "guest_half";

/// A guest with a device. Dropping it ends QEMU and removes all files. Methods panic on failure, which fails the test.
#[derive(Debug)]
pub struct WindowGuest {
    /// The guest.
    pub guest: Guest,
    scratch: Scratch,
}

/// The files of a guest with a window.
#[derive(Debug)]
pub struct GuestParts {
    scratch: Scratch,
}

impl GuestParts {
    /// Builds the driver and the guest's program. The error says what is missing.
    pub fn build(kit: &GuestKit) -> Result<Self, String> {
        let scratch = Scratch::new().unwrap_or_else(|error| panic!("{error}"));
        let modules = vec![kit.driver(scratch.path())?];
        let content = Content { config: "", programs: vec![program()], modules, extra: &Extra::default() };
        system::write(kit, &content, scratch.path(), &scratch.join("files.cpio"));
        Ok(Self { scratch })
    }

    /// Returns the path of a socket for the device's server.
    pub fn socket(&self) -> PathBuf {
        self.scratch.join("window")
    }

    /// Boots the guest with this device. QEMU waits for the device's server.
    pub fn boot(self, kit: &GuestKit, device: &[&str]) -> WindowGuest {
        let scratch = self.scratch;
        let at = |name: &str| format!("{},server=on,wait=off", scratch.join(name).display());
        let monitor = format!("unix:{}", at("monitor"));
        let line = format!("socket,id=line,path={}", at("line"));
        let own = ["-qmp", &monitor, "-chardev", &line, "-serial", "chardev:line"];
        let all: Vec<String> = own.iter().chain(device).map(|&word| word.to_owned()).collect();
        let guest = Guest::boot(kit, 0, &scratch.join("files.cpio"), &all);
        WindowGuest { guest, scratch }
    }
}

impl WindowGuest {
    /// Waits until the guest has booted, and loads the driver.
    pub fn ready(&mut self) {
        let uptime_s = self.guest.ready();
        println!("# guest0 is up after {uptime_s} s of its time");
        self.guest.run("insmod /modules/isthmus.ko");
    }

    /// Connects to QEMU's monitor.
    pub fn monitor(&self) -> Monitor {
        Monitor::connect(&self.scratch.join("monitor"))
    }

    /// Starts the guest's side by this command, and returns the line to it once it has announced itself.
    pub fn line(&mut self, order: &str) -> LineTransport<BufReader<UnixStream>, UnixStream> {
        let to = qmp::connect(&self.scratch.join("line"));
        self.guest.start_command(order);
        let mut from = BufReader::new(to.try_clone().expect("a descriptor"));
        from.read_line(&mut String::new()).expect("the guest's side announces itself");
        LineTransport::new(from, to)
    }
}

/// Builds the guest's program with the cargo that runs this test, and returns its path.
fn program() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // In the profile of this test, which is TARGET/PROFILE/deps/TEST.
    let test = std::env::current_exe().expect("a running program has a file");
    let profile = test.parent().and_then(Path::parent).expect("tests are built in a target directory");
    let mut build = Command::new(cargo);
    build.current_dir(workspace_root()).args([
        "build",
        "--quiet",
        "--package",
        "isthmus-platform-kvm",
        "--example",
        PROGRAM,
    ]);
    build.args(profile.ends_with("release").then_some("--release"));
    run_tool(&mut build);
    profile.join("examples").join(PROGRAM)
}
