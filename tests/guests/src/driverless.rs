//! A guest in which the driver of its device is not loaded, and its host's daemon.

use isthmus_testbed::{DaemonProcess, Scratch};

use crate::guest::Guest;
use crate::guest_kit::GuestKit;
use crate::system::{self, Content, Extra};
use crate::two_guests::{self, window};

/// Has the guest's daemon started: whoever is refused is so for want of the driver, and not by the policy.
pub const WINDOW: &str = "window --set policy.attach=any-user";

/// Both, gone with all their files when dropped. Methods panic where something fails: that fails the test.
#[derive(Debug)]
pub struct DriverlessGuest {
    /// The guest, which is called `guest0`.
    pub guest: Guest,
    /// The host's daemon.
    pub daemon: DaemonProcess,
    _scratch: Scratch,
}

impl DriverlessGuest {
    /// Boots the guest, and waits until its programs can attach.
    pub fn start(kit: &GuestKit) -> Self {
        let scratch = Scratch::new().unwrap_or_else(|error| panic!("{error}"));
        let (folder, files) = (scratch.path(), scratch.join("files.cpio"));
        let content =
            Content { config: "", programs: system::programs(), modules: Vec::new(), extra: &Extra::default() };
        system::write(kit, &content, folder, &files);
        let daemon = two_guests::TwoGuests::another_daemon(&scratch);
        let mut guest = Guest::boot(kit, 0, &files, &window::device(&daemon, 0));
        let uptime_s = guest.ready();
        println!("# guest0 is up after {uptime_s} s of its time");
        guest.run(&format!("{WINDOW} && by window"));
        Self { guest, daemon, _scratch: scratch }
    }
}
