//! Two guests of one host, with the host daemon between their programs. For comparison, a wire connects the guests, with a daemon in each.
//!
//! ```text
//!  ┌ guest0 ────────────────────────────┐      host       ┌ guest1 ────────────────────────────┐
//!  │ mx_pingpong ── isthmusd --guest ═══╪═ window ═ isthmusd ═ window ═╪═══ isthmusd --guest ── mx_pingpong │
//!  │           └─── isthmusd ── eth0 ═══╪═ virtio ═ QEMU ══ QEMU ═ virtio ═╪═══ eth0 ── isthmusd ───┘       │
//!  └────────────────────────────────────┘                 └────────────────────────────────────┘
//! ```
//!
//! If the daemon has the guests' monitors, it plugs a pair window into both ([`Monitors`]).

use std::path::{Path, PathBuf};

use isthmus_testbed::{DaemonProcess, Launch, Scratch, binary, eventually_some};
use serde_json::{Value, json};

use crate::connected_guests::{card, card_mac};
use crate::guest::Guest;
use crate::guest_kit::GuestKit;
use crate::machine::Machine;
use crate::qmp::Monitor;
use crate::shell::timeout;
use crate::system::{self, Content, Extra};

const MTU: u32 = 9000;

/// The configuration of the daemon in a guest that reaches the other guest by the wire.
const BRIDGED: &str = "[[mx.board]]\nlinks = [{ interface = \"eth0\" }]\n";

/// The monitors that the host daemon is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Monitors {
    /// None.
    None,
    /// The monitors of both guests.
    Both,
    /// The monitors of both guests, and interfaces that exchange frames past the wire.
    BothWithLoops,
    /// The monitor of `guest0`, and for `guest1` a path on which no monitor listens.
    OneAndAnUnusedPath,
}

/// Two guests and the host daemon. Dropping it ends them and removes their files. Methods panic on failure, which fails the test.
#[derive(Debug)]
pub struct TwoGuests {
    /// The guests, which are called `guest0` and `guest1`.
    pub guests: [Guest; 2],
    /// The host daemon.
    pub daemon: DaemonProcess,
    machines: [Machine; 2],
    scratch: Scratch,
}

impl TwoGuests {
    /// Boots both guests. Returns once their programs can attach. The error says what is missing.
    pub fn start(kit: &GuestKit) -> Result<Self, String> {
        Self::start_with(kit, Monitors::None)
    }

    /// Boots both guests, and gives the host daemon these monitors.
    pub fn start_with(kit: &GuestKit, monitors: Monitors) -> Result<Self, String> {
        Self::start_as(kit, (monitors, window::MIB), &Extra::default())
    }

    /// Boots both guests with additional content, with the monitors and the size of windows in MiB.
    pub fn start_as(kit: &GuestKit, windows: (Monitors, u32), extra: &Extra) -> Result<Self, String> {
        Self::start_of([(kit, Machine::Pc), (kit, Machine::Pc)], windows, extra)
    }

    /// Boots both guests, each from its own parts.
    pub fn start_of(
        parts: [(&GuestKit, Machine); 2],
        (monitors, window_mib): (Monitors, u32),
        extra: &Extra,
    ) -> Result<Self, String> {
        let scratch = Scratch::new().unwrap_or_else(|error| panic!("{error}"));
        let folder = scratch.path();
        for (kit, _) in parts {
            pack(kit, &scratch, extra)?;
        }
        let daemon = daemon(&scratch, monitors, window_mib);
        let guests = [0, 1].map(|number: u32| {
            let (kit, machine) = parts[number as usize];
            let windows = match machine {
                Machine::Pc => {
                    let daemons = given(monitors, number).then(|| window::monitor(folder, number));
                    window::device(&daemon, number).into_iter().chain(daemons.into_iter().flatten()).collect()
                }
                Machine::Q35 => [machine.kind(), printed(&daemon, number)].concat(),
            };
            let devices: Vec<String> = devices(folder, number, 0).into_iter().chain(windows).collect();
            Guest::boot(kit, number, &files(kit, &scratch), &devices)
        });
        let mut hosted = Self::of(guests, daemon, parts.map(|(_, machine)| machine), scratch);
        for guest in &mut hosted.guests {
            let uptime_s = guest.ready();
            println!("# guest{} is up after {uptime_s} s of its time", guest.number);
            guest.run(&format!("network {} {MTU} && insmod /modules/isthmus.ko && window", guest.number));
        }
        Ok(hosted)
    }

