//! The rows of one host: messages between two domains, beside what other ways between two processes reach.

use super::floor;
use super::idle::Idle;
use super::{MIB, Row};
use crate::baseline::{Ucx, copy, ucx};
use crate::case::{Case, LinkCase};
use crate::job::{Buffers, Wait};
use crate::path::Path;
use crate::target::Target;
use crate::target::Versus::{Floor, Peer, Value};

/// The sizes of one-way streams with a receiver that sleeps, with the names of their rows.
const SLEEPING_STREAMS: [(usize, &str); 5] = [
    (8, "local.stream.sleep.8b"),
    (128, "local.stream.sleep.128b"),
    (4 << 10, "local.stream.sleep.4k"),
    (64 << 10, "local.stream.sleep.64k"),
    (MIB, "local.stream.sleep.1m"),
];

pub(super) fn rows(path: Path) -> Vec<Option<Row>> {
    let mut rows = messages(path);
    rows.extend(SLEEPING_STREAMS.map(|(size, name)| sleeping_stream(name, path, size)));
    rows
}

fn sleeping_stream(name: &'static str, path: Path, size: usize) -> Option<Row> {
    let bandwidth = |path| LinkCase::bandwidth(path, Wait::Sleep, size, Buffers::Warm);
    let row = Row::of_link(name, bandwidth(path))?;
    let row = [Path::Tcp, Path::Unix, Path::Pipe].into_iter().fold(row, |row, path| row.peer(bandwidth(path)));
    Some(row.target(Target::at_least(1.0, Peer)))
}

fn messages(path: Path) -> Vec<Option<Row>> {
    vec![
        half_rtt_8b_poll(path),
        half_rtt_4k_poll(path),
        bandwidth_1m_warm(path),
        bandwidth_1m_cold(path),
        rate_8b(path),
        half_rtt_8b_sleep(path),
        half_rtt_8b_sleep_one_cpu(path),
        isolated_half_rtt_8b(path),
        isolated_bandwidth_1m(path),
        attach(path),
        first_message(path),
        idle_cpu(path),
        idle_peers(path),
    ]
}

fn half_rtt_8b_poll(path: Path) -> Option<Row> {
    let row = Row::of_link("local.half_rtt.8b.poll", LinkCase::half_rtt(path, Wait::Poll, 8))?;
    Some(
        row.peers(Ucx::half_rtts(8))
            .peer(LinkCase::half_rtt(Path::Tcp, Wait::Poll, 8))
            .floor(floor::cache_line())
            .target(Target::at_most(2.0, Floor).and(Target::at_most(1.0, Peer))),
    )
}

fn half_rtt_4k_poll(path: Path) -> Option<Row> {
    let row = Row::of_link("local.half_rtt.4k.poll", LinkCase::half_rtt(path, Wait::Poll, 4096))?;
    Some(
        row.peers(Ucx::half_rtts(4096))
            .peer(LinkCase::half_rtt(Path::Tcp, Wait::Poll, 4096))
            .target(Target::at_most(0.6, Peer).or(Target::at_most(0.5, Value))),
    )
}

fn bandwidth_1m_warm(path: Path) -> Option<Row> {
    let row = Row::of_link("local.bandwidth.1m.warm", LinkCase::bandwidth(path, Wait::Poll, MIB, Buffers::Warm))?;
    Some(
        row.peer(LinkCase::bandwidth(Path::Cma, Wait::Poll, MIB, Buffers::Warm))
            .peer(Ucx::bandwidth(ucx::Transport::Sysv, MIB))
            .peer(Ucx::bandwidth(ucx::Transport::Cma, MIB))
            .floor(floor::copy())
            .beside(floor::ring())
            .beside(LinkCase::bandwidth(path, Wait::Poll, MIB, Buffers::Rewritten))
            .beside(copy::OneCore { size: MIB })
            .target(Target::at_least(0.8, Floor)),
    )
}

