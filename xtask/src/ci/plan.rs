//! The choice of the steps that run, and the jobs that they are made of.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::binaries::{self, Binary};
use super::changed::{self, Changed};
use super::schedule::Cost;
use super::step::{CiContext, Outcome};
use super::steps::{self, Run, STEPS, Step, StepKind};
use super::workspace::{self, Package};
use super::{Args, Report};

/// The steps that run first because all steps with test programs need their results.
const NEEDED: [&str; 2] = ["build", "abi"];

/// The steps of one run.
pub(super) struct Plan {
    /// In the order of the list.
    pub(super) steps: Vec<&'static Step>,
    packages: Vec<Package>,
    changed: Option<Changed>,
    long: bool,
}

/// A command that runs beside others.
pub(super) struct Job {
    pub(super) step: &'static str,
    /// The name of its log.
    log: String,
    what: JobWork,
}

enum JobWork {
    Runs(Run),
    Tests(Binary),
}

impl Plan {
    pub(super) fn new(args: &Args) -> Result<Self> {
        if let Some(unknown) = args.only.iter().find(|name| STEPS.iter().all(|step| step.name != name.as_str())) {
            bail!("there is no step {unknown}; `cargo xtask ci --list` names them");
        }
        let packages = workspace::packages()?;
        let homeless = packages.iter().find(|package| STEPS.iter().all(|step| step.name != package.step()));
        ensure!(homeless.is_none(), "[package.metadata.ci] of {homeless:?} names no step");
        let changed = args.changed.as_ref().map(|base| changed::since(base, &packages)).transpose()?;
        let mut plan = Self { steps: Vec::new(), packages, changed, long: args.long };
        let wanted = |step: &&Step| {
            (args.only.is_empty() || args.only.iter().any(|name| name == step.name))
                && (step.quick || !args.quick)
                && (step.has_tests() || step.name == "fuzz" || !args.long)
                && plan.changed.as_ref().is_none_or(|changed| changed.concerns(step, &plan.packages))
        };
        let chosen: Vec<&Step> = STEPS.iter().filter(wanted).collect();
        let needed = chosen.iter().any(|step| step.has_tests());
        let is_chosen =
            |step: &&Step| chosen.iter().any(|other| other.name == step.name) || needed && NEEDED.contains(&step.name);
        plan.steps = STEPS.iter().filter(is_chosen).collect();
        Ok(plan)
    }

    /// Runs the steps that others need, and returns the jobs of all others in the order in which they should start.
    pub(super) fn run_first_steps(&self, context: &CiContext, report: &mut Report) -> Result<Vec<(Cost, Job)>> {
        let mut built: Option<Vec<Binary>> = None;
        for step in &self.steps {
            let StepKind::First(run) = step.kind else { continue };
            let (outcome, took) = timed(|| {
                let log = context.log(step.name);
                let outcome = run(&log)?;
                if step.name != NEEDED[0] || outcome.counts().failed > 0 {
                    return Ok(outcome);
                }
                let (outcome, binaries) = binaries::build(&log, &self.packages)?;
                built = (outcome.counts().failed == 0).then_some(binaries);
                Ok(outcome)
            });
            report.print(step.name, &outcome, took);
        }
        let mut jobs = Vec::new();
        for step in &self.steps {
            self.add_jobs(step, built.as_deref(), &mut jobs, context, report);
        }
        // What measures comes last: until then there is always something that fits beside what runs.
        jobs.sort_by_key(|(cost, job)| match (&job.what, cost) {
            (_, Cost::Alone) => 3,
            (JobWork::Tests(binary), _) if binary.is_first() => 0,
            (JobWork::Runs(_), _) => 1,
            (JobWork::Tests(_), _) => 2,
        });
        Ok(jobs)
    }

    fn add_jobs(
        &self,
        step: &Step,
        built: Option<&[Binary]>,
        jobs: &mut Vec<(Cost, Job)>,
        context: &CiContext,
        report: &mut Report,
    ) {
        let job = |cost, log: &str, what| (cost, Job { step: step.name, log: log.to_owned(), what });
        let others = match step.kind {
            StepKind::First(_) => return,
            StepKind::Beside(cost, run) => return jobs.push(job(cost, step.name, JobWork::Runs(run))),
            StepKind::Tests(others) => others,
            StepKind::TestsWith(fetch) => {
                let (outcome, took) = timed(|| fetch(&context.log(step.name)));
                if outcome.counts().passed == 0 {
                    return report.print(step.name, &outcome, took);
                }
                &[]
            }
        };
        let Some(built) = built else {
            return report.print(step.name, &Outcome::failed("its tests are not built"), Duration::ZERO);
        };
        let own = built.iter().filter(|binary| binary.step == step.name && self.wants(binary));
        let name = |binary: &Binary| format!("{}-{}-{}", step.name, binary.package.name, binary.target);
        jobs.extend(own.map(|binary| job(binary.cost(), &name(binary), JobWork::Tests(binary.clone()))));
        if !self.long {
            let others = others.iter();
            jobs.extend(
                others.map(|(name, run)| job(Cost::Builds, &format!("{}-{name}", step.name), JobWork::Runs(*run))),
            );
        }
    }

    fn wants(&self, binary: &Binary) -> bool {
        let changed = |changed: &Changed| changed.packages.contains(&binary.package.name);
        (!self.long || binary.is_long()) && self.changed.as_ref().is_none_or(changed)
    }
}

impl Changed {
    /// Returns whether a step checks something that differs.
    fn concerns(&self, step: &Step, packages: &[Package]) -> bool {
        let any_of = |names: &[&str]| names.iter().any(|name| self.packages.contains(*name));
        match step.name {
            "fmt" | "tidy" => true,
            "loom" => any_of(&[steps::SHM]),
            "miri" => any_of(&[steps::SHM, steps::LAYOUT]),
            "licences" | "deny" => self.dependencies,
            "fuzz" => self.fuzz,
            "clippy" | "plain" | "doc" | "bare" => !self.packages.is_empty(),
            _ => packages.iter().any(|package| package.step() == step.name && self.packages.contains(&package.name)),
        }
    }
}

impl Job {
    pub(super) fn run(&self, context: &CiContext, threads: usize, long: bool) -> Outcome {
        let log = context.log(&self.log);
        let outcome = match &self.what {
            JobWork::Runs(run) => run(&log),
            JobWork::Tests(binary) => {
                let of = format!("{} {}", binary.package.name, binary.target);
                log.run_timed(binary.command(long), threads).map(|outcome| outcome.timed_in(&of))
            }
        };
        outcome.unwrap_or_else(|error| Outcome::failed(format!("{error:#}")))
    }
}

/// Runs something; returns how it ended and how long it took.
fn timed(run: impl FnOnce() -> Result<Outcome>) -> (Outcome, Duration) {
    let start = Instant::now();
    let outcome = run().unwrap_or_else(|error| Outcome::failed(format!("{error:#}")));
    (outcome, start.elapsed())
}
