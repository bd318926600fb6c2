//! A folder that is removed when the process that made it ends, even by a signal.
//!
//! Handlers of signals would get in the way of their senders, and SIGKILL cannot be caught. So another process holds the other
//! end of a pipe. When the pipe is closed, for any reason, it removes the folder.

use std::fs;
use std::io::{self, Read, stdin};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};

const PREFIX: &str = "isthmus-try-";
/// A daemon that is being killed at this moment may still write.
const TRIES: u32 = 5;

/// The folder; its drop waits until it is gone.
#[derive(Debug)]
pub struct TempFolder {
    path: PathBuf,
    sweeper: Child,
}

impl TempFolder {
    /// A new one, where temporary files are.
    pub fn make() -> Result<Self> {
        let place = std::env::temp_dir();
        let cannot = || format!("cannot make a folder in {}; name another place by TMPDIR", place.display());
        let made = tempfile::Builder::new().prefix(PREFIX).tempdir().with_context(cannot)?;
        let program = std::env::current_exe().context("cannot find this program, to start it again")?;
        // In a group of its own: Ctrl-C is for us, and it has work to do then.
        let sweeper = Command::new(program)
            .arg("remove-on-exit")
            .arg(made.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start the process that cleans up")?;
        Ok(Self { path: made.keep(), sweeper })
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        drop(self.sweeper.stdin.take());
        // If waiting fails there is no process to wait for.
        let _: io::Result<_> = self.sweeper.wait();
    }
}

/// The sweeper's whole life.
pub(crate) fn sweep(path: &Path) -> Result<()> {
    let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    if !ours {
        bail!("`remove-on-exit` is only for the program that made the folder, and {} is none", path.display());
    }
    // An error is an end as well.
    let _: io::Result<_> = stdin().read_to_end(&mut Vec::new());
    let mut tries = 0;
    loop {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound && tries < TRIES => {
                tries += 1;
                sleep(Duration::from_millis(20));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => return Ok(()),
        }
    }
}
