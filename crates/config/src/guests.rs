//! Guests of any platform: their common settings.

use std::collections::BTreeSet;

use isthmus_layout::control::Name;

use super::fields::{Field, FieldTable, members};
use super::policy::User;
use super::problem::{Finding, ProblemKind};
use super::setting::{ConfigValue, PowerOfTwoMib, Setting};

/// Guests of one daemon and platform.
const GUESTS_MAX: usize = 256;

/// Their names are those of files, too.
const NAME_BYTES_MAX: usize = 32;

/// The settings of a guest.
pub(super) trait ConfiguredGuest: Setting {
    /// The name of the table in the documentation.
    const LABEL: &'static str;
    /// The fields of a guest's table.
    const FIELDS: &'static [Field];

    /// The values that no other guest may have.
    fn unique_values(&self) -> Vec<String>;
}

/// The field for the owner of a guest's programs.
pub(super) const USER: Field = Field {
    name: "user",
    expected: User::expected,
    default: "none; required",
    text: "The user on this host that owns the domains of the guest's programs, whichever users they have in the guest. `policy.attach` has to admit the user.",
};

/// A guest's window.
pub(super) type WindowMib = PowerOfTwoMib<1, 4096>;

/// Returns the size of a guest's window in bytes, or the default.
pub(super) fn window_bytes(window: Option<WindowMib>) -> u64 {
    window.map_or(64 << 20, |window| u64::from(window.get()) << 20)
}

/// The guests of a platform, in the order they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guests<G>(Vec<G>);

impl<G> Default for Guests<G> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<G> Guests<G> {
    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[G] {
        &self.0
    }
}

impl<G: ConfiguredGuest> Setting for Guests<G> {
    const TYPE: &'static str = "list of tables";
    const EXAMPLE: &'static str = "guests are written as in [{ name = \"web\", user = \"ann\" }]";
    const TABLES: &'static [FieldTable] = &[FieldTable { of: G::LABEL, fields: G::FIELDS }];

    fn expected() -> String {
        let names: Vec<_> = G::FIELDS.iter().map(|field| field.name).collect();
        format!("a list of at most {GUESTS_MAX} tables {{ {} }}", names.join(", "))
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let guests = members::<Self, G>(item, GUESTS_MAX, findings)?;
        let mut seen = BTreeSet::new();
        for (member, guest) in &guests {
            for found in guest.unique_values().into_iter().filter(|own| !seen.insert(own.clone())) {
                findings.push(member.finding(ProblemKind::Repeated { key: item.key.clone(), found }, None));
            }
        }
        (findings.len() == before).then(|| Self(guests.into_iter().map(|(_, guest)| guest).collect()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.iter().map(G::to_toml).collect::<Vec<_>>().into()
    }
}

/// The name of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestName(Name);

impl GuestName {
    /// The name, as reports show it.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.0
    }
}

impl Setting for GuestName {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        format!("1 to {NAME_BYTES_MAX} letters, digits, - and _")
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        let name = Name::new(text).ok().filter(|_| is_plain && text.len() <= NAME_BYTES_MAX);
        if name.is_none() {
            findings.push(item.wrong_text(&Self::expected(), None));
        }
        name.map(Self)
    }

    fn to_toml(&self) -> toml::Value {
        self.0.as_str().into()
    }
}