    /// Wraps guests that something else has started.
    pub(crate) fn of(guests: [Guest; 2], daemon: DaemonProcess, machines: [Machine; 2], scratch: Scratch) -> Self {
        Self { guests, daemon, machines, scratch }
    }

    /// Returns the monitor of a guest that has migrated `moves` times.
    pub fn monitor(&self, number: u32, moves: u32) -> Monitor {
        Monitor::connect(&self.scratch.join(monitor(number, moves)))
    }

    /// Unplugs a guest's device, in order.
    pub fn unplug(&self, number: u32) {
        let (mut monitor, machine) = (self.monitor(number, 0), self.machines[number as usize]);
        monitor.command("device_del", &json!({ "id": machine.device() }));
        monitor.wait("DEVICE_DELETED", machine.device());
        monitor.command("chardev-remove", &json!({ "id": machine.chardev() }));
    }

    /// Plugs a device of this daemon into a guest that has migrated `moves` times.
    pub fn plug(&self, (number, moves): (u32, u32), daemon: &DaemonProcess) {
        let (mut monitor, machine) = (self.monitor(number, moves), self.machines[number as usize]);
        let address = json!({ "type": "unix", "data": { "path": window::socket(daemon, number) } });
        let backend = json!({ "type": "socket", "data": { "server": false, "addr": address } });
        monitor.command("chardev-add", &json!({ "id": machine.chardev(), "backend": backend }));
        monitor.command("device_add", &machine.plugged(window::VECTORS));
    }

    /// Migrates a guest without a device to another QEMU, live. The guest keeps the wire of its card.
    pub fn migrate(&mut self, kit: &GuestKit, number: u32) {
        let way = format!("unix:{}", self.scratch.join(format!("way{number}")).display());
        let mut monitor = self.monitor(number, 0);
        let incoming = ["-incoming".to_owned(), way.clone()];
        let places = match self.machines[number as usize] {
            Machine::Pc => Vec::new(),
            Machine::Q35 => [Machine::Q35.kind(), Machine::ports(&printed(&self.daemon, number))].concat(),
        };
        let devices = devices(self.scratch.path(), number, 1).into_iter().chain(places);
        let devices: Vec<String> = devices.chain(incoming).collect();
        let files = files(kit, &self.scratch);
        let guest = &mut self.guests[number as usize];
        let before = guest.move_to(kit, &files, &devices);
        // The new QEMU accepts the migration once its own monitor accepts connections.
        drop(self.monitor(number, 1));
        monitor.command("migrate", &json!({ "uri": way }));
        let status = eventually_some(timeout(), || {
            let status = monitor.command("query-migrate", &json!({}))["status"].clone();
            (status == "completed" || status == "failed").then_some(status)
        });
        assert_eq!(status.unwrap_or_else(|late| panic!("{late}")), "completed");
        drop(before);
    }

    /// Starts another daemon with the same guests, as on another host.
    pub fn another_daemon(scratch: &Scratch) -> DaemonProcess {
        daemon(scratch, Monitors::None, window::MIB)
    }

    /// Returns the row of a guest in `isthmus guest list`.
    pub fn row(&self, number: u32) -> Value {
        let listed: Value = serde_json::from_str(&self.isthmus(&["guest", "list", "--json"])).expect("JSON");
        listed["guests"][number as usize].clone()
    }

    /// Waits until a condition on the row is true, and returns the row.
    pub fn row_until(&self, number: u32, so: impl Fn(&Value) -> bool) -> Value {
        let found = eventually_some(timeout(), || Some(self.row(number)).filter(&so));
        found.unwrap_or_else(|late| panic!("guest{number}: {late}: {}", self.row(number)))
    }

    /// Prepares a program of the host, which attaches to the host daemon.
    pub fn program(&self, path: impl Into<PathBuf>) -> Launch {
        self.daemon.launch_on_host(path)
    }

