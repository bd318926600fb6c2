//! Checks of sockets: the library, the daemon's settings, and the timestamps by which it compares sockets of two network namespaces.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use isthmus_client::{Options, Topic};
use isthmus_report::StreamsReport;

use super::{Finding, daemon};
use crate::daemon::{Daemon, read};
use crate::run::installed_folder;
use crate::sockets::LIBRARY;

const TIMESTAMPS: &str = "/proc/sys/net/ipv4/tcp_timestamps";

/// Checks what concerns this process.
pub(super) fn check(findings: &mut Vec<Finding>) {
    findings.push(library());
    findings.push(timestamps(fs::read_to_string(TIMESTAMPS).ok().as_deref()));
}

/// Checks whether the daemon makes streams.
pub(super) fn enabled(options: &Options) -> Finding {
    let (id, tried) = ("sockets.enabled", "querying whether the daemon makes streams of TCP connections");
    let report = Daemon::connect(options).and_then(|mut daemon| daemon.ask(Topic::Streams, &[]));
    match report.and_then(|answer| read::<StreamsReport>(&answer)) {
        Ok(report) if report.enabled => {
            let within =
                if report.across == Some(false) { ", within one network namespace (`sockets.across`)" } else { "" };
            Finding::ok(id, tried, format!("it does{within}; {} since its start", report.paired))
        }
        Ok(_) => Finding::note(id, tried, "switched off: TCP programs use TCP")
            .remedy("Set `sockets.enabled = true` in the daemon's configuration, and restart the daemon."),
        Err(error) => daemon::unexpected(id, tried, &error),
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
        Ok(()) => Finding::ok(id, tried, format!("{} can be loaded", library.display())),
        Err(why) => Finding::problem(id, tried, why).remedy(
            "Build the library where programs run: `make build`, then `make install`. A container needs a C library as new as the host's.",
        ),
    }
}

/// Starts this program with the library. The loader writes to standard error if it cannot load it.
pub(crate) fn preload(library: &Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new(program);
    command.arg("--version").env("LD_PRELOAD", library).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("cannot start this program: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    match stderr.lines().next() {
        None if output.status.success() => Ok(()),
        None => Err(format!("the program ended with {}", output.status)),
        Some(line) => Err(line.to_owned()),
    }
}

/// Checks the setting of TCP timestamps. Without the file, as in some containers, the kernel decides.
fn timestamps(setting: Option<&str>) -> Finding {
    let (id, tried) = ("sockets.timestamps", format!("reading {TIMESTAMPS}"));
    match setting.map(str::trim) {
        Some("0") => Finding::note(id, tried, "off: connections between two network namespaces stay on TCP").remedy(
            "None needed unless `sockets.across` is true: then run `sysctl -w net.ipv4.tcp_timestamps=1` in both.",
        ),
        Some(value) => Finding::ok(id, tried, format!("on ({value})")),
        None => Finding::note(id, tried, "the setting cannot be read")
            .remedy("None needed if connections between containers become streams: see `isthmus stream list`."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;

    #[test]
    fn timestamps_that_are_off_are_a_warning_with_remedy() {
        for (setting, severity) in
            [(Some("1\n"), Severity::Ok), (Some("0\n"), Severity::Warning), (None, Severity::Warning)]
        {
            let finding = timestamps(setting);
            assert_eq!(
                (finding.severity, finding.remedy.is_some()),
                (severity, severity != Severity::Ok),
                "{setting:?}"
            );
        }
    }
}
