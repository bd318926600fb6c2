//! Real processes as domains, for suites and measurements.
//!
//! ```text
//!  Scratch ── a private directory, gone at the end
//!    │
//!  DaemonProcess ── isthmusd on it: READY=1, SIGTERM, kill -9, restart
//!    │
//!  Launch ── a program on the host (or on one of a Testbed of isthmus-netns) …
//!    └─ Sandbox ── … or in a container that has nothing in common with the host but one directory
//!         │
//!       Proc ── its lines, its end; View ── what /proc says of it
//!
//!  HostileStreamPeer ── misuses what a peer of a stream has
//!  Leftovers ── what stayed behind        SeededRandom ── seeded chance        Deadline ── a time limit
//! ```
//!
//! Nothing here is a mock: a sandbox is namespaces, a read-only root and a seccomp filter; a kill is `SIGKILL`. Waiting is
//! for events (a line, an exit, a packet) up to a [`Deadline`], which bounds a hang and never judges speed.
//!
//! ```
//! use isthmus_testbed::{Deadline, Exit, Launch, Sandbox};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let launch = match Sandbox::check() {
//!     Ok(()) => Sandbox::new().user(1000).command("/usr/bin/id").arg("-u"),
//!     Err(why) => { eprintln!("skipped: {why}"); Launch::new("/bin/echo").arg("1000") }
//! };
//! let mut id = launch.spawn()?;
//! id.wait_line("1000", Deadline::secs(20))?;
//! assert_eq!(id.wait(Deadline::secs(20))?, Exit::Code(0));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod artifacts;
mod binary;
mod daemon;
mod deadline;
mod extent;
mod fd_store;
mod hostile_stream_peer;
mod launch;
mod leftovers;
mod lines;
mod notify;
mod proc;
mod sandbox;
mod scratch;
mod seccomp;
mod seeded_random;
mod spawner;
mod view;

pub use artifacts::{build_folder, compile, link_library, run_tool, workspace_root};
pub use binary::{BinaryError, binary, example};
pub use daemon::{DaemonPlan, DaemonProcess, DaemonProcessError, StoppedDaemon};
pub use deadline::{Deadline, TimedOut, eventually, eventually_some};
pub use extent::short_or_long;
pub use fd_store::FdStore;
pub use hostile_stream_peer::HostileStreamPeer;
pub use launch::{Launch, LaunchError, Limit};
pub use leftovers::{HeldMemfd, Leftovers, LeftoversError};
pub use notify::{NotifyError, NotifySocket};
pub use proc::{Exit, Finished, Proc, ProcError};
pub use rustix::process::Signal;
pub use sandbox::{Sandbox, Yama};
pub use scratch::Scratch;
pub use seccomp::{DENIED, SyscallDenial};
pub use seeded_random::SeededRandom;
pub use view::{Fd, Memory, ProcMapping, View, ViewError};
