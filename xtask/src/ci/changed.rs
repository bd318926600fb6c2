//! The packages that differ from a base commit, and all packages that depend on them.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::workspace::Package;
use crate::cmd;

/// Names of branches: without a commit, changes are counted from where this branch left the first one that exists.
const UPSTREAM: [&str; 3] = ["@{upstream}", "origin/main", "main"];

/// The parts of the tree that have to be checked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// The names of packages that changed, or that depend on one that did.
    pub(super) packages: BTreeSet<String>,
    /// True if dependencies may have changed, or the rules for them.
    pub(super) dependencies: bool,
    /// True if a fuzz target changed.
    pub(super) fuzz: bool,
}

/// Compares the files here, committed or not, with a base commit; the empty name stands for the default.
pub(super) fn since(base: &str, packages: &[Package]) -> Result<Changed> {
    let base = base_commit(base)?;
    let listed = |args: &[&str]| cmd::output("git", args).with_context(|| format!("git {} failed", args.join(" ")));
    let mut files = listed(&["diff", "--name-only", "-z", &base])?;
    files += &listed(&["ls-files", "-z", "--others", "--exclude-standard"])?;
    let mentions = |word: &str| {
        let found = cmd::output("git", &["grep", "--untracked", "-lzF", "-e", word, "--", "*.rs"]).unwrap_or_default();
        found.split_terminator('\0').map(str::to_owned).collect()
    };
    Ok(concerned(files.split_terminator('\0'), &cmd::root(), packages, mentions))
}

fn base_commit(name: &str) -> Result<String> {
    if !name.is_empty() {
        return Ok(name.to_owned());
    }
    match UPSTREAM.iter().find_map(|other| cmd::output("git", &["merge-base", "HEAD", other])) {
        Some(commit) => Ok(commit.trim().to_owned()),
        None => bail!("there is none of {}: name a commit, `--changed=COMMIT`", UPSTREAM.join(", ")),
    }
}

/// A file that lies in no package concerns those packages that mention it in their sources: a page by its name, another file by its folder.
/// A file of the root that is no page concerns all.
fn concerned<'a>(
    files: impl Iterator<Item = &'a str>,
    root: &Path,
    packages: &[Package],
    mentions: impl Fn(&str) -> Vec<String>,
) -> Changed {
    let of = |file: &str| packages.iter().find(|package| root.join(file).starts_with(&package.folder));
    let name = |package: &Package| package.name.clone();
    let mut changed = Changed::default();
    for file in files {
        let (folder, last) = (file.split_once('/').map(|(folder, _)| folder), file.rsplit('/').next().unwrap_or(file));
        changed.dependencies |= last == "Cargo.toml" || folder.is_none() && !last.ends_with(".md");
        match (of(file), folder) {
            (Some(package), _) => drop(changed.packages.insert(name(package))),
            (None, Some("fuzz")) => changed.fuzz = true,
            (None, None) if !last.ends_with(".md") => changed.packages.extend(packages.iter().map(name)),
            (None, folder) => {
                let word = folder.filter(|_| !last.ends_with(".md")).unwrap_or(last);
                changed.packages.extend(mentions(word).iter().filter_map(|file| of(file)).map(name));
            }
        }
    }
    let depends = |package: &&Package, on: &BTreeSet<String>| {
        !on.contains(&package.name) && !package.dependencies.is_disjoint(on)
    };
    while let Some(package) = packages.iter().find(|package| depends(package, &changed.packages)) {
        changed.packages.insert(name(package));
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(files: &[&str]) -> Changed {
        let package =
            |name: &str, on: &[&str]| Package::plain(name, name, on.iter().map(|name| (*name).to_owned()).collect());
        let packages =
            [package("top", &["middle"]), package("middle", &["low"]), package("low", &[]), package("apart", &[])];
        let mentions = |word: &str| match word {
            "page.md" | "kmod" => vec!["middle/src/lib.rs".to_owned()],
            _ => Vec::new(),
        };
        concerned(files.iter().copied(), Path::new("/w"), &packages, mentions)
    }

    fn names(changed: &Changed) -> Vec<&str> {
        changed.packages.iter().map(String::as_str).collect()
    }

    #[test]
    fn a_change_concerns_all_that_depend_on_it() {
        let low = changed(&["low/src/lib.rs"]);
        assert_eq!(names(&low), ["low", "middle", "top"]);
        assert!(!low.dependencies && !low.fuzz);
        assert!(changed(&["apart/Cargo.toml"]).dependencies);
    }

    #[test]
    fn a_file_of_no_package_concerns_those_that_mention_it() {
        assert_eq!(names(&changed(&["docs/page.md"])), ["middle", "top"]);
        assert_eq!(names(&changed(&["kmod/main.c"])), ["middle", "top"]);
        assert_eq!(names(&changed(&["docs/other.md", "README.md"])), [""; 0]);
        assert_eq!(names(&changed(&["Cargo.lock"])).len(), 4);
        assert_eq!(changed(&["fuzz/a.rs"]), Changed { fuzz: true, ..Changed::default() });
    }
}
