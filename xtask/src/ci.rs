//! `cargo xtask ci`: every check, one line each.
//!
//! ```text
//! pass  tidy       0.4 s
//! pass  test      48.1 s  212 passed
//! skip  deny       0.0 s  cargo-deny is not installed
//! Slowest tests:
//!     12.4 s  test server: routes_are_kept
//! 61 s on 2 processors
//! 214 passed, 0 failed, 1 skipped
//! ```
//!
//! Steps that others need run first, one after another. All others are jobs that run beside each other, as their costs allow
//! (`schedule`); a test program is a job of its own. A step's line comes when its last job has ended, and has the sum of their seconds.
//!
//! The last line counts tests where a step runs tests, and other steps as one each. What cannot run here is skipped and says
//! why, and never passes silently: a step, an ignored test, or a test that prints `skipped: why` and returns. Output of a job is kept in `target/ci/`, its end
//! is shown when it fails.
//!
//! Tests that are long by nature have a short form, which is part of every run, and a long form, which `--long` runs.

mod binaries;
mod changed;
mod fuzz;
mod licences;
mod plan;
mod schedule;
mod slowest;
mod step;
mod steps;
mod workspace;

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::cmd;
use plan::{Job, Plan};
use slowest::Timed;
use step::{CiContext, Counts, Outcome};

/// The number of the slowest tests that are listed.
const SLOWEST: usize = 10;

/// Threads of a test program at most: on a machine of many processors many programs run instead.
const THREADS_MAX: usize = 4;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only formats, tidy, lints and tests, without MPIs, guests, models and fuzzing
    #[arg(long)]
    quick: bool,
    /// Only the steps of these names, and those that they need
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only what concerns packages that differ from a commit (by default, from where this branch left its upstream)
    #[arg(long, value_name = "COMMIT", num_args = 0..=1, default_missing_value = "", require_equals = true)]
    changed: Option<String>,
    /// Only tests that have a long form, in that form, and long fuzzing
    #[arg(long, conflicts_with_all = ["quick", "changed"])]
    long: bool,
    /// Lists the steps and does nothing
    #[arg(long)]
    list: bool,
    /// How long each fuzz target runs [default: 10, with --long 120]
    #[arg(long)]
    fuzz_s: Option<u32>,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let start = Instant::now();
    let plan = Plan::new(args)?;
    if args.list {
        plan.steps.iter().for_each(|step| println!("{:<9} {}", step.name, step.what));
        return Ok(true);
    }
    let logs = cmd::root().join("target/ci");
    fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let context = CiContext::new(logs, args.fuzz_s.unwrap_or(if args.long { 120 } else { 10 }), args.long);
    let mut report = Report::default();
    let jobs = plan.run_first_steps(&context, &mut report)?;
    jobs.iter().for_each(|(_, job)| report.expect(job.step));
    let processors = schedule::processors();
    let threads = processors.min(THREADS_MAX);
    schedule::run(
        jobs,
        processors,
        |job: &Job| job.run(&context, threads, args.long),
        |job, outcome, took| report.ended(job.step, outcome, took),
    );
    report.print_slowest();
    println!("{:.0} s on {processors} processors", start.elapsed().as_secs_f64());
    let Counts { passed, failed, skipped } = report.total;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(failed == 0)
}

/// The results so far, and the steps that have not ended.
#[derive(Default)]
struct Report {
    total: Counts,
    open: Vec<Open>,
    timed: Vec<Timed>,
}

/// A step with jobs that have not ended.
struct Open {
    step: &'static str,
    jobs: u32,
    took: Duration,
    outcome: Option<Outcome>,
}

impl Report {
    /// A job of this step is to come.
    fn expect(&mut self, step: &'static str) {
        match self.open.iter_mut().find(|open| open.step == step) {
            Some(open) => open.jobs += 1,
            None => self.open.push(Open { step, jobs: 1, took: Duration::ZERO, outcome: None }),
        }
    }

    /// A job has ended; prints the step's line if it was the last one.
    fn ended(&mut self, step: &'static str, outcome: Outcome, took: Duration) {
        let place = self.open.iter().position(|open| open.step == step).expect("what has ended was expected");
        let open = &mut self.open[place];
        open.jobs -= 1;
        open.took += took;
        open.outcome = Some(match open.outcome.take() {
            Some(before) => before.and(outcome),
            None => outcome,
        });
        if open.jobs == 0 {
            let Open { outcome, took, .. } = self.open.remove(place);
            self.print(step, &outcome.expect("a job has ended"), took);
        }
    }

    /// Prints a step's line.
    fn print(&mut self, step: &str, outcome: &Outcome, took: Duration) {
        let counts = outcome.counts();
        let word = match counts {
            Counts { failed: 1.., .. } => "FAIL",
            Counts { passed: 1.., .. } => "pass",
            _ => "skip",
        };
        println!("{word}  {step:<9} {:>7.1} s  {}", took.as_secs_f64(), outcome.message());
        if let Some(detail) = outcome.detail() {
            detail.lines().for_each(|line| println!("      | {line}"));
        }
        self.timed.extend(outcome.timed().iter().cloned());
        self.total += counts;
    }

    fn print_slowest(&mut self) {
        self.timed.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        if !self.timed.is_empty() {
            println!("Slowest tests:");
        }
        self.timed.iter().take(SLOWEST).for_each(|test| println!("  {:>7.1} s  {}", test.seconds, test.name));
    }
}
