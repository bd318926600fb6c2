//! The measurements of `isthmus try`.
//!
//! ```text
//! Session::start ─┬─ lower_bounds ── copies and the cache line
//!                 ├─ sweep ────────── each path of ROWS at each size, interleaved
//!                 ├─ hosts ────────── MX, bare frames and TCP between two hosts, over a wire made for this run
//!                 ├─ redis ────────── redis-benchmark over TCP and over sockets
//!                 ├─ perftest ─────── ib_send_lat and ib_write_lat on the virtual RDMA device
//!                 ├─ tunnels ──────── iperf3 between containers on two hosts
//!                 ├─ run_held_pair ── one pair that stays connected while the caller queries its daemon
//!                 └─ plot ─────────── the picture
//! ```
//!
//! Workers are the caller's own program, started again: the program calls [`worker`] when its only argument is `worker`,
//! [`run_bound`] when the first is `run-bound`, and [`sweep`] when it is `remove-on-exit`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::baseline::{CacheLine, copy};
use crate::case::{Case, LinkCase, NoValue, Samples, interleave};
use crate::cpu_placement::HostPlacement;
use crate::figures::wire::{VETH, frame_there_and_back, frames, goodput};
use crate::hosts::HostPairs;
use crate::job::Work;
use crate::load::redis::RedisGet;
use crate::load::{Served, Transport};
use crate::machine::Machine;
use crate::overlay;
use crate::pair::{Bench, Task};
use crate::pin::Placement;
use crate::plot;
use crate::sweep::{Sweep, measure_size};
use crate::verbs::Perftest;

pub use crate::daemon::PrivateDaemon;
pub use crate::job::Wait;
pub use crate::path::Path;
pub use crate::sweep::Point;
pub use crate::temp_folder::TempFolder;

/// The paths that `isthmus try` shows: a list for each capability, and last the baselines that every program has.
pub const ROWS: [&[Path]; 3] = [&[Path::Isthmus], &[Path::Mx], &[Path::Tcp, Path::Unix, Path::Pipe]];

/// Bytes that each copy of [`Session::lower_bounds`] moves at once.
pub const COPY_BYTES: usize = 1 << 20;

/// Runs one side of a pair: the work of a worker.
pub fn worker() -> Result<()> {
    crate::worker::main()
}

/// Becomes another program that ends with its parent.
pub fn run_bound(command: &[OsString]) -> Result<()> {
    crate::worker::run_bound(command)
}

/// Waits for the end of standard input, then removes a [`TempFolder`].
pub fn sweep(folder: &std::path::Path) -> Result<()> {
    crate::temp_folder::sweep(folder)
}

/// Returns how a program waits on this path if it chooses nothing.
pub const fn default_wait(path: Path) -> Wait {
    if path.supports(Work::PingPong { size: 8 }, Wait::Adaptive) { Wait::Adaptive } else { Wait::Sleep }
}

/// The machine and the settings that all measurements share.
#[derive(Debug)]
pub struct Session {
    bench: Bench,
    machine: Machine,
}

/// The effort of a session.
#[derive(Clone, Copy, Debug)]
pub struct RunPlan {
    /// The number of times that each measurement is repeated.
    pub runs: usize,
    /// The duration of the measured part of each run.
    pub budget: Duration,
}

/// The measurements of a sweep.
#[derive(Clone, Debug)]
pub struct SweepPlan {
    /// The paths to measure.
    pub paths: Vec<Path>,
    /// The ways in which both sides wait; a path leaves out those that it does not have.
    pub waits: Vec<Wait>,
    /// Bytes of a message.
    pub sizes: Vec<usize>,
}

