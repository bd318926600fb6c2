//! The library as it is shipped: what it exports, and what it needs.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::Command;

/// Links the library by the command that ships it.
fn library() -> std::path::PathBuf {
    let folder = Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/isthmus-ibverbs"));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["xtask", "link-abi", "isthmus-ibverbs"]);
    cargo.args(["--map", "abi/ibverbs/libisthmus-rdmav34.map", "--out"]).arg(folder.join("libisthmus-rdmav34.so"));
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder.join("libisthmus-rdmav34.so")
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_library_exports_one_name_has_a_constructor_and_needs_no_libibverbs() {
    let library = library();
    let names = run(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(&library));
    let names: Vec<&str> = names.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, ["ISTHMUS_RDMA_34", "isthmus_rdma_version@@ISTHMUS_RDMA_34"]);
    let dynamic = run(Command::new("readelf").arg("-d").arg(&library));
    let needed: Vec<&str> = dynamic.lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert!(!needed.is_empty() && needed.iter().all(|line| !line.contains("verbs")), "{needed:?}");
    assert!(
        dynamic.lines().any(|line| line.contains("(SONAME)") && line.contains("[libisthmus-rdmav34.so]")),
        "{dynamic}"
    );
    assert!(dynamic.contains("(INIT_ARRAY)"), "{dynamic}");
}