    /// Returns the output of `isthmus` on the host.
    pub fn isthmus(&self, arguments: &[&str]) -> String {
        isthmus(&self.daemon, arguments)
    }

    /// Waits until a condition on the output of `isthmus` is true, and returns the output.
    pub fn isthmus_until(&self, arguments: &[&str], so: impl Fn(&str) -> bool) -> String {
        let found = eventually_some(timeout(), || Some(self.isthmus(arguments)).filter(|said| so(said)));
        found.unwrap_or_else(|late| panic!("isthmus {arguments:?}: {late}\n{}", self.isthmus(arguments)))
    }

    /// Starts an endless transfer from `guest1` to `guest0`, and waits until messages arrive. The sender gets an error when its receiver ends.
    pub fn transfer(&mut self) {
        let endpoint = self.guests[0].serve("mx_stream -w");
        self.guests[1].start_command(&format!("mx_stream -w -r {endpoint} -s 1048576 -N 1000000"));
        self.until_received(4 << 20);
    }

    /// Starts an endless transfer from `guest1` to `guest0`, and waits until its messages use a channel.
    pub fn transfer_by_channel(&mut self) {
        let endpoint = self.guests[0].serve("mx_stream -w");
        self.guests[1].start_command(&format!("mx_stream -w -r {endpoint} -s 65536 -N 10000000"));
        self.isthmus_until(&["channel", "list", "--json"], |listed| {
            let listed: Value = serde_json::from_str(listed).expect("a list of channels");
            let pair = &listed["pairs"][0];
            let directions = pair["channel"]["directions"].as_array().into_iter().flatten();
            let messages: u64 = directions.filter_map(|direction| direction["messages"].as_u64()).sum();
            pair["path"] == "channel" && messages > 100
        });
    }

    /// Waits until the sender on `guest1` has ended with an error of MX, and not by a signal.
    #[track_caller]
    pub fn expect_error(&mut self) {
        let done = self.guests[1].finish_command();
        println!("# exit code {}: {}", done.code, done.lines.join("; "));
        assert!(done.code != 0 && done.lines.iter().any(|line| line.starts_with("mx_")), "{done:?}");
    }

    /// Waits until domains of `guest0` have received more than `bytes` bytes by the daemon path.
    pub fn until_received(&self, bytes: u64) {
        self.isthmus_until(&["domain", "list", "--json"], |listed| {
            let listed: Value = serde_json::from_str(listed).unwrap_or_else(|error| panic!("{listed}: {error}"));
            let domains = listed["domains"].as_array().into_iter().flatten();
            let of_guest = domains.filter(|domain| domain["guest"] == "guest0");
            of_guest.filter_map(|domain| domain["daemon_path_received_bytes"].as_u64()).sum::<u64>() > bytes
        });
    }
}

pub(crate) fn isthmus(daemon: &DaemonProcess, arguments: &[&str]) -> String {
    let isthmus = binary("isthmus", "isthmus").unwrap_or_else(|error| panic!("{error}"));
    let running = daemon.launch_on_host(isthmus).args(arguments).spawn().unwrap_or_else(|error| panic!("{error}"));
    let finished = running.finish(timeout()).unwrap_or_else(|error| panic!("{error}"));
    finished.expect_success().join("\n")
}

/// Returns the options that `isthmus guest xml` prints for a guest's QEMU: the window, a root port for a pair window, and the daemon's monitor.
fn printed(daemon: &DaemonProcess, number: u32) -> Vec<String> {
    let printed = isthmus(daemon, &["guest", "xml", &format!("guest{number}"), "--qemu", "--ports", "1"]);
    printed.split_whitespace().map(str::to_owned).collect()
}

/// Returns the path of the file system archive for guests with this kernel.
pub(crate) fn files(kit: &GuestKit, scratch: &Scratch) -> PathBuf {
    scratch.join(format!("files-{}.cpio", kit.release()))
}

/// Writes that archive, unless it exists.
pub(crate) fn pack(kit: &GuestKit, scratch: &Scratch, extra: &Extra) -> Result<(), String> {
    let (folder, files) = (scratch.path(), files(kit, scratch));
    if !files.exists() {
        let modules = vec![kit.driver(folder)?];
        let content = Content { config: BRIDGED, programs: system::programs(), modules, extra };
        system::write(kit, &content, folder, &files);
    }
    Ok(())
}

