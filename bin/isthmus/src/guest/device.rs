//! The device of a guest's machine, which its window is behind: as libvirt and QEMU are told of it.

use std::path::{Component, Path};

use anyhow::{Result, bail};
use isthmus_layout::control::printable;
use isthmus_platform_kvm::port;
use isthmus_report::GuestRow;
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Device {
    /// Elements of libvirt's domain; not where the number of a port is missing.
    pub(super) libvirt: Option<String>,
    /// Arguments of QEMU.
    pub(super) qemu: Vec<String>,
}

/// The PCI ports of a machine of the kind q35, beside the port of its window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PciPorts {
    /// The number of ports for pair windows.
    pub(crate) count: u8,
    /// The first number for PCI controllers that libvirt's domain has not given to one.
    pub(crate) index: Option<u8>,
}

impl Device {
    /// Refuses a guest with an invalid path: QEMU and libvirt may run as root, and QEMU replaces what is at the path of a monitor.
    pub(super) fn of(guest: &GuestRow, ports: PciPorts) -> Result<Self> {
        for (name, path) in [("socket", Some(&guest.socket)), ("monitor", guest.monitor.as_ref())] {
            if let Some(path) = path.filter(|path| !is_socket_path(path)) {
                bail!(
                    "the daemon reports {path:?} as the {name} of the guest {}, which is no path of a socket: \
                     compare it with `{name}` in the daemon's configuration, and restart the daemon",
                    guest.name
                );
            }
        }
        Ok(Self { libvirt: libvirt(guest, ports), qemu: arguments(guest, ports.count) })
    }
}

/// Returns whether a path begins at `/`, leads up nowhere, and can be printed.
fn is_socket_path(path: &str) -> bool {
    let is_up = |part: Component<'_>| part == Component::ParentDir;
    path.len() > 1 && path.starts_with('/') && path.chars().all(printable) && !Path::new(path).components().any(is_up)
}

/// The first of the chassis numbers that ports are given, the one of the guest's own window; each port of a machine needs one of its own.
const CHASSIS: usize = 200;

/// The smallest reservation of a port. Firmware finds no room for it below 4 GiB, where nothing is cached, and so places the windows of all
/// ports above. The reservation consists of addresses, not memory.
const RESERVE_MIN: u64 = 4 << 30;

/// Returns the bytes to reserve for each port, because QEMU reserves none. The first port is for the guest's own window, which can only be
/// unplugged behind a port. The others are for pair windows. Without ports the list is empty.
fn port_windows(guest: &GuestRow, ports: u8) -> Vec<u64> {
    let common = std::iter::repeat_n(guest.pair_window_bytes.unwrap_or_default(), ports.into());
    std::iter::once(guest.window_bytes.max(RESERVE_MIN)).filter(|_| ports > 0).chain(common).collect()
}

/// For QEMU: the daemon's own monitor of a guest.
fn monitor(guest: &GuestRow) -> Vec<String> {
    let socket = |monitor: &String| format!("unix:{},server=on,wait=off", monitor.replace(',', ",,"));
    guest.monitor.iter().flat_map(|monitor| ["-qmp".to_owned(), socket(monitor)]).collect()
}

/// For QEMU: all.
fn arguments(guest: &GuestRow, ports: u8) -> Vec<String> {
    let GuestRow { socket, vectors, .. } = guest;
    let mut arguments = vec!["-chardev".to_owned(), format!("socket,id=isthmus,path={}", socket.replace(',', ",,"))];
    let mut devices = Vec::new();
    for (place, bytes) in port_windows(guest, ports).into_iter().enumerate() {
        let (number, mib) = (CHASSIS + place, bytes >> 20);
        let name = port::name(place);
        devices.push(format!("pcie-root-port,id={name},chassis={number},slot={number},pref64-reserve={mib}M"));
    }
    let bus = if devices.is_empty() { String::new() } else { format!(",bus={}", port::name(0)) };
    let window = format!("ivshmem-doorbell,id=isthmus-device,chardev=isthmus,vectors={vectors}{bus}");
    devices.insert(devices.len().min(1), window);
    arguments.extend(devices.into_iter().flat_map(|device| ["-device".to_owned(), device]));
    arguments.extend(monitor(guest));
    arguments
}

