//! `isthmus mpi env` and `isthmus mpi run`: the variables by which MPIs find the libfabric provider and use nothing else.
//!
//! ```text
//! eval "$(isthmus mpi env openmpi)"; mpirun -n 4 ./program      one MPI's, for a shell
//! isthmus mpi run -- -n 4 ./program                             all of them, and the launcher
//! ```
//!
//! No MPI minds the variables of another, so the launcher gets all of them, whichever it is.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::output::{Outcome, Output};

/// The provider's file, as libfabric looks for it.
const PROVIDER: &str = "libisthmus-fi.so";

/// The MPIs whose variables are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mpi {
    /// Open MPI 4 and 5
    Openmpi,
    /// MPICH whose device is ch4:ofi, as that of PyPI
    Mpich,
    /// Intel MPI
    Intel,
}

/// A variable and what it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Setting {
    name: &'static str,
    value: String,
    effect: &'static str,
}

#[derive(Serialize)]
struct Settings {
    mpi: Mpi,
    variables: Vec<Setting>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct MpiEnvArgs {
    /// Of which MPI [default: each of them].
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

    /// What the launcher is given, after `--`.
    #[arg(value_name = "ARGUMENT", last = true, required = true)]
    arguments: Vec<OsString>,
}

impl Mpi {
    const ALL: [Self; 3] = [Self::Openmpi, Self::Mpich, Self::Intel];

    /// Its variables, with the provider in this folder.
    fn settings(self, folder: &Path) -> Vec<Setting> {
        let set = |name, value: &str, effect| Setting { name, value: value.to_owned(), effect };
        let common = [
            set("FI_PROVIDER_PATH", &folder.to_string_lossy(), "where libfabric finds the provider"),
            set("FI_PROVIDER", "isthmus", "the only one it is to offer"),
        ];
        let own = match self {
            Self::Openmpi => vec![
                set("OMPI_MCA_pml", "cm", "messages go by a matching transport"),
                set("OMPI_MCA_mtl", "ofi", "which is libfabric"),
                set("OMPI_MCA_btl", "ofi,self", "and so do windows"),
                set("OMPI_MCA_osc", "^sm,ucx", "also those of ranks on one host"),
                set(
                    "OMPI_MCA_opal_common_ofi_provider_include",
                    "isthmus",
                    "the provider, though the distribution excludes all",
                ),
            ],
            Self::Mpich => vec![
                set("MPIR_CVAR_CH4_NETMOD", "ofi", "messages go by libfabric"),
                set("MPIR_CVAR_NOLOCAL", "1", "also those of ranks on one host"),
            ],
            Self::Intel => vec![
                set("I_MPI_FABRICS", "ofi", "messages go by libfabric, also those of ranks on one host"),
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

/// The folder with the provider: the one that was named, or the first of those in which this program's installation has it.
fn folder(named: Option<PathBuf>) -> Result<PathBuf> {
    if let Some(named) = named {
        let found = named.join(PROVIDER);
        anyhow::ensure!(found.is_file(), "there is no {}", found.display());
        return Ok(std::path::absolute(named)?);
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let own = program.parent().context("a program lies in a folder")?;
    let above = own.parent().unwrap_or(own);
    let places = [own.to_owned(), above.join("lib/libfabric"), above.join("lib"), above.join("abi")];
    let found = places.iter().find(|place| place.join(PROVIDER).is_file());
    let looked = || places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ");
    found.cloned().with_context(|| format!("{PROVIDER} is in none of {}: say where with --provider", looked()))
}

/// As a shell reads it.
fn quoted(value: &str) -> String {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || "/._-,:+=".contains(sign);
    if !value.is_empty() && value.chars().all(plain) {
        value.to_owned()
    } else {
        format!("'{}'", value.replace('\'', r"'\''"))
    }
}

fn shell(settings: &Settings) -> String {
    let line = |set: &Setting| format!("export {}={} # {}\n", set.name, quoted(&set.value), set.effect);
    format!("# {}\n{}", settings.mpi.name(), settings.variables.iter().map(line).collect::<String>())
}

pub(crate) fn env(output: Output, args: MpiEnvArgs) -> Result<Outcome> {
    let folder = folder(args.provider)?;
    let wanted = args.mpi.map_or(Mpi::ALL.to_vec(), |mpi| vec![mpi]);
    let all: Vec<Settings> = wanted.into_iter().map(|mpi| Settings { mpi, variables: mpi.settings(&folder) }).collect();
    output
        .result("mpi env", &serde_json::json!({ "mpis": all }), || all.iter().map(shell).collect::<Vec<_>>().join("\n"))?;
    Ok(Outcome::Done)
}

/// Becomes the launcher, with the variables of all MPIs. Variables that are set already stay as they are.
pub(crate) fn mpirun(socket: Option<PathBuf>, args: MpiRunArgs) -> Result<Outcome> {
    let folder = folder(args.provider)?;
    let mut launcher = Command::new(&args.launcher);
    if let Some(socket) = socket {
        launcher.env(isthmus_layout::environment::SOCKET.name, std::path::absolute(socket)?);
    }
    for set in Mpi::ALL.into_iter().flat_map(|mpi| mpi.settings(&folder)) {
        if std::env::var_os(set.name).is_none() {
            launcher.env(set.name, set.value);
        }
    }
    let error = launcher.args(args.arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", args.launcher.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_values_survive_the_shell() {
        assert_eq!(quoted("ofi,self"), "ofi,self");
        assert_eq!(quoted("^sm,ucx"), "'^sm,ucx'");
        assert_eq!(quoted("/a b/it's"), r"'/a b/it'\''s'");
        let settings = Settings { mpi: Mpi::Mpich, variables: Mpi::Mpich.settings(Path::new("/opt/lib")) };
        assert!(
            shell(&settings).starts_with("# MPICH\nexport FI_PROVIDER_PATH=/opt/lib # where"),
            "{}",
            shell(&settings)
        );
    }

    #[test]
    fn no_variable_has_two_values() {
        let all: Vec<Setting> = Mpi::ALL.into_iter().flat_map(|mpi| mpi.settings(Path::new("/x"))).collect();
        for one in &all {
            assert!(all.iter().all(|other| other.name != one.name || other.value == one.value), "{one:?}");
        }
    }

    #[test]
    fn a_folder_without_the_provider_is_refused() {
        assert!(folder(Some(PathBuf::from("/nonexistent"))).is_err());
    }
}
