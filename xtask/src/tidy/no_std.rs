//! Layout and engines live without std: their `lib.rs` says so, and none of their shipped lines names it.
//!
//! `cargo xtask ci` then builds them for a target that has no std, which proves it; this check needs no toolchain.

use super::Finding;
use super::dependencies::{ENGINES, folder_of};
use crate::tree::{RustFile, Tree};

const RULE: &str = "no-std";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in std::iter::once("isthmus-layout").chain(ENGINES) {
        let folder = format!("{}/src/", folder_of(name));
        for file in tree.rust.iter().filter(|file| file.path.starts_with(&folder)) {
            if file.path == format!("{folder}lib.rs") && !is_no_std(file) {
                findings.push(Finding::error(
                    RULE,
                    &file.path,
                    1,
                    "needs `#![no_std]` or `#![cfg_attr(not(test), no_std)]`",
                ));
            }
            let uses = (0..file.tokens.len()).filter(|at| names_std(file, *at)).map(|at| file.tokens[at].line);
            let shipped = uses.filter(|line| !file.is_test(*line));
            findings.extend(shipped.map(|line| Finding::error(RULE, &file.path, line, "use core or alloc here")));
        }
    }
    findings
}

/// Crates that build for a target without std.
pub(crate) fn crates(tree: &Tree) -> Vec<&'static str> {
    let there = |name: &&str| tree.texts.iter().any(|file| file.path == format!("{}/Cargo.toml", folder_of(name)));
    std::iter::once("isthmus-layout").chain(ENGINES).filter(there).collect()
}

fn is_no_std(file: &RustFile) -> bool {
    let always = ["#", "!", "[", "no_std", "]"];
    let outside_tests = ["#", "!", "[", "cfg_attr", "(", "not", "(", "test", ")", ",", "no_std", ")", "]"];
    (0..file.tokens.len()).any(|at| file.matches(at, &always) || file.matches(at, &outside_tests))
}

fn names_std(file: &RustFile, at: usize) -> bool {
    file.matches(at, &["std", ":", ":"]) || file.matches(at, &["crate", "std"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn layout_and_engines_declare_no_std() {
        for name in ["isthmus-layout", "isthmus-mx", "isthmus-overlay", "isthmus-verbs"] {
            let path = format!("{}/src/lib.rs", folder_of(name));
            assert_eq!(count(&path, ""), 1);
            assert_eq!(count(&path, "#![cfg_attr(feature = \"x\", no_std)]"), 1);
            assert_eq!(count(&path, "#![no_std]"), 0);
            assert_eq!(count(&path, "#![cfg_attr(not(test), no_std)]"), 0);
        }
        assert_eq!(count("crates/shm/src/lib.rs", ""), 0);
    }

    #[test]
    fn std_is_for_their_tests_only() {
        let path = "crates/layout/src/span.rs";
        assert_eq!(count(path, "use std::mem;"), 1);
        assert_eq!(count(path, "extern crate std;"), 1);
        assert_eq!(count(path, "#[cfg(test)] mod tests { use std::mem; }"), 0);
    }
}
