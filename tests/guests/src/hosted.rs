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

use std::path::PathBuf;

use isthmus_testbed::{Daemon, Launch, Scratch, binary, eventually_some};

use crate::guest::Guest;
use crate::kit::Kit;
use crate::pair::card;
use crate::shell::patience;
use crate::system::{self, Content};

const MTU: u32 = 9000;

/// Vectors of each guest's device.
const VECTORS: u32 = 8;

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
pub struct Hosted {
    /// The guests, which are called `guest0` and `guest1`.
    pub guests: [Guest; 2],
    daemon: Daemon,
    _scratch: Scratch,
}

impl Hosted {
    /// Boots both, and waits until their programs can attach; or says what is missing.
    pub fn start(kit: &Kit) -> Result<Self, String> {
        Self::start_with(kit, Monitors::Nobodys)
    }

    /// The same.
    pub fn start_with(kit: &Kit, monitors: Monitors) -> Result<Self, String> {
        let scratch = Scratch::new().unwrap_or_else(|error| panic!("{error}"));
        let (folder, files) = (scratch.path(), scratch.join("files.cpio"));
        let modules = vec![kit.driver(folder)?];
        let content = Content { config: BRIDGED, programs: system::programs(), modules };
        system::write(kit, &content, folder, &files);
        let daemon = daemon(&scratch, monitors);
        let guests = [0, 1].map(|number| {
            let socket = daemon.run_dir().join(format!("guest-guest{number}.sock"));
            let socket = format!("socket,id=window,path={}", socket.display());
            let device = format!("ivshmem-doorbell,chardev=window,vectors={VECTORS}");
            let window = ["-chardev".to_owned(), socket, "-device".to_owned(), device];
            let monitor = ["-qmp".to_owned(), format!("unix:{},server=on,wait=off", monitor(&scratch, number))];
            let given = monitors == Monitors::Both || monitors == Monitors::OneAndAnEmptyPlace && number == 0;
            let monitor = monitor.into_iter().filter(|_| given);
            let devices: Vec<String> = card(folder, number, MTU).into_iter().chain(window).chain(monitor).collect();
            Guest::boot(kit, number, &files, &devices)
        });
        let mut hosted = Self { guests, daemon, _scratch: scratch };
        for guest in &mut hosted.guests {
            let uptime_s = guest.ready();
            println!("# guest{} is up after {uptime_s} s of its time", guest.number);
            guest.run(&format!("network {} {MTU} && insmod /modules/isthmus.ko && window", guest.number));
        }
        Ok(hosted)
    }

    /// A program of this host that talks to the same daemon.
    pub fn program(&self, path: impl Into<PathBuf>) -> Launch {
        self.daemon.beside(path)
    }

    /// What `isthmus` says on this host.
    pub fn isthmus(&self, arguments: &[&str]) -> String {
        let isthmus = binary("isthmus", "isthmus").unwrap_or_else(|error| panic!("{error}"));
        let running = self.program(isthmus).args(arguments).spawn().unwrap_or_else(|error| panic!("{error}"));
        let finished = running.finish(patience()).unwrap_or_else(|error| panic!("{error}"));
        finished.expect_success().join("\n")
    }

    /// What it says once that is so.
    pub fn isthmus_until(&self, arguments: &[&str], so: impl Fn(&str) -> bool) -> String {
        let found = eventually_some(patience(), || Some(self.isthmus(arguments)).filter(|said| so(said)));
        found.unwrap_or_else(|late| panic!("isthmus {arguments:?}: {late}\n{}", self.isthmus(arguments)))
    }
}

/// Where a guest's monitor is.
fn monitor(scratch: &Scratch, number: u32) -> String {
    scratch.join(&format!("monitor{number}")).display().to_string()
}

/// The host's daemon.
fn daemon(scratch: &Scratch, monitors: Monitors) -> Daemon {
    let user = rustix::process::geteuid().as_raw();
    let guest = |number| {
        let monitor = match monitors {
            Monitors::Nobodys => String::new(),
            _ => format!("monitor = \"{}\"\n", monitor(scratch, number)),
        };
        format!(
            "[[kvm.guest]]\nname = \"guest{number}\"\nuser = {user}\nvectors = {VECTORS}\nwindow_mib = 32\n{monitor}"
        )
    };
    let config =
        format!("[daemon]\nsocket = \"{{socket}}\"\nruntime_dir = \"{{state}}\"\n{}", [0, 1].map(guest).concat());
    Daemon::on(scratch).config(&config).start(patience()).unwrap_or_else(|error| panic!("{error}"))
}
