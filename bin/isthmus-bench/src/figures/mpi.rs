//! The rows of MPI: MPIs of the system on the provider for libfabric, beside what the same MPIs have without it.

use std::rc::Rc;

use super::wire::VETH;
use super::{MIB, Row};
use crate::case::{Case, Unit};
use crate::hosts::{HostPairs, WireSpec};
use crate::mpi::{Hpcc, HpccRuns, Mpi, Ranks, SystemMpis, Transport};

use Mpi::{Mpich4, Mpich5, OpenMpi4, OpenMpi5};
use Transport::{Isthmus, Own, Shm, Tcp};

/// The wire of the rows between hosts with what carries TCP in pieces of 64 KB.
const OFFLOADS: WireSpec = WireSpec { name: "veth.offloads", offloads: true, ..VETH };

/// More ranks than processors, on two processors, and the bytes that each has for each.
const OVERSUBSCRIBED_RANKS: usize = 8;
const OVERSUBSCRIBED_BYTES: usize = 1024;

pub(super) fn rows(system_mpi: &Rc<SystemMpis>, host_pairs: &Rc<HostPairs>) -> Vec<Option<Row>> {
    let hpcc = [Isthmus, Own].map(|transport| HpccRuns::new(system_mpi, transport));
    vec![
        half_rtt_8b(system_mpi),
        bandwidth_1m(system_mpi),
        net_half_rtt_8b(system_mpi, host_pairs),
        net_bandwidth_1m(system_mpi, host_pairs),
        oversubscribed(system_mpi),
        hpcc_row(&hpcc, "mpi.hpcc.ring_latency", "RandomlyOrderedRingLatency_usec", Unit::Microseconds),
        hpcc_row(&hpcc, "mpi.hpcc.ring_bandwidth", "RandomlyOrderedRingBandwidth_GBytes", Unit::GigabytesPerSecond),
        hpcc_row(&hpcc, "mpi.hpcc.random_access", "MPIRandomAccess_GUPs", Unit::GigaupdatesPerSecond),
        hpcc_row(&hpcc, "mpi.hpcc.fft", "MPIFFT_Gflops", Unit::Gigaflops),
    ]
}

/// A row of cases: its own, the baseline, and the others.
fn row<C: Case + 'static>(
    name: &'static str,
    target: &'static str,
    case: C,
    baseline: C,
    others: Vec<C>,
) -> Option<Row> {
    let others = others.into_iter().map(|case| Box::new(case) as Box<dyn Case>).collect();
    Some(Row { name, target, case: Box::new(case), baseline: Some(Box::new(baseline)), others })
}

fn half_rtt_8b(system_mpi: &Rc<SystemMpis>) -> Option<Row> {
    let over = |mpi, transport| Ranks::half_rtt(system_mpi, (mpi, transport), 8);
    row(
        "mpi.half_rtt.8b",
        "at most 0.8 times the same MPI over libfabric's shm, and at most 1.3 times MPICH's own shared memory",
        over(Mpich5, Isthmus),
        over(Mpich5, Shm),
        [over(Mpich5, Own)].into_iter().chain(other_mpis(over)).collect(),
    )
}

fn bandwidth_1m(system_mpi: &Rc<SystemMpis>) -> Option<Row> {
    let over = |mpi, transport| Ranks::bandwidth(system_mpi, (mpi, transport), MIB);
    row(
        "mpi.bandwidth.1m",
        "64 under way: at least 1.5 times the best MPI's own shared memory",
        over(Mpich5, Isthmus),
        over(Mpich5, Own),
        other_mpis(over).into(),
    )
}

/// What MPIs other than the row's own make of one host.
fn other_mpis(over: impl Fn(Mpi, Transport) -> Ranks) -> [Ranks; 5] {
    [(Mpich4, Own), (OpenMpi4, Isthmus), (OpenMpi4, Own), (OpenMpi5, Isthmus), (OpenMpi5, Own)]
        .map(|(mpi, transport)| over(mpi, transport))
}

fn net_half_rtt_8b(system_mpi: &Rc<SystemMpis>, host_pairs: &Rc<HostPairs>) -> Option<Row> {
    between_hosts(
        "mpi.net.half_rtt.8b",
        "two hosts: at most 0.7 times the same MPI over TCP on the same wire, offloads cut",
        |mpi, transport, between| Ranks::half_rtt(system_mpi, (mpi, transport), 8).between(host_pairs, between),
    )
}

fn net_bandwidth_1m(system_mpi: &Rc<SystemMpis>, host_pairs: &Rc<HostPairs>) -> Option<Row> {
    between_hosts(
        "mpi.net.bandwidth.1m",
        "two hosts, 64 under way: at least 1.3 times the same MPI over TCP on the same wire, offloads cut",
        |mpi, transport, between| Ranks::bandwidth(system_mpi, (mpi, transport), MIB).between(host_pairs, between),
    )
}

/// A row of two hosts: the provider, beside TCP on the same wire with offloads cut and as it is.
fn between_hosts(
    name: &'static str,
    target: &'static str,
    over: impl Fn(Mpi, Transport, WireSpec) -> Ranks,
) -> Option<Row> {
    row(
        name,
        target,
        over(Mpich5, Isthmus, VETH),
        over(Mpich5, Tcp, VETH),
        vec![
            over(Mpich5, Tcp, OFFLOADS),
            over(OpenMpi4, Isthmus, VETH),
            over(OpenMpi4, Tcp, VETH),
            over(OpenMpi4, Tcp, OFFLOADS),
        ],
    )
}

fn oversubscribed(system_mpi: &Rc<SystemMpis>) -> Option<Row> {
    let over = |mpi, transport| {
        Ranks::oversubscribed(system_mpi, (mpi, transport), OVERSUBSCRIBED_BYTES, OVERSUBSCRIBED_RANKS)
    };
    row(
        "mpi.oversubscribed.8ranks",
        "8 ranks on 2 processors, all to all, a sum and a barrier: at most 1.5 times blocking TCP sockets",
        over(OpenMpi4, Isthmus),
        Ranks::oversubscribed_tcp(system_mpi, OpenMpi4, OVERSUBSCRIBED_BYTES, OVERSUBSCRIBED_RANKS),
        vec![
            over(OpenMpi4, Tcp),
            over(OpenMpi4, Own),
            over(OpenMpi5, Isthmus),
            over(OpenMpi5, Own),
            over(Mpich5, Isthmus),
            over(Mpich5, Own),
        ],
    )
}

/// A figure of HPC Challenge, beside the MPI's own shared memory.
fn hpcc_row(runs: &[Rc<HpccRuns>; 2], name: &'static str, key: &'static str, unit: Unit) -> Option<Row> {
    let [ours, own] = runs;
    let target = "none: beside Open MPI's own shared memory";
    row(name, target, Hpcc::new(ours, key, unit), Hpcc::new(own, key, unit), Vec::new())
}
