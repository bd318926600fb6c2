//! The commits that the rule about subjects covers.

use std::path::Path;

use crate::cmd;

/// The file of the rule. Commits that do not descend from the commit that added it were made without the rule.
const RULE_FILE: &str = "xtask/src/tidy/subjects.rs";

/// A commit that is not a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) hash: String,
    pub(crate) subject: String,
}

/// Returns the commits made since the rule exists, newest first. There are none without git, and none in a shallow clone,
/// because the commit that added the rule may be missing there.
pub(super) fn read(root: &Path) -> Vec<Commit> {
    commits(root, RULE_FILE).unwrap_or_default()
}

fn commits(root: &Path, rule_file: &str) -> Option<Vec<Commit>> {
    if git(root, &["rev-parse", "--is-shallow-repository"])?.trim() != "false" {
        return None;
    }
    // A file that was removed and added again has several such commits. The oldest is the last.
    let added = git(root, &["log", "--diff-filter=A", "--format=%H", "--", rule_file])?;
    let since = format!("{}..HEAD", added.lines().last()?);
    let log = git(root, &["log", "--no-merges", "--ancestry-path", "--format=%H %s", &since])?;
    Some(log.lines().filter_map(parse).collect())
}

/// Parses the hash and the subject of a commit.
fn parse(line: &str) -> Option<Commit> {
    let (hash, subject) = line.split_once(' ')?;
    Some(Commit { hash: hash.to_owned(), subject: subject.to_owned() })
}

/// Returns the output of git, or `None` if there is no git or it fails.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    let output = cmd::command("git").current_dir(root).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str = "rule.rs";

    /// A repository with one commit.
    fn repository(at: &Path) {
        run(at, &["init", "-q", "-b", "main"]);
        commit(at, "first", "a");
    }

    fn run(at: &Path, args: &[&str]) {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"];
        assert!(git(at, &[&identity, args].concat()).is_some(), "git {args:?}");
    }

    /// Commits a file of this name.
    fn commit(at: &Path, subject: &str, file: &str) {
        std::fs::write(at.join(file), subject).unwrap();
        run(at, &["add", "."]);
        run(at, &["commit", "-q", "-m", subject]);
    }

    fn subjects(at: &Path) -> Option<Vec<String>> {
        Some(commits(at, RULE)?.into_iter().map(|commit| commit.subject).collect())
    }

    #[test]
    fn a_repository_without_the_rule_has_no_commits_to_check() {
        let folder = tempfile::tempdir().unwrap();
        repository(folder.path());
        assert_eq!(subjects(folder.path()), None);
    }

    #[test]
    fn only_descendants_of_the_rule_are_checked_and_no_merges() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        repository(at);
        run(at, &["branch", "beside"]);
        commit(at, "the rule", RULE);
        commit(at, "after the rule", "b");
        run(at, &["checkout", "-q", "beside"]);
        commit(at, "beside the rule", "c");
        run(at, &["checkout", "-q", "main"]);
        run(at, &["merge", "-q", "--no-ff", "-m", "two lines", "beside"]);
        commit(at, "last", "d");
        assert_eq!(subjects(at), Some(vec!["last".to_owned(), "after the rule".to_owned()]));
    }

    #[test]
    fn a_shallow_clone_has_no_commits_to_check() {
        let folder = tempfile::tempdir().unwrap();
        let (whole, clone) = (folder.path().join("whole"), folder.path().join("clone"));
        std::fs::create_dir(&whole).unwrap();
        repository(&whole);
        commit(&whole, "the rule", RULE);
        commit(&whole, "after the rule", "b");
        let url = format!("file://{}", whole.display());
        run(folder.path(), &["clone", "-q", "--depth", "2", &url, "clone"]);
        assert_eq!(subjects(&clone), None);
        assert_eq!(subjects(&whole), Some(vec!["after the rule".to_owned()]));
    }

    #[test]
    fn a_folder_without_git_has_no_commits_to_check() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(subjects(folder.path()), None);
    }
}
