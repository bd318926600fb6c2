//! Measurements that can be repeated and give one number: the rows of the figures, and the cases beside them.
//!
//! ```text
//! run 1:  A B C   run 2:  A B C   …      interleaved, so that a machine that slows down slows all of them
//! ```

use std::rc::Rc;

use anyhow::{Context, Result, bail};

use crate::hosts::{self, HostPairs, WireSpec};
use crate::job::{Buffers, Wait, Work};
use crate::pair::{Bench, PairResult, Task};
use crate::path::Path;
use crate::sockets::StreamDaemon;
use crate::stats::{median, spread};

/// One measurement.
pub(crate) trait Case {
    /// Returns the path, the quantity, the size and the way to wait: `tcp.half_rtt.8b.sleep`.
    fn name(&self) -> String;

    /// The unit of the number; cases that are compared have the same.
    fn unit(&self) -> Unit;

    /// Measures once. An error is a failure; a program that this machine does not have is [`Reading::Unavailable`].
    fn run(&self, bench: &Bench) -> Result<Reading>;
}

/// The units of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// us
    Microseconds,
    /// ms
    Milliseconds,
    /// GB/s
    GigabytesPerSecond,
    /// Mmsg/s
    MegamessagesPerSecond,
    /// CPU time by what was carried.
    SecondsPerGigabyte,
    /// Updates of a table, in billions each second.
    GigaupdatesPerSecond,
    /// Gflop/s
    Gigaflops,
    /// req/s
    RequestsPerSecond,
}

impl Unit {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Microseconds => "us",
            Self::Milliseconds => "ms",
            Self::GigabytesPerSecond => "GB/s",
            Self::MegamessagesPerSecond => "Mmsg/s",
            Self::SecondsPerGigabyte => "s/GB",
            Self::GigaupdatesPerSecond => "GUP/s",
            Self::Gigaflops => "Gflop/s",
            Self::RequestsPerSecond => "req/s",
        }
    }

    /// Returns true for rates, of which more is better; times are better if they are short.
    pub(crate) const fn is_rate(self) -> bool {
        !matches!(self, Self::Microseconds | Self::Milliseconds | Self::SecondsPerGigabyte)
    }
}

/// The result of one run of a case.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reading {
    Value {
        value: f64,
        /// CPU time of all sides for each message, where messages were sent.
        cpu_ns_per_message: Option<f64>,
    },
    /// The reason that this machine cannot measure it.
    Unavailable(String),
}

impl Reading {
    pub(crate) const fn value(value: f64) -> Self {
        Self::Value { value, cpu_ns_per_message: None }
    }
}

/// Returns the reason of a row that needs a program which this machine does not have.
pub(crate) fn not_installed(program: &str, remedy: &str) -> String {
    format!("not installed: {program} ({remedy})")
}

/// The runs of one case.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Samples {
    pub(crate) values: Vec<f64>,
    pub(crate) cpu_ns_per_message: Vec<f64>,
    /// The reason that there are no values, or fewer than there should be.
    pub(crate) no_value: Option<NoValue>,
}

/// The reason that a case has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoValue {
    /// This machine does not have it.
    Unavailable(String),
    /// A failure of something that is installed.
    Failed(String),
}

impl Samples {
    pub(crate) fn median(&self) -> Option<f64> {
        median(&self.values)
    }

    pub(crate) fn spread(&self) -> Option<f64> {
        spread(&self.values)
    }

    pub(crate) fn cpu_ns_per_message(&self) -> Option<f64> {
        median(&self.cpu_ns_per_message)
    }

    fn take(&mut self, reading: Result<Reading>) {
        match reading {
            Ok(Reading::Value { value, cpu_ns_per_message }) => {
                self.values.push(value);
                self.cpu_ns_per_message.extend(cpu_ns_per_message);
            }
            Ok(Reading::Unavailable(why)) => self.no_value = Some(NoValue::Unavailable(why)),
            Err(error) => self.no_value = Some(NoValue::Failed(format!("{error:#}"))),
        }
    }
}

/// Runs all cases in turn, `bench.runs` times. A case that failed or is absent is not tried again. `progress` is called before each
/// run.
pub(crate) fn interleave(cases: &[&dyn Case], bench: &Bench, mut progress: impl FnMut(usize, &str)) -> Vec<Samples> {
    let mut samples = vec![Samples::default(); cases.len()];
    for run in 0..bench.runs {
        for (case, samples) in cases.iter().zip(&mut samples) {
            if samples.no_value.is_none() {
                progress(run, &case.name());
                samples.take(case.run(bench));
            }
        }
    }
    samples
}

