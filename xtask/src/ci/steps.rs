//! The steps of CI: what others need comes first, then what takes longest.

use std::process::Command;

use anyhow::Result;

use super::schedule::Cost;
use super::step::{Log, Outcome};
use super::{fuzz, licences, workspace};
use crate::tree::Tree;
use crate::{cmd, tidy};

/// A check.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// Part of `--quick`.
    pub(super) quick: bool,
    pub(super) kind: StepKind,
}

/// The time at which a step runs, and its function.
#[derive(Clone, Copy)]
pub(super) enum StepKind {
    /// Before all others, which need its results.
    First(Run),
    /// Beside others, as its cost allows.
    Beside(Cost, Run),
    /// The test programs of the packages that name this step, each beside others, and further commands that run tests.
    Tests(&'static [(&'static str, Run)]),
    /// The test programs of the packages that name this step, after the function has fetched their files.
    TestsWith(Run),
}

/// The function of a step.
pub(super) type Run = fn(&Log) -> Result<Outcome>;

impl Step {
    /// Returns whether the step runs test programs.
    pub(super) fn has_tests(&self) -> bool {
        matches!(self.kind, StepKind::Tests(_) | StepKind::TestsWith(_))
    }
}

const fn step(name: &'static str, what: &'static str, quick: bool, kind: StepKind) -> Step {
    Step { name, what, quick, kind }
}

pub(super) const STEPS: [Step; 21] = [
    step("fmt", "formats are rustfmt's", true, StepKind::First(fmt)),
    step("tidy", "rules the compiler does not know", true, StepKind::First(tidy_step)),
    step("build", "programs, and the test programs that start them", true, StepKind::First(build)),
    step("abi", "C libraries link, with versioned names", true, StepKind::First(abi)),
    step("guests", "guests of QEMU: MX, their windows, overlay networks", false, StepKind::TestsWith(fetch_guests)),
    step("clippy", "no warning of rustc or clippy", true, StepKind::Beside(Cost::Builds, clippy)),
    step(
        "plain",
        "programs build without the features that tests ask for",
        false,
        StepKind::Beside(Cost::Builds, plain),
    ),
    step("test", "tests of every crate", true, StepKind::Tests(&[("doc", test_docs), ("xdp", test_features)])),
    step("suites", "tests of the built programs, in namespaces", true, StepKind::Tests(&[])),
    step("mx", "MX between hosts made of namespaces", true, StepKind::Tests(&[])),
    step("sockets", "programs that use TCP, on one host and in containers", true, StepKind::Tests(&[])),
    step("verbs", "stock RDMA programs on the plug-in of libibverbs", true, StepKind::Tests(&[])),
    step("overlay", "networks of containers on several hosts", true, StepKind::Tests(&[])),
    step("fabric", "stock MPIs on the libfabric provider", false, StepKind::Tests(&[])),
    step("loom", "every interleaving of the shared-memory code", false, StepKind::Beside(Cost::Builds, loom)),
    step(
        "miri",
        "layout and shared memory under miri, little and big endian",
        false,
        StepKind::Beside(Cost::Builds, miri),
    ),
    step(
        "bare",
        "crates without std build for a target that has none",
        false,
        StepKind::Beside(Cost::Builds, no_std_build),
    ),
    step("doc", "documentation builds without warnings", false, StepKind::Beside(Cost::Builds, doc)),
    step(
        "licences",
        "licences of all dependencies are in deny.toml",
        false,
        StepKind::Beside(Cost::Waits, licences::check),
    ),
    step("deny", "cargo-deny: advisories, bans, sources", false, StepKind::Beside(Cost::Waits, deny)),
    step("fuzz", "each fuzz target for some seconds", false, StepKind::Beside(Cost::Builds, fuzz::run)),
];

pub(super) const SHM: &str = "isthmus-shm";
pub(super) const LAYOUT: &str = "isthmus-layout";
const LINK: &str = "isthmus-link";

/// A target without std, and one that is big endian.
const NO_STD_TARGET: &str = "x86_64-unknown-none";
const BIG_ENDIAN_TARGET: &str = "s390x-unknown-linux-gnu";

/// Returns true if `cargo +nightly` works.
pub(super) fn has_nightly() -> bool {
    cmd::succeeds("cargo", &["+nightly", "--version"])
}

pub(super) fn cargo(args: &[&str]) -> Command {
    let mut command = cmd::command("cargo");
    command.args(args);
    command
}

fn fmt(log: &Log) -> Result<Outcome> {
    if !cmd::succeeds("cargo", &["fmt", "--version"]) {
        return Ok(Outcome::skipped("rustfmt is not installed"));
    }
    log.run(cargo(&["fmt", "--all", "--check"]))
}

fn tidy_step(_: &Log) -> Result<Outcome> {
    let errors = tidy::count_errors()?;
    Ok(if errors == 0 { Outcome::passed("") } else { Outcome::failed(format!("{errors} errors")) })
}

fn clippy(log: &Log) -> Result<Outcome> {
    if !cmd::succeeds("cargo", &["clippy", "--version"]) {
        return Ok(Outcome::skipped("clippy is not installed"));
    }
    let clippy =
        |what: &[&str]| log.run(cargo(&[&["clippy", "--all-targets"], what, &["--", "-D", "warnings"]].concat()));
    let everything = clippy(&["--workspace"])?;
    // All other packages read the same with and without features.
    let packages = workspace::packages()?;
    let featured = packages.iter().filter(|package| package.has_features);
    let featured: Vec<&str> = featured.flat_map(|package| ["--package", &package.name]).collect();
    Ok(everything.and(clippy(&[&["--all-features"], &featured[..]].concat())?))
}

