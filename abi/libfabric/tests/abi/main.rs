//! The library as it is shipped: what it exports, and what it needs.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::Command;

/// Linked by the way it is shipped.
fn library() -> std::path::PathBuf {
    let folder = Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/isthmus-libfabric"));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["xtask", "link-abi", "isthmus-libfabric"]);
    cargo.args(["--map", "abi/libfabric/libisthmus-fi.map", "--out"]).arg(folder.join("libisthmus-fi.so"));
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder.join("libisthmus-fi.so")
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_library_exports_one_name_and_needs_no_libfabric() {
    let library = library();
    let names = run(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(&library));
    let names: Vec<&str> = names.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, ["ISTHMUS_FI_1.0", "fi_prov_ini@@ISTHMUS_FI_1.0"]);
    let needed = run(Command::new("readelf").arg("-d").arg(&library));
    let needed: Vec<&str> = needed.lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert!(needed.len() >= 2 && needed.iter().all(|line| !line.contains("fabric")), "{needed:?}");
}
