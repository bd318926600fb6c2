//! The rows of sockets: TCP programs with the library, beside TCP, Unix sockets and pipes without it.
//!
//! A row fails unless at least half of its bytes went through shared memory.

mod stream_daemon;

use std::rc::Rc;

use crate::case::{Case, LinkCase};
use crate::figures::{MIB, Row, floor};
use crate::job::{Buffers, Wait};
use crate::path::Path;
use crate::redis::{RedisGet, Transport};
use crate::target::Target;
use crate::target::Versus::Peer;

pub(crate) use stream_daemon::{StreamDaemon, check_share};

/// The sizes of one-way streams, with the names of their rows.
const STREAMS: [(usize, &str, &str); 7] = [
    (64, "sock.stream.64b.poll", "sock.stream.64b.sleep"),
    (1 << 10, "sock.stream.1k.poll", "sock.stream.1k.sleep"),
    (4 << 10, "sock.stream.4k.poll", "sock.stream.4k.sleep"),
    (16 << 10, "sock.stream.16k.poll", "sock.stream.16k.sleep"),
    (64 << 10, "sock.stream.64k.poll", "sock.stream.64k.sleep"),
    (256 << 10, "sock.stream.256k.poll", "sock.stream.256k.sleep"),
    (MIB, "sock.stream.1m.poll", "sock.stream.1m.sleep"),
];

/// The rows, in the order of the document.
pub(crate) fn rows() -> Vec<Option<Row>> {
    let daemon = &Rc::new(StreamDaemon::default());
    let mut rows = vec![
        round_trip(daemon, "sock.rr.64b.poll", Wait::Poll),
        round_trip(daemon, "sock.rr.64b.sleep", Wait::Sleep),
        round_trip_one_cpu(daemon),
        rate_100b(daemon),
    ];
    for (size, poll, sleep) in STREAMS {
        rows.extend([stream(daemon, poll, Wait::Poll, size), stream(daemon, sleep, Wait::Sleep, size)]);
    }
    rows.extend([redis(daemon, "sock.redis.get", (50, 1), 2.5), redis(daemon, "sock.redis.get.p16", (50, 16), 2.0)]);
    rows.extend([redis(daemon, "sock.redis.get.one_client", (1, 1), 8.0)]);
    rows
}

fn round_trip(daemon: &Rc<StreamDaemon>, name: &'static str, wait: Wait) -> Option<Row> {
    let half_rtt = |path| LinkCase::half_rtt(path, wait, 64);
    let tcp = half_rtt(Path::Tcp);
    let most = if wait == Wait::Poll { 1.0 / 13.0 } else { 1.0 };
    let target = Target::at_most(most, Peer).of(tcp.name());
    let row = Row::of_link(name, half_rtt(Path::Sockets).with_stream_daemon(daemon))?
        .peer(tcp)
        .peer(half_rtt(Path::Unix))
        .peer(half_rtt(Path::Pipe));
    let row = if wait == Wait::Poll { row.floor(floor::cache_line()) } else { row.floor(floor::eventfd()) };
    Some(row.target(target))
}

fn round_trip_one_cpu(daemon: &Rc<StreamDaemon>) -> Option<Row> {
    let half_rtt = |path| LinkCase::half_rtt(path, Wait::Sleep, 64).on_one_cpu();
    let tcp = half_rtt(Path::Tcp);
    let target = Target::at_most(0.6, Peer).of(tcp.name());
    let row = Row::of_link("sock.rr.64b.sleep.one_cpu", half_rtt(Path::Sockets).with_stream_daemon(daemon))?;
    Some(row.peer(tcp).peer(half_rtt(Path::Unix)).floor(floor::eventfd_one_cpu()).target(target))
}

fn rate_100b(daemon: &Rc<StreamDaemon>) -> Option<Row> {
    let rate = |path| LinkCase::rate(path, Wait::Poll, 100);
    let (tcp, unix) = (rate(Path::Tcp), rate(Path::Unix));
    let target = Target::at_least(10.0, Peer).of(tcp.name()).and(Target::at_least(5.0, Peer).of(unix.name()));
    let row = Row::of_link("sock.rate.100b", rate(Path::Sockets).with_stream_daemon(daemon))?;
    Some(row.peer(tcp).peer(unix).target(target))
}

fn stream(daemon: &Rc<StreamDaemon>, name: &'static str, wait: Wait, size: usize) -> Option<Row> {
    let bandwidth = |path| LinkCase::bandwidth(path, wait, size, Buffers::Warm);
    let row = Row::of_link(name, bandwidth(Path::Sockets).with_stream_daemon(daemon))?;
    let row = [Path::Tcp, Path::Unix, Path::Pipe].into_iter().fold(row, |row, path| row.peer(bandwidth(path)));
    let row = if wait == Wait::Poll && size >= 64 << 10 { row.floor(floor::ring()) } else { row };
    Some(row.target(Target::at_least(1.5, Peer)))
}

/// `load`: the clients, and the requests that each sends at once.
fn redis(daemon: &Rc<StreamDaemon>, name: &'static str, load: (u32, u32), least: f64) -> Option<Row> {
    let (clients, pipeline) = load;
    let get =
        |transport| RedisGet { transport, daemon: Rc::clone(daemon), folder: std::env::temp_dir(), clients, pipeline };
    let row = Row::new(name, get(Transport::Sockets)).peer(get(Transport::Tcp)).peer(get(Transport::Unix));
    Some(row.target(Target::at_least(least, Peer).of(get(Transport::Tcp).name())))
}
