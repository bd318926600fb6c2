//! `isthmus-bench paths`: each path at each size, waiting each way, for one or several pairs at once.

use std::fs;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::job::{Buffers, Wait, Work};
use crate::machine::Machine;
use crate::pair::{Bench, PairResult, Task};
use crate::path::Path;
use crate::plot;
use crate::report::{Output, number, progress, ratio, six_digits, table};
use crate::stats::{Latencies, median, spread};

/// From nothing to 4 MiB.
pub(crate) const SIZES: [usize; 13] =
    [0, 8, 64, 128, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20];

/// The path that ratios are relative to.
const BASELINE: Path = Path::Tcp;

/// The paths, ways to wait and sizes of a sweep.
#[derive(Clone, Debug)]
pub(crate) struct Sweep {
    pub(crate) paths: Vec<Path>,
    pub(crate) waits: Vec<Wait>,
    pub(crate) sizes: Vec<usize>,
    pub(crate) pairs: usize,
    pub(crate) svg: Option<String>,
}

/// One path at one size: medians over the runs.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The path.
    pub path: Path,
    /// The way both sides waited.
    pub wait: Wait,
    /// Bytes of a message.
    pub size: usize,
    /// The number of pairs at the same time. Latencies are the median pair's, bandwidths and rates the sum.
    pub pairs: usize,
    /// Half a round trip: the median over batches.
    #[serde(serialize_with = "six_digits")]
    pub half_rtt_us: Option<f64>,
    /// Percentiles of round trips timed one by one, halved; the clock's own 10 to 15 ns are in them.
    #[serde(serialize_with = "six_digits")]
    pub p50_us: Option<f64>,
    /// See `p50_us`.
    #[serde(serialize_with = "six_digits")]
    pub p90_us: Option<f64>,
    /// See `p50_us`.
    #[serde(serialize_with = "six_digits")]
    pub p99_us: Option<f64>,
    /// See `p50_us`.
    #[serde(serialize_with = "six_digits")]
    pub p999_us: Option<f64>,
    /// See `p50_us`.
    #[serde(serialize_with = "six_digits")]
    pub max_us: Option<f64>,
    /// Bytes each second, in one direction.
    #[serde(serialize_with = "six_digits")]
    pub bandwidth_gb_s: Option<f64>,
    /// Messages each second, in one direction.
    #[serde(serialize_with = "six_digits")]
    pub rate_mmsg_s: Option<f64>,
    /// CPU time of both sides for each message of a ping-pong, and of a stream.
    #[serde(serialize_with = "six_digits")]
    pub ping_cpu_ns_per_message: Option<f64>,
    /// See `ping_cpu_ns_per_message`.
    #[serde(serialize_with = "six_digits")]
    pub stream_cpu_ns_per_message: Option<f64>,
    /// The path that the two ratios are of, waiting the same way.
    pub baseline: &'static str,
    /// The half round trip divided by the baseline's.
    #[serde(serialize_with = "six_digits")]
    pub half_rtt_ratio: Option<f64>,
    /// The bandwidth divided by the baseline's.
    #[serde(serialize_with = "six_digits")]
    pub bandwidth_ratio: Option<f64>,
    /// The number of runs that gave a value.
    pub runs: usize,
    /// (largest - smallest) / median of the runs.
    #[serde(serialize_with = "six_digits")]
    pub half_rtt_spread: Option<f64>,
    /// See `half_rtt_spread`.
    #[serde(serialize_with = "six_digits")]
    pub bandwidth_spread: Option<f64>,
    /// The reason of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The results of one path at one size so far.
#[derive(Default)]
struct Runs {
    half_rtt_us: Vec<f64>,
    rate: Vec<f64>,
    ping_cpu: Vec<f64>,
    stream_cpu: Vec<f64>,
    round_trips: Option<Latencies>,
    why: Option<String>,
}

impl Sweep {
    /// The paths and ways to wait that do a ping-pong or a stream of one size.
    fn combinations(&self, size: usize) -> Vec<(Path, Wait)> {
        let all = self.paths.iter().flat_map(|&path| self.waits.iter().map(move |&wait| (path, wait)));
        all.filter(|&(path, wait)| works(size).iter().any(|&work| path.supports(work, wait))).collect()
    }

    /// The number of calls of `progress` by `measure_size`, over all sizes, if nothing fails.
    pub(crate) fn steps(&self, runs: usize) -> usize {
        self.sizes.iter().map(|&size| self.combinations(size).len()).sum::<usize>() * runs
    }

    /// Returns true if there is anything to measure.
    pub(crate) fn is_supported(&self) -> bool {
        self.sizes.iter().any(|&size| !self.combinations(size).is_empty())
    }
}

/// Both works of one size.
fn works(size: usize) -> [Work; 2] {
    [Work::PingPong { size }, Work::Stream { size, buffers: Buffers::Warm }]
}

/// Measures all points; returns true if nothing failed.
pub(crate) fn measure(sweep: &Sweep, bench: &Bench, machine: &Machine, output: &mut Output) -> Result<bool> {
    output.text(&machine.describe())?;
    let mut points = Vec::new();
    for &size in &sweep.sizes {
        let at_this_size = measure_size(sweep, size, bench, &mut progress);
        for point in &at_this_size {
            output.line(point)?;
        }
        points.extend(at_this_size);
    }
    progress("");
    output.text(&format!("\n{}", describe(&points)))?;
    if let Some(file) = &sweep.svg {
        let drawn = plot::draw(&points, &machine.describe())?;
        fs::write(file, drawn).with_context(|| format!("cannot write {file}"))?;
    }
    Ok(points.iter().all(|point| point.why.is_none()))
}

