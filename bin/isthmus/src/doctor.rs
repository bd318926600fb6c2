//! `isthmus doctor`: tries what Isthmus needs rather than reading what is set, and says what to do about what does not work.
//!
//! ```text
//! daemon ── does it answer, whose is it, do the versions fit, is its folder safe
//! pair ──── two domains: attach, talk to oneself, talk to each other, get a channel, send large messages
//! guest ─── the device, its driver, how its window is cached; where there is one
//! xen ───── nodes, grants, whom domain 0 lets attach; in a domain of Xen
//! memory ── sealed files, buffers moved onto shared pages, limits, huge pages
//! process ─ descriptors, CPUs to spin on, variables, what the system forbids and we do not need
//! ```
//!
//! It starts no daemon, and leaves nothing: its domains, files and descriptors end with it.

mod cgroup;
mod daemon;
mod guest;
mod memory;
mod pair;
mod process;
mod xen;

use std::path::PathBuf;

use anyhow::Result;
use isthmus_client::{Reason, Refusal};
use serde::Serialize;

use crate::output::{Outcome, Output, counted};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    /// It works.
    Ok,
    /// It works, or need not, and somebody may want to know.
    Warning,
    /// Something that programs rely on does not work.
    Problem,
}

/// What came of one trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    /// Stays the same for ever.
    id: &'static str,
    severity: Severity,
    check: String,
    result: String,
    /// What to do, where something can be done.
    remedy: Option<String>,
    /// The reason in the table, where the table has it.
    reason: Option<&'static str>,
}

impl Finding {
    fn ok(id: &'static str, check: impl Into<String>, result: impl Into<String>) -> Self {
        Self { id, severity: Severity::Ok, check: check.into(), result: result.into(), remedy: None, reason: None }
    }

    fn note(id: &'static str, check: impl Into<String>, result: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::ok(id, check, result) }
    }

    fn problem(id: &'static str, check: impl Into<String>, result: impl Into<String>) -> Self {
        Self { severity: Severity::Problem, ..Self::ok(id, check, result) }
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// A reason of the table, which brings its remedy.
    fn because(mut self, reason: Reason) -> Self {
        self.reason = Some(reason.name());
        self.remedy(reason.remedy())
    }

    /// A trial that was refused.
    fn refused(id: &'static str, check: impl Into<String>, refusal: &Refusal) -> Self {
        Self::problem(id, check, refusal.to_string()).because(refusal.reason)
    }
}

#[derive(Serialize)]
struct Report {
    /// The worst of all.
    severity: Severity,
    findings: Vec<Finding>,
}

pub(crate) fn run(output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    let mut findings = process::environment();
    if let Some(options) = process::options(socket, &mut findings) {
        let answers = daemon::check(&options, &mut findings);
        if answers {
            pair::check(&options, &mut findings);
        }
    }
    guest::check(&mut findings);
    xen::check(&mut findings);
    memory::check(&mut findings);
    process::check(&mut findings);
    let severity = findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok);
    let report = Report { severity, findings };
    output.result("doctor", &report, || text(&report))?;
    Ok(if severity == Severity::Problem { Outcome::Failed } else { Outcome::Done })
}

fn text(report: &Report) -> String {
    let width = report.findings.iter().map(|finding| finding.id.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in &report.findings {
        let sign = match finding.severity {
            Severity::Ok => "ok     ",
            Severity::Warning => "warning",
            Severity::Problem => "PROBLEM",
        };
        text.push_str(&format!("{sign}  {:width$}  {}\n", finding.id, finding.result));
        let gap = " ".repeat(width + 11);
        if finding.severity != Severity::Ok {
            text.push_str(&format!("{gap}check: {}\n", finding.check));
        }
        if let Some(remedy) = &finding.remedy {
            text.push_str(&format!("{gap}remedy: {remedy}\n"));
        }
    }
    let count = |severity| report.findings.iter().filter(|finding| finding.severity == severity).count();
    let (ok, warnings, problems) = (count(Severity::Ok), count(Severity::Warning), count(Severity::Problem));
    let (warnings, problems) = (counted(warnings, "warning"), counted(problems, "problem"));
    text.push_str(&format!("\n{ok} ok, {warnings}, {problems}\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_the_check_of_each_problem() {
        let findings = vec![
            Finding::ok("memory.sealed", "sealing a memory file", "sealed"),
            Finding::problem("daemon.reachable", "connecting", "nobody answers").because(Reason::DaemonUnreachable),
        ];
        let text = text(&Report { severity: Severity::Problem, findings });
        assert!(
            text.starts_with("ok       memory.sealed     sealed\nPROBLEM  daemon.reachable  nobody answers\n"),
            "{text}"
        );
        assert!(text.contains("\n                           check: connecting\n"), "{text}");
        assert!(
            text.contains("remedy: Start `isthmusd`") && text.ends_with("\n1 ok, 0 warnings, 1 problem\n"),
            "{text}"
        );
    }
}