/// A measurement of a pair of workers over a path: half a round trip, bandwidth or message rate.
#[derive(Clone, Debug)]
pub(crate) struct LinkCase {
    name: String,
    task: Task,
    quantity: Quantity,
    /// The hosts of its sides, if not both are on this one.
    two_hosts: Option<TwoHosts>,
    /// The factor by which it is measured longer than usual.
    time_factor: u32,
    /// The daemon of the path of sockets, if it is not the one that workers find.
    stream_daemon: Option<Rc<StreamDaemon>>,
}

/// Sides on different hosts.
#[derive(Clone, Debug)]
struct TwoHosts {
    host_pairs: Rc<HostPairs>,
    between: WireSpec,
    /// The number of pairs at once, in opposite directions by turns.
    pairs: usize,
}

/// The number that is taken from the results of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    HalfRtt,
    Bandwidth,
    Rate,
    /// Opening the path.
    Open,
    /// The whole of the first round trip.
    First,
    /// CPU time of all sides by what they carried.
    Cpu,
    /// Bytes of all pairs, from the first one's begin to the last one's end.
    Aggregate,
}

impl LinkCase {
    const fn new(name: String, task: Task, quantity: Quantity) -> Self {
        Self { name, task, quantity, two_hosts: None, time_factor: 1, stream_daemon: None }
    }

    /// Half a round trip of messages of this size.
    pub(crate) fn half_rtt(path: Path, wait: Wait, size: usize) -> Self {
        let name = format!("{}.half_rtt.{}.{}", path.name(), size_name(size), wait.name());
        Self::new(name, Task::plain(path, wait, Work::PingPong { size }), Quantity::HalfRtt)
    }

    /// Bytes each second in one direction.
    pub(crate) fn bandwidth(path: Path, wait: Wait, size: usize, buffers: Buffers) -> Self {
        let state = match buffers {
            Buffers::Warm => "warm",
            Buffers::Rewritten => "rewritten",
            Buffers::Cold => "cold",
        };
        let name = format!("{}.bandwidth.{}.{state}.{}", path.name(), size_name(size), wait.name());
        Self::new(name, Task::plain(path, wait, Work::Stream { size, buffers }), Quantity::Bandwidth)
    }

    /// Messages each second in one direction.
    pub(crate) fn rate(path: Path, wait: Wait, size: usize) -> Self {
        let name = format!("{}.rate.{}.{}", path.name(), size_name(size), wait.name());
        let work = Work::Stream { size, buffers: Buffers::Warm };
        Self::new(name, Task::plain(path, wait, work), Quantity::Rate)
    }

    /// Until one side is attached and its endpoint open.
    pub(crate) fn open(path: Path, wait: Wait) -> Self {
        let name = format!("{}.attach", path.name());
        Self::new(name, Task::plain(path, wait, Work::Open), Quantity::Open)
    }

    /// The first message of a new connection, there and back.
    pub(crate) fn first(path: Path, wait: Wait, size: usize) -> Self {
        let name = format!("{}.first_message.{}", path.name(), size_name(size));
        Self::new(name, Task::plain(path, wait, Work::First { size }), Quantity::First)
    }

    /// Gives each side namespaces of its own.
    pub(crate) fn isolated(mut self) -> Self {
        self.name.push_str(".isolated");
        self.task.isolated = true;
        self
    }

    /// Puts both sides on one CPU.
    pub(crate) fn on_one_cpu(mut self) -> Self {
        self.name.push_str(".one_cpu");
        self.task.one_cpu = true;
        self
    }

