//! A daemon, and jobs beside it.

use std::path::Path;

use isthmus_testbed::{DaemonProcess, Deadline, Finished, Launch, Scratch, binary};

use crate::build::{library, program};
use crate::mpis::Mpi;

const CONFIG: &str = "[daemon]\nsocket = \"{socket}\"\nruntime_dir = \"{state}\"\n";

/// Bounds hangs. Jobs of many ranks on two processors take their time.
pub(crate) fn timeout() -> Deadline {
    Deadline::secs(280)
}

/// A daemon of this test's own.
pub(crate) fn daemon() -> (Scratch, DaemonProcess) {
    let scratch = Scratch::new().unwrap();
    binary("isthmusd", "isthmusd").unwrap(); // Building it does not count towards the timeout.
    let daemon = DaemonProcess::on(&scratch).config(CONFIG).start(timeout()).unwrap();
    (scratch, daemon)
}

/// Whether a variable in the environment of these tests would change what is tested.
fn is_mpi_variable(name: &str) -> bool {
    ["FI_", "OMPI_", "PRTE_", "PMIX_", "PMI_", "MPIR_CVAR_", "I_MPI_", "HYDRA_"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// A launch with our provider, and without variables for MPIs that are set in the environment.
pub(crate) fn with_provider(launch: Launch) -> Launch {
    let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(|name| is_mpi_variable(name));
    set.fold(launch, Launch::env_remove).env("FI_PROVIDER_PATH", library())
}

/// The launcher of an MPI with this number of ranks; the program and its arguments are to be added.
pub(crate) fn job(daemon: &DaemonProcess, mpi: &Mpi, ranks: u32) -> Launch {
    launched(with_provider(daemon.launch_on_host(&mpi.launcher)), mpi, ranks)
}

/// Turns a launch of the MPI's launcher into one with this number of ranks.
pub(crate) fn launched(launch: Launch, mpi: &Mpi, ranks: u32) -> Launch {
    let launch = mpi.variables.iter().fold(launch, |launch, (name, value)| launch.env(name, value));
    mpi.linked(launch).args(["-n", &ranks.to_string()])
}

/// Runs a job, which must end well, on our provider.
#[track_caller]
pub(crate) fn succeed(mpi: &Mpi, launch: &Launch) -> Finished {
    let finished = launch.spawn().unwrap().finish(timeout()).unwrap();
    let said = format!("{}\n{}", finished.lines.join("\n"), finished.stderr);
    assert!(finished.exit.success(), "{}: {:?}\n{said}", mpi.name, finished.exit);
    assert!(said.contains(mpi.proof), "{} does not say that it used our provider:\n{said}", mpi.name);
    finished
}

/// Runs cases of a program of ours.
#[track_caller]
pub(crate) fn run(mpi: Option<Mpi>, ranks: u32, name: &str, cases: &[&str]) {
    let Some(mpi) = mpi else { return };
    let program = program(name, &mpi);
    let (_scratch, daemon) = daemon();
    run_beside(&daemon, &mpi, ranks, &program, cases);
}

/// Runs a program with cases beside a daemon.
#[track_caller]
pub(crate) fn run_beside(daemon: &DaemonProcess, mpi: &Mpi, ranks: u32, program: &Path, cases: &[&str]) {
    run_cases(mpi, job(daemon, mpi, ranks), program, cases);
}

/// Runs a program with cases by a launch that needs only the program.
#[track_caller]
pub(crate) fn run_cases(mpi: &Mpi, launch: Launch, program: &Path, cases: &[&str]) -> Finished {
    let finished = succeed(mpi, &launch.arg(program).args(cases));
    let done =
        finished.lines.iter().find_map(|line| line.strip_prefix("done ")).and_then(|ran| ran.parse::<usize>().ok());
    let ran = done.unwrap_or_else(|| panic!("{}: {:?}\n{}", mpi.name, finished.lines, finished.stderr));
    assert!(ran > 0 && (cases.is_empty() || ran == cases.len()), "{}: {ran} of {cases:?}", mpi.name);
    finished
}
