//! The built library, and compilers with its headers.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// Returns the folder of this package.
pub(crate) fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns a compiler command with the headers in its path and all warnings as errors.
pub(crate) fn cc(language: &str) -> Command {
    let mut cc = Command::new(if language == "c++" { "c++" } else { "cc" });
    cc.args(["-x", language, "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]).arg(package().join("include"));
    cc
}

/// Returns the folder of `libmyriexpress.so.0` and its links. The library is linked once, as it is for packages.
pub(crate) fn library() -> &'static Path {
    static LINKED: OnceLock<()> = OnceLock::new();
    let folder = Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/isthmus-myriexpress"));
    LINKED.get_or_init(|| {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(package()).args(["xtask", "link-abi", "isthmus-myriexpress"]);
        cargo.args(["--map", "abi/myriexpress/libmyriexpress.map", "--out"]).arg(folder.join("libmyriexpress.so"));
        run(&mut cargo);
    });
    folder
}

/// Runs a command, which must succeed, and returns its output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
