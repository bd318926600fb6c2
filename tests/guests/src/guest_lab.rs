//! A host with guests on a bridge of its own, its daemon on that bridge as well, and another host at the far end of a wire.
//!
//! ```text
//!  ┌ guest0 ──────────────────┐      ┌ near ───────────────────────────────────┐       ┌ far ──────────────────────┐
//!  │ program ── isthmusd --guest ═ window ═ isthmusd ──────── br0 ──────── wire0 ═══════ wire0 ── isthmusd ── program │
//!  │     └───── isthmusd ── eth0 ═ virtio ═ QEMU ═ tap0 ══════╯│ │             │       └───────────────────────────┘
//!  └──────────────────────────┘      │        guest1 … tap1 ═══╯ …             │
//!                                    └─────────────────────────────────────────┘
//! ```
//!
//! By its window a guest's program reaches the far host behind the address of the near host. By its card the guest is a host of its own on
//! the same wire. Measurements compare both.

use std::path::PathBuf;

use isthmus_hosts::{TestHost, board_on_wire};
use isthmus_netns::{Host, Testbed, Wire};
use isthmus_testbed::Scratch;

use crate::bridged_guests::{CARD_MTU, card, ip};
use crate::guest::Guest;
use crate::guest_kit::GuestKit;
use crate::system::{self, Content, Extra};
use crate::two_guests::window;

const MTU: u32 = CARD_MTU;

/// The configuration of the daemon in a guest that is a host of its own.
const BRIDGED: &str = "[[mx.board]]\nlinks = [{ interface = \"eth0\" }]\n";

/// The configuration of the near host's board.
const LOCAL_CONFIG: &str = "[[mx.board]]\nname = \"near:0\"\nlinks = [{ interface = \"br0\" }]\n";

/// Keeps pair windows while other guests are measured.
const PAIR_WINDOW_CONFIG: &str = "[kvm]\npair_window_idle_s = 86400\n";

/// Two hosts and the guests of one. Dropping it ends them and removes their files. Methods panic on failure, which fails the test.
#[derive(Debug)]
pub struct GuestLab {
    /// The guests, which are called `guest0`, `guest1` and so on.
    pub guests: Vec<Guest>,
    /// Their host. Its board is `near:0`.
    pub local: TestHost,
    /// The other host. Its board is `far:0`.
    pub remote: TestHost,
    files: PathBuf,
    has_monitors: bool,
    _bed: Testbed,
    scratch: Scratch,
}

impl GuestLab {
    /// Address of the far host on the guests' network, in which guest number n has 10.86.223.(n + 1).
    pub const REMOTE_ADDRESS: &'static str = "10.86.223.200";

    /// Starts both hosts and `guests` guests. `names` is the maximum number of guests. The error says what is missing.
    pub fn start(kit: &GuestKit, names: u32, guests: u32, extra: &Extra) -> Result<Self, String> {
        Self::start_as(kit, (names, guests), extra, false)
    }

    /// Starts the lab with the guests' monitors given to the near daemon, so that two communicating guests get a pair window.
    pub fn start_monitored(kit: &GuestKit, names: u32, guests: u32, extra: &Extra) -> Result<Self, String> {
        Self::start_as(kit, (names, guests), extra, true)
    }

    fn start_as(
        kit: &GuestKit,
        (names, guests): (u32, u32),
        extra: &Extra,
        has_monitors: bool,
    ) -> Result<Self, String> {
        let scratch = Scratch::new().unwrap_or_else(|error| panic!("{error}"));
        let (folder, files) = (scratch.path(), scratch.join("files.cpio"));
        let mut bed = Testbed::new().map_err(|why| why.to_string())?;
        let modules = vec![kit.driver(folder)?];
        let content = Content { config: BRIDGED, programs: system::programs(), modules, extra };
        system::write(kit, &content, folder, &files);
        let [local, remote] = ["near", "far"].map(|name| bed.host(name).unwrap_or_else(|error| panic!("{error}")));
        bed.link(&local, &remote, &Wire::mtu(MTU)).unwrap_or_else(|error| panic!("{error}"));
        bridge(&local, names)?;
        ip(&remote, &format!("addr add {}/24 dev wire0", Self::REMOTE_ADDRESS))?;
        let monitored = |number| if has_monitors { window::monitored(folder, number) } else { String::new() };
        let named: String = (0..names).map(|number| window::config(number) + &monitored(number)).collect();
        let local = TestHost::start(&local, &format!("{LOCAL_CONFIG}{PAIR_WINDOW_CONFIG}{named}"));
        let remote = TestHost::start(&remote, &board_on_wire("far:0", ""));
        let mut site = Self { guests: Vec::new(), local, remote, files, has_monitors, _bed: bed, scratch };
        site.local.wait_for_peer("far:0");
        site.remote.wait_for_peer("near:0");
        site.boot(kit, guests);
        Ok(site)
    }

    /// Boots guests at the same time, until there are `guests`. Returns once their programs can attach.
    pub fn boot(&mut self, kit: &GuestKit, guests: u32) {
        let is_there = self.guests.len();
        for number in is_there as u32..guests {
            let monitor = self.has_monitors.then(|| window::monitor(self.scratch.path(), number));
            let devices = card(number).into_iter().chain(window::device(&self.local.daemon, number));
            let devices: Vec<String> = devices.chain(monitor.into_iter().flatten()).collect();
            self.guests.push(Guest::boot_on(Some(self.local.host()), kit, number, &self.files, &devices));
        }
        for guest in &mut self.guests[is_there..] {
            let uptime_s = guest.ready();
            println!("# guest{} is up after {uptime_s} s of its time", guest.number);
            guest.run(&format!("network {} {MTU} && insmod /modules/isthmus.ko && window", guest.number));
        }
    }
}

/// Connects the wire and the cards of `guests` guests by a bridge, which forwards from the first frame on and does not snoop multicast
/// groups. The error names what the kernel lacks.
fn bridge(host: &Host, guests: u32) -> Result<(), String> {
    let kind = "type bridge forward_delay 0 mcast_snooping 0";
    ip(host, &format!("link add br0 mtu {MTU} address 02:69:73:00:ff:01 {kind}"))?;
    ip(host, "link set br0 up")?;
    ip(host, "link set wire0 master br0")?;
    for number in 0..guests {
        ip(host, &format!("tuntap add dev tap{number} mode tap"))?;
        ip(host, &format!("link set tap{number} mtu {MTU} master br0 up"))?;
    }
    Ok(())
}
