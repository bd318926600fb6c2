//! The names that `libisthmus.so.0` exports and needs: a test shows which are added or lost. `UPDATE=1` writes the list.

use crate::build::{library, package};
use std::process::Command;

fn tool(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).arg(library().join("libisthmus.so.0")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn library_exports_only_the_listed_names() {
    let listing = tool("nm", &["-D", "--defined-only", "--with-symbol-versions"]);
    let mut names: Vec<_> = listing.lines().map(|line| line.split_once(' ').map_or(line, |(_, name)| name)).collect();
    names.sort_unstable();
    let names = names.join("\n") + "\n";
    let path = package().join("tests/abi/symbols.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &names).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), names, "run with UPDATE=1 if this is meant");
}

#[test]
fn library_has_a_versioned_soname_and_needs_libc_only() {
    let headers = tool("objdump", &["-p"]);
    let of = |what: &str| -> Vec<String> {
        let lines = headers.lines().filter_map(|line| line.trim().strip_prefix(what));
        lines.map(|name| name.trim().to_owned()).collect()
    };
    assert_eq!(of("SONAME"), ["libisthmus.so.0"]);
    let allowed = ["libc.so.6", "libgcc_s.so.1", "ld-linux"];
    let foreign: Vec<_> =
        of("NEEDED").into_iter().filter(|name| !allowed.iter().any(|start| name.starts_with(start))).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}

#[test]
fn loading_the_library_has_no_side_effects() {
    // No constructor of ours, no thread, no signal handler, nothing on standard error: a program that never attaches
    // is as it was.
    let output =
        Command::new("/bin/cat").arg("/proc/self/status").env("LD_PRELOAD", library().join("libisthmus.so.0")).output();
    let output = output.unwrap();
    let status = String::from_utf8(output.stdout).unwrap();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(field("Threads:"), "1");
    assert_eq!(u64::from_str_radix(&field("SigCgt:"), 16), Ok(0));
}
