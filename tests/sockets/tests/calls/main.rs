//! The page of calls, `docs/reference/sockets-calls.md`, beside the C library of this system and the names that the library exports.
//!
//! Each function of the C library stands on the page, or in `other.txt` if it acts on no descriptor of the program. A C library with new
//! functions fails the first test: each needs a look, and a line in one of the two.
#![allow(clippy::unwrap_used, reason = "tests")]

mod elf;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The words of the page.
const WORDS: [&str; 4] = ["covered", "leaves", "stated", "harmless"];

/// The words of calls that the library defines.
const DEFINED: [&str; 2] = ["covered", "leaves"];

/// The functions of the C library that act on no descriptor of the program.
const OTHER: &str = include_str!("other.txt");

/// Reads a file of the repository.
fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the names in backticks of a cell.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Returns the word of each call on the page. The first row of a table of calls is the word alone.
fn page() -> BTreeMap<String, &'static str> {
    let (mut calls, mut word) = (BTreeMap::new(), None);
    for line in read("docs/reference/sockets-calls.md").lines() {
        let Some(cell) = line.strip_prefix("| ").and_then(|row| row.split(" |").next()) else {
            word = None; // The table has ended.
            continue;
        };
        let named = WORDS.into_iter().find(|word| cell == format!("`{word}`"));
        match word {
            None => word = Some(named),
            Some(Some(word)) => {
                for name in quoted(cell) {
                    let before = calls.insert(name.to_owned(), word);
                    assert_eq!(before, None, "{name} stands twice on the page");
                }
            }
            Some(None) => {}
        }
    }
    calls
}

fn other() -> BTreeSet<&'static str> {
    OTHER.lines().collect()
}

/// The names that the library exports, except its own.
fn exported() -> BTreeSet<String> {
    let is_own = |name: &&str| !name.starts_with("isthmus_");
    let map = read("abi/preload/libisthmus-sockets.map");
    let (_, globals) = map.split_once("global:").unwrap();
    let globals = globals.split('}').next().unwrap().split(';').map(str::trim);
    let globals = globals.filter(|name| !name.is_empty() && !name.ends_with(':')).filter(is_own).map(str::to_owned);
    read("abi/preload/libisthmus-sockets.names").lines().map(str::to_owned).chain(globals).collect()
}

/// The file of the C library that this program has loaded.
fn c_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let file = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|file| file.ends_with("/libc.so.6"));
    file.expect("tests are linked with glibc").into()
}

/// Returns true if a source defines the function: by name, in a call of a macro of this file, or in assembly.
fn defines(source: &str, name: &str) -> bool {
    let is_word = |line: &str| line.split(|sign: char| !sign.is_alphanumeric() && sign != '_').any(|word| word == name);
    let mut in_macro = false;
    source.lines().filter(|line| !line.trim_start().starts_with("//")).any(|line| {
        in_macro |= line.find("! {").is_some_and(|at| !line[..at].contains(' '));
        let is_here = in_macro && is_word(line.split('(').next().unwrap_or_default());
        in_macro &= !line.starts_with('}') && !line.ends_with('}');
        is_here || line.contains(&format!("fn {name}(")) || line.contains(&format!("\"isthmus_variadic {name}, "))
    })
}

#[test]
fn each_function_of_the_c_library_has_a_place() {
    let file = c_library();
    let functions = elf::functions(&fs::read(&file).unwrap(), "GLIBC_PRIVATE");
    for (name, is_there) in [("read", true), ("time", true), ("aio_read", true), ("__read_nocancel", false)] {
        assert_eq!(functions.contains(name), is_there, "{name} in {}", file.display());
    }
    let (page, other) = (page(), other());
    let is_internal = |name: &str| name.starts_with("__libc_") || name.starts_with("_dl_");
    let missing: Vec<&String> = functions
        .iter()
        .filter(|name| !is_internal(name) && !page.contains_key(*name) && !other.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "neither on the page nor in other.txt: {missing:?}");
}

#[test]
fn the_page_names_what_the_library_defines() {
    let (page, exported) = (page(), exported());
    let hooks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../abi/preload/src/hooks");
    let files = fs::read_dir(&hooks).unwrap().map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    let sources: Vec<String> = files.collect();
    let mut wrong = Vec::new();
    for (name, word) in &page {
        match (DEFINED.contains(word), exported.contains(name)) {
            (true, false) => wrong.push(format!("{name} is {word} on the page, and not exported")),
            (false, true) => wrong.push(format!("{name} is {word} on the page, and exported")),
            (true, true) if !sources.iter().any(|source| defines(source, name)) => {
                wrong.push(format!("{name} is {word} on the page, and hooks do not define it"));
            }
            _ => {}
        }
    }
    let absent = exported.iter().filter(|name| !page.contains_key(*name));
    wrong.extend(absent.map(|name| format!("{name} is exported, and not on the page")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_lists_are_in_order() {
    let (page, other) = (page(), other());
    for word in WORDS {
        assert!(page.values().any(|said| *said == word), "the page has no table of calls that are {word}");
    }
    assert!(OTHER.lines().is_sorted_by(|one, next| one < next), "other.txt is sorted, and has each name once");
    let both: Vec<&&str> = other.iter().filter(|name| page.contains_key(**name)).collect();
    assert!(both.is_empty(), "on the page and in other.txt: {both:?}");
}

#[test]
fn definitions_are_found() {
    let source = "made! {\n    one(fd: two);\n    three through four;\n}\nfn five(six: i32) {\n    seven();\n}\n\
                  // fn eight()\nmade! { nine }\nten\n    \"isthmus_variadic eleven, 1\",\n";
    for name in ["one", "three", "five", "nine", "eleven"] {
        assert!(defines(source, name), "{name}");
    }
    for name in ["two", "six", "seven", "eight", "ten", "eleve"] {
        assert!(!defines(source, name), "{name}");
    }
}