/// A bound that the machine sets, whatever the path.
#[derive(Clone, Debug, serde::Serialize)]
pub struct LowerBound {
    /// The name of the measurement.
    pub name: String,
    /// The median over the runs; none if there is no measurement.
    pub value: Option<f64>,
    /// The unit of `value`.
    pub unit: &'static str,
    /// The reason why there is no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A quantity that is measured between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Half a round trip of 8 bytes in microseconds, both sides polling.
    HalfRttPoll,
    /// Half a round trip of 8 bytes in microseconds, both sides sleeping.
    HalfRttSleep,
    /// Messages of 1 MiB one way in GB/s, both sides sleeping.
    Bandwidth,
}

/// One measurement between two hosts over one path.
#[derive(Clone, Debug, serde::Serialize)]
pub struct HostMeasurement {
    /// The quantity that was measured.
    pub quantity: Quantity,
    /// The path that was measured.
    pub path: Path,
    /// Path, quantity, size and wait in one word.
    pub name: String,
    /// The median over the runs; none if there is no measurement.
    pub value: Option<f64>,
    /// The unit of `value`.
    pub unit: &'static str,
    /// The reason why there is no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether the measurement should have worked: `why` says more than that this machine does not have the path.
    pub failed: bool,
}

/// The rate of `redis-benchmark` over one transport.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RedisRate {
    /// The transport and the command.
    pub name: String,
    /// The median of the requests each second; none if there is no measurement.
    pub requests_per_s: Option<f64>,
    /// The reason why there is no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether the measurement should have worked.
    pub failed: bool,
}

/// The rates of Redis.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RedisRates {
    /// Both programs use the kernel's TCP.
    pub tcp: RedisRate,
    /// Both programs have the library of sockets.
    pub sockets: RedisRate,
}

/// Half a round trip of one program of perftest.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PerftestTime {
    /// The program.
    pub program: &'static str,
    /// The median over the runs in microseconds; none if there is no measurement.
    pub half_rtt_us: Option<f64>,
    /// The reason why there is no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether the measurement should have worked.
    pub failed: bool,
}

/// The rate of iperf3 between containers on two hosts, through one tunnel.
#[derive(Clone, Debug, serde::Serialize)]
pub struct TunnelRate {
    /// The program, the tunnel and the wire.
    pub name: String,
    /// The median in GB/s; none if there is no measurement.
    pub bandwidth: Option<f64>,
    /// The reason why there is no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether the measurement should have worked.
    pub failed: bool,
}

/// The rates of two tunnels.
#[derive(Clone, Debug, serde::Serialize)]
pub struct TunnelRates {
    /// Isthmus: a *fast* edge.
    pub fast: TunnelRate,
    /// VXLAN devices of the kernel.
    pub kernel_vxlan: TunnelRate,
}

/// The programs of perftest that are measured.
pub const PERFTESTS: [&str; 2] = ["ib_write_lat", "ib_send_lat"];

impl Session {
    /// Chooses CPUs. `program` is the caller's own; its workers get `environment` in addition to the caller's variables.
    pub fn start(program: PathBuf, environment: Vec<(OsString, OsString)>, effort: RunPlan) -> Result<Self> {
        let placement = Placement::choose(&[])?;
        let host_cpus = HostPlacement::usual(&placement).host_cpus(&placement)?;
        let machine = Machine::look(&placement, &host_cpus);
        let RunPlan { runs, budget } = effort;
        Ok(Self { bench: Bench { placement, host_cpus, budget, runs, quick: true, program, environment }, machine })
    }

    /// Describes the machine in one paragraph.
    pub fn machine(&self) -> String {
        self.machine.describe()
    }

    /// Describes the machine for programs.
    pub fn machine_json(&self) -> Result<serde_json::Value> {
        serde_json::to_value(&self.machine).context("cannot write the machine as JSON")
    }

    /// Measures the bounds; calls `progress` [`Session::lower_bound_steps`] times.
    pub fn lower_bounds(&self, mut progress: impl FnMut(&str)) -> Vec<LowerBound> {
        let (one, cross) = (copy::OneCore { size: COPY_BYTES }, copy::CrossCore { size: COPY_BYTES });
        let cases: [&dyn Case; 3] = [&CacheLine, &one, &cross];
        let samples = interleave(&cases, &self.bench, |_, name| progress(name));
        cases.iter().zip(&samples).map(|(case, samples)| LowerBound::new(*case, samples)).collect()
    }

