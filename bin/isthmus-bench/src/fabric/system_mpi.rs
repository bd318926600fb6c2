//! The state that all jobs share: the program, compiled once for each MPI, and a daemon of their own.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

use anyhow::{Context, Result, bail};

use super::installation::Mpi;
use crate::daemon::PrivateDaemon;
use crate::programs::Place;
use crate::temp_folder::TempFolder;

const SOURCE: &str = include_str!("program.c");

/// Made when it is first needed. What is declared first ends first.
#[derive(Debug, Default)]
pub(crate) struct SystemMpis {
    daemon: OnceCell<PrivateDaemon>,
    place: Option<Rc<dyn Place>>,
    programs: RefCell<BTreeMap<Mpi, PathBuf>>,
    folder: OnceCell<TempFolder>,
}

impl SystemMpis {
    /// Jobs of this machine in a place of their own.
    pub(crate) fn at(place: Rc<dyn Place>) -> Self {
        Self { place: Some(place), ..Self::default() }
    }

    /// The place of jobs of this machine, if they have one of their own.
    pub(super) fn place(&self) -> Option<&dyn Place> {
        self.place.as_deref()
    }

    /// The folder of the jobs, which is removed at the end.
    pub(super) fn folder(&self) -> Result<&Path> {
        if self.folder.get().is_none() {
            let folder = TempFolder::make()?;
            // No other thread sets it: one thread measures all cases.
            self.folder.get_or_init(|| folder);
        }
        Ok(self.folder.get().context("the folder is not made")?.path())
    }

    /// The variables of the daemon of jobs on this machine.
    pub(super) fn daemon(&self) -> Result<Vec<(OsString, OsString)>> {
        if self.daemon.get().is_none() {
            let folder = self.folder()?.join("daemon");
            fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
            let daemon = PrivateDaemon::start(&folder)?;
            self.daemon.get_or_init(|| daemon);
        }
        Ok(self.daemon.get().context("the daemon is not started")?.environment())
    }

    /// The program, as this MPI's compiler makes it.
    pub(super) fn program(&self, mpi: Mpi) -> Result<PathBuf> {
        if let Some(program) = self.programs.borrow().get(&mpi) {
            return Ok(program.clone());
        }
        let folder = self.folder()?;
        let (source, program) = (folder.join("program.c"), folder.join(mpi.name()));
        fs::write(&source, SOURCE).with_context(|| format!("cannot write {}", source.display()))?;
        let mut compiler = Command::new(mpi.installed()?.compiler);
        compiler.arg("-O2").arg("-o").arg(&program).arg(&source);
        let done = compiler.stdin(Stdio::null()).output().context("cannot start the compiler")?;
        if !done.status.success() {
            bail!("the compiler says: {}", String::from_utf8_lossy(&done.stderr).trim_end());
        }
        self.programs.borrow_mut().insert(mpi, program.clone());
        Ok(program)
    }
}
