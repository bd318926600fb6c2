//! Names of users, and the numbers the kernel knows them by.
//!
//! Only `/etc/passwd` is read: a daemon without libc has no NSS. Users of LDAP are written as numbers.

/// The users of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users(Vec<(String, u32)>);

impl Users {
    /// Reads `/etc/passwd`; no user is known if that cannot be read.
    #[must_use]
    pub fn of_this_host() -> Self {
        std::fs::read("/etc/passwd")
            .map(|bytes| Self::from_passwd(&String::from_utf8_lossy(&bytes)))
            .unwrap_or_default()
    }

    /// Reads the text of a `passwd(5)` file; malformed lines are skipped, as other readers do.
    #[must_use]
    pub fn from_passwd(text: &str) -> Self {
        let user = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with(['#', '+', '-']))?;
            let uid = fields.nth(1)?.parse().ok()?;
            Some((name.to_owned(), uid))
        };
        Self(text.lines().filter_map(user).collect())
    }

    pub(super) fn uid(&self, name: &str) -> Option<u32> {
        self.0.iter().find(|(known, _)| known == name).map(|&(_, uid)| uid)
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
        );
        assert_eq!(users.uid("root"), Some(0));
        assert_eq!(users.uid("ann"), Some(1000));
        assert_eq!(users.uid("bad"), None);
        assert_eq!(users.names().count(), 3);
    }
}
