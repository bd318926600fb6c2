//! Each memory ordering has a letter, and names its partner.
//!
//! In isthmus-shm a line with an ordering stronger than `Relaxed`, or with a fence, stands below a comment such as
//! `// A, with B in push (modelled): …`, at most [`LABEL_DISTANCE_MAX`] lines away. The partner must be there too and name the letter
//! in return: in the same file, or in another one of the crate if the comment names that file (`… in doorbell.rs`).

use std::collections::BTreeSet;

use super::Finding;
use crate::tree::{RustFile, Tree};

const RULE: &str = "orderings";

/// Where orderings are argued.
const FOLDER: &str = "crates/shm/src/";

/// Fences: a fence itself, one between loads, one that costs nothing, and the heavy fence that it relies on.
const FENCES: [&str; 4] = ["fence", "load_fence", "light_fence", "heavy_fence"];

const STRONG: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];

/// Lines between an ordering and the end of its comment.
const LABEL_DISTANCE_MAX: usize = 3;

/// One lettered comment: its letter and the partners it names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OrderingLabel {
    letter: String,
    partners: Vec<String>,
    /// Its comment names another file.
    elsewhere: bool,
}

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut labels: Vec<(&RustFile, usize, OrderingLabel)> = Vec::new();
    for file in tree.rust.iter().filter(|file| file.path.starts_with(FOLDER)) {
        for line in ordering_lines(file) {
            let here = labels_at(file, line);
            if here.is_empty() {
                let text = "an ordering needs its letter: `// A, with B in …: why`, within 3 lines above";
                findings.push(Finding::error(RULE, &file.path, line, text));
            }
            labels.extend(here.into_iter().map(|label| (file, line, label)));
        }
    }
    for (file, line, label) in &labels {
        for partner in &label.partners {
            let answers = |(other, _, found): &(&RustFile, usize, OrderingLabel)| {
                let near = other.path == file.path || label.elsewhere || found.elsewhere;
                near && found.letter == *partner && found.partners.contains(&label.letter)
            };
            if !labels.iter().any(answers) {
                let text =
                    format!("{} names {partner}, but no ordering is `{partner}, with {}`", label.letter, label.letter);
                findings.push(Finding::error(RULE, &file.path, *line, text));
            }
        }
    }
    findings
}

/// Lines of code, not test, that use a strong ordering or a fence. Names in a `use`, in patterns, and the bodies of
/// functions called as fences are (they are what a lettered `.fence()` calls) are no uses.
fn ordering_lines(file: &RustFile) -> BTreeSet<usize> {
    let mut lines = BTreeSet::new();
    let (mut in_use, mut in_fence, mut depth) = (false, None, 0_usize);
    for (at, token) in file.tokens.iter().enumerate() {
        match token.text.as_str() {
            "use" => in_use = true,
            ";" => in_use = false,
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                in_fence = in_fence.filter(|fence| *fence < depth);
            }
            _ => {}
        }
        if FENCES.iter().any(|fence| file.matches(at, &["fn", fence])) {
            in_fence = Some(depth);
        }
        let is_pattern = ["|", "="].iter().any(|sign| file.matches(at + 1, &[sign]));
        let is_strong = STRONG.contains(&token.text.as_str()) && !in_use && !is_pattern;
        let is_fence = FENCES.iter().any(|fence| file.matches(at, &[".", fence, "("]));
        if (is_strong || is_fence) && in_fence.is_none() && !file.is_test(token.line) {
            lines.insert(token.line);
        }
    }
    lines
}

/// The labels in the comments that belong to a line: beside it, or above it in reach and not beyond another statement
/// that ends with an ordering of its own.
fn labels_at(file: &RustFile, line: usize) -> Vec<OrderingLabel> {
    let beside = file.line(line).split_once("//").map_or("", |(_, comment)| comment);
    let mut found = labels_in(beside);
    for above in (line.saturating_sub(LABEL_DISTANCE_MAX)..line).rev() {
        if file.is_comment(above) {
            found.extend(labels_in(&file.comment_ending_at(above)));
            break;
        }
        let code = file.line(above).trim_end();
        if STRONG.iter().any(|strong| code.contains(strong)) && code.ends_with(';') {
            break;
        }
    }
    found
}

