//! The library and C programs with it, built for these tests.

use isthmus_testbed::Scratch;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder of this package.
pub(crate) fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A compiler that knows where the header is and lets nothing pass.
pub(crate) fn cc() -> Command {
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-I"]).arg(package().join("include"));
    cc
}

/// The folder in which `libisthmus.so.0` and its link lie: linked once, by the way it is shipped.
pub(crate) fn library() -> &'static Path {
    static LINKED: OnceLock<()> = OnceLock::new();
    let folder = Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/isthmus-abi"));
    LINKED.get_or_init(|| {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(package()).args(["xtask", "link-abi", "isthmus-abi"]);
        cargo.args(["--map", "abi/isthmus/libisthmus.map", "--out"]).arg(folder.join("libisthmus.so"));
        let output = cargo.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
    folder
}

/// The program of `tests/c/NAME.c`, linked with the library.
pub(crate) fn program(name: &str, into: &Scratch) -> PathBuf {
    compile(&package().join(format!("tests/c/{name}.c")), into)
}

/// The program of one source file, linked with the library.
pub(crate) fn compile(source: &Path, into: &Scratch) -> PathBuf {
    let program = into.join(source.file_stem().unwrap());
    let mut cc = cc();
    cc.args(["-std=gnu11", "-O1", "-g", "-pthread", "-o"]).arg(&program);
    cc.arg(source).arg("-L").arg(library()).arg("-listhmus");
    cc.arg(format!("-Wl,-rpath,{}", library().display()));
    let output = cc.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}
