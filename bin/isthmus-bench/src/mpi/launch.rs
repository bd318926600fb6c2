//! An MPI's launcher with its ranks, run to its end.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::away;
use super::flavour::{FOREIGN, Mpi, Transport};
use super::stock::Stock;
use crate::baseline::ucx::{Killed, PATIENCE, output};
use crate::hosts::{Between, Stages};
use crate::pair::Bench;
use crate::pin::list;
use crate::worker::RANK_CPUS;

/// How many bytes of its complaints are told.
const SAID_MAX: usize = 600;

/// An MPI over a transport, and where its ranks are.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) mpi: Mpi,
    pub(super) transport: Transport,
    pub(super) ranks: usize,
    /// Two hosts, with the ranks on one and the other by turns; else all are on this machine, on two of its CPUs by turns.
    pub(super) away: Option<(Rc<Stages>, Between)>,
}

impl Launch {
    /// Why there can be no such job with this installation, if there can be none.
    pub(super) fn absent(&self) -> Option<String> {
        let provider = match self.transport {
            Transport::Isthmus => super::flavour::provider_folder().err(),
            _ => None,
        };
        let missing = self.mpi.installed().err().or(provider).map(|error| format!("{error:#}"));
        let daemon = self.away.is_some() || self.transport == Transport::Isthmus;
        missing.or_else(|| if daemon { crate::daemon::absent() } else { None })
    }

    /// Runs a program of so many arguments and collects what it prints. An error within says why this machine cannot.
    pub(super) fn run(
        &self,
        bench: &Bench,
        stock: &Stock,
        program: &Path,
        arguments: &[String],
    ) -> Result<Result<String, String>> {
        let (mut command, cpus) = match &self.away {
            None => {
                (self.here(bench, stock)?, [bench.placement.lead(0), bench.placement.follow(0)].map(|cpu| vec![cpu]))
            }
            Some((stages, between)) => {
                let stage = match stages.on(between)? {
                    Ok(stage) => stage,
                    Err(why) => return Ok(Err(why)),
                };
                (away::launcher(self, bench, &stage)?, bench.seating.programs.clone())
            }
        };
        command.arg(&bench.program).arg("bound").arg(format!("{RANK_CPUS}{}", cpus.map(|cpus| list(&cpus)).join("/")));
        command.arg(program).args(arguments);
        let folder = stock.folder()?;
        command.current_dir(folder).env("TMPDIR", folder);
        let said = self.finish(&mut command, &folder.join("stderr"), PATIENCE * 2 + bench.budget * 20);
        if let (Err(_), Some((stages, between))) = (&said, &self.away) {
            stages.forget(between);
        }
        said.map(Ok)
    }

    /// Its launcher on this machine.
    fn here(&self, bench: &Bench, stock: &Stock) -> Result<Command> {
        let mut command = self.command(bench, "lo")?;
        if self.transport == Transport::Isthmus {
            command.envs(stock.daemon()?);
        }
        command.arg("bound").arg(self.mpi.installed()?.launcher);
        match self.mpi.is_open_mpi() {
            true => command.args(["--bind-to", "none"]),
            false => command.args(["-launcher", "fork", "-bind-to", "none"]),
        };
        command.args(["-n", &self.ranks.to_string()]);
        Ok(command)
    }

    /// This program with the variables of a job, and none of those that somebody may have set for MPIs.
    pub(super) fn command(&self, bench: &Bench, interface: &str) -> Result<Command> {
        let mut command = Command::new(&bench.program);
        let is_foreign = |name: &OsString| FOREIGN.iter().any(|start| name.to_string_lossy().starts_with(start));
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_foreign(name)) {
            command.env_remove(name);
        }
        command.envs(self.mpi.variables(self.transport, interface)?);
        Ok(command)
    }

    fn finish(&self, command: &mut Command, stderr: &Path, patience: Duration) -> Result<String> {
        let file = File::create(stderr).with_context(|| format!("cannot write {}", stderr.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        let process = Killed::new(command.spawn().context("cannot start its launcher")?);
        let said = || {
            let said = fs::read(stderr).unwrap_or_default();
            let last = &said[said.len().saturating_sub(SAID_MAX)..];
            format!("{} says: {}", self.mpi.name(), String::from_utf8_lossy(last).trim())
        };
        match output(process, patience) {
            Ok((status, printed)) if status.success() => Ok(printed),
            Ok((status, _)) => bail!("{status}; {}", said()),
            Err(error) => Err(error.context(said())),
        }
    }
}
