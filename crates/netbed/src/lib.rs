//! Two or more hosts on one machine: network namespaces with wires between them, made and removed by the program.
//!
//! ```text
//!  Bed ─┬─ Host ──── a namespace: programs (spawn), closures (with)
//!       ├─ Host ─────────────┐
//!       ├─ Cable ─────── a ══╧══ b     a veth pair
//!       ├─ LossyWire ─── a ─ Line ─ b  through user space: loss, copies, reordering, delay, a rate   (line: pure)
//!       ├─ Remote ─────── scripts by which launchers of jobs start programs on hosts, as by ssh
//!       └─ Warden ── ends the programs when the bed ends, even by SIGKILL
//! ```
//!
//! Nothing has a name outside: namespaces live by descriptors of this program and by processes that end with it. The
//! machine's own network is never touched, and beds of several programs, or several in one, do not meet.
//!
//! It needs root, which may be that of a user namespace ([`as_root_of_our_own`]), a kernel with veth, and the tools `ip`, `sh`
//! and `stat`. [`Bed::new`] tells what is missing.
//!
//! ```
//! use std::net::UdpSocket;
//!
//! use isthmus_netbed::{Bed, Wire};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut bed = match Bed::new() {
//!     Ok(bed) => bed,
//!     Err(why) => { eprintln!("skipped: {why}"); return Ok(()) }
//! };
//! let (a, b) = (bed.host("a")?, bed.host("b")?);
//! let cable = bed.link(&a, &b, &Wire::mtu(9000))?;
//! let receiver = b.with(|| UdpSocket::bind((cable.b().v4, 7)))??;
//! let sender = a.with(|| UdpSocket::bind((cable.a().v4, 0)))??;
//! sender.send_to(b"from host to host", (cable.b().v4, 7))?;
//! let mut buffer = [0; 64];
//! let (bytes, _) = receiver.recv_from(&mut buffer)?;
//! assert_eq!(&buffer[..bytes], b"from host to host");
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod bed;
mod cable;
mod carrier;
mod host;
pub mod line;
mod lossy;
mod netlink;
mod offloads;
mod port;
mod remote;
mod root;
mod warden;

pub use bed::{Bed, CannotMake};
pub use cable::{Cable, End, Interface, Wire};
pub use host::Host;
pub use line::{Conditions, Counters, Direction};
pub use lossy::LossyWire;
pub use offloads::active_offloads;
pub use remote::{Remote, Station};
pub use root::as_root_of_our_own;
