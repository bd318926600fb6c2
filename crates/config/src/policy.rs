//! The policy: the users that may attach, the domains that may exchange messages, and the paths that they may use.

use std::collections::BTreeSet;

use isthmus_layout::limits::NAME_BYTES_MAX;

use super::fields::{Fields, listed, members};
use super::keys::PolicyConfig;
use super::problem::{Finding, ProblemKind};
use super::setting::{ConfigValue, Grants, Integer, Setting, Talk};
use super::suggest;

/// One of two domains: its name, and the user that the kernel reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicySubject<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its user.
    pub uid: u32,
}

/// The permissions of one domain toward another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it may send messages.
    pub talk: bool,
    /// Whether it may send them by a channel. Never true without `talk`.
    pub channel: bool,
    /// The rule that matched, counted from 0; none if `policy.talk` and `policy.channels` decided.
    pub rule: Option<usize>,
}

impl PolicyConfig {
    /// Whether a program of user `uid` may attach to the daemon of user `own_uid`.
    #[must_use]
    pub fn may_attach(&self, uid: u32, own_uid: u32) -> bool {
        match &self.attach {
            AttachPolicy::SameUser => uid == own_uid,
            AttachPolicy::AnyUser => true,
            AttachPolicy::Users(users) => users.iter().any(|user| user.uid == uid),
        }
    }

    /// Returns the permissions of `from` toward `to`. A channel carries both directions, so it needs this both ways.
    #[must_use]
    pub fn verdict(&self, from: PolicySubject<'_>, to: PolicySubject<'_>) -> Verdict {
        let rule = self.rules.0.iter().position(|rule| rule.from.matches(from.name) && rule.to.matches(to.name));
        let said = rule.map(|index| &self.rules.0[index]);
        let talk = said.and_then(|rule| rule.allow).unwrap_or(match self.talk {
            Talk::SameUser => from.uid == to.uid,
            Talk::All => true,
        });
        let channel = said.and_then(|rule| rule.channel).unwrap_or(self.channels);
        Verdict { talk, channel: talk && channel, rule }
    }

    /// Whether a region may stay granted between these users when its message is over.
    #[must_use]
    pub fn may_keep_grants(&self, owner_uid: u32, reader_uid: u32) -> bool {
        match self.grants {
            Grants::SameUser => owner_uid == reader_uid,
            Grants::Never => false,
        }
    }
}

/// The users that may attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachPolicy {
    /// The user the daemon runs as.
    SameUser,
    /// Every user that reaches the socket.
    AnyUser,
    /// These users only.
    Users(Vec<User>),
}

/// A user by number; the name is kept for readers of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The number that the kernel knows.
    pub uid: u32,
    /// The name that was written, if it was one.
    pub name: Option<String>,
}

impl AttachPolicy {
    const WORDS: &'static [&'static str] = &["same-user", "any-user"];
}

impl Setting for AttachPolicy {
    const TYPE: &'static str = "string or list";
    const BARE: bool = true;

    fn expected() -> String {
        "\"same-user\", \"any-user\" or a list of users (names or numbers)".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        match item.value.get_ref().as_str() {
            Some("same-user") => return Some(Self::SameUser),
            Some("any-user") => return Some(Self::AnyUser),
            Some(word) => {
                let help = match item.users.uid(word) {
                    Some(_) => Some(format!("users are written as a list: [\"{word}\"]")),
                    None => super::setting::did_you_mean(word, Self::WORDS),
                };
                findings.push(item.wrong_text(&Self::expected(), help));
                return None;
            }
            None => {}
        }
        let before = findings.len();
        let mut users = Vec::new();
        let mut seen = BTreeSet::new();
        for member in item.list::<Self>(findings)? {
            let Some(user) = User::read(&member, findings) else { continue };
            if !seen.insert(user.uid) {
                let wrong = ProblemKind::Repeated { key: item.key.clone(), found: format!("the user {}", user.uid) };
                findings.push(member.finding(wrong, None));
            }
            users.push(user);
        }
        (findings.len() == before).then_some(Self::Users(users))
    }

    fn to_toml(&self) -> toml::Value {
        match self {
            Self::SameUser => "same-user".into(),
            Self::AnyUser => "any-user".into(),
            Self::Users(users) => users.iter().map(User::to_toml).collect::<Vec<_>>().into(),
        }
    }
}

impl Setting for User {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        "the name or number of a user".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        if item.value.get_ref().is_integer() {
            // The last number means "no user" to the kernel.
            let uid = Integer::<0, { u32::MAX - 1 }>::read(item, findings)?;
            return Some(Self { uid: uid.get(), name: None });
        }
        let name = item.text::<Self>(findings)?;
        if let Some(uid) = item.users.uid(name) {
            return Some(Self { uid, name: Some(name.to_owned()) });
        }
        let help = match (name.parse::<u32>(), suggest::nearest(name, item.users.names())) {
            (Ok(uid), _) => format!("numbers are written without quotes: {uid}"),
            (_, Some(near)) => format!("did you mean \"{near}\"?"),
            _ => "names are looked up in /etc/passwd; another user can be given as a number".to_owned(),
        };
        findings
            .push(item.finding(ProblemKind::UnknownUser { key: item.key.clone(), found: item.found() }, Some(help)));
        None
    }

    fn to_toml(&self) -> toml::Value {
        match &self.name {
            Some(name) => name.as_str().into(),
            None => toml::Value::Integer(self.uid.into()),
        }
    }
}

