//! A capability has folders of its own, and the common files do not know it.
//!
//! Names of a capability outside its folders are counted by file, and the counts in the ratchet file may only fall. A file is in the
//! folder of a capability if a part of its path is the capability's name, such as `crates/control/src/mx/connect.rs` or
//! `crates/client/src/mx.rs`. The types that each capability would like to extend have a fixed number of fields.
//! CONTRIBUTING.md lists the folders and the few common places that have to name a capability.
//!
//! In the control plane, capabilities borrow the core and do not know the broker; only their reports read it. The core knows neither.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};

use super::Finding;
use super::words::parts;
use crate::tree::{RustFile, TokenKind, Tree};

const RULE: &str = "capabilities";

/// The names that are counted. `sockets` is not among them because it is an ordinary word.
const NAMES: [&str; 3] = ["mx", "verbs", "overlay"];

/// The crates with a folder for each capability.
const CRATES: [&str; 11] = [
    "crates/layout/src/",
    "crates/service/src/",
    "crates/control/src/",
    "crates/daemon/src/",
    "crates/guests/src/",
    "crates/client/src/",
    "crates/config/src/",
    "crates/report/src/",
    "bin/isthmus/src/",
    "bin/isthmusd/src/",
    "bin/isthmus-bench/src/",
];

/// Types that no capability may add a field to: file, type and number of fields. A general mechanism may; it changes the number here.
const FIELDS: [(&str, &str, usize); 5] = [
    ("crates/client/src/core.rs", "Core", 34),
    ("crates/control/src/broker.rs", "Broker", 11),
    ("crates/control/src/core.rs", "Core", 13),
    ("crates/service/src/shared.rs", "Shared", 10),
    ("crates/service/src/worker.rs", "Worker", 8),
];

/// The folder of the control plane.
const CONTROL: &str = "crates/control/src/";

/// The folders and files of [`CONTROL`] that may not name some types. Reports and tests may name any.
const UNKNOWN: [(&str, &[&str]); 6] = [
    ("mx/", &["Broker"]),
    ("sockets/", &["Broker"]),
    ("verbs/", &["Broker"]),
    ("overlay/", &["Broker"]),
    ("core/", &["Broker", "Capabilities"]),
    ("core.rs", &["Broker", "Capabilities"]),
];

const HEADER: &str = "\
# Names of capabilities outside their folders: count, file. Counts may fall (`cargo xtask tidy --bless`), never rise.
";

pub(super) fn check(tree: &Tree, ratchet: &str) -> Vec<Finding> {
    let listed = read(ratchet);
    let mut findings: Vec<Finding> = tree.rust.iter().flat_map(check_fields).collect();
    findings.extend(tree.rust.iter().flat_map(check_unknown));
    for (path, lines) in named(tree) {
        let (count, allowed) = (lines.len(), listed.get(path).copied().unwrap_or(0));
        if count > allowed {
            let text = format!(
                "{count} names of a capability, allowed {allowed}: move them below a folder of its name (CONTRIBUTING.md)"
            );
            findings.push(Finding::error(RULE, path, lines[count - 1], text));
        }
    }
    findings
}

/// The ratchet file after some counts have fallen.
pub(super) fn shrink(ratchet: &str, tree: &Tree) -> String {
    let now = named(tree);
    let mut text = HEADER.to_owned();
    for (path, before) in read(ratchet) {
        if let Some(lines) = now.get(path.as_str()) {
            text += &format!("{} {path}\n", lines.len().min(before));
        }
    }
    text
}

fn read(ratchet: &str) -> BTreeMap<String, usize> {
    let entry = |line: &str| {
        let (count, path) = line.split_once(' ')?;
        Some((path.to_owned(), count.parse().ok()?))
    };
    ratchet.lines().filter_map(entry).collect()
}

/// The lines that name a capability, by file. Tests may name any.
fn named(tree: &Tree) -> BTreeMap<&str, Vec<usize>> {
    let mut found: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let common = tree.rust.iter().filter(|file| CRATES.iter().any(|folder| file.path.starts_with(folder)));
    for file in common {
        let words = file.tokens.iter().filter(|token| token.kind == TokenKind::Word && !file.is_test(token.line));
        for token in words.filter(|token| names_another(&file.path, &token.text)) {
            found.entry(&file.path).or_default().push(token.line);
        }
    }
    found
}

/// Returns true if an identifier names a capability and the file is not in the folder of that capability.
fn names_another(path: &str, identifier: &str) -> bool {
    let parts = parts(identifier);
    let named = NAMES.iter().filter(|name| parts.iter().any(|part| part == *name));
    named.into_iter().any(|name| path.split(['/', '.']).all(|part| part != *name))
}

