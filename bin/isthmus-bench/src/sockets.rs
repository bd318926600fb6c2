//! The rows of sockets: TCP programs with the library, beside TCP, Unix sockets and pipes without it.
//!
//! A row fails unless at least half of its bytes went through shared memory.

mod stream_daemon;

use std::rc::Rc;

use crate::case::{Case, LinkCase};
use crate::figures::{Idle, MIB, Row, floor};
use crate::job::{Buffers, Wait};
use crate::load::http::Http;
use crate::load::memcached::MemcachedGet;
use crate::load::postgresql::PgbenchSelect;
use crate::load::redis::RedisGet;
use crate::load::{Load, Place, Served, Transport};
use crate::path::Path;
use crate::target::Target;
use crate::target::Versus::{Peer, Value};

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

/// Numbers of threads that compute on the CPUs of the programs, with the names of their rows.
const BUSY: [(usize, &str); 3] =
    [(2, "sock.redis.get.busy2"), (4, "sock.redis.get.busy4"), (8, "sock.redis.get.busy8")];

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
    rows.extend(BUSY.map(|(threads, name)| busy(daemon, name, threads)));
    rows.extend(programs(daemon));
    rows.push(idle());
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
    let get = |transport| Served::new(RedisGet { clients, pipeline }, transport, daemon);
    Some(served(name, least, get).peer(get(Transport::Unix)))
}

/// Sockets beside TCP, which they have to beat by this factor.
fn served<L: Load + 'static>(name: &'static str, least: f64, case: impl Fn(Transport) -> Served<L>) -> Row {
    let tcp = case(Transport::Tcp);
    let target = Target::at_least(least, Peer).of(tcp.name());
    Row::new(name, case(Transport::Sockets)).peer(tcp).target(target)
}

fn busy(daemon: &Rc<StreamDaemon>, name: &'static str, threads: usize) -> Option<Row> {
    let get = |transport| {
        let load = RedisGet { clients: 50, pipeline: 1 };
        Served { busy: threads, ..Served::new(load, transport, daemon) }
    };
    Some(served(name, 1.0, get))
}

/// Other programs, and other places of them.
fn programs(daemon: &Rc<StreamDaemon>) -> Vec<Option<Row>> {
    let all_users = &Rc::new(StreamDaemon::for_all_users());
    let http = |keeps_alive| move |transport| Served::new(Http { keeps_alive }, transport, daemon);
    let pgbench = |connects| move |transport| Served::new(PgbenchSelect::new(connects), transport, all_users);
    let placed = |place| {
        move |transport| Served { place, ..Served::new(RedisGet { clients: 50, pipeline: 1 }, transport, all_users) }
    };
    vec![
        Some(served("sock.redis.get.two_namespaces", 2.5, placed(Place::TwoNamespaces))),
        Some(served("sock.redis.get.two_owners", 2.5, placed(Place::TwoOwners))),
        Some(served("sock.nginx.4k", 1.0, http(true))),
        Some(served("sock.memcached.get", 1.5, |transport| Served::new(MemcachedGet, transport, daemon))),
        Some(served("sock.pgbench.select", 1.0, pgbench(false))),
        Some(served("sock.connect.plain", 0.98, http(false))),
        Some(served("sock.connect.pgbench", 0.98, pgbench(true))),
    ]
}

/// CPU time of the daemon and of 100 programs with streams by which nothing goes.
fn idle() -> Option<Row> {
    let daemon = Rc::new(StreamDaemon::for_all_users());
    let case = |path| Idle { path, domains: 100, stream_daemon: Some(Rc::clone(&daemon)) };
    let row = Row::new("sock.idle", case(Path::Sockets));
    let tcp = Idle { stream_daemon: None, ..case(Path::Tcp) };
    Some(row.peer(tcp).target(Target::at_most(0.0, Value)))
}
