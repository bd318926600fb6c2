//! MX over Isthmus, as a user of MX has it: C programs that are linked with `libmyriexpress.so`, one for each side.
//!
//! ```text
//! worker (follows) ── starts ─▶ mx_measure ── prints `endpoint N` ─▶ worker ── N ─▶ the other worker
//! worker (leads) ──── starts ─▶ mx_measure -r N -s SIZE -t MS ── prints `half_rtt_ns 123.4` …
//! ```
//!
//! The programs take the worker's CPU with them, end with it, and find the daemon as every program does. Their sources are in
//! `examples/mx`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::case::not_installed;
use crate::control_pipe::ControlPipe;
use crate::cpu::now_ns;
use crate::job::{Buffers, Job, Matching, Side, SideResult, Wait, Work};
use crate::path::check_options;
use crate::stats::Latencies;

/// The option that names the board of the following side, if it is on another host.
pub(crate) const BOARD: &str = "board";

/// The option that says how a side which sleeps does so: [`ADAPTIVE`].
pub(crate) const WAIT: &str = "wait";
/// The default of `mx_wait`: it polls for a while, and then sleeps.
pub(crate) const ADAPTIVE: &str = "adaptive";

/// Ping-pong and stream; and what finding a receive costs.
const MX_MEASURE: &str = "mx_measure";
const MX_MATCH: &str = "mx_match";

/// Returns the reason that MX cannot be measured here, if there is one.
pub(crate) fn unavailable_reason() -> Option<String> {
    let why = |name| find(name).err().map(|error| error.to_string());
    why(MX_MEASURE).or_else(|| why(MX_MATCH))
}

/// One of the programs: beside this one, or in the folders of `PATH`.
fn find(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = own.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    found.with_context(|| not_installed(name, "run `make build`"))
}

/// One side of the work, done by another program.
pub(crate) fn run(job: &Job, control_pipe: &ControlPipe, ready: impl FnOnce() -> Result<()>) -> Result<SideResult> {
    check_options(job)?;
    ensure!(!job.hold, "programs of MX part when they are done");
    match job.side {
        Side::Lead => {
            let received: Result<u32, String> = control_pipe.recv()?;
            let endpoint = received.map_err(|error| anyhow!("the other side: {error}"))?;
            ready()?;
            let said = Running::start(job, Some(endpoint))?.finish()?;
            Ok(SideResult { ended_ns: Some(now_ns()), ..found(&said)? }) // It ends when it has said what it measured.
        }
        Side::Follow => {
            let mut server = Running::start(job, None)?;
            let endpoint = server.endpoint();
            // Both sides fail with the same reason, whichever is heard first.
            control_pipe.send(&endpoint.as_ref().copied().map_err(|error| format!("{error:#}")))?;
            endpoint?;
            ready()?;
            found(&server.finish()?)
        }
    }
}

/// One of the programs at work.
struct Running {
    name: &'static str,
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    /// A client of the server with this endpoint, or a server.
    fn start(job: &Job, server: Option<u32>) -> Result<Self> {
        let name = if matches!(job.work, Work::Match { .. }) { MX_MATCH } else { MX_MEASURE };
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        command.arg("run-bound").arg(find(name)?).args(arguments(job, server)?).envs(variables(job));
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stdout = child.stdout.take().map(BufReader::new).context("a program without output")?;
        Ok(Self { name, child, stdout })
    }

    /// Returns the endpoint, which a server prints first.
    fn endpoint(&mut self) -> Result<u32> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).with_context(|| format!("cannot read what {} says", self.name))?;
        match line.trim_end().strip_prefix("endpoint ").and_then(|number| number.parse().ok()) {
            Some(number) => Ok(number),
            None if line.is_empty() => Err(self.trouble()?),
            None => bail!("{} says {line:?} instead of its endpoint", self.name),
        }
    }

    /// Returns the rest of its output, when it has ended well.
    fn finish(mut self) -> Result<String> {
        let mut said = String::new();
        self.stdout.read_to_string(&mut said).with_context(|| format!("cannot read what {} says", self.name))?;
        if self.child.wait().context("cannot wait for a program")?.success() {
            return Ok(said);
        }
        Err(self.trouble()?)
    }

    /// Returns its exit status and error output.
    fn trouble(&mut self) -> Result<anyhow::Error> {
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut said).context("cannot read a program's errors")?;
        }
        let status = self.child.wait().context("cannot wait for a program")?;
        Ok(anyhow!("{} ended with {status}: {}", self.name, said.trim_end()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _: std::io::Result<()> = self.child.kill();
        let _: std::io::Result<_> = self.child.wait();
    }
}

fn arguments(job: &Job, server: Option<u32>) -> Result<Vec<String>> {
    let mut arguments = Vec::new();
    let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
    if let Some(endpoint) = server {
        add("-r", endpoint.to_string());
        if let Some(board) = job.setup.options.get(BOARD) {
            add("-d", board.clone());
        }
        add("-t", job.budget_ms.to_string());
        match job.work {
            Work::PingPong { size } => add("-s", size.to_string()),
            Work::Stream { size, buffers } => {
                add("-k", "stream".to_owned());
                add("-s", size.to_string());
                add("-B", memory(buffers).to_owned());
            }
            Work::Match { depth } => add("-n", depth.to_string()),
            Work::Open | Work::First { .. } | Work::Idle { .. } => bail!("{MX_MEASURE} does not do {:?}", job.work),
        }
    }
    if job.setup.wait != Wait::Poll {
        ensure!(!matches!(job.work, Work::Match { .. }), "{MX_MATCH} does not sleep");
        arguments.push("-w".to_owned());
    }
    Ok(arguments)
}

