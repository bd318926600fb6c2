//! Files that tests make from the tree beside programs in Rust: libraries as they are shipped, and programs in C.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the root of the workspace.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the folder `tmp/NAME` in the target directory that the running test was built in.
///
/// # Panics
///
/// Panics outside of a target directory.
pub fn build_folder(name: &str) -> PathBuf {
    let executable = std::env::current_exe().expect("a running program has a file");
    // Cargo writes this file in every target directory; CACHEDIR.TAG only if it made the directory itself.
    let is_target = |folder: &&Path| folder.join(".rustc_info.json").is_file();
    let target = executable.ancestors().filter(is_target).last();
    target.expect("tests are built in a target directory").join("tmp").join(name)
}

/// Links a C library, as it is shipped, into a folder. `package` is the folder of its package, for example `abi/preload`,
/// which has a version script with the name of the library.
///
/// # Panics
///
/// Panics if the library cannot be linked.
#[track_caller]
pub fn link_library(package: &str, library: &str, folder: &Path) {
    let manifest = workspace_root().join(package).join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest).unwrap_or_else(|error| panic!("{}: {error}", manifest.display()));
    let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace_root()).args(["xtask", "link-abi", name.expect("a package has a name")]);
    let map = format!("{package}/{}", library.replace(".so", ".map"));
    run_tool(cargo.args(["--map", &map, "--out"]).arg(folder.join(library)));
}

/// Compiles a source file to `program` with a compiler and its options, and links it with `libraries`. The program appears in
/// one step, because tests that run at the same time share it.
///
/// # Panics
///
/// Panics if the compiler fails.
#[track_caller]
pub fn compile(compiler: &mut Command, source: &Path, program: &Path, libraries: &[impl AsRef<std::ffi::OsStr>]) {
    let folder = program.parent().expect("a program lies in a folder");
    std::fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let incomplete = program.with_added_extension(std::process::id().to_string());
    run_tool(compiler.arg("-o").arg(&incomplete).arg(source).args(libraries));
    std::fs::rename(&incomplete, program).expect("both names are in one folder");
}

/// Runs a tool to its end and returns its standard output.
///
/// # Panics
///
/// Panics with the tool's standard error if the tool fails.
#[track_caller]
pub fn run_tool(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
