//! The provider and the C programs, built once for these tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use isthmus_testbed::{compile, link_library};

use crate::mpis::Mpi;

/// The folder in which the provider lies: linked once, by the way it is shipped; or `ISTHMUS_FI_LIBRARY`, as it is.
pub(crate) fn library() -> &'static Path {
    static LINKED: OnceLock<PathBuf> = OnceLock::new();
    LINKED.get_or_init(|| {
        if let Some(folder) = std::env::var_os("ISTHMUS_FI_LIBRARY") {
            return folder.into();
        }
        let folder = Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/fi-lib"));
        link_library("abi/libfabric", "libisthmus-fi.so", folder);
        folder.into()
    })
}

/// The program of `c/NAME.c` for an MPI.
pub(crate) fn program(name: &str, mpi: &Mpi) -> PathBuf {
    let mut compiler = Command::new(&mpi.compiler);
    // The compiler of an MPI leaves the checks to cc; its headers are not ours to warn about.
    compiler.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    compiled(name, mpi.name, compiler, &[])
}

/// The program of `c/NAME.c` that is linked with libfabric alone.
pub(crate) fn plain_program(name: &str) -> PathBuf {
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    compiled(name, "libfabric", cc, &["-lfabric"])
}

fn compiled(name: &str, kind: &str, mut compiler: Command, libraries: &[&str]) -> PathBuf {
    static COMPILED: Mutex<BTreeMap<PathBuf, ()>> = Mutex::new(BTreeMap::new());
    let program = Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/mpi-programs")).join(kind).join(name);
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner); // Held while compiling: others wait.
    if !compiled.contains_key(&program) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("c/{name}.c"));
        compile(&mut compiler, &source, &program, libraries);
        compiled.insert(program.clone(), ());
    }
    program
}
