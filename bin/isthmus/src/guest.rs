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

pub(crate) fn xml(output: Output, socket: Option<PathBuf>, name: &str, qemu: bool, ports: u8) -> Result<Ended> {
    let guests = guests(socket)?;
    let guest = guests.iter().find(|guest| guest.name == name).ok_or_else(|| {
        let known: Vec<&str> = guests.iter().map(|guest| guest.name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Misuse(format!("the daemon's configuration has no guest {name} ([[kvm.guest]]); it has {known}"))
    })?;
    if guest.platform.as_deref() == Some("xen") {
        return Err(Misuse(format!("{name} is a guest of Xen and needs no device: isthmus guest allow {name}")).into());
    }
    let device = device(guest, ports);
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

fn device(guest: &GuestRow, ports: u8) -> Device {
    let GuestRow { socket, vectors, .. } = guest;
    // libvirt's own element for it; as of its formatdomain, "Shared memory device".
    let mut libvirt = format!(
        "<shmem name='isthmus'>\n  <model type='ivshmem-doorbell'/>\n  <server path='{}'/>\n  <msi vectors='{vectors}' ioeventfd='on'/>\n</shmem>\n",
        escaped(socket)
    );
    // A window is in a port's prefetchable part, which nothing has reserved for it by itself.
    let mib = |bytes: u64| format!("{}M", bytes >> 20);
    let port = |port: u8, reserve: &str| {
        let number = CHASSIS + port;
        format!("pcie-root-port,id=isthmus{port},chassis={number},slot={number},pref64-reserve={reserve}")
    };
    let common_bytes = guest.common_bytes.unwrap_or_default();
    let mut qemu = vec!["-chardev".to_owned(), format!("socket,id=isthmus,path={}", socket.replace(',', ",,"))];
    let mut window = format!("ivshmem-doorbell,id=isthmus-device,chardev=isthmus,vectors={vectors}");
    if ports > 0 {
        // Behind none it could not be unplugged.
        qemu.extend(["-device".to_owned(), port(0, &mib(guest.window_bytes.max(LARGE)))]);
        window += ",bus=isthmus0";
    }
    qemu.extend(["-device".to_owned(), window]);
    for number in 1..=ports {
        libvirt += "<controller type='pci' model='pcie-root-port'/>\n";
        qemu.extend(["-device".to_owned(), port(number, &mib(common_bytes))]);
    }
    let mut beside = Vec::new();
    if let Some(monitor) = &guest.monitor {
        beside.extend(["-qmp".to_owned(), format!("unix:{},server=on,wait=off", monitor.replace(',', ",,"))]);
    }
    qemu.extend(beside.iter().cloned());
    if ports > 0 {
        // libvirt has its own idea of which port is whose: each has room for either.
        let reserve = mib(common_bytes.max(guest.window_bytes));
        beside.extend(["-global".to_owned(), format!("pcie-root-port.pref64-reserve={reserve}")]);
    }
    if !beside.is_empty() {
        // libvirt has no elements for these; as of its documentation of QEMU, "Pass-through of arbitrary qemu commands".
        libvirt +=
            "<!-- Beside <devices>, in a <domain> with xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0': -->\n";
        let arguments = beside.iter().map(|argument| format!("  <qemu:arg value='{}'/>\n", escaped(argument)));
        libvirt += &format!("<qemu:commandline>\n{}</qemu:commandline>\n", arguments.collect::<String>());
    }
    Device { libvirt, qemu }
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
        let device = device(&guest(), 0);
        assert!(device.libvirt.contains("<server path='/run/a,b/it&apos;s&amp;web.sock'/>"), "{}", device.libvirt);
        assert_eq!(device.qemu[1], "socket,id=isthmus,path=/run/a,,b/it's&web.sock");
        assert_eq!(device.qemu[3], "ivshmem-doorbell,id=isthmus-device,chardev=isthmus,vectors=16");
    }

    #[test]
    fn a_guest_with_a_monitor_has_its_socket_and_ports_for_its_own_and_for_common_windows() {
        let guest = GuestRow { monitor: Some("/run/it's,web.qmp".to_owned()), ..guest() };
        let device = device(&guest, 2);
        let port = |number: u8, mib: u32| {
            format!("pcie-root-port,id=isthmus{number},chassis=20{number},slot=20{number},pref64-reserve={mib}M")
        };
        let window = "ivshmem-doorbell,id=isthmus-device,chardev=isthmus,vectors=16,bus=isthmus0";
        let devices = ["-device", &port(0, 4096), "-device", window, "-device", &port(1, 32), "-device", &port(2, 32)];
        assert_eq!(device.qemu[2..10], devices);
        assert_eq!(device.qemu[10..], ["-qmp", "unix:/run/it's,,web.qmp,server=on,wait=off"]);
        assert_eq!(device.libvirt.matches("model='pcie-root-port'").count(), 2);
        assert!(device.libvirt.contains("<qemu:arg value='unix:/run/it&apos;s,,web.qmp,server=on,wait=off'/>"));
        assert!(device.libvirt.contains("<qemu:arg value='pcie-root-port.pref64-reserve=64M'/>"), "{}", device.libvirt);
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
