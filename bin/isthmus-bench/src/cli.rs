//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory, Parser, Subcommand};
use isthmus_link::raw::RAW_MESSAGE_BYTES;

use crate::baseline;
use crate::case::{Case, LinkCase, NoValue, interleave};
use crate::cpu_placement::HostPlacement;
use crate::figures;
use crate::hosts::{HostPairs, LinkKind, WireSpec};
use crate::job::{Buffers, Wait};
use crate::machine::Machine;
use crate::pair::Bench;
use crate::path::Path;
use crate::pin::{Placement, parse_list};
use crate::report::{Figure, Output, figures_table, progress};
use crate::sweep::{self, SIZES, Sweep};
use crate::temp_folder;
use crate::worker;

/// Measures how fast messages go between processes, beside what they can be compared with.
///
/// Both ends are processes of their own, each pinned to its core. Cases that are compared run in turns in one run; values are
/// medians over the runs. Nothing here decides whether a figure is good enough.
///
/// Results go to standard output: a table, or with `--json -` one JSON object a line. Exit status: 0 all measured, 1 something
/// failed (the rest is printed all the same), 2 wrong usage.
#[derive(Parser)]
#[command(name = "isthmus-bench", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Figures(FiguresArgs),
    Baselines(BaselinesArgs),
    Paths(PathsArgs),
    Raw(RawArgs),
    /// One side of a measurement; started by isthmus-bench itself.
    #[command(hide = true)]
    Worker,
    /// Removes a folder when standard input ends; started by isthmus-bench itself.
    #[command(hide = true)]
    RemoveOnExit {
        folder: PathBuf,
    },
    /// Another program that ends with isthmus-bench; started by isthmus-bench itself.
    #[command(hide = true)]
    RunBound {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
}

/// Options of every measurement.
#[derive(Args)]
struct CommonArgs {
    /// Write JSON objects, one a line, to this file; `-` for standard output, which then has no table.
    #[arg(long, value_name = "FILE")]
    json: Option<String>,

    /// Fewer and shorter runs, to see that it works. Do not quote their results.
    #[arg(long)]
    quick: bool,

    /// The number of runs of each measurement [default: 5, of paths 3, with --quick 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,

    /// The measured part of each run, in milliseconds [default: 300, with --quick 60].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    run_ms: Option<u64>,

    /// Pin the sides to these CPUs in turn, as in `0,2` [default: one of each core].
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    cpus: Option<Cpus>,

    /// The placement of programs and daemons of two hosts: `together`, one CPU for each host; `crossed`, a daemon on the CPU of
    /// the other host's programs; `apart`, a CPU for each; `free` [default: apart, with less than four CPUs together].
    #[arg(long, value_enum, value_name = "HOW")]
    placement: Option<HostPlacement>,
}

/// The figures of docs/performance.md, each beside its peers and its floor.
///
/// The first line of JSON is the run: command, date, machine. Each other line is a row: name, value, unit, baseline (the best peer),
/// baseline_value, ratio (value divided by baseline_value), floor, floor_value, floor_ratio, target, runs, spread ((largest -
/// smallest) / median). All cases of a row are measured in turns.
#[derive(Args)]
struct FiguresArgs {
    /// Only the row of this name, or all rows that begin with it and a dot; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// List the names of the rows and measure nothing.
    #[arg(long)]
    list: bool,

    /// Measure another path in place of isthmus, to see the same rows for it.
    #[arg(long, value_enum, value_name = "PATH")]
    path: Option<Path>,

    #[command(flatten)]
    common: CommonArgs,
}

/// Cases that Isthmus is compared with: copies, cache lines, sockets, pipes, process_vm_readv, UCX, MPIs.
///
/// A program that is not installed has no value, and the reason stands below the table.
#[derive(Args)]
struct BaselinesArgs {
    /// Only the baseline of this name, or all that begin with it and a dot; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// List the names of the baselines and measure nothing.
    #[arg(long)]
    list: bool,

    /// The bytes that copies within a core and between cores move at once.
    #[arg(long, value_name = "BYTES", default_value = "1m", value_parser = size)]
    copy_size: usize,

    #[command(flatten)]
    common: CommonArgs,
}

/// Latency percentiles, bandwidth, message rate and CPU time by message size, for each path.
///
/// `half rtt` is the median over batches of round trips; the percentiles are of round trips timed one by one, halved. Bandwidth
/// and rate are of a stream in one direction, CPU time is of both sides together.
#[derive(Args)]
struct PathsArgs {
    /// Paths to measure [default: isthmus, installed capabilities, tcp, unix, pipe].
    #[arg(long = "path", value_enum, value_name = "PATH", value_delimiter = ',')]
    paths: Vec<Path>,

    /// Ways to wait.
    #[arg(long = "wait", value_enum, value_name = "WAIT", value_delimiter = ',', default_values = ["poll", "sleep"])]
    waits: Vec<Wait>,

