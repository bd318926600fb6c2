//! The policy: the users that may attach, the domains that may exchange messages, and the paths that they may use.

mod account;
mod glob;
mod identity;

use std::collections::BTreeSet;

pub use account::{Group, User};
pub use glob::Glob;
pub use identity::{CgroupPattern, IdentityPattern, NameBinding, NameBindings, Selector};

use super::fields::{Field, FieldTable, Fields, listed, members, names, table};
use super::keys::PolicyConfig;
use super::problem::{Finding, ProblemKind};
use super::setting::{ConfigValue, Setting, Talk};

/// A domain: its name, and what the kernel reports of its program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicySubject<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its user.
    pub uid: u32,
    /// Its groups.
    pub gids: &'a [u32],
    /// The path of its cgroup, if it is known.
    pub cgroup: Option<&'a str>,
    /// The guest that it runs in.
    pub guest: Option<&'a str>,
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
        let rule = self.rules.0.iter().position(|rule| rule.from.matches(from) && rule.to.matches(to));
        let said = rule.map(|index| &self.rules.0[index]);
        let talk = said.and_then(|rule| rule.allow).unwrap_or(match self.talk {
            Talk::SameUser => from.uid == to.uid,
            Talk::All => true,
        });
        let channel = said.and_then(|rule| rule.channel).unwrap_or(self.channels);
        Verdict { talk, channel: talk && channel, rule }
    }

    /// Returns the entry of `policy.names` that keeps a domain from having its name.
    #[must_use]
    pub fn forbidding_name(&self, domain: PolicySubject<'_>) -> Option<&NameBinding> {
        self.names.forbidding(domain)
    }

    /// Whether rules or bound names depend on cgroups.
    #[must_use]
    pub fn uses_cgroups(&self) -> bool {
        let sides = self.rules.0.iter().flat_map(|rule| [&rule.from.identity, &rule.to.identity]);
        sides.chain(self.names.as_slice().iter().map(|binding| &binding.identity)).any(|id| id.cgroup.is_some())
    }

    /// Whether a rule lets programs of different users exchange more than without it.
    pub(super) fn allows_across_users(&self, rule: &Rule) -> bool {
        let by_channel = rule.channel == Some(true) && rule.allow.is_none() && self.talk == Talk::All;
        self.attach != AttachPolicy::SameUser && (rule.allow == Some(true) || by_channel)
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
                let help = match item.users.users.number(word) {
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

/// The rules. The first rule that matches both domains decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

impl Rules {
    pub(super) const LENGTH_MAX: usize = 1024;

    /// In order.
    #[must_use]
    pub fn as_slice(&self) -> &[Rule] {
        &self.0
    }
}

impl Setting for Rules {
    const TYPE: &'static str = "list of tables";
    const EXAMPLE: &'static str =
        "rules are written as in [{ from = { user = \"www\" }, to = { user = \"postgres\" }, allow = true }]";
    const TABLES: &'static [FieldTable] = &[FieldTable { of: "A rule", fields: &RULE_FIELDS }];

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

/// The permissions of some domains toward others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The senders.
    pub from: Selector,
    /// The receivers.
    pub to: Selector,
    /// Whether they may exchange messages; none leaves it to `policy.talk`.
    pub allow: Option<bool>,
    /// Whether they may have a channel; none leaves it to `policy.channels`.
    pub channel: Option<bool>,
}

const RULE_FIELDS: [Field; 4] = [
    Field {
        name: "from",
        expected: Selector::expected,
        default: "all domains",
        text: "The senders: a table with the fields of a bound name, all of which have to match, or a string, which is short for a table with a `name`. Programs choose their names, unless `policy.names` binds them.",
    },
    Field {
        name: "to",
        expected: Selector::expected,
        default: "all domains",
        text: "The receivers, in the same form.",
    },
    Field {
        name: "allow",
        expected: bool::expected,
        default: "`policy.talk` decides",
        text: "Whether they may exchange messages.",
    },
    Field {
        name: "channel",
        expected: bool::expected,
        default: "`policy.channels` decides",
        text: "Whether they may have a channel.",
    },
];

const RULE_NAMES: &[&str] = &names(&RULE_FIELDS);

impl Setting for Rule {
    const TYPE: &'static str = "table";

    fn expected() -> String {
        "a table { from, to, allow, channel }".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let help = |_: &str| format!("a rule has {}", listed(RULE_NAMES));
        let fields = Fields::of::<Self>(item, RULE_NAMES, help, findings)?;
        let rule = Self {
            from: fields.get("from", findings).unwrap_or_else(Selector::any),
            to: fields.get("to", findings).unwrap_or_else(Selector::any),
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
        table([
            ("from", Some(self.from.to_toml())),
            ("to", Some(self.to.to_toml())),
            ("allow", self.allow.map(Into::into)),
            ("channel", self.channel.map(Into::into)),
        ])
    }
}
