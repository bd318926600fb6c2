//! The origin of a value: the sources, and places in them.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use serde::Serialize;

/// The origin of the value in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Origin {
    /// The value was not set.
    Default,
    /// The configuration file.
    File {
        /// The path of the file.
        path: PathBuf,
        /// The line, counted from 1; 0 means the whole file.
        line: usize,
        /// The column in characters, counted from 1; 0 means the whole file.
        column: usize,
    },
    /// A variable of the daemon's environment.
    Environment {
        /// `ISTHMUS_…`.
        variable: String,
    },
    /// `--set key=value`.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line: 0, .. } => write!(f, "{}", path.display()),
            Self::File { path, line, .. } => write!(f, "{}:{line}", path.display()),
            Self::Environment { variable } => write!(f, "environment {variable}"),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

/// A source of values: the file, one variable, one `--set`, or one default.
pub(super) struct Source {
    pub(super) from: SourceKind,
    /// The text that is shown before the value, so that it looks as its writer wrote it.
    prefix: String,
    pub(super) text: String,
    /// The positions of the ends of lines.
    newlines: Vec<usize>,
}

/// The kind of a source.
pub(super) enum SourceKind {
    Default,
    File(PathBuf),
    Environment(String),
    CommandLine,
}

impl Source {
    pub(super) fn new(from: SourceKind, prefix: impl Into<String>, text: impl Into<String>) -> Self {
        let text = text.into();
        let newlines = text.match_indices('\n').map(|(at, _)| at).collect();
        Self { from, prefix: prefix.into(), text, newlines }
    }

    /// The line of byte `at`, counted from 0.
    pub(super) fn line(&self, at: usize) -> usize {
        self.newlines.partition_point(|&newline| newline < at)
    }

    /// The lines that begin a table.
    pub(super) fn header_lines(&self) -> Vec<usize> {
        let lines = self.text.split('\n').enumerate();
        lines.filter(|(_, line)| line.trim_start().starts_with('[')).map(|(number, _)| number).collect()
    }

    fn line_start(&self, line: usize) -> usize {
        line.checked_sub(1).map_or(0, |before| self.newlines[before] + 1)
    }

    /// The place of byte `at` of this text, or the text as a whole.
    pub(super) fn origin(&self, at: Option<usize>) -> Origin {
        match &self.from {
            SourceKind::Default => Origin::Default,
            SourceKind::Environment(variable) => Origin::Environment { variable: variable.clone() },
            SourceKind::CommandLine => Origin::CommandLine,
            SourceKind::File(path) => {
                let (line, column) = at.map_or((0, 0), |at| {
                    let at = floor_char(&self.text, at);
                    let line = self.line(at);
                    (line + 1, self.text[self.line_start(line)..at].chars().count() + 1)
                });
                Origin::File { path: path.clone(), line, column }
            }
        }
    }

    /// The line around `span`, with the span underlined.
    pub(super) fn excerpt(&self, span: &Range<usize>) -> Excerpt {
        let start = floor_char(&self.text, span.start);
        let line = self.line(start);
        let line_start = self.line_start(line);
        let line_end = self.newlines.get(line).copied().unwrap_or(self.text.len());
        let end = floor_char(&self.text, span.end).clamp(start, line_end);
        let number = matches!(self.from, SourceKind::File(_)).then_some(line + 1);
        let prefix = if line == 0 { self.prefix.as_str() } else { "" };
        let before = format!("{prefix}{}", printable(&self.text[line_start..start]));
        let after = &self.text[end..line_end];
        Excerpt::cropped(number, &before, &printable(&self.text[start..end]), &printable(after))
    }
}

/// A line of a source with a part of it marked, safe to print on a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    number: Option<usize>,
    before: String,
    marked: String,
    after: String,
}

impl Excerpt {
    /// Characters shown of each of the three parts.
    const PART_CHARS_MAX: usize = 60;

    fn cropped(number: Option<usize>, before: &str, marked: &str, after: &str) -> Self {
        let skipped = before.chars().count().saturating_sub(Self::PART_CHARS_MAX);
        let before = match before.char_indices().nth(skipped) {
            Some((from, _)) if skipped > 0 => format!("…{}", &before[from..]),
            _ => before.to_owned(),
        };
        let after = if marked.chars().count() > Self::PART_CHARS_MAX { "" } else { after.trim_end() };
        let (marked, after) = (head(marked, Self::PART_CHARS_MAX), head(after, Self::PART_CHARS_MAX));
        Self { number, before, marked, after }
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number.map_or(String::new(), |number| number.to_string());
        let gap = " ".repeat(self.before.chars().count());
        let carets = "^".repeat(self.marked.chars().count().max(1));
        writeln!(f, "{number:>5} | {}{}{}", self.before, self.marked, self.after)?;
        write!(f, "      | {gap}{carets}")
    }
}

/// Escapes control characters, and those that change the direction of writing, so that `text` can be shown.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => shown.push(' '),
            '\'' | '"' | '\\' => shown.push(c),
            '\r' => {}
            _ => shown.extend(c.escape_debug()),
        }
    }
    shown
}

/// Returns the first `chars_max` characters, with an ellipsis if there are more.
pub(super) fn head(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn floor_char(text: &str, at: usize) -> usize {
    text.floor_char_boundary(at.min(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Source {
        Source::new(SourceKind::File(PathBuf::from("f")), "", text)
    }

    #[test]
    fn origin_counts_lines_and_characters_from_one() {
        let source = file("a = 1\né = \"ü\" x\n");
        assert_eq!(source.origin(Some(0)), Origin::File { path: "f".into(), line: 1, column: 1 });
        let x = source.text.find('x').expect("is there");
        assert_eq!(source.origin(Some(x)), Origin::File { path: "f".into(), line: 2, column: 9 });
        assert_eq!(source.origin(Some(source.text.len())), Origin::File { path: "f".into(), line: 3, column: 1 });
    }

    #[test]
    fn excerpt_marks_the_span_and_escapes_control_characters() {
        let source = file("a\n\tb = \"\u{1b}[2J\u{202e}\" # c\n");
        let start = source.text.find('"').expect("is there");
        let end = source.text.rfind('"').expect("is there") + 1;
        let shown = source.excerpt(&(start..end)).to_string();
        assert_eq!(shown, "    2 |  b = \"\\u{1b}[2J\\u{202e}\" # c\n      |      ^^^^^^^^^^^^^^^^^^^");
    }

    #[test]
    fn excerpt_of_a_long_line_is_short() {
        let source = file(&format!("{}here{}", "a".repeat(100_000), "b".repeat(100_000)));
        let shown = source.excerpt(&(100_000..100_004)).to_string();
        assert!(shown.contains("…aaa") && shown.contains("herebbb") && shown.len() < 400, "{shown}");
    }

    #[test]
    fn excerpt_takes_any_span() {
        let source = file("é\n");
        for start in 0..6 {
            for end in 0..6 {
                let _ = source.excerpt(&(start..end)).to_string();
                let _ = source.origin(Some(start)).to_string();
            }
        }
    }
}
