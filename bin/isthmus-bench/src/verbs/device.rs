//! The RDMA device of the rows: a daemon of our own, the files by which libibverbs finds the device, and programs that use it.
//!
//! ```text
//! isthmus-bench run-bound cpus=N ─▶ bwrap ─▶ the program       bwrap: where /dev/infiniband has not the links
//! ```

use std::cell::OnceCell;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::case::not_installed;
use crate::daemon::{self, PrivateDaemon};
use crate::pair::Bench;
use crate::pin;
use crate::programs::{Place, find_program, library};
use crate::temp_folder::TempFolder;
use crate::worker::CPUS;

/// The plug-in of libibverbs, and the part of its name that libibverbs does not append.
const PLUG_IN: &str = "libisthmus-rdmav34.so";
const DRIVER: &str = "libisthmus";

/// The library for completion channels.
const PRELOADED: &str = "libisthmus-verbs.so";

/// Writes the files of the device.
const ENABLER: &str = "isthmus";

/// The file that libibverbs opens.
const DEVICE_FILE: &str = "/dev/infiniband/uverbs0";

/// The file that librdmacm opens.
const CONNECTIONS_FILE: &str = "/dev/infiniband/rdma_cm";

/// Makes these files for one program.
const SANDBOX: &str = "bwrap";

/// The C program.
const SOURCE: &str = include_str!("program.c");

/// The compiler and the headers of the C program.
const COMPILER: &str = "cc";
const HEADER: &str = "/usr/include/infiniband/verbs.h";

/// Made when it is first needed. What is declared first ends first.
#[derive(Debug, Default)]
pub(crate) struct Device {
    daemon: OnceCell<PrivateDaemon>,
    program: OnceCell<PathBuf>,
    folder: OnceCell<TempFolder>,
}

impl Device {
    /// A folder for files of programs, which is removed at the end.
    pub(super) fn folder(&self) -> Result<&Path> {
        if self.folder.get().is_none() {
            let folder = TempFolder::make()?;
            // No other thread sets it: one thread measures all cases.
            self.folder.get_or_init(|| folder);
        }
        Ok(self.folder.get().context("the folder is not made")?.path())
    }

    /// The daemon, with the files of its device.
    pub(super) fn daemon(&self) -> Result<&PrivateDaemon> {
        if self.daemon.get().is_none() {
            let folder = self.folder()?.join("daemon");
            fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
            let daemon = PrivateDaemon::start(&folder)?;
            let mut enable = Command::new(enabler()?);
            enable.args(["verbs", "enable"]).envs(daemon.environment()).stdin(Stdio::null());
            let done = enable.output().context("cannot start isthmus")?;
            ensure!(
                done.status.success(),
                "isthmus verbs enable: {}",
                String::from_utf8_lossy(&done.stderr).trim_end()
            );
            self.daemon.get_or_init(|| daemon);
        }
        self.daemon.get().context("the daemon is not started")
    }

    /// A program on one CPU that finds the device and ends with this one. Its arguments are added by the caller.
    pub(super) fn command(&self, bench: &Bench, cpu: usize, program: &Path) -> Result<Command> {
        let mut command = Command::new(&bench.program);
        command.arg("run-bound").arg(format!("{CPUS}{}", pin::list(&[cpu])));
        command.args(self.words()).arg(program).envs(self.variables()?);
        Ok(command)
    }

    /// The C program, compiled. The inner error is the reason that this machine cannot.
    pub(super) fn program(&self) -> Result<Result<&Path, String>> {
        if !Path::new(HEADER).is_file() {
            return Ok(Err(not_installed("infiniband/verbs.h", "package libibverbs-dev")));
        }
        if find_program(COMPILER).is_none() {
            return Ok(Err(not_installed(COMPILER, "package gcc")));
        }
        if self.program.get().is_none() {
            let program = compile(self.folder()?, &[])?;
            self.program.get_or_init(|| program);
        }
        Ok(Ok(self.program.get().context("the program is not compiled")?))
    }
}

