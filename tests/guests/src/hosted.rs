//! Two guests of one host, whose programs meet at the host's daemon; and, to compare with, a wire between the two with a daemon on either end.
//!
//! ```text
//!  ┌ guest0 ────────────────────────────┐      host       ┌ guest1 ────────────────────────────┐
//!  │ mx_pingpong ── isthmusd --guest ═══╪═ window ═ isthmusd ═ window ═╪═══ isthmusd --guest ── mx_pingpong │
//!  │           └─── isthmusd ── eth0 ═══╪═ virtio ═ QEMU ══ QEMU ═ virtio ═╪═══ eth0 ── isthmusd ───┘       │
//!  └────────────────────────────────────┘                 └────────────────────────────────────┘
//! ```

use std::path::PathBuf;

use isthmus_testbed::{Daemon, Launch, Scratch, binary, eventually_some};

use crate::guest::Guest;
use crate::kit::Kit;
use crate::pair::card;
use crate::shell::patience;
use crate::system::{self, Content, Extra};

const MTU: u32 = 9000;

/// For the daemon in a guest that reaches the other one by the wire.
const BRIDGED: &str = "[[mx.board]]\nlinks = [{ interface = \"eth0\" }]\n";

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
        let scratch = Scratch::new().unwrap_or_else(|error| panic!("{error}"));
        let (folder, files) = (scratch.path(), scratch.join("files.cpio"));
        let modules = vec![kit.driver(folder)?];
        let content = Content { config: BRIDGED, programs: system::programs(), modules, extra: &Extra::default() };
        system::write(kit, &content, folder, &files);
        let daemon = daemon(&scratch);
        let guests = [0, 1].map(|number| {
            let devices: Vec<String> =
                card(folder, number, MTU).into_iter().chain(window::device(&daemon, number)).collect();
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

/// The host's daemon.
fn daemon(scratch: &Scratch) -> Daemon {
    let config = format!(
        "[daemon]\nsocket = \"{{socket}}\"\nruntime_dir = \"{{state}}\"\n{}",
        [0, 1].map(window::config).concat()
    );
    Daemon::on(scratch).config(&config).start(patience()).unwrap_or_else(|error| panic!("{error}"))
}

/// A guest's window: what the host's daemon, and what QEMU is told of it.
pub(crate) mod window {
    use isthmus_testbed::Daemon;

    const VECTORS: u32 = 8;

    /// For the daemon, whose user owns all guests.
    pub(crate) fn config(number: u32) -> String {
        let user = rustix::process::geteuid().as_raw();
        format!("[[kvm.guest]]\nname = \"guest{number}\"\nuser = {user}\nvectors = {VECTORS}\nwindow_mib = 32\n")
    }

    /// For QEMU.
    pub(crate) fn device(daemon: &Daemon, number: u32) -> [String; 4] {
        let socket = daemon.run_dir().join(format!("guest-guest{number}.sock"));
        let socket = format!("socket,id=window,path={}", socket.display());
        let device = format!("ivshmem-doorbell,chardev=window,vectors={VECTORS}");
        ["-chardev".to_owned(), socket, "-device".to_owned(), device]
    }
}
