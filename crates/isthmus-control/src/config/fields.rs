//! A table inside a setting: a rule, a board.

use toml::de::DeTable;

use super::parse::key_text;
use super::problem::{Finding, Wrong};
use super::setting::{Item, Setting, did_you_mean};

/// The fields of a table that is a setting's value.
pub(super) struct Fields<'i, 'a> {
    item: &'i Item<'a>,
    table: &'a DeTable<'a>,
}

impl<'i, 'a> Fields<'i, 'a> {
    /// The fields of `item`. What is no table is a finding, and so is each field that is not among `known`; where nothing like it
    /// is, `help` says what there is.
    pub(super) fn of<T: Setting>(
        item: &'i Item<'a>,
        known: &'static [&'static str],
        help: &str,
        findings: &mut Vec<Finding>,
    ) -> Option<Self> {
        let Some(table) = item.value.get_ref().as_table() else {
            findings.push(item.wrong_type(T::TYPE, &T::expected()));
            return None;
        };
        for name in table.keys().filter(|name| !known.contains(&name.get_ref().as_ref())) {
            let wrong = Wrong::UnknownKey { key: format!("{}.{}", item.key, key_text(name.get_ref())) };
            let help = did_you_mean(name.get_ref(), known).unwrap_or_else(|| help.to_owned());
            findings.push(item.finding_at(name.span(), wrong, Some(help)));
        }
        Some(Self { item, table })
    }

    /// A field, if it is there and right.
    pub(super) fn get<T: Setting>(&self, name: &str, findings: &mut Vec<Finding>) -> Option<T> {
        let value = self.table.get(name)?;
        T::read(&self.item.part(format_args!(".{name}"), value), findings)
    }
}
