//! Words that have no place in what we ship, or in tests.

use super::{Finding, exemption};
use crate::tree::{RustFile, TokenKind, Tree};

/// The files in which a pattern is refused.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BanScope {
    /// In all code that is not a test.
    Shipped,
    /// In libraries (crates/ and abi/), outside tests.
    Libraries,
    /// In tests: below tests/, in `#[cfg(test)]`.
    Tests,
}

struct BannedToken {
    rule: &'static str,
    tokens: &'static [&'static str],
    place: BanScope,
    instead: &'static str,
}

const fn ban(
    rule: &'static str,
    tokens: &'static [&'static str],
    place: BanScope,
    instead: &'static str,
) -> BannedToken {
    BannedToken { rule, tokens, place, instead }
}

const SLEEP: &str = "wait for the event itself (a pipe, a pidfd, poll), not for time to pass";
const PRINT: &str = "a library does not print: return it, or use tracing";

const BANNED_TOKENS: [BannedToken; 14] = [
    ban("dbg", &["dbg", "!"], BanScope::Shipped, "take it out"),
    ban("todo", &["todo", "!"], BanScope::Shipped, "finish it, or refuse with an error"),
    ban("todo", &["unimplemented", "!"], BanScope::Shipped, "finish it, or refuse with an error"),
    ban("unwrap", &[".", "unwrap", "(", ")"], BanScope::Shipped, "use `?`, or expect(\"why it cannot fail\")"),
    ban("print", &["println", "!"], BanScope::Libraries, PRINT),
    ban("print", &["print", "!"], BanScope::Libraries, PRINT),
    ban("print", &["eprintln", "!"], BanScope::Libraries, PRINT),
    ban("print", &["eprint", "!"], BanScope::Libraries, PRINT),
    ban("sleep", &["thread", ":", ":", "sleep"], BanScope::Tests, SLEEP),
    ban("sleep", &["time", ":", ":", "sleep"], BanScope::Tests, SLEEP),
    ban("sleep", &["nanosleep", "("], BanScope::Tests, SLEEP),
    ban("allow", &["#", "!", "[", "allow"], BanScope::Shipped, "say #[expect(…, reason = …)] on the one item"),
    ban("allow", &["#", "!", "[", "expect"], BanScope::Shipped, "say #[expect(…, reason = …)] on the one item"),
    ban("allow", &["#", "[", "allow"], BanScope::Shipped, "say #[expect(…, reason = …)]; a macro may allow"),
];

/// Nothing of ours stays behind in a folder of names, so nothing of ours is ever put there.
// tidy(names): the rule has to name what it refuses.
const SHARED_NAMES: &str = "/dev/shm";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust.iter().flat_map(|file| words(file).into_iter().chain(shared_names(file))).collect()
}

fn words(file: &RustFile) -> Vec<Finding> {
    let lines: Vec<&str> = file.lines.iter().map(String::as_str).collect();
    let mut findings = Vec::new();
    for (at, token) in file.tokens.iter().enumerate() {
        let matching = BANNED_TOKENS.iter().filter(|ban| file.matches(at, ban.tokens) || is_imported(file, at, ban));
        for ban in matching.filter(|ban| applies(ban.place, file, token.line)) {
            // What a macro writes is needed in one expansion and not in the next: `expect` cannot say that.
            let is_template = ban.tokens == ["#", "[", "allow"] && file.is_macro(token.line);
            if !is_template && !exemption::is_exempt(&lines, token.line, ban.rule) {
                let what = ban.tokens.concat();
                findings.push(Finding::error(ban.rule, &file.path, token.line, format!("`{what}`: {}", ban.instead)));
            }
        }
    }
    findings
}

/// `thread::{…, sleep, …}`: the last word of a path inside the brackets of a `use`.
fn is_imported(file: &RustFile, at: usize, ban: &BannedToken) -> bool {
    let [first, ":", ":", last] = ban.tokens else { return false };
    let inside = || file.tokens[at + 4..].iter().take_while(|token| token.kind != TokenKind::Close);
    file.matches(at, &[first, ":", ":", "{"]) && inside().any(|token| token.text == *last)
}

