//! `cargo xtask ci`: every check in order, one line each.
//!
//! ```text
//! pass  tidy       0.4 s
//! pass  test      48.1 s  212 passed
//! skip  deny       0.0 s  cargo-deny is not installed
//! 214 passed, 0 failed, 1 skipped
//! ```
//!
//! The last line counts tests where a step runs tests, and other steps as one each. What cannot run here is skipped and says
//! why, and never passes silently: a step, an ignored test, or a test that prints `skipped: why` and returns. Output of a step is kept in `target/ci/`, its end
//! is shown when it fails.

mod fuzz;
mod licences;
mod step;
mod steps;

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::cmd;
use step::{Counts, Outcome, Site};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only formats, tidy, lints and tests, without MPIs, guests, models and fuzzing
    #[arg(long)]
    quick: bool,
    /// Only the steps of these names
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Lists the steps and does nothing
    #[arg(long)]
    list: bool,
    /// How long each fuzz target runs
    #[arg(long, default_value_t = 10)]
    fuzz_s: u32,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    if let Some(unknown) = args.only.iter().find(|name| steps::STEPS.iter().all(|step| step.name != name.as_str())) {
        bail!("there is no step {unknown}; `cargo xtask ci --list` names them");
    }
    let wanted = |step: &&steps::Step| {
        let named = args.only.is_empty() || args.only.iter().any(|name| name == step.name);
        named && (step.quick || !args.quick)
    };
    let chosen: Vec<&steps::Step> = steps::STEPS.iter().filter(wanted).collect();
    if args.list {
        chosen.iter().for_each(|step| println!("{:<9} {}", step.name, step.what));
        return Ok(true);
    }
    let logs = cmd::root().join("target/ci");
    fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let site = Site { logs, fuzz_s: args.fuzz_s };
    let mut total = Counts::default();
    for step in chosen {
        total += run_step(step, &site);
    }
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    Ok(total.failed == 0)
}

/// Runs one step and prints its line.
fn run_step(step: &steps::Step, site: &Site) -> Counts {
    let start = Instant::now();
    let outcome = (step.run)(&site.log(step.name)).unwrap_or_else(|error| Outcome::failed(format!("{error:#}")));
    let seconds = start.elapsed().as_secs_f64();
    let counts = outcome.counts();
    let word = if counts.failed > 0 {
        "FAIL"
    } else if counts.passed > 0 {
        "pass"
    } else {
        "skip"
    };
    println!("{word}  {:<9} {seconds:>7.1} s  {}", step.name, outcome.said());
    if let Some(detail) = outcome.detail() {
        detail.lines().for_each(|line| println!("      | {line}"));
    }
    counts
}
