//! The suite of pyverbs: each of its tests has the result of the list in `pyverbs/results.txt`.

use std::collections::{BTreeMap, BTreeSet};

use isthmus_testbed::{Deadline, short_or_long};
use isthmus_verbs_tests::{Stage, pyverbs_suite};

/// The list. Its lines are a result and the name of a test.
const RESULTS: &str = include_str!("../../pyverbs/results.txt");

/// The modules that take long: their programs wait for the thread of the device in each of many iterations.
const LONG: [&str; 1] = ["test_qpex"];

/// Returns the results by the names of tests.
fn results<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, &'a str> {
    lines.filter_map(|line| line.split_once(' ')).map(|(result, name)| (name, result)).collect()
}

/// The module of a test: `test_cq` of `test_cq.CQTest.test_resize_cq`.
fn module(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

#[test]
fn tests_of_the_suite_have_the_results_of_the_list() {
    let Some([program, suite]) = pyverbs_suite() else { return };
    let Some(stage) = Stage::new() else { return };
    let mut expected = results(RESULTS.lines().filter(|line| !line.starts_with('#')));
    expected.retain(|name, _| short_or_long(!LONG.contains(&module(name)), true));
    let modules: BTreeSet<&str> = expected.keys().map(|name| module(name)).collect();
    let words = [program.as_str(), &suite, "--dev", "isthmus0", "--port", "1", "--gid", "1"];
    let launch = stage.launch(stage.server(), "/usr/bin/python3", &words, &[("TMPDIR", "/dev/shm")]).args(&modules);
    let finished = launch.spawn().unwrap().finish(Deadline::secs(60)).unwrap();
    let found = results(finished.lines.iter().map(String::as_str));
    let names: BTreeSet<&str> = expected.keys().chain(found.keys()).copied().collect();
    let mut wrong = Vec::new();
    for name in names {
        match (expected.get(name), found.get(name)) {
            (expected, found) if expected == found => {}
            (Some(&"skip"), Some(&"pass")) => eprintln!("{name} passes now: list it so in pyverbs/results.txt"),
            different => wrong.push((name, different)),
        }
    }
    assert!(wrong.is_empty(), "test, (result of the list, result): {wrong:#?}\n{}", finished.stderr);
}
