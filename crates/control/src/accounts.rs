//! The users that limits count. A subordinate user counts as the user that it belongs to, because that user can be any of its subordinate
//! ones at will.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use isthmus_layout::control::Owner;

/// The ranges of subordinate users, as `/etc/subuid` lists them.
#[derive(Debug)]
pub(crate) struct Accounts {
    folder: PathBuf,
    /// The modification time of the file that was read.
    read: Option<SystemTime>,
    /// By the first user of a range: the last one, and the user that they belong to.
    ranges: BTreeMap<u32, (u32, Owner)>,
}

impl Accounts {
    /// Returns the ranges of this host.
    pub(crate) fn of_host() -> Self {
        Self::in_folder(Path::new("/etc"))
    }

    fn in_folder(folder: &Path) -> Self {
        let mut accounts = Self { folder: folder.to_owned(), read: None, ranges: BTreeMap::new() };
        accounts.refresh();
        accounts
    }

    /// Reads the ranges again if the file has changed.
    pub(crate) fn refresh(&mut self) {
        let path = self.folder.join("subuid");
        let changed = std::fs::metadata(&path).and_then(|file| file.modified()).ok();
        if changed == self.read {
            return;
        }
        self.read = changed;
        let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        self.ranges = parse(&text(&path), &text(&self.folder.join("passwd")));
    }

    /// The user that another one counts for.
    pub(crate) fn account_of(&self, user: u32) -> Owner {
        let range = self.ranges.range(..=user).next_back();
        range.filter(|(_, (last, _))| user <= *last).map_or(Owner(user), |(_, (_, owner))| *owner)
    }
}

/// Parses the lines `USER:FIRST:COUNT` of a file, in which a user is a name or a number. Other lines are left out.
fn parse(subuid: &str, passwd: &str) -> BTreeMap<u32, (u32, Owner)> {
    let user = |line: &str| -> Option<(String, u32)> {
        let mut fields = line.split(':');
        Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?))
    };
    let users: HashMap<String, u32> = passwd.lines().filter_map(user).collect();
    let range = |line: &str| -> Option<(u32, (u32, Owner))> {
        let mut fields = line.trim().split(':');
        let name = fields.next()?;
        let owner = name.parse().ok().or_else(|| users.get(name).copied())?;
        let (first, count): (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let last = first.checked_add(count.checked_sub(1)?)?;
        // A range that has its own user, or the administrator, would let that user count as another one.
        let is_sound = first > 0 && !(first..=last).contains(&owner);
        is_sound.then_some((first, (last, Owner(owner))))
    };
    subuid.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n";

    #[test]
    fn subordinate_users_count_as_their_user() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let mut accounts = Accounts::in_folder(folder.path());
        assert_eq!(accounts.account_of(100_000), Owner(100_000), "without a file");
        write("passwd", PASSWD);
        write("subuid", "ann:100000:65536\n1001:165536:10\nsomeone-knows:300000:5\n\nann:7\n");
        accounts.refresh();
        let counted = [0, 1000, 99_999, 100_000, 165_535, 165_536, 165_545, 165_546, 300_000];
        let right = [0, 1000, 99_999, 1000, 1000, 1001, 1001, 165_546, 300_000];
        assert_eq!(counted.map(|user| accounts.account_of(user)), right.map(Owner));
    }

    #[test]
    fn a_range_with_its_own_user_or_root_is_left_out() {
        for line in ["ann:0:65536", "ann:900:200", "ann:5:0", "ann:4294967295:2", "ann:x:1"] {
            assert!(parse(line, PASSWD).is_empty(), "{line}");
        }
    }
}
