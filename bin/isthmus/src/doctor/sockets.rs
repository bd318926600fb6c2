//! Checks of sockets: the library, the daemon's settings, and whether the kernel records connections for it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use isthmus_client::{Options, Topic};
use isthmus_report::StreamsReport;

use super::{Finding, daemon};
use crate::daemon::{Daemon, read};
use crate::program_file::Linking;
use crate::run::installed_folder;
use crate::sockets::{LIBRARY, off_reason};

/// The time that the daemon has to ask the helper. It asks once a second at most.
const ASKED_AGAIN: Duration = Duration::from_millis(1500);

/// Checks what concerns this process.
pub(super) fn check(findings: &mut Vec<Finding>) {
    findings.push(library());
}

/// Checks whether the daemon makes streams, and between which programs.
pub(super) fn enabled(options: &Options) -> Vec<Finding> {
    let (id, tried) = ("sockets.enabled", "querying whether the daemon makes streams of TCP connections");
    match report(options) {
        Ok(report) if report.enabled => {
            let enabled = Finding::ok(id, tried, format!("it does; {} since its start", report.paired));
            vec![enabled, records(report.unrecorded.as_deref())]
        }
        Ok(_) => vec![
            Finding::note(id, tried, "switched off: TCP programs use TCP")
                .remedy("Set `sockets.enabled = true` in the daemon's configuration, and restart the daemon."),
        ],
        Err(error) => vec![daemon::unexpected(id, tried, &error)],
    }
}

/// Asks for the report about streams, for up to [`ASKED_AGAIN`] if connections are not recorded: the first question makes the daemon ask the
/// helper, which may have been started since.
fn report(options: &Options) -> anyhow::Result<StreamsReport> {
    let mut daemon = Daemon::connect(options)?;
    let until = Instant::now() + ASKED_AGAIN;
    loop {
        let report: StreamsReport = read(&daemon.ask(Topic::Streams, &[])?)?;
        if report.unrecorded.is_none() || !report.enabled || Instant::now() >= until {
            return Ok(report);
        }
        std::thread::sleep(ASKED_AGAIN / 10);
    }
}

/// Checks that a program starts with the library.
fn library() -> Finding {
    let id = "sockets.library";
    let folder = match installed_folder(LIBRARY) {
        Ok(folder) => folder,
        Err(error) => {
            return Finding::note(
                id,
                "finding the library of sockets",
                format!("{}: TCP programs use TCP", crate::output::causes(&error)),
            )
            .remedy("Run `make build`, or `make install` for an installation.");
        }
    };
    let library = folder.join(LIBRARY);
    let tried = format!("starting a program with LD_PRELOAD={}", library.display());
    match preload(&library) {
        Ok(()) if let Some(why) = off_reason() => {
            Finding::note(id, tried, format!("{why}: TCP programs that are started here use TCP"))
                .remedy("Unset the variable; `isthmus environment list` shows all.")
        }
        Ok(()) => Finding::ok(id, tried, format!("{} can be loaded", library.display())),
        Err(why) => Finding::problem(id, tried, why).remedy(
            "Build the library where programs run: `make build`, then `make install`. A container needs a C library as new as the host's.",
        ),
    }
}

/// Starts a program with the library. The loader writes to standard error if it cannot load it.
pub(crate) fn preload(library: &Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let is_dynamic = File::open(&program).and_then(|file| Linking::read(&file)).ok().flatten() != Some(Linking::Static);
    // Nothing loads libraries for a static program, as in guests.
    let (program, arguments) = if is_dynamic { (program, &["--version"][..]) } else { (PathBuf::from("env"), &[][..]) };
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", library).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("cannot start a program: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    match stderr.lines().next() {
        None if output.status.success() => Ok(()),
        None => Err(format!("the program ended with {}", output.status)),
        Some(line) => Err(line.to_owned()),
    }
}

/// Checks whether the kernel records connections for a daemon with streams.
fn records(unrecorded: Option<&str>) -> Finding {
    let (id, tried) = ("sockets.records", "querying whether the kernel records connections for the daemon");
    match unrecorded {
        None => Finding::ok(id, tried, "it does: streams connect programs in any network namespaces"),
        Some(why) => {
            let remedy = match why {
                why if why.contains("connection_records") => "set it to true, and restart the daemon",
                why if why.contains("cgroup2") => "mount one, and restart the daemon",
                _ => "for the daemon of the system run `systemctl enable --now isthmus-helper.socket`",
            };
            let result = format!("streams exist within one network namespace only: {why}");
            let remedy =
                format!("None needed without containers. Otherwise {remedy}; `docs/reference/sockets.md` has more.");
            Finding::note(id, tried, result).remedy(remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;

    #[test]
    fn missing_records_are_named_with_a_remedy() {
        let row = |unrecorded: Option<&str>| {
            let finding = records(unrecorded);
            (finding.severity, finding.remedy.is_some(), finding.result.contains("no helper"))
        };
        assert_eq!(row(None), (Severity::Ok, false, false));
        assert_eq!(row(Some("no helper")), (Severity::Warning, true, true));
        let remedy = |why| records(Some(why)).remedy.unwrap();
        assert!(remedy("`sockets.connection_records` is false").contains("set it to true"));
        assert!(remedy("no helper").contains("isthmus-helper.socket"));
    }
}
