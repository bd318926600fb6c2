//! The measurements for a program that shows them to people: `isthmus try`.
//!
//! ```text
//! Session::start ─┬─ lower_bounds ── copies and the cache line, which nothing goes below
//!                 ├─ sweep ────────── each path at each size, in turns
//!                 ├─ hosts ────────── MX, bare frames and TCP from host to host, over a wire of our own
//!                 ├─ run_held_pair ── one pair that talks while the caller looks at it
//!                 └─ plot ─────────── the picture
//! ```
//!
//! Workers are the caller's own program, started again: it calls [`worker`] when its only argument is `worker`, [`run_bound`] when
//! the first is `run-bound`, and [`sweep`] when it is `remove-on-exit`.

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
use crate::machine::Machine;
use crate::pair::{Bench, Task};
use crate::pin::Placement;
use crate::plot;
use crate::sweep::{Sweep, measure_size};

pub use crate::daemon::PrivateDaemon;
pub use crate::job::Wait;
pub use crate::path::Path;
pub use crate::sweep::Point;
pub use crate::temp_folder::TempFolder;

/// One side of a pair: what a worker does.
pub fn worker() -> Result<()> {
    crate::worker::main()
}

/// Becomes another program that ends with its parent.
pub fn run_bound(command: &[OsString]) -> Result<()> {
    crate::worker::run_bound(command)
}

/// Waits for the end of standard input, and removes a [`TempFolder`].
pub fn sweep(folder: &std::path::Path) -> Result<()> {
    crate::temp_folder::sweep(folder)
}

/// How much the copies move at once.
const COPY_BYTES: usize = 1 << 20;

/// What all measurements have in common.
#[derive(Debug)]
pub struct Session {
    bench: Bench,
    machine: Machine,
}

/// How thorough to be.
#[derive(Clone, Copy, Debug)]
pub struct RunPlan {
    /// How often each measurement is repeated.
    pub runs: usize,
    /// How long the measured part of each takes.
    pub budget: Duration,
}

/// What to go through.
#[derive(Clone, Debug)]
pub struct SweepPlan {
    /// Over what.
    pub paths: Vec<Path>,
    /// How both sides wait.
    pub waits: Vec<Wait>,
    /// Bytes of a message.
    pub sizes: Vec<usize>,
}

/// A bound set by the machine, whatever goes over it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct LowerBound {
    /// Says what is measured.
    pub name: String,
    /// The median over the runs; none if it could not be measured.
    pub value: Option<f64>,
    /// The value's unit.
    pub unit: &'static str,
    /// Why there is no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What is measured between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Half a round trip of 8 bytes in microseconds, both sides looking without a pause.
    HalfRttPoll,
    /// The same, both sides sleeping until woken.
    HalfRttSleep,
    /// Messages of 1 MiB one way in GB/s, both sides sleeping.
    Bandwidth,
}

/// What came out between two hosts over one path.
#[derive(Clone, Debug, serde::Serialize)]
pub struct HostMeasurement {
    /// What was measured.
    pub quantity: Quantity,
    /// Over what.
    pub path: Path,
    /// Both, and how, in one word.
    pub name: String,
    /// The median over the runs; none if it could not be measured.
    pub value: Option<f64>,
    /// The value's unit.
    pub unit: &'static str,
    /// Why there is no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether it should have worked: `why` is more than that this machine does not have it.
    pub failed: bool,
}

impl Session {
    /// Chooses CPUs. `program` is the caller's own, `environment` what its workers are given beside its variables.
    pub fn start(program: PathBuf, environment: Vec<(OsString, OsString)>, effort: RunPlan) -> Result<Self> {
        let placement = Placement::choose(&[])?;
        let host_cpus = HostPlacement::usual(&placement).host_cpus(&placement)?;
        let machine = Machine::look(&placement, &host_cpus);
        let RunPlan { runs, budget } = effort;
        Ok(Self { bench: Bench { placement, host_cpus, budget, runs, quick: true, program, environment }, machine })
    }

    /// The machine in one paragraph.
    pub fn machine(&self) -> String {
        self.machine.describe()
    }

    /// The machine for programs.
    pub fn machine_json(&self) -> Result<serde_json::Value> {
        serde_json::to_value(&self.machine).context("cannot write the machine as JSON")
    }

