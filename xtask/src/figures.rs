//! `cargo xtask figures`: writes `docs/performance.md` from the figures that were measured.
//!
//! ```text
//! docs/performance/intro.md        before the tables
//! docs/performance/*.jsonl         rows, as `isthmus-bench figures --json` and the bench of guests write them      figures/row.rs
//! docs/performance/paths.jsonl     points by size, as `isthmus-bench paths --json --svg` writes them
//! docs/performance/notes.md        after the tables
//!        └──▶ docs/performance.md                                                                                    figures/page.rs
//! ```

mod page;
mod row;

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cmd;

/// The page that is written.
const PAGE: &str = "docs/performance.md";

/// The folder of the results and texts.
const FOLDER: &str = "docs/performance";

/// The results that become tables of rows, and the heading of each.
const TABLES: [(&str, &str); 6] = [
    ("figures.jsonl", "Figures"),
    ("sockets.jsonl", "Sockets, and receivers that sleep"),
    ("verbs.jsonl", "RDMA programs"),
    ("overlay.jsonl", "Overlay networks"),
    ("guests.jsonl", "Guests of QEMU"),
    ("guests-xen.jsonl", "Guests of Xen"),
];

/// The results by size, and their picture.
const POINTS: &str = "paths.jsonl";
const PICTURE: &str = "paths.svg";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compares the page with the results and writes nothing
    #[arg(long)]
    check: bool,
}

/// The lines of a file of results. The first line describes the run.
struct Results {
    run: Value,
    lines: Vec<Value>,
}

/// Writes the page; with `--check` returns false if it is not what the results give.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = cmd::root();
    let page = generate(&root.join(FOLDER))?;
    if args.check {
        let is_same = fs::read_to_string(root.join(PAGE)).is_ok_and(|text| text == page);
        if !is_same {
            println!("{PAGE} is not what {FOLDER} gives: `cargo xtask figures` writes it");
        }
        return Ok(is_same);
    }
    fs::write(root.join(PAGE), page).with_context(|| format!("cannot write {PAGE}"))?;
    println!("Written: {PAGE}");
    Ok(true)
}

/// Returns the page of a folder. Results that are not there are left out.
fn generate(folder: &Path) -> Result<String> {
    let mut tables = Vec::new();
    for (file, title) in TABLES {
        if let Some(results) = read_results(folder, file)? {
            tables.push(page::figures(title, &results).with_context(|| format!("in {file}"))?);
        }
    }
    if let Some(results) = read_results(folder, POINTS)? {
        let picture = folder.join(PICTURE).exists().then_some(PICTURE);
        tables.push(page::points(&results, picture).with_context(|| format!("in {POINTS}"))?);
    }
    if tables.is_empty() {
        tables.push("No figures are recorded yet.\n".to_owned());
    }
    let mut parts = vec![read(folder, "intro.md")?.unwrap_or_default()];
    parts.extend(tables);
    parts.extend(read(folder, "notes.md")?);
    Ok(parts.join("\n"))
}

fn read_results(folder: &Path, file: &str) -> Result<Option<Results>> {
    let Some(text) = read(folder, file)? else { return Ok(None) };
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
    let mut lines = lines.with_context(|| format!("{file} is not lines of JSON"))?;
    ensure!(lines.first().is_some_and(|run| run.get("machine").is_some()), "{file} does not begin with its run");
    let run = lines.remove(0);
    ensure!(run["machine"]["debug_build"] != Value::Bool(true), "{file} is of a debug build, which measures nothing");
    Ok(Some(Results { run, lines }))
}

/// Returns the text of a file; none if there is no such file.
fn read(folder: &Path, file: &str) -> Result<Option<String>> {
    match fs::read_to_string(folder.join(file)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {file}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = r#"{"command":"isthmus-bench figures","date":"2026-01-02 03:04 UTC","machine":{"cpu":"A CPU","cpus":2,
        "virtual_machine":true,"kernel":"Linux 6.18","memory_mib":8192,"pinned":"0,1","debug_build":false}}"#;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    #[test]
    fn the_page_is_what_the_results_give() {
        let root = cmd::root();
        let page = fs::read_to_string(root.join(PAGE)).unwrap();
        let generated = generate(&root.join(FOLDER)).unwrap();
        assert!(page == generated, "{PAGE} is not what {FOLDER} gives: `cargo xtask figures` writes it");
    }

    #[test]
    fn a_page_has_the_texts_around_the_tables() {
        let row = r#"{"name":"local.rate.8b","value":40.9,"unit":"Mmsg/s","baseline":"ucx","baseline_value":22.5,"ratio":1.82,
            "target":{"vs":"peer","op":">=","value":1.5}}"#;
        let figures = format!("{}\n{}\n", RUN.replace('\n', ""), row.replace('\n', ""));
        let folder = folder(&[("intro.md", "# Title\n"), ("figures.jsonl", &figures), ("notes.md", "## Notes\n")]);
        let page = generate(folder.path()).unwrap();
        let places = ["# Title", "A CPU (2 CPUs, 8192 MiB, virtual machine)", "`local.rate.8b`", "## Notes"];
        let places = places.map(|text| page.find(text).unwrap_or_else(|| panic!("{text} in {page}")));
        assert!(places.is_sorted(), "{page}");
    }

    #[test]
    fn a_page_without_results_has_no_tables() {
        let page = generate(folder(&[("intro.md", "# Title\n")]).path()).unwrap();
        assert_eq!(page, "# Title\n\nNo figures are recorded yet.\n");
    }

    #[test]
    fn refuses_results_of_a_debug_build_and_results_without_their_run() {
        let debug = RUN.replace('\n', "").replace("false", "true");
        for (text, reason) in
            [(debug.as_str(), "debug build"), ("{}", "begin with its run"), ("nonsense", "lines of JSON")]
        {
            let error = generate(folder(&[("figures.jsonl", text)]).path()).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