/// All other steps have the packages that only tests need, and the features that these ask for.
fn plain(log: &Log) -> Result<Outcome> {
    log.run(cargo(&["check", "--workspace", "--lib", "--bins"]))
}

/// Builds the programs of MX. All others are built with the test programs (`binaries`).
fn build(log: &Log) -> Result<Outcome> {
    log.run(cargo(&["run", "--quiet", "--package", "xtask", "--", "mx-programs"]))
}

/// Links every `abi/*/lib*.map` into the library of that name.
fn abi(log: &Log) -> Result<Outcome> {
    let tree = Tree::read(&cmd::root())?;
    let maps = tree.texts.iter().map(|file| file.path.as_str());
    let maps = maps.filter(|path| path.starts_with("abi/") && path.ends_with(".map"));
    let mut outcome: Option<Outcome> = None;
    for map in maps {
        let (folder, name) = map.rsplit_once('/').unwrap_or(("", map));
        let manifest = std::fs::read_to_string(cmd::root().join(folder).join("Cargo.toml"))?;
        let manifest: toml::Table = manifest.parse()?;
        let package = manifest["package"]["name"].as_str().unwrap_or_default().to_owned();
        let out = name.replace(".map", ".so");
        // By way of cargo: a build of the whole workspace may have replaced this program's file meanwhile.
        let mut link = cargo(&["run", "--quiet", "--package", "xtask", "--", "link-abi"]);
        link.args([&package, "--map", map, "--out", &out]);
        let linked = log.run(link)?;
        outcome = Some(outcome.into_iter().fold(linked, |all, one| one.and(all)));
    }
    Ok(outcome.unwrap_or_else(|| Outcome::skipped("there is no abi/*/*.map yet")))
}

fn test_docs(log: &Log) -> Result<Outcome> {
    log.run_tests(cargo(&["test", "--workspace", "--doc", "--no-fail-fast", "--", "--show-output"]))
}

/// Tests that exist only with a feature.
fn test_features(log: &Log) -> Result<Outcome> {
    log.run_tests(cargo(&["test", "--package", LINK, "--all-features", "--no-fail-fast", "--", "xdp", "--show-output"]))
}

fn fetch_guests(log: &Log) -> Result<Outcome> {
    let mut setup = cmd::command("scripts/setup");
    setup.arg("guests");
    let fetched = log.run(setup)?;
    Ok(match fetched.counts().failed {
        0 => fetched,
        _ => Outcome::skipped("what guests are made of is not there (`scripts/setup guests`)"),
    })
}

fn loom(log: &Log) -> Result<Outcome> {
    if !cmd::root().join("crates/shm/tests/loom.rs").is_file() {
        return Ok(Outcome::skipped("there is no crates/shm/tests/loom.rs yet"));
    }
    let mut command = cargo(&["test", "--package", SHM, "--release", "--test", "loom", "--target-dir", "target/loom"]);
    command.env("RUSTFLAGS", "--cfg loom");
    log.run_tests(command)
}

fn miri(log: &Log) -> Result<Outcome> {
    if !cmd::succeeds("cargo", &["+nightly", "miri", "--version"]) {
        return Ok(Outcome::skipped("miri is not installed (rustup +nightly component add miri rust-src)"));
    }
    let command = |target: &[&str]| {
        // The models and properties of the code that touches shared memory; other tests make system calls, or take minutes here.
        let mut command = cargo(&["+nightly", "miri", "test", "--no-fail-fast", "--lib", "--test", "liar"]);
        command.args(["--package", LAYOUT, "--package", SHM]).args(target);
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", "2"); // Miri is slow.
        command
    };
    let native = log.run_tests(command(&[]))?;
    Ok(native.and(log.run_tests(command(&["--target", BIG_ENDIAN_TARGET]))?))
}

fn no_std_build(log: &Log) -> Result<Outcome> {
    let crates = tidy::crates_without_std(&Tree::read(&cmd::root())?);
    let packages = crates.iter().flat_map(|name| ["--package", name]);
    let mut command = if has_target(NO_STD_TARGET) {
        cargo(&["build"])
    } else if has_nightly_source() {
        cargo(&["+nightly", "build", "-Zbuild-std=core,alloc"])
    } else {
        return Ok(Outcome::skipped("neither the target x86_64-unknown-none nor nightly with rust-src is installed"));
    };
    command.args(["--target", NO_STD_TARGET, "--target-dir", "target/no-std"]).args(packages);
    log.run(command)
}

/// Returns true if the standard libraries of a target are installed for the default toolchain.
fn has_target(target: &str) -> bool {
    let folder = cmd::output("rustc", &["--print", "target-libdir", "--target", target]);
    folder.is_some_and(|folder| std::path::Path::new(folder.trim()).is_dir())
}

fn has_nightly_source() -> bool {
    let root = cmd::output("rustc", &["+nightly", "--print", "sysroot"]);
    root.is_some_and(|root| std::path::Path::new(root.trim()).join("lib/rustlib/src/rust/library/core").is_dir())
}

fn doc(log: &Log) -> Result<Outcome> {
    let mut command = cargo(&["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    log.run(command)
}

fn deny(log: &Log) -> Result<Outcome> {
    if !cmd::succeeds("cargo", &["deny", "--version"]) {
        return Ok(Outcome::skipped("cargo-deny is not installed (`make tools`, some minutes)"));
    }
    let rules = log.run(cargo(&["deny", "--all-features", "check", "bans", "licenses", "sources"]))?;
    if !cmd::succeeds("cargo", &["deny", "fetch", "db"]) {
        return Ok(rules.and(Outcome::skipped("advisories: their database cannot be fetched from here")));
    }
    Ok(rules.and(log.run(cargo(&["deny", "check", "--disable-fetch", "advisories"]))?))
}
