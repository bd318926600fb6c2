//! MX between two machines: guests of QEMU with virtio cards that are connected, each with a kernel and an `isthmusd` of its own.
//!
//! ```text
//!  ┌ guest0 ──────────────────────┐                                ┌ guest1 ──────────────────────┐
//!  │ mx_pingpong ── isthmusd ── eth0 ══ virtio ══ QEMU ═ datagrams ═ QEMU ══ virtio ══ eth0 ── …   │
//!  │ shell on the serial console  │                                │                              │
//!  └──────────▲───────────────────┘                                └──────────────▲───────────────┘
//!             └───────────── orders and what comes of them: Guest ───────────────┘
//! ```
//!
//! A guest with a window (`WindowGuest`) has no card but a device, whose server is the test; `kmod/` is built for it, and its program is
//! `guest_half`.
//!
//! Guests of one host ([`TwoGuests`]) have both: a card with a daemon of their own behind it, and a window that the host's daemon serves.
//!
//! The same as libvirt makes them: [`Libvirt`].
//!
//! Where the host has a bridge and a wire to another host ([`GuestLab`]), it takes root: those are in network namespaces.
//!
//! And a machine with Xen: domain 0 and its guests, with what [`isthmus-xen-test-agent`](../xen_test_agent/index.html) does in each ([`XenMachine`]).
//!
//! Processors are emulated: nothing of the host is needed but QEMU, no network of it is touched, and no privilege is used but for that. A guest's
//! whole file system is an archive with our programs, so it starts in seconds. What it takes is in `target/guests`, fetched by
//! `make test-guests`; without it, tests say `skipped: why`.

#![forbid(unsafe_code)]

mod connected_guests;
mod cpio;
mod guest;
mod guest_kit;
mod guest_lab;
mod libvirt;
mod machine;
mod qmp;
mod shell;
mod system;
mod two_guests;
mod window_guest;
mod window_probe;
mod xen;
mod xen_testbed;

pub use connected_guests::ConnectedGuests;
pub use guest::Guest;
pub use guest_kit::GuestKit;
pub use guest_lab::GuestLab;
pub use libvirt::Libvirt;
pub use machine::Machine;
pub use qmp::Monitor;
pub use shell::{CommandOutput, timeout};
pub use system::{Extra, example};
pub use two_guests::{Monitors, TwoGuests};
pub use window_guest::{GuestParts, WindowGuest};
pub use window_probe::WindowProbe;
pub use xen::{XenKit, XenMachine};
pub use xen_testbed::XenTestbed;