const fn memory(buffers: Buffers) -> &'static str {
    match buffers {
        Buffers::Warm => "warm",
        Buffers::Rewritten => "rewritten",
        Buffers::Cold => "cold",
    }
}

/// Sleeping is sleeping at once; memory that is used only once is not worth remembering.
fn variables(job: &Job) -> Vec<(&'static str, &'static str)> {
    let mut variables = Vec::new();
    if job.setup.wait != Wait::Poll {
        let has_option = job.setup.options.get(WAIT).is_some_and(|wait| wait == ADAPTIVE);
        let is_adaptive = job.setup.wait == Wait::Adaptive || has_option;
        variables.push(("ISTHMUS_WAIT", if is_adaptive { ADAPTIVE } else { "sleep" }));
    }
    if matches!(job.work, Work::Stream { buffers: Buffers::Cold, .. }) {
        variables.push(("MX_RCACHE", "0"));
    }
    variables
}

/// Parses the output of a side: a name and numbers on each line.
fn found(said: &str) -> Result<SideResult> {
    let lines: BTreeMap<&str, &str> = said.lines().filter_map(|line| line.split_once(' ')).collect();
    let number = |name: &str| -> Result<Option<f64>> {
        let text = lines.get(name).map(|text| text.trim());
        text.map(str::parse).transpose().with_context(|| format!("{name} is not a number in {said:?}"))
    };
    let whole = |name: &str| -> Result<Option<u64>> { Ok(number(name)?.map(|value| value as u64)) };
    let round_trips = lines.get("trips_ns").map(|trips| {
        let mut latencies = Latencies::new();
        trips.split_whitespace().filter_map(|ns| ns.parse().ok()).for_each(|ns| latencies.record(ns));
        latencies.recorded()
    });
    let matching = match number("exact_full_ns")? {
        None => None,
        Some(exact_full_ns) => {
            let need = |name: &str| number(name)?.with_context(|| format!("no {name} in {said:?}"));
            Some(Matching {
                exact_empty_ns: need("exact_empty_ns")?,
                exact_full_ns,
                masked_empty_ns: need("masked_empty_ns")?,
                masked_full_ns: need("masked_full_ns")?,
            })
        }
    };
    Ok(SideResult {
        messages: whole("messages")?.unwrap_or(0),
        cpu_ns: whole("cpu_ns")?.unwrap_or(0),
        half_rtt_ns: number("half_rtt_ns")?,
        round_trips,
        elapsed_ns: whole("elapsed_ns")?,
        matching,
        ..SideResult::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Setup;

    fn job(side: Side, wait: Wait, work: Work) -> Job {
        let setup = Setup { wait, size_max: work.size(), options: BTreeMap::new() };
        Job { side, path: crate::path::Path::Mx, setup, work, cpus: vec![0], budget_ms: 50, hold: false }
    }

    #[test]
    fn only_the_leading_side_gets_the_measurement_arguments() {
        let cold = Work::Stream { size: 1 << 20, buffers: Buffers::Cold };
        let text = |server| arguments(&job(Side::Lead, Wait::Poll, cold), server).expect("possible").join(" ");
        assert_eq!(text(Some(3)), "-r 3 -t 50 -k stream -s 1048576 -B cold");
        assert_eq!(text(None), "");
        let sleeping = arguments(&job(Side::Follow, Wait::Sleep, Work::PingPong { size: 8 }), None).expect("possible");
        assert_eq!(sleeping, ["-w"]);
        assert!(arguments(&job(Side::Lead, Wait::Poll, Work::Open), Some(1)).is_err());
    }

    #[test]
    fn sleeping_and_cold_memory_are_variables() {
        let cold = job(Side::Lead, Wait::Poll, Work::Stream { size: 8, buffers: Buffers::Cold });
        assert_eq!(variables(&cold), [("MX_RCACHE", "0")]);
        let mut sleeping = job(Side::Lead, Wait::Sleep, Work::PingPong { size: 8 });
        assert_eq!(variables(&sleeping), [("ISTHMUS_WAIT", "sleep")]);
        sleeping.setup.options.insert(WAIT.to_owned(), ADAPTIVE.to_owned());
        assert_eq!(variables(&sleeping), [("ISTHMUS_WAIT", "adaptive")]);
        let adaptive = job(Side::Lead, Wait::Adaptive, Work::PingPong { size: 8 });
        assert_eq!(variables(&adaptive), [("ISTHMUS_WAIT", "adaptive")]);
        assert!(arguments(&adaptive, Some(1)).expect("possible").contains(&"-w".to_owned()));
    }

    #[test]
    fn lines_are_read_and_nonsense_is_refused() {
        let done = found("half_rtt_ns 123.5\ntrips_ns 240 250\nmessages 80\ncpu_ns 9000\n").expect("read");
        assert_eq!((done.half_rtt_ns, done.messages, done.cpu_ns), (Some(123.5), 80, 9000));
        assert!(done.round_trips.is_some() && done.elapsed_ns.is_none() && done.matching.is_none());
        let done = found("exact_empty_ns 1\nexact_full_ns 2\nmasked_empty_ns 3\nmasked_full_ns 4\n").expect("read");
        assert_eq!(done.matching.map(|matching| matching.masked_full_ns), Some(4.0));
        assert!(found("half_rtt_ns many\n").is_err());
        assert!(found("exact_full_ns 2\n").is_err());
    }
}
