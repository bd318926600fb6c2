//! Lines of documents are wrapped, and links within the tree have a target.
//!
//! Tables, code blocks, headings, and what a program prints into a page may be wider.

use super::Finding;
use crate::tree::{TextFile, Tree};

const RULE: &str = "documents";

const COLUMNS_MAX: usize = 100;

/// Pages that a program writes.
const GENERATED: [&str; 3] = ["docs/operate/configuration.md", "docs/operate/reasons.md", "docs/performance.md"];

/// Parts of a generated page. Their links are relative to that page, where they are checked.
const FRAGMENTS: &str = "docs/performance/";

/// The begins of sections that a program writes; `<!-- end -->` ends them.
const PRINTED: [&str; 2] = ["<!-- table", "<!-- commands"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let documents = tree.texts.iter().filter(|file| is_document(&file.path));
    documents.flat_map(|file| [wide_lines(file), dead_links(file, tree)].concat()).collect()
}

/// Documents lie in the root, in `docs` and in `examples`.
fn is_document(path: &str) -> bool {
    let in_folder = path.starts_with("docs/") || path.starts_with("examples/");
    path.ends_with(".md") && (in_folder || !path.contains('/'))
}

/// Returns the lines outside of code blocks, with their numbers from 1.
fn outside_of_code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().zip(1..).filter_map(move |(line, number)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((number, line))
    })
}

fn wide_lines(file: &TextFile) -> Vec<Finding> {
    if GENERATED.contains(&file.path.as_str()) {
        return Vec::new();
    }
    let mut is_printed = false;
    let mut findings = Vec::new();
    for (number, line) in outside_of_code(&file.text) {
        is_printed = match line {
            _ if PRINTED.iter().any(|begin| line.starts_with(begin)) => true,
            "<!-- end -->" => false,
            _ => is_printed,
        };
        let columns = line.chars().count();
        if columns > COLUMNS_MAX && !is_printed && !line.starts_with(['|', '#']) {
            findings.push(Finding::error(
                RULE,
                &file.path,
                number,
                format!("{columns} columns; wrap at {COLUMNS_MAX}"),
            ));
        }
    }
    findings
}

fn dead_links(file: &TextFile, tree: &Tree) -> Vec<Finding> {
    if file.path.starts_with(FRAGMENTS) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, line) in outside_of_code(&file.text) {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        for (target, _) in targets.filter(|(target, _)| !target.contains("://")) {
            if let Some(text) = dead_link(&file.path, target, tree) {
                findings.push(Finding::error(RULE, &file.path, number, text));
            }
        }
    }
    findings
}

/// Returns what is wrong with a link in the file at `from`.
fn dead_link(from: &str, target: &str, tree: &Tree) -> Option<String> {
    let (path, section) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() { from.to_owned() } else { resolve(from, path) };
    let folder = format!("{path}/");
    let found = tree.texts.iter().find(|file| file.path == path);
    match found {
        None if tree.texts.iter().any(|file| file.path.starts_with(&folder)) => None,
        None => Some(format!("there is no {path}")),
        Some(page) if section.is_empty() || sections(&page.text).any(|name| name == section) => None,
        Some(_) => Some(format!("{path} has no section #{section}")),
    }
}

/// Returns the path from the root of a path that is relative to the folder of `from`.
fn resolve(from: &str, path: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// Returns the names by which links reach the headings of a page, as GitHub makes them.
fn sections(text: &str) -> impl Iterator<Item = String> {
    outside_of_code(text).filter_map(|(_, line)| {
        let heading = line.strip_prefix('#')?.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|sign| sign.is_alphanumeric() || " -_".contains(*sign));
        Some(kept.map(|sign| if sign == ' ' { '-' } else { sign }).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        crate::tidy::render(&check(&Tree::of(files)))
    }

    #[test]
    fn refuses_a_line_of_more_than_100_columns_in_prose() {
        let wide = "ü".repeat(101);
        assert_eq!(findings(&[("docs/a.md", &wide)]), ["docs/a.md:1 101 columns; wrap at 100"]);
        assert_eq!(findings(&[("README.md", &format!("\n{wide}"))]), ["README.md:2 101 columns; wrap at 100"]);
        let after = format!("```\n```\n<!-- table a -->\n<!-- end -->\n{wide}");
        assert_eq!(findings(&[("docs/a.md", &after)]), ["docs/a.md:5 101 columns; wrap at 100"]);
    }

    #[test]
    fn admits_wide_tables_code_and_printed_text() {
        let wide = "x".repeat(101);
        for text in
            [format!("| {wide}"), format!("```\n{wide}\n```"), format!("<!-- table a -->\n{wide}\n<!-- end -->")]
        {
            assert_eq!(findings(&[("docs/a.md", &text)]), [""; 0], "{text}");
        }
        assert_eq!(findings(&[("docs/a.md", &"ü".repeat(100))]), [""; 0]);
        assert_eq!(findings(&[(GENERATED[0], &wide), ("crates/a/notes.md", &wide)]), [""; 0]);
    }

    #[test]
    fn refuses_links_without_a_target() {
        let link = "[a](b.md) [c](../README.md#missing) [d](#here)";
        let files = [("docs/a.md", link), ("README.md", "# There")];
        assert_eq!(
            findings(&files),
            [
                "docs/a.md:1 there is no docs/b.md",
                "docs/a.md:1 README.md has no section #missing",
                "docs/a.md:1 docs/a.md has no section #here"
            ]
        );
    }

    #[test]
    fn admits_links_to_files_folders_sections_and_other_sites() {
        let page =
            "## A `b`, and C\n[a](#a-b-and-c) [b](../crates/x/lib.rs) [c](../crates) [d](https://example.org/#e)";
        assert_eq!(findings(&[("docs/a.md", page), ("crates/x/lib.rs", "")]), [""; 0]);
    }
}
