//! The rings of loop devices in user space, and `docs/spec/loop.md` against the C of them.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn compiler() -> Command {
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I"]).arg(format!("{ROOT}/kmod"));
    compiler
}

/// Compiles the test in C with these options, and runs it.
fn run_rings(folder: &Path, options: &[&str]) {
    let program: PathBuf = folder.join("loop_ring");
    let source = format!("{ROOT}/crates/platform-kvm/tests/loop_ring.c");
    run(compiler()
        .args(["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-pthread"])
        .args(options)
        .arg("-o")
        .arg(&program)
        .arg(source));
    println!("# {}", run(&mut Command::new(program)));
}

#[test]
fn frames_arrive_whole_and_no_wake_up_is_lost() {
    run_rings(tempfile::tempdir().unwrap().path(), &[]);
}

#[test]
fn memory_that_lies_leads_to_violations_alone() {
    run_rings(tempfile::tempdir().unwrap().path(), &["-DLIAR"]);
}

/// Returns the rows of a table of the document: the first two columns, the name, and the rest.
fn rows(document: &str, table: &str) -> Vec<(String, String, String)> {
    let begin = document.find(&format!("<!-- table {table} -->")).unwrap_or_else(|| panic!("no table {table}"));
    let text = document[begin..].split("<!-- end -->").next().unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")).skip(2);
    rows.map(|row| {
        let mut columns = row.split(" | ");
        let first = columns.next().unwrap().to_owned();
        let last = row.split('`').nth(1).unwrap().to_owned();
        (first, columns.next().unwrap().to_owned(), last)
    })
    .collect()
}

#[test]
fn the_rings_stand_as_documented() {
    let document = std::fs::read_to_string(format!("{ROOT}/docs/spec/loop.md")).unwrap();
    let mut source = String::from("#include <stddef.h>\n#include \"loop_ring.h\"\n");
    for structure in ["loop_words", "loop_record"] {
        let rows = rows(&document, structure);
        assert!(rows.len() >= 8);
        for (offset, bytes, name) in rows {
            let field = format!("struct {structure}, {name}");
            writeln!(source, "_Static_assert(offsetof({field}) == {offset}, \"{field}\");").unwrap();
            writeln!(source, "_Static_assert(sizeof(((struct {structure} *)0)->{name}) == {bytes}, \"{field}\");")
                .unwrap();
        }
    }
    for table in ["states", "violations"] {
        for (value, _, name) in rows(&document, table) {
            writeln!(source, "_Static_assert({name} == {value}, \"{name}\");").unwrap();
        }
    }
    for (name, value) in [
        ("LOOP_VERSION", 1),
        ("LOOP_WORDS_BYTES", 4096),
        ("LOOP_DATA_OFFSET", 8192),
        ("LOOP_RING_MIN", 256 << 10),
        ("LOOP_RING_MAX", 64 << 20),
        ("LOOP_FRAME_MIN", 14),
        ("LOOP_FRAME_MAX", 65568),
        ("sizeof(struct loop_record)", 16),
    ] {
        writeln!(source, "_Static_assert({name} == {value}, \"{name}\");").unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("check.c");
    std::fs::write(&file, source).unwrap();
    run(compiler().args(["-fsyntax-only", "-Wno-unused-function"]).arg(&file));
}
