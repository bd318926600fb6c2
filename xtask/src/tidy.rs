//! `cargo xtask tidy`: reads the sources, compiles nothing, and refuses what the compiler lets pass.
//!
//! ```text
//! dependencies      which crate may depend on which, and which may use tokio
//! unsafe_code       the crates that may have unsafe code, and its arguments
//! function_lengths  functions fit a screen; longer ones may only shrink
//! banned_tokens     words that do not belong in what we ship, or in tests
//! memory_orderings  each ordering has a letter and a partner with it
//! machine_paths     no path or host of one machine
//! no_std            layout and engines build without std
//! documents         lines are wrapped, links have a target
//! words             plain words; the counts of others may only fall
//! capabilities      a capability is named only below its folders
//! subjects          subjects of commits are imperative
//! ```
//!
//! Each check is a function from a [`Tree`] to findings, and its tests show that it can fail. Where a rule is wrong once,
//! a comment on that line or above it says so with a reason: `// tidy(sleep): a shell has no pidfd to poll`. Only the rules
//! of `banned_tokens` and `machine_paths` can be excused; each excuse is counted in the last line.

mod banned_tokens;
mod capabilities;
mod dependencies;
mod documents;
mod exemption;
mod function_lengths;
mod machine_paths;
mod memory_orderings;
mod no_std;
mod subjects;
mod unsafe_code;
mod words;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

pub(crate) use no_std::crates as crates_without_std;

use crate::cmd;
use crate::tree::Tree;

/// The list of functions that are longer than they should be.
const RATCHET: &str = "xtask/ratchet.txt";

/// The counts of words that are not plain.
const WORDS: &str = "xtask/words.txt";

/// The counts of capabilities' names outside their folders.
const CAPABILITIES: &str = "xtask/capabilities.txt";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Writes the ratchets of long functions, words and capabilities' names anew; they can only shrink
    #[arg(long)]
    bless: bool,
    #[command(subcommand)]
    print: Option<Print>,
}

#[derive(clap::Subcommand)]
enum Print {
    /// Prints how often words of the rule `words` occur, by package and document
    Words {
        /// Prints every place of this package or document
        package: Option<String>,
    },
}

/// The texts of the ratchet files.
#[derive(Default)]
struct Ratchets {
    lengths: String,
    words: String,
    capabilities: String,
}

impl Ratchets {
    fn read(root: &Path) -> Result<Self> {
        let read = |path| fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"));
        Ok(Self { lengths: read(RATCHET)?, words: read(WORDS)?, capabilities: read(CAPABILITIES)? })
    }

    fn write(&self, root: &Path) -> Result<()> {
        let write = |path, text| fs::write(root.join(path), text).with_context(|| format!("cannot write {path}"));
        write(RATCHET, &self.lengths)?;
        write(WORDS, &self.words)?;
        write(CAPABILITIES, &self.capabilities)
    }
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Error,
    Warning,
}

/// A place that breaks a rule.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    pub(crate) rule: &'static str,
    pub(crate) path: String,
    /// From 1; 0 is the whole file.
    pub(crate) line: usize,
    pub(crate) text: String,
}

impl Finding {
    fn error(rule: &'static str, path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { level: Level::Error, rule, path: path.to_owned(), line, text: text.into() }
    }

    fn warning(rule: &'static str, path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { level: Level::Warning, ..Self::error(rule, path, line, text) }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let level = match self.level {
            Level::Error => "error",
            Level::Warning => "note",
        };
        write!(f, "{level}: {}:{}: [{}] {}", self.path, self.line, self.rule, self.text)
    }
}

/// Runs all checks and prints what they find; true if nothing is wrong.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = cmd::root();
    let tree = Tree::read(&root)?;
    if let Some(Print::Words { package }) = &args.print {
        return words::print(&tree, package.as_deref()).map(|()| true);
    }
    if args.bless {
        let listed = Ratchets::read(&root)?;
        let lengths = function_lengths::shrink(&listed.lengths, &tree);
        let words = words::shrink(&listed.words, &tree);
        let capabilities = capabilities::shrink(&listed.capabilities, &tree);
        Ratchets { lengths, words, capabilities }.write(&root)?;
    }
    report(&tree).map(|errors| errors == 0)
}

/// Prints what is wrong with this tree; how many errors there are.
pub(crate) fn count_errors() -> Result<usize> {
    report(&Tree::read(&cmd::root())?)
}

fn report(tree: &Tree) -> Result<usize> {
    let findings = check(tree, &Ratchets::read(&cmd::root())?);
    let errors = findings.iter().filter(|finding| finding.level == Level::Error).count();
    for finding in &findings {
        println!("{finding}");
    }
    let excuses = exemption::count(tree);
    let notes = findings.len() - errors;
    let files = tree.rust.len();
    println!("tidy: {files} Rust files, {errors} errors, {notes} notes, {excuses} excused lines");
    Ok(errors)
}

/// All findings in a tree, by file and line.
fn check(tree: &Tree, ratchets: &Ratchets) -> Vec<Finding> {
    let broken = tree.broken.iter().map(|(path, reason)| Finding::error("syntax", path, 0, reason));
    let mut findings: Vec<Finding> = broken.collect();
    findings.extend(dependencies::check(tree));
    findings.extend(unsafe_code::check(tree));
    findings.extend(function_lengths::check(tree, &ratchets.lengths));
    findings.extend(banned_tokens::check(tree));
    findings.extend(memory_orderings::check(tree));
    findings.extend(machine_paths::check(tree));
    findings.extend(no_std::check(tree));
    findings.extend(documents::check(tree));
    findings.extend(words::check(tree, &ratchets.words));
    findings.extend(subjects::check(tree));
    findings.extend(capabilities::check(tree, &ratchets.capabilities));
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    findings
}

/// The findings of a check as `line rule`, for tests.
#[cfg(test)]
fn render(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(|finding| format!("{}:{} {}", finding.path, finding.line, finding.text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_does_not_parse_is_an_error() {
        let findings = check(&Tree::of(&[("tests/suites/tests/a.rs", "fn a( {")]), &Ratchets::default());
        assert_eq!(findings[0].rule, "syntax");
    }

    #[test]
    fn this_tree_is_read_in_full() {
        let tree = Tree::read(&cmd::root()).unwrap();
        assert!(tree.rust.iter().any(|file| file.path == "xtask/src/tidy.rs"));
        assert!(tree.broken.iter().all(|(path, _)| !path.starts_with("xtask/")), "{:?}", tree.broken);
    }
}
