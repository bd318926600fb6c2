//! Patterns for names.

use isthmus_layout::limits::NAME_BYTES_MAX;

use crate::problem::Finding;
use crate::setting::{ConfigValue, Setting};

/// A pattern for names: `*` is any run of characters, `?` is one, all others are themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    const BYTES_MAX: usize = NAME_BYTES_MAX;

    pub(super) fn any() -> Self {
        Self("*".to_owned())
    }

    /// The pattern of a part of a path, which is checked as a whole.
    pub(super) fn segment(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Whether every name matches.
    pub(super) fn is_any(&self) -> bool {
        self.0.chars().all(|character| character == '*')
    }

    /// Whether each name that matches `other` matches this pattern. May be false although it is so.
    pub(super) fn covers(&self, other: &Self) -> bool {
        // A `?` of this pattern stands for one character, and a `*` of the other may be several.
        self.matches_with(&other.0, |character| character != '*')
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `name` is one of those. Costs at most the product of both lengths, whatever the pattern.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.matches_with(name, |_| true)
    }

    /// Matches `name`, in which a `?` of the pattern stands for one of the characters that `is_one` admits.
    fn matches_with(&self, name: &str, is_one: impl Fn(char) -> bool) -> bool {
        let (pattern, name): (Vec<char>, Vec<char>) = (self.0.chars().collect(), name.chars().collect());
        let (mut at, mut seen) = (0, 0);
        // Behind the last star, and how much of the name was seen when it took one character more.
        let mut star = None;
        while seen < name.len() {
            match (pattern.get(at), star) {
                (Some('*'), _) => {
                    at += 1;
                    star = Some((at, seen));
                }
                (Some(&wanted), _) if (wanted == '?' && is_one(name[seen])) || wanted == name[seen] => {
                    (at, seen) = (at + 1, seen + 1);
                }
                (_, Some((behind, taken))) => {
                    (at, seen) = (behind, taken + 1);
                    star = Some((at, seen));
                }
                _ => return false,
            }
        }
        pattern[at..].iter().all(|&rest| rest == '*')
    }
}

impl Setting for Glob {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        format!("a name or pattern (* and ?) of 1 to {} bytes without spaces", Self::BYTES_MAX)
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let fits = (1..=Self::BYTES_MAX).contains(&text.len())
            && !text.contains(|c: char| c.is_whitespace() || c.is_control());
        if !fits {
            findings.push(item.wrong_text(&Self::expected(), None));
        }
        fits.then(|| Self(text.to_owned()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.as_str().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glob_matches_stars_and_question_marks() {
        let cases = [
            ("*", "", true),
            ("*", "abc", true),
            ("web-*", "web-1", true),
            ("web-*", "web", false),
            ("*-db", "a-db-db", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?", "ü", true),
            ("?", "", false),
            ("a?c", "abc", true),
            ("**", "x", true),
            ("abc", "abcd", false),
            ("", "", true),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(Glob(pattern.to_owned()).matches(name), expected, "{pattern} on {name}");
        }
    }

    #[test]
    fn glob_with_many_stars_takes_few_steps() {
        let pattern = Glob("a*".repeat(32));
        assert!(!pattern.matches(&format!("{}b", "a".repeat(31))));
        assert!(!Glob(format!("{}b", "*a".repeat(30))).matches(&"a".repeat(4096)));
    }

    #[test]
    fn pattern_covers_a_pattern_whose_names_all_match() {
        let cases = [
            ("*", "*", true),
            ("web-*", "web-*", true),
            ("web-*", "web-a*", true),
            ("web-*", "web-?", true),
            ("web-?", "web-?", true),
            ("web-?", "web-*", false),
            ("web-?", "web-1", true),
            ("web-1", "web-?", false),
            ("web-*", "we*", false),
            ("web-*", "*", false),
            ("*-db", "a*-db", true),
            ("*-db", "a*", false),
            ("a", "a", true),
        ];
        for (pattern, other, expected) in cases {
            let [pattern, other] = [pattern, other].map(|text| Glob(text.to_owned()));
            assert_eq!(pattern.covers(&other), expected, "{pattern:?} and {other:?}");
        }
    }
}
