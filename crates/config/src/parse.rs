//! From texts to assignments, and from assignments to values.
//!
//! ```text
//! defaults ─┐
//! file ─────┤  assignments:          Reader::take::<Type>(key)
//! variables ┤  key, value, place  ──►  reads all of a key's, keeps the last,  ──►  Config
//! --set ────┘                          remembers its source
//! ```
//!
//! Nothing here stops at the first error: `toml` recovers, and each value that is wrong adds a finding.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{self, KEYS, Key, TABLES};
use super::origin::{Origin, Source, head, printable};
use super::problem::{Finding, ProblemKind};
use super::setting::{ConfigValue, Setting, found};
use super::suggest;
use super::users::Users;

/// The largest number of nested unclosed lists that are examined; the outermost one is reported.
const UNCLOSED_MAX: usize = 100;

/// A value for a key, and its place.
pub(super) struct Assignment<'a> {
    key: &'static Key,
    value: Spanned<DeValue<'a>>,
    source: &'a Source,
    source_index: usize,
}

/// Reads values from assignments. The last assignment of a key counts.
pub(super) struct ConfigReader<'a> {
    assignments: &'a [Assignment<'a>],
    users: &'a Users,
    pub(super) findings: Vec<Finding>,
    pub(super) entries: Vec<Entry>,
    /// The place of the value that counts.
    sources: BTreeMap<&'static str, (usize, Range<usize>)>,
    /// Keys with an assignment that was wrong.
    failed: BTreeSet<&'static str>,
}

/// A key, its value, and the origin of the value.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: &'static Key,
    /// Its value.
    pub value: toml::Value,
    /// The origin of the value.
    pub origin: Origin,
    /// The origins of overridden values; the last one would be next.
    pub overridden: Vec<Origin>,
    /// The value that was read since, and comes into force when the daemon is restarted.
    pub after_restart: Option<Pending>,
}

/// A value that is not in force yet.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Pending {
    /// The value.
    pub value: toml::Value,
    /// Its origin.
    pub origin: Origin,
}

impl<'a> ConfigReader<'a> {
    pub(super) fn new(assignments: &'a [Assignment<'a>], users: &'a Users) -> Self {
        let (findings, entries) = (Vec::new(), Vec::new());
        Self { assignments, users, findings, entries, sources: BTreeMap::new(), failed: BTreeSet::new() }
    }

    /// Returns the value of a key; checks all assignments, also those which do not count.
    pub(super) fn read_key<T: Setting>(&mut self, path: &'static str) -> Option<T> {
        let mut last = None;
        let mut origins = Vec::new();
        for assignment in self.assignments.iter().filter(|assignment| assignment.key.path == path) {
            let Assignment { key, value, source, source_index } = assignment;
            let item =
                ConfigValue { key: path.to_owned(), value, source, source_index: *source_index, users: self.users };
            let Some(setting) = T::read(&item, &mut self.findings) else {
                self.failed.insert(path);
                continue;
            };
            self.sources.insert(path, (*source_index, value.span()));
            origins.push(source.origin(Some(value.span().start)));
            last = Some((*key, setting));
        }
        let (key, setting) = last?;
        let origin = origins.pop()?;
        origins.retain(|origin| *origin != Origin::Default);
        let value = setting.to_toml();
        self.entries.push(Entry { key, value, origin, overridden: origins, after_restart: None });
        Some(setting)
    }

    /// Notes that the values of two keys do not fit each other, at the one which was written last. Reports nothing
    /// while one of them is wrong on its own.
    pub(super) fn conflict(&mut self, a: &'static str, b: &'static str, why: &str) {
        if self.failed.contains(a) || self.failed.contains(b) {
            return;
        }
        let (Some(place_a), Some(place_b)) = (self.sources.get(a), self.sources.get(b)) else { return };
        let written = |place: &(usize, Range<usize>)| (place.0, place.1.start);
        let (key, other, (source, span)) =
            if written(place_a) > written(place_b) { (a, b, place_a) } else { (b, a, place_b) };
        let wrong = ProblemKind::Conflict { key: key.to_owned(), conflict: format!("does not fit {other}: {why}") };
        self.findings.push(Finding { source: *source, span: Some(span.clone()), wrong, help: None });
    }
}

