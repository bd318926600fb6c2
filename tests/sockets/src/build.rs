//! The library and the C programs, built once for each test program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use isthmus_testbed::{build_folder, compile, link_library, workspace_root};

/// The library's file.
pub const LIBRARY: &str = "libisthmus-sockets.so";

/// The folder of its package.
const PACKAGE: &str = "abi/preload";

/// The folder with the library, linked once, by the way it is shipped; or `ISTHMUS_SOCKETS_LIBRARY`, as it is. The error says why
/// there is none.
pub fn library() -> Result<&'static Path, String> {
    static LINKED: OnceLock<Option<PathBuf>> = OnceLock::new();
    let linked = LINKED.get_or_init(|| {
        if let Some(folder) = std::env::var_os("ISTHMUS_SOCKETS_LIBRARY") {
            return Some(folder.into());
        }
        if !workspace_root().join(PACKAGE).is_dir() {
            return None;
        }
        let folder = build_folder("sockets/lib");
        link_library(PACKAGE, LIBRARY, &folder);
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
    let program = build_folder("sockets/programs").join(name);
    let mut cc = Command::new(if options.iter().any(|option| option.starts_with("-fsanitize")) { "gcc" } else { "cc" });
    cc.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-pthread"]);
    cc.arg("-D_FORTIFY_SOURCE=2").args(options); // Calls such as read have other names then.
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("c/{source}.c"));
    compile(&mut cc, &source, &program, &[""; 0]);
    compiled.insert(name.to_owned(), program.clone());
    program
}
