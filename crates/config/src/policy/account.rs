//! Users and groups by name or number.

use crate::problem::{Finding, ProblemKind};
use crate::setting::{ConfigValue, Integer, Setting};
use crate::suggest;
use crate::users::Accounts;

/// A user by number; the name is kept for readers of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The number that the kernel knows.
    pub uid: u32,
    /// The name that was written, if it was one.
    pub name: Option<String>,
}

/// A group by number; the name is kept for readers of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The number that the kernel knows.
    pub gid: u32,
    /// The name that was written, if it was one.
    pub name: Option<String>,
}

impl Setting for User {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        "the name or number of a user".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let unknown = |key, found| ProblemKind::UnknownUser { key, found };
        let (uid, name) = read_account::<Self>(item, &item.users.users, ("/etc/passwd", "user"), unknown, findings)?;
        Some(Self { uid, name })
    }

    fn to_toml(&self) -> toml::Value {
        account_toml(self.uid, self.name.as_deref())
    }
}

impl Setting for Group {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        "the name or number of a group".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let unknown = |key, found| ProblemKind::UnknownGroup { key, found };
        let (gid, name) = read_account::<Self>(item, &item.users.groups, ("/etc/group", "group"), unknown, findings)?;
        Some(Self { gid, name })
    }

    fn to_toml(&self) -> toml::Value {
        account_toml(self.gid, self.name.as_deref())
    }
}

/// Reads a number, or a name that stands in `file`.
fn read_account<T: Setting>(
    item: &ConfigValue<'_>,
    accounts: &Accounts,
    (file, noun): (&str, &str),
    unknown: impl FnOnce(String, String) -> ProblemKind,
    findings: &mut Vec<Finding>,
) -> Option<(u32, Option<String>)> {
    if item.value.get_ref().is_integer() {
        // The last number means "no user" or "no group" to the kernel.
        let number = Integer::<0, { u32::MAX - 1 }>::read(item, findings)?;
        return Some((number.get(), None));
    }
    let name = item.text::<T>(findings)?;
    if let Some(number) = accounts.number(name) {
        return Some((number, Some(name.to_owned())));
    }
    let help = match (name.parse::<u32>(), suggest::nearest(name, accounts.names())) {
        (Ok(number), _) => format!("numbers are written without quotes: {number}"),
        (_, Some(near)) => format!("did you mean \"{near}\"?"),
        _ => format!("names are looked up in {file}; another {noun} can be given as a number"),
    };
    findings.push(item.finding(unknown(item.key.clone(), item.found()), Some(help)));
    None
}

fn account_toml(number: u32, name: Option<&str>) -> toml::Value {
    name.map_or_else(|| toml::Value::Integer(number.into()), Into::into)
}