/// Reads `A, with B and C in …` out of a comment, as often as it says so.
fn labels_in(comment: &str) -> Vec<OrderingLabel> {
    let words: Vec<&str> = comment.split_whitespace().collect();
    let elsewhere = comment.contains(".rs");
    let mut labels = Vec::new();
    for at in 1..words.len() {
        let Some(letter) = words[at - 1].strip_suffix(',').filter(|word| is_letter(word)) else { continue };
        if words[at] != "with" {
            continue;
        }
        let partners = words[at + 1..].iter().map(|word| word.trim_end_matches([',', ':', '.', ';']));
        let partners = partners.take_while(|word| is_letter(word) || *word == "and").filter(|word| *word != "and");
        let partners: Vec<String> = partners.map(str::to_owned).collect();
        if !partners.is_empty() {
            labels.push(OrderingLabel { letter: letter.to_owned(), partners, elsewhere });
        }
    }
    labels
}

/// `A`, or `A1`.
fn is_letter(word: &str) -> bool {
    let mut signs = word.chars();
    signs.next().is_some_and(|first| first.is_ascii_uppercase()) && signs.all(|sign| sign.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::render;

    const RING: &str = "crates/shm/src/ring.rs";

    fn findings(text: &str) -> Vec<String> {
        render(&check(&Tree::of(&[(RING, text)])))
    }

    const PUSH: &str = "fn push() {\n    // B, with A in `pop` (modelled): the slot before the tail.\n    m.store(TAIL, t, Release);\n}\n";
    const POP: &str = "fn pop() {\n    // A, with B in `push` (modelled): a slot below\n    // tail is whole.\n    let t = m.load(TAIL, Acquire);\n}\n";

    #[test]
    fn a_pair_that_names_each_other_passes() {
        assert_eq!(findings(&format!("{PUSH}{POP}")), [""; 0]);
    }

    #[test]
    fn an_ordering_without_a_letter_fails() {
        assert_eq!(findings("fn a() {\n    m.load(TAIL, Acquire);\n}").len(), 1);
        assert_eq!(findings("fn a() {\n    // Needed.\n    m.load(TAIL, Ordering::SeqCst);\n}").len(), 1);
        assert_eq!(findings("fn a() {\n    m.fence();\n}").len(), 1);
        let far = "fn a() {\n    // A, with A in `a`: x\n    b();\n    b();\n    b();\n    m.fence();\n}";
        assert_eq!(findings(far).len(), 1);
    }

    #[test]
    fn a_letter_without_its_partner_fails() {
        assert_eq!(findings(PUSH).len(), 1);
        let silent = POP.replace("with B", "with C");
        assert_eq!(findings(&format!("{PUSH}{silent}")).len(), 2);
    }

    #[test]
    fn one_comment_does_not_cover_the_next_statement() {
        let text = format!("{PUSH}{POP}").replace("Release);\n", "Release);\n    m.store(HEAD, t, Release);\n");
        assert_eq!(findings(&text).len(), 1);
    }

    #[test]
    fn partners_in_another_file_are_found_when_it_is_named() {
        let push = PUSH.replace("`pop`", "doorbell.rs");
        let tree = |push: &str| Tree::of(&[(RING, push), ("crates/shm/src/doorbell.rs", POP)]);
        assert_eq!(render(&check(&tree(&push))), [""; 0]);
        assert_eq!(check(&tree(PUSH)).len(), 2);
    }

    #[test]
    fn names_patterns_and_memories_are_no_uses() {
        let text = "use std::sync::atomic::Ordering::{Acquire, SeqCst};\nimpl Words for W {\n    fn fence(&self) { fence(SeqCst) }\n}\n\
                    fn a(o: Ordering) -> bool { match o { Acquire | AcqRel => true, Release => false } }";
        assert_eq!(findings(text), [""; 0]);
        assert_eq!(findings("#[cfg(test)]\nmod tests {\n    fn a() { m.load(0, Acquire); }\n}"), [""; 0]);
    }

    #[test]
    fn several_partners_are_read() {
        let label = OrderingLabel { letter: "A".into(), partners: vec!["B".into(), "C2".into()], elsewhere: false };
        assert_eq!(labels_in("A, with B and C2 in `pop` (argued)"), [label]);
        assert_eq!(labels_in("A slot, with B bytes"), []);
    }
}