impl ConfigReader<'_> {
    /// Notes that the value of a key does not fit this daemon. Reports nothing while the value is wrong on its own.
    pub(super) fn refuse(&mut self, key: &'static str, conflict: &str, help: &str) {
        let Some((source, span)) = self.sources.get(key).filter(|_| !self.failed.contains(key)) else { return };
        let wrong = ProblemKind::Conflict { key: key.to_owned(), conflict: conflict.to_owned() };
        self.findings.push(Finding { source: *source, span: Some(span.clone()), wrong, help: Some(help.to_owned()) });
    }

    /// Notes a problem with a field of a member of the list `key`. Reports nothing while the list is wrong on its own.
    pub(super) fn member_conflict(
        &mut self,
        (key, index, field): (&'static str, usize, &str),
        conflict: &str,
        help: &str,
    ) {
        let Some((source, span)) = self.sources.get(key).filter(|_| !self.failed.contains(key)) else { return };
        let is_it = |assignment: &&Assignment<'_>| {
            assignment.key.path == key && (assignment.source_index, assignment.value.span()) == (*source, span.clone())
        };
        let list = self.assignments.iter().find(is_it).and_then(|assignment| assignment.value.get_ref().as_array());
        let member = list.and_then(|list| list.get(index));
        let value = member.and_then(|member| member.get_ref().as_table()?.get(field)).or(member);
        let span = value.map_or_else(|| span.clone(), Spanned::span);
        let wrong = ProblemKind::Conflict { key: format!("{key}[{index}].{field}"), conflict: conflict.to_owned() };
        self.findings.push(Finding { source: *source, span: Some(span), wrong, help: Some(help.to_owned()) });
    }
}

/// The assignments that name keys that exist.
#[derive(Default)]
pub(super) struct Assignments<'a> {
    pub(super) list: Vec<Assignment<'a>>,
    pub(super) findings: Vec<Finding>,
}

impl<'a> Assignments<'a> {
    /// All of a file.
    pub(super) fn add_file(&mut self, source_index: usize, source: &'a Source) {
        let (root, errors) = DeTable::parse_recoverable(&source.text);
        let open = self.add_syntax_errors(source_index, source, &errors, root.get_ref());
        for (name, value) in root.into_inner() {
            let table = name.get_ref().as_ref();
            let is_known = TABLES.iter().any(|known| known.name == table);
            let (span, given) = (name.span(), found(&value, source));
            match value.into_inner() {
                DeValue::Table(keys) if is_known => self.add_table(source_index, source, table, keys),
                DeValue::Table(_) => self.find(source_index, span, unknown_table(table)),
                _ if is_known => {
                    let wrong = ProblemKind::NotATable { table: table.to_owned(), found: given };
                    let help = format!("its keys follow a line [{table}]");
                    self.find(source_index, span, (wrong, help));
                }
                _ => self.find(source_index, span, unknown_key(None, table)),
            }
        }
        self.list.retain(|assignment| !open.is_some_and(|open| assignment.value.span().contains(&open)));
    }

    fn add_table(&mut self, source_index: usize, source: &'a Source, table: &str, keys: DeTable<'a>) {
        for (name, value) in keys {
            match KEYS.iter().find(|key| key.table == table && key.name == name.get_ref().as_ref()) {
                Some(key) => self.list.push(Assignment { key, value, source, source_index }),
                None => self.find(source_index, name.span(), unknown_key(Some(table), name.get_ref())),
            }
        }
    }

    /// Adds one value for one key, from a variable, an option or a default.
    pub(super) fn add_value(&mut self, source_index: usize, source: &'a Source, key: &'static Key) {
        let text = source.text.as_str();
        let word = || Spanned::new(0..text.len(), DeValue::String(text.into()));
        let value = if text.starts_with(['"', '\'', '[', '{']) {
            let (value, errors) = DeValue::parse_recoverable(text);
            self.findings.extend(errors.iter().take(1).map(|error| syntax(source_index, source, error)));
            value
        } else if key.bare {
            word()
        } else {
            DeValue::parse(text).unwrap_or_else(|_| word())
        };
        self.list.push(Assignment { key, value, source, source_index });
    }

    pub(super) fn find(&mut self, source: usize, span: Range<usize>, (wrong, help): (ProblemKind, String)) {
        self.findings.push(Finding { source, span: Some(span), wrong, help: Some(help) });
    }

    /// Notes syntax errors. An unclosed list swallows the text behind it, so its start is reported and returned, and
    /// errors inside are not.
    fn add_syntax_errors(
        &mut self,
        source_index: usize,
        source: &Source,
        errors: &[toml::de::Error],
        root: &DeTable<'_>,
    ) -> Option<usize> {
        let open = errors
            .iter()
            .filter(|error| {
                ["unclosed array,", "unclosed inline table"].iter().any(|open| error.message().starts_with(open))
            })
            .take(UNCLOSED_MAX)
            .filter_map(|error| root.values().find_map(|value| ends_at(value, error.span()?.start)))
            .map(|span| span.start)
            .min();
        for error in errors {
            let finding = syntax(source_index, source, error);
            let is_inside = |open| error.span().is_none_or(|span| span.start >= open);
            if !open.is_some_and(is_inside) {
                self.findings.push(finding);
            }
        }
        if let Some(open) = open {
            let message = "this list or table is never closed".to_owned();
            let span = Some(open..open + 1);
            self.findings.push(Finding {
                source: source_index,
                span,
                wrong: ProblemKind::Syntax { message },
                help: None,
            });
        }
        open
    }
}