    /// The bounds; `progress` is called [`Session::lower_bound_steps`] times.
    pub fn lower_bounds(&self, mut progress: impl FnMut(&str)) -> Vec<LowerBound> {
        let (one, cross) = (copy::OneCore { size: COPY_BYTES }, copy::CrossCore { size: COPY_BYTES });
        let cases: [&dyn Case; 3] = [&CacheLine, &one, &cross];
        let samples = interleave(&cases, &self.bench, |_, name| progress(name));
        cases.iter().zip(&samples).map(|(case, samples)| LowerBound::new(*case, samples)).collect()
    }

    /// How often `lower_bounds` speaks of progress.
    pub fn lower_bound_steps(&self) -> usize {
        3 * self.bench.runs
    }

    /// Goes through the plan; `progress` is called [`Session::sweep_steps`] times if nothing fails.
    pub fn sweep(&self, plan: &SweepPlan, mut progress: impl FnMut(&str)) -> Vec<Point> {
        let sweep = sweep_plan(plan);
        plan.sizes.iter().flat_map(|&size| measure_size(&sweep, size, &self.bench, &mut progress)).collect()
    }

    /// How often `sweep` speaks of progress.
    pub fn sweep_steps(&self, plan: &SweepPlan) -> usize {
        sweep_plan(plan).steps(self.bench.runs)
    }

    /// Makes two hosts and measures between them; `progress` is called [`Session::hosts_steps`] times if nothing fails. Where
    /// hosts may not be made, each measurement says why.
    pub fn hosts(&self, mut progress: impl FnMut(&str)) -> Vec<HostMeasurement> {
        let all = host_measurements();
        let cases: Vec<&dyn Case> = all.iter().map(|(_, _, case)| case as &dyn Case).collect();
        let samples = interleave(&cases, &self.bench, |_, name| progress(name));
        let told = all.iter().zip(&samples);
        told.map(|((quantity, path, case), samples)| {
            let LowerBound { name, value, unit, why } = LowerBound::new(case, samples);
            let failed = matches!(samples.no_value, Some(NoValue::Failed(_)));
            HostMeasurement { quantity: *quantity, path: *path, name, value, unit, why, failed }
        })
        .collect()
    }

    /// How often `hosts` speaks of progress.
    pub fn hosts_steps(&self) -> usize {
        host_measurements().len() * self.bench.runs
    }

    /// Two processes that play ping-pong over a path, long enough to find the best way they have even on a busy machine;
    /// `look` is called when they are done and still there.
    pub fn run_held_pair<T>(&self, path: Path, look: impl FnOnce() -> Result<T>) -> Result<T> {
        let bench = Bench { budget: self.bench.budget.max(HELD_PAIR_TIME), ..self.bench.clone() };
        bench.run_pair_held(&Task::plain(path, Wait::Sleep, crate::job::Work::PingPong { size: 8 }), look)
    }

    /// The points as an SVG picture.
    pub fn plot(&self, points: &[Point]) -> Result<String> {
        plot::draw(points, &self.machine.describe())
    }
}

/// How long two processes play that only want to be looked at.
const HELD_PAIR_TIME: Duration = Duration::from_millis(500);

fn sweep_plan(plan: &SweepPlan) -> Sweep {
    let SweepPlan { paths, waits, sizes } = plan.clone();
    Sweep { paths, waits, sizes, pairs: 1, svg: None }
}

/// What is measured between two hosts, over what, and how.
fn host_measurements() -> Vec<(Quantity, Path, LinkCase)> {
    let host_pairs = &Rc::new(HostPairs::default());
    let mut all = Vec::new();
    for (quantity, wait) in [(Quantity::HalfRttPoll, Wait::Poll), (Quantity::HalfRttSleep, Wait::Sleep)] {
        let there_and_back = |path| LinkCase::half_rtt(path, wait, 8).between(host_pairs, VETH);
        all.push((quantity, Path::Mx, there_and_back(Path::Mx)));
        all.push((quantity, Path::Raw, frame_there_and_back(wait, host_pairs)));
        all.push((quantity, Path::Tcp, there_and_back(Path::Tcp)));
    }
    let one_way = |path| goodput(path, Wait::Sleep, host_pairs, VETH);
    all.push((Quantity::Bandwidth, Path::Mx, one_way(Path::Mx)));
    all.push((Quantity::Bandwidth, Path::Raw, frames(Wait::Sleep, host_pairs, VETH)));
    all.push((Quantity::Bandwidth, Path::Tcp, one_way(Path::Tcp)));
    all
}

impl LowerBound {
    fn new(case: &dyn Case, samples: &Samples) -> Self {
        let why = samples.no_value.as_ref().map(|(NoValue::Unavailable(why) | NoValue::Failed(why))| why.clone());
        Self { name: case.name(), value: samples.median(), unit: case.unit().name(), why }
    }
}
