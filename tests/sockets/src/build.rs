//! The library and the C programs, built once for each test program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The library's file.
pub const LIBRARY: &str = "libisthmus-sockets.so";

/// The folder of its package.
const PACKAGE: &str = "abi/preload";

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns `tmp/sockets` in the target directory that this program was built in.
fn scratch() -> PathBuf {
    let executable = std::env::current_exe().expect("a running program has a file");
    let is_target = |folder: &&Path| folder.join(".rustc_info.json").is_file();
    let target = executable.ancestors().filter(is_target).last();
    target.expect("tests are built in a target directory").join("tmp/sockets")
}

/// The folder with the library, linked once, by the way it is shipped; or `ISTHMUS_SOCKETS_LIBRARY`, as it is. The error says why
/// there is none.
pub fn library() -> Result<&'static Path, String> {
    static LINKED: OnceLock<Option<PathBuf>> = OnceLock::new();
    let linked = LINKED.get_or_init(|| {
        if let Some(folder) = std::env::var_os("ISTHMUS_SOCKETS_LIBRARY") {
            return Some(folder.into());
        }
        let manifest = std::fs::read_to_string(root().join(PACKAGE).join("Cargo.toml")).ok()?;
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
        let folder = scratch().join("lib");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(root()).args(["xtask", "link-abi", name.expect("a package has a name")]);
        let map = format!("{PACKAGE}/{}", LIBRARY.replace(".so", ".map"));
        cargo.args(["--map", &map, "--out"]).arg(folder.join(LIBRARY));
        succeed(&mut cargo);
        Some(folder)
    });
    linked.as_deref().ok_or_else(|| format!("there is no {PACKAGE}, so no {LIBRARY}"))
}

/// The program of `c/NAME.c`.
pub fn program(name: &str) -> PathBuf {
    compiled(name, name, &[])
}

/// The program of `c/NAME.c` as a static executable.
pub fn static_program(name: &str) -> PathBuf {
    compiled(name, &format!("{name}-static"), &["-static"])
}

/// The program of `c/NAME.c` with a sanitizer of gcc, such as `address`, and these options. The error says that gcc does not have it.
pub fn sanitized_program(name: &str, sanitizer: &str, options: &[&str]) -> Result<PathBuf, String> {
    let runtime = match sanitizer {
        "address" => "libasan.so",
        "thread" => "libtsan.so",
        other => return Err(format!("{other} is no sanitizer")),
    };
    let mut gcc = Command::new("gcc");
    let found = gcc.arg(format!("-print-file-name={runtime}")).output().map_err(|error| format!("gcc: {error}"))?;
    if !String::from_utf8_lossy(&found.stdout).starts_with('/') {
        return Err(format!("gcc has no {runtime}"));
    }
    let flag = format!("-fsanitize={sanitizer}");
    // The sanitizers do not know the checked names of calls.
    let options = [&[flag.as_str(), "-U_FORTIFY_SOURCE"], options].concat();
    Ok(compiled(name, &format!("{name}-{sanitizer}{}", options[2..].concat()), &options))
}

/// Compiles `c/SOURCE.c`, once for each name.
fn compiled(source: &str, name: &str, options: &[&str]) -> PathBuf {
    static COMPILED: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner); // Held while compiling: others wait.
    if let Some(program) = compiled.get(name) {
        return program.clone();
    }
    // Test programs of one package run beside each other: each has its own file, and replaces it in one step.
    let folder = scratch().join("programs");
    std::fs::create_dir_all(&folder).expect("a folder in the target directory");
    let (program, new) = (folder.join(name), folder.join(format!("{name}.{}", std::process::id())));
    let mut cc = Command::new(if options.iter().any(|option| option.starts_with("-fsanitize")) { "gcc" } else { "cc" });
    cc.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-pthread"]);
    cc.arg("-D_FORTIFY_SOURCE=2").args(options); // Calls such as read have other names then.
    cc.arg("-o").arg(&new).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("c/{source}.c")));
    succeed(&mut cc);
    std::fs::rename(&new, &program).expect("both are in one folder");
    compiled.insert(name.to_owned(), program.clone());
    program
}

/// Runs a tool that must do its work.
#[track_caller]
fn succeed(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
}
