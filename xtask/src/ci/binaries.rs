//! The test programs of the workspace: one cargo builds them all, with the programs that they start, and each is a job of its own.
//!
//! A program runs as cargo runs it: in the folder of its package, with the variables that name the package. The steps `build` and
//! `abi` have made the programs and libraries that tests start, so no test waits for a cargo.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::schedule::Cost;
use super::step::{Log, Outcome};
use super::steps::cargo;
use super::workspace::Package;
use crate::cmd;

/// The label of a package's unit tests.
const UNIT_TESTS: &str = "unit";

/// Turns the long form of tests on: `isthmus_testbed::short_or_long`.
const LONG: &str = "ISTHMUS_TEST_LONG";

/// One test program.
#[derive(Clone, Debug)]
pub(super) struct Binary {
    pub(super) package: Package,
    /// The step that counts its tests.
    pub(super) step: String,
    /// The name of an integration test or a program, or [`UNIT_TESTS`].
    pub(super) target: String,
    program: PathBuf,
}

/// Builds all programs and test programs of these packages, which are all of the workspace: a part of them would have other features. So
/// would the programs without the tests, because the packages that only tests need ask for features of others.
pub(super) fn build(log: &Log, packages: &[Package]) -> Result<(Outcome, Vec<Binary>)> {
    let mut command = cargo(&["build", "--workspace", "--lib", "--bins", "--tests", "--examples"]);
    command.args(["--message-format", "json-render-diagnostics"]);
    let (outcome, text) = log.run_for_output(command)?;
    let binaries: Vec<Binary> = text.lines().filter_map(|line| artifact(line, packages)).collect();
    for package in packages {
        let own: Vec<&Binary> = binaries.iter().filter(|binary| binary.package.name == package.name).collect();
        let missing = package.described().find(|name| own.iter().all(|binary| binary.target != *name));
        let name = missing.unwrap_or_default();
        ensure!(
            own.is_empty() || missing.is_none(),
            "[package.metadata.ci] of {} names {name}, no test target",
            package.name
        );
    }
    Ok((outcome, binaries))
}

/// The test program in one of cargo's messages.
fn artifact(line: &str, packages: &[Package]) -> Option<Binary> {
    let message: Value = serde_json::from_str(line).ok()?;
    let program = message["executable"].as_str()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let package = packages.iter().find(|package| message["package_id"] == *package.id)?.clone();
    let is_library = message["target"]["kind"]
        .as_array()?
        .iter()
        .any(|kind| kind.as_str().is_some_and(|kind| kind.ends_with("lib")));
    let target = if is_library { UNIT_TESTS } else { message["target"]["name"].as_str()? };
    Some(Binary { step: package.step().to_owned(), package, target: target.to_owned(), program: program.into() })
}

impl Binary {
    pub(super) fn cost(&self) -> Cost {
        self.package.cost(&self.target)
    }

    /// Returns whether the program takes minutes and starts before others.
    pub(super) fn is_first(&self) -> bool {
        self.package.lists("first", &self.target)
    }

    /// Returns whether some tests of the program have a long form.
    pub(super) fn is_long(&self) -> bool {
        self.package.lists("long", &self.target)
    }

    /// The command that runs its tests.
    pub(super) fn command(&self, long: bool) -> Command {
        let mut command = cmd::command(&self.program.to_string_lossy());
        command.arg("--show-output").current_dir(&self.package.folder);
        command.env("CARGO_MANIFEST_DIR", &self.package.folder).env("CARGO_PKG_NAME", &self.package.name);
        // Where the step `abi` has linked them.
        let libraries = cmd::root().join("target/abi");
        command.env("ISTHMUS_MX_LIBRARY", &libraries).env("ISTHMUS_FI_LIBRARY", &libraries);
        if long {
            command.env(LONG, "1");
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn package() -> Package {
        Package::plain("p", "path+p", BTreeSet::new())
    }

    #[test]
    fn finds_test_programs_and_nothing_else_among_the_messages() {
        let message = |kind: &str, test: bool, file: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+p","target":{{"kind":["{kind}"],"name":"n"}},
                "profile":{{"test":{test}}},"executable":{file}}}"#
            )
        };
        let found = |line: &str| artifact(line, &[package()]).map(|binary| binary.target);
        assert_eq!(found(&message("test", true, "\"/t/n-1\"")).as_deref(), Some("n"));
        assert_eq!(found(&message("rlib", true, "\"/t/n-2\"")).as_deref(), Some(UNIT_TESTS));
        assert_eq!(found(&message("bin", false, "\"/t/n\"")), None);
        assert_eq!(found(&message("lib", true, "null")), None);
        assert_eq!(found("   Compiling p"), None);
    }
}
