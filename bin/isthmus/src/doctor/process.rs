//! Checks of this process: descriptors, CPUs, variables, and restrictions of the system that do not matter.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use isthmus_client::{Options, Reason, WaitMode};
use isthmus_config::Role;
use rustix::fd::OwnedFd;
use rustix::process::{Resource, getrlimit};

use super::{Finding, Severity, cgroup};
use crate::environment;

/// The descriptors of a domain for each channel: the channel's memory and the peer's doorbell.
const FILES_PER_CHANNEL: usize = 2;
/// The default limit of peers of one domain.
const CHANNELS: usize = 1000;
/// The other descriptors: those of the program, of the daemon connection, and of regions.
const OTHER_FILES: usize = 128;

/// The limit of a round trip between two CPUs that run at the same time, which takes far less.
const ROUND_TRIP_MAX: Duration = Duration::from_micros(20);

/// Checks the variables of the environment.
pub(super) fn environment() -> Vec<Finding> {
    let (id, tried) = ("process.environment", "reading variables that begin with ISTHMUS_");
    let problems = environment::problems(&environment::inputs(Role::User));
    if problems.is_empty() {
        return vec![Finding::ok(id, tried, "all variables are known")];
    }
    let finding = |problem: &isthmus_config::Problem| {
        let result = format!("{}: {}", problem.origin, problem.wrong);
        let help = problem.help.clone().unwrap_or_else(|| "See `isthmus environment list`.".to_owned());
        Finding::note(id, tried, result).remedy(help)
    };
    problems.iter().map(finding).collect()
}

/// Returns the options of the library here, or reports why they are invalid.
pub(super) fn options(socket: Option<PathBuf>, findings: &mut Vec<Finding>) -> Option<Options> {
    match crate::daemon::options(socket) {
        Ok(options) => Some(options),
        Err(error) => {
            let finding = Finding::problem("process.options", "reading the library's variables", error.to_string());
            findings.push(finding.remedy("Correct the variable, or unset it; `isthmus environment list` shows all."));
            None
        }
    }
}

pub(super) fn check(findings: &mut Vec<Finding>) {
    findings.push(files());
    findings.push(spinning());
    findings.push(unused_facilities());
}

/// Checks the limit of descriptors: opens the number that [`CHANNELS`] need, and closes them again.
fn files() -> Finding {
    let id = "process.descriptors";
    let wanted = FILES_PER_CHANNEL * CHANNELS + OTHER_FILES;
    let tried = format!("opening {wanted} descriptors, as many as a domain with {CHANNELS} channels needs");
    let some = match File::open("/dev/null") {
        Ok(file) => file,
        Err(error) => return Finding::problem(id, tried, format!("/dev/null cannot be opened: {error}")),
    };
    let again = |_| rustix::io::fcntl_dupfd_cloexec(&some, 0).ok();
    let open: Vec<OwnedFd> = (0..wanted).map_while(again).collect();
    let limits = getrlimit(Resource::Nofile);
    let shown = |limit: Option<u64>| limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
    let limits = format!("limit {}, may be raised to {}", shown(limits.current), shown(limits.maximum));
    let channels = open.len().saturating_sub(OTHER_FILES) / FILES_PER_CHANNEL;
    match open.len() {
        count if count == wanted => Finding::ok(id, tried, format!("enough for {CHANNELS} channels ({limits})")),
        count if channels > 0 => {
            let result = format!("{count} could be opened, enough for about {channels} channels ({limits})");
            Finding::note(id, tried, result).because(Reason::OutOfFds)
        }
        count => {
            Finding::problem(id, tried, format!("only {count} could be opened ({limits})")).because(Reason::OutOfFds)
        }
    }
}

/// Checks whether two threads run at the same time, because spinning pays off only then.
fn spinning() -> Finding {
    let (id, tried) = ("cpu.spinning", "two threads that take turns without sleeping");
    let affinity = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count() as usize);
    let quota = cgroup::cpus();
    let cpus = match quota {
        Some(quota) => format!("{affinity} CPUs by affinity, time for {quota:.2} by the control group"),
        None => format!("{affinity} CPUs by affinity, no quota"),
    };
    let enough = affinity >= 2 && quota.is_none_or(|quota| quota >= 2.0);
    let round_trip = if affinity >= 2 { round_trip() } else { None };
    let measured = match round_trip {
        Some(ns) => format!("a round trip of {:.2} us", ns as f64 / 1e3),
        None => "no round trip, with one CPU".to_owned(),
    };
    let sane = round_trip.is_some_and(|ns| u128::from(ns) < ROUND_TRIP_MAX.as_nanos());
    let result = format!("{measured}; {cpus}");
    if enough && sane {
        return Finding::ok(id, tried, format!("spinning pays off: {result}"));
    }
    let finding = Finding::note(id, tried, format!("spinning does not pay off: {result}"));
    let severity = if spins() { Severity::Problem } else { Severity::Warning };
    let remedy =
        "Keep ISTHMUS_WAIT=adaptive, which is the default, or set ISTHMUS_WAIT=sleep; or give the program two CPUs.";
    Finding { severity, ..finding.remedy(remedy) }
}

/// Returns whether the environment selects waiting without sleep.
fn spins() -> bool {
    Options::from_environment().is_ok_and(|options| options.wait == WaitMode::Spin)
}

/// Returns the median of round trips in nanoseconds over 20 ms. None if no round trip completed.
fn round_trip() -> Option<u64> {
    const STOP: u64 = u64::MAX;
    let word = AtomicU64::new(0);
    let deadline = Instant::now() + Duration::from_millis(20);
    let mut times = thread::scope(|scope| {
        scope.spawn(|| {
            let mut expected = 1;
            loop {
                match word.load(Ordering::Relaxed) {
                    STOP => return,
                    seen if seen == expected => {
                        word.store(expected + 1, Ordering::Relaxed);
                        expected += 2;
                    }
                    _ => std::hint::spin_loop(),
                }
            }
        });
        let mut times = Vec::new();
        let mut count = 0;
        while Instant::now() < deadline {
            let start = Instant::now();
            word.store(count + 1, Ordering::Relaxed);
            count += 2;
            while word.load(Ordering::Relaxed) != count {
                std::hint::spin_loop();
            }
            times.push(start.elapsed().as_nanos() as u64);
        }
        word.store(STOP, Ordering::Relaxed);
        times
    });
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// Reports the restrictions on facilities that the fast paths of other systems need, and Isthmus does not.
fn unused_facilities() -> Finding {
    let first_line = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let yama = first_line("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_else(|| "absent".to_owned());
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let seccomp = match status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim) {
        Some("0") => "off",
        Some(_) => "on",
        None => "not shown",
    };
    let result =
        format!("yama {yama}, seccomp {seccomp}: neither matters, because no process accesses the memory of another");
    Finding::ok("kernel.ptrace", "reading the restrictions of ptrace and process_vm_readv", result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_finish_with_a_result() {
        let mut findings = Vec::new();
        check(&mut findings);
        assert_eq!(
            findings.iter().map(|finding| finding.id).collect::<Vec<_>>(),
            ["process.descriptors", "cpu.spinning", "kernel.ptrace"]
        );
        assert!(findings.iter().all(|finding| !finding.result.is_empty() && !finding.check.is_empty()), "{findings:?}");
    }
}
