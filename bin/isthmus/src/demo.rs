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
    self, Crossing, Effort, Floor, Folder, Path as Way, Plan, Point, PrivateDaemon, Session, Wait,
};
use isthmus_client::{Options, Topic};
use serde::Serialize;
use serde_json::Value;

use crate::cli::TryArgs;
use crate::output::{Ended, Output, note};

const SIZES: [usize; 11] = [0, 8, 64, 128, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const SIZES_QUICK: [usize; 4] = [0, 8, 4 << 10, 1 << 20];

/// All that came out, as `try.json` has it.
#[derive(Serialize)]
struct Results {
    version: &'static str,
    machine: Value,
    /// What no path can beat on this machine.
    floors: Vec<Floor>,
    points: Vec<Point>,
    /// What goes from one host to another, or why it was not measured.
    hosts: Vec<Crossing>,
    /// Paths that this installation cannot measure, and why.
    absent: Vec<Absent>,
    /// The daemon's own list while two domains talked.
    channels: Value,
    /// The picture.
    plot: PathBuf,
}

/// A path that was left out.
#[derive(Serialize)]
struct Absent {
    path: Way,
    why: String,
}

pub(crate) fn run(output: Output, args: &TryArgs) -> Result<Ended> {
    fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot make the folder {}; name another one with --out", args.out.display()))?;
    let folder = Folder::make()?;
    let daemon = PrivateDaemon::start(folder.path())?;
    let session = session(args, daemon.socket())?;
    let (plan, absent) = plan(args);
    let bar = bar(session.floor_steps() + session.sweep_steps(&plan) + session.hosts_steps() + 1);
    let step = |what: &str| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    };
    let floors = session.floors(step);
    let points = session.sweep(&plan, step);
    let hosts = session.hosts(step);
    step("two domains that talk");
    let channels = channels(&session, daemon.socket()).context("looking at two domains that talk");
    bar.finish_and_clear();
    let channels = channels?;
    let svg = args.out.join("try.svg");
    write(&svg, &session.plot(&points)?)?;
    let machine = session.machine_json()?;
    let results =
        Results { version: env!("CARGO_PKG_VERSION"), machine, floors, points, hosts, absent, channels, plot: svg };
    let json = args.out.join("try.json");
    write(&json, &crate::output::object("try", &results)?)?;
    output.result("try", &results, || {
        let files = format!("\nIn {}: try.json, try.svg\n", args.out.display());
        session.machine() + "\n\n" + &text(&results) + &files
    })?;
    let failed =
        results.points.iter().any(|point| point.why.is_some()) || results.hosts.iter().any(|crossing| crossing.failed);
    Ok(if failed { Ended::Failed } else { Ended::Done })
}

/// One side of a pair.
pub(crate) fn worker() -> Result<Ended> {
    demo::worker().map(|()| Ended::Done)
}

/// Becomes another program that ends with its parent.
pub(crate) fn bound(command: &[OsString]) -> Result<Ended> {
    demo::bound(command).map(|()| Ended::Done)
}

/// Waits for the end of standard input, and removes the folder.
pub(crate) fn sweep(path: &Path) -> Result<Ended> {
    demo::sweep(path).map(|()| Ended::Done)
}

/// Workers are this program; they find the daemon by a variable.
fn session(args: &TryArgs, socket: &Path) -> Result<Session> {
    let program = std::env::current_exe().context("cannot find this program, to start it again as a domain")?;
    let variable = |name: &str, value: &std::ffi::OsStr| (OsString::from(name), value.to_owned());
    let environment = vec![variable("ISTHMUS_SOCKET", socket.as_os_str()), variable("ISTHMUS_AUTOSTART", "0".as_ref())];
    let effort = match args.quick {
        true => Effort { runs: 1, budget: Duration::from_millis(10) },
        false => Effort { runs: 3, budget: Duration::from_millis(60) },
    };
    Session::start(program, environment, effort)
}

fn plan(args: &TryArgs) -> (Plan, Vec<Absent>) {
    let mut paths = vec![Way::Isthmus, Way::Mx, Way::Tcp, Way::Unix, Way::Pipe];
    let absent: Vec<Absent> = paths.iter().filter_map(|&path| Some(Absent { path, why: path.absent()? })).collect();
    paths.retain(|path| absent.iter().all(|absent| absent.path != *path));
    let sizes = if args.quick { SIZES_QUICK.to_vec() } else { SIZES.to_vec() };
    (Plan { paths, waits: vec![Wait::Poll, Wait::Sleep], sizes }, absent)
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
    session.meet(Way::Isthmus, || {
        let answer = crate::daemon::Daemon::connect(&options)?.ask(Topic::Channels, &[])?;
        ensure!(crate::daemon::has_channel(&answer), "the daemon shows no channel between them");
        Ok(answer)
    })
}

fn text(results: &Results) -> String {
    let channels = crate::daemon::channels_text(&results.channels).unwrap_or_else(|error| format!("{error:#}\n"));
    let absent = results.absent.iter().map(|absent| format!("not measured: {}: {}\n", absent.path.name(), absent.why));
    table::text(&results.points, &results.floors)
        + "\n"
        + &hosts::text(&results.hosts)
        + &absent.collect::<String>()
        + "\nThe way that messages took, as the daemon shows it (isthmus channel list):\n"
        + &channels
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}; name another folder with --out", file.display()))
}
