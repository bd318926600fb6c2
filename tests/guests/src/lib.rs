//! MX between two machines: guests of QEMU with connected virtio cards, each with its own kernel and its own `isthmusd`.
//!
//! ```text
//!  ┌ guest0 ──────────────────────┐                                ┌ guest1 ──────────────────────┐
//!  │ mx_pingpong ── isthmusd ── eth0 ══ virtio ══ QEMU ═ datagrams ═ QEMU ══ virtio ══ eth0 ── …   │
//!  │ shell on the serial console  │                                │                              │
//!  └──────────▲───────────────────┘                                └──────────────▲───────────────┘
//!             └──────────────── commands and their output: Guest ─────────────────┘
//! ```
//!
//! A guest with a window ([`WindowGuest`]) has no card but a device, which the test serves. `kmod/` is built for it, and its program is
//! `guest_half`.
//!
//! Guests of one host ([`TwoGuests`]) have both: a card, with a daemon in the guest, and a window that the host daemon serves.
//!
//! Guests with a card on a bridge of their host ([`BridgedGuests`]) are attached to a network there, as users do it.
//!
//! [`Libvirt`] defines such guests by libvirt.
//!
//! A host with a bridge and a wire to another host ([`GuestLab`]) needs root, because both hosts are network namespaces.
//!
//! [`XenMachine`] is a machine with Xen: domain 0 and its guests, with [`isthmus-xen-test-agent`](../xen_test_agent/index.html) in each.
//!
//! A guest with Debian, systemd and podman ([`SystemdGuest`]) has the installation of `make install`.
//!
//! Processors are emulated, so the host needs only QEMU, and no test touches its network. A guest's whole file system is an archive with our
//! programs, so it starts in seconds. The parts of guests are in `target/guests`, where `make test-guests` puts them. Without them, tests
//! print `skipped:` and the reason.

#![forbid(unsafe_code)]

mod bells;
mod bridged_guests;
mod connected_guests;
mod cpio;
mod guest;
mod guest_kit;
mod guest_lab;
mod libvirt;
mod loop_guests;
mod machine;
mod qmp;
mod shell;
mod steered_guests;
mod system;
mod systemd_guest;
mod two_guests;
mod window_guest;
mod window_probe;
mod xen;
mod xen_testbed;

pub use bridged_guests::BridgedGuests;
pub use connected_guests::ConnectedGuests;
pub use guest::Guest;
pub use guest_kit::GuestKit;
pub use guest_lab::GuestLab;
pub use libvirt::Libvirt;
pub use loop_guests::LoopGuests;
pub use machine::Machine;
pub use qmp::Monitor;
pub use shell::{CommandOutput, timeout};
pub use steered_guests::{SteeredGuests, mac};
pub use system::{Extra, example};
pub use systemd_guest::SystemdGuest;
pub use two_guests::{Monitors, TwoGuests};
pub use window_guest::{GuestParts, WindowGuest};
pub use window_probe::WindowProbe;
pub use xen::{XenKit, XenMachine};
pub use xen_testbed::XenTestbed;
