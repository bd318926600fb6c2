//! The rows of verbs.

use std::rc::Rc;

use super::connections::{Connections, TcpConnections};
use super::device::Device;
use super::measured::Measured;
use super::perftest::Perftest;
use crate::baseline::{Ucx, copy, ucx};
use crate::case::{Case, LinkCase};
use crate::fabric::{self, Mpi, Ranks, SystemMpis, Transport, mpis};
use crate::figures::{MIB, Row, floor};
use crate::job::{Buffers, Wait};
use crate::path::Path;
use crate::programs::Place;
use crate::target::Target;
use crate::target::Versus::{Floor, Peer, Value};

/// The queue pairs of each side that sleep, and those of which one is used.
const IDLE_QUEUE_PAIRS: usize = 1000;
const SILENT_QUEUE_PAIRS: usize = 10_000;

/// The sizes that are registered, with the names of their rows.
const REGISTRATIONS: [(usize, &str, &str); 3] = [
    (64 << 10, "verbs.register.64k.first", "verbs.register.64k.again"),
    (MIB, "verbs.register.1m.first", "verbs.register.1m.again"),
    (16 * MIB, "verbs.register.16m.first", "verbs.register.16m.again"),
];

/// UCX on the device, and over TCP. A process reaches itself by `self`.
const UCX: fabric::Ucx = fabric::Ucx { name: "ucx_verbs", transports: "rc_verbs,ud_verbs,self", device: "isthmus0:1" };
const UCX_TCP: fabric::Ucx = fabric::Ucx { name: "ucx_tcp", transports: "tcp,self", device: "lo" };

/// The rows, in the order of the document.
pub(crate) fn rows() -> Vec<Option<Row>> {
    let device = &Rc::new(Device::default());
    let mut rows = vec![
        send_lat(device),
        one_sided_lat("verbs.write_lat.2b", Perftest::latency(device, "ib_write_lat", 2), 3.0),
        one_sided_lat("verbs.read_lat.2b", Perftest::latency(device, "ib_read_lat", 2), 4.0),
        one_sided_bw("verbs.write_bw.64k", device, "ib_write_bw", 64 << 10),
        one_sided_bw("verbs.write_bw.1m", device, "ib_write_bw", MIB),
        one_sided_bw("verbs.read_bw.1m", device, "ib_read_bw", MIB),
        send_bw("verbs.send_bw.64k", device, 64 << 10),
        send_bw("verbs.send_bw.1m", device, MIB),
        rate(device),
        atomic(device),
        event_lat(device),
        event_lat_one_cpu(device),
        served_write_lat(device),
        served_write_lat_polling(device),
    ];
    rows.extend(REGISTRATIONS.into_iter().flat_map(|(bytes, first, again)| registration(device, bytes, first, again)));
    rows.push(register_nth(device));
    rows.extend(mpich(device));
    rows.extend([connect(device), idle(device), silent_qps(device)]);
    rows.into_iter().map(Some).collect()
}

fn send_lat(device: &Rc<Device>) -> Row {
    let library = LinkCase::half_rtt(Path::Isthmus, Wait::Poll, 8);
    let target = Target::at_most(1.0, Peer).and(Target::at_most(2.5, Peer).of(library.name()));
    Row::new("verbs.send_lat.2b", Perftest::latency(device, "ib_send_lat", 2))
        .peers(Ucx::half_rtts(2))
        .peers(mpis(2))
        .floor(floor::cache_line())
        .beside(library)
        .target(target.and(Target::at_most(4.0, Floor)))
}

/// The messages of UCX are what a program would use in place of a write.
fn one_sided_lat(name: &'static str, case: Perftest, most: f64) -> Row {
    let row = Row::new(name, case).floor(floor::cache_line()).beside(Ucx::half_rtt(ucx::Transport::Posix, 2));
    row.target(Target::at_most(most, Floor))
}

fn one_sided_bw(name: &'static str, device: &Rc<Device>, program: &'static str, size: usize) -> Row {
    let sysv = Ucx::bandwidth(ucx::Transport::Sysv, size);
    let row = Row::new(name, Perftest::bandwidth(device, program, size)).peer(sysv);
    row.floor(copy::CrossCore { size }).target(Target::at_least(1.5, Peer).and(Target::at_least(0.8, Floor)))
}

/// The floor is the client library alone.
fn send_bw(name: &'static str, device: &Rc<Device>, size: usize) -> Row {
    let row = Row::new(name, Perftest::bandwidth(device, "ib_send_bw", size));
    row.floor(LinkCase::bandwidth(Path::Isthmus, Wait::Poll, size, Buffers::Warm))
        .beside(Ucx::bandwidth(ucx::Transport::Sysv, size))
        .target(Target::at_least(0.9, Floor))
}

