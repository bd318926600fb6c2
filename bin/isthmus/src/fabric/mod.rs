//! The libfabric provider: the programs that use it, and the MPIs that need variables for it.

mod mpi;

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

use crate::output::{Outcome, Output};
use crate::run::ProgramCapability;

/// The commands of the provider.
#[derive(Subcommand)]
pub(crate) enum FabricCommand {
    /// MPI programs on Isthmus: the variables that an MPI needs, and its launcher. Needs no daemon.
    #[command(subcommand)]
    Mpi(MpiVerb),
}

#[derive(Subcommand)]
pub(crate) enum MpiVerb {
    /// Prints the variables with which an MPI runs on Isthmus, for a shell.
    ///
    /// `eval "$(isthmus mpi env openmpi)"`, and then the MPI's own launcher.
    Env(mpi::MpiEnvArgs),
    /// Runs an MPI's launcher with these variables set: `isthmus mpi run -- -n 4 ./program`.
    ///
    /// Variables that are set already keep their values. Ranks on other hosts get the variables that the launcher passes on. The
    /// launcher of Open MPI passes on those that its option `-x` names.
    Run(mpi::MpiRunArgs),
}

impl FabricCommand {
    pub(crate) fn run(self, output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
        match self {
            Self::Mpi(MpiVerb::Env(args)) => mpi::env(output, args),
            Self::Mpi(MpiVerb::Run(args)) => mpi::run(socket, &args),
        }
    }
}

/// The row of `isthmus run`.
pub(crate) const PROGRAMS: ProgramCapability = ProgramCapability {
    name: "fabric",
    users: "MPIs, and other programs that use libfabric",
    library: mpi::PROVIDER,
    other_names: &[],
    other_libraries: &[],
    device_files: &[],
    is_opt_in: false,
    is_in_guests: true,
    settings: |place| Ok(mpi::all_settings(place.folder)),
    unfit: |_| None,
    doctor: None,
};
