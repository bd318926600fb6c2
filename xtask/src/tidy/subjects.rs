//! Subjects of commits: `area: verb …`, imperative, for example `overlay: refuse unknown datagrams`.
//!
//! An area is a crate, a folder or a topic; several are separated by commas. `subjects.txt` lists the verbs. Merges are not
//! checked, nor are commits that do not descend from the commit that added this file, because they were made without the rule.

use std::collections::BTreeSet;

use super::Finding;
use crate::tree::{Commit, Tree};

const RULE: &str = "subject";

const LIST: &str = include_str!("subjects.txt");

/// The subject that git gives to a commit that undoes another one.
const REVERT: &str = "Revert \"";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let (verbs, excused): (BTreeSet<&str>, BTreeSet<&str>) = (rows("verb ").collect(), rows("excused ").collect());
    let checked = tree.commits.iter().filter(|commit| !excused.contains(commit.hash.as_str()));
    checked.filter_map(|commit| Some(finding(commit, problem(&commit.subject, &verbs)?))).collect()
}

/// The first words behind this kind in the list.
fn rows(kind: &str) -> impl Iterator<Item = &'static str> {
    LIST.lines().filter_map(move |line| line.strip_prefix(kind)?.split_whitespace().next())
}

fn finding(commit: &Commit, problem: String) -> Finding {
    let short = commit.hash.get(..12).unwrap_or(&commit.hash);
    Finding::error(RULE, &format!("commit {short}"), 0, format!("{problem} (\"{}\")", commit.subject))
}

/// Returns the problem of a subject.
fn problem(subject: &str, verbs: &BTreeSet<&str>) -> Option<String> {
    if subject.starts_with(REVERT) {
        return None;
    }
    let Some((_, text)) = subject.split_once(": ").filter(|(areas, _)| areas.split(", ").all(is_area)) else {
        return Some("the subject is not `area: verb …`".to_owned());
    };
    let first = text.split([' ', ',']).next().unwrap_or_default();
    let text = || format!("`{first}` is no verb of xtask/src/tidy/subjects.txt: write `area: verb …`, or add the verb");
    (!verbs.contains(first)).then(text)
}

fn is_area(area: &str) -> bool {
    !area.is_empty()
        && area.chars().all(|sign| sign.is_ascii_lowercase() || sign.is_ascii_digit() || "-_./".contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::render;

    fn problems(subject: &str) -> Vec<String> {
        let commits = vec![Commit { hash: "0123456789abcdef".to_owned(), subject: subject.to_owned() }];
        render(&check(&Tree { commits, ..Tree::default() }))
    }

    #[test]
    fn imperative_subjects_pass() {
        for subject in ["overlay: refuse unknown datagrams", "mx, abi/myriexpress: add a test", "Revert \"the rule\""] {
            assert_eq!(problems(subject), [""; 0]);
        }
    }

    #[test]
    fn titles_and_other_forms_of_verbs_are_refused() {
        for first in ["the", "a", "limits", "figures", "adds", "added", "adding", "what", "Refuse"] {
            let expected = format!("commit 0123456789ab:0 `{first}` is no verb");
            assert!(problems(&format!("docs: {first} rows"))[0].starts_with(&expected), "{first}");
        }
    }

    #[test]
    fn subjects_without_an_area_are_refused() {
        for subject in ["add a test", "Overlay: add a test", "the overlay: add a test", ": add a test", "", "mx:add"] {
            assert!(problems(subject)[0].contains("is not `area: verb …`"), "{subject}");
        }
    }

    #[test]
    fn the_list_is_sorted_and_each_row_has_a_kind() {
        let lines: Vec<&str> = LIST.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        assert!(lines.iter().all(|line| line.starts_with("verb ") || line.starts_with("excused ")));
        let verbs: Vec<&str> = rows("verb ").collect();
        assert!(verbs.is_sorted());
    }
}
