//! The rows of MPI: MPIs of the system on the provider for libfabric, beside what the same MPIs have without it.

use std::rc::Rc;

use super::hpcc::{Hpcc, HpccRuns};
use super::installation::{Mpi, Transport};
use super::ranks::Ranks;
use super::system_mpi::SystemMpis;
use crate::case::{Case, Unit};
use crate::figures::wire::VETH;
use crate::figures::{MIB, Row};
use crate::hosts::{HostPairs, WireSpec};
use crate::target::Target;
use crate::target::Versus::Peer;

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

fn half_rtt_8b(system_mpi: &Rc<SystemMpis>) -> Option<Row> {
    let over = |mpi, transport| Ranks::half_rtt(system_mpi, (mpi, transport), 8);
    let (shm, own) = (over(Mpich5, Shm), over(Mpich5, Own));
    let target = Target::at_most(0.8, Peer).of(shm.name()).and(Target::at_most(1.3, Peer).of(own.name()));
    let row = Row::new("mpi.half_rtt.8b", over(Mpich5, Isthmus)).peer(shm).peer(own);
    Some(with_other_mpis(row, over).target(target))
}

fn bandwidth_1m(system_mpi: &Rc<SystemMpis>) -> Option<Row> {
    let over = |mpi, transport| Ranks::bandwidth(system_mpi, (mpi, transport), MIB);
    let row = Row::new("mpi.bandwidth.1m", over(Mpich5, Isthmus)).peer(over(Mpich5, Own));
    Some(with_other_mpis(row, over).target(Target::at_least(1.5, Peer)))
}

/// Adds the MPIs that the row is not about: alone as peers, and over the provider.
fn with_other_mpis(row: Row, over: impl Fn(Mpi, Transport) -> Ranks) -> Row {
    let row = row.peer(over(Mpich4, Own)).peer(over(OpenMpi4, Own)).peer(over(OpenMpi5, Own));
    row.beside(over(OpenMpi4, Isthmus)).beside(over(OpenMpi5, Isthmus))
}

fn net_half_rtt_8b(system_mpi: &Rc<SystemMpis>, host_pairs: &Rc<HostPairs>) -> Option<Row> {
    let over = |mpi, transport, between| Ranks::half_rtt(system_mpi, (mpi, transport), 8).between(host_pairs, between);
    Some(between_hosts("mpi.net.half_rtt.8b", Target::at_most(0.7, Peer), over))
}

fn net_bandwidth_1m(system_mpi: &Rc<SystemMpis>, host_pairs: &Rc<HostPairs>) -> Option<Row> {
    let over =
        |mpi, transport, between| Ranks::bandwidth(system_mpi, (mpi, transport), MIB).between(host_pairs, between);
    Some(between_hosts("mpi.net.bandwidth.1m", Target::at_least(1.3, Peer), over))
}

/// A row of two hosts. The target is that of the same MPI over TCP on the same wire, with offloads cut; TCP with offloads is a
/// peer as well.
fn between_hosts(name: &'static str, target: Target, over: impl Fn(Mpi, Transport, WireSpec) -> Ranks) -> Row {
    let tcp = over(Mpich5, Tcp, VETH);
    let target = target.of(tcp.name());
    Row::new(name, over(Mpich5, Isthmus, VETH))
        .peer(tcp)
        .peer(over(Mpich5, Tcp, OFFLOADS))
        .peer(over(OpenMpi4, Tcp, VETH))
        .peer(over(OpenMpi4, Tcp, OFFLOADS))
        .beside(over(OpenMpi4, Isthmus, VETH))
        .target(target)
}

fn oversubscribed(system_mpi: &Rc<SystemMpis>) -> Option<Row> {
    let over = |mpi, transport| {
        Ranks::oversubscribed(system_mpi, (mpi, transport), OVERSUBSCRIBED_BYTES, OVERSUBSCRIBED_RANKS)
    };
    let tcp = Ranks::oversubscribed_tcp(system_mpi, OpenMpi4, OVERSUBSCRIBED_BYTES, OVERSUBSCRIBED_RANKS);
    let target = Target::at_most(1.5, Peer).of(tcp.name());
    let row = Row::new("mpi.oversubscribed.8ranks", over(OpenMpi4, Isthmus)).peer(tcp).peer(over(OpenMpi4, Tcp));
    let row = row.peer(over(OpenMpi4, Own)).peer(over(OpenMpi5, Own)).peer(over(Mpich5, Own));
    Some(row.beside(over(OpenMpi5, Isthmus)).beside(over(Mpich5, Isthmus)).target(target))
}

/// A figure of HPC Challenge, beside the MPI's own shared memory.
fn hpcc_row([ours, own]: &[Rc<HpccRuns>; 2], name: &'static str, key: &'static str, unit: Unit) -> Option<Row> {
    Some(Row::new(name, Hpcc::new(ours, key, unit)).peer(Hpcc::new(own, key, unit)))
}