/// The place of the list or inline table inside `value` that ends at `at`, the outermost one.
fn ends_at(value: &Spanned<DeValue<'_>>, at: usize) -> Option<Range<usize>> {
    let span = value.span();
    match value.get_ref() {
        DeValue::Array(_) | DeValue::Table(_) if span.end == at && span.start < at => Some(span),
        DeValue::Array(list) => list.iter().find_map(|value| ends_at(value, at)),
        DeValue::Table(table) => table.values().find_map(|value| ends_at(value, at)),
        _ => None,
    }
}

fn syntax(source_index: usize, source: &Source, error: &toml::de::Error) -> Finding {
    let span = error.span().unwrap_or(0..0);
    let message = printable(error.message());
    let unquoted =
        source.text.get(span.clone()).filter(|text| !text.is_empty() && !text.contains(['"', '\'', '\n', '#']));
    let (message, help) = match (message.starts_with("string values must be quoted"), unquoted) {
        (true, Some(text)) => {
            let text = head(&printable(text), 60);
            ("a string must be in quotes".to_owned(), Some(format!("write \"{text}\"")))
        }
        (true, None) => ("a value is missing".to_owned(), None),
        _ if message.contains("string, expected `\"`") || message.contains("string, expected `'`") => {
            ("this string is never closed".to_owned(), None)
        }
        _ => (message, None),
    };
    Finding { source: source_index, span: Some(span), wrong: ProblemKind::Syntax { message }, help }
}

/// Returns a key or table as it was written, shortened and escaped.
pub(super) fn key_text(name: &str) -> String {
    head(&printable(name), 60)
}

fn unknown_table(table: &str) -> (ProblemKind, String) {
    let names = TABLES.iter().map(|table| table.name);
    let help = match suggest::nearest(table, names.clone()) {
        Some(near) => format!("did you mean [{near}]?"),
        None => format!("the tables are {}", names.collect::<Vec<_>>().join(", ")),
    };
    (ProblemKind::UnknownTable { table: key_text(table) }, help)
}

/// Returns the problem and the help for a key that does not exist, written in `table` or in none.
pub(super) fn unknown_key(table: Option<&str>, name: &str) -> (ProblemKind, String) {
    let path = table.map_or(name.to_owned(), |table| format!("{table}.{name}"));
    let help = match nearest_key(table, name, &path) {
        Some(key) => format!("did you mean {}?", key.path),
        None => match table.or_else(|| TABLES.iter().find(|table| table.name == name).map(|table| table.name)) {
            Some(table) if TABLES.iter().any(|known| known.name == table) => {
                let keys: Vec<_> = KEYS.iter().filter(|key| key.table == table).map(|key| key.name).collect();
                format!("the keys of [{table}] are {}", keys.join(", "))
            }
            _ => "isthmus config show lists all keys".to_owned(),
        },
    };
    (ProblemKind::UnknownKey { key: key_text(&path) }, help)
}

fn nearest_key(table: Option<&str>, name: &str, path: &str) -> Option<&'static Key> {
    if let Some(elsewhere) = KEYS.iter().find(|key| key.name == name) {
        return Some(elsewhere);
    }
    if TABLES.iter().any(|known| known.name == path) {
        return None;
    }
    let here = KEYS.iter().filter(|key| table.is_some_and(|table| key.table == table));
    let in_table = suggest::nearest_with_distance(name, here.map(|key| key.name))
        .and_then(|(slips, near)| Some((slips, KEYS.iter().find(|key| Some(key.table) == table && key.name == near)?)));
    let by_path = suggest::nearest_with_distance(path, KEYS.iter().map(|key| key.path))
        .and_then(|(slips, near)| Some((slips, keys::key(near)?)));
    let by_name = suggest::nearest_with_distance(name, KEYS.iter().map(|key| key.name))
        .and_then(|(slips, near)| Some((slips, KEYS.iter().find(|key| key.name == near)?)));
    [in_table, by_path, by_name].into_iter().flatten().min_by_key(|(slips, _)| *slips).map(|(_, key)| key)
}
