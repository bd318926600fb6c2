//! The network interfaces of the guest that can be steered.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use isthmus_layout::proxy::loops::Mac;

/// Where the kernel shows interfaces, those of this network namespace.
const INTERFACES: &str = "/sys/class/net";

/// The number of Ethernet among the types of interfaces.
const ETHERNET: &str = "1";

const IFF_UP: u32 = 1;

/// Returns the index of each interface that is up, by its address. Interfaces with hardware of their own count: frames of bridges and bonds
/// pass one of them in the end. Two with one address are left out, because it does not tell which one a frame leaves by.
pub(super) fn of_hardware() -> BTreeMap<Mac, u32> {
    let folders = fs::read_dir(INTERFACES).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: BTreeMap<Mac, Option<u32>> = BTreeMap::new();
    for (mac, index) in folders.filter_map(|folder| interface(&folder)) {
        found.entry(mac).and_modify(|known| *known = None).or_insert(Some(index));
    }
    found.into_iter().filter_map(|(mac, index)| Some((mac, index?))).collect()
}

fn interface(folder: &Path) -> Option<(Mac, u32)> {
    let read = |name: &str| Some(fs::read_to_string(folder.join(name)).ok()?.trim().to_owned());
    let flags = u32::from_str_radix(read("flags")?.strip_prefix("0x")?, 16).ok()?;
    let is_usable = flags & IFF_UP != 0 && read("type")? == ETHERNET && folder.join("device").exists();
    is_usable.then_some((parse(&read("address")?)?, read("ifindex")?.parse().ok()?))
}

fn parse(text: &str) -> Option<Mac> {
    let octets: Option<Vec<u8>> = text.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect();
    Mac::new(octets?.try_into().ok()?)
}

/// Returns the number of frames that have passed an interface.
pub(super) fn frames(index: u32) -> Option<u64> {
    let name = nix::net::if_::if_indextoname(index).ok()?;
    let folder = Path::new(INTERFACES).join(name.to_str().ok()?).join("statistics");
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    Some(read("rx_packets")?.wrapping_add(read("tx_packets")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_interfaces_as_the_kernel_shows_them() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("flags", "0x1003\n");
        write("type", "1\n");
        write("address", "52:54:00:00:00:0a\n");
        write("ifindex", "7\n");
        assert_eq!(interface(folder.path()), None, "it has no hardware");
        fs::create_dir(folder.path().join("device")).unwrap();
        assert_eq!(interface(folder.path()), Some((Mac::new([0x52, 0x54, 0, 0, 0, 10]).unwrap(), 7)));
        write("flags", "0x1002\n");
        assert_eq!(interface(folder.path()), None, "it is down");
        write("flags", "0x1003\n");
        for address in ["01:00:5e:00:00:01", "00:00:00:00:00:00", "52:54", "", "52:54:00:00:00:0a:0b"] {
            write("address", address);
            assert_eq!(interface(folder.path()), None, "{address}");
        }
    }
}
