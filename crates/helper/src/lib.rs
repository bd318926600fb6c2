//! The privileged helper: creates network interfaces for a daemon that has given up its capabilities.
//!
//! ```text
//!   isthmusd ── HelperClient ══ Unix socket, SEQPACKET ══ isthmus-helper ── TUN, netlink ──► interfaces, here or in a container
//!                               one request a packet,      CAP_NET_ADMIN, seccomp
//!                               one reply a packet
//! ```
//!
//! The list of requests is closed ([`Request`]). The helper checks each again, and refuses by name ([`Refusal`]). It never reads a frame, a
//! program's word or a configuration file. It keeps nothing: an interface lives as long as the descriptor that the daemon got for it.
//!
//! The daemon uses [`HelperClient`]; the program is [`server`] behind a command line.
#![forbid(unsafe_code)]

mod client;
mod permissions;
mod protocol;
mod refusal;
pub mod server;
pub mod starter;
mod values;

pub use client::{HelperClient, HelperError, HelperStarter, OpenedTap, REPLY_TIMEOUT};
pub use permissions::Permissions;
pub use protocol::{
    HelperInfo, InterfaceNumber, Malformed, NamespaceChoice, Reply, Request, TapInfo, TapRequest, VERSION,
};
pub use refusal::{Refusal, RefusalReason};
pub use values::{ADDRESSES_MAX, AddressList, InterfaceAddress, InterfaceName, InvalidValue, MacAddress, Mtu};

/// The socket of the system's helper, as its socket unit has it.
pub const SOCKET_PATH: &str = "/run/isthmus-helper.sock";