/// UCX uses its buffers again and again, so it is no peer here.
fn bandwidth_1m_cold(path: Path) -> Option<Row> {
    let row = Row::of_link("local.bandwidth.1m.cold", LinkCase::bandwidth(path, Wait::Poll, MIB, Buffers::Cold))?;
    Some(
        row.peer(LinkCase::bandwidth(Path::Cma, Wait::Poll, MIB, Buffers::Cold))
            .floor(floor::two_copies())
            .beside(Ucx::bandwidth(ucx::Transport::Sysv, MIB))
            .target(Target::at_least(1.5, Peer)),
    )
}

fn rate_8b(path: Path) -> Option<Row> {
    let row = Row::of_link("local.rate.8b", LinkCase::rate(path, Wait::Poll, 8))?;
    Some(row.peers(Ucx::rates(8)).peer(LinkCase::rate(Path::Tcp, Wait::Poll, 8)).target(Target::at_least(1.5, Peer)))
}

fn half_rtt_8b_sleep(path: Path) -> Option<Row> {
    let tcp = LinkCase::half_rtt(Path::Tcp, Wait::Sleep, 8);
    let target = Target::at_most(0.6, Peer).of(tcp.name());
    let row = Row::of_link("local.half_rtt.8b.sleep", LinkCase::half_rtt(path, Wait::Sleep, 8))?;
    let row = row.peer(tcp).peer(LinkCase::half_rtt(Path::Unix, Wait::Sleep, 8));
    Some(row.floor(floor::eventfd()).target(target))
}

/// The cost of sleeping and waking where only the other side has to be woken, not a CPU.
fn half_rtt_8b_sleep_one_cpu(path: Path) -> Option<Row> {
    let one = |path| LinkCase::half_rtt(path, Wait::Sleep, 8).on_one_cpu();
    let target = Target::at_most(0.6, Peer).of(one(Path::Tcp).name());
    let row = Row::of_link("local.half_rtt.8b.sleep.one_cpu", one(path))?;
    Some(row.peer(one(Path::Tcp)).peer(one(Path::Unix)).floor(floor::eventfd_one_cpu()).target(target))
}

fn isolated_half_rtt_8b(path: Path) -> Option<Row> {
    let case = LinkCase::half_rtt(path, Wait::Poll, 8);
    let row = Row::of_link("local.isolated.half_rtt.8b", case.clone().isolated())?;
    Some(row.peer(case).target(Target::at_most(1.05, Peer)))
}

fn isolated_bandwidth_1m(path: Path) -> Option<Row> {
    let case = LinkCase::bandwidth(path, Wait::Poll, MIB, Buffers::Warm);
    let row = Row::of_link("local.isolated.bandwidth.1m", case.clone().isolated())?;
    Some(row.peer(case).target(Target::at_least(0.95, Peer)))
}

fn attach(path: Path) -> Option<Row> {
    let row = Row::of_link("local.attach_us", LinkCase::open(path, Wait::Poll))?;
    Some(row.peer(LinkCase::open(Path::Tcp, Wait::Poll)).target(Target::at_most(2000.0, Value)))
}

/// There and back. The channel is made meanwhile.
fn first_message(path: Path) -> Option<Row> {
    let row = Row::of_link("local.first_message_us", LinkCase::first(path, Wait::Poll, 8))?;
    Some(row.peer(LinkCase::first(Path::Tcp, Wait::Poll, 8)).target(Target::at_most(300.0, Value)))
}

/// CPU time in 60 s of the daemon and of 100 attached domains.
fn idle_cpu(path: Path) -> Option<Row> {
    let case = |path| Idle { path, domains: 100, stream_daemon: None };
    let row = case(path).is_supported().then(|| Row::new("local.idle_cpu_ms", case(path)))?;
    Some(row.peer(case(Path::Unix)).target(Target::at_most(0.0, Value)))
}

fn idle_peers(path: Path) -> Option<Row> {
    let case = LinkCase::half_rtt(path, Wait::Poll, 8);
    let row = Row::of_link("local.idle_peers", case.clone().with_option("idle_peers", "1000"))?;
    Some(row.peer(case).target(Target::at_most(1.1, Peer)))
}
