//! The tests of Python's own network modules, which compare what calls return with what the kernel's TCP does.
//!
//! The kernel's results are the reference: a test may fail or be skipped on this host, and then does so with the library, too.

use std::collections::BTreeMap;
use std::path::Path;

use isthmus_sockets_tests::{Stage, timeout};
use isthmus_testbed::{Deadline, Finished, Proc, Scratch, short_or_long};

const PYTHON: &str = "/usr/bin/python3.11";
const SUITE: &str = "/usr/lib/python3.11/test/test_socket.py";

/// The modules of `make test`, and those of `make test-long`.
const MODULES: &[&str] = &["test_selectors", "test_socket"];
const ALL_MODULES: &[&str] = &["test_selectors", "test_socket", "test_ssl", "test_asyncio"];

/// Tests with results that may differ, and the cause.
const MAY_DIFFER: [(&str, &str); 0] = [];

/// More tests than this do not fail by chance.
const AGAIN_MAX: usize = 20;

/// Prints each test of a report, with its result. A test that fails in a part of itself has no name there, and so is missing.
const PRINT_RESULTS: &str = r#"
import sys, xml.etree.ElementTree
for test in xml.etree.ElementTree.parse(sys.argv[1]).iter("testcase"):
    if test.get("name") is None:
        continue
    result = {"skipped": "skipped", "failure": "failed", "error": "failed"}
    print(test.get("name"), *{result.get(child.tag, "passed") for child in test} or ["passed"], sep="\t")
"#;

/// The result of each test.
type Results = BTreeMap<String, String>;

/// A module of tests that runs, or one test of it.
struct Run {
    folder: Scratch,
    python: Proc,
}

impl Run {
    /// Starts the tests of a module with a name that fits the pattern `only`.
    fn start(stage: &Stage, module: &str, only: &str) -> Self {
        let folder = Scratch::new().unwrap();
        let report = folder.join("report.xml").into_os_string().into_string().unwrap();
        // All runs would use the same ports of VSOCK, which belong to the host.
        let words = ["-m", "test", "--junit-xml", &report, "-i", "*VSOCK*", "-m", only, module];
        let launch = stage.launch(PYTHON).args(words).env("TMPDIR", folder.join(""));
        let python = launch.spawn().unwrap_or_else(|error| panic!("{error}"));
        Self { folder, python }
    }

    /// Waits for the end, and returns the results and what Python printed.
    fn finish(self) -> (Results, String) {
        let ended = self.python.finish(Deadline::secs(120)).unwrap_or_else(|error| panic!("{error}"));
        let report = self.folder.join("report.xml");
        let printed = format!("{}\n{}", ended.lines.join("\n"), ended.stderr);
        assert!(report.exists(), "{:?}: no report\n{printed}", ended.exit);
        let print = Stage::Kernel.launch(PYTHON).args(["-c", PRINT_RESULTS]).arg(report).spawn();
        let listed = print.unwrap_or_else(|error| panic!("{error}")).finish(timeout());
        let lines = listed.map(Finished::expect_success).unwrap_or_else(|error| panic!("{error}"));
        let result = |line: &String| line.split_once('\t').map(|(name, result)| (name.to_owned(), result.to_owned()));
        (lines.iter().filter_map(result).collect(), printed)
    }
}

/// Returns the tests with results that differ.
fn differences(kernel: &Results, library: &Results) -> Vec<String> {
    let names = kernel.keys().chain(library.keys().filter(|name| !kernel.contains_key(*name)));
    names.filter(|name| kernel.get(*name) != library.get(*name)).cloned().collect()
}

/// Tests with times of their own may fail on a busy host. Returns the difference if there is one again when this test runs alone.
fn again(stage: &Stage, module: &str, name: &str) -> Option<String> {
    let [(kernel, _), (library, printed)] =
        [&Stage::Kernel, stage].map(|stage| Run::start(stage, module, name).finish());
    if kernel.get(name).is_some_and(|result| library.get(name) == Some(result)) {
        eprintln!("{name}: the results differed once, and are the same when it runs alone");
        return None;
    }
    Some(format!("{name}: {:?}, {:?}\n{printed}", kernel.get(name), library.get(name)))
}

#[test]
fn python_tests_have_the_same_results_with_the_library() {
    if !Path::new(PYTHON).exists() || !Path::new(SUITE).exists() {
        return eprintln!("skipped: the tests of Python 3.11 are not installed (package libpython3.11-testsuite)");
    }
    let Some(stage) = Stage::library() else { return };
    let modules = short_or_long(MODULES, ALL_MODULES);
    let start = |&module: &&'static str| (module, [&Stage::Kernel, &stage].map(|stage| Run::start(stage, module, "*")));
    let runs: Vec<_> = modules.iter().map(start).collect(); // All at once, because they wait most of the time.
    let mut differ = Vec::new();
    for (module, runs) in runs {
        let [kernel, library] = runs.map(|run| run.finish().0);
        let passed = kernel.values().filter(|result| *result == "passed").count();
        assert!(passed > 50, "{module}: the kernel passed {passed} tests: {kernel:#?}");
        let may_differ = |name: &str| MAY_DIFFER.iter().any(|(test, _)| *test == name);
        let names = differences(&kernel, &library).into_iter().filter(|name| !may_differ(name));
        differ.extend(names.map(|name| (module, name)));
    }
    assert!(differ.len() <= AGAIN_MAX, "the results of many tests differ: {differ:#?}");
    let wrong: Vec<_> = differ.iter().filter_map(|(module, name)| again(&stage, module, name)).collect();
    assert!(wrong.is_empty(), "results of the kernel and of the library:\n{}", wrong.join("\n"));
    stage.expect_paired();
}
