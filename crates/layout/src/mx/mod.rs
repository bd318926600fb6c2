//! Messages and limits of MX.
//!
//! A board is to MX what a network card is to Ethernet: it has an address, and programs have endpoint numbers on it. All domains share the
//! boards of the daemon.

mod messages;

pub use messages::*;

/// The maximum number of MX boards of one daemon.
pub const BOARDS_MAX: usize = 32;

/// The maximum number of endpoints of one MX board. On the wire a number has eight bits, and one value means none.
pub const ENDPOINTS_MAX: u32 = 255;

/// The maximum length of an MX board's name in bytes. In the interface of MX a name takes 80 bytes, with a zero at the end.
pub const NAME_BYTES_MAX: usize = 79;
