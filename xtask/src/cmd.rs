//! Starting other programs: where the tree is, and an environment which is not ours.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The root of the tree: the folder above this package, as `cargo run` says: a tree may have moved since it was built.
pub(crate) fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&package).parent().expect("xtask is a folder of the workspace").to_path_buf()
}

/// A command in the root of the tree, without what `cargo run` put into our environment: a second cargo, perhaps of
/// another toolchain, must find its own libraries.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    for leaked in ["LD_LIBRARY_PATH", "CARGO", "CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_PKG_NAME"] {
        command.env_remove(leaked);
    }
    command
}

/// Returns true if a command succeeds; its output is discarded.
pub(crate) fn succeeds(program: &str, args: &[&str]) -> bool {
    let status = command(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Returns the output of a command, if it ended well.
pub(crate) fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = command(program).args(args).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
