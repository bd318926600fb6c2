//! HPC Challenge, which is Debian's and built for its Open MPI: one job reports all its figures.

use std::cell::{Cell, RefCell};
use std::fs;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};

use super::installation::{Mpi, Transport};
use super::launch::Launch;
use super::system_mpi::SystemMpis;
use crate::case::{Case, Reading, Unit, not_installed};
use crate::pair::Bench;
use crate::programs::find_program;

const PROGRAM: &str = "hpcc";
const RANKS: usize = 2;

/// The template of its input; tests of MPI use it, too.
const INPUT: &str = include_str!("hpccinf.txt");

/// Small enough for some seconds, large enough that tables and vectors (of 16 and 4 MiB) do not lie in a core's own caches.
const SIZE: &str = "2000";

/// The output of the jobs of one transport that have run.
#[derive(Debug)]
pub(crate) struct HpccRuns {
    transport: Transport,
    system_mpi: Rc<SystemMpis>,
    said: RefCell<Vec<String>>,
}

/// One of the figures that a job reports.
pub(crate) struct Hpcc {
    key: &'static str,
    unit: Unit,
    runs: Rc<HpccRuns>,
    /// The number of the next job.
    next: Cell<usize>,
}

impl HpccRuns {
    pub(crate) fn new(system_mpi: &Rc<SystemMpis>, transport: Transport) -> Rc<Self> {
        Rc::new(Self { transport, system_mpi: Rc::clone(system_mpi), said: RefCell::default() })
    }

    fn launch(&self) -> Launch {
        Launch { mpi: Mpi::OpenMpi4, transport: self.transport, ranks: RANKS, two_hosts: None }
    }

    /// Returns the output of job number `at`, and runs the job if it has not run.
    fn said(&self, at: usize, bench: &Bench) -> Result<String> {
        if let Some(said) = self.said.borrow().get(at) {
            return Ok(said.clone());
        }
        let program = find_program(PROGRAM).with_context(|| format!("{PROGRAM} is gone"))?;
        let folder = self.system_mpi.folder()?;
        let output = folder.join("hpccoutf.txt");
        let input = INPUT.replace("{n}", SIZE).replace("{p}", "1").replace("{q}", &RANKS.to_string());
        fs::write(folder.join("hpccinf.txt"), input).context("cannot write the input of hpcc")?;
        if output.exists() {
            fs::remove_file(&output).context("cannot remove the previous output")?; // It would append.
        }
        let run = self.launch().run(bench, &self.system_mpi, &program, &[])?;
        run.map_err(anyhow::Error::msg)?;
        let said = fs::read_to_string(&output).context("hpcc left no output")?;
        ensure!(said.lines().any(|line| line == "Success=1"), "the results of hpcc are wrong");
        self.said.borrow_mut().push(said.clone());
        Ok(said)
    }
}

impl Hpcc {
    /// The figure with this key in the summary.
    pub(crate) fn new(runs: &Rc<HpccRuns>, key: &'static str, unit: Unit) -> Self {
        Self { key, unit, runs: Rc::clone(runs), next: Cell::new(0) }
    }
}

/// A figure of the summary at the end: `MPIFFT_Gflops=2.87814`.
fn figure(said: &str, key: &str) -> Result<f64> {
    let value = said.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')?.trim().parse().ok());
    value.filter(|&value| value > 0.0).with_context(|| format!("the output of hpcc has no {key}"))
}

impl Case for Hpcc {
    fn name(&self) -> String {
        format!("{}.{}.hpcc.{}", Mpi::OpenMpi4.name(), self.runs.transport.name(), self.key)
    }

    fn unit(&self) -> Unit {
        self.unit
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        if find_program(PROGRAM).is_none() {
            return Ok(Reading::Unavailable(not_installed(PROGRAM, "package hpcc")));
        }
        if let Some(why) = self.runs.launch().unavailable_reason() {
            return Ok(Reading::Unavailable(why));
        }
        let at = self.next.replace(self.next.get() + 1);
        let found = self.runs.said(at, bench).and_then(|said| figure(&said, self.key));
        match (found, self.runs.transport) {
            (Ok(value), _) => Ok(Reading::value(value)),
            (Err(error), Transport::Isthmus) => Err(error),
            (Err(error), _) => Ok(Reading::Unavailable(format!("it did not work: {error:#}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_summary() {
        let said = "MPIFFT_N=262144\nMPIFFT_Gflops=2.87814\nSuccess=1\n";
        assert_eq!(figure(said, "MPIFFT_Gflops").expect("it is there"), 2.87814);
        assert!(figure(said, "MPIFFT_G").is_err() && figure("MPIFFT_Gflops=-1\n", "MPIFFT_Gflops").is_err());
    }
}