fn rate(device: &Rc<Device>) -> Row {
    let row = Row::new("verbs.rate.8b", Perftest::rate(device, "ib_send_bw", 8)).peers(Ucx::rates(8));
    let row = row.floor(LinkCase::rate(Path::Isthmus, Wait::Poll, 8));
    row.target(Target::at_least(1.0, Peer).and(Target::at_least(0.5, Floor)))
}

/// `ib_atomic_lat` adds from one side only.
fn atomic(device: &Rc<Device>) -> Row {
    let row = Row::new("verbs.atomic", Measured::add(device)).floor(floor::locked_add());
    row.beside(Perftest::latency(device, "ib_atomic_lat", 8)).target(Target::at_most(3.0, Floor))
}

fn event_lat(device: &Rc<Device>) -> Row {
    let case = Perftest::latency(device, "ib_send_lat", 2).sleeping();
    let row = Row::new("verbs.event_lat", case).peer(LinkCase::half_rtt(Path::Tcp, Wait::Sleep, 2));
    let row = row.floor(floor::eventfd());
    row.target(Target::at_most(1.0, Peer).and(Target::at_most(1.4, Floor)))
}

fn event_lat_one_cpu(device: &Rc<Device>) -> Row {
    let case = Perftest::latency(device, "ib_send_lat", 2).sleeping().on_one_cpu();
    let tcp = LinkCase::half_rtt(Path::Tcp, Wait::Sleep, 2).on_one_cpu();
    let row = Row::new("verbs.event_lat.one_cpu", case).peer(tcp).floor(floor::eventfd_one_cpu());
    row.target(Target::at_most(0.6, Peer).and(Target::at_most(1.4, Floor)))
}

fn served_write_lat(device: &Rc<Device>) -> Row {
    let row = Row::new("verbs.served_write_lat", Measured::served_write(device));
    row.floor(floor::eventfd()).target(Target::at_most(1.4, Floor))
}

fn served_write_lat_polling(device: &Rc<Device>) -> Row {
    let case = Perftest::latency(device, "ib_write_lat", 8).served();
    let row = Row::new("verbs.served_write_lat.polling", case);
    row.floor(floor::eventfd()).target(Target::at_most(1.4, Floor))
}

fn registration(device: &Rc<Device>, bytes: usize, first: &'static str, again: &'static str) -> [Row; 2] {
    let first = Row::new(first, Measured::first(device, bytes)).peer(Measured::remap(device, bytes));
    let again = Row::new(again, Measured::again(device, bytes));
    [first.target(Target::at_most(1.5, Peer)), again.target(Target::at_most(5.0, Value))]
}

fn register_nth(device: &Rc<Device>) -> Row {
    let row = Row::new("verbs.register.nth", Measured::nth(device)).peer(Measured::one_of_few(device));
    row.target(Target::at_most(1.5, Peer))
}

/// A job of an MPI over a transport.
type Job = fn(&Rc<SystemMpis>, (Mpi, Transport)) -> Ranks;

/// Debian's MPICH over UCX. The target is that of the same over TCP.
fn mpich(device: &Rc<Device>) -> [Row; 2] {
    let (on_device, elsewhere) = (Rc::new(SystemMpis::at(Rc::clone(device) as Rc<dyn Place>)), Rc::default());
    let row = |name, job: Job, target| {
        let row = Row::new(name, job(&on_device, (Mpi::Mpich4, Transport::Ucx(UCX))));
        let row = row.peer(job(&elsewhere, (Mpi::Mpich4, Transport::Ucx(UCX_TCP))));
        let row = row.beside(job(&elsewhere, (Mpi::Mpich4, Transport::Own)));
        row.beside(job(&on_device, (Mpi::OpenMpi4, Transport::Ucx(UCX)))).target(target)
    };
    let half_rtt: Job = |mpis, over| Ranks::half_rtt(mpis, over, 8);
    let bandwidth: Job = |mpis, over| Ranks::bandwidth(mpis, over, MIB);
    [
        row("verbs.mpich_ucx.8b", half_rtt, Target::at_most(0.333, Peer)),
        row("verbs.mpich_ucx.1m", bandwidth, Target::at_least(3.0, Peer)),
    ]
}

/// Connections by rdma_cm. Each has a connection of TCP, and a queue pair.
fn connect(device: &Rc<Device>) -> Row {
    Row::new("verbs.cm.connect", Connections(Rc::clone(device))).peer(TcpConnections)
}

/// CPU time in 60 s of the daemon and of two programs.
fn idle(device: &Rc<Device>) -> Row {
    Row::new("verbs.idle", Measured::idle(device, IDLE_QUEUE_PAIRS)).target(Target::at_most(0.0, Value))
}

fn silent_qps(device: &Rc<Device>) -> Row {
    let row = Row::new("verbs.silent_qps", Measured::ping_pong(device, SILENT_QUEUE_PAIRS));
    row.peer(Measured::ping_pong(device, 1)).target(Target::at_most(1.1, Peer))
}