/// For libvirt (its formatdomain: "Shared memory device"): what stands in `<devices>`, and what stands beside. None where its ports have no numbers.
fn libvirt(guest: &GuestRow, ports: PciPorts) -> Option<String> {
    let reserves = port_windows(guest, ports.count);
    let first = ports.index.or(reserves.is_empty().then_some(0))?;
    let mut text = String::new();
    for place in 0..reserves.len() {
        let index = usize::from(first) + place;
        text += &format!(
            "<controller type='pci' index='{index}' model='pcie-root-port'>\n  <alias name='{}'/>\n</controller>\n",
            port::alias(place)
        );
    }
    text += &format!(
        "<shmem name='isthmus'>\n  <model type='ivshmem-doorbell'/>\n  <server path='{}'/>\n  <msi vectors='{}' ioeventfd='on'/>\n  \
         <alias name='ua-isthmus'/>\n",
        escaped(&guest.socket),
        guest.vectors
    );
    if !reserves.is_empty() {
        // The default of libvirt is a bridge for conventional PCI devices, which has no room for windows.
        text += &format!("  <address type='pci' domain='0x0000' bus='{first:#04x}' slot='0x00' function='0x0'/>\n");
    }
    text += "</shmem>\n";
    // libvirt has no elements for these; as of its documentation of QEMU, "Pass-through of arbitrary qemu commands" and "Overriding
    // properties of qemu devices".
    let mut beside = String::new();
    let monitor = monitor(guest);
    if !monitor.is_empty() {
        let words = monitor.iter().map(|word| format!("  <qemu:arg value='{}'/>\n", escaped(word)));
        beside += &format!("<qemu:commandline>\n{}</qemu:commandline>\n", words.collect::<String>());
    }
    if !reserves.is_empty() {
        let device = |(place, bytes): (usize, &u64)| {
            let property = format!("<qemu:property name='pref64-reserve' type='unsigned' value='{bytes}'/>");
            let alias = port::alias(place);
            format!("  <qemu:device alias='{alias}'><qemu:frontend>{property}</qemu:frontend></qemu:device>\n")
        };
        let devices: String = reserves.iter().enumerate().map(device).collect();
        beside += &format!("<qemu:override>\n{devices}</qemu:override>\n");
    }
    if !beside.is_empty() {
        text +=
            "<!-- Beside <devices>, in a <domain> with xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0': -->\n";
        text += &beside;
    }
    Some(text)
}

/// As an attribute in single quotes has it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::guest;
    use super::*;

    #[test]
    fn a_device_names_the_socket_as_each_of_the_two_takes_it() {
        let libvirt = libvirt(&guest(), PciPorts::default()).unwrap_or_default();
        assert!(libvirt.contains("<server path='/run/a,b/it&apos;s&amp;web.sock'/>"), "{libvirt}");
        assert!(!libvirt.contains("<address") && !libvirt.contains("qemu:"), "{libvirt}");
        let arguments = arguments(&guest(), 0);
        assert_eq!(arguments[1], "socket,id=isthmus,path=/run/a,,b/it's&web.sock");
        assert_eq!(arguments[3..], ["ivshmem-doorbell,id=isthmus-device,chardev=isthmus,vectors=16"]);
    }

    #[test]
    fn monitored_guest_has_ports_for_its_window_and_pair_windows() {
        let guest = GuestRow { monitor: Some("/run/it's,web.qmp".to_owned()), ..guest() };
        let port = |number: u8, mib: u32| {
            format!("pcie-root-port,id=isthmus{number},chassis=20{number},slot=20{number},pref64-reserve={mib}M")
        };
        let window = "ivshmem-doorbell,id=isthmus-device,chardev=isthmus,vectors=16,bus=isthmus0";
        let devices = ["-device", &port(0, 4096), "-device", window, "-device", &port(1, 32), "-device", &port(2, 32)];
        let arguments = arguments(&guest, 2);
        assert_eq!(arguments[2..10], devices);
        assert_eq!(arguments[10..], ["-qmp", "unix:/run/it's,,web.qmp,server=on,wait=off"]);
        assert_eq!(libvirt(&guest, PciPorts { count: 2, index: None }), None);
        let libvirt = libvirt(&guest, PciPorts { count: 2, index: Some(15) }).unwrap_or_default();
        for (number, bytes) in [(0, 4_u64 << 30), (1, 32 << 20), (2, 32 << 20)] {
            let index = 15 + number;
            let port = format!("index='{index}' model='pcie-root-port'>\n  <alias name='ua-isthmus{number}'/>");
            assert!(libvirt.contains(&port), "{libvirt}");
            let room = format!(
                "alias='ua-isthmus{number}'><qemu:frontend><qemu:property name='pref64-reserve' type='unsigned' value='{bytes}'/>"
            );
            assert!(libvirt.contains(&room), "{libvirt}");
        }
        assert!(
            libvirt.contains("<address type='pci' domain='0x0000' bus='0x0f' slot='0x00' function='0x0'/>"),
            "{libvirt}"
        );
        assert!(libvirt.contains("<qemu:arg value='unix:/run/it&apos;s,,web.qmp,server=on,wait=off'/>"));
    }
}
