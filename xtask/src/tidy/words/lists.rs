//! Reads the lists of words. They are text files, so that the rule does not count them.

use std::collections::{BTreeMap, BTreeSet};

const PROSE: &str = include_str!("prose.txt");
const RETIRED: &str = include_str!("retired.txt");

/// The words that the rule counts.
pub(super) struct Lists {
    pub(super) pronouns: BTreeSet<&'static str>,
    pub(super) beginnings: Vec<Vec<&'static str>>,
    /// Further words that no message begins with.
    pub(super) openings: Vec<Vec<&'static str>>,
    pub(super) phrases: Vec<Vec<&'static str>>,
    /// Parts of names, in lower case, with their replacement.
    parts: BTreeMap<&'static str, &'static str>,
    /// Whole names with their replacement.
    names: BTreeMap<&'static str, &'static str>,
    /// Names of other crates and those crates.
    kept: BTreeMap<&'static str, &'static str>,
}

impl Lists {
    pub(super) fn new() -> Self {
        Self {
            pronouns: rows(PROSE, "pronoun").collect(),
            beginnings: rows(PROSE, "beginning").map(split).collect(),
            openings: rows(PROSE, "opening").map(split).collect(),
            phrases: rows(PROSE, "phrase").map(split).collect(),
            parts: rows(RETIRED, "part").filter_map(pair).collect(),
            names: rows(RETIRED, "name").filter_map(pair).collect(),
            kept: rows(RETIRED, "keep").filter_map(pair).collect(),
        }
    }

    /// Returns the name that replaces a retired name; `None` if the name is not retired.
    pub(super) fn replacement(&self, name: &str) -> Option<&'static str> {
        if self.kept.contains_key(name) {
            return None;
        }
        let whole = self.names.get(name).copied();
        whole.or_else(|| parts(name).iter().find_map(|part| self.parts.get(part.as_str()).copied()))
    }
}

/// The rows of one kind in a list, without the kind.
fn rows(list: &'static str, kind: &'static str) -> impl Iterator<Item = &'static str> {
    list.lines().filter_map(move |line| line.strip_prefix(kind)?.strip_prefix(' ')).map(str::trim)
}

fn split(phrase: &'static str) -> Vec<&'static str> {
    phrase.split(' ').collect()
}

fn pair(row: &'static str) -> Option<(&'static str, &'static str)> {
    row.split_once(' ').map(|(name, instead)| (name, instead.trim()))
}

/// The parts of a name in snake case or camel case, in lower case.
pub(crate) fn parts(name: &str) -> Vec<String> {
    let signs: Vec<char> = name.chars().collect();
    let mut parts = vec![String::new()];
    for (at, sign) in signs.iter().enumerate() {
        let follows_lower = at > 0 && !signs[at - 1].is_uppercase();
        let precedes_lower = signs.get(at + 1).is_some_and(|next| next.is_lowercase());
        if *sign == '_' || (sign.is_uppercase() && (follows_lower || precedes_lower)) {
            parts.push(String::new());
        }
        if *sign != '_' {
            parts.last_mut().expect("never empty").extend(sign.to_lowercase());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_names_at_underscores_and_capitals() {
        assert_eq!(parts("RING_BYTES"), ["ring", "bytes"]);
        assert_eq!(parts("MxRingBytes2"), ["mx", "ring", "bytes2"]);
        assert_eq!(parts("_ring_of"), ["ring", "of"]);
        assert_eq!(parts("MXRing"), ["mx", "ring"]);
    }

    #[test]
    fn reads_every_row_of_the_lists() {
        let lists = Lists::new();
        let read = lists.pronouns.len() + lists.beginnings.len() + lists.openings.len() + lists.phrases.len();
        let rows = |list: &str| list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
        assert_eq!(read, rows(PROSE));
        assert_eq!(lists.parts.len() + lists.names.len() + lists.kept.len(), rows(RETIRED));
    }

    #[test]
    fn finds_whole_names_and_parts_of_names() {
        let (part, instead) = Lists::new().parts.pop_first().unwrap();
        let lists = Lists::new();
        assert_eq!(lists.replacement(&format!("a_{part}_b")), Some(instead));
        assert_eq!(lists.replacement(&format!("A_{}", part.to_uppercase())), Some(instead));
        assert_eq!(lists.replacement(&format!("a{part}")), None);
        let (name, instead) = lists.names.first_key_value().unwrap();
        assert_eq!(lists.replacement(name), Some(*instead));
        assert_eq!(lists.replacement(&format!("{name}zzz")), None);
    }

    #[test]
    fn keeps_names_of_other_crates_that_have_a_retired_part() {
        let lists = Lists::new();
        for name in lists.kept.keys() {
            assert!(parts(name).iter().any(|part| lists.parts.contains_key(part.as_str())), "{name}");
            assert_eq!(lists.replacement(name), None);
        }
    }
}
