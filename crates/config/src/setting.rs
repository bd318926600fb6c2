//! Types of keys: how their values are read, described and written.
//!
//! A value that was read is valid: an [`Integer<1, 64>`] lies between 1 and 64.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;

use super::fields::FieldTable;
use super::origin::{Source, head, printable};
use super::problem::{Finding, ProblemKind};
use super::suggest;
use super::users::Users;

/// The type of a key's values.
pub(super) trait Setting: Sized {
    /// The kind of TOML value, for the documentation.
    const TYPE: &'static str;
    /// The unit of a number; empty if the value is none.
    const UNIT: &'static str = "";
    /// Whether `ISTHMUS_KEY=word` means the string `"word"`, so that a shell needs no second pair of quotes.
    const BARE: bool = false;
    /// An example of a value; empty if none is needed.
    const EXAMPLE: &'static str = "";
    /// The tables inside a value, for the documentation.
    const TABLES: &'static [FieldTable] = &[];

    /// Returns the values that are allowed, to be put after "must be".
    fn expected() -> String;
    /// Reads the value, or notes a finding for each problem.
    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self>;
    /// Returns the value as TOML.
    fn to_toml(&self) -> toml::Value;
}

/// A value in a source, with the context to read it and to report its problems.
pub(super) struct ConfigValue<'a> {
    pub(super) key: String,
    pub(super) value: &'a Spanned<DeValue<'a>>,
    pub(super) source: &'a Source,
    pub(super) source_index: usize,
    pub(super) users: &'a Users,
}

impl<'a> ConfigValue<'a> {
    /// The value `at` inside this one.
    pub(super) fn part(&self, at: fmt::Arguments<'_>, value: &'a Spanned<DeValue<'a>>) -> ConfigValue<'a> {
        let Self { source, source_index, users, .. } = *self;
        ConfigValue { key: format!("{}{at}", self.key), value, source, source_index, users }
    }

    /// Returns the value as it was written, shortened.
    pub(super) fn found(&self) -> String {
        found(self.value, self.source)
    }

    pub(super) fn finding(&self, wrong: ProblemKind, help: Option<String>) -> Finding {
        self.finding_at(self.value.span(), wrong, help)
    }

    pub(super) fn finding_at(&self, span: Range<usize>, wrong: ProblemKind, help: Option<String>) -> Finding {
        Finding { source: self.source_index, span: Some(span), wrong, help }
    }

    /// The finding for a value of the wrong kind.
    pub(super) fn wrong_type(&self, type_: &str, expected: &str) -> Finding {
        let wrong =
            ProblemKind::WrongType { key: self.key.clone(), found: self.found(), expected: expected.to_owned() };
        self.finding(wrong, other_writing(type_, self.value.get_ref(), &self.found()))
    }

    /// The finding for a string that is not one of those that mean something.
    pub(super) fn wrong_text(&self, expected: &str, help: Option<String>) -> Finding {
        let wrong =
            ProblemKind::WrongText { key: self.key.clone(), found: self.found(), expected: expected.to_owned() };
        self.finding(wrong, help)
    }

    /// Returns the string, or notes that the value is none.
    pub(super) fn text<T: Setting>(&self, findings: &mut Vec<Finding>) -> Option<&'a str> {
        let text = self.value.get_ref().as_str();
        if text.is_none() {
            findings.push(self.wrong_type(T::TYPE, &T::expected()));
        }
        text
    }

    /// Returns the members of a list, or notes that the value is none.
    pub(super) fn list<T: Setting>(&self, findings: &mut Vec<Finding>) -> Option<Vec<ConfigValue<'a>>> {
        let Some(list) = self.value.get_ref().as_array() else {
            let finding = self.wrong_type(T::TYPE, &T::expected());
            let example = Some(T::EXAMPLE.to_owned()).filter(|example| !example.is_empty());
            findings.push(Finding { help: example.or(finding.help), ..finding });
            return None;
        };
        Some(list.iter().enumerate().map(|(index, value)| self.part(format_args!("[{index}]"), value)).collect())
    }
}

/// Returns a value as it was written, shortened.
pub(super) fn found(value: &Spanned<DeValue<'_>>, source: &Source) -> String {
    const CHARS_MAX: usize = 60;
    match value.get_ref() {
        DeValue::String(text) => format!("\"{}\"", head(&printable(text), CHARS_MAX)),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
        _ => head(&printable(source.text.get(value.span()).unwrap_or_default()), CHARS_MAX),
    }
}

