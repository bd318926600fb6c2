//! MPIs where they are installed with their compiler: what each reaches through its own shared memory.
//!
//! There is no ping-pong that all of them come with, so a small one of ours is compiled with each MPI's own compiler, when it is
//! measured for the first time.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::ucx::{Killed, PATIENCE, is_installed, output};
use crate::case::{Case, Reading, Unit, size_name};
use crate::pair::Bench;

const SOURCE: &str = include_str!("mpi_pingpong.c");

/// One MPI, as Debian names its programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flavour {
    name: &'static str,
    compiler: &'static str,
    starter: &'static str,
    package: &'static str,
    /// What keeps it to its own shared memory, to processes of this machine, and from binding them itself.
    options: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
}

const FLAVOURS: [Flavour; 2] = [
    Flavour {
        name: "openmpi",
        compiler: "mpicc.openmpi",
        starter: "mpirun.openmpi",
        package: "libopenmpi-dev",
        options: &["--mca", "pml", "ob1", "--mca", "btl", "self,vader", "--bind-to", "none", "--oversubscribe"],
        variables: &[("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")],
    },
    Flavour {
        name: "mpich",
        compiler: "mpicc.mpich",
        starter: "mpirun.mpich",
        package: "libmpich-dev",
        options: &["-launcher", "fork", "-bind-to", "none"],
        variables: &[],
    },
];

/// Half a round trip between two ranks.
pub(crate) struct Mpi {
    flavour: Flavour,
    size: usize,
    /// The program, once it is compiled, in a folder that goes with it.
    program: OnceCell<TempDir>,
}

impl Mpi {
    /// A ping-pong of each.
    pub(crate) fn all(size: usize) -> impl Iterator<Item = Self> {
        FLAVOURS.into_iter().map(move |flavour| Self { flavour, size, program: OnceCell::new() })
    }

    fn program(&self) -> Result<PathBuf> {
        if self.program.get().is_none() {
            let folder = tempfile::Builder::new().prefix("isthmus-mpi-").tempdir().context("cannot make a folder")?;
            let source = folder.path().join("pingpong.c");
            fs::write(&source, SOURCE).with_context(|| format!("cannot write {}", source.display()))?;
            let mut compiler = Command::new(self.flavour.compiler);
            compiler.args(["-O2", "-o"]).arg(folder.path().join("pingpong")).arg(&source);
            let done = compiler.stdin(Stdio::null()).output().context("cannot start its compiler")?;
            if !done.status.success() {
                bail!("its compiler says: {}", String::from_utf8_lossy(&done.stderr).trim_end());
            }
            // Nobody else sets it: a case is measured by one thread.
            self.program.get_or_init(|| folder);
        }
        Ok(self.program.get().context("a program was compiled")?.path().join("pingpong"))
    }

    /// Half a round trip in nanoseconds.
    fn measure(&self, bench: &Bench) -> Result<f64> {
        let program = self.program()?;
        let placement = [bench.placement.lead(0), bench.placement.follow(0)].map(|cpu| cpu.to_string());
        let mut command = Command::new(&bench.program);
        command.args(["bound", self.flavour.starter]).args(self.flavour.options).args(["-n", "2"]).arg(program);
        command.args([self.size.to_string(), bench.budget.as_millis().to_string()]).args(placement);
        command.envs(self.flavour.variables.iter().map(|&(name, value)| (OsString::from(name), value)));
        let process = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let process = Killed::new(process.context("cannot start it")?);
        let printed = output(process, PATIENCE + bench.budget * 20)?;
        parse(&printed)
    }
}

fn parse(printed: &str) -> Result<f64> {
    let value = printed.lines().find_map(|line| line.strip_prefix("half_rtt_ns ")?.trim().parse().ok());
    value.filter(|&value| value > 0.0).with_context(|| format!("it printed {printed:?}"))
}

impl Case for Mpi {
    fn name(&self) -> String {
        format!("{}.half_rtt.{}", self.flavour.name, size_name(self.size))
    }

    fn unit(&self) -> Unit {
        Unit::Microseconds
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        let Flavour { compiler, starter, package, .. } = self.flavour;
        if let Some(missing) = [compiler, starter].into_iter().find(|program| !is_installed(program)) {
            return Ok(Reading::Absent(format!("{missing} is not installed (package {package})")));
        }
        // Not ours to repair: a baseline less, and the reason in its row.
        Ok(match self.measure(bench) {
            Ok(ns) => Reading::value(ns / 1e3),
            Err(error) => Reading::Absent(format!("{starter} did not work: {error:#}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_found_among_warnings() {
        assert_eq!(parse("a warning\nhalf_rtt_ns 312.50\n").expect("parses"), 312.5);
        for printed in ["", "half_rtt_ns 0\n", "half_rtt_ns none\n"] {
            assert!(parse(printed).is_err(), "{printed:?}");
        }
    }
}
