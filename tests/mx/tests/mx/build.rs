//! The library and the C programs, built once for these tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where the public headers are.
pub(crate) fn headers() -> PathBuf {
    root().join("abi/myriexpress/include")
}

/// The folder in which the libraries lie: linked once, by the way they are shipped; or `ISTHMUS_MX_LIBRARY`, as it is.
pub(crate) fn library() -> &'static Path {
    static LINKED: OnceLock<PathBuf> = OnceLock::new();
    LINKED.get_or_init(|| {
        if let Some(folder) = std::env::var_os("ISTHMUS_MX_LIBRARY") {
            return folder.into();
        }
        let folder = Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/mx-lib"));
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(root()).args(["xtask", "link-abi", "isthmus-myriexpress"]);
        cargo.args(["--map", "abi/myriexpress/libmyriexpress.map", "--out"]).arg(folder.join("libmyriexpress.so"));
        done(&mut cargo);
        folder.into()
    })
}

/// The program of `tests/mx/c/NAME.c`.
pub(crate) fn program(name: &str) -> PathBuf {
    compiled(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("c/{name}.c")))
}

/// The program of `examples/mx/NAME.c`.
pub(crate) fn example(name: &str) -> PathBuf {
    compiled(&root().join(format!("examples/mx/{name}.c")))
}

/// The program of one source file, linked with the library.
fn compiled(source: &Path) -> PathBuf {
    static COMPILED: Mutex<BTreeMap<PathBuf, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner); // Held while compiling: others wait.
    if let Some(program) = compiled.get(source) {
        return program.clone();
    }
    let folder = Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/mx-programs"));
    std::fs::create_dir_all(folder).unwrap();
    let program = folder.join(source.file_stem().unwrap());
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-pthread", "-I"]);
    cc.arg(headers()).arg("-o").arg(&program).arg(source);
    cc.arg("-L").arg(library()).arg("-lmyriexpress").arg(format!("-Wl,-rpath,{}", library().display()));
    done(&mut cc);
    compiled.insert(source.to_owned(), program.clone());
    program
}

/// Runs a tool that must do its work.
#[track_caller]
pub(crate) fn done(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
}
