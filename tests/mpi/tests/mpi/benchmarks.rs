//! Programs that others have written, run to their end: HPC Challenge and NetPIPE, which are Debian's, for its Open MPI; the tests of mpi4py.

use std::path::Path;

use isthmus_testbed::{Launch, Scratch, short_or_long};

use crate::mpis::{Mpi, wheel};
use crate::run::{daemon, job, succeed};

/// The template for the input of HPC Challenge.
const HPCC_INPUT: &str = include_str!("../../../../bin/isthmus-bench/src/fabric/hpccinf.txt");

/// Debian's Open MPI and a program that was built for it.
fn with(program: &str) -> Option<Mpi> {
    if !Path::new(program).is_file() {
        eprintln!("skipped: there is no {program} (scripts/setup)");
        return None;
    }
    Mpi::debian_open_mpi()
}

/// A job that runs in a folder of its own.
fn in_folder(launch: Launch, scratch: &Scratch) -> Launch {
    launch.arg("--wdir").arg(scratch.path())
}

#[test]
fn hpc_challenge_runs_to_the_end_and_validates() {
    let Some(mpi) = with("/usr/bin/hpcc") else { return };
    let (_scratch, daemon) = daemon();
    let folder = Scratch::new().unwrap();
    // Small enough for two processors, and everything is in it.
    let input = HPCC_INPUT.replace("{n}", "400").replace("{p}", "2").replace("{q}", "2");
    folder.write("hpccinf.txt", input).unwrap();
    succeed(&mpi, &in_folder(job(&daemon, &mpi, 4), &folder).arg("/usr/bin/hpcc"));
    let said = std::fs::read_to_string(folder.join("hpccoutf.txt")).unwrap();
    let line =
        |start: &str| said.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}:\n{said}"));
    assert_eq!(line("Success="), "Success=1");
    assert!(said.contains("1 tests completed and passed residual checks"), "{said}");
    assert!(!said.contains("FAILED"), "{said}");
    for errors in ["MPIRandomAccess_ErrorsFraction=", "MPIRandomAccess_LCG_ErrorsFraction="] {
        let fraction: f64 = line(errors)[errors.len()..].parse().unwrap();
        // The algorithm loses some updates whatever carries them; 1 in 100 is its own limit.
        assert!(fraction <= 0.01, "{}", line(errors));
    }
}

#[track_caller]
fn net_pipe(arguments: &[&str]) {
    let Some(mpi) = with("/usr/bin/NPopenmpi") else { return };
    let (_scratch, daemon) = daemon();
    let folder = Scratch::new().unwrap();
    let launch = in_folder(job(&daemon, &mpi, 2), &folder).arg("/usr/bin/NPopenmpi").args(["-u", "2000000"]);
    let finished = succeed(&mpi, &launch.args(arguments));
    let said = format!("{}\n{}", finished.lines.join("\n"), finished.stderr);
    assert!(!said.contains("Integrity check failed"), "{said}");
    // Each of its sizes has a line: `29:   98305 bytes   1839 times --> …`.
    let bytes =
        said.lines().filter_map(|line| line.split_once(": ")?.1.split_once(" bytes")?.0.trim().parse::<u64>().ok());
    assert!(bytes.max() >= Some(1_500_000), "{said}");
}

#[test]
fn netpipe_receives_every_message_unchanged() {
    net_pipe(&["-i"]);
}

#[test]
fn netpipe_sends_both_ways_at_once() {
    net_pipe(&["-2", "-a", "-n", "20"]);
}

#[test]
fn netpipe_streams_into_posted_receives() {
    net_pipe(&["-s", "-a", "-n", "20"]);
}

#[test]
fn netpipe_sends_synchronously_to_wildcards() {
    net_pipe(&["-S", "-z", "-n", "20"]);
}

/// The modules of mpi4py's tests that the short form runs: messages of buffers, and windows.
const SHORT: &str = r"test_(p2p_buf|rma)\.py$";

/// Runs more than a thousand tests of every call there is, written by the authors of the wrapper for Python.
#[test]
fn mpi4py_test_suite_passes() {
    let Some(mpi) = Mpi::mpich_wheel() else { return };
    let (python, tests) = (wheel("mpich").join("python"), wheel("mpich").join("../mpi4py/test/main.py"));
    if !tests.is_file() {
        eprintln!("skipped: there is no {} (scripts/setup)", tests.display());
        return;
    }
    let (_scratch, daemon) = daemon();
    // What is left out asks about types of Fortran, of which this wheel has none, whatever carries the messages.
    let launch = job(&daemon, &mpi, 3)
        .arg(python)
        .arg(&tests)
        .args(["-q", "-x", "testGetFortranInfo"])
        .args(["-i", short_or_long(SHORT, "test_")]);
    let finished = succeed(&mpi, &launch);
    let ran = |line: &&str| line.starts_with("Ran ") && !line.starts_with("Ran 0");
    let lines: Vec<&str> = finished.lines.iter().map(String::as_str).chain(finished.stderr.lines()).collect();
    assert!(
        lines.iter().filter(|line| ran(line)).count() >= 1 && lines.iter().any(|line| line.starts_with("OK")),
        "{lines:#?}"
    );
}
