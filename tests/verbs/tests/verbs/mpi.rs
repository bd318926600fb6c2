//! MPIs over UCX over the device: messages, collective operations and windows of two ranks, with checked data.

use std::path::Path;

use isthmus_verbs_tests::{Stage, mpi_program};

use crate::ucx::expect_only;

/// The transports of the device.
const OURS: [&str; 2] = ["rc_verbs", "ud_verbs"];

/// An MPI that uses UCX.
struct Mpi {
    name: &'static str,
    /// Variables by which it uses UCX for everything, with any device.
    variables: &'static [(&'static str, &'static str)],
}

/// Debian's MPICH, which is built for UCX. Without `NOLOCAL`, ranks of one host would use its own shared memory.
const MPICH: Mpi = Mpi { name: "mpich", variables: &[("MPIR_CVAR_NOLOCAL", "1")] };

/// Debian's Open MPI 4.1. It takes UCX for devices named `mlx*` only, unless told otherwise, and needs a folder for its own files.
const OPEN_MPI: Mpi = Mpi {
    name: "openmpi",
    variables: &[
        ("OMPI_MCA_pml", "ucx"),
        ("OMPI_MCA_osc", "ucx"),
        ("OMPI_MCA_btl", "self"),
        ("OMPI_MCA_opal_common_ucx_tls", "any"),
        ("OMPI_MCA_opal_common_ucx_devices", "any"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("HOME", "/dev/shm"),
        ("TMPDIR", "/dev/shm"),
    ],
};

/// Runs all cases of programs of `tests/mpi/c` on two ranks, and asserts that UCX has used the device for all connections.
#[track_caller]
fn run(mpi: &Mpi, sources: &[&str]) {
    let [compiler, launcher] = ["mpicc", "mpirun"].map(|tool| format!("/usr/bin/{tool}.{}", mpi.name));
    if let Some(missing) = [&compiler, &launcher].into_iter().find(|tool| !Path::new(tool).exists()) {
        return eprintln!("skipped: there is no {missing} (scripts/setup)");
    }
    let Some(stage) = Stage::new() else { return };
    let transports = OURS.join(",");
    let log = [("UCX_TLS", transports.as_str()), ("UCX_LOG_LEVEL", "info"), ("UCX_LOG_FILE", "stderr")];
    let variables = [&log, mpi.variables].concat();
    for source in sources {
        let program = mpi_program(&compiler, &format!("{}-{source}", mpi.name), source);
        let finished = stage.run(&launcher, &["-n", "2", &program], &variables);
        let done = finished.lines.iter().find_map(|line| line.strip_prefix("done ")?.parse::<u32>().ok());
        assert!(finished.exit.success() && done.is_some_and(|cases| cases > 0), "{source}: {finished:#?}");
        expect_only(&OURS, &finished.stderr);
    }
}

#[test]
fn mpich_uses_the_device_for_everything() {
    run(&MPICH, &["messages", "collective"]);
}

#[test]
fn open_mpi_uses_the_device_for_everything() {
    run(&OPEN_MPI, &["messages", "collective"]);
}
