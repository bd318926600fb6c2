//! Stock MPIs: what their programs reach on the provider for libfabric, and on what the same MPI has without it.
//!
//! ```text
//!   flavour ─── which MPIs there may be, where they are, and the variables that leave each one transport and no other
//!   stock ───── what all jobs share: programs compiled once for each MPI, a daemon, a folder that goes with them
//!   launch ──── a launcher with its ranks, on this machine or on two hosts (`away`)
//!   ranks ───── cases: half a round trip, a stream, a crowd        (program.c)
//!   hpcc ────── cases: what HPC Challenge says of itself
//! ```
//!
//! The programs that ranks run are pinned by the job, rank by rank, and not by the MPI.

mod away;
mod flavour;
mod hpcc;
mod launch;
mod ranks;
mod stock;

pub(crate) use flavour::{Mpi, Transport};
pub(crate) use hpcc::{Hpcc, HpccRuns};
pub(crate) use ranks::Ranks;
pub(crate) use stock::Stock;
