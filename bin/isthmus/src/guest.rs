//! `isthmus guest`: the guests that a host's daemon serves.

mod device;

use std::path::PathBuf;

use anyhow::{Context, Result};
use isthmus_client::Topic;
use isthmus_control::schema::{GuestRow, Status};
use serde::Serialize;

use crate::daemon;
use crate::output::{Ended, Lean, Misuse, Output, Table, bytes};
use device::Device;
pub(crate) use device::Ports;

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
    let device = Device::of(guest, ports);
    let text = match (&device.libvirt, qemu) {
        (_, true) => format!("{}\n", device.qemu.join(" ")),
        (Some(elements), false) => elements.clone(),
        (None, false) => {
            let text = "libvirt's ports have numbers, by which the window names its own: give the first one that is free by --index, one more than \
                        the greatest `index` of all <controller type='pci'> in what `virsh dumpxml` prints of the domain";
            return Err(Misuse(text.to_owned()).into());
        }
    };
    output.result("guest device", &device, || text)?;
    Ok(Ended::Done)
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