/// Measures all paths at one size, in turns. `progress` is called before each run.
pub(crate) fn measure_size(sweep: &Sweep, size: usize, bench: &Bench, progress: &mut dyn FnMut(&str)) -> Vec<Point> {
    let ways = sweep.combinations(size);
    let mut all: Vec<Runs> = ways.iter().map(|_| Runs::default()).collect();
    for run in 0..bench.runs {
        for (&(path, wait), runs) in ways.iter().zip(&mut all).filter(|(_, runs)| runs.why.is_none()) {
            progress(&format!("{size} bytes, run {}: {} ({})", run + 1, path.name(), wait.name()));
            if let Err(error) = runs.measure(path, wait, size, sweep.pairs, bench) {
                runs.why = Some(format!("{error:#}"));
            }
        }
    }
    let mut points: Vec<Point> =
        ways.iter().zip(&all).map(|(&(path, wait), runs)| runs.point(path, wait, size, sweep.pairs)).collect();
    for index in 0..points.len() {
        let wait = points[index].wait;
        if let Some(base) = points.iter().find(|point| point.path == BASELINE && point.wait == wait) {
            let (half_rtt, bandwidth) = (base.half_rtt_us, base.bandwidth_gb_s);
            points[index].half_rtt_ratio = ratio(points[index].half_rtt_us, half_rtt);
            points[index].bandwidth_ratio = ratio(points[index].bandwidth_gb_s, bandwidth);
        }
    }
    points
}

impl Runs {
    fn measure(&mut self, path: Path, wait: Wait, size: usize, pairs: usize, bench: &Bench) -> Result<()> {
        for work in works(size).into_iter().filter(|&work| path.supports(work, wait)) {
            let found = bench.pairs(&Task::plain(path, wait, work), pairs)?;
            match work {
                Work::PingPong { .. } => self.add_ping_pongs(&found)?,
                _ => self.add_streams(&found)?,
            }
        }
        Ok(())
    }

    fn add_ping_pongs(&mut self, pings: &[PairResult]) -> Result<()> {
        let halves = pings.iter().map(PairResult::half_rtt_us).collect::<Result<Vec<_>>>()?;
        self.half_rtt_us.extend(median(&halves));
        self.ping_cpu.extend(pings.iter().filter_map(PairResult::cpu_ns_per_message));
        let latencies = self.round_trips.get_or_insert_with(Latencies::new);
        pings.iter().filter_map(|found| found.lead.round_trips.as_ref()).for_each(|recorded| latencies.add(recorded));
        Ok(())
    }

    fn add_streams(&mut self, streams: &[PairResult]) -> Result<()> {
        self.rate.push(streams.iter().map(PairResult::rate).sum::<Result<f64>>()?);
        self.stream_cpu.extend(streams.iter().filter_map(PairResult::cpu_ns_per_message));
        Ok(())
    }

    fn point(&self, path: Path, wait: Wait, size: usize, pairs: usize) -> Point {
        // Round trips in nanoseconds to half round trips in microseconds.
        let percentiles = self.round_trips.as_ref().and_then(|latencies| latencies.percentiles(2000.0));
        let rate = median(&self.rate);
        Point {
            path,
            wait,
            size,
            pairs,
            half_rtt_us: median(&self.half_rtt_us),
            p50_us: percentiles.map(|at| at.p50),
            p90_us: percentiles.map(|at| at.p90),
            p99_us: percentiles.map(|at| at.p99),
            p999_us: percentiles.map(|at| at.p999),
            max_us: percentiles.map(|at| at.max),
            bandwidth_gb_s: rate.map(|rate| rate * size as f64 / 1e9),
            rate_mmsg_s: rate.map(|rate| rate / 1e6),
            ping_cpu_ns_per_message: median(&self.ping_cpu),
            stream_cpu_ns_per_message: median(&self.stream_cpu),
            baseline: BASELINE.name(),
            half_rtt_ratio: None,
            bandwidth_ratio: None,
            runs: self.rate.len().max(self.half_rtt_us.len()),
            half_rtt_spread: spread(&self.half_rtt_us),
            bandwidth_spread: spread(&self.rate),
            why: self.why.clone(),
        }
    }
}

fn describe(points: &[Point]) -> String {
    let head = [
        "path",
        "wait",
        "bytes",
        "half rtt us",
        "p50",
        "p99",
        "p99.9",
        "x tcp",
        "GB/s",
        "x tcp",
        "Mmsg/s",
        "cpu ns/msg",
    ];
    let rows: Vec<Vec<String>> = points
        .iter()
        .map(|point| {
            vec![
                point.path.name().to_owned(),
                point.wait.name().to_owned(),
                point.size.to_string(),
                number(point.half_rtt_us),
                number(point.p50_us),
                number(point.p99_us),
                number(point.p999_us),
                number(point.half_rtt_ratio),
                number(point.bandwidth_gb_s),
                number(point.bandwidth_ratio),
                number(point.rate_mmsg_s),
                number(point.stream_cpu_ns_per_message),
            ]
        })
        .collect();
    let mut text = table(&head, &rows);
    for point in points {
        if let Some(why) = &point.why {
            text.push_str(&format!(
                "\n{} {} {} bytes: failed: {why}",
                point.path.name(),
                point.wait.name(),
                point.size
            ));
        }
    }
    text
}
