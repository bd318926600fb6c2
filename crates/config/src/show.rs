//! A configuration as text. Printed TOML can be read again, and means the same.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write;

use isthmus_layout::environment::VARIABLES;
use serde::Serialize;

use super::keys::{Effect, KEYS, TABLES};
use super::origin::{Origin, printable};
use super::parse::{Entry, Pending};
use super::sources::default_text;
use super::{Inputs, Loaded};

impl Loaded {
    /// Returns the whole file as `isthmusd --check` prints it: each key with its value and its purpose.
    #[must_use]
    pub fn check_text(&self) -> String {
        let mut text = String::new();
        for table in TABLES {
            let gap = if text.is_empty() { "" } else { "\n" };
            line(&mut text, format_args!("{gap}# {}\n[{}]", table.text(), table.name));
            for Entry { key, value, .. } in self.entries.iter().filter(|entry| entry.key.table == table.name) {
                line(&mut text, format_args!("# {}", first_sentence(&key.text())));
                line(&mut text, format_args!("{} = {}", key.name, toml_text(value)));
            }
        }
        text
    }

    /// Returns a line for each key as `isthmus config show` prints it, with the origin of its value if requested.
    #[must_use]
    pub fn show_text(&self, with_origin: bool) -> String {
        let lines: Vec<_> = self.entries.iter().map(|entry| format!("{} = {}", entry.key.path, entry.value)).collect();
        let pending = |entry: &Entry| entry.after_restart.as_ref().map(|next| next.value.to_string());
        if !with_origin {
            let shown = lines.iter().zip(&self.entries).map(|(line, entry)| match pending(entry) {
                Some(next) => format!("{line}  # after a restart: {}\n", printable(&next)),
                None => format!("{line}\n"),
            });
            return shown.collect();
        }
        // One long line does not push all origins to the right.
        let width = lines.iter().map(|line| line.chars().count()).filter(|&width| width <= 60).max().unwrap_or(0);
        let mut text = String::new();
        for (shown, Entry { origin, overridden, after_restart, .. }) in lines.iter().zip(&self.entries) {
            let over: Vec<_> = overridden.iter().map(Origin::to_string).collect();
            let over = if over.is_empty() { String::new() } else { format!(" (instead of {})", over.join(", ")) };
            let next =
                after_restart.as_ref().map(|next| format!("; after a restart: {} ({})", next.value, next.origin));
            let next = next.unwrap_or_default();
            line(&mut text, format_args!("{shown:width$}  # {}", printable(&format!("{origin}{over}{next}"))));
        }
        text
    }

    /// Returns the configuration as JSON, for programs.
    #[must_use]
    pub fn show_json(&self) -> serde_json::Value {
        #[derive(Serialize)]
        struct Row<'a> {
            key: &'static str,
            value: &'a toml::Value,
            unit: Option<&'static str>,
            origin: &'a Origin,
            overridden: &'a [Origin],
            environment: String,
            effect: &'static str,
            after_restart: Option<&'a Pending>,
        }
        let rows: Vec<_> = self
            .entries
            .iter()
            .map(|Entry { key, value, origin, overridden, after_restart }| Row {
                key: key.path,
                value,
                unit: Some(key.unit).filter(|unit| !unit.is_empty()),
                origin,
                overridden,
                environment: key.environment(),
                effect: key.effect.as_str(),
                after_restart: after_restart.as_ref(),
            })
            .collect();
        serde_json::to_value(rows).expect("strings, numbers, booleans, lists and tables are JSON")
    }
}

impl Effect {
    /// `restart` or `reload`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Reload => "reload",
        }
    }
}

/// A value as it stands in a file: lists of tables one below the other.
fn toml_text(value: &toml::Value) -> String {
    match value {
        toml::Value::Array(members) if members.first().is_some_and(toml::Value::is_table) => {
            let lines: String = members.iter().map(|member| format!("  {member},\n")).collect();
            format!("[\n{lines}]")
        }
        _ => value.to_string(),
    }
}

fn first_sentence(text: &str) -> &str {
    text.find(". ").map_or(text, |end| &text[..=end])
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a string takes everything");
}

/// A variable of the environment that we read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VariableRow {
    /// `ISTHMUS_…`.
    pub name: String,
    /// The reader of the variable: `library` or `daemon`.
    pub reader: &'static str,
    /// The value that holds when the variable is not set.
    pub default: String,
    /// The value here, if the variable is set.
    pub value: Option<String>,
    /// Whether the value comes from the environment or is the default.
    pub origin: &'static str,
    /// The effect of the variable.
    pub effect: String,
}

/// Returns every variable of the library and the daemon, as this environment sets them.
#[must_use]
pub fn variables(inputs: &Inputs) -> Vec<VariableRow> {
    let set: BTreeMap<&OsString, &OsString> = inputs.environment.iter().map(|(name, value)| (name, value)).collect();
    let row = |name: String, reader, default: String, effect: String| {
        let value = set.get(&OsString::from(&name)).map(|value| value.to_string_lossy().into_owned());
        let origin = if value.is_some() { "environment" } else { "default" };
        VariableRow { name, reader, default, value, origin, effect }
    };
    let library = VARIABLES.iter().map(|variable| {
        row(variable.name.to_owned(), "library", variable.default.to_owned(), variable.effect.to_owned())
    });
    let paths = inputs.role_defaults();
    let daemon = KEYS.iter().map(|key| {
        row(
            key.environment(),
            "daemon",
            default_text(key, &paths),
            format!("{}: {}", key.path, first_sentence(&key.text())),
        )
    });
    library.chain(daemon).collect()
}

/// Formats the variables for people.
#[must_use]
pub fn variables_text(rows: &[VariableRow]) -> String {
    let mut text = String::new();
    for row in rows {
        let value = printable(row.value.as_ref().unwrap_or(&row.default));
        line(&mut text, format_args!("{}={value}  # {}, {}", row.name, row.reader, row.origin));
        line(&mut text, format_args!("    {}", row.effect));
    }
    text
}
