//! Overlay networks of real daemons between hosts made of namespaces, with stock programs in their containers.
//!
//! ```text
//!   Stage ── hosts with a wire between each two, and a folder that goes at the end
//!     ├─ Container ── a network namespace, which daemons find by a file that only the namespaces of its host have
//!     └─ Daemon ── isthmusd on a host as root, which starts isthmus-helper; `isthmus overlay` asks it
//!   Flow ── a stream with compared content, which runs while something happens
//!   Lan ── a network with a container on each of two hosts: two daemons, or a daemon and the VXLAN device of Linux
//! ```
//!
//! The tests need root, veth, TAP and VXLAN devices; where there are none they are skipped. A deadline tells a hang from progress, and never
//! judges speed.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod flow;
mod lan;
mod stage;

pub use flow::Flow;
pub use lan::{Lan, Path, mesh};
pub use stage::{Container, Daemon, Stage, is_installed};

use isthmus_testbed::Deadline;

/// The longest time that something may take that must happen.
pub fn timeout() -> Deadline {
    Deadline::secs(6)
}

/// `dnsmasq` without configuration and DNS, in the foreground.
pub const DNSMASQ: &str = "dnsmasq --keep-in-foreground --conf-file=/dev/null --port=0 --user=root --group=root --pid-file \
    --interface=eth0 --bind-interfaces --log-facility=-";
