//! `isthmus guest`: the guests that a host's daemon serves.

mod device;

use std::path::PathBuf;

use anyhow::{Context, Result};
use isthmus_client::Topic;
use isthmus_report::{GuestRow, LoopRow, StatusReport};
use serde::Serialize;

use crate::daemon;
use crate::output::{Align, Outcome, Output, Table, UsageError, bytes, hidden};
use crate::run::shell_quoted;
use device::Device;
pub(crate) use device::PciPorts;

#[derive(Serialize)]
struct Guests {
    guests: Vec<GuestRow>,
    hidden: Option<u32>,
}

pub(crate) fn list(output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    let report = guests(socket)?;
    output.result("guests", &report, || text(&report.guests) + &hidden(report.hidden))?;
    Ok(Outcome::Done)
}

fn guests(socket: Option<PathBuf>) -> Result<Guests> {
    let answer = daemon::ask(socket, Topic::Status, &[])?;
    let status: StatusReport = daemon::read(&answer)?;
    let guests = status.guests.context("this daemon serves no guests: it is of an older version")?;
    Ok(Guests { guests, hidden: status.guests_hidden })
}

fn text(guests: &[GuestRow]) -> String {
    let mut table = Table::new(&[
        ("guest", Align::Left),
        ("user", Align::Right),
        ("platform", Align::Left),
        ("state", Align::Left),
        ("last seen", Align::Right),
        ("keeps device", Align::Left),
        ("domains", Align::Right),
        ("window", Align::Right),
        ("used", Align::Right),
        ("vectors", Align::Right),
        ("socket", Align::Left),
    ]);
    for guest in guests {
        table.row(vec![
            guest.name.clone(),
            guest.uid.to_string(),
            guest.platform.clone().unwrap_or_else(|| "kvm".to_owned()),
            state(guest).to_owned(),
            guest.last_seen_s.map_or_else(|| "-".to_owned(), |last_seen_s| format!("{last_seen_s} s")),
            keeps_device(guest).to_owned(),
            guest.domains.to_string(),
            bytes(guest.window_bytes),
            guest.used_bytes.map_or_else(|| "-".to_owned(), bytes),
            guest.vectors.to_string(),
            guest.socket.clone(),
        ]);
    }
    let mut text = table.text();
    for guest in guests {
        if let Some(why) = &guest.last_error {
            text.push_str(&format!("{}: the last connection for its device failed: {why}\n", guest.name));
        }
    }
    text
}

#[derive(Serialize)]
struct Loops {
    loops: Vec<LoopRow>,
}

pub(crate) fn loops(output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    let status: StatusReport = daemon::read(&daemon::ask(socket, Topic::Status, &[])?)?;
    let loops = status.loops.context("this daemon moves no packets between guests: it is of an older version")?;
    let report = Loops { loops };
    output.result("loops", &report, || loops_text(&report.loops))?;
    Ok(Outcome::Done)
}

fn loops_text(loops: &[LoopRow]) -> String {
    if loops.is_empty() {
        return "the daemon's configuration names no interfaces of guests (loops in [[kvm.guest]])\n".to_owned();
    }
    let columns = ["guest", "network", "address", "peer", "its address", "path", "why"];
    let mut table = Table::new(&columns.map(|column| (column, Align::Left)));
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    for row in loops {
        let LoopRow { guest, network, mac, peer, peer_mac, path, why } = row;
        let (guest, network, mac) = (guest.clone(), network.clone(), mac.clone());
        table.row(vec![guest, network, mac, or_dash(peer), or_dash(peer_mac), or_dash(path), or_dash(why)]);
    }
    table.text()
}

/// How it is; daemons of older versions do not say it in one word.
fn state(guest: &GuestRow) -> &str {
    match (&guest.state, guest.used_bytes, guest.daemon) {
        (Some(state), ..) => state,
        (None, None, _) => "no device",
        (None, Some(_), false) => "waiting for guest daemon",
        (None, Some(_), true) => "attached",
    }
}