    /// Adds an option that this path understands.
    pub(crate) fn with_option(mut self, name: &str, value: &str) -> Self {
        self.name.push_str(&format!(".{name}={value}"));
        self.task.setup.options.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Puts the sides on two hosts.
    pub(crate) fn between(mut self, host_pairs: &Rc<HostPairs>, between: WireSpec) -> Self {
        self.name.push_str(&format!(".{}", between.name));
        self.two_hosts = Some(TwoHosts { host_pairs: Rc::clone(host_pairs), between, pairs: 1 });
        self
    }

    /// Measures CPU time per byte in place of bytes per time.
    pub(crate) fn cpu(mut self) -> Self {
        self.name = self.name.replace(".bandwidth.", ".cpu_per_gb.");
        self.quantity = Quantity::Cpu;
        self
    }

    /// Measures the bytes of `pairs` pairs at once between two hosts, in opposite directions by turns.
    pub(crate) fn aggregate(mut self, pairs: usize) -> Self {
        self.name.push_str(&format!(".{pairs}pairs"));
        if let Some(two_hosts) = &mut self.two_hosts {
            two_hosts.pairs = pairs;
        }
        self.quantity = Quantity::Aggregate;
        self
    }

    /// Measures `times` times longer than usual, because some paths take long to become steady.
    pub(crate) const fn with_time_factor(mut self, times: u32) -> Self {
        self.time_factor = times;
        self
    }

    /// Gives workers with the library of sockets this daemon.
    pub(crate) fn with_stream_daemon(mut self, daemon: &Rc<StreamDaemon>) -> Self {
        self.stream_daemon = Some(Rc::clone(daemon));
        self
    }

    /// Returns the results of its pairs; the inner error is the reason that this machine cannot measure it.
    fn measure(&self, bench: &Bench) -> Result<Result<Vec<PairResult>, String>> {
        let mut bench = Bench { budget: bench.budget * self.time_factor, ..bench.clone() };
        if let Some(daemon) = &self.stream_daemon {
            if let Some(why) = daemon.unavailable_reason(&bench) {
                return Ok(Err(why));
            }
            bench = daemon.bench(&bench)?;
        }
        let bench = &bench;
        let Some(TwoHosts { host_pairs, between, pairs }) = &self.two_hosts else {
            return Ok(Ok(vec![bench.pair(&self.task)?]));
        };
        if let Some(why) = hosts::unavailable_reason(self.task.path) {
            return Ok(Err(why));
        }
        let host_pair = match host_pairs.on(between)? {
            Ok(host_pair) => host_pair,
            Err(why) => return Ok(Err(why)),
        };
        let found = host_pair.pairs(bench, &self.task, *pairs, *pairs > 1);
        if found.is_err() {
            host_pairs.forget(between);
        }
        found.map(Ok)
    }

    /// Returns the number that is wanted.
    fn value(&self, all: &[PairResult]) -> Result<f64> {
        let found = all.first().context("one pair gives one result")?;
        let size = self.task.work.size() as f64;
        Ok(match self.quantity {
            Quantity::HalfRtt => found.half_rtt_us()?,
            Quantity::Bandwidth => found.rate()? * size / 1e9,
            Quantity::Rate => found.rate()? / 1e6,
            Quantity::First => 2.0 * found.half_rtt_us()?,
            Quantity::Open => found.lead.open_ns as f64 / 1e3,
            Quantity::Cpu => found.cpu_ns_per_message().context("nothing was sent")? / size, // ns a byte are s a GB.
            Quantity::Aggregate => {
                let messages: u64 = all.iter().map(|found| found.lead.messages).sum();
                messages as f64 * size / span_ns(all)? // Bytes a nanosecond are GB a second.
            }
        })
    }

    /// Returns true if the path can do this.
    pub(crate) fn is_supported(&self) -> bool {
        let knows = |option: &String| self.task.path.options().contains(&option.as_str());
        self.task.path.supports(self.task.work, self.task.setup.wait) && self.task.setup.options.keys().all(knows)
    }
}

impl Case for LinkCase {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn unit(&self) -> Unit {
        match self.quantity {
            Quantity::HalfRtt | Quantity::Open | Quantity::First => Unit::Microseconds,
            Quantity::Bandwidth | Quantity::Aggregate => Unit::GigabytesPerSecond,
            Quantity::Rate => Unit::MegamessagesPerSecond,
            Quantity::Cpu => Unit::SecondsPerGigabyte,
        }
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        if let Some(why) = self.task.path.unavailable_reason() {
            return Ok(Reading::Unavailable(why));
        }
        let found = match self.measure(bench)? {
            Ok(found) => found,
            Err(why) => return Ok(Reading::Unavailable(why)),
        };
        let each: Vec<f64> = found.iter().filter_map(PairResult::cpu_ns_per_message).collect();
        Ok(Reading::Value { value: self.value(&found)?, cpu_ns_per_message: median(&each) })
    }
}

/// From the begin of the first pair to the end of the last one.
fn span_ns(all: &[PairResult]) -> Result<f64> {
    let intervals = all.iter().map(PairResult::interval_ns).collect::<Option<Vec<_>>>();
    let intervals = intervals.context("a pair does not say when it was measured")?;
    let (begin, end) = (intervals.iter().map(|at| at.0).min(), intervals.iter().map(|at| at.1).max());
    let span = end.zip(begin).map_or(0, |(end, begin)| end.saturating_sub(begin));
    if span == 0 { bail!("the pairs took no time") } else { Ok(span as f64) }
}

/// `8b`, `4k`, `1m`: sizes as they stand in names.
pub(crate) fn size_name(size: usize) -> String {
    match size {
        0 => "0b".to_owned(),
        size if size % (1 << 20) == 0 => format!("{}m", size >> 20),
        size if size % (1 << 10) == 0 => format!("{}k", size >> 10),
        size => format!("{size}b"),
    }
}

#[cfg(test)]
mod tests;