    /// Returns the number of calls of `progress` by `lower_bounds`.
    pub fn lower_bound_steps(&self) -> usize {
        3 * self.bench.runs
    }

    /// Measures all points of the plan; calls `progress` [`Session::sweep_steps`] times if nothing fails.
    pub fn sweep(&self, plan: &SweepPlan, mut progress: impl FnMut(&str)) -> Vec<Point> {
        let sweep = sweep_plan(plan);
        plan.sizes.iter().flat_map(|&size| measure_size(&sweep, size, &self.bench, &mut progress)).collect()
    }

    /// Returns the number of calls of `progress` by `sweep`.
    pub fn sweep_steps(&self, plan: &SweepPlan) -> usize {
        sweep_plan(plan).steps(self.bench.runs)
    }

    /// Makes two hosts and measures between them; calls `progress` [`Session::hosts_steps`] times if nothing fails. Where hosts
    /// cannot be made, each measurement says why.
    pub fn hosts(&self, mut progress: impl FnMut(&str)) -> Vec<HostMeasurement> {
        let all = host_measurements();
        let cases: Vec<&dyn Case> = all.iter().map(|(_, _, case)| case as &dyn Case).collect();
        let samples = interleave(&cases, &self.bench, |_, name| progress(name));
        let measured = all.iter().zip(&samples);
        measured
            .map(|((quantity, path, case), samples)| {
                let LowerBound { name, value, unit, why } = LowerBound::new(case, samples);
                let failed = matches!(samples.no_value, Some(NoValue::Failed(_)));
                HostMeasurement { quantity: *quantity, path: *path, name, value, unit, why, failed }
            })
            .collect()
    }

    /// Returns the number of calls of `progress` by `hosts`.
    pub fn hosts_steps(&self) -> usize {
        host_measurements().len() * self.bench.runs
    }

    /// Measures Redis; calls `progress` [`Session::redis_steps`] times if nothing fails.
    pub fn redis(&self, mut progress: impl FnMut(&str)) -> RedisRates {
        let daemon = Rc::default();
        let cases = [Transport::Tcp, Transport::Sockets]
            .map(|transport| Served::new(RedisGet { clients: 50, pipeline: 1 }, transport, &daemon));
        let samples =
            interleave(&cases.each_ref().map(|case| case as &dyn Case), &self.bench, |_, name| progress(name));
        let rate = |at: usize| {
            let LowerBound { name, value, why, .. } = LowerBound::new(&cases[at], &samples[at]);
            let failed = matches!(samples[at].no_value, Some(NoValue::Failed(_)));
            RedisRate { name, requests_per_s: value, why, failed }
        };
        RedisRates { tcp: rate(0), sockets: rate(1) }
    }

    /// Returns the number of calls of `progress` by `redis`.
    pub fn redis_steps(&self) -> usize {
        2 * self.bench.runs
    }