fn keeps_device(guest: &GuestRow) -> &'static str {
    match guest.keeps_device {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    }
}

pub(crate) fn xml(output: Output, socket: Option<PathBuf>, name: &str, qemu: bool, ports: PciPorts) -> Result<Outcome> {
    let Guests { guests, hidden: others } = guests(socket)?;
    let guest = guests.iter().find(|guest| guest.name == name).ok_or_else(|| {
        let known: Vec<&str> = guests.iter().map(|guest| guest.name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let others = hidden(others);
        let others = if others.is_empty() { String::new() } else { format!("; {}", others.trim_end()) };
        UsageError(format!("the daemon's configuration has no guest {name} ([[kvm.guest]]); it has {known}{others}"))
    })?;
    if guest.platform.as_deref() == Some("xen") {
        return Err(
            UsageError(format!("{name} is a guest of Xen and needs no device: isthmus guest allow {name}")).into()
        );
    }
    let device = Device::of(guest, ports)?;
    let text = match (&device.libvirt, qemu) {
        (_, true) => {
            let words: Vec<_> = device.qemu.iter().map(|word| shell_quoted(word)).collect();
            format!("{}\n", words.join(" "))
        }
        (Some(elements), false) => elements.clone(),
        (None, false) => {
            let text = "libvirt's ports have numbers, by which the window names its own: give the first one that is free by --index, one more than \
                        the greatest `index` of all <controller type='pci'> in what `virsh dumpxml` prints of the domain";
            return Err(UsageError(text.to_owned()).into());
        }
    };
    output.result("guest device", &device, || text)?;
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn guest() -> GuestRow {
        GuestRow {
            name: "web".to_owned(),
            uid: 1000,
            platform: Some("kvm".to_owned()),
            socket: "/run/a,b/it's&web.sock".to_owned(),
            window_bytes: 64 << 20,
            used_bytes: Some(3 << 20),
            vectors: 16,
            daemon: true,
            state: Some("not responding".to_owned()),
            last_seen_s: Some(7),
            keeps_device: Some(true),
            last_error: Some("a guest is connected already".to_owned()),
            domains: 0,
            monitor: None,
            pair_window_bytes: Some(32 << 20),
        }
    }

    #[test]
    fn loop_list_shows_interfaces_and_pairs() {
        let interface = LoopRow {
            guest: "web".to_owned(),
            network: "br0".to_owned(),
            mac: "02:00:00:00:00:01".to_owned(),
            peer: None,
            peer_mac: None,
            path: None,
            why: None,
        };
        let pair = LoopRow {
            peer: Some("base".to_owned()),
            peer_mac: Some("02:00:00:00:00:02".to_owned()),
            path: Some("bridge".to_owned()),
            why: Some("the pair window is being made".to_owned()),
            ..interface.clone()
        };
        let text = loops_text(&[interface, pair]);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["web", "br0", "02:00:00:00:00:01", "-", "-", "-", "-"], "{text}");
        assert_eq!(rows[2][3..6], ["base", "02:00:00:00:00:02", "bridge"], "{text}");
        assert!(loops_text(&[]).contains("loops in [[kvm.guest]]"));
    }

    #[test]
    fn guest_list_shows_the_state_of_each_guest() {
        let text = text(&[guest()]);
        let row: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        assert_eq!(row[..8], ["web", "1000", "kvm", "not", "responding", "7", "s", "yes"], "{text}");
        assert!(text.ends_with("failed: a guest is connected already\n"), "{text}");
        let older = GuestRow {
            platform: None,
            state: None,
            last_seen_s: None,
            keeps_device: None,
            last_error: None,
            ..guest()
        };
        let text = super::text(&[older]);
        let row: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        assert_eq!(row[..6], ["web", "1000", "kvm", "attached", "-", "-"], "{text}");
    }
}
