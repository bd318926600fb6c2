//! Two guests of one host, whose programs meet at the host's daemon; and, to compare with, a wire between the two with a daemon on either end.
//!
//! ```text
//!  ┌ guest0 ────────────────────────────┐      host       ┌ guest1 ────────────────────────────┐
//!  │ mx_pingpong ── isthmusd --guest ═══╪═ window ═ isthmusd ═ window ═╪═══ isthmusd --guest ── mx_pingpong │
//!  │           └─── isthmusd ── eth0 ═══╪═ virtio ═ QEMU ══ QEMU ═ virtio ═╪═══ eth0 ── isthmusd ───┘       │
//!  └────────────────────────────────────┘                 └────────────────────────────────────┘
//! ```
//!
//! Where the daemon is given the guests' monitors it plugs a window into both that only these two share ([`Monitors`]).

use std::path::{Path, PathBuf};

use isthmus_testbed::{DaemonProcess, Launch, Scratch, binary, eventually_some};
use serde_json::{Value, json};

use crate::connected_guests::card;
use crate::guest::Guest;
use crate::guest_kit::GuestKit;
use crate::machine::Machine;
use crate::qmp::Monitor;
use crate::shell::timeout;
use crate::system::{self, Content, Extra};

const MTU: u32 = 9000;

/// For the daemon in a guest that reaches the other one by the wire.
const BRIDGED: &str = "[[mx.board]]\nlinks = [{ interface = \"eth0\" }]\n";

/// Which monitors the host's daemon is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Monitors {
    /// None.
    Nobodys,
    /// Those of both guests.
    Both,
    /// That of `guest0`, and for `guest1` a place where nobody answers.
    OneAndAnEmptyPlace,
}

/// Guests and their host's daemon, gone with all their files when dropped. Methods panic where something fails: that fails the test.
#[derive(Debug)]
pub struct TwoGuests {
    /// The guests, which are called `guest0` and `guest1`.
    pub guests: [Guest; 2],
    /// The host's daemon.
    pub daemon: DaemonProcess,
    machines: [Machine; 2],
    scratch: Scratch,
}

impl TwoGuests {
    /// Boots both, and waits until their programs can attach; or says what is missing.
    pub fn start(kit: &GuestKit) -> Result<Self, String> {
        Self::start_with(kit, Monitors::Nobodys)
    }

    /// The same.
    pub fn start_with(kit: &GuestKit, monitors: Monitors) -> Result<Self, String> {
        Self::start_as(kit, (monitors, window::MIB), &Extra::default())
    }

    /// The same with more in the guests, whose windows have so many MiB.
    pub fn start_as(kit: &GuestKit, windows: (Monitors, u32), extra: &Extra) -> Result<Self, String> {
        Self::start_of([(kit, Machine::Pc), (kit, Machine::Pc)], windows, extra)
    }

    /// The same with guests that are made of different parts.
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

    /// These guests, which others have switched on.
    pub(crate) fn of(guests: [Guest; 2], daemon: DaemonProcess, machines: [Machine; 2], scratch: Scratch) -> Self {
        Self { guests, daemon, machines, scratch }
    }

    /// The monitor of a guest that has moved so often.
    pub fn monitor(&self, number: u32, moves: u32) -> Monitor {
        Monitor::connect(&self.scratch.join(monitor(number, moves)))
    }

    /// Takes a guest's device away, in order.
    pub fn unplug(&self, number: u32) {
        let (mut monitor, machine) = (self.monitor(number, 0), self.machines[number as usize]);
        monitor.command("device_del", &json!({ "id": machine.device() }));
        monitor.wait("DEVICE_DELETED", machine.device());
        monitor.command("chardev-remove", &json!({ "id": machine.chardev() }));
    }

    /// Gives a guest that has moved so often a device that this daemon serves.
    pub fn plug(&self, (number, moves): (u32, u32), daemon: &DaemonProcess) {
        let (mut monitor, machine) = (self.monitor(number, moves), self.machines[number as usize]);
        let address = json!({ "type": "unix", "data": { "path": window::socket(daemon, number) } });
        let backend = json!({ "type": "socket", "data": { "server": false, "addr": address } });
        monitor.command("chardev-add", &json!({ "id": machine.chardev(), "backend": backend }));
        monitor.command("device_add", &machine.plugged(window::VECTORS));
    }

