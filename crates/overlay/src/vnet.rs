//! The control language of VNET/P.
//!
//! ```text
//!   text ─► commands ─► Table::run ─► edits of links and routes, and what `LIST` printed
//!                          ▲
//!              links (edges), interfaces and routes, each with an index
//! ```
//!
//! Commands have no effect of their own: the caller applies the edits as a whole, or none of them.

mod command;
mod error;
mod indexed;
mod listing;
mod route_line;
mod table;

pub use command::{VnetFile, is_host};
pub use error::{VnetError, VnetReason};
pub use route_line::{PortName, RouteLine, RouteLineError, UnknownPort};
pub use table::{InterfaceNames, LinkCounters, OUTPUT_BYTES_MAX, Table, VnetEdit, VnetOutcome};
