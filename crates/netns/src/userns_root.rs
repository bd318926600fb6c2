//! Testbeds for unprivileged users: the program once more, as root of a user namespace of its own.

use std::env;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Set in the second life, so that there is no third.
const REEXEC_VARIABLE: &str = "ISTHMUS_NETNS_ROOT";

/// Replaces this program by itself, with the same arguments, as root of a user namespace, where an unprivileged user may make a
/// testbed. Root over nothing else: outside it is still that user. It does nothing for root and for a program that has been
/// through it, and an error tells that the system does not allow it.
///
/// To be called first thing in `main`, before there are threads, temporary files or output.
pub fn reexec_as_userns_root() -> io::Result<()> {
    if rustix::process::geteuid().is_root() || env::var_os(REEXEC_VARIABLE).is_some() {
        return Ok(());
    }
    let program = env::current_exe()?;
    // The trial tells whether it is allowed; after `exec` there would be nobody to say that it is not.
    let trial = Command::new("unshare").args(["--map-root-user", "--net", "true"]).output()?;
    if !trial.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&trial.stderr).trim().to_owned()));
    }
    let mut again = Command::new("unshare");
    again.args(["--map-root-user", "--"]).arg(program).args(env::args_os().skip(1)).env(REEXEC_VARIABLE, "1");
    Err(again.exec())
}
