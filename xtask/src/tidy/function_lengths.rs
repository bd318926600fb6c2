//! Functions fit a screen: a ratchet that only turns one way.
//!
//! A function that crosses [`LINES_MAX`] fails. One that is listed in the ratchet file with its length may stay until it is touched, and
//! fails when it grows. `--bless` takes entries that have shrunk or gone out of the list and never adds to it: a developer writes a new
//! entry by hand, and a reviewer reads it. Long files are only noted.

use std::collections::BTreeMap;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::Finding;
use crate::tree::{RustFile, Tree};

const RULE: &str = "lengths";

/// Lines of a function, from its first word to its last bracket.
const LINES_MAX: usize = 70;

/// Lines of a file worth a thought.
const FILE_LINES_NOTED: usize = 400;

const HEADER: &str =
    "# Functions longer than 70 lines: lines, file, name. They may shrink (`cargo xtask tidy --bless`), never grow.\n";

pub(super) fn check(tree: &Tree, ratchet: &str) -> Vec<Finding> {
    let listed = read(ratchet);
    let mut findings = Vec::new();
    for ((path, name), function) in functions(tree) {
        let allowed = listed.get(&(path.clone(), name.clone())).copied();
        let text = match allowed {
            None => format!("{name} is {} lines long; {LINES_MAX} fit a screen", function.lines),
            Some(before) if function.lines > before => format!("{name} grew from {before} to {} lines", function.lines),
            Some(_) => continue,
        };
        findings.push(Finding::error(RULE, &path, function.first, text));
    }
    for (path, text) in tree.rust.iter().map(|file| (&file.path, file.lines.len())) {
        if text > FILE_LINES_NOTED {
            findings.push(Finding::warning(RULE, path, 0, format!("{text} lines: is this one idea?")));
        }
    }
    findings
}

/// The ratchet file after what became shorter, or short enough.
pub(super) fn shrink(ratchet: &str, tree: &Tree) -> String {
    let now = functions(tree);
    let mut text = HEADER.to_owned();
    for (key, before) in read(ratchet) {
        if let Some(function) = now.get(&key) {
            text += &format!("{} {} {}\n", function.lines.min(before), key.0, key.1);
        }
    }
    text
}

struct Function {
    first: usize,
    lines: usize,
}

/// The functions that are too long, by file and name. Of two with one name (under different cfgs) the longer counts.
fn functions(tree: &Tree) -> BTreeMap<(String, String), Function> {
    let mut long = BTreeMap::new();
    for file in &tree.rust {
        for (name, function) in all_functions(file) {
            let key = (file.path.clone(), name);
            let known = long.get(&key).map_or(LINES_MAX, |known: &Function| known.lines);
            if function.lines > known {
                long.insert(key, function);
            }
        }
    }
    long
}

fn read(ratchet: &str) -> BTreeMap<(String, String), usize> {
    let lines = ratchet.lines().filter(|line| !line.starts_with('#'));
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        let lines = words.next()?.parse().ok()?;
        Some(((words.next()?.to_owned(), words.next()?.to_owned()), lines))
    };
    lines.filter_map(entry).collect()
}

fn all_functions(file: &RustFile) -> Vec<(String, Function)> {
    let mut finder = Finder::default();
    finder.visit_file(&file.syntax);
    finder.found
}

/// Walks through a file and remembers in which modules and types it is.
#[derive(Default)]
struct Finder {
    outer: Vec<String>,
    found: Vec<(String, Function)>,
}

impl Finder {
    fn visit_named(&mut self, name: String, look: impl FnOnce(&mut Self)) {
        self.outer.push(name);
        look(self);
        self.outer.pop();
    }

    fn record_function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let first = signature.span().start().line;
        let last = block.brace_token.span.close().end().line;
        let mut name = self.outer.clone();
        name.push(signature.ident.to_string());
        self.found.push((name.join("::"), Function { first, lines: last + 1 - first }));
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.visit_named(module.ident.to_string(), |finder| visit::visit_item_mod(finder, module));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let name = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map_or_else(String::new, |last| last.ident.to_string()),
            _ => "_".to_owned(),
        };
        self.visit_named(name, |finder| visit::visit_item_impl(finder, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.visit_named(item.ident.to_string(), |finder| visit::visit_item_trait(finder, item));
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.record_function(&function.sig, &function.block);
        self.visit_named(function.sig.ident.to_string(), |finder| visit::visit_item_fn(finder, function));
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.record_function(&function.sig, &function.block);
        self.visit_named(function.sig.ident.to_string(), |finder| visit::visit_impl_item_fn(finder, function));
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.record_function(&function.sig, block);
        }
        self.visit_named(function.sig.ident.to_string(), |finder| visit::visit_trait_item_fn(finder, function));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::render;

    /// A file with a method of this many lines.
    fn file(lines: usize) -> String {
        format!("struct A;\nimpl A {{\n    fn b() {{\n{}    }}\n}}\n", "        c();\n".repeat(lines - 2))
    }

    fn findings(lines: usize, ratchet: &str) -> Vec<String> {
        render(&check(&Tree::of(&[("src/a.rs", &file(lines))]), ratchet))
    }

    #[test]
    fn a_function_that_crosses_the_limit_fails() {
        assert_eq!(findings(70, ""), [""; 0]);
        assert_eq!(findings(71, ""), ["src/a.rs:3 A::b is 71 lines long; 70 fit a screen"]);
    }

    #[test]
    fn a_listed_function_may_stay_but_not_grow() {
        assert_eq!(findings(80, "80 src/a.rs A::b\n"), [""; 0]);
        assert_eq!(findings(79, "80 src/a.rs A::b\n"), [""; 0]);
        assert_eq!(findings(81, "80 src/a.rs A::b\n"), ["src/a.rs:3 A::b grew from 80 to 81 lines"]);
        assert_eq!(findings(80, "80 src/other.rs A::b\n").len(), 1);
    }

    #[test]
    fn ratchet_update_only_shrinks() {
        let blessed = |lines, ratchet| {
            let text = shrink(ratchet, &Tree::of(&[("src/a.rs", &file(lines))]));
            text.strip_prefix(HEADER).unwrap().to_owned()
        };
        assert_eq!(blessed(75, "80 src/a.rs A::b\n"), "75 src/a.rs A::b\n");
        assert_eq!(blessed(90, "80 src/a.rs A::b\n"), "80 src/a.rs A::b\n");
        assert_eq!(blessed(70, "80 src/a.rs A::b\n"), "");
        assert_eq!(blessed(90, ""), "");
    }

    #[test]
    fn a_long_file_is_noted_only() {
        let found = check(&Tree::of(&[("src/a.rs", &"// a\n".repeat(401))]), "");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].level, crate::tidy::Level::Warning);
    }
}
