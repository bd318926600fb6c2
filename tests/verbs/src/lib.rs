//! Programs that use RDMA, as Debian packages them, on the plug-in of libibverbs; and some in C, for what they do not do.
//!
//! ```text
//!   Stage ── a daemon, the files of `isthmus verbs enable`, two networks with a wire between them
//!     ├─ Container ── a program in a sandbox: the daemon's socket, an end of the wire, a device file that is /dev/null
//!     └─ Pair ── a server in one container and its client in the other
//!   pyverbs/ ── runs the suite of pyverbs, and lists its results
//!   tests/mpi/c ── programs of MPI, compiled for MPIs that use UCX
//!   c/requests.c ── with c/extended.h and c/events.h: two open devices in one process: one case of its list
//!   c/partners.c ── a program whose partners are killed one after the other
//! ```
//!
//! Both containers have the daemon's socket in common, and nothing else. In them, programs are an ordinary user without capabilities, and
//! `/sys` has the processors only. `ISTHMUS_VERBS_LIBRARY=DIR` tests the plug-in that lies in DIR.

#![forbid(unsafe_code)]

mod build;
mod container;
mod pair;
mod pyverbs;
mod stage;

pub use build::{mpi_program, programs};
pub use container::Container;
pub use pair::{Pair, Started};
pub use pyverbs::pyverbs_suite;
pub use stage::Stage;

use isthmus_testbed::Deadline;

/// The longest time that something may take that must happen; it never judges speed.
pub fn timeout() -> Deadline {
    Deadline::secs(12)
}