/// Suggests other quotes or brackets.
fn other_writing(type_: &str, value: &DeValue<'_>, found: &str) -> Option<String> {
    match (type_, value) {
        ("integer", DeValue::String(text)) if text.parse::<i64>().is_ok() => {
            Some(format!("numbers are written without quotes: {text}"))
        }
        ("boolean", DeValue::String(text)) => match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Some("write true, without quotes".to_owned()),
            "false" | "no" | "off" | "0" => Some("write false, without quotes".to_owned()),
            _ => None,
        },
        ("boolean", DeValue::Integer(number)) => match number.as_str() {
            "0" => Some("write false".to_owned()),
            "1" => Some("write true".to_owned()),
            _ => None,
        },
        ("string", DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_)) => {
            Some(format!("strings are written in quotes: \"{found}\""))
        }
        (list, DeValue::Integer(_)) if list.contains("list") => {
            Some(format!("lists are written in brackets: [{found}]"))
        }
        (list, DeValue::String(_)) if list.starts_with("list") => {
            Some("lists are written in brackets, as in [0, 1]".to_owned())
        }
        _ => None,
    }
}

impl Setting for bool {
    const TYPE: &'static str = "boolean";

    fn expected() -> String {
        "true or false".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let value = item.value.get_ref().as_bool();
        if value.is_none() {
            findings.push(item.wrong_type(Self::TYPE, &Self::expected()));
        }
        value
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::Boolean(*self)
    }
}

/// Reads a whole number from `min` to `max` that is `fit` as well.
pub(super) fn read_number<T: Setting>(
    item: &ConfigValue<'_>,
    (min, max): (u32, u32),
    fit: fn(u32) -> bool,
    findings: &mut Vec<Finding>,
) -> Option<u32> {
    let Some(number) = item.value.get_ref().as_integer() else {
        findings.push(item.wrong_type(T::TYPE, &T::expected()));
        return None;
    };
    let value = u32::from_str_radix(number.as_str(), number.radix()).ok();
    if let Some(value) = value.filter(|&value| (min..=max).contains(&value) && fit(value)) {
        return Some(value);
    }
    let nearest = value.filter(|value| (min..=max).contains(value)).and_then(|value| {
        let below = (min..value).rev().find(|&number| fit(number))?;
        let above = (value..=max).find(|&number| fit(number))?;
        Some(format!("the nearest are {below} and {above}"))
    });
    let wrong = ProblemKind::OutOfRange { key: item.key.clone(), found: item.found(), expected: T::expected() };
    findings.push(item.finding(wrong, nearest));
    None
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident, $unit:literal, $what:literal, $fit:expr;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name<const MIN: u32, const MAX: u32>(u32);

        impl<const MIN: u32, const MAX: u32> $name<MIN, MAX> {
            /// The number as it is written.
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl<const MIN: u32, const MAX: u32> Setting for $name<MIN, MAX> {
            const TYPE: &'static str = "integer";
            const UNIT: &'static str = $unit;

            fn expected() -> String {
                let unit = if $unit.is_empty() { "" } else { concat!(" ", $unit) };
                format!("{} from {MIN} to {MAX}{unit}", $what)
            }

            fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
                read_number::<Self>(item, (MIN, MAX), $fit, findings).map(Self)
            }

            fn to_toml(&self) -> toml::Value {
                toml::Value::Integer(self.0.into())
            }
        }
    )* };
}

numbers! {
    /// A count or a number, from `MIN` to `MAX`.
    Integer, "", "an integer", |_| true;
    /// Whole microseconds.
    Micros, "µs", "an integer", |_| true;
    /// Whole milliseconds.
    Millis, "ms", "an integer", |_| true;
    /// Whole seconds.
    Seconds, "s", "an integer", |_| true;
    /// Bytes.
    Bytes, "bytes", "an integer", |_| true;
    /// Blocks of 1024 bytes, and their number a power of two.
    PowerOfTwoKib, "KiB", "a power of two", u32::is_power_of_two;
    /// Blocks of 1048576 bytes, and their number a power of two.
    PowerOfTwoMib, "MiB", "a power of two", u32::is_power_of_two;
}

