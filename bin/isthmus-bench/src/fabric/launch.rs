//! An MPI's launcher with its ranks, run to its end.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::installation::{FOREIGN, Mpi, Transport};
use super::system_mpi::SystemMpis;
use super::two_hosts;
use crate::hosts::{HostPairs, WireSpec};
use crate::pair::Bench;
use crate::pin::list;
use crate::programs::{KillOnDrop, TIMEOUT, output};
use crate::worker::RANK_CPUS;

/// The number of bytes of its error output that are reported.
const STDERR_BYTES_MAX: usize = 600;

/// An MPI over a transport, and where its ranks are.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) mpi: Mpi,
    pub(super) transport: Transport,
    pub(super) ranks: usize,
    /// Two hosts, with the ranks on one and the other by turns; else all are on this machine, on two of its CPUs by turns.
    pub(super) two_hosts: Option<(Rc<HostPairs>, WireSpec)>,
}

impl Launch {
    /// Returns the reason that this installation cannot run the job, if there is one.
    pub(super) fn unavailable_reason(&self) -> Option<String> {
        let provider = match self.transport {
            Transport::Isthmus => super::installation::provider_folder().err(),
            _ => None,
        };
        let missing = self.mpi.installed().err().or(provider).map(|error| format!("{error:#}"));
        let daemon = self.two_hosts.is_some() || self.transport == Transport::Isthmus;
        missing.or_else(|| if daemon { crate::daemon::unavailable_reason() } else { None })
    }

    /// Runs a program with these arguments and collects its output. The inner error is the reason that this machine cannot.
    pub(super) fn run(
        &self,
        bench: &Bench,
        system_mpi: &SystemMpis,
        program: &Path,
        arguments: &[String],
    ) -> Result<Result<String, String>> {
        let (mut command, cpus) = match &self.two_hosts {
            None => (
                self.here(bench, system_mpi)?,
                [bench.placement.lead(0), bench.placement.follow(0)].map(|cpu| vec![cpu]),
            ),
            Some((host_pairs, between)) => {
                let host_pair = match host_pairs.on(between)? {
                    Ok(host_pair) => host_pair,
                    Err(why) => return Ok(Err(why)),
                };
                (two_hosts::launcher(self, bench, &host_pair)?, bench.host_cpus.programs.clone())
            }
        };
        command
            .arg(&bench.program)
            .arg("run-bound")
            .arg(format!("{RANK_CPUS}{}", cpus.map(|cpus| list(&cpus)).join("/")));
        command.arg(program).args(arguments);
        let folder = system_mpi.folder()?;
        command.current_dir(folder).env("TMPDIR", folder);
        let said = self.finish(&mut command, &folder.join("stderr"), TIMEOUT * 2 + bench.budget * 20);
        if let (Err(_), Some((host_pairs, between))) = (&said, &self.two_hosts) {
            host_pairs.forget(between);
        }
        said.map(Ok)
    }

    /// The launcher on this machine.
    fn here(&self, bench: &Bench, system_mpi: &SystemMpis) -> Result<Command> {
        let mut command = self.command(bench, "lo")?;
        if self.transport == Transport::Isthmus {
            command.envs(system_mpi.daemon()?);
        }
        command.arg("run-bound");
        if let Some(place) = system_mpi.place() {
            command.envs(place.variables()?).args(place.words());
        }
        command.arg(self.mpi.installed()?.launcher);
        match self.mpi.is_open_mpi() {
            true => command.args(["--bind-to", "none"]),
            false => command.args(["-launcher", "fork", "-bind-to", "none"]),
        };
        command.args(["-n", &self.ranks.to_string()]);
        Ok(command)
    }

    /// This program with the variables of a job, without other variables for MPIs.
    pub(super) fn command(&self, bench: &Bench, interface: &str) -> Result<Command> {
        let mut command = Command::new(&bench.program);
        let is_foreign = |name: &OsString| FOREIGN.iter().any(|start| name.to_string_lossy().starts_with(start));
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_foreign(name)) {
            command.env_remove(name);
        }
        command.envs(self.mpi.variables(self.transport, interface)?);
        Ok(command)
    }

    fn finish(&self, command: &mut Command, stderr: &Path, timeout: Duration) -> Result<String> {
        let file = File::create(stderr).with_context(|| format!("cannot write {}", stderr.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        let process = KillOnDrop(command.spawn().context("cannot start its launcher")?);
        let said = || {
            let said = fs::read(stderr).unwrap_or_default();
            let last = &said[said.len().saturating_sub(STDERR_BYTES_MAX)..];
            format!("{} says: {}", self.mpi.name(), String::from_utf8_lossy(last).trim())
        };
        match output(process, timeout) {
            Ok((status, printed)) if status.success() => Ok(printed),
            Ok((status, _)) => bail!("{status}; {}", said()),
            Err(error) => Err(error.context(said())),
        }
    }
}
