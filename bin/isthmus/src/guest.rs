//! `isthmus guest`: the guests that a host's daemon serves.

use std::path::PathBuf;

use anyhow::{Context, Result};
use isthmus_client::Topic;
use isthmus_control::schema::{GuestRow, Status};
use serde::Serialize;

use crate::daemon;
use crate::output::{Ended, Lean, Misuse, Output, Table, bytes};

#[derive(Serialize)]
struct Guests {
    guests: Vec<GuestRow>,
}

pub(crate) fn list(output: Output, socket: Option<PathBuf>) -> Result<Ended> {
    let report = Guests { guests: guests(socket)? };
    output.result("guests", &report, || text(&report.guests))?;
    Ok(Ended::Done)
}

fn guests(socket: Option<PathBuf>) -> Result<Vec<GuestRow>> {
    let answer = daemon::ask(socket, Topic::Status, &[])?;
    let status: Status = daemon::read(&answer)?;
    status.guests.context("this daemon serves no guests: it is of an older version")
}

fn text(guests: &[GuestRow]) -> String {
    let mut table = Table::new(&[
        ("guest", Lean::Left),
        ("user", Lean::Right),
        ("on", Lean::Left),
        ("state", Lean::Left),
        ("heard", Lean::Right),
        ("kept", Lean::Left),
        ("domains", Lean::Right),
        ("bytes", Lean::Right),
        ("used", Lean::Right),
        ("vectors", Lean::Right),
        ("socket", Lean::Left),
    ]);
    for guest in guests {
        table.row(vec![
            guest.name.clone(),
            guest.uid.to_string(),
            guest.platform.clone().unwrap_or_else(|| "kvm".to_owned()),
            state(guest).to_owned(),
            guest.heard_s.map_or_else(|| "-".to_owned(), |heard_s| format!("{heard_s} s")),
            kept(guest).to_owned(),
            guest.domains.to_string(),
            bytes(guest.window_bytes),
            guest.used_bytes.map_or_else(|| "-".to_owned(), bytes),
            guest.vectors.to_string(),
            guest.socket.clone(),
        ]);
    }
    let mut text = table.text();
    for guest in guests {
        if let Some(why) = &guest.refused {
            text.push_str(&format!("{}: the last connection for its device came to nothing: {why}\n", guest.name));
        }
    }
    text
}

/// How it is; daemons of older versions do not say it in one word.
fn state(guest: &GuestRow) -> &str {
    match (&guest.state, guest.used_bytes, guest.daemon) {
        (Some(state), ..) => state,
        (None, None, _) => "absent",
        (None, Some(_), false) => "device",
        (None, Some(_), true) => "there",
    }
}

fn kept(guest: &GuestRow) -> &'static str {
    match guest.kept {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    }
}

#[derive(Serialize)]
struct Device {
    libvirt: String,
    qemu: Vec<String>,
}

/// What a machine of the kind q35 is to have beside its window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ports {
    /// Places for windows in common with other guests.
    pub(crate) count: u8,
    /// The first number for PCI controllers that libvirt's domain has not given to one.
    pub(crate) index: Option<u8>,
}