/// The rules. The first rule that matches both names decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

impl Rules {
    const LENGTH_MAX: usize = 1024;

    /// In order.
    #[must_use]
    pub fn as_slice(&self) -> &[Rule] {
        &self.0
    }
}

impl Setting for Rules {
    const TYPE: &'static str = "list of tables";
    const EXAMPLE: &'static str = "rules are written as in [{ from = \"web-*\", to = \"db\", allow = true }]";

    fn expected() -> String {
        format!("a list of at most {} tables {{ from, to, allow, channel }}", Self::LENGTH_MAX)
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let rules = members::<Self, Rule>(item, Self::LENGTH_MAX, findings)?;
        let rules = rules.into_iter().map(|(_, rule)| rule).collect();
        (findings.len() == before).then_some(Self(rules))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.iter().map(Rule::to_toml).collect::<Vec<_>>().into()
    }
}

/// The permissions of domains of some names toward domains of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The names of senders.
    pub from: Glob,
    /// The names of receivers.
    pub to: Glob,
    /// Whether they may exchange messages; none leaves it to `policy.talk`.
    pub allow: Option<bool>,
    /// Whether they may have a channel; none leaves it to `policy.channels`.
    pub channel: Option<bool>,
}

impl Rule {
    const FIELDS: &'static [&'static str] = &["from", "to", "allow", "channel"];
}

impl Setting for Rule {
    const TYPE: &'static str = "table";

    fn expected() -> String {
        "a table { from, to, allow, channel }".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let help = |_: &str| format!("a rule has {}", listed(Self::FIELDS));
        let fields = Fields::of::<Self>(item, Self::FIELDS, help, findings)?;
        let rule = Self {
            from: fields.get("from", findings).unwrap_or_else(Glob::any),
            to: fields.get("to", findings).unwrap_or_else(Glob::any),
            allow: fields.get("allow", findings),
            channel: fields.get("channel", findings),
        };
        let conflict = match (rule.allow, rule.channel) {
            _ if findings.len() > before => return None,
            (None, None) => "says neither allow nor channel, so it decides nothing",
            (Some(false), Some(true)) => "allows a channel to domains which it does not allow to talk",
            _ => return Some(rule),
        };
        findings
            .push(item.finding(ProblemKind::Conflict { key: item.key.clone(), conflict: conflict.to_owned() }, None));
        None
    }

    fn to_toml(&self) -> toml::Value {
        let mut table = toml::Table::new();
        table.insert("from".to_owned(), self.from.to_toml());
        table.insert("to".to_owned(), self.to.to_toml());
        for (name, value) in [("allow", self.allow), ("channel", self.channel)] {
            if let Some(value) = value {
                table.insert(name.to_owned(), value.into());
            }
        }
        table.into()
    }
}

/// A pattern for names: `*` is any run of characters, `?` is one, all others are themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    const BYTES_MAX: usize = NAME_BYTES_MAX;

    fn any() -> Self {
        Self("*".to_owned())
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `name` is one of those. Costs at most the product of both lengths, whatever the pattern.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name): (Vec<char>, Vec<char>) = (self.0.chars().collect(), name.chars().collect());
        let (mut at, mut seen) = (0, 0);
        // Behind the last star, and how much of the name was seen when it took one character more.
        let mut star = None;
        while seen < name.len() {
            match (pattern.get(at), star) {
                (Some('*'), _) => {
                    at += 1;
                    star = Some((at, seen));
                }
                (Some(&wanted), _) if wanted == '?' || wanted == name[seen] => (at, seen) = (at + 1, seen + 1),
                (_, Some((behind, taken))) => {
                    (at, seen) = (behind, taken + 1);
                    star = Some((at, seen));
                }
                _ => return false,
            }
        }
        pattern[at..].iter().all(|&rest| rest == '*')
    }
}

impl Setting for Glob {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        format!("a name or pattern (* and ?) of 1 to {} bytes without spaces", Self::BYTES_MAX)
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let fits = (1..=Self::BYTES_MAX).contains(&text.len())
            && !text.contains(|c: char| c.is_whitespace() || c.is_control());
        if !fits {
            findings.push(item.wrong_text(&Self::expected(), None));
        }
        fits.then(|| Self(text.to_owned()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.as_str().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glob_matches_stars_and_question_marks() {
        let cases = [
            ("*", "", true),
            ("*", "abc", true),
            ("web-*", "web-1", true),
            ("web-*", "web", false),
            ("*-db", "a-db-db", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?", "ü", true),
            ("?", "", false),
            ("a?c", "abc", true),
            ("**", "x", true),
            ("abc", "abcd", false),
            ("", "", true),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(Glob(pattern.to_owned()).matches(name), expected, "{pattern} on {name}");
        }
    }

    #[test]
    fn glob_with_many_stars_takes_few_steps() {
        let pattern = Glob("a*".repeat(32));
        assert!(!pattern.matches(&format!("{}b", "a".repeat(31))));
        assert!(!Glob(format!("{}b", "*a".repeat(30))).matches(&"a".repeat(4096)));
    }
}
