//! MPIs of the system: what their programs reach on the provider for libfabric, and on what the same MPI has without it.
//!
//! ```text
//!   installation ─ which MPIs there may be, where they are, and the variables that leave each one transport and no other
//!   system_mpi ─── what all jobs share: programs compiled once for each MPI, a daemon, a folder that goes with them
//!   launch ─────── a launcher with its ranks, on this machine or on two hosts (`two_hosts`)
//!   ranks ──────── cases: half a round trip, a stream, more ranks than processors        (program.c)
//!   hpcc ───────── cases: what HPC Challenge says of itself
//! ```
//!
//! The programs that ranks run are pinned by the job, rank by rank, and not by the MPI.

mod hpcc;
mod installation;
mod launch;
mod ranks;
mod system_mpi;
mod two_hosts;

pub(crate) use hpcc::{Hpcc, HpccRuns};
pub(crate) use installation::{Mpi, Transport};
pub(crate) use ranks::Ranks;
pub(crate) use system_mpi::SystemMpis;
