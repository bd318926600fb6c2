//! `isthmus doctor`: tries the operations that Isthmus needs, rather than reading settings, and names a remedy for each that fails.
//!
//! ```text
//! daemon ── whether it answers, its user and version, the safety of its folder
//! pair ──── two domains: attach, loopback, messages, a channel, large messages
//! sockets ─ the library of TCP programs, the daemon's setting, TCP timestamps
//! others ── the checks of other capabilities, from the list of capabilities
//! guest ─── the device, its driver, the caching of its window; only in a guest with a device
//! xen ───── nodes, grants, the permission of domain 0; only in a Xen domain
//! memory ── sealed files, buffers moved onto shared pages, limits, huge pages
//! process ─ descriptors, CPUs to spin on, variables, restrictions that do not matter
//! ```
//!
//! No daemon is started, and nothing is left: the domains, files and descriptors end with the process.

mod cgroup;
mod daemon;
mod guest;
mod memory;
mod pair;
mod process;
mod sockets;
mod xen;

use std::path::{Path, PathBuf};

use anyhow::Result;
use isthmus_client::{Options, Reason, Refusal};
use serde::Serialize;

use crate::capability::{CHECKS, PROGRAM_CAPABILITIES};
use crate::output::{Outcome, Output, counted};

pub(crate) use daemon::unexpected;
pub(crate) use sockets::preload;

/// The importance of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// The operation works.
    Ok,
    /// The operation works with a restriction, or is not needed.
    Warning,
    /// An operation that programs need does not work.
    Problem,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The identifier, which does not change between versions.
    pub(crate) id: &'static str,
    pub(crate) severity: Severity,
    check: String,
    pub(crate) result: String,
    /// The remedy, if there is one.
    pub(crate) remedy: Option<String>,
    /// The reason, if the table of reasons has one.
    reason: Option<&'static str>,
}

impl Finding {
    pub(crate) fn ok(id: &'static str, check: impl Into<String>, result: impl Into<String>) -> Self {
        Self { id, severity: Severity::Ok, check: check.into(), result: result.into(), remedy: None, reason: None }
    }

    pub(crate) fn note(id: &'static str, check: impl Into<String>, result: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::ok(id, check, result) }
    }

    pub(crate) fn problem(id: &'static str, check: impl Into<String>, result: impl Into<String>) -> Self {
        Self { severity: Severity::Problem, ..Self::ok(id, check, result) }
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds a reason of the table, with its remedy.
    fn because(mut self, reason: Reason) -> Self {
        self.reason = Some(reason.name());
        self.remedy(reason.remedy())
    }

    /// Returns the finding about a refused operation. What is to come in guests is no problem there.
    fn refused(id: &'static str, check: impl Into<String>, refusal: &Refusal) -> Self {
        let severity = if refusal.reason == Reason::NotInGuestsYet { Severity::Warning } else { Severity::Problem };
        Self { severity, ..Self::ok(id, check, refusal.to_string()) }.because(refusal.reason)
    }
}

/// The place that the checks of a capability look at.
pub(crate) struct CheckPlace<'a> {
    /// The daemon's socket, if it was given.
    pub(crate) socket: Option<&'a Path>,
    /// The way to the daemon, if it answers.
    pub(crate) daemon: Option<&'a Options>,
}

#[derive(Serialize)]
struct Report {
    /// The highest severity of the findings.
    severity: Severity,
    findings: Vec<Finding>,
}

pub(crate) fn run(output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    let mut findings = process::environment();
    let options = process::options(socket.clone(), &mut findings);
    let daemon = options.as_ref().filter(|options| daemon::check(options, &mut findings));
    if let Some(options) = daemon {
        pair::check(options, &mut findings);
        findings.extend(sockets::enabled(options));
    }
    sockets::check(&mut findings);
    let place = CheckPlace { socket: socket.as_deref(), daemon };
    for check in PROGRAM_CAPABILITIES.iter().filter_map(|row| row.doctor).chain(CHECKS) {
        check(&place, &mut findings);
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
        let gap = " ".repeat(width + 11);
        // A reported text does not look like a finding of its own.
        let result = finding.result.replace('\n', &format!("\n{gap}"));
        text.push_str(&format!("{sign}  {:width$}  {result}\n", finding.id));
        if finding.severity != Severity::Ok {
            text.push_str(&format!("{gap}check: {}\n", finding.check));
        }
        if let Some(remedy) = &finding.remedy {
            text.push_str(&format!("{gap}remedy: {}\n", remedy.replace('\n', &format!("\n{gap}"))));
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
    fn capability_that_guests_do_not_have_yet_is_a_warning_with_its_name() {
        let refusal = Refusal::not_in_guests_yet(isthmus_layout::Capability::Overlay);
        let finding = Finding::refused("overlay", "asking", &refusal);
        assert_eq!((finding.severity, finding.reason), (Severity::Warning, Some("not-in-guests-yet")));
        assert!(finding.result.contains("guests yet: overlay") && finding.remedy.is_some(), "{finding:?}");
        let other = Refusal::from(Reason::DaemonUnreachable);
        assert_eq!(Finding::refused("overlay", "asking", &other).severity, Severity::Problem);
    }

    #[test]
    fn text_names_the_check_of_each_problem() {
        let findings = vec![
            Finding::ok("memory.sealed", "sealing a memory file", "sealed"),
            Finding::problem("daemon.reachable", "connecting", "no daemon answers").because(Reason::DaemonUnreachable),
        ];
        let text = text(&Report { severity: Severity::Problem, findings });
        assert!(
            text.starts_with("ok       memory.sealed     sealed\nPROBLEM  daemon.reachable  no daemon answers\n"),
            "{text}"
        );
        assert!(text.contains("\n                           check: connecting\n"), "{text}");
        assert!(
            text.contains("remedy: Start `isthmusd`") && text.ends_with("\n1 ok, 0 warnings, 1 problem\n"),
            "{text}"
        );
    }
}