fn applies(place: BanScope, file: &RustFile, line: usize) -> bool {
    let is_library = file.path.starts_with("crates/") || file.path.starts_with("abi/");
    match place {
        BanScope::Tests => file.is_test(line),
        BanScope::Shipped => !file.is_test(line),
        BanScope::Libraries => is_library && !file.is_test(line) && !file.path.ends_with("build.rs"),
    }
}

fn shared_names(file: &RustFile) -> Vec<Finding> {
    let lines: Vec<&str> = file.lines.iter().map(String::as_str).collect();
    let literals =
        file.tokens.iter().filter(|token| token.kind == TokenKind::Literal && token.text.contains(SHARED_NAMES));
    let bad = literals.filter(|token| !file.is_test(token.line) && !exemption::is_exempt(&lines, token.line, "names"));
    let text = format!("`{SHARED_NAMES}`: memory is shared by passing descriptors, never by name");
    bad.map(|token| Finding::error("names", &file.path, token.line, text.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        check(&Tree::of(&[(path, text)])).iter().map(|finding| finding.rule).collect()
    }

    const LIBRARY: &str = "crates/client/src/mesh.rs";
    const PROGRAM: &str = "bin/isthmus/src/status.rs";
    const SUITE: &str = "tests/suites/tests/kill.rs";

    #[test]
    fn each_ban_is_seen_in_a_library() {
        assert_eq!(rules(LIBRARY, "fn a() { dbg!(1); }"), ["dbg"]);
        assert_eq!(rules(LIBRARY, "fn a() { todo!() }"), ["todo"]);
        assert_eq!(rules(LIBRARY, "fn a() { unimplemented!() }"), ["todo"]);
        assert_eq!(rules(LIBRARY, "fn a() { b().unwrap(); }"), ["unwrap"]);
        assert_eq!(rules(LIBRARY, "fn a() { println!(\"{}\", b().unwrap()); }"), ["print", "unwrap"]);
        assert_eq!(rules(LIBRARY, "#![allow(unused)]"), ["allow"]);
        assert_eq!(rules(LIBRARY, "#![expect(unused, reason = \"x\")]"), ["allow"]);
        assert_eq!(rules(LIBRARY, "#[allow(unused, reason = \"x\")] fn a() {}"), ["allow"]);
        assert_eq!(rules(LIBRARY, "const A: &str = \"/dev/shm/x\";"), ["names"]);
    }

    #[test]
    fn clean_code_passes() {
        assert_eq!(
            rules(
                LIBRARY,
                "//! /dev/shm, dbg!\nfn a() { b().unwrap_or(1); } #[expect(unused, reason = \"x\")] fn c() {}"
            ),
            [""; 0]
        );
        assert_eq!(rules(PROGRAM, "fn a() { println!(\"result\"); }"), [""; 0]);
        assert_eq!(rules("crates/control/build.rs", "fn main() { println!(\"cargo::rerun-if-changed=a\"); }"), [""; 0]);
        assert_eq!(rules(LIBRARY, "fn a() { std::thread::sleep(b); }"), [""; 0]);
        assert_eq!(rules(LIBRARY, "macro_rules! a { () => { #[allow(unused, reason = \"x\")] fn b() {} } }"), [""; 0]);
    }

    #[test]
    fn tests_may_unwrap_and_print_but_not_sleep() {
        assert_eq!(rules(SUITE, "fn a() { println!(\"{}\", b().unwrap()); }"), [""; 0]);
        assert_eq!(rules(SUITE, "fn a() { std::thread::sleep(b); }"), ["sleep"]);
        assert_eq!(rules(SUITE, "use std::thread::{self, sleep};"), ["sleep"]);
        assert_eq!(rules(SUITE, "async fn a() { tokio::time::sleep(b).await; }"), ["sleep"]);
        assert_eq!(rules(LIBRARY, "#[cfg(test)] mod tests { #[test] fn a() { std::thread::sleep(b); } }"), ["sleep"]);
    }

    #[test]
    fn an_exemption_with_a_reason_passes() {
        assert_eq!(
            rules(SUITE, "// tidy(sleep): the kernel has no event for this\nfn a() { std::thread::sleep(b); }"),
            [""; 0]
        );
    }
}
