//! The tests quote the words; the rule skips this file.

use super::*;
use crate::tidy::{Level, render};

const MANIFEST: (&str, &str) = ("crates/x/Cargo.toml", "[package]\nname = \"isthmus-x\"\n");
const LIB: &str = "crates/x/src/lib.rs";

/// The places of one package with this source, as `line: class: word`.
fn places(source: &str) -> Vec<String> {
    let tallies = tallies(&Tree::of(&[MANIFEST, (LIB, source)]));
    let lines = table::occurrences(&tallies["isthmus-x"]);
    lines.iter().map(|line| line.strip_prefix("crates/x/src/lib.rs:").unwrap().to_owned()).collect()
}

fn findings(source: &str, ratchet: &str) -> Vec<Finding> {
    check(&Tree::of(&[MANIFEST, (LIB, source)]), ratchet)
}

#[test]
fn counts_pronouns_in_comments_strings_and_block_comments() {
    assert_eq!(places("// Tells who waits.\nfn a() {}"), ["1: pronoun: who"]);
    assert_eq!(places("fn a() { b() } // Nobody, not this."), ["1: pronoun: nobody"]);
    assert_eq!(places("const A: &str = \"\\nwhose \\\n  his\";"), ["1: pronoun: whose", "2: pronoun: his"]);
    assert_eq!(places("const A: &str = r#\"a \"who\" b\"#;"), ["1: pronoun: who"]);
    assert_eq!(places("/* a /* b */\n * whom */\nfn a() {}"), ["2: pronoun: whom"]);
}

#[test]
fn counts_no_pronouns_in_code_or_parts_of_words() {
    assert_eq!(places("fn who() { let c = ('\"', '\\'', 'w'); nobody::<'static>(c) }"), [""; 0]);
    assert_eq!(places("// The `who` of this wholly shelved who_list."), [""; 0]);
    assert_eq!(places("/// Sends.\n///\n/// ```\n/// who();\n/// ```\nfn a() {}"), [""; 0]);
    assert_eq!(places("fn a(r#who: u8) {}"), [""; 0]);
}

#[test]
fn counts_beginnings_of_doc_comments_in_their_first_line() {
    assert_eq!(places("/// It waits.\n/// It sends.\nfn a() {}"), ["1: beginning: it"]);
    assert_eq!(places("//! The same as\n\n/// What a ring is.\nfn a() {}").len(), 2);
    assert_eq!(places("/// Its size.\n///\n/// That is all.\nfn a() {}"), [""; 0]);
    assert_eq!(places("// It waits.\nfn a() {}"), [""; 0]);
    assert_eq!(places("/// As. Above\nfn a() {}"), [""; 0]);
}

#[test]
fn counts_beginnings_of_messages() {
    assert_eq!(places("fn a() { warn!(b, c = \"it\", \"its daemon hangs\"); }"), ["1: beginning: its"]);
    assert_eq!(places("fn a() { tracing::info!(\n\"They left, {b}\"); }"), ["2: beginning: they"]);
    assert_eq!(places("#[derive(Debug)]\nenum A { #[error(\"it is {0}\")] B(u8) }"), ["2: beginning: it"]);
    assert_eq!(places("fn a() { Refusal::new(b(\"it\"), format!(\"what {c} is\")) }"), ["1: beginning: what"]);
    assert_eq!(places("fn a() { b().with_context(|| format!(\"its {c}\")) }"), ["1: beginning: its"]);
    assert_eq!(places("fn a() { bail!(r#\"it is\"#) }"), ["1: beginning: it"]);
    assert_eq!(places("cold_reasons! { A, \"it-a\": \"it is\"; \"Wait.\"; }").len(), 2);
}

#[test]
fn counts_no_beginnings_of_other_strings() {
    assert_eq!(places("fn a() { b(\"it is\"); warn!(\"guest {b}: its daemon hangs\", c(\"it\")); }"), [""; 0]);
    assert_eq!(places("#[error(transparent)] struct A; fn a() { bail!(b'i'); bail!(\"item {}\", 1) }"), [""; 0]);
}