    /// Measures each of [`PERFTESTS`]; calls `progress` [`Session::perftest_steps`] times if nothing fails.
    pub fn perftest(&self, mut progress: impl FnMut(&str)) -> Vec<PerftestTime> {
        let bench = Bench { budget: PERFTEST_TIME, ..self.bench.clone() };
        let device = Rc::default();
        let cases = PERFTESTS.map(|program| Perftest::latency(&device, program, 8));
        let samples = interleave(&cases.each_ref().map(|case| case as &dyn Case), &bench, |_, name| progress(name));
        let time = |((program, case), samples): ((&'static str, &Perftest), &Samples)| {
            let LowerBound { value, why, .. } = LowerBound::new(case, samples);
            let failed = matches!(samples.no_value, Some(NoValue::Failed(_)));
            PerftestTime { program, half_rtt_us: value, why, failed }
        };
        PERFTESTS.into_iter().zip(&cases).zip(&samples).map(time).collect()
    }

    /// Returns the number of calls of `progress` by `perftest`.
    pub fn perftest_steps(&self) -> usize {
        PERFTESTS.len() * self.bench.runs
    }

    /// Measures tunnels between containers; calls `progress` [`Session::tunnels_steps`] times if nothing fails.
    pub fn tunnels(&self, mut progress: impl FnMut(&str)) -> TunnelRates {
        let bench = Bench { runs: self.tunnel_runs(), ..self.bench.clone() };
        let cases = overlay::trial();
        let samples = interleave(&cases.each_ref().map(|case| case as &dyn Case), &bench, |_, name| progress(name));
        let rate = |at: usize| {
            let LowerBound { name, value, why, .. } = LowerBound::new(&cases[at], &samples[at]);
            let failed = matches!(samples[at].no_value, Some(NoValue::Failed(_)));
            TunnelRate { name, bandwidth: value, why, failed }
        };
        TunnelRates { fast: rate(0), kernel_vxlan: rate(1) }
    }

    /// Returns the number of calls of `progress` by `tunnels`.
    pub fn tunnels_steps(&self) -> usize {
        2 * self.tunnel_runs()
    }

    /// Each run takes a second, the least of iperf3.
    fn tunnel_runs(&self) -> usize {
        self.bench.runs.min(2)
    }

    /// Runs two processes that play ping-pong over a path, long enough to find their best path even on a busy machine. Calls
    /// `look` when both are done and still connected.
    pub fn run_held_pair<T>(&self, path: Path, look: impl FnOnce() -> Result<T>) -> Result<T> {
        let bench = Bench { budget: self.bench.budget.max(HELD_PAIR_TIME), ..self.bench.clone() };
        bench.run_pair_held(&Task::plain(path, Wait::Sleep, Work::PingPong { size: 8 }), look)
    }

    /// Draws the points as an SVG picture.
    pub fn plot(&self, points: &[Point]) -> Result<String> {
        plot::draw(points, &self.machine.describe())
    }
}

/// The duration of the ping-pong of [`Session::run_held_pair`].
const HELD_PAIR_TIME: Duration = Duration::from_millis(500);

/// The duration of a run of [`Session::perftest`] on a quiet machine: 10,000 messages, which a busy machine sends in time too.
const PERFTEST_TIME: Duration = Duration::from_millis(4);

fn sweep_plan(plan: &SweepPlan) -> Sweep {
    let SweepPlan { paths, waits, sizes } = plan.clone();
    Sweep { paths, waits, sizes, pairs: 1, svg: None }
}

/// Lists the measurements between two hosts.
fn host_measurements() -> Vec<(Quantity, Path, LinkCase)> {
    let host_pairs = &Rc::new(HostPairs::default());
    let mut all = Vec::new();
    for (quantity, wait) in [(Quantity::HalfRttPoll, Wait::Poll), (Quantity::HalfRttSleep, Wait::Sleep)] {
        let there_and_back = |path| (quantity, path, LinkCase::half_rtt(path, wait, 8).between(host_pairs, VETH));
        all.push(there_and_back(Path::Mx));
        all.push((quantity, Path::Raw, frame_there_and_back(wait, host_pairs)));
        all.push(there_and_back(Path::Tcp));
    }
    let one_way = |path| (Quantity::Bandwidth, path, goodput(path, Wait::Sleep, host_pairs, VETH));
    all.push(one_way(Path::Mx));
    all.push((Quantity::Bandwidth, Path::Raw, frames(Wait::Sleep, host_pairs, VETH)));
    all.push(one_way(Path::Tcp));
    all
}

impl LowerBound {
    fn new(case: &dyn Case, samples: &Samples) -> Self {
        let why = samples.no_value.as_ref().map(|(NoValue::Unavailable(why) | NoValue::Failed(why))| why.clone());
        Self { name: case.name(), value: samples.median(), unit: case.unit().name(), why }
    }
}
