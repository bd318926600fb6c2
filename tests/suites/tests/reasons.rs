//! Every reason of the table is provoked by a test; `reasons.toml` says by which, and this holds it to that.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_client::Reason;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The two tables of `reasons.toml`: reasons and their tests, reasons without one.
fn tables() -> [BTreeMap<String, String>; 2] {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("reasons.toml")).unwrap();
    let all: toml::Table = text.parse().unwrap();
    assert_eq!(all.keys().collect::<Vec<_>>(), ["missing", "provoked"]);
    ["provoked", "missing"].map(|table| all[table].clone().try_into().unwrap())
}

#[test]
fn every_reason_is_listed_once() {
    let [provoked, missing] = tables();
    for reason in Reason::ALL {
        let (tested, not) = (provoked.contains_key(reason.name()), missing.contains_key(reason.name()));
        assert!(tested != not, "{} has to be in one of the tables of reasons.toml", reason.name());
    }
    assert_eq!(provoked.len() + missing.len(), Reason::ALL.len(), "reasons.toml names what is no reason");
    println!("{} of {} reasons are provoked by a test", provoked.len(), Reason::ALL.len());
}

#[test]
fn every_listed_test_exists_and_names_its_reason() {
    let [provoked, _] = tables();
    let mut wrong = Vec::new();
    for (name, test) in &provoked {
        let (file, function) = test.split_once("::").expect("FILE::TEST");
        let text = std::fs::read_to_string(root().join(file)).unwrap_or_default();
        let found = text.contains(&format!("fn {function}("));
        // A test may run programs that lie beside it: those of the C header do.
        let programs = root().join(file).parent().map(|folder| folder.join("../c")).filter(|folder| folder.is_dir());
        let programs = programs.into_iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
        let spoken =
            text + &programs.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap()).collect::<String>();
        if !found || !names(name).iter().any(|name| spoken.contains(name.as_str())) {
            wrong.push(format!("{name} = {test}"));
        }
    }
    assert!(wrong.is_empty(), "no such test, or it does not speak of its reason: {wrong:#?}");
}

/// Returns the names of a reason in Rust, in C, in reports, and in the cache of buffers.
fn names(name: &str) -> Vec<String> {
    let reason = Reason::from_name(name).unwrap_or_else(|| panic!("{name} is no reason"));
    let mut names = vec![name.to_owned(), format!("{reason:?}"), name.to_uppercase().replace('-', "_")];
    names.extend(name.starts_with("buffer-").then(|| "ColdReason::".to_owned()));
    names
}
