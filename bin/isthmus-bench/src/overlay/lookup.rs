//! Decisions of a network with many routes, on one processor and without frames. Times are CPU time, which other programs do not add to.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use isthmus_overlay::{
    Decision, EdgeId, FrameHeader, InterfaceId, MacAddr, MacPattern, Millis, Network, NetworkOptions, Port, Route,
    RouteId, RouteSource,
};

use crate::case::{Case, Reading, Unit};
use crate::cpu::thread_cpu_ns;
use crate::pair::Bench;
use crate::pin::pin;

const ROUTES: u64 = 10_000;

/// The stations that send, and those that they send to. All their pairs are many more than the cache holds.
const SOURCES: u64 = 512;
const DESTINATIONS: u64 = 512;

/// Pairs of addresses that the cache holds.
const CACHED_PAIRS: u64 = 1_024;

/// Decisions between two looks at the clock.
const BATCH: u64 = 1_000;

const PORTS: u64 = 20;

/// The number that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// Decisions each second, all of which the cache has.
    Cached,
    /// Decisions each second, hardly any of which the cache has.
    Miss,
    /// The longest time of adding or deleting a route while the cache is full.
    Change,
}

impl Case for Lookup {
    fn name(&self) -> String {
        let what = match self {
            Self::Cached => "cached",
            Self::Miss => "miss",
            Self::Change => "change",
        };
        format!("overlay.lookup.{what}.{ROUTES}routes")
    }

    fn unit(&self) -> Unit {
        if *self == Self::Change { Unit::Microseconds } else { Unit::MegamessagesPerSecond }
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        let cpu = bench.placement.lead(0);
        thread::scope(|scope| {
            let measured = scope.spawn(|| {
                pin(&[cpu])?;
                let (mut network, routes) = network()?;
                match self {
                    Self::Cached => decisions(bench, &mut network, CACHED_PAIRS),
                    Self::Miss => decisions(bench, &mut network, SOURCES * DESTINATIONS),
                    Self::Change => longest_change(bench, &mut network, &routes),
                }
            });
            measured.join().map_err(|_| anyhow!("the thread that decides panicked"))?.map(Reading::value)
        })
    }
}

/// A station. There are fewer than 65,536 of a kind.
fn station(kind: u8, number: u64) -> MacAddr {
    MacAddr([2, 0, 0, kind, (number >> 8) as u8, number as u8])
}

fn sender(number: u64) -> MacAddr {
    station(0, number)
}

fn receiver(number: u64) -> MacAddr {
    station(1, number)
}

fn port(number: u64) -> Port {
    Port::Edge(EdgeId((number % PORTS) as u16))
}

/// The interface that all frames come from.
const FROM: Port = Port::Interface(InterfaceId(0));

/// A route. Four kinds have the same share, so that a frame has a route for its pair, one or two for each address, or both.
fn route(number: u64) -> Route {
    let each = number / 4;
    let (source, destination) = match number % 4 {
        0 => (MacPattern::Exact(sender(each)), MacPattern::Exact(receiver(each))),
        1 => (MacPattern::Any, MacPattern::Exact(receiver(each))),
        2 => (MacPattern::Exact(sender(each)), MacPattern::Not(receiver(each))),
        _ => (MacPattern::Exact(sender(ROUTES / 4 + each)), MacPattern::Any),
    };
    Route { source, destination, from: RouteSource::AnyInterface, to: port(number) }
}

fn network() -> Result<(Network, Vec<RouteId>)> {
    let mut network = Network::new(NetworkOptions::new([1, 2]));
    network.add_port(FROM);
    for number in 0..PORTS {
        network.add_port(port(number));
    }
    let routes: Vec<Route> = (0..ROUTES).map(route).collect();
    let routes = network.change_routes(&[], &routes)?;
    Ok((network, routes))
}

/// A frame from one of `pairs` pairs, in an order without a pattern.
fn frame(number: u64, pairs: u64) -> FrameHeader {
    let pair = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) & (pairs - 1);
    // Spread over all senders and receivers that have routes.
    FrameHeader::untagged(receiver(pair / SOURCES * 4), sender(pair % SOURCES * 9))
}

/// Millions of decisions each second of CPU time.
fn decisions(bench: &Bench, network: &mut Network, pairs: u64) -> Result<f64> {
    let frames: Vec<_> = (0..pairs).map(|number| frame(number, pairs)).collect();
    let (mut done, mut copies) = (0, 0);
    for frame in &frames {
        copies += count(network, frame);
    }
    ensure!(copies >= pairs as usize, "only {copies} of {pairs} frames have a route");
    let (begin, start) = (Instant::now(), thread_cpu_ns());
    let mut next = frames.iter().cycle();
    while begin.elapsed() < bench.budget || done == 0 {
        for frame in next.by_ref().take(BATCH as usize) {
            copies += count(network, frame);
        }
        done += BATCH;
    }
    black_box(copies);
    Ok(done as f64 / (thread_cpu_ns() - start) as f64 * 1e3)
}

fn count(network: &mut Network, frame: &FrameHeader) -> usize {
    match network.forward(Millis(0), FROM, black_box(frame)) {
        Decision::To(to) => to.len(),
        Decision::Drop(_) => 0,
    }
}

/// Deletes routes and adds them again, and returns the longest time in microseconds. Frames between fill the cache again.
fn longest_change(bench: &Bench, network: &mut Network, routes: &[RouteId]) -> Result<f64> {
    let pairs = SOURCES * DESTINATIONS;
    let (begin, mut longest) = (Instant::now(), 0);
    for number in 0..pairs {
        count(network, &frame(number, pairs));
    }
    for (number, &id) in routes.iter().enumerate() {
        if number > 0 && begin.elapsed() > bench.budget {
            break;
        }
        let start = thread_cpu_ns();
        let route = network.remove_route(id).ok_or_else(|| anyhow!("route {} is not there", id.0))?;
        let between = thread_cpu_ns();
        network.add_route(route)?;
        longest = longest.max(between - start).max(thread_cpu_ns() - between);
        for frame_number in 0..64 {
            count(network, &frame(number as u64 * 64 + frame_number, pairs));
        }
    }
    Ok(longest as f64 / 1e3)
}
