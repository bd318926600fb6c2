//! `unsafe`: where it may stand, and that each one is argued.
//!
//! Outside the few folders below, every crate says `#![forbid(unsafe_code)]` and the word appears nowhere, tests and
//! examples included. Inside them each unsafe block and impl has a `// SAFETY:` comment; clippy asks the same of blocks,
//! this check also sees code that is compiled on other machines or under other cfgs.

use super::Finding;
use crate::tree::{RustFile, TokenKind, Tree};

const RULE: &str = "unsafe";

/// Beginnings of the folders that may hold unsafe code.
const ALLOWED: [&str; 4] = ["crates/shm/", "crates/platform", "crates/link/", "abi/"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.rust {
        if ALLOWED.iter().any(|folder| file.path.starts_with(folder)) {
            findings.extend(unargued(file));
            continue;
        }
        if is_crate_root(&file.path) && !forbids(file) {
            findings.push(Finding::error(RULE, &file.path, 1, "needs `#![forbid(unsafe_code)]`"));
        }
        for token in file.tokens.iter().filter(|token| token.kind == TokenKind::Word && token.text == "unsafe") {
            let text = "unsafe code lives in isthmus-shm, isthmus-platform*, isthmus-link and abi/ only";
            findings.push(Finding::error(RULE, &file.path, token.line, text));
        }
    }
    findings
}

/// `lib.rs` and `main.rs` of a package, and the binaries beside them.
fn is_crate_root(path: &str) -> bool {
    let Some((folder, name)) = path.rsplit_once('/') else { return false };
    folder.ends_with("src/bin") || (folder.ends_with("src") && (name == "lib.rs" || name == "main.rs"))
}

fn forbids(file: &RustFile) -> bool {
    let wanted = ["#", "!", "[", "forbid", "(", "unsafe_code", ")", "]"];
    (0..file.tokens.len()).any(|at| file.matches(at, &wanted))
}

fn unargued(file: &RustFile) -> impl Iterator<Item = Finding> + '_ {
    let words =
        file.tokens.iter().enumerate().filter(|(_, token)| token.kind == TokenKind::Word && token.text == "unsafe");
    words.filter_map(|(at, token)| {
        let next = file.tokens.get(at + 1).map_or("", |next| next.text.as_str());
        let bad = (next == "{" || next == "impl") && !is_argued(file, token.line);
        bad.then(|| Finding::error(RULE, &file.path, token.line, "needs a `// SAFETY:` comment that proves it"))
    })
}

/// Looks up from the line of the word to the start of its statement, then at the comment above that.
fn is_argued(file: &RustFile, line: usize) -> bool {
    if file.line(line).contains("// SAFETY:") {
        return true;
    }
    let mut above = line - 1;
    while above > 0 {
        if file.is_comment(above) {
            return file.comment_ending_at(above).contains("SAFETY:");
        }
        let code = file.line(above).trim_end();
        let is_attribute = code.trim_start().starts_with("#[");
        if !is_attribute && (code.is_empty() || code.ends_with([';', '{', '}'])) {
            return false;
        }
        above -= 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::render;

    fn findings(path: &str, text: &str) -> Vec<String> {
        render(&check(&Tree::of(&[(path, text)])))
    }

    const HERE: &str = "crates/shm/src/window.rs";

    #[test]
    fn a_crate_without_forbid_is_refused() {
        assert_eq!(findings("crates/client/src/lib.rs", "").len(), 1);
        assert_eq!(findings("bin/isthmusd/src/main.rs", "#![warn(unsafe_code)] fn main() {}").len(), 1);
        assert_eq!(findings("bin/isthmusd/src/main.rs", "#![forbid(unsafe_code)] fn main() {}"), [""; 0]);
        assert_eq!(findings("crates/shm/src/lib.rs", ""), [""; 0]);
    }

    #[test]
    fn the_word_is_refused_where_it_may_not_stand() {
        for text in
            ["fn a() { unsafe { b() } }", "#[unsafe(no_mangle)] fn a() {}", "macro_rules! a { () => { unsafe {} } }"]
        {
            assert_eq!(findings("crates/client/src/mesh.rs", text).len(), 1, "{text}");
            assert_eq!(findings("tests/suites/tests/mesh.rs", text).len(), 1, "{text}");
        }
        assert_eq!(findings("crates/client/src/mesh.rs", "// unsafe\nconst A: &str = \"unsafe\";"), [""; 0]);
    }

    #[test]
    fn an_unargued_block_is_refused() {
        assert_eq!(findings(HERE, "fn a() {\n    unsafe { b() }\n}").len(), 1);
        assert_eq!(findings(HERE, "// SAFETY: far away.\nfn a() {\n    unsafe { b() }\n}").len(), 1);
        assert_eq!(findings(HERE, "struct A;\nunsafe impl Send for A {}").len(), 1);
        assert_eq!(findings(HERE, "fn a() {\n    // Fast.\n    unsafe { b() }\n}").len(), 1);
    }

    #[test]
    fn an_argued_block_passes() {
        assert_eq!(findings(HERE, "fn a() {\n    // SAFETY: b asks nothing.\n    unsafe { b() }\n}"), [""; 0]);
        assert_eq!(
            findings(HERE, "fn a() {\n    // SAFETY: b asks\n    // nothing.\n    let c =\n        unsafe { b() };\n}"),
            [""; 0]
        );
        assert_eq!(findings(HERE, "// SAFETY: no pointers.\n#[cfg(unix)]\nunsafe impl Send for A {}"), [""; 0]);
        assert_eq!(
            findings(HERE, "/// # Safety\n///\n/// Yes.\nunsafe fn a() {}\n#[unsafe(no_mangle)]\nfn b() {}"),
            [""; 0]
        );
    }
}
