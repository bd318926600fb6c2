//! Guests that libvirt starts, from the output of `isthmus guest xml`.
//!
//! ```text
//!   isthmus guest xml ──► domain ──► virsh ──► QEMU, as the user libvirt-qemu ═══ guest-….sock, monitors ═══ isthmusd
//! ```
//!
//! libvirt runs without its daemon: `virsh` has the driver for QEMU in its own process (`qemu:///embed`), with all files in a folder of the
//! test. It has a mount namespace, in which QEMU's user is known, and a PID namespace, which ends all machines with it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use isthmus_testbed::{DaemonProcess, Launch, Proc, Scratch};
use rustix::fs::{CWD, FileType, Mode, Uid, chown, mknodat};

use crate::guest::{Guest, kernel_line};
use crate::guest_kit::{GuestKit, QEMU, missing};
use crate::machine::Machine;
use crate::shell::timeout;
use crate::system::Extra;
use crate::two_guests::{self, TwoGuests, window};

const VIRSH: &str = "/usr/bin/virsh";

/// The UID of `libvirt-qemu` in Debian.
const USER: u32 = 64055;

/// The configuration that runs machines without a security driver.
const QEMU_CONF: &str = "stdio_handler = \"file\"\nsecurity_driver = \"none\"\nuser = \"libvirt-qemu\"\ngroup = \"libvirt-qemu\"\n\
                         dynamic_ownership = 0\nremember_owner = 0\ncgroup_controllers = []\nnamespaces = []\n";

/// The shell that runs `virsh`. It stays as process 1 of its PID namespace and reaps orphaned processes.
const START: &str = "mount --bind \"$0/passwd\" /etc/passwd && mount --bind \"$0/group\" /etc/group && \
                     stdbuf -oL virsh --connect \"qemu:///embed?root=$0/libvirt\" 2>&1; exit";

/// Two guests of libvirt and the host daemon. `guest0` is a `pc` with its window. `guest1` is a `q35` with a port, to which the window can be
/// attached. Methods panic on failure, which fails the test.
#[derive(Debug)]
pub struct Libvirt {
    virsh: Proc,
    orders: u32,
    window: PathBuf,
    /// The guests and the host daemon.
    pub hosted: TwoGuests,
}

impl Libvirt {
    /// Boots both guests. The error says what is missing.
    pub fn start(kit: &GuestKit) -> Result<Self, String> {
        if !Path::new(VIRSH).exists() {
            return Err(missing(Path::new(VIRSH)));
        }
        if !rustix::process::geteuid().is_root() {
            return Err("QEMU as another user takes root".to_owned());
        }
        let scratch = Scratch::shared().unwrap_or_else(|error| panic!("{error}"));
        two_guests::pack(kit, &scratch, &Extra::default())?;
        let monitors = scratch.dir("monitors").expect("a folder in our folder");
        // QEMU's sockets get the folder's group, which is the daemon's, and under libvirt that may write them.
        chown(&monitors, Some(Uid::from_raw(USER)), None).expect("it is ours");
        permit(&monitors, 0o2770);
        let daemon = daemon(&scratch, &monitors);
        let virsh = virsh(kit, &scratch);
        fs::copy(&kit.kernel, scratch.join("kernel")).expect("a file in our folder");
        let printed = |arguments: &[&str]| two_guests::isthmus(&daemon, &[&["guest", "xml"], arguments].concat());
        let printed = [printed(&["guest0"]), printed(&["guest1", "--ports", "1", "--index", "1"])];
        let [first, second] = printed.each_ref().map(|printed| Elements::of(printed));
        let domains = [
            define((kit, &scratch), (0, "pc"), (first.window, first.beside)),
            define((kit, &scratch), (1, "q35"), (&format!("{ROOT}{}", second.ports), second.beside)),
        ];
        let window = scratch.write("window.xml", second.window).expect("a file in our folder");
        let guests = [0, 1].map(|number| Guest::at_line(number, serial(&line(&scratch, number))));
        let hosted = TwoGuests::of(guests, daemon, [Machine::Pc, Machine::Q35], scratch);
        let mut libvirt = Self { virsh, orders: 0, window, hosted };
        for domain in domains {
            libvirt.run(&format!("create {}", domain.display()));
        }
        for guest in &mut libvirt.hosted.guests {
            let uptime_s = guest.ready();
            println!("# guest{} is up after {uptime_s} s of its time", guest.number);
            guest.run("insmod /modules/isthmus.ko");
        }
        libvirt.hosted.guests[0].run("window");
        Ok(libvirt)
    }

    /// Attaches the window of `guest1` and starts the daemon in it.
    pub fn attach(&mut self) {
        self.run(&format!("attach-device guest1 {}", self.window.display()));
        self.hosted.guests[1].run("window");
    }

    /// Detaches the window of `guest1`.
    pub fn detach(&mut self) {
        self.run("detach-device-alias guest1 ua-isthmus");
    }

