//! The context of a CI step, its commands, and its outcome.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::slowest::{self, Timed};
use crate::cmd;

/// The time after which a test program is ended: one that hangs is a failure, with a log. On a quiet machine the longest takes a fifth.
const PROGRAM_MAX: Duration = Duration::from_secs(1500);

/// The time after which any other command is ended, and a test program with `--long`.
const COMMAND_MAX: Duration = Duration::from_secs(3600);

/// The time after which all commands of a run are ended, so that its report comes even if several hang. A run takes less than half of it on
/// a quiet machine.
const RUN_MAX: Duration = Duration::from_secs(82 * 60);

/// The pause between two reads of the output of a command.
const LOOK: Duration = Duration::from_millis(50);

/// The number of lines at the beginning and at the end of a failed command's log that are shown. The end is longer because a test's panic
/// follows what it printed before.
const SHOWN_LINES: [usize; 2] = [15, 60];

/// Where the steps run.
pub(super) struct CiContext {
    pub(super) logs: PathBuf,
    pub(super) fuzz_s: u32,
    limits: Limits,
}

/// The time that commands have.
#[derive(Clone, Copy)]
struct Limits {
    program: Duration,
    /// The end of the run, where that is limited.
    end: Option<Instant>,
}

impl Limits {
    /// Returns the seconds that a command has which starts now: one at least, because 0 is no limit for `timeout`.
    fn seconds(self, limit: Duration) -> u64 {
        let left = self.end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        limit.min(left).as_secs().max(1)
    }
}

impl CiContext {
    /// The context of a run that starts now.
    pub(super) fn new(logs: PathBuf, fuzz_s: u32, long: bool) -> Self {
        let limits = match long {
            true => Limits { program: COMMAND_MAX, end: None },
            false => Limits { program: PROGRAM_MAX, end: Some(Instant::now() + RUN_MAX) },
        };
        Self { logs, fuzz_s, limits }
    }

    /// The empty log of a step, or of one of its jobs.
    pub(super) fn log(&self, name: &str) -> Log {
        let file = self.logs.join(format!("{name}.log"));
        drop(fs::remove_file(&file)); // Not there the first time.
        Log { file, fuzz_s: self.fuzz_s, limits: self.limits }
    }
}

/// Tests, or checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: u32,
    pub(super) failed: u32,
    pub(super) skipped: u32,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// The outcome of a step.
#[derive(Debug)]
pub(super) struct Outcome {
    counts: Counts,
    said: String,
    detail: Option<String>,
    /// The reasons for skipped tests; `None` if no tests ran.
    reasons: Option<Vec<String>>,
    timed: Vec<Timed>,
}

impl Outcome {
    pub(super) fn passed(said: impl Into<String>) -> Self {
        Self {
            counts: Counts { passed: 1, ..Counts::default() },
            said: said.into(),
            detail: None,
            reasons: None,
            timed: Vec::new(),
        }
    }

    pub(super) fn failed(said: impl Into<String>) -> Self {
        Self {
            counts: Counts { failed: 1, ..Counts::default() },
            said: said.into(),
            detail: None,
            reasons: None,
            timed: Vec::new(),
        }
    }

    pub(super) fn skipped(why: impl Into<String>) -> Self {
        Self {
            counts: Counts { skipped: 1, ..Counts::default() },
            said: why.into(),
            detail: None,
            reasons: None,
            timed: Vec::new(),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// One line.
    pub(super) fn message(&self) -> String {
        let tests = self.reasons.as_ref().map(|reasons| (describe(self.counts), reasons.join("; ")));
        let (tests, reasons) = tests.unwrap_or_default();
        let parts = [tests, reasons, self.said.clone()].into_iter().filter(|said| !said.is_empty());
        parts.collect::<Vec<_>>().join(": ")
    }

    /// The end of the log, after a failure.
    pub(super) fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// The duration of each test, where that is known.
    pub(super) fn timed(&self) -> &[Timed] {
        &self.timed
    }

    /// Puts a program's name before the names of its tests.
    pub(super) fn timed_in(mut self, program: &str) -> Self {
        self.timed.iter_mut().for_each(|test| test.name = format!("{program}: {}", test.name));
        self
    }

    /// Puts a title before the output.
    pub(super) fn titled(mut self, title: &str) -> Self {
        self.said = format!("{title} {}", self.said).trim_end().to_owned();
        self
    }

    /// Two commands of one step: their tests in one sum.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.counts += other.counts;
        self.timed.extend(other.timed);
        let said = [self.said, other.said].into_iter().filter(|said| !said.is_empty());
        self.said = said.collect::<Vec<_>>().join("; ");
        self.detail = [self.detail, other.detail].into_iter().flatten().reduce(|a, b| format!("{a}\n{b}"));
        self.reasons = [self.reasons, other.reasons].into_iter().flatten().reduce(|a, b| {
            let all: BTreeSet<String> = a.into_iter().chain(b).collect();
            all.into_iter().collect()
        });
        self
    }
}

/// The log of a step, to which its commands write.
pub(super) struct Log {
    file: PathBuf,
    pub(super) fuzz_s: u32,
    limits: Limits,
}

impl Log {
    /// Runs a command to its end: passed or failed.
    pub(super) fn run(&self, command: Command) -> Result<Outcome> {
        Ok(self.run_for_output(command)?.0)
    }

