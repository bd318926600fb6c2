//! `isthmus try`: what Isthmus does on this machine, beside what every program has anyway.
//!
//! ```text
//! isthmus try ─┬─ sweep ────── removes the folder when we end, however that is
//!              ├─ isthmusd ─── in that folder, ends with us
//!              ├─ worker ×2 ── the two domains, pinned to two cores; new ones for each measurement
//!              │    └─ mx_measure ── of MX: a program in C that is linked with libmyriexpress
//!              └─ two hosts ── network namespaces with a wire and an isthmusd each, where they may be made
//! ```
//!
//! The measuring itself is isthmus-bench's. Nothing here decides whether a figure is good.

mod hosts;
mod table;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use isthmus_bench::demo::{
    self, HostMeasurement, LowerBound, Path as PathName, Point, PrivateDaemon, RunPlan, Session, SweepPlan, TempFolder,
    Wait,
};
use isthmus_client::{Options, Topic};
use serde::Serialize;
use serde_json::Value;

use crate::cli::TryArgs;
use crate::output::{Outcome, Output, note};

const SIZES: [usize; 11] = [0, 8, 64, 128, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const SIZES_QUICK: [usize; 4] = [0, 8, 4 << 10, 1 << 20];

/// All that came out, as `try.json` has it.
#[derive(Serialize)]
struct Results {
    version: &'static str,
    machine: Value,
    /// What no path can beat on this machine.
    lower_bounds: Vec<LowerBound>,
    points: Vec<Point>,
    /// What goes from one host to another, or why it was not measured.
    hosts: Vec<HostMeasurement>,
    /// Paths that this installation cannot measure, and why.
    unavailable: Vec<Unavailable>,
    /// The daemon's own list while two domains talked.
    channels: Value,
    /// The picture.
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
    let bar = bar(session.lower_bound_steps() + session.sweep_steps(&plan) + session.hosts_steps() + 1);
    let step = |what: &str| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    };
    let lower_bounds = session.lower_bounds(step);
    let points = session.sweep(&plan, step);
    let hosts = session.hosts(step);
    step("two domains that talk");
    let channels = channels(&session, daemon.socket()).context("looking at two domains that talk");
    bar.finish_and_clear();
    let channels = channels?;
    let svg = args.out.join("try.svg");
    write(&svg, &session.plot(&points)?)?;
    let machine = session.machine_json()?;
    let results = Results {
        version: env!("CARGO_PKG_VERSION"),
        machine,
        lower_bounds,
        points,
        hosts,
        unavailable,
        channels,
        plot: svg,
    };
    let json = args.out.join("try.json");
    write(&json, &crate::output::object("try", &results)?)?;
    output.result("try", &results, || {
        let files = format!("\nIn {}: try.json, try.svg\n", args.out.display());
        session.machine() + "\n\n" + &text(&results) + &files
    })?;
    let failed = results.points.iter().any(|point| point.why.is_some())
        || results.hosts.iter().any(|measurement| measurement.failed);
    Ok(if failed { Outcome::Failed } else { Outcome::Done })
}

/// One side of a pair.
pub(crate) fn worker() -> Result<Outcome> {
    demo::worker().map(|()| Outcome::Done)
}

/// Becomes another program that ends with its parent.
pub(crate) fn run_bound(command: &[OsString]) -> Result<Outcome> {
    demo::run_bound(command).map(|()| Outcome::Done)
}

/// Waits for the end of standard input, and removes the folder.
pub(crate) fn sweep(path: &Path) -> Result<Outcome> {
    demo::sweep(path).map(|()| Outcome::Done)
}

/// Workers are this program; they find the daemon by a variable.
fn session(args: &TryArgs, socket: &Path) -> Result<Session> {
    let program = std::env::current_exe().context("cannot find this program, to start it again as a domain")?;
    let variable = |name: &str, value: &std::ffi::OsStr| (OsString::from(name), value.to_owned());
    let environment = vec![variable("ISTHMUS_SOCKET", socket.as_os_str()), variable("ISTHMUS_AUTOSTART", "0".as_ref())];
    let effort = match args.quick {
        true => RunPlan { runs: 1, budget: Duration::from_millis(10) },
        false => RunPlan { runs: 3, budget: Duration::from_millis(60) },
    };
    Session::start(program, environment, effort)
}

fn plan(args: &TryArgs) -> (SweepPlan, Vec<Unavailable>) {
    let mut paths = vec![PathName::Isthmus, PathName::Mx, PathName::Tcp, PathName::Unix, PathName::Pipe];
    let unavailable: Vec<Unavailable> =
        paths.iter().filter_map(|&path| Some(Unavailable { path, why: path.unavailable_reason()? })).collect();
    paths.retain(|path| unavailable.iter().all(|unavailable| unavailable.path != *path));
    let sizes = if args.quick { SIZES_QUICK.to_vec() } else { SIZES.to_vec() };
    (SweepPlan { paths, waits: vec![Wait::Poll, Wait::Sleep], sizes }, unavailable)
}

/// Visible on a terminal only.
fn bar(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if bar.is_hidden() {
        note("measuring; this takes a minute or two");
    }
    let style = ProgressStyle::with_template("{wide_bar:.cyan} {percent:>3}%  {msg:<36}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The daemon's list of channels when two domains have talked, and have not left.
fn channels(session: &Session, socket: &Path) -> Result<Value> {
    let options = Options { socket: Some(socket.to_owned()), ..Options::default() };
    session.run_held_pair(PathName::Isthmus, || {
        let answer = crate::daemon::Daemon::connect(&options)?.ask(Topic::Channels, &[])?;
        ensure!(crate::daemon::has_channel(&answer), "the daemon shows no channel between them");
        Ok(answer)
    })
}

fn text(results: &Results) -> String {
    let channels = crate::daemon::channels_text(&results.channels).unwrap_or_else(|error| format!("{error:#}\n"));
    let unavailable = results
        .unavailable
        .iter()
        .map(|unavailable| format!("not measured: {}: {}\n", unavailable.path.name(), unavailable.why));
    table::text(&results.points, &results.lower_bounds)
        + "\n"
        + &hosts::text(&results.hosts)
        + &unavailable.collect::<String>()
        + "\nThe way that messages took, as the daemon shows it (isthmus channel list):\n"
        + &channels
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}; name another folder with --out", file.display()))
}