    /// Runs a command of virsh, which must succeed, and returns its output.
    #[track_caller]
    pub fn run(&mut self, order: &str) -> Vec<String> {
        self.orders += 1;
        let done = format!("@done {}", self.orders);
        for order in [order, &format!("echo {done}")] {
            self.virsh.send_line(order).unwrap_or_else(|error| panic!("virsh: {order}: {error}"));
        }
        let mut said = Vec::new();
        loop {
            let line = self.virsh.line(timeout());
            let line = line.unwrap_or_else(|error| panic!("virsh: {order}: {}\n{error}", said.join("\n")));
            if line.trim_end() == done {
                break;
            }
            said.push(line.trim_end().to_owned());
        }
        assert!(!said.iter().any(|line| line.starts_with("error:")), "virsh: {order}: {}", said.join("\n"));
        said
    }
}

/// The parts of the printed XML, by their place in a domain.
struct Elements<'a> {
    ports: &'a str,
    window: &'a str,
    beside: &'a str,
}

impl<'a> Elements<'a> {
    fn of(printed: &'a str) -> Self {
        let (devices, beside) = printed.split_once("<!-- Beside").unwrap_or((printed, "-->"));
        let (ports, window) = devices.split_at(devices.find("<shmem").expect("the window's element"));
        let (_, beside) = beside.split_once("-->").expect("the end of a comment");
        Self { ports, window, beside }
    }
}

/// The root complex, which every `q35` domain of libvirt's tools has.
const ROOT: &str = "<controller type='pci' index='0' model='pcie-root'/>\n";

/// Writes the domain of a guest with this machine type, these devices and these elements beside them.
fn define(
    (kit, scratch): (&GuestKit, &Scratch),
    (number, machine): (u32, &str),
    (devices, beside): (&str, &str),
) -> PathBuf {
    let [kernel, files, line] = [scratch.join("kernel"), two_guests::files(kit, scratch), line(scratch, number)];
    let [kernel, files, line] = [&kernel, &files, &line].map(|path| path.display());
    let domain = format!(
        "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
<name>guest{number}</name><memory unit='MiB'>512</memory><vcpu current='1'>2</vcpu>
<os><type arch='x86_64' machine='{machine}'>hvm</type>
<kernel>{kernel}</kernel><initrd>{files}</initrd><cmdline>{}</cmdline></os>
<features><acpi/></features>
<cpu mode='custom' match='exact' check='none'><model>Nehalem</model><feature policy='disable' name='cx16'/></cpu>
<on_reboot>destroy</on_reboot><on_crash>destroy</on_crash>
<devices><emulator>{QEMU}</emulator><serial type='pipe'><source path='{line}'/></serial>
<controller type='usb' model='none'/><memballoon model='none'/>
{devices}</devices>
{beside}</domain>
",
        kernel_line()
    );
    scratch.write(format!("guest{number}.xml"), domain).expect("a file in our folder")
}

/// Returns the path of a guest's serial line.
fn line(scratch: &Scratch, number: u32) -> PathBuf {
    scratch.join(format!("line{number}"))
}

fn daemon(scratch: &Scratch, monitors: &Path) -> DaemonProcess {
    let guest = |number| {
        let monitor = monitors.join(format!("guest{number}"));
        format!("{}qemu_user = {USER}\nmonitor = \"{}\"\n", window::config(number), monitor.display())
    };
    let config =
        format!("[daemon]\nsocket = \"{{socket}}\"\nruntime_dir = \"{{state}}\"\n{}", [0, 1].map(guest).concat());
    DaemonProcess::on(scratch)
        .config(&config)
        .with_fd_store()
        .start(timeout())
        .unwrap_or_else(|error| panic!("{error}"))
}

fn virsh(kit: &GuestKit, scratch: &Scratch) -> Proc {
    let known = |file: &str, entry: String| {
        let all = fs::read_to_string(Path::new("/etc").join(file)).expect("every system has that");
        scratch.write(file, format!("{all}{entry}")).expect("a file in our folder");
    };
    known("passwd", format!("libvirt-qemu:x:{USER}:{USER}::/nonexistent:/usr/sbin/nologin\n"));
    known("group", format!("libvirt-qemu:x:{USER}:\n"));
    let settings = scratch.dir("libvirt").and_then(|_| scratch.dir("libvirt/etc"));
    let settings = settings.expect("a folder in our folder");
    fs::write(settings.join("qemu.conf"), QEMU_CONF).expect("a file in our folder");
    let launch = Launch::new("/usr/bin/nice").args(["-n", &kit.nice.to_string(), "/usr/bin/unshare"]);
    let launch = launch.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", START]);
    launch.arg(scratch.path()).with_stdin().spawn().unwrap_or_else(|error| panic!("{error}"))
}

/// Opens a guest's serial line, which is two pipes. QEMU has their other ends.
fn serial(line: &Path) -> Proc {
    for end in ["in", "out"] {
        let path = line.with_extension(end);
        mknodat(CWD, &path, FileType::Fifo, Mode::empty(), 0).expect("a pipe in our folder");
        permit(&path, 0o666);
    }
    let both = Launch::new("/bin/sh").args(["-c", "cat \"$0.out\" & exec cat >\"$0.in\""]).arg(line);
    both.with_stdin().spawn().unwrap_or_else(|error| panic!("{error}"))
}

fn permit(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
}
