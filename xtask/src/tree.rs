//! The tree as `tidy` sees it: its text files, and the Rust ones among them as tokens and syntax.
//!
//! A [`Tree`] is made from the disk, or from strings in a test. Nothing here judges.

mod history;
mod rust;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

pub(crate) use history::Commit;
pub(crate) use rust::{RustFile, Token, TokenKind};

use crate::cmd;

/// Folders and files that hold no sources, for a tree without git.
const NOT_SOURCES: [&str; 4] = [".git", "target", "out", "artifacts"];

/// A text file, by its path from the root.
#[derive(Clone, Debug)]
pub(crate) struct TextFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// All that `tidy` looks at.
#[derive(Default)]
pub(crate) struct Tree {
    pub(crate) texts: Vec<TextFile>,
    pub(crate) rust: Vec<RustFile>,
    /// Rust files that do not parse, with the parser's reason.
    pub(crate) broken: Vec<(String, String)>,
    /// Commits made since the rule about subjects exists.
    pub(crate) commits: Vec<Commit>,
}

impl Tree {
    /// Reads every tracked file, and every new one that is not ignored.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut texts = Vec::new();
        for path in paths(root)? {
            let full = root.join(&path);
            if !full.symlink_metadata().is_ok_and(|data| data.is_file()) {
                continue; // A link, or deleted but not yet from the index.
            }
            let bytes = fs::read(&full).with_context(|| format!("cannot read {path}"))?;
            if let Ok(text) = String::from_utf8(bytes) {
                texts.push(TextFile { path, text });
            }
        }
        Ok(Self { commits: history::read(root), ..Self::new(texts) })
    }

    /// Parses what is Rust among some files.
    pub(crate) fn new(texts: Vec<TextFile>) -> Self {
        let mut tree = Self::default();
        for file in texts.iter().filter(|file| file.path.ends_with(".rs")) {
            match RustFile::parse(&file.path, &file.text) {
                Ok(parsed) => tree.rust.push(parsed),
                Err(reason) => tree.broken.push((file.path.clone(), reason)),
            }
        }
        let test_modules: Vec<String> = tree.rust.iter().flat_map(|file| file.test_modules.clone()).collect();
        for file in &mut tree.rust {
            file.all_test |= test_modules.iter().any(|module| is_module(&file.path, module));
        }
        tree.texts = texts;
        tree
    }

    /// A tree made of strings.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let texts = files.iter().map(|(path, text)| TextFile { path: (*path).into(), text: (*text).into() });
        Self::new(texts.collect())
    }
}

/// Returns true if `path` is the file of the module at `module` (no suffix), or of one below it.
fn is_module(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

fn paths(root: &Path) -> Result<Vec<String>> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = cmd::command("git").current_dir(root).args(list).output();
    if let Ok(output) = output
        && output.status.success()
    {
        let names = String::from_utf8_lossy(&output.stdout).into_owned();
        return Ok(names.split_terminator('\0').map(str::to_owned).collect());
    }
    let mut found = Vec::new();
    walk(root, "", &mut found)?;
    Ok(found)
}

/// Without git (an unpacked archive): everything but the folders that are made.
fn walk(folder: &Path, prefix: &str, found: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type()?;
        if kind.is_dir() && !NOT_SOURCES.contains(&name.as_str()) {
            walk(&entry.path(), &format!("{prefix}{name}/"), found)?;
        } else if kind.is_file() {
            found.push(format!("{prefix}{name}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_test_module_is_test_code() {
        let tree = Tree::of(&[
            ("crates/x/src/lib.rs", "#[cfg(test)] mod liar; mod ring;"),
            ("crates/x/src/liar.rs", ""),
            ("crates/x/src/liar/deep.rs", ""),
            ("crates/x/src/liars.rs", ""),
            ("crates/x/src/ring.rs", "#[cfg(test)] mod tests;"),
            ("crates/x/src/ring/tests.rs", ""),
        ]);
        let tests: Vec<&str> = tree.rust.iter().filter(|file| file.all_test).map(|file| file.path.as_str()).collect();
        assert_eq!(tests, ["crates/x/src/liar.rs", "crates/x/src/liar/deep.rs", "crates/x/src/ring/tests.rs"]);
    }

    #[test]
    fn a_tree_without_git_is_walked() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/target")).unwrap();
        fs::write(folder.path().join("a/lib.rs"), "").unwrap();
        fs::write(folder.path().join("a/target/made.rs"), "").unwrap();
        let mut found = Vec::new();
        walk(folder.path(), "", &mut found).unwrap();
        assert_eq!(found, ["a/lib.rs"]);
    }
}