    /// Message sizes, as in `0,8,4k,1m` [default: 13 sizes from 0 to 4m].
    #[arg(long = "size", value_name = "BYTES", value_delimiter = ',', value_parser = size)]
    sizes: Vec<usize>,

    /// The number of pairs of processes that do the same at the same time.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=256))]
    pairs: u16,

    /// Draw latency and bandwidth by size into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<String>,

    #[command(flatten)]
    common: CommonArgs,
}

/// Bare frames between two hosts: the speed of a link, by the system calls of the daemon and without any protocol.
///
/// Two hosts are made on this machine (network namespaces, which need root), with a veth pair between them. Frames go one way,
/// with a window of them under way, and there and back one by one. Bandwidth counts whole frames, from the Ethernet header on.
#[derive(Args)]
struct RawArgs {
    /// Send UDP datagrams, one for each frame, in place of packet sockets.
    #[arg(long)]
    udp: bool,

    /// Leave the veth pair its offloads: datagrams cross in pieces of up to 64 KB.
    #[arg(long)]
    offloads: bool,

    /// The MTU of the wire.
    #[arg(long, value_name = "BYTES", default_value = "9000", value_parser = clap::value_parser!(u32).range(576..=65_000))]
    mtu: u32,

    /// Bytes of a frame [default: of streams as many as the MTU allows, of round trips 60].
    #[arg(long, value_name = "BYTES", value_parser = size)]
    size: Option<usize>,

    /// Poll without a pause [default: both ways to wait].
    #[arg(long, conflicts_with = "sleep")]
    poll: bool,

    /// Sleep until woken.
    #[arg(long)]
    sleep: bool,

    #[command(flatten)]
    common: CommonArgs,
}

/// The value of `--cpus`. (A type of its own, because clap takes a plain `Vec` for an option that may be repeated.)
#[derive(Clone)]
struct Cpus(Vec<usize>);

/// The end of a command, if not by an error of the machine.
enum Ended {
    Complete,
    Incomplete,
    UsageError(String),
}

/// The whole program.
pub fn main() -> ExitCode {
    let ended = match Cli::parse().verb {
        Verb::Figures(args) => args.run(),
        Verb::Baselines(args) => args.run(),
        Verb::Paths(args) => args.run(),
        Verb::Raw(args) => args.run(),
        Verb::RemoveOnExit { folder } => temp_folder::sweep(&folder).map(|()| Ended::Complete),
        Verb::Worker => worker::main().map(|()| Ended::Complete),
        Verb::RunBound { command } => worker::run_bound(&command).map(|()| Ended::Complete),
    };
    match ended {
        Ok(Ended::Complete) => ExitCode::SUCCESS,
        Ok(Ended::Incomplete) => ExitCode::from(1),
        Ok(Ended::UsageError(how)) => Cli::command().error(clap::error::ErrorKind::InvalidValue, how).exit(),
        Err(error) => {
            eprintln!("isthmus-bench: {error:#}");
            ExitCode::from(1)
        }
    }
}

impl FiguresArgs {
    fn run(self) -> Result<Ended> {
        let Some(path) = self.path.or(Path::ISTHMUS) else {
            return Ok(Ended::UsageError("this build has no isthmus path; name another one with --path".to_owned()));
        };
        let rows = match figures::select(figures::rows(path), &self.only) {
            Ok(rows) => rows,
            Err(how) => return Ok(Ended::UsageError(how)),
        };
        let (bench, machine, mut output) = self.common.prepare(5)?;
        if self.list {
            let names: Vec<_> = rows.iter().map(|row| row.name).collect();
            return output.text(&names.join("\n")).map(|()| Ended::Complete);
        }
        figures::measure(&rows, &bench, &machine.describe(), &mut output).map(ended)
    }
}

impl BaselinesArgs {
    fn run(self) -> Result<Ended> {
        let wanted = |name: &str| self.only.is_empty() || self.only.iter().any(|only| figures::matches(name, only));
        let mut cases = baseline::all(self.copy_size);
        cases.retain(|case| wanted(&case.name()));
        if cases.is_empty() {
            return Ok(Ended::UsageError("there is no such baseline; --list names them".to_owned()));
        }
        let (bench, machine, mut output) = self.common.prepare(5)?;
        if self.list {
            let names: Vec<_> = cases.iter().map(|case| case.name()).collect();
            return output.text(&names.join("\n")).map(|()| Ended::Complete);
        }
        let cases: Vec<&dyn Case> = cases.iter().map(|case| &**case).collect();
        measure_alone(&cases, &bench, &machine, &mut output)
    }
}

