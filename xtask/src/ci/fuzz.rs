//! Each fuzz target for some seconds.
//!
//! The targets of `fuzz/` are libFuzzer programs, laid out as cargo-fuzz wants them, and built here without it: the
//! instrumentation is a few compiler flags. With nightly the address sanitizer is added. New inputs go to
//! `target/fuzz/corpus`, the corpus in the tree is only read; an input that breaks something goes to `fuzz/artifacts`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::step::{Log, Outcome};
use super::steps::{cargo, has_nightly};
use crate::cmd;

/// The flags that cargo-fuzz passes, too.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Ccodegen-units=1";

pub(super) fn run(log: &Log) -> Result<Outcome> {
    let fuzz = cmd::root().join("fuzz");
    if !fuzz.join("Cargo.toml").is_file() {
        return Ok(Outcome::skipped("there is no fuzz/Cargo.toml yet"));
    }
    let host = host()?;
    let built = log.run(build_command(&host))?;
    if built.counts().failed > 0 {
        return Ok(built);
    }
    let mut outcome: Option<Outcome> = None;
    let names = targets(&fuzz)?;
    for name in &names {
        let one = log.run(run_command(&fuzz, &host, name, log.fuzz_s)?)?;
        let one = if one.counts().failed > 0 { Outcome::failed(name.clone()).and(one) } else { one };
        outcome = Some(outcome.into_iter().fold(one, |all, one| one.and(all)));
    }
    let said = format!("{} targets, {} s each", names.len(), log.fuzz_s);
    Ok(outcome.map_or_else(|| Outcome::skipped("there are no fuzz targets yet"), |outcome| outcome.titled(&said)))
}

/// This machine's target. It is named in the build, so that build scripts and macros are left alone by the flags.
fn host() -> Result<String> {
    let said = cmd::output("rustc", &["-vV"]).context("cannot ask rustc")?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc names no host")
}

fn build_command(host: &str) -> Command {
    let nightly = has_nightly();
    let mut command = if nightly { cargo(&["+nightly", "build"]) } else { cargo(&["build"]) };
    let flags = if nightly { format!("{COVERAGE} -Zsanitizer=address") } else { COVERAGE.to_owned() };
    command.env("RUSTFLAGS", flags);
    command.args(["--manifest-path", "fuzz/Cargo.toml", "--release", "--bins"]);
    command.args(["--target", host, "--target-dir", "target/fuzz"]);
    command
}

/// The names of the programs in `fuzz/fuzz_targets`.
fn targets(fuzz: &Path) -> Result<Vec<String>> {
    let folder = fuzz.join("fuzz_targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let file = entry?.path();
        if file.extension().is_some_and(|suffix| suffix == "rs") {
            names.extend(file.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

fn run_command(fuzz: &Path, host: &str, name: &str, seconds: u32) -> Result<Command> {
    let made =
        |folder: PathBuf| fs::create_dir_all(&folder).map(|()| folder).context("cannot make a folder for fuzzing");
    let found = made(cmd::root().join("target/fuzz/corpus").join(name))?;
    let artifacts = made(fuzz.join("artifacts").join(name))?;
    let kept = fuzz.join("corpus").join(name);
    let program = cmd::root().join("target/fuzz").join(host).join("release").join(name);
    let mut command = cmd::command(&program.to_string_lossy());
    command.args([format!("-max_total_time={seconds}"), format!("-artifact_prefix={}/", artifacts.display())]);
    command.args(["-print_final_stats=1", "-timeout=10", "-rss_limit_mb=2048"]).arg(found);
    if kept.is_dir() {
        command.arg(kept);
    }
    Ok(command)
}
