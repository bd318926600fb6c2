//! Two guests with connected cards, each with its own daemon.

use std::path::Path;

use isthmus_testbed::{Scratch, eventually};
use serde_json::Value;

use crate::guest::Guest;
use crate::guest_kit::GuestKit;
use crate::shell::timeout;
use crate::system::{self, Content, Extra};

/// Returns the options of QEMU for a guest's card: one end of the wire.
pub(crate) fn card(folder: &Path, number: u32, mtu: u32) -> [String; 4] {
    let end = |number: u32| folder.join(format!("wire{number}")).display().to_string();
    let (own, other) = (end(number), end(1 - number));
    let wire = format!("dgram,id=wire,local.type=unix,local.path={own},remote.type=unix,remote.path={other}");
    let card = format!("virtio-net-pci,netdev=wire,mac={},host_mtu={mtu}", card_mac(number));
    ["-netdev".to_owned(), wire, "-device".to_owned(), card]
}

/// Returns the MAC address of that card.
pub(crate) fn card_mac(number: u32) -> String {
    format!("52:54:00:86:df:0{number}")
}

/// Two guests. Dropping it ends them and removes their files. Methods panic on failure, which fails the test.
#[derive(Debug)]
pub struct ConnectedGuests {
    /// The guests, which are called `guest0` and `guest1`.
    pub guests: [Guest; 2],
    _scratch: Scratch,
}

impl ConnectedGuests {
    /// Boots two guests with these settings of their boards. Returns once their daemons know each other.
    pub fn start(kit: &GuestKit, mtu: u32, settings: &str) -> Self {
        let scratch = Scratch::new().unwrap_or_else(|error| panic!("{error}"));
        let (folder, files) = (scratch.path(), scratch.join("files.cpio"));
        let config = format!("[[mx.board]]\nlinks = [{{ interface = \"eth0\" }}]\n{settings}");
        let content =
            Content { config: &config, programs: system::programs(), modules: Vec::new(), extra: &Extra::default() };
        system::write(kit, &content, folder, &files);
        let mut guests = [0, 1].map(|number| Guest::boot(kit, number, &files, &card(folder, number, mtu)));
        for guest in &mut guests {
            let uptime_s = guest.ready();
            println!("# guest{} is up after {uptime_s} s of its time", guest.number);
            guest.run(&format!("network {} {mtu} && daemon", guest.number));
        }
        let mut pair = Self { guests, _scratch: scratch };
        pair.wait_for_peers();
        pair
    }

    /// Waits until each daemon knows the board of the other and has a link to it.
    pub fn wait_for_peers(&mut self) {
        let [one, other] = &mut self.guests;
        for (guest, name) in [(&mut *one, "guest1:0"), (other, "guest0:0")] {
            let mut said = String::new();
            let met = eventually(timeout(), || {
                guest.start_command("isthmus peer list --json");
                said = guest.finish_command().lines.join("\n");
                knows(&said, name)
            });
            if met.is_err() {
                let log = guest.run("cat /tmp/isthmusd.log").join("\n");
                panic!("guest{} does not find {name}: {said}\n{log}", guest.number);
            }
        }
    }
}

/// Returns true if a list of peers has a reachable peer of this name.
fn knows(list: &str, name: &str) -> bool {
    let Ok(list) = serde_json::from_str::<Value>(list) else { return false };
    let peers = list["peers"].as_array();
    peers.is_some_and(|peers| peers.iter().any(|peer| peer["name"] == name && peer["link"] == "eth0"))
}
