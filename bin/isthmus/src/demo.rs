//! `isthmus try`: measures Isthmus on this machine beside TCP, Unix sockets and pipes.
//!
//! ```text
//! isthmus try ─┬─ sweep ────── removes the folder when this process ends, however it ends
//!              ├─ isthmusd ─── in that folder, ends with this process
//!              ├─ worker ×2 ── the two domains, pinned to two cores; new processes for each measurement
//!              │    └─ mx_measure ── for MX: a C program that is linked with libmyriexpress
//!              └─ two hosts ── network namespaces with a wire and an isthmusd each, where they can be made
//!
//! redis ── a row for TCP and one for sockets     perftest ── a row for each program, and one for TCP
//! tunnels ── a row for an overlay network and one for the kernel's VXLAN
//! headline ── the comparison with TCP     table ── a row for each path and wait     hosts ── a row for each path
//! ```
//!
//! The package isthmus-bench measures. Nothing here decides whether a figure is good.

mod headline;
mod hosts;
mod perftest;
mod redis;
mod table;
mod tunnels;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use isthmus_bench::demo::{
    self, HostMeasurement, LowerBound, Path as PathName, PerftestTime, Point, PrivateDaemon, ROWS, RedisRates, RunPlan,
    Session, SweepPlan, TempFolder, TunnelRates, Wait,
};
use isthmus_client::{Options, Topic};
use serde::Serialize;
use serde_json::Value;

use crate::cli::TryArgs;
use crate::output::{Outcome, Output, note};

/// The measured sizes in bytes, with their column headers.
const SIZES: [(usize, &str); 7] = [
    (8, "8 B"),
    (1 << 10, "1 KiB"),
    (4 << 10, "4 KiB"),
    (16 << 10, "16 KiB"),
    (64 << 10, "64 KiB"),
    (1 << 20, "1 MiB"),
    (4 << 20, "4 MiB"),
];
/// The sizes of the headline and of the summary.
const SIZE_SMALL: usize = 8;
const SIZE_LARGE: usize = 1 << 20;

/// The content of `try.json`.
#[derive(Serialize)]
struct Results {
    version: &'static str,
    machine: Value,
    /// The comparison with TCP in one sentence for each capability.
    headline: Vec<String>,
    /// The bounds that the machine sets, whatever the path.
    lower_bounds: Vec<LowerBound>,
    points: Vec<Point>,
    /// The measurements between two hosts, or the reasons why there are none.
    hosts: Vec<HostMeasurement>,
    /// The rates of redis-benchmark over TCP and over sockets.
    redis: RedisRates,
    /// The times of perftest over verbs.
    perftest: Vec<PerftestTime>,
    /// The rates of iperf3 between containers on two hosts.
    tunnels: TunnelRates,
    /// The paths that this installation cannot measure.
    unavailable: Vec<Unavailable>,
    /// The daemon's channel list while two domains were connected.
    channels: Value,
    /// The file with the picture.
    plot: PathBuf,
}

/// A path that was left out.
#[derive(Serialize)]
struct Unavailable {
    path: PathName,
    why: String,
}

pub(crate) fn run(output: Output, args: &TryArgs) -> Result<Outcome> {
    fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot make the folder {}; name another one with --out", args.out.display()))?;
    let folder = TempFolder::make()?;
    let daemon = PrivateDaemon::start(folder.path())?;
    let session = session(args, daemon.socket())?;
    let (plan, unavailable) = plan(args);
    let bar = bar(
        args,
        session.lower_bound_steps()
            + session.sweep_steps(&plan)
            + session.hosts_steps()
            + session.redis_steps()
            + session.perftest_steps()
            + session.tunnels_steps()
            + 1,
    );
    let step = |what: &str| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    };
    let lower_bounds = session.lower_bounds(step);
    let points = session.sweep(&plan, step);
    let hosts = session.hosts(step);
    let redis = redis::measure(&session, daemon.socket(), step);
    let perftest = perftest::measure(&session, step);
    let tunnels = session.tunnels(step);
    step("the path between two domains");
    let channels = channels(&session, daemon.socket()).context("asking the daemon about two connected domains");
    bar.finish_and_clear();
    let channels = channels?;
    let svg = args.out.join("try.svg");
    write(&svg, &session.plot(&points)?)?;
    let machine = session.machine_json()?;
    let results = Results {
        version: env!("CARGO_PKG_VERSION"),
        machine,
        headline: headline(&points, &redis, &perftest),
        lower_bounds,
        points,
        hosts,
        redis,
        perftest,
        tunnels,
        unavailable,
        channels,
        plot: svg,
    };
    let json = args.out.join("try.json");
    write(&json, &crate::output::object("try", &results)?)?;
    output.result("try", &results, || text(&results, args, &session.machine()))?;
    let failed = results.points.iter().any(|point| point.why.is_some())
        || results.hosts.iter().any(|measurement| measurement.failed)
        || [&results.redis.tcp, &results.redis.sockets].iter().any(|rate| rate.failed)
        || results.perftest.iter().any(|time| time.failed)
        || [&results.tunnels.fast, &results.tunnels.kernel_vxlan].iter().any(|rate| rate.failed);
    Ok(if failed { Outcome::Failed } else { Outcome::Done })
}

