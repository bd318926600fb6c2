//! Messages and limits of overlay networks.

mod messages;

pub use messages::*;

/// The maximum number of bytes of an overlay change, as of a configuration file.
pub const OVERLAY_CHANGE_BYTES_MAX: usize = 256 << 10;