impl RawArgs {
    fn run(self) -> Result<Ended> {
        let link_kind = if self.udp { LinkKind::Udp } else { LinkKind::Packet };
        let Self { mtu, offloads, .. } = self;
        let between = WireSpec { name: "veth", mtu, offloads, conditions: None, link_kind, silent_links: 0 };
        let most = between.frame_bytes();
        if self.size.is_some_and(|size| !(RAW_MESSAGE_BYTES..=most).contains(&size)) {
            return Ok(Ended::UsageError(format!("a frame has {RAW_MESSAGE_BYTES} to {most} bytes at this MTU")));
        }
        let waits: &[Wait] = match (self.poll, self.sleep) {
            (true, _) => &[Wait::Poll],
            (_, true) => &[Wait::Sleep],
            _ => &[Wait::Poll, Wait::Sleep],
        };
        let (bench, machine, mut output) = self.common.prepare(5)?;
        let path = if self.udp { Path::RawUdp } else { Path::Raw };
        let host_pairs = Rc::new(HostPairs::default());
        let mut cases = Vec::new();
        for &wait in waits {
            let (stream, ping) = (self.size.unwrap_or(most), self.size.unwrap_or(RAW_MESSAGE_BYTES));
            cases.push(LinkCase::bandwidth(path, wait, stream, Buffers::Warm).between(&host_pairs, between));
            cases.push(LinkCase::half_rtt(path, wait, ping).between(&host_pairs, between));
        }
        let cases: Vec<&dyn Case> = cases.iter().map(|case| case as &dyn Case).collect();
        measure_alone(&cases, &bench, &machine, &mut output)
    }
}

/// Measures cases that stand alone, in turns, and prints all of them.
fn measure_alone(cases: &[&dyn Case], bench: &Bench, machine: &Machine, output: &mut Output) -> Result<Ended> {
    let samples = interleave(cases, bench, |run, name| progress(&format!("run {} of {}: {name}", run + 1, bench.runs)));
    progress("");
    let named = cases.iter().zip(&samples);
    let rows: Vec<_> = named.map(|(case, samples)| Figure::new(case.name(), case.unit(), samples)).collect();
    for row in &rows {
        output.line(row)?;
    }
    output.text(&format!("{}\n\n{}", machine.describe(), figures_table(&rows)))?;
    Ok(ended(!samples.iter().any(|samples| matches!(samples.no_value, Some(NoValue::Failed(_))))))
}

impl PathsArgs {
    fn run(self) -> Result<Ended> {
        let (bench, machine, mut output) = self.common.prepare(3)?;
        let default_paths = || Path::USUAL.into_iter().filter(|path| path.unavailable_reason().is_none()).collect();
        let sweep = Sweep {
            paths: if self.paths.is_empty() { default_paths() } else { self.paths },
            waits: self.waits,
            sizes: if self.sizes.is_empty() { SIZES.to_vec() } else { self.sizes },
            pairs: usize::from(self.pairs),
            svg: self.svg,
        };
        if !sweep.is_supported() {
            return Ok(Ended::UsageError("none of these paths can do this at any of these sizes".to_owned()));
        }
        sweep::measure(&sweep, &bench, &machine, &mut output).map(ended)
    }
}

impl CommonArgs {
    fn prepare(&self, runs: u16) -> Result<(Bench, Machine, Output)> {
        let asked = self.cpus.as_ref().map_or(&[][..], |cpus| &cpus.0);
        let placement = Placement::choose(asked)?;
        let bench = Bench {
            host_cpus: self.placement.unwrap_or_else(|| HostPlacement::usual(&placement)).host_cpus(&placement)?,
            placement,
            budget: Duration::from_millis(self.run_ms.unwrap_or(if self.quick { 60 } else { 300 })),
            runs: usize::from(self.runs.unwrap_or(if self.quick { runs.min(3) } else { runs })),
            quick: self.quick,
            program: std::env::current_exe().context("cannot find this program, to start it again as a worker")?,
            // For the daemon, if one of the workers is the one that starts it: a thousand idle peers are one user's domains.
            environment: vec![("ISTHMUS_DAEMON_LIMITS_DOMAINS_PER_USER_MAX".into(), "2048".into())],
        };
        let machine = Machine::look(&bench.placement, &bench.host_cpus);
        let output = Output::new(self.json.as_deref(), &machine)?;
        Ok((bench, machine, output))
    }
}

fn ended(complete: bool) -> Ended {
    if complete { Ended::Complete } else { Ended::Incomplete }
}

fn cpus(text: &str) -> Result<Cpus, String> {
    parse_list(text).map(Cpus).ok_or_else(|| "not a list of CPUs such as 0,2 or 0-3".to_owned())
}

/// Reads `8`, `4k`, `1m`.
fn size(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    let number: usize = digits.parse().map_err(|_| "not a size such as 8, 4k or 1m".to_owned())?;
    match number.checked_mul(1 << shift) {
        Some(size) if size <= 1 << 30 => Ok(size),
        _ => Err("more than 1024m".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!((size("0"), size("4k"), size("1m")), (Ok(0), Ok(4096), Ok(1 << 20)));
        assert!(size("k").is_err() && size("-1").is_err() && size("4096m").is_err() && size("").is_err());
    }
}