    /// Runs a command to its end; also returns its output.
    pub(super) fn run_for_output(&self, command: Command) -> Result<(Outcome, String)> {
        let ran = self.execute(command, COMMAND_MAX)?;
        let outcome = match ran.ended_well {
            true => Outcome::passed(""),
            false => self.failure(Counts { failed: 1, ..Counts::default() }, &ran.text()),
        };
        Ok((outcome, ran.text()))
    }

    /// Runs a command that runs tests, and counts them.
    pub(super) fn run_tests(&self, command: Command) -> Result<Outcome> {
        let ran = self.execute(command, COMMAND_MAX)?;
        Ok(self.tests_in(&ran))
    }

    /// Runs a test program on `threads` threads, counts its tests and measures each.
    pub(super) fn run_timed(&self, mut command: Command, threads: usize) -> Result<Outcome> {
        command.arg(format!("--test-threads={threads}"));
        let ran = self.execute(command, self.limits.program)?;
        let timed = slowest::tests(&ran.lines, threads);
        Ok(Outcome { timed, ..self.tests_in(&ran) })
    }

    fn tests_in(&self, ran: &Ran) -> Outcome {
        let text = ran.text();
        let mut counts = count_tests(&text);
        let reasons = Some(skip_reasons(&text).into_iter().map(str::to_owned).collect());
        if ran.ended_well {
            return Outcome { counts, said: String::new(), detail: None, reasons, timed: Vec::new() };
        }
        counts.failed = counts.failed.max(1);
        Outcome { reasons, ..self.failure(counts, &text) }
    }

    fn failure(&self, counts: Counts, text: &str) -> Outcome {
        let shown = failed_test_lines(text).join("\n");
        let file = self.file.strip_prefix(cmd::root()).unwrap_or(&self.file);
        let said = format!("(all of it in {})", file.display());
        Outcome { counts, said, detail: Some(shown), reasons: None, timed: Vec::new() }
    }

    /// Runs a command with its output in the log, for `limit` at most.
    fn execute(&self, command: Command, limit: Duration) -> Result<Ran> {
        let log = self.open()?;
        let mut reader = BufReader::new(File::open(&self.file)?);
        reader.seek(SeekFrom::End(0))?;
        let also = log.try_clone().context("cannot share the log")?;
        let start = Instant::now();
        let mut bounded = bounded(&command, self.limits.seconds(limit));
        let mut child = bounded.stdout(log).stderr(also).spawn().context("cannot start setpriv and timeout")?;
        let (mut lines, mut begun) = (Vec::new(), Vec::new());
        loop {
            let status = child.try_wait()?;
            // What has been written so far; the last line may not be whole yet.
            while reader.read_until(b'\n', &mut begun)? > 0 {
                if begun.ends_with(b"\n") || status.is_some() {
                    lines.push((start.elapsed(), String::from_utf8_lossy(&begun).trim_end_matches('\n').to_owned()));
                    begun.clear();
                }
            }
            match status {
                Some(status) => return Ok(Ran { ended_well: status.success(), lines }),
                None => thread::sleep(LOOK),
            }
        }
    }

    fn open(&self) -> Result<File> {
        let file = OpenOptions::new().create(true).append(true).open(&self.file);
        file.with_context(|| format!("cannot write {}", self.file.display()))
    }
}

/// Returns the command run below `timeout`, which ends it with all it started when its time is up, or when we die.
fn bounded(command: &Command, seconds: u64) -> Command {
    let mut bounded = cmd::command("setpriv");
    bounded.args(["--pdeathsig", "TERM", "timeout", "--kill-after=10", &seconds.to_string()]);
    bounded.env("TERM", "dumb").env("CARGO_TERM_COLOR", "never"); // The log is read as text.
    bounded.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bounded.env(name, value),
            None => bounded.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        bounded.current_dir(folder);
    }
    bounded
}

/// A command that has ended.
struct Ran {
    ended_well: bool,
    /// The lines of its output, each with the time since its start.
    lines: Vec<(Duration, String)>,
}

impl Ran {
    fn text(&self) -> String {
        self.lines.iter().flat_map(|(_, line)| [line, "\n"]).collect()
    }
}

/// Returns the lines of a failed command's output that say why: those that libtest prints of the tests that failed, or else the end of the
/// output.
fn failed_test_lines(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let mut shown = Vec::new();
    let mut inside = false;
    for line in &lines {
        inside = (inside || *line == "failures:") && !line.starts_with("test result:");
        if inside || line.starts_with("test result: FAILED") {
            shown.push(*line);
        }
    }
    if shown.is_empty() {
        shown = lines;
        shown.drain(..shown.len().saturating_sub(SHOWN_LINES[1]));
    }
    let [first, last] = SHOWN_LINES;
    if shown.len() > first + last {
        shown.splice(first..shown.len() - last, ["…"]);
    }
    shown
}