/// Compiles the C program in a folder, with these options as well.
fn compile(folder: &Path, options: &[&str]) -> Result<PathBuf> {
    let (source, program) = (folder.join("program.c"), folder.join("program"));
    fs::write(&source, SOURCE).with_context(|| format!("cannot write {}", source.display()))?;
    let mut compiler = Command::new(COMPILER);
    compiler.args(["-std=gnu11", "-D_GNU_SOURCE", "-O2"]).args(options);
    compiler.arg("-o").arg(&program).arg(&source).arg("-libverbs");
    let done = compiler.stdin(Stdio::null()).output().context("cannot start the compiler")?;
    ensure!(done.status.success(), "the compiler says: {}", String::from_utf8_lossy(&done.stderr).trim_end());
    Ok(program)
}

impl Place for Device {
    fn unavailable_reason(&self) -> Option<String> {
        let missing = || -> Result<()> {
            [PLUG_IN, PRELOADED].into_iter().try_for_each(|name| library(name).map(drop))?;
            enabler()?;
            start_true(&self.words())
        };
        missing().err().map(|error| error.to_string()).or_else(daemon::unavailable_reason)
    }

    fn variables(&self) -> Result<Vec<(OsString, OsString)>> {
        let daemon = self.daemon()?;
        let sys = daemon.socket().with_file_name("verbs").join("sys");
        let driver = library(PLUG_IN)?.with_file_name(DRIVER);
        let own = [("SYSFS_PATH", sys), ("IBV_DRIVERS", driver), ("LD_PRELOAD", library(PRELOADED)?)];
        let own = own.map(|(name, value)| (OsString::from(name), value.into_os_string()));
        Ok(daemon.environment().into_iter().chain(own).collect())
    }

    fn words(&self) -> Vec<&'static str> {
        if !is_boxed() {
            return Vec::new();
        }
        let folder = DEVICE_FILE.rsplit_once('/').map_or("/", |(folder, _)| folder);
        let dev = ["--dev", "/dev", "--dir", folder, "--symlink", "/dev/null", DEVICE_FILE];
        let connections = ["--symlink", "/dev/full", CONNECTIONS_FILE];
        [&[SANDBOX, "--die-with-parent", "--bind", "/", "/"][..], &dev, &connections].concat()
    }
}

/// Starts `true` behind these words, to find out whether they work here: user namespaces may be forbidden.
fn start_true(words: &[&str]) -> Result<()> {
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    ensure!(find_program(program).is_some(), not_installed(program, "package bubblewrap"));
    let tried = Command::new(program).args(arguments).arg("true").stdin(Stdio::null()).output()?;
    let why = String::from_utf8_lossy(&tried.stderr);
    ensure!(tried.status.success(), "{program} does not work here: {}", why.trim_end());
    Ok(())
}

/// Returns whether programs need a /dev of their own: the file is missing, or belongs to a device of this machine.
fn is_boxed() -> bool {
    let number = |path| Some(fs::metadata(path).ok().filter(|found| found.file_type().is_char_device())?.rdev());
    number(DEVICE_FILE) != number("/dev/null") || number(CONNECTIONS_FILE) != number("/dev/full")
}

/// `isthmus`, which was built or installed together with this program.
fn enabler() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let beside = own.with_file_name(ENABLER);
    ensure!(beside.is_file(), not_installed(ENABLER, "`make build` makes it, beside this program"));
    Ok(beside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_starts_no_other_is_named() {
        let refusal = |words: &[&str]| start_true(words).err().map(|error| error.to_string());
        assert_eq!([refusal(&[]), refusal(&["env"])], [None, None]);
        assert_eq!(refusal(&["false"]).as_deref(), Some("false does not work here: "));
    }

    /// The role that needs no device runs, and an unknown one does not.
    #[test]
    fn c_program_compiles_without_warnings_and_knows_its_roles() {
        if !Path::new(HEADER).is_file() || find_program(COMPILER).is_none() {
            return eprintln!("skipped: needs {COMPILER} and {HEADER}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let program =
            compile(folder.path(), &["-Wall", "-Wextra", "-Werror"]).unwrap_or_else(|error| panic!("{error:#}"));
        let run = |words: &[&str]| Command::new(&program).args(words).output().expect("it runs");
        let remap = run(&["remap", "65536", "1"]);
        let printed = String::from_utf8_lossy(&remap.stdout);
        let number = printed.strip_prefix("remap_ns ").and_then(|number| number.trim().parse::<f64>().ok());
        assert!(number.is_some_and(|ns| ns > 0.0), "{remap:?}");
        let unknown = run(&["sing"]);
        assert!(unknown.status.code() == Some(2) && unknown.stderr.ends_with(b"no role sing\n"), "{unknown:?}");
    }
}