/// The comparisons with TCP of all capabilities that were measured.
fn headline(points: &[Point], redis: &RedisRates, times: &[PerftestTime]) -> Vec<String> {
    let sentences = headline::sentences(points).into_iter().chain(headline::redis_sentence(redis));
    sentences.chain(headline::perftest_sentence(times, perftest::tcp(points))).collect()
}

/// Runs one side of a pair.
pub(crate) fn worker() -> Result<Outcome> {
    demo::worker().map(|()| Outcome::Done)
}

/// Becomes another program that ends with its parent.
pub(crate) fn run_bound(command: &[OsString]) -> Result<Outcome> {
    demo::run_bound(command).map(|()| Outcome::Done)
}

/// Waits for the end of standard input, then removes the folder.
pub(crate) fn sweep(path: &Path) -> Result<Outcome> {
    demo::sweep(path).map(|()| Outcome::Done)
}

/// Starts a session. Its workers run this program and find the daemon by a variable.
fn session(args: &TryArgs, socket: &Path) -> Result<Session> {
    let program = std::env::current_exe().context("cannot find this program, to start it again as a domain")?;
    let variable = |name: &str, value: &std::ffi::OsStr| (OsString::from(name), value.to_owned());
    let environment = vec![variable("ISTHMUS_SOCKET", socket.as_os_str()), variable("ISTHMUS_AUTOSTART", "0".as_ref())];
    let effort = match args.quick {
        true => RunPlan { runs: 1, budget: Duration::from_millis(30) },
        false => RunPlan { runs: 3, budget: Duration::from_millis(30) },
    };
    Session::start(program, environment, effort)
}

fn plan(args: &TryArgs) -> (SweepPlan, Vec<Unavailable>) {
    let mut paths: Vec<PathName> = ROWS.concat();
    let unavailable: Vec<Unavailable> =
        paths.iter().filter_map(|&path| Some(Unavailable { path, why: path.unavailable_reason()? })).collect();
    paths.retain(|path| unavailable.iter().all(|unavailable| unavailable.path != *path));
    let all_sizes = SIZES.map(|(size, _)| size);
    let sizes = if args.quick { vec![SIZE_SMALL, SIZE_LARGE] } else { all_sizes.to_vec() };
    (SweepPlan { paths, waits: vec![Wait::Adaptive, Wait::Poll, Wait::Sleep], sizes }, unavailable)
}

/// Returns the progress bar, which is visible on a terminal only.
fn bar(args: &TryArgs, steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if bar.is_hidden() {
        let duration = if args.quick { "a few seconds" } else { "less than a minute on a quiet machine" };
        note(&format!("measuring; this takes {duration}"));
    }
    let style = ProgressStyle::with_template("{wide_bar:.cyan} {percent:>3}%  {msg:<36}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Returns the daemon's channel list while two domains that exchanged messages are still attached.
fn channels(session: &Session, socket: &Path) -> Result<Value> {
    let options = Options { socket: Some(socket.to_owned()), ..Options::default() };
    session.run_held_pair(PathName::Isthmus, || {
        let answer = crate::daemon::Daemon::connect(&options)?.ask(Topic::Channels, &[])?;
        ensure!(crate::daemon::has_channel(&answer), "the daemon shows no channel between them");
        Ok(answer)
    })
}

/// The report for people: the headline, the tables, the machine and the files.
fn text(results: &Results, args: &TryArgs, machine: &str) -> String {
    let mut text = results.headline.join("\n") + "\n\n" + &table::summary(&results.points, &results.lower_bounds);
    for Unavailable { path, why } in &results.unavailable {
        text += &format!("{}: {why}\n", table::name(*path));
    }
    text += LEGEND;
    if !args.quick {
        text += &table::by_size(&results.points, &results.lower_bounds);
    }
    text += &redis::text(&results.redis);
    text += &perftest::text(&results.perftest, &results.points);
    text += &hosts::text(&results.hosts);
    text += &tunnels::text(&results.tunnels);
    text += &table::failures(&results.points);
    if !args.quick {
        let channels = crate::daemon::channels_text(&results.channels)
            .unwrap_or_else(|error| crate::output::causes(&error) + "\n");
        text += &format!("\nThe path of the messages, as the daemon reports it (isthmus channel list):\n{channels}");
    }
    format!("{text}\n{machine}\nFiles: {0}/try.json, {0}/try.svg\n", args.out.display())
}

/// The explanation of the words in the tables.
const LEGEND: &str = "
Two processes on two CPUs exchange messages. Higher is better in every column. The headline compares the default rows.
adaptive: spins briefly, then sleeps.  poll: spins without a pause.  sleep: sleeps until a message arrives.

";

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}; name another folder with --out", file.display()))
}