/// Why tests did not run here: each prints one line `skipped: why`, and returns.
fn skip_reasons(text: &str) -> Vec<&str> {
    let mut reasons: Vec<&str> = text.lines().filter_map(skip_reason).collect();
    reasons.sort_unstable();
    reasons.dedup();
    reasons
}

fn skip_reason(line: &str) -> Option<&str> {
    line.strip_prefix("skipped: ")
}

/// The sum of libtest's `test result:` lines; a test that said it was skipped did not pass.
fn count_tests(text: &str) -> Counts {
    let mut counts = Counts::default();
    for line in text.lines().filter_map(|line| line.strip_prefix("test result:")) {
        let number = |name: &str| {
            let part = line.split([';', '.']).find(|part| part.trim_end().ends_with(name));
            part.and_then(|part| part.split_whitespace().next()?.parse::<u32>().ok()).unwrap_or(0)
        };
        counts += Counts { passed: number(" passed"), failed: number(" failed"), skipped: number(" ignored") };
    }
    let said = u32::try_from(text.lines().filter_map(skip_reason).count()).unwrap_or(0).min(counts.passed);
    counts.passed -= said;
    counts.skipped += said;
    counts
}

fn describe(counts: Counts) -> String {
    let parts = [(counts.passed, "passed"), (counts.failed, "failed"), (counts.skipped, "skipped")];
    let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}"));
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn test_results_are_summed() {
        let text = "running 2 tests\ntest result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.0s\n\
                    test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        assert_eq!(count_tests(text), Counts { passed: 15, failed: 2, skipped: 1 });
    }

    #[test]
    fn skipped_test_is_not_counted_as_passed() {
        let text = "successes:\n\n---- in_a_sandbox stdout ----\nskipped: no user namespaces\n\n\
                    test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.0s\n";
        assert_eq!(count_tests(text), Counts { passed: 1, failed: 0, skipped: 1 });
        assert_eq!(skip_reasons(text), ["no user namespaces"]);
    }

    #[test]
    fn the_tests_that_failed_are_shown_wherever_they_stand() {
        let mut text = "successes:\n\n---- good stdout ----\nfine\n\nfailures:\n\n---- bad stdout ----\npanicked\n\n\
                        test result: FAILED. 1 passed; 1 failed; 0 ignored\n"
            .to_owned();
        text.push_str(&"successes:\n".repeat(200));
        let shown = failed_test_lines(&text);
        assert_eq!(shown.first(), Some(&"failures:"));
        assert!(shown.contains(&"panicked") && !shown.contains(&"fine"));
        assert_eq!(shown.last(), Some(&"test result: FAILED. 1 passed; 1 failed; 0 ignored"));
        assert_eq!(failed_test_lines("one\ntwo\n"), ["one", "two"]);
        let talkative = format!("failures:\n---- bad stdout ----\n{}panicked\n", "a line\n".repeat(1000));
        let shown = failed_test_lines(&talkative);
        assert_eq!((shown[1], shown.last()), ("---- bad stdout ----", Some(&"panicked")));
        assert_eq!(shown.len(), SHOWN_LINES[0] + 1 + SHOWN_LINES[1]);
    }

    fn log(folder: &Path) -> Log {
        CiContext::new(folder.to_path_buf(), 1, false).log("step")
    }

    fn shell(script: &str) -> Command {
        let mut command = cmd::command("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_command_that_fails_shows_the_end_of_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let outcome = log(folder.path()).run(shell("seq 140; exit 3")).unwrap();
        assert_eq!(outcome.counts().failed, 1);
        let shown = outcome.detail().unwrap();
        assert!(shown.starts_with("81\n") && shown.ends_with("\n140"), "{shown}");
    }

    #[test]
    fn a_command_that_hangs_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let end = Some(Instant::now());
        let log = Log { limits: Limits { program: PROGRAM_MAX, end }, ..log(folder.path()) };
        assert_eq!(log.run(shell("sleep 86400 & wait")).unwrap().counts().failed, 1);
    }

    #[test]
    fn commands_end_with_the_run() {
        let seconds = |end: Option<u64>| {
            let end = end.map(|s| Instant::now() + Duration::from_secs(s));
            Limits { program: PROGRAM_MAX, end }.seconds(PROGRAM_MAX)
        };
        assert_eq!([seconds(None), seconds(Some(1_000_000))], [PROGRAM_MAX.as_secs(); 2]);
        assert!(seconds(Some(100)) <= 100);
    }

    #[test]
    fn tests_that_do_not_build_are_one_failure() {
        let folder = tempfile::tempdir().unwrap();
        let outcome = log(folder.path()).run_tests(shell("echo error; exit 101")).unwrap();
        assert_eq!(outcome.counts(), Counts { failed: 1, ..Counts::default() });
    }

    #[test]
    fn each_command_of_a_step_is_read_alone() {
        let folder = tempfile::tempdir().unwrap();
        let log = log(folder.path());
        let result = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored;'";
        let outcome = log.run_tests(shell(result)).unwrap().and(log.run_tests(shell(result)).unwrap());
        assert_eq!(outcome.counts().passed, 4);
        assert_eq!(outcome.message(), "4 passed");
    }
}