pub(crate) fn xml(output: Output, socket: Option<PathBuf>, name: &str, qemu: bool, ports: Ports) -> Result<Ended> {
    let guests = guests(socket)?;
    let guest = guests.iter().find(|guest| guest.name == name).ok_or_else(|| {
        let known: Vec<&str> = guests.iter().map(|guest| guest.name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Misuse(format!("the daemon's configuration has no guest {name} ([[kvm.guest]]); it has {known}"))
    })?;
    if guest.platform.as_deref() == Some("xen") {
        return Err(Misuse(format!("{name} is a guest of Xen and needs no device: isthmus guest allow {name}")).into());
    }
    if !qemu && ports.count > 0 && ports.index.is_none() {
        let text = "libvirt's ports have numbers by which the window names its own: give the first one that is free by --index, one more than the \
                    greatest `index` of all <controller type='pci'> in what `virsh dumpxml` prints of the domain";
        return Err(Misuse(text.to_owned()).into());
    }
    let device = Device { libvirt: libvirt(guest, ports), qemu: arguments(guest, ports.count) };
    let shown = || match qemu {
        true => format!("{}\n", device.qemu.join(" ")),
        false => device.libvirt.clone(),
    };
    output.result("guest device", &device, shown)?;
    Ok(Ended::Done)
}

/// The first of the chassis numbers that ports are given, the one of the guest's own window; each port of a machine needs one of its own.
const CHASSIS: u8 = 200;

/// Firmware finds no place for so much below 4 GiB, where nothing is cached, and puts what is behind all ports above. It is addresses, not memory.
const LARGE: u64 = 4 << 30;

/// What the ports of a machine have room for, which nothing reserves by itself: the first for the guest's own window, which behind no port
/// could not be unplugged, the others for windows in common with others. None where there are none.
fn reserves(guest: &GuestRow, ports: u8) -> Vec<u64> {
    let common = std::iter::repeat_n(guest.common_bytes.unwrap_or_default(), ports.into());
    std::iter::once(guest.window_bytes.max(LARGE)).filter(|_| ports > 0).chain(common).collect()
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
    for (port, bytes) in (0..).zip(reserves(guest, ports)) {
        let (number, mib) = (CHASSIS + port, bytes >> 20);
        devices.push(format!("pcie-root-port,id=isthmus{port},chassis={number},slot={number},pref64-reserve={mib}M"));
    }
    let bus = if devices.is_empty() { "" } else { ",bus=isthmus0" };
    let window = format!("ivshmem-doorbell,id=isthmus-device,chardev=isthmus,vectors={vectors}{bus}");
    devices.insert(devices.len().min(1), window);
    arguments.extend(devices.into_iter().flat_map(|device| ["-device".to_owned(), device]));
    arguments.extend(monitor(guest));
    arguments
}

/// For libvirt (its formatdomain: "Shared memory device"): what stands in `<devices>`, and what stands beside.
fn libvirt(guest: &GuestRow, ports: Ports) -> String {
    let reserves = reserves(guest, ports.count);
    let (first, alias) = (ports.index.unwrap_or_default(), |port: usize| format!("ua-isthmus{port}"));
    let mut text = String::new();
    for port in 0..reserves.len() {
        let index = usize::from(first) + port;
        text += &format!(
            "<controller type='pci' index='{index}' model='pcie-root-port'>\n  <alias name='{}'/>\n</controller>\n",
            alias(port)
        );
    }
    text += &format!(
        "<shmem name='isthmus'>\n  <model type='ivshmem-doorbell'/>\n  <server path='{}'/>\n  <msi vectors='{}' ioeventfd='on'/>\n  \
         <alias name='ua-isthmus'/>\n",
        escaped(&guest.socket),
        guest.vectors
    );
    if !reserves.is_empty() {
        // By itself libvirt puts it behind a bridge for devices of before PCI Express, where there is no room for windows.
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
        let device = |(port, bytes): (usize, &u64)| {
            let property = format!("<qemu:property name='pref64-reserve' type='unsigned' value='{bytes}'/>");
            let alias = alias(port);
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
    text
}

/// As an attribute in single quotes has it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest() -> GuestRow {
        GuestRow {
            name: "web".to_owned(),
            uid: 1000,
            platform: Some("kvm".to_owned()),
            socket: "/run/a,b/it's&web.sock".to_owned(),
            window_bytes: 64 << 20,
            used_bytes: Some(3 << 20),
            vectors: 16,
            daemon: true,
            state: Some("silent".to_owned()),
            heard_s: Some(7),
            kept: Some(true),
            refused: Some("a guest is connected already".to_owned()),
            domains: 0,
            monitor: None,
            common_bytes: Some(32 << 20),
        }
    }

    #[test]
    fn a_device_names_the_socket_as_each_of_the_two_takes_it() {
        let libvirt = libvirt(&guest(), Ports::default());
        assert!(libvirt.contains("<server path='/run/a,b/it&apos;s&amp;web.sock'/>"), "{libvirt}");
        assert!(!libvirt.contains("<address") && !libvirt.contains("qemu:"), "{libvirt}");
        let arguments = arguments(&guest(), 0);
        assert_eq!(arguments[1], "socket,id=isthmus,path=/run/a,,b/it's&web.sock");
        assert_eq!(arguments[3..], ["ivshmem-doorbell,id=isthmus-device,chardev=isthmus,vectors=16"]);
    }

    #[test]
    fn a_guest_with_a_monitor_has_its_socket_and_ports_for_its_own_and_for_common_windows() {
        let guest = GuestRow { monitor: Some("/run/it's,web.qmp".to_owned()), ..guest() };
        let port = |number: u8, mib: u32| {
            format!("pcie-root-port,id=isthmus{number},chassis=20{number},slot=20{number},pref64-reserve={mib}M")
        };
        let window = "ivshmem-doorbell,id=isthmus-device,chardev=isthmus,vectors=16,bus=isthmus0";
        let devices = ["-device", &port(0, 4096), "-device", window, "-device", &port(1, 32), "-device", &port(2, 32)];
        let arguments = arguments(&guest, 2);
        assert_eq!(arguments[2..10], devices);
        assert_eq!(arguments[10..], ["-qmp", "unix:/run/it's,,web.qmp,server=on,wait=off"]);
        let libvirt = libvirt(&guest, Ports { count: 2, index: Some(15) });
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

    #[test]
    fn a_list_says_what_of_a_guest_is_there() {
        let text = text(&[guest()]);
        let row: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        assert_eq!(row[..7], ["web", "1000", "kvm", "silent", "7", "s", "yes"], "{text}");
        assert!(text.ends_with("came to nothing: a guest is connected already\n"), "{text}");
        let older = GuestRow { platform: None, state: None, heard_s: None, kept: None, refused: None, ..guest() };
        let text = super::text(&[older]);
        let row: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        assert_eq!(row[..6], ["web", "1000", "kvm", "there", "-", "-"], "{text}");
    }
}
