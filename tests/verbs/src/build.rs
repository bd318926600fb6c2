//! The plug-in and the preloaded library, `isthmus` beside them, and the programs in C: made once for each test program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use isthmus_testbed::binary;

use crate::container;

/// The files of the plug-in and of the library that programs preload, with the folders of their packages.
const LIBRARIES: [(&str, &str); 2] =
    [("libisthmus-rdmav34.so", "abi/ibverbs"), ("libisthmus-verbs.so", "abi/ibverbs-preload")];

/// The programs in C.
const PROGRAMS: [&str; 5] = ["requests", "partners", "revoke", "victim", "other_user"];

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns `tmp/verbs` in the target directory that this program was built in.
fn scratch() -> PathBuf {
    let executable = std::env::current_exe().expect("a running program has a file");
    let is_target = |folder: &&Path| folder.join(".rustc_info.json").is_file();
    let target = executable.ancestors().filter(is_target).last();
    target.expect("tests are built in a target directory").join("tmp/verbs")
}

/// Returns `isthmus` in a folder with the libraries, where `isthmus run` finds them. They are linked by the way they are shipped, or are
/// those of the folder `ISTHMUS_VERBS_LIBRARY`.
pub(crate) fn isthmus() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let folder = scratch().join("installed");
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
    let folder = scratch().join("lib");
    for (library, package) in LIBRARIES {
        let manifest =
            std::fs::read_to_string(root().join(package).join("Cargo.toml")).expect("a package has a manifest");
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(root()).args(["xtask", "link-abi", name.expect("a package has a name")]);
        let map = format!("{package}/{}", library.replace(".so", ".map"));
        cargo.args(["--map", &map, "--out"]).arg(folder.join(library));
        succeed(&mut cargo);
    }
    folder
}

/// Puts a file at another path in one step: test programs of this package may run beside each other.
pub(crate) fn install(from: &Path, to: &Path) {
    let new = to.with_extension(format!("{}", std::process::id()));
    let _ = std::fs::remove_file(&new); // One that a killed test has left.
    succeed(Command::new("cp").arg("--reflink=auto").args([from, &new]));
    std::fs::rename(&new, to).expect("both are in one folder");
}

/// The folder of compiled programs.
pub(crate) fn folder() -> PathBuf {
    let folder = scratch().join("programs");
    std::fs::create_dir_all(&folder).expect("a folder in the target directory");
    folder
}

/// The folder of the programs of `c`. None, with the reason on standard error, where the headers of libibverbs are not installed.
pub fn programs() -> Option<&'static Path> {
    static COMPILED: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compiled = COMPILED.get_or_init(|| {
        if !Path::new("/usr/include/infiniband/verbs.h").is_file() {
            return None;
        }
        for name in PROGRAMS {
            let mut cc = Command::new("cc");
            cc.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
            compile(name, &mut cc, &format!("tests/verbs/c/{name}.c"), &["-libverbs"]);
        }
        Some(folder())
    });
    if compiled.is_none() {
        eprintln!("skipped: infiniband/verbs.h is not installed; it comes with the package libibverbs-dev");
    }
    compiled.as_deref()
}

/// The path in containers of the program `tests/mpi/c/SOURCE.c`, compiled as `NAME`. That suite has the warnings of its programs checked.
pub fn mpi_program(compiler: &str, name: &str, source: &str) -> String {
    let source = format!("tests/mpi/c/{source}.c");
    compile(name, Command::new(compiler).args(["-w", "-O1", "-g", "-pthread"]), &source, &[]);
    format!("{}/{name}", container::PROGRAMS)
}

/// Compiles a program in one step: test programs of this package may run beside each other.
fn compile(name: &str, compiler: &mut Command, source: &str, libraries: &[&str]) {
    let program = folder().join(name);
    let new = program.with_extension(std::process::id().to_string());
    succeed(compiler.arg("-o").arg(&new).arg(root().join(source)).args(libraries));
    std::fs::rename(&new, &program).expect("both are in one folder");
}

/// Runs a tool that must do its work, and returns its output.
#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
