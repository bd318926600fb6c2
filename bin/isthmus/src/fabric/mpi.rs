//! `isthmus mpi env` and `isthmus mpi run`: the variables by which MPIs find the libfabric provider and use nothing else.
//!
//! ```text
//! eval "$(isthmus mpi env openmpi)"; mpirun -n 4 ./program      the variables of one MPI, for a shell
//! isthmus mpi run -- -n 4 ./program                             the variables of all MPIs, and the launcher
//! ```
//!
//! The launcher gets the variables of all MPIs, because no MPI reads those of another.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::output::{Outcome, Output};
use crate::run::{self, Setting, shell_quoted};

/// The provider's file, as libfabric looks for it.
pub(super) const PROVIDER: &str = "libisthmus-fi.so";

/// The MPIs with known variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mpi {
    /// Open MPI 4 and 5
    Openmpi,
    /// MPICH with the device ch4:ofi, as in the package of PyPI
    Mpich,
    /// Intel MPI
    Intel,
}

#[derive(Serialize)]
struct Settings {
    mpi: Mpi,
    variables: Vec<Setting>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct MpiEnvArgs {
    /// The MPI [default: all MPIs].
    #[arg(value_name = "MPI")]
    mpi: Option<Mpi>,

    /// The folder with the provider, `libisthmus-fi.so` [default: where it is installed with this program].
    #[arg(long, value_name = "DIR")]
    provider: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct MpiRunArgs {
    /// The launcher of the MPI that the program was built with.
    #[arg(long, value_name = "PROGRAM", default_value = "mpirun")]
    launcher: OsString,

    /// The folder with the provider, `libisthmus-fi.so` [default: where it is installed with this program].
    #[arg(long, value_name = "DIR")]
    provider: Option<PathBuf>,

    /// The arguments of the launcher, after `--`.
    #[arg(value_name = "ARGUMENT", last = true, required = true)]
    arguments: Vec<OsString>,
}

impl Mpi {
    const ALL: [Self; 3] = [Self::Openmpi, Self::Mpich, Self::Intel];

    /// Returns the variables, given the folder with the provider.
    fn settings(self, folder: &Path) -> Vec<Setting> {
        let set = |name, value: &str, effect| Setting { name, value: value.to_owned(), effect, is_list: false };
        let common = [
            set("FI_PROVIDER_PATH", &folder.to_string_lossy(), "where libfabric finds the provider"),
            set("FI_PROVIDER", "isthmus", "the only provider to use"),
        ];
        let own = match self {
            Self::Openmpi => vec![
                set("OMPI_MCA_pml", "cm", "messages use a matching transport"),
                set("OMPI_MCA_mtl", "ofi", "the transport is libfabric"),
                set("OMPI_MCA_btl", "ofi,self", "windows use libfabric, too"),
                set("OMPI_MCA_osc", "^sm,ucx", "windows of ranks on one host, too"),
                set(
                    "OMPI_MCA_opal_common_ofi_provider_include",
                    "isthmus",
                    "the provider; some distributions exclude all",
                ),
            ],
            Self::Mpich => vec![
                set("MPIR_CVAR_CH4_NETMOD", "ofi", "messages use libfabric"),
                set("MPIR_CVAR_NOLOCAL", "1", "messages between ranks on one host, too"),
            ],
            Self::Intel => vec![
                set("I_MPI_FABRICS", "ofi", "all messages use libfabric, those between ranks on one host, too"),
                set("I_MPI_OFI_PROVIDER", "isthmus", "the provider"),
            ],
        };
        common.into_iter().chain(own).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Openmpi => "Open MPI",
            Self::Mpich => "MPICH",
            Self::Intel => "Intel MPI",
        }
    }
}

/// Returns the folder with the provider: the named folder, or the one of this program's installation.
fn folder(named: Option<PathBuf>) -> Result<PathBuf> {
    let Some(named) = named else {
        return run::installed_folder(PROVIDER).context("name the provider's folder with --provider");
    };
    let found = named.join(PROVIDER);
    anyhow::ensure!(found.is_file(), "there is no file {}", found.display());
    Ok(std::path::absolute(named)?)
}

/// Returns the variables of all MPIs, each once.
pub(super) fn all_settings(folder: &Path) -> Vec<Setting> {
    let mut all: Vec<Setting> = Vec::new();
    for set in Mpi::ALL.into_iter().flat_map(|mpi| mpi.settings(folder)) {
        if !all.contains(&set) {
            all.push(set);
        }
    }
    all
}

fn shell(settings: &Settings) -> String {
    let line = |set: &Setting| format!("export {}={} # {}\n", set.name, shell_quoted(&set.value), set.effect);
    format!("# {}\n{}", settings.mpi.name(), settings.variables.iter().map(line).collect::<String>())
}

pub(super) fn env(output: Output, args: MpiEnvArgs) -> Result<Outcome> {
    let folder = folder(args.provider)?;
    let wanted = args.mpi.map_or(Mpi::ALL.to_vec(), |mpi| vec![mpi]);
    let all: Vec<Settings> = wanted.into_iter().map(|mpi| Settings { mpi, variables: mpi.settings(&folder) }).collect();
    output.result("mpi env", &serde_json::json!({ "mpis": all }), || {
        all.iter().map(shell).collect::<Vec<_>>().join("\n")
    })?;
    Ok(Outcome::Done)
}

/// Becomes the launcher, with the variables of all MPIs. Variables that are set already keep their values.
pub(super) fn run(socket: Option<PathBuf>, args: &MpiRunArgs) -> Result<Outcome> {
    let settings = all_settings(&folder(args.provider.clone())?);
    run::exec(&args.launcher, &args.arguments, socket, &settings, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn env_prints_lines_for_a_shell() {
        let settings = Settings { mpi: Mpi::Mpich, variables: Mpi::Mpich.settings(Path::new("/opt/lib")) };
        assert!(
            shell(&settings).starts_with("# MPICH\nexport FI_PROVIDER_PATH=/opt/lib # where"),
            "{}",
            shell(&settings)
        );
    }

    #[test]
    fn no_variable_has_two_values() {
        let all = all_settings(Path::new("/x"));
        for one in &all {
            assert!(all.iter().all(|other| other.name != one.name || other == one), "{one:?}");
        }
    }

    #[test]
    fn a_folder_without_the_provider_is_refused() {
        assert!(folder(Some(PathBuf::from("/nonexistent"))).is_err());
    }
}
