//! No path or host of one machine in the tree.
//!
//! Paths into a home folder or checkout, registries other than crates.io, addresses of private mirrors: each works on one machine and fails
//! on all others.

use super::{Finding, exemption};
use crate::tree::{TextFile, Tree};

const RULE: &str = "place";

/// Folders at the root of a file system in which checkouts and homes lie.
const MACHINE_FOLDERS: [&str; 5] = ["home", "root", "work", "Users", "builds"];

/// User names that exist in examples only.
const EXAMPLE_USERS: [&str; 5] = ["alice", "ann", "bob", "user", "me"];

/// Ends of host names that only one site knows.
const SITE_NAMES: [&str; 5] = [".internal", ".local", ".corp", ".lan", ".intranet"];

/// The one source of crates.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.texts.iter().filter(|file| !file.path.starts_with("fuzz/corpus/")) {
        let lines: Vec<&str> = file.text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            for text in machine_names(file, line) {
                if !exemption::is_exempt(&lines, at + 1, RULE) {
                    findings.push(Finding::error(RULE, &file.path, at + 1, text));
                }
            }
        }
    }
    findings
}

fn machine_names(file: &TextFile, line: &str) -> Vec<String> {
    let mut said = Vec::new();
    if let Some(path) = machine_path(line) {
        said.push(format!("`{path}` is a path of one machine"));
    }
    if let Some(host) = site_host(line) {
        said.push(format!("`{host}` is a host of one site"));
    }
    let name = file.path.rsplit('/').next().unwrap_or_default();
    if name == "Cargo.lock" && line.starts_with("source = ") && !line.contains(CRATES_IO) {
        said.push("crates come from crates.io only".to_owned());
    }
    let is_cargo = name == "Cargo.toml" || file.path.contains(".cargo/");
    let header = line.trim_start().trim_start_matches('[');
    if is_cargo
        && line.trim_start().starts_with('[')
        && ["source.", "registry", "registries"].iter().any(|word| header.starts_with(word))
    {
        said.push("where crates are fetched from is the business of the machine, not of the tree".to_owned());
    }
    said
}

/// An absolute path into a machine's folders: the slash begins a word, and a name follows.
fn machine_path(line: &str) -> Option<String> {
    for folder in MACHINE_FOLDERS {
        let wanted = format!("/{folder}/");
        for (at, _) in line.match_indices(&wanted) {
            let before = line[..at].chars().next_back();
            let begins = before.is_none_or(|sign| !(sign.is_alphanumeric() || "_-.~})/*$".contains(sign)));
            let rest = &line[at + wanted.len()..];
            let names = rest.starts_with(|sign: char| sign.is_alphanumeric() || sign == '.');
            let owner = rest.split(|sign: char| !sign.is_alphanumeric()).next().unwrap_or_default();
            if begins && names && !(folder == "home" && EXAMPLE_USERS.contains(&owner)) {
                return Some(wanted);
            }
        }
    }
    None
}

/// The host of a URL that is a private address or has a name only one site knows.
fn site_host(line: &str) -> Option<String> {
    let urls = line.match_indices("://").map(|(at, sign)| &line[at + sign.len()..]);
    let hosts = urls
        .map(|rest| rest.split(|sign: char| !(sign.is_alphanumeric() || ".-_@".contains(sign))).next().unwrap_or(""));
    let mut hosts = hosts.map(|host| host.rsplit('@').next().unwrap_or(host));
    hosts.find(|host| is_site_host(host)).map(str::to_owned)
}

fn is_site_host(host: &str) -> bool {
    let address = host.parse::<std::net::Ipv4Addr>();
    address.is_ok_and(|address| !address.is_loopback() && !address.is_documentation() && !address.is_unspecified())
        || SITE_NAMES.iter().any(|end| host.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn paths_of_one_machine_are_refused() {
        for folder in MACHINE_FOLDERS {
            assert_eq!(count("docs/a.md", &format!("cd /{folder}/isthmus")), 1, "{folder}");
            assert_eq!(count("docs/a.md", &format!("see `/{folder}/a/b`")), 1, "{folder}");
        }
    }

    #[test]
    fn paths_that_only_look_like_it_pass() {
        for text in [
            "$HOME/work/a",
            "a/home/b",
            "target/work/x",
            "/run/isthmus/isthmus.sock",
            "net/root/",
            "https://host.example/home/a",
        ] {
            assert_eq!(count("docs/a.md", text), 0, "{text}");
        }
    }

    #[test]
    fn hosts_of_one_site_are_refused() {
        assert_eq!(count("scripts/a", &format!("curl http://{}/x", ["10", "1", "2", "3"].join("."))), 1);
        assert_eq!(count("scripts/a", &format!("curl https://crates{}:8080/x", SITE_NAMES[0])), 1);
        assert_eq!(count("scripts/a", "curl http://127.0.0.1:9000/metrics https://deb.debian.org/"), 0);
    }

    #[test]
    fn registries_other_than_crates_io_are_refused() {
        assert_eq!(count("Cargo.lock", "source = \"git+https://example.org/a\""), 1);
        assert_eq!(count("Cargo.lock", &format!("source = \"{CRATES_IO}\"")), 0);
        assert_eq!(count(".cargo/config.toml", "[source.crates-io]"), 1);
        assert_eq!(count(".cargo/config.toml", "[registries.mine]"), 1);
        assert_eq!(count(".cargo/config.toml", "[alias]"), 0);
    }

    #[test]
    fn an_exemption_with_a_reason_passes() {
        let path = format!("/{}/isthmus", MACHINE_FOLDERS[0]);
        assert_eq!(count("scripts/a", &format!("# tidy(place): the guest's own home\ncd {path}")), 0);
    }
}
