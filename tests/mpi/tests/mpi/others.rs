//! What others have written, run to its end and read: HPC Challenge and NetPIPE, which are Debian's, for its Open MPI; the tests of mpi4py.

use std::path::Path;

use isthmus_testbed::{Launch, Scratch};

use crate::mpis::{Mpi, wheel};
use crate::run::{daemon, job, succeed};

/// An input of HPC Challenge that is small enough for two processors and has everything in it.
const HPCC_INPUT: &str = "\
HPLinpack benchmark input file
Innovative Computing Laboratory, University of Tennessee
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
1            # of problems sizes (N)
400          Ns
1            # of NBs
80           NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
2            Ps
2            Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
##### This line (no. 32) is ignored (it serves as a separator). ######
0            Number of additional problem sizes for PTRANS
400          values of N
0            number of additional blocking sizes for PTRANS
80           values of NB
";

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
    folder.write("hpccinf.txt", HPCC_INPUT).unwrap();
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
fn netpipe_finds_every_message_as_it_was_sent() {
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

/// More than a thousand tests of every call there is, by those who wrap them for Python.
#[test]
fn the_tests_of_mpi4py_pass() {
    let Some(mpi) = Mpi::mpich_wheel() else { return };
    let (python, tests) = (wheel("mpich").join("python"), wheel("mpich").join("../mpi4py/test/main.py"));
    if !tests.is_file() {
        eprintln!("skipped: there is no {} (scripts/setup)", tests.display());
        return;
    }
    let (_scratch, daemon) = daemon();
    // What is left out asks about types of Fortran, of which this wheel has none, whatever carries the messages.
    let launch = job(&daemon, &mpi, 3).arg(python).arg(&tests).args(["-q", "-x", "testGetFortranInfo"]);
    let finished = succeed(&mpi, &launch);
    let ran = |line: &&str| line.starts_with("Ran ") && !line.starts_with("Ran 0");
    let lines: Vec<&str> = finished.lines.iter().map(String::as_str).chain(finished.stderr.lines()).collect();
    assert!(
        lines.iter().filter(|line| ran(line)).count() >= 1 && lines.iter().any(|line| line.starts_with("OK")),
        "{lines:#?}"
    );
}
