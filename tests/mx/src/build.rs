//! The library and C programs that use it, built once for each test program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where the public headers are.
pub fn headers() -> PathBuf {
    root().join("abi/myriexpress/include")
}

/// `tmp` in the target directory that this program was built in: what cargo calls CARGO_TARGET_TMPDIR.
fn scratch() -> PathBuf {
    let executable = std::env::current_exe().expect("a running program has a file");
    // Cargo writes this file in every target directory; CACHEDIR.TAG only if it made the directory itself.
    let is_target = |folder: &&Path| folder.join(".rustc_info.json").is_file();
    let target = executable.ancestors().filter(is_target).last();
    target.expect("tests are built in a target directory").join("tmp")
}

/// The folder in which the libraries lie: linked once, by the way they are shipped; or `ISTHMUS_MX_LIBRARY`, as it is.
pub fn library() -> &'static Path {
    static LINKED: OnceLock<PathBuf> = OnceLock::new();
    LINKED.get_or_init(|| {
        if let Some(folder) = std::env::var_os("ISTHMUS_MX_LIBRARY") {
            return folder.into();
        }
        let folder = scratch().join("mx-lib");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(root()).args(["xtask", "link-abi", "isthmus-myriexpress"]);
        cargo.args(["--map", "abi/myriexpress/libmyriexpress.map", "--out"]).arg(folder.join("libmyriexpress.so"));
        done(&mut cargo);
        folder
    })
}

/// The program of `tests/mx/c/NAME.c`.
pub fn program(name: &str) -> PathBuf {
    compiled(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("c/{name}.c")))
}

/// The program of `examples/mx/NAME.c`.
pub fn example(name: &str) -> PathBuf {
    compiled(&root().join(format!("examples/mx/{name}.c")))
}

/// The program of one source file, linked with the library.
pub fn compiled(source: &Path) -> PathBuf {
    static COMPILED: Mutex<BTreeMap<PathBuf, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner); // Held while compiling: others wait.
    if let Some(program) = compiled.get(source) {
        return program.clone();
    }
    let folder = scratch().join("mx-programs");
    std::fs::create_dir_all(&folder).expect("a folder in the target directory");
    let program = folder.join(source.file_stem().expect("a source file has a name"));
    // Test programs that run at the same time share the folder, so a program appears there only when it is complete.
    let incomplete = program.with_added_extension(std::process::id().to_string());
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-pthread", "-I"]);
    cc.arg(headers()).arg("-o").arg(&incomplete).arg(source);
    // The old kind of run path precedes LD_LIBRARY_PATH, in which cargo names a folder that may hold an older library.
    let run_path = format!("-Wl,--disable-new-dtags,-rpath,{}", library().display());
    cc.arg("-L").arg(library()).arg("-lmyriexpress").arg(run_path);
    done(&mut cc);
    std::fs::rename(&incomplete, &program).expect("both names are in one folder");
    compiled.insert(source.to_owned(), program.clone());
    program
}

/// Runs a tool that must do its work.
#[track_caller]
pub fn done(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
}