/// Checks that what is lent does not know its lender.
fn check_unknown(file: &RustFile) -> Vec<Finding> {
    let Some(within) = file.path.strip_prefix(CONTROL).filter(|within| !within.ends_with("/report.rs")) else {
        return Vec::new();
    };
    let unknown = UNKNOWN.iter().filter(|(place, _)| within.starts_with(place)).flat_map(|(_, types)| types.iter());
    let unknown: Vec<_> = unknown.collect();
    let words = file.tokens.iter().filter(|token| token.kind == TokenKind::Word && !file.is_test(token.line));
    let named = words.filter(|token| unknown.iter().any(|name| **name == token.text));
    let finding = |line, name: &str| {
        Finding::error(RULE, &file.path, line, format!("does not know {name}: borrow the core (`crate::core::Core`)"))
    };
    named.map(|token| finding(token.line, &token.text)).collect()
}

fn check_fields(file: &RustFile) -> Vec<Finding> {
    let of_file = FIELDS.iter().filter(|(path, ..)| *path == file.path);
    of_file
        .filter_map(|(path, name, pinned)| {
            let mut structs = Structs { name, fields: None };
            structs.visit_file(&file.syntax);
            let text = match structs.fields {
                Some(fields) if fields == *pinned => return None,
                Some(fields) => format!(
                    "{name} has {fields} fields, {pinned} are pinned: a capability keeps its state in a type of its own"
                ),
                None => format!("{name} is not here: the rule has to follow it"),
            };
            Some(Finding::error(RULE, path, 0, text))
        })
        .collect()
}

/// Finds the fields of a type.
struct Structs<'a> {
    name: &'a str,
    fields: Option<usize>,
}

impl<'ast> Visit<'ast> for Structs<'_> {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if item.ident == self.name {
            self.fields = Some(item.fields.len());
        }
        visit::visit_item_struct(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::super::render;
    use super::*;

    #[test]
    fn a_name_outside_its_folder_is_an_error_unless_it_is_listed() {
        let tree = Tree::of(&[
            ("crates/control/src/broker.rs", "fn a() { open_mx(); }\nfn b() { MxBoard::new(); }\nfn maximum() {}"),
            ("crates/control/src/mx/connect.rs", "fn open_mx() {}"),
            ("crates/client/src/mx.rs", "struct MxNumber;"),
            ("crates/mx/src/lib.rs", "struct MxNumber;"),
            ("crates/control/src/tests.rs", "fn open_mx() {}"),
        ]);
        let broker = |ratchet| check(&tree, ratchet).into_iter().filter(|finding| finding.line > 0).collect::<Vec<_>>();
        let found = broker("");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].path.as_str(), found[0].line), ("crates/control/src/broker.rs", 2));
        assert!(broker("2 crates/control/src/broker.rs\n").is_empty());
        assert_eq!(broker("1 crates/control/src/broker.rs\n").len(), 1);
    }

    #[test]
    fn the_folder_of_one_capability_may_not_name_another() {
        let tree = Tree::of(&[("crates/control/src/overlay/mod.rs", "fn mx() {}\nfn overlay() {}")]);
        assert_eq!(render(&check(&tree, "")).len(), 1);
    }

    #[test]
    fn capabilities_and_the_core_do_not_know_the_broker() {
        let tree = Tree::of(&[
            ("crates/control/src/mx/connect.rs", "fn a(broker: &mut Broker) {}"),
            ("crates/control/src/mx/report.rs", "fn a(broker: &Broker) {}"),
            ("crates/control/src/core/types.rs", "fn a(all: &mut Capabilities) {}"),
            ("crates/control/src/capabilities.rs", "fn a(all: &mut Capabilities) {}"),
        ]);
        let found: Vec<_> = check(&tree, "").into_iter().filter(|finding| finding.line > 0).collect();
        let paths: Vec<_> = found.iter().map(|finding| finding.path.as_str()).collect();
        assert_eq!(paths, ["crates/control/src/mx/connect.rs", "crates/control/src/core/types.rs"]);
    }

    #[test]
    fn bless_lowers_counts_and_drops_files_without_any() {
        let tree = Tree::of(&[("crates/layout/src/ids.rs", "fn mx() {}")]);
        let ratchet = "3 crates/layout/src/ids.rs\n2 crates/layout/src/gone.rs\n";
        assert_eq!(shrink(ratchet, &tree), format!("{HEADER}1 crates/layout/src/ids.rs\n"));
    }

    #[test]
    fn another_number_of_fields_is_an_error() {
        let fields = |count: usize| (0..count).map(|at| format!("f{at}: u8,")).collect::<String>();
        for (path, name, pinned) in FIELDS {
            let text = |count| format!("struct {name} {{ {} }}", fields(count));
            let found = |text: &str| check(&Tree::of(&[(path, text)]), "").len();
            assert_eq!([found(&text(pinned)), found(&text(pinned + 1)), found("struct Other;")], [0, 1, 1]);
        }
    }
}