impl<const MIN: u32, const MAX: u32> Micros<MIN, MAX> {
    /// As a span of time.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_micros(self.0 as u64)
    }
}

impl<const MIN: u32, const MAX: u32> Millis<MIN, MAX> {
    /// As a span of time.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0 as u64)
    }
}

impl<const MIN: u32, const MAX: u32> Seconds<MIN, MAX> {
    /// As a span of time; none for 0, which means never.
    #[must_use]
    pub const fn duration(self) -> Option<Duration> {
        if self.0 == 0 { None } else { Some(Duration::from_secs(self.0 as u64)) }
    }
}

impl<const MIN: u32, const MAX: u32> PowerOfTwoKib<MIN, MAX> {
    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        const { assert!(MAX <= u32::MAX / 1024) }
        self.0 * 1024
    }
}

/// Different CPUs, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(Vec<u32>);

impl Cpus {
    const NUMBER_MAX: u32 = 4095;

    /// Their numbers, as the kernel counts them.
    #[must_use]
    pub fn numbers(&self) -> &[u32] {
        &self.0
    }
}

impl Setting for Cpus {
    const TYPE: &'static str = "list";

    fn expected() -> String {
        format!("a list of different CPU numbers from 0 to {}", Self::NUMBER_MAX)
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let mut numbers = Vec::new();
        let mut seen = BTreeSet::new();
        for member in item.list::<Self>(findings)? {
            let Some(number) = Integer::<0, { Self::NUMBER_MAX }>::read(&member, findings) else { continue };
            numbers.push(number.get());
            if !seen.insert(number.get()) {
                let wrong = ProblemKind::Repeated { key: item.key.clone(), found: number.get().to_string() };
                findings.push(member.finding(wrong, None));
            }
        }
        (findings.len() == before).then_some(Self(numbers))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.iter().map(|&number| toml::Value::Integer(number.into())).collect::<Vec<_>>().into()
    }
}

/// Declares an enum of words.
macro_rules! words {
    ($($(#[$doc:meta])* $vis:vis enum $name:ident { $($(#[$word_doc:meta])* $word:ident = $text:literal,)* })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name { $($(#[$word_doc])* $word,)* }

        impl $name {
            /// Each word, as it is written.
            $vis const WORDS: &'static [&'static str] = &[$($text),*];

            /// The word as it is written.
            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self { $(Self::$word => $text,)* }
            }
        }

        impl $crate::setting::Setting for $name {
            const TYPE: &'static str = "string";
            const BARE: bool = true;

            fn expected() -> String {
                $crate::setting::alternatives(Self::WORDS)
            }

            fn read(
                item: &$crate::setting::ConfigValue<'_>,
                findings: &mut Vec<$crate::problem::Finding>,
            ) -> Option<Self> {
                match item.text::<Self>(findings)? {
                    $($text => Some(Self::$word),)*
                    other => {
                        let help = $crate::setting::did_you_mean(other, Self::WORDS);
                        findings.push(item.wrong_text(&Self::expected(), help));
                        None
                    }
                }
            }

            fn to_toml(&self) -> toml::Value {
                self.as_str().into()
            }
        }
    )* };
}
pub(super) use words;

words! {
    /// How a worker waits for work.
    pub enum WorkerWaitMode {
        /// Spin for a while, then sleep on the doorbells.
        Adaptive = "adaptive",
        /// Spin and never sleep: the least latency, for a whole CPU.
        Spin = "spin",
        /// Sleep at once.
        Sleep = "sleep",
    }
    /// The pairs of domains that may exchange messages where no rule says otherwise.
    pub enum Talk {
        /// Domains of one user.
        SameUser = "same-user",
        /// All domains.
        All = "all",
    }
    /// Whether a region stays granted when its message is over.
    pub enum Grants {
        /// Between domains of one user in one container.
        SameContainer = "same-container",
        /// Between domains of one user.
        SameUser = "same-user",
        /// Never.
        Never = "never",
    }
}

/// `"a", "b" or "c"`.
pub(super) fn alternatives(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// The suggestion for a word that is none of `words`.
pub(super) fn did_you_mean(word: &str, words: &[&'static str]) -> Option<String> {
    suggest::nearest(word, words.iter().copied()).map(|word| format!("did you mean \"{word}\"?"))
}