/// Returns the name of the monitor's socket.
fn monitor(number: u32, moves: u32) -> String {
    format!("monitor{number}.{moves}")
}

/// Returns the options of QEMU for a guest's devices besides its window.
fn devices(folder: &Path, number: u32, moves: u32) -> Vec<String> {
    let monitor = folder.join(monitor(number, moves));
    let monitor = ["-qmp".to_owned(), format!("unix:{},server=on,wait=off", monitor.display())];
    card(folder, number, MTU).into_iter().chain(monitor).collect()
}

/// Whether the daemon's monitor of a guest is there.
fn given(monitors: Monitors, number: u32) -> bool {
    match monitors {
        Monitors::None => false,
        Monitors::Both | Monitors::BothWithLoops => true,
        Monitors::OneAndAnUnusedPath => number == 0,
    }
}

/// The host's daemon.
fn daemon(scratch: &Scratch, monitors: Monitors, window_mib: u32) -> DaemonProcess {
    let guest = |number| match monitors {
        Monitors::None => window::sized(number, window_mib),
        Monitors::BothWithLoops => {
            let monitored = window::sized(number, window_mib) + &window::monitored(scratch.path(), number);
            format!("{monitored}loops = [{{ network = \"wire\", mac = \"{}\" }}]\n", card_mac(number))
        }
        _ => window::sized(number, window_mib) + &window::monitored(scratch.path(), number),
    };
    let config =
        format!("[daemon]\nsocket = \"{{socket}}\"\nruntime_dir = \"{{state}}\"\n{}", [0, 1].map(guest).concat());
    DaemonProcess::on(scratch)
        .config(&config)
        .with_fd_store()
        .start(timeout())
        .unwrap_or_else(|error| panic!("{error}"))
}

/// A guest's window: the configuration of the host daemon, and the options of QEMU.
pub(crate) mod window {
    use std::path::{Path, PathBuf};

    use isthmus_testbed::DaemonProcess;

    pub(crate) const VECTORS: u32 = 8;

    /// The default size of a window in MiB.
    pub(crate) const MIB: u32 = 32;

    /// Returns the socket on which the daemon serves a guest's device.
    pub(crate) fn socket(daemon: &DaemonProcess, number: u32) -> PathBuf {
        daemon.run_dir().join(format!("guest-guest{number}.sock"))
    }

    /// Returns the daemon's configuration of a guest, with the daemon's user as its owner.
    pub(crate) fn config(number: u32) -> String {
        sized(number, MIB)
    }

    /// Returns the daemon's configuration of a guest with a window of `mib` MiB.
    pub(crate) fn sized(number: u32, mib: u32) -> String {
        let user = rustix::process::geteuid().as_raw();
        format!("[[kvm.guest]]\nname = \"guest{number}\"\nuser = {user}\nvectors = {VECTORS}\nwindow_mib = {mib}\n")
    }

    /// Returns the path of the monitor that only the daemon uses.
    fn place_of_monitor(folder: &Path, number: u32) -> String {
        folder.join(format!("daemons{number}")).display().to_string()
    }

    /// Returns the line with the monitor, which follows the rest of the guest's configuration.
    pub(crate) fn monitored(folder: &Path, number: u32) -> String {
        format!("monitor = \"{}\"\n", place_of_monitor(folder, number))
    }

    /// Returns the options of QEMU for that monitor.
    pub(crate) fn monitor(folder: &Path, number: u32) -> [String; 2] {
        ["-qmp".to_owned(), format!("unix:{},server=on,wait=off", place_of_monitor(folder, number))]
    }

    /// Returns the options of QEMU for the window.
    pub(crate) fn device(daemon: &DaemonProcess, number: u32) -> [String; 4] {
        let socket = format!("socket,id=window,path={}", socket(daemon, number).display());
        let device = format!("ivshmem-doorbell,id=device,chardev=window,vectors={VECTORS}");
        ["-chardev".to_owned(), socket, "-device".to_owned(), device]
    }
}
