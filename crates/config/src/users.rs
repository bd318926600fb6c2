//! Names of users and groups, and the numbers the kernel knows them by.
//!
//! Only `/etc/passwd` and `/etc/group` are read: a daemon without libc has no NSS. Users of LDAP are written as numbers.

/// The users and groups of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    pub(super) users: Accounts,
    pub(super) groups: Accounts,
}

impl Users {
    /// Reads `/etc/passwd` and `/etc/group`; a file that cannot be read has no accounts.
    #[must_use]
    pub fn of_this_host() -> Self {
        let text = |path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        Self::from_passwd(&text("/etc/passwd")).with_groups(&text("/etc/group"))
    }

    /// Reads the text of a `passwd(5)` file; malformed lines are skipped, as other readers do.
    #[must_use]
    pub fn from_passwd(text: &str) -> Self {
        Self { users: Accounts::parse(text), groups: Accounts::default() }
    }

    /// Adds the text of a `group(5)` file.
    #[must_use]
    pub fn with_groups(self, text: &str) -> Self {
        Self { groups: Accounts::parse(text), ..self }
    }
}

/// Names and their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Accounts(Vec<(String, u32)>);

impl Accounts {
    /// Reads lines that begin with a name, a password and a number.
    fn parse(text: &str) -> Self {
        let account = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with(['#', '+', '-']))?;
            let number = fields.nth(1)?.parse().ok()?;
            Some((name.to_owned(), number))
        };
        Self(text.lines().filter_map(account).collect())
    }

    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.0.iter().find(|(known, _)| known == name).map(|&(_, number)| number)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_passwd_takes_the_first_of_a_name_and_skips_lines_without_a_user() {
        let users = Users::from_passwd(
            "root:x:0:0:root:/root:/bin/sh\n\n# c\n+nis\nbad:x:y:0\nann:x:1000:1000::/:/bin/sh\nann:x:7:7::/:\n",
        )
        .with_groups("wheel:x:10:ann\n");
        assert_eq!(users.users.number("root"), Some(0));
        assert_eq!(users.users.number("ann"), Some(1000));
        assert_eq!(users.users.number("bad"), None);
        assert_eq!(users.users.names().count(), 3);
        assert_eq!((users.groups.number("wheel"), users.groups.number("ann")), (Some(10), None));
    }
}
