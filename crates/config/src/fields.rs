//! Tables and lists inside a setting: a rule, a board and its links.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::parse::key_text;
use super::problem::{Finding, ProblemKind};
use super::setting::{ConfigValue, Setting, did_you_mean};

/// The fields of a table inside a setting, for the documentation.
#[derive(Debug)]
pub(super) struct FieldTable {
    /// The thing that the table describes.
    pub(super) of: &'static str,
    pub(super) fields: &'static [Field],
}

/// One of its fields.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    /// The values that are allowed, to be put after "must be".
    pub(super) expected: fn() -> String,
    /// The value that holds where the field is missing.
    pub(super) default: &'static str,
    /// The purpose of the field.
    pub(super) text: &'static str,
}

/// Their names.
pub(super) const fn names<const COUNT: usize>(fields: &[Field; COUNT]) -> [&'static str; COUNT] {
    let (mut names, mut at) = ([""; COUNT], 0);
    while at < COUNT {
        names[at] = fields[at].name;
        at += 1;
    }
    names
}

/// The fields of a table that is a setting's value.
pub(super) struct Fields<'i, 'a> {
    item: &'i ConfigValue<'a>,
    table: &'a DeTable<'a>,
}

impl<'i, 'a> Fields<'i, 'a> {
    /// Reads the fields of `item`. A value that is no table is a finding, and so is each field that is not among
    /// `known`; if no name is similar, `help` names the fields.
    pub(super) fn of<T: Setting>(
        item: &'i ConfigValue<'a>,
        known: &'static [&'static str],
        help: impl Fn(&str) -> String,
        findings: &mut Vec<Finding>,
    ) -> Option<Self> {
        let Some(table) = item.value.get_ref().as_table() else {
            findings.push(item.wrong_type(T::TYPE, &T::expected()));
            return None;
        };
        for name in table.keys().filter(|name| !known.contains(&name.get_ref().as_ref())) {
            let wrong = ProblemKind::UnknownKey { key: format!("{}.{}", item.key, key_text(name.get_ref())) };
            let help = did_you_mean(name.get_ref(), known).unwrap_or_else(|| help(name.get_ref()));
            findings.push(item.finding_at(name.span(), wrong, Some(help)));
        }
        Some(Self { item, table })
    }

    /// Returns a field, if it is present and valid.
    pub(super) fn get<T: Setting>(&self, name: &str, findings: &mut Vec<Finding>) -> Option<T> {
        T::read(&self.item(name)?, findings)
    }

    /// Returns a required field, if it is valid.
    pub(super) fn need<T: Setting>(&self, name: &str, findings: &mut Vec<Finding>) -> Option<T> {
        if !self.has(name) {
            let wrong = ProblemKind::Missing { key: self.item.key.clone(), missing: name.to_owned() };
            findings.push(self.item.finding(wrong, Some(format!("{name} is {}", T::expected()))));
        }
        self.get(name, findings)
    }

    /// Whether the field is present, valid or not.
    pub(super) fn has(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    /// Notes that a present field does not fit the others.
    pub(super) fn conflict(&self, name: &str, conflict: impl Into<String>, help: &str, findings: &mut Vec<Finding>) {
        let Some(item) = self.item(name) else { return };
        let wrong = ProblemKind::Conflict { key: item.key.clone(), conflict: conflict.into() };
        findings.push(item.finding(wrong, Some(help.to_owned()).filter(|help| !help.is_empty())));
    }

    /// Notes that the fields contradict each other.
    pub(super) fn refuse(&self, conflict: impl Into<String>, help: &str, findings: &mut Vec<Finding>) {
        let wrong = ProblemKind::Conflict { key: self.item.key.clone(), conflict: conflict.into() };
        findings.push(self.item.finding(wrong, Some(help.to_owned())));
    }

    fn item(&self, name: &str) -> Option<ConfigValue<'a>> {
        let value: &'a Spanned<DeValue<'a>> = self.table.get(name)?;
        Some(self.item.part(format_args!(".{name}"), value))
    }
}

/// A table of those fields that have a value.
pub(super) fn table<const N: usize>(fields: [(&str, Option<toml::Value>); N]) -> toml::Value {
    let there = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    toml::Value::Table(there.collect())
}

/// Reads a list of at most `max` members, each with its place; invalid members are findings and left out. None
/// if it is no list or too long.
pub(super) fn members<'a, L: Setting, M: Setting>(
    item: &ConfigValue<'a>,
    max: usize,
    findings: &mut Vec<Finding>,
) -> Option<Vec<(ConfigValue<'a>, M)>> {
    let members = item.list::<L>(findings)?;
    if members.len() > max {
        let (key, found) = (item.key.clone(), format!("a list of {}", members.len()));
        findings.push(item.finding(ProblemKind::OutOfRange { key, found, expected: L::expected() }, None));
        return None;
    }
    let read = |member| M::read(&member, findings).map(|value| (member, value));
    Some(members.into_iter().filter_map(read).collect())
}

/// `a, b and c`.
pub(super) fn listed(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}
