//! The table holds together, and `docs/operate/reasons.md` shows what it says. `UPDATE=1 cargo test -p isthmus-layout` writes the page.

use super::*;
use alloc::format;
use alloc::string::String;

extern crate std;

#[test]
fn codes_and_names_are_unique_and_found_again() {
    for (index, &reason) in Reason::ALL.iter().enumerate() {
        assert_eq!(Reason::from_code(reason.code()), Some(reason));
        assert_eq!(Reason::from_name(reason.name()), Some(reason), "two reasons are called {reason}");
        assert!(index == 0 || Reason::ALL[index - 1].code() < reason.code(), "{reason} is out of order");
    }
    assert_eq!(Reason::from_code(0), None);
    assert_eq!(Reason::from_name("unknown"), None);
}

#[test]
fn texts_are_parts_of_sentences() {
    for reason in Reason::ALL {
        assert!(reason.name().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{reason}");
        assert!(!reason.summary().ends_with('.') && !reason.summary().starts_with(char::is_uppercase), "{reason}");
        assert!(reason.remedy().ends_with('.') && reason.remedy().starts_with(char::is_uppercase), "{reason}");
    }
}

/// `NameTaken` is `name-taken`: one word for one thing, everywhere.
#[test]
fn names_are_those_of_the_variants() {
    for reason in Reason::ALL {
        let mut kebab = String::new();
        for character in format!("{reason:?}").chars() {
            if character.is_uppercase() && !kebab.is_empty() {
                kebab.push('-');
            }
            kebab.extend(character.to_lowercase());
        }
        assert_eq!(kebab, reason.name());
    }
}

fn page() -> String {
    let mut page = String::from(
        "# Reasons\n\n\
         Every refusal, every slower path, every fault and every end has one of these reasons. The identifier stands in JSON (`reason`), in\n\
         metric labels (`reason=\"…\"`), in log lines and in the messages of `isthmus why`; the code stands in control messages.\n\n\
         | kind | meaning |\n| --- | --- |\n\
         | refusal | something that was asked for is not done |\n\
         | fallback | it is done, by a slower path |\n\
         | fault | a peer violated the protocol: what it shared is closed, and the fault is counted |\n\
         | ended | something that was there is over |\n\n\
         This page is printed from `crates/layout/src/reason/table.rs` by `UPDATE=1 cargo test -p isthmus-layout reason`.\n",
    );
    for reason in Reason::ALL {
        if let Some((_, group)) = table::GROUPS.iter().find(|(code, _)| *code == reason.code()) {
            page.push_str(&format!("\n## {}\n", group.trim()));
        }
        let (name, kind, summary) = (reason.name(), reason.kind().name(), reason.summary());
        page.push_str(&format!(
            "\n### {name}\n\n*{kind}, code {}*: {summary}.\n\n{}\n",
            reason.code(),
            reason.remedy()
        ));
    }
    page
}

#[test]
fn the_page_shows_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/reasons.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    let stands = std::fs::read_to_string(path).unwrap_or_default();
    assert!(stands == page(), "docs/operate/reasons.md is not what the table says: run with UPDATE=1");
}
