//! Problems: what can be wrong with a configuration, and how it is reported.
//!
//! ```text
//! /etc/isthmus/isthmus.toml:4:8: wait.mode is "adaptve", but must be "adaptive", "spin" or "sleep"
//!     4 | mode = "adaptve"
//!       |        ^^^^^^^^^
//!       = did you mean "adaptive"?
//! ```
//!
//! Readers only note [`Finding`]s: source, bytes, kind of problem. They become [`Problem`]s, with line,
//! column and excerpt, at the end, in the order of the file.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use serde::Serialize;
use thiserror::Error;

use super::origin::{Excerpt, Origin, Source};

/// The kind of a problem; its text is the first line of a [`Problem`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the text beside each variant says it")]
pub enum ProblemKind {
    #[error("cannot read the configuration: {reason}")]
    Unreadable { reason: String },
    #[error("the configuration has more than {max} bytes")]
    TooLong { max: u64 },
    #[error("not UTF-8")]
    NotUtf8,
    #[error("{message}")]
    Syntax { message: String },
    #[error("there is no table [{table}]")]
    UnknownTable { table: String },
    #[error("there is no key {key}")]
    UnknownKey { key: String },
    #[error("{table} is {found}, but must be a table of keys")]
    NotATable { table: String, found: String },
    #[error("{key} is {found}, but must be {expected}")]
    WrongType { key: String, found: String, expected: String },
    #[error("{key} is {found}, but must be {expected}")]
    OutOfRange { key: String, found: String, expected: String },
    #[error("{key} is {found}, but must be {expected}")]
    WrongText { key: String, found: String, expected: String },
    #[error("{key} names the user {found}, but no such user is known here")]
    UnknownUser { key: String, found: String },
    #[error("{key} names the group {found}, but no such group is known here")]
    UnknownGroup { key: String, found: String },
    #[error("{key} has no {missing}")]
    Missing { key: String, missing: String },
    #[error("{key} repeats {found}")]
    Repeated { key: String, found: String },
    #[error("{key} {conflict}")]
    Conflict { key: String, conflict: String },
    #[error("{found} is no assignment")]
    MissingAssignment { found: String },
    #[error("nothing reads this variable")]
    UnknownVariable,
}

impl ProblemKind {
    /// Stable name for JSON and scripts.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "unreadable",
            Self::TooLong { .. } => "too-long",
            Self::NotUtf8 => "not-utf8",
            Self::Syntax { .. } => "syntax",
            Self::UnknownTable { .. } => "unknown-table",
            Self::UnknownKey { .. } => "unknown-key",
            Self::NotATable { .. } => "not-a-table",
            Self::WrongType { .. } => "wrong-type",
            Self::OutOfRange { .. } => "out-of-range",
            Self::WrongText { .. } => "wrong-text",
            Self::UnknownUser { .. } => "unknown-user",
            Self::UnknownGroup { .. } => "unknown-group",
            Self::Missing { .. } => "missing",
            Self::Repeated { .. } => "repeated",
            Self::Conflict { .. } => "conflict",
            Self::MissingAssignment { .. } => "no-assignment",
            Self::UnknownVariable => "unknown-variable",
        }
    }
}

/// A problem, its place, and a suggestion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The place of the problem.
    pub origin: Origin,
    /// The kind of the problem.
    pub wrong: ProblemKind,
    /// A suggestion: what the reader may want to write instead.
    pub help: Option<String>,
    /// The text around the problem.
    pub excerpt: Option<Excerpt>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.origin)?;
        if let Origin::File { line: 1.., column, .. } = self.origin {
            write!(f, ":{column}")?;
        }
        write!(f, ": {}", self.wrong)?;
        if let Some(excerpt) = &self.excerpt {
            write!(f, "\n{excerpt}")?;
        }
        if let Some(help) = &self.help {
            write!(f, "\n      = {help}")?;
        }
        Ok(())
    }
}

impl Serialize for Problem {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Row<'a> {
            code: &'static str,
            message: String,
            origin: &'a Origin,
            help: Option<&'a str>,
        }
        let row = Row {
            code: self.wrong.code(),
            message: self.wrong.to_string(),
            origin: &self.origin,
            help: self.help.as_deref(),
        };
        row.serialize(serializer)
    }
}

/// The error of a refused configuration, with all its problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// At least one, in the order of the file, then environment, then command line.
    pub problems: Vec<Problem>,
    /// The number of problems beyond [`PROBLEMS_MAX`].
    pub more: usize,
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let gap = if index == 0 { "" } else { "\n" };
            write!(f, "{gap}{problem}")?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

/// The largest number of problems that are listed. More are only counted: the file is then probably no configuration.
pub const PROBLEMS_MAX: usize = 100;

/// A problem before its line and column are known.
pub(super) struct Finding {
    /// Index of the text in the list of sources.
    pub(super) source: usize,
    /// The bytes; none if the problem concerns the whole text.
    pub(super) span: Option<Range<usize>>,
    pub(super) wrong: ProblemKind,
    pub(super) help: Option<String>,
}

/// Turns findings into problems, in order.
pub(super) fn problems(sources: &[Source], mut findings: Vec<Finding>) -> (Vec<Problem>, usize) {
    findings.sort_by_key(|finding| (finding.source, finding.span.as_ref().map(|span| span.start)));
    keep_one_syntax_error_per_line(sources, &mut findings);
    let more = findings.len().saturating_sub(PROBLEMS_MAX);
    findings.truncate(PROBLEMS_MAX);
    let listed = findings.into_iter().map(|Finding { source, span, wrong, help }| {
        let source = &sources[source];
        let origin = source.origin(span.as_ref().map(|span| span.start));
        Problem { origin, wrong, help, excerpt: span.map(|span| source.excerpt(&span)) }
    });
    (listed.collect(), more)
}

/// Keeps one syntax error for each line, because a line that is not TOML means nothing that could be judged. If the
/// line was to begin a table, the table of the keys below it is unknown.
fn keep_one_syntax_error_per_line(sources: &[Source], findings: &mut Vec<Finding>) {
    let line = |finding: &Finding| {
        let start = finding.span.as_ref().map(|span| span.start)?;
        Some((finding.source, sources[finding.source].line(start)))
    };
    let is_syntax = |finding: &Finding| matches!(finding.wrong, ProblemKind::Syntax { .. });
    let broken: BTreeSet<_> = findings.iter().filter(|finding| is_syntax(finding)).filter_map(line).collect();
    let mut reported = BTreeSet::new();
    let headers: Vec<Vec<usize>> = sources.iter().map(Source::header_lines).collect();
    findings.retain(|finding| {
        let Some((source, line)) = line(finding) else { return true };
        let header = headers[source].partition_point(|&header| header <= line).checked_sub(1);
        let below_broken = header.is_some_and(|index| broken.contains(&(source, headers[source][index])));
        match is_syntax(finding) {
            true => reported.insert((source, line)),
            false => !broken.contains(&(source, line)) && !below_broken,
        }
    });
}
