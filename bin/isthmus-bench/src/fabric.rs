//! MPIs of the system: their programs on the provider for libfabric, and on the transports that the same MPI has without it.
//!
//! ```text
//!   installation ─ which MPIs there may be, where they are, and the variables that leave each one transport and no other
//!   system_mpi ─── shared by all jobs: programs compiled once for each MPI, a daemon, a folder that goes with them
//!   launch ─────── a launcher with its ranks, on this machine or on two hosts (`two_hosts`)
//!   ranks ──────── cases: half a round trip, a stream, more ranks than processors        (program.c)
//!   rows ───────── the rows of this capability
//!   hpcc ───────── cases: the figures of HPC Challenge
//! ```
//!
//! The programs that ranks run are pinned by the job, rank by rank, and not by the MPI.

mod hpcc;
mod installation;
mod launch;
mod ranks;
mod rows;
mod system_mpi;
mod two_hosts;

use std::rc::Rc;

use crate::case::Case;
use crate::figures::Row;
use crate::hosts::HostPairs;

pub(crate) use installation::{Mpi, Transport, Ucx};
pub(crate) use ranks::Ranks;
pub(crate) use system_mpi::SystemMpis;

/// The rows of MPIs, in the order of the document.
pub(crate) fn rows(host_pairs: &Rc<HostPairs>) -> Vec<Option<Row>> {
    rows::rows(&Rc::new(SystemMpis::default()), host_pairs)
}

/// Half a round trip between ranks of each MPI, over its own shared memory.
pub(crate) fn mpis(size: usize) -> impl Iterator<Item = Box<dyn Case>> {
    let system_mpi = Rc::new(SystemMpis::default());
    Mpi::ALL
        .into_iter()
        .map(move |mpi| Box::new(Ranks::half_rtt(&system_mpi, (mpi, Transport::Own), size)) as Box<dyn Case>)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_as_in_the_document() {
        let names: Vec<_> = rows(&Rc::default()).iter().flatten().map(|row| row.name).collect();
        assert_eq!(
            names,
            [
                "mpi.half_rtt.8b",
                "mpi.bandwidth.1m",
                "mpi.net.half_rtt.8b",
                "mpi.net.bandwidth.1m",
                "mpi.oversubscribed.8ranks",
                "mpi.hpcc.ring_latency",
                "mpi.hpcc.ring_bandwidth",
                "mpi.hpcc.random_access",
                "mpi.hpcc.fft",
            ]
        );
    }
}