    /// Has a guest without a device go on in another QEMU, live. Its card's wire goes with it.
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
        // It listens once its own monitor does.
        drop(self.monitor(number, 1));
        monitor.command("migrate", &json!({ "uri": way }));
        let status = eventually_some(timeout(), || {
            let status = monitor.command("query-migrate", &json!({}))["status"].clone();
            (status == "completed" || status == "failed").then_some(status)
        });
        assert_eq!(status.unwrap_or_else(|late| panic!("{late}")), "completed");
        drop(before);
    }

    /// A daemon as another host has one: it knows the same guests.
    pub fn another_daemon(scratch: &Scratch) -> DaemonProcess {
        daemon(scratch, Monitors::Nobodys, window::MIB)
    }

    /// What `isthmus guest list` says of one of them.
    pub fn row(&self, number: u32) -> Value {
        let listed: Value = serde_json::from_str(&self.isthmus(&["guest", "list", "--json"])).expect("JSON");
        listed["guests"][number as usize].clone()
    }

    /// The same once that is so.
    pub fn row_until(&self, number: u32, so: impl Fn(&Value) -> bool) -> Value {
        let found = eventually_some(timeout(), || Some(self.row(number)).filter(&so));
        found.unwrap_or_else(|late| panic!("guest{number}: {late}: {}", self.row(number)))
    }

    /// A program of this host that talks to the same daemon.
    pub fn program(&self, path: impl Into<PathBuf>) -> Launch {
        self.daemon.launch_on_host(path)
    }

    /// What `isthmus` says on this host.
    pub fn isthmus(&self, arguments: &[&str]) -> String {
        isthmus(&self.daemon, arguments)
    }

    /// What it says once that is so.
    pub fn isthmus_until(&self, arguments: &[&str], so: impl Fn(&str) -> bool) -> String {
        let found = eventually_some(timeout(), || Some(self.isthmus(arguments)).filter(|said| so(said)));
        found.unwrap_or_else(|late| panic!("isthmus {arguments:?}: {late}\n{}", self.isthmus(arguments)))
    }

    /// Begins to send from `guest1` to `guest0` without end, and waits until it is under way. Who sends hears that its receiver is gone.
    pub fn transfer(&mut self) {
        let endpoint = self.guests[0].serve("mx_stream -w");
        self.guests[1].start_command(&format!("mx_stream -w -r {endpoint} -s 1048576 -N 1000000"));
        self.until_received(4 << 20);
    }

    /// The same until messages go by a channel; they go on.
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

    /// `guest1`, which sends, hears that this came to nothing, and is not killed.
    #[track_caller]
    pub fn expect_error(&mut self) {
        let done = self.guests[1].finish_command();
        println!("# exit code {}: {}", done.code, done.lines.join("; "));
        assert!(done.code != 0 && done.lines.iter().any(|line| line.starts_with("mx_")), "{done:?}");
    }

    /// Waits until domains of `guest0` have received so many bytes by the daemon path.
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

/// What `isthmus guest xml` prints for a guest's QEMU: its window, a place for one that it shares with the other guest, and the daemon's monitor.
fn printed(daemon: &DaemonProcess, number: u32) -> Vec<String> {
    let printed = isthmus(daemon, &["guest", "xml", &format!("guest{number}"), "--qemu", "--ports", "1"]);
    printed.split_whitespace().map(str::to_owned).collect()
}

/// The archive of what guests with this kernel find when they start.
pub(crate) fn files(kit: &GuestKit, scratch: &Scratch) -> PathBuf {
    scratch.join(format!("files-{}.cpio", kit.release()))
}

/// Makes that archive, unless it is there.
pub(crate) fn pack(kit: &GuestKit, scratch: &Scratch, extra: &Extra) -> Result<(), String> {
    let (folder, files) = (scratch.path(), files(kit, scratch));
    if !files.exists() {
        let modules = vec![kit.driver(folder)?];
        let content = Content { config: BRIDGED, programs: system::programs(), modules, extra };
        system::write(kit, &content, folder, &files);
    }
    Ok(())
}

/// The name of the monitor's socket.
fn monitor(number: u32, moves: u32) -> String {
    format!("monitor{number}.{moves}")
}

/// What a guest has besides its window.
fn devices(folder: &Path, number: u32, moves: u32) -> Vec<String> {
    let monitor = folder.join(monitor(number, moves));
    let monitor = ["-qmp".to_owned(), format!("unix:{},server=on,wait=off", monitor.display())];
    card(folder, number, MTU).into_iter().chain(monitor).collect()
}

/// Whether the daemon's monitor of a guest is there.
fn given(monitors: Monitors, number: u32) -> bool {
    monitors == Monitors::Both || monitors == Monitors::OneAndAnEmptyPlace && number == 0
}

/// The host's daemon.
fn daemon(scratch: &Scratch, monitors: Monitors, window_mib: u32) -> DaemonProcess {
    let guest = |number| match monitors {
        Monitors::Nobodys => window::sized(number, window_mib),
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

/// A guest's window: what the host's daemon, and what QEMU is told of it.
pub(crate) mod window {
    use std::path::{Path, PathBuf};

    use isthmus_testbed::DaemonProcess;

    pub(crate) const VECTORS: u32 = 8;

    /// A window's size where it does not matter.
    pub(crate) const MIB: u32 = 32;

    /// Where a guest's device is served.
    pub(crate) fn socket(daemon: &DaemonProcess, number: u32) -> PathBuf {
        daemon.run_dir().join(format!("guest-guest{number}.sock"))
    }

    /// For the daemon, whose user owns all guests.
    pub(crate) fn config(number: u32) -> String {
        sized(number, MIB)
    }

    /// The same for a window of so many MiB.
    pub(crate) fn sized(number: u32, mib: u32) -> String {
        let user = rustix::process::geteuid().as_raw();
        format!("[[kvm.guest]]\nname = \"guest{number}\"\nuser = {user}\nvectors = {VECTORS}\nwindow_mib = {mib}\n")
    }

    /// Where the monitor is that the daemon is given: nobody else uses it.
    fn place_of_monitor(folder: &Path, number: u32) -> String {
        folder.join(format!("daemons{number}")).display().to_string()
    }

    /// For the daemon, behind the rest of the guest.
    pub(crate) fn monitored(folder: &Path, number: u32) -> String {
        format!("monitor = \"{}\"\n", place_of_monitor(folder, number))
    }

    /// For QEMU: that monitor.
    pub(crate) fn monitor(folder: &Path, number: u32) -> [String; 2] {
        ["-qmp".to_owned(), format!("unix:{},server=on,wait=off", place_of_monitor(folder, number))]
    }

    /// For QEMU.
    pub(crate) fn device(daemon: &DaemonProcess, number: u32) -> [String; 4] {
        let socket = format!("socket,id=window,path={}", socket(daemon, number).display());
        let device = format!("ivshmem-doorbell,id=device,chardev=window,vectors={VECTORS}");
        ["-chardev".to_owned(), socket, "-device".to_owned(), device]
    }
}
