//! Guests with a card on a bridge of their host: QEMU's `-netdev tap`, as users attach guests to a network.
//!
//! ```text
//!  ┌ guest0 ──────────┐      ┌ host ──────────────────────────────┐
//!  │ iperf3 ── eth0 ═ virtio ═ QEMU ═ tap0 ── br0 ── an interface  │
//!  └──────────────────┘      └────────────────────────────────────┘
//! ```

use std::path::PathBuf;
use std::process::Command;

use isthmus_netns::Host;
use isthmus_testbed::Scratch;

use crate::guest::Guest;
use crate::guest_kit::GuestKit;
use crate::system::{self, Content, Extra};

/// The script of busybox's DHCP client: it sets the address, and prints the event.
const LEASE_SCRIPT: &str = "#!/bin/sh
[ \"$1\" != bound ] || ip addr add \"$ip/24\" dev \"$interface\"
echo \"lease $1 $ip\"
";

/// The place of that script in the guest.
const LEASE_PATH: &str = "etc/lease";

/// The parts of guests that are attached by bridges. Dropping it removes their files; guests must end before. Methods panic on failure,
/// which fails the test.
#[derive(Debug)]
pub struct BridgedGuests {
    kit: GuestKit,
    files: PathBuf,
    _scratch: Scratch,
}

impl BridgedGuests {
    /// The name of the bridge on each host.
    pub const BRIDGE: &str = "br0";

    /// Packs the file system of the guests. They run stock programs, and none of ours.
    pub fn new(kit: GuestKit, mut extra: Extra) -> Self {
        let scratch = Scratch::new().unwrap_or_else(|error| panic!("{error}"));
        let files = scratch.join("files.cpio");
        extra.files.push((LEASE_PATH.to_owned(), LEASE_SCRIPT.into()));
        let content = Content { config: "", programs: Vec::new(), modules: Vec::new(), extra: &extra };
        system::write(&kit, &content, scratch.path(), &files);
        Self { kit, files, _scratch: scratch }
    }

    /// Creates the bridge of a host, with the settings that the kernel gives it, and the ports of guests with these numbers. The error names
    /// what the kernel lacks.
    pub fn bridge(host: &Host, guests: &[u32]) -> Result<(), String> {
        let bridge = Self::BRIDGE;
        ip(host, &format!("link add {bridge} type bridge"))?;
        ip(host, &format!("link set {bridge} up"))?;
        for number in guests {
            ip(host, &format!("tuntap add dev tap{number} mode tap"))?;
            ip(host, &format!("link set tap{number} master {bridge} up"))?;
        }
        Ok(())
    }

    /// Starts a guest on a host. The bridge there has a port for it.
    pub fn boot(&self, host: &Host, number: u32) -> Guest {
        Guest::boot_on(Some(host), &self.kit, number, &self.files, &card(number))
    }

    /// Waits until a guest has booted, and sets its card up with this MTU.
    pub fn wait_for_boot(guest: &mut Guest, mtu: u32) {
        let uptime_s = guest.ready();
        println!("# guest{} is up after {uptime_s} s of its time", guest.number);
        guest.run(&format!("hostname guest{}; ip link set eth0 mtu {mtu} && ip link set eth0 up", guest.number));
    }

    /// Asks for an address by DHCP, which must be granted, and returns it.
    #[track_caller]
    pub fn lease(guest: &mut Guest) -> String {
        let said = guest.run(&format!("udhcpc -i eth0 -f -q -n -t 60 -T 1 -s /{LEASE_PATH} 2>&1"));
        let address = said.iter().find_map(|line| line.strip_prefix("lease bound "));
        address.unwrap_or_else(|| panic!("{said:?}")).to_owned()
    }
}

/// The longest MTU of a card of a guest.
pub(crate) const CARD_MTU: u32 = 9000;

/// Returns the options of QEMU for a guest's card: a port of a bridge.
pub(crate) fn card(number: u32) -> [String; 4] {
    let tap = format!("tap,id=wire,ifname=tap{number},script=no,downscript=no");
    let card = format!("virtio-net-pci,netdev=wire,mac=52:54:00:86:df:{number:02x},host_mtu={CARD_MTU}");
    ["-netdev".to_owned(), tap, "-device".to_owned(), card]
}

/// Runs `ip` on a host. The error is what it says.
pub(crate) fn ip(host: &Host, order: &str) -> Result<(), String> {
    let mut ip = Command::new("ip");
    ip.args(order.split(' '));
    let output = host.output(ip).map_err(|error| format!("ip {order}: {error}"))?;
    let said = || format!("ip {order}: {}", String::from_utf8_lossy(&output.stderr).trim());
    if output.status.success() { Ok(()) } else { Err(said()) }
}
