//! Testbeds for unprivileged users: the program once more, as root of a user namespace of its own.

use std::env;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Set in the second life, so that there is no third.
const REEXEC_VARIABLE: &str = "ISTHMUS_NETNS_ROOT";

/// Re-executes this program with the same arguments as root of a user namespace, in which an unprivileged user may make a testbed. Root
/// applies to the namespace only: outside, the process still is that user. Returns without effect for root and for a program that has been
/// through it. Returns an error if the system does not allow it.
///
/// Must be called first thing in `main`, before there are threads, temporary files or output.
pub fn reexec_as_userns_root() -> io::Result<()> {
    if rustix::process::geteuid().is_root() || env::var_os(REEXEC_VARIABLE).is_some() {
        return Ok(());
    }
    let program = env::current_exe()?;
    // The trial shows whether the system allows it; after `exec` this code could not report a refusal.
    let trial = Command::new("unshare").args(["--map-root-user", "--net", "true"]).output()?;
    if !trial.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&trial.stderr).trim().to_owned()));
    }
    let mut again = Command::new("unshare");
    again.args(["--map-root-user", "--"]).arg(program).args(env::args_os().skip(1)).env(REEXEC_VARIABLE, "1");
    Err(again.exec())
}
