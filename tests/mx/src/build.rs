//! The library and C programs that use it, built once for each test program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use isthmus_testbed::{build_folder, compile, link_library, workspace_root};

/// Where the public headers are.
pub fn headers() -> PathBuf {
    workspace_root().join("abi/myriexpress/include")
}

/// The folder in which the libraries lie: linked once, by the way they are shipped; or `ISTHMUS_MX_LIBRARY`, as it is.
pub fn library() -> &'static Path {
    static LINKED: OnceLock<PathBuf> = OnceLock::new();
    LINKED.get_or_init(|| {
        if let Some(folder) = std::env::var_os("ISTHMUS_MX_LIBRARY") {
            return folder.into();
        }
        let folder = build_folder("mx-lib");
        link_library("abi/myriexpress", "libmyriexpress.so", &folder);
        folder
    })
}

/// The program of `tests/mx/c/NAME.c`.
pub fn program(name: &str) -> PathBuf {
    compiled(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("c/{name}.c")))
}

/// The program of `examples/mx/NAME.c`.
pub fn example(name: &str) -> PathBuf {
    compiled(&workspace_root().join(format!("examples/mx/{name}.c")))
}

/// The program of one source file, linked with the library.
pub fn compiled(source: &Path) -> PathBuf {
    static COMPILED: Mutex<BTreeMap<PathBuf, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner); // Held while compiling: others wait.
    if let Some(program) = compiled.get(source) {
        return program.clone();
    }
    let program = build_folder("mx-programs").join(source.file_stem().expect("a source file has a name"));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-pthread", "-I"]);
    cc.arg(headers());
    // The old kind of run path precedes LD_LIBRARY_PATH, in which cargo names a folder that may hold an older library.
    let run_path = format!("-Wl,--disable-new-dtags,-rpath,{}", library().display());
    let folder = format!("-L{}", library().display());
    compile(&mut cc, source, &program, &[&folder, "-lmyriexpress", &run_path]);
    compiled.insert(source.to_owned(), program.clone());
    program
}
