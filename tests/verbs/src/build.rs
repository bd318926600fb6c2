//! The plug-in and the preloaded library, `isthmus` beside them, and the programs in C: made once for each test program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use isthmus_testbed::{binary, build_folder, compile, link_library, run_tool, workspace_root};

use crate::container;

/// The files of the plug-in and of the library that programs preload, with the folders of their packages. Programs may preload that of
/// sockets as well.
const LIBRARIES: [(&str, &str); 3] = [
    ("libisthmus-rdmav34.so", "abi/ibverbs"),
    ("libisthmus-verbs.so", "abi/ibverbs-preload"),
    ("libisthmus-sockets.so", "abi/preload"),
];

/// The programs in C.
const PROGRAMS: [&str; 7] = ["requests", "partners", "revoke", "restarted", "victim", "other_user", "connect"];

/// Returns `isthmus` in a folder with the libraries, where `isthmus run` finds them. They are linked by the way they are shipped, or are
/// those of the folder `ISTHMUS_VERBS_LIBRARY`.
pub(crate) fn isthmus() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let folder = build_folder("verbs/installed");
        std::fs::create_dir_all(&folder).expect("a folder in the target directory");
        let isthmus = binary("isthmus", "isthmus").unwrap_or_else(|error| panic!("{error}"));
        let linked = std::env::var_os("ISTHMUS_VERBS_LIBRARY").map_or_else(link, PathBuf::from);
        LIBRARIES.iter().for_each(|(library, _)| install(&linked.join(library), &folder.join(library)));
        let installed = folder.join("isthmus");
        install(&isthmus, &installed);
        installed
    })
}

/// Links the libraries, and returns their folder.
fn link() -> PathBuf {
    let folder = build_folder("verbs/lib");
    LIBRARIES.iter().for_each(|(library, package)| link_library(package, library, &folder));
    folder
}

/// Puts a file at another path in one step: test programs of this package may run beside each other.
pub(crate) fn install(from: &Path, to: &Path) {
    let new = to.with_extension(format!("{}", std::process::id()));
    let _ = std::fs::remove_file(&new); // One that a killed test has left.
    run_tool(Command::new("cp").arg("--reflink=auto").args([from, &new]));
    std::fs::rename(&new, to).expect("both are in one folder");
}

/// The folder of compiled programs.
pub(crate) fn folder() -> PathBuf {
    let folder = build_folder("verbs/programs");
    std::fs::create_dir_all(&folder).expect("a folder in the target directory");
    folder
}

/// The folder of the programs of `c`. None, with the reason on standard error, where the headers of libibverbs are not installed.
pub fn programs() -> Option<&'static Path> {
    static COMPILED: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compiled = COMPILED.get_or_init(|| {
        if !["infiniband/verbs.h", "rdma/rdma_cma.h"].iter().all(|name| Path::new("/usr/include").join(name).is_file())
        {
            return None;
        }
        for name in PROGRAMS {
            let mut cc = Command::new("cc");
            cc.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("c/{name}.c"));
            compile(&mut cc, &source, &folder().join(name), &["-libverbs", "-lrdmacm"]);
        }
        Some(folder())
    });
    if compiled.is_none() {
        eprintln!("skipped: the headers of the packages libibverbs-dev and librdmacm-dev are not installed");
    }
    compiled.as_deref()
}

/// The path in containers of the program `tests/mpi/c/SOURCE.c`, compiled as `NAME`. That suite has the warnings of its programs checked.
pub fn mpi_program(compiler: &str, name: &str, source: &str) -> String {
    let source = workspace_root().join(format!("tests/mpi/c/{source}.c"));
    let mut compiler = Command::new(compiler);
    compile(compiler.args(["-w", "-O1", "-g", "-pthread"]), &source, &folder().join(name), &[""; 0]);
    format!("{}/{name}", container::PROGRAMS)
}