#[test]
fn counts_phrases_across_lines_but_not_across_marks() {
    assert_eq!(places("// Sends so\n// many of them."), ["1: phrase: so many"]);
    assert_eq!(places("// The how-manieth one."), ["1: phrase: how manieth"]);
    assert_eq!(places("// If so, many of them.\n\n// Or so\n//\n// many."), [""; 0]);
}

#[test]
fn counts_retired_names_whole_and_in_part() {
    let found = places("mod stranger;\nfn a(b: StrangerId) { LAST_STRANGER }\n// A stranger.");
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[1].starts_with("2: retired: StrangerId (now: "), "{found:?}");
    assert_eq!(places("fn strangest() {}"), [""; 0]);
}

#[test]
fn counts_markdown_without_its_code() {
    let text = "Who?\n\n```\nwho\n```\n\nA `who\nhis` b.\n";
    let tree = Tree::of(&[("README.md", text), ("docs/design/glossary.md", text)]);
    let tallies = tallies(&tree);
    assert_eq!(tallies.keys().collect::<Vec<_>>(), ["README.md"]);
    assert_eq!(table::occurrences(&tallies["README.md"]), ["README.md:1: pronoun: who"]);
}

#[test]
fn counts_comments_of_the_kernel_module() {
    let tallies = tallies(&Tree::of(&[("kmod/a.c", "/* whose */\nchar *a = \"who\";"), ("examples/a.c", "// who")]));
    assert_eq!(tallies.keys().collect::<Vec<_>>(), ["kmod"]);
    assert_eq!(tallies["kmod"].counts(), [1, 0, 0, 0]);
}

#[test]
fn an_inner_package_counts_for_itself() {
    let inner = ("crates/x/y/Cargo.toml", "[package]\nname = \"isthmus-y\"\n");
    let tallies = tallies(&Tree::of(&[MANIFEST, inner, ("crates/x/y/src/lib.rs", "// who")]));
    assert_eq!(tallies.keys().collect::<Vec<_>>(), ["isthmus-y"]);
}

#[test]
fn names_the_places_of_a_count_above_its_entry() {
    let source = "// who\nfn a() {}\n// his\n";
    assert_eq!(render(&findings(source, "2 0 0 0 isthmus-x")), [""; 0]);
    let expected = [
        "crates/x/src/lib.rs:1 pronoun: who; isthmus-x may have 1",
        "crates/x/src/lib.rs:3 pronoun: his; isthmus-x may have 1",
    ];
    assert_eq!(render(&findings(source, "1 0 0 0 isthmus-x")), expected);
    assert_eq!(findings(source, "").len(), 2);
    assert_eq!(findings(source, "2 0 0 0 isthmus-y").len(), 2);
}

#[test]
fn names_only_the_number_of_many_places() {
    let source = "// who\nfn a() {}\n".repeat(11);
    let found = render(&findings(&source, "10 0 0 0 isthmus-x"));
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("pronoun: 11, allowed 10"), "{found:?}");
}

#[test]
fn notes_a_count_below_its_entry() {
    let found = findings("// who\n", "2 0 0 0 isthmus-x");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].level, Level::Warning);
}

#[test]
fn blessing_lowers_counts_and_raises_none() {
    let blessed = |ratchet| shrink(ratchet, &Tree::of(&[MANIFEST, (LIB, "// who of sense\n")]));
    let entries = |ratchet| blessed(ratchet).strip_prefix(HEADER).unwrap().to_owned();
    assert_eq!(entries("5 3 0 0 isthmus-x"), entry("isthmus-x", [1, 0, 0, 0]));
    assert_eq!(entries("0 1 0 0 isthmus-x"), "");
    assert_eq!(entries("5 0 0 0 isthmus-gone"), "");
    assert_eq!(entries(""), "");
}

#[test]
fn the_table_ends_with_a_total() {
    let tree =
        Tree::of(&[MANIFEST, (LIB, "/// It is who I am.\nfn a() { b(\"who\") }"), ("README.md", "Who reads this")]);
    let table = table::table(&tallies(&tree));
    let total: Vec<&str> = table.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(total, ["3", "1", "0", "0", "250.0", "100.0%", "total"]);
}
