//! Guests of libvirt: it accepts the output of `isthmus guest xml`, and the daemon accepts a QEMU that runs as another user.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_guests_tests::{GuestKit, Libvirt};

#[test]
fn guests_of_libvirt_get_their_windows_and_one_that_they_share() {
    let mut libvirt = match GuestKit::find().and_then(|kit| Libvirt::start(&kit)) {
        Ok(libvirt) => libvirt,
        Err(why) => return println!("skipped: {why}"),
    };
    let running = libvirt.run("list --name");
    assert!(["guest0", "guest1"].iter().all(|name| running.iter().any(|line| line == name)), "{running:?}");
    libvirt.hosted.row_until(0, |row| row["state"] == "attached");
    assert_eq!(libvirt.hosted.row(1)["state"], "no device");
    libvirt.attach();
    libvirt.hosted.row_until(1, |row| row["state"] == "attached");
    // The root port has room for the window above 4 GiB.
    libvirt.hosted.guests[1].run("grep 'isthmus0: a window of .* write-back' /tmp/window.log");
    libvirt.hosted.guests.iter_mut().for_each(|guest| drop(guest.run("by window")));
    // Messages use the daemon path first, then a pair window, which the daemon plugs in by its own monitors.
    libvirt.hosted.transfer_by_channel();
    libvirt.hosted.guests[0].end_server();
    libvirt.hosted.expect_error();
    libvirt.hosted.guests.iter_mut().for_each(|guest| drop(guest.run("test -c /dev/isthmus1")));
    libvirt.hosted.transfer_by_channel();
    libvirt.detach();
    libvirt.hosted.expect_error();
    libvirt.hosted.row_until(1, |row| row["state"] == "no device" && row["domains"] == 0);
    libvirt.hosted.guests[0].end_server();
    for guest in &mut libvirt.hosted.guests {
        assert_eq!(guest.complaints(), [""; 0], "guest{}", guest.number);
    }
}
