//! Two or more hosts on one machine: network namespaces with wires between them, made and removed by the program.
//!
//! ```text
//!  Testbed ─┬─ Host ──── a namespace: programs (spawn), closures (with)
//!           ├─ Host ─────────────┐
//!           ├─ Cable ─────── a ══╧══ b     a veth pair
//!           ├─ ImpairedWire ── a ─ ImpairedLine ─ b  through user space: loss, copies, reordering, delay, a rate   (impairment: pure)
//!           ├─ RemoteLauncher ─ scripts by which launchers of jobs start programs on hosts, as by ssh
//!           └─ Reaper ── ends the programs when the testbed ends, even by SIGKILL
//! ```
//!
//! Nothing has a name outside: namespaces live by descriptors of this program and by processes that end with it. The
//! machine's own network is never touched, and testbeds of several programs, or several in one, do not meet.
//!
//! It needs root, which may be that of a user namespace ([`reexec_as_userns_root`]), a kernel with veth, and the tools `ip`, `sh`
//! and `stat`. [`Testbed::new`] tells what is missing.
//!
//! ```
//! use std::net::UdpSocket;
//!
//! use isthmus_netns::{Testbed, Wire};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut bed = match Testbed::new() {
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

mod cable;
mod frame_socket;
mod host;
mod impaired_wire;
pub mod impairment;
mod link_state;
mod netlink;
mod offloads;
mod reaper;
mod remote;
mod testbed;
mod userns_root;

pub use cable::{Cable, End, Wire, WireInterface};
pub use host::Host;
pub use impaired_wire::ImpairedWire;
pub use impairment::{Counters, Impairments, WireDirection};
pub use offloads::active_offloads;
pub use remote::{RemoteHost, RemoteLauncher};
pub use testbed::{SetupError, Testbed};
pub use userns_root::reexec_as_userns_root;
