//! Identities: what a rule knows of a domain beside the name that its program has chosen.

use super::account::{Group, User};
use super::glob::Glob;
use super::{PolicySubject, Rules};
use crate::fields::{Field, FieldTable, Fields, listed, members, names, table};
use crate::guests::GuestName;
use crate::problem::{Finding, ProblemKind};
use crate::setting::{ConfigValue, Setting};

/// The properties that a domain needs: all that are given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityPattern {
    /// The user of its program.
    pub user: Option<User>,
    /// A group of its program.
    pub group: Option<Group>,
    /// The cgroup of its program.
    pub cgroup: Option<CgroupPattern>,
    /// The guest that it runs in.
    pub guest: Option<GuestName>,
}

/// Fields of [`IdentityPattern`].
const FIELDS: [Field; 4] = [
    Field {
        name: "user",
        expected: User::expected,
        default: "any",
        text: "The user that owns the domain, as the daemon sees it. Programs of a guest belong to the `user` of the guest.",
    },
    Field {
        name: "group",
        expected: Group::expected,
        default: "any",
        text: "A group that the program had when it connected, as its own or as a supplementary one. Programs of a guest have none.",
    },
    Field {
        name: "cgroup",
        expected: CgroupPattern::expected,
        default: "any",
        text: "The cgroup (version 2) of the program: a container, a systemd unit or a pod. The pattern has the whole path from the root, as `/proc/<pid>/cgroup` shows it to the daemon. `*` and `?` do not match a `/`, and cgroups below one that matches do match. The cgroup counts in which the program was when it attached. Programs of a guest have none. Linux before 6.5 does not report the process of a connection safely; there, no program has a cgroup.",
    },
    Field {
        name: "guest",
        expected: GuestName::expected,
        default: "any",
        text: "The guest that the program runs in: the `name` of a `[[kvm.guest]]` or `[[xen.guest]]`.",
    },
];

const NAME: Field = Field {
    name: "name",
    expected: Glob::expected,
    default: "none; required",
    text: "The names that are bound: one name, or a pattern.",
};

const BINDING_FIELDS: [Field; 5] = {
    let [user, group, cgroup, guest] = FIELDS;
    [NAME, user, group, cgroup, guest]
};

const NAMES: &[&str] = &names(&BINDING_FIELDS);

impl IdentityPattern {
    fn read(fields: &Fields<'_, '_>, findings: &mut Vec<Finding>) -> Self {
        Self {
            user: fields.get("user", findings),
            group: fields.get("group", findings),
            cgroup: fields.get("cgroup", findings),
            guest: fields.get("guest", findings),
        }
    }

    fn to_toml(&self, name: &Glob) -> toml::Value {
        table([
            ("name", Some(name.to_toml())),
            ("user", self.user.as_ref().map(Setting::to_toml)),
            ("group", self.group.as_ref().map(Setting::to_toml)),
            ("cgroup", self.cgroup.as_ref().map(Setting::to_toml)),
            ("guest", self.guest.as_ref().map(Setting::to_toml)),
        ])
    }

    /// Whether no property is given, so that every domain has them.
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn matches(&self, domain: PolicySubject<'_>) -> bool {
        self.user.as_ref().is_none_or(|user| user.uid == domain.uid)
            && self.group.as_ref().is_none_or(|group| domain.gids.contains(&group.gid))
            && self.cgroup.as_ref().is_none_or(|pattern| domain.cgroup.is_some_and(|path| pattern.matches(path)))
            && self.guest.as_ref().is_none_or(|guest| domain.guest == Some(guest.name().as_str()))
    }
}

/// One side of a rule: the domains that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// Their names.
    pub name: Glob,
    /// Their identity.
    pub identity: IdentityPattern,
}

impl Selector {
    /// Every domain.
    pub(super) fn any() -> Self {
        Self { name: Glob::any(), identity: IdentityPattern::default() }
    }

    /// Whether `domain` is one of these domains.
    pub(super) fn matches(&self, domain: PolicySubject<'_>) -> bool {
        self.identity.matches(domain) && self.name.matches(domain.name)
    }

    /// The pattern, if these domains are known by a name only, and a program of every user can choose such a name.
    pub(crate) fn unbound_name(&self, names: &NameBindings) -> Option<&Glob> {
        let is_bound = self.name.is_any() || names.0.iter().any(|binding| binding.name.covers(&self.name));
        (self.identity.is_empty() && !is_bound).then_some(&self.name)
    }
}

impl Setting for Selector {
    const TYPE: &'static str = "string or table";

    fn expected() -> String {
        format!("{}, or a table {{ {} }}", Glob::expected(), NAMES.join(", "))
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        if item.value.get_ref().is_str() {
            return Glob::read(item, findings).map(|name| Self { name, identity: IdentityPattern::default() });
        }
        let before = findings.len();
        let help = |_: &str| format!("a domain in a rule has {}", listed(NAMES));
        let fields = Fields::of::<Self>(item, NAMES, help, findings)?;
        let name = fields.get("name", findings).unwrap_or_else(Glob::any);
        let selector = Self { name, identity: IdentityPattern::read(&fields, findings) };
        (findings.len() == before).then_some(selector)
    }

    fn to_toml(&self) -> toml::Value {
        if self.identity.is_empty() { self.name.to_toml() } else { self.identity.to_toml(&self.name) }
    }
}

/// Names, and the identity of the domains that may have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameBinding {
    /// The names.
    pub name: Glob,
    /// The identity.
    pub identity: IdentityPattern,
}

impl Setting for NameBinding {
    const TYPE: &'static str = "table";

    fn expected() -> String {
        format!("a table {{ {} }}", NAMES.join(", "))
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let help = |_: &str| format!("a bound name has {}", listed(NAMES));
        let fields = Fields::of::<Self>(item, NAMES, help, findings)?;
        let name = fields.need("name", findings);
        let identity = IdentityPattern::read(&fields, findings);
        if findings.len() == before && identity.is_empty() {
            let conflict = "binds the name to no user, group, cgroup or guest";
            fields.refuse(conflict, "add one of them, as in { name = \"web-*\", user = \"www\" }", findings);
        }
        (findings.len() == before).then_some(Self { name: name?, identity })
    }

    fn to_toml(&self) -> toml::Value {
        self.identity.to_toml(&self.name)
    }
}

/// The bound names. The first entry with a pattern that matches a name decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameBindings(Vec<NameBinding>);

impl NameBindings {
    /// In order.
    #[must_use]
    pub fn as_slice(&self) -> &[NameBinding] {
        &self.0
    }

    /// The entry that keeps `domain` from having its name.
    pub(super) fn forbidding(&self, domain: PolicySubject<'_>) -> Option<&NameBinding> {
        let binding = self.0.iter().find(|binding| binding.name.matches(domain.name))?;
        (!binding.identity.matches(domain)).then_some(binding)
    }
}

impl Setting for NameBindings {
    const TYPE: &'static str = "list of tables";
    const EXAMPLE: &'static str = "bound names are written as in [{ name = \"web-*\", user = \"www\" }]";
    const TABLES: &'static [FieldTable] = &[FieldTable { of: "A bound name", fields: &BINDING_FIELDS }];

    fn expected() -> String {
        format!("a list of at most {} tables {{ {} }}", Rules::LENGTH_MAX, NAMES.join(", "))
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let bindings = members::<Self, NameBinding>(item, Rules::LENGTH_MAX, findings)?;
        (findings.len() == before).then(|| Self(bindings.into_iter().map(|(_, binding)| binding).collect()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.iter().map(Setting::to_toml).collect::<Vec<_>>().into()
    }
}

/// A pattern for paths of cgroups. Cgroups below one that matches match as well: their creator has been given that cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupPattern {
    text: String,
    segments: Vec<Glob>,
}

impl CgroupPattern {
    const BYTES_MAX: usize = 1024;

    /// Whether a cgroup has a path of this pattern, or lies below one. A path above the daemon's own root does not match.
    fn matches(&self, path: &str) -> bool {
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        segments.len() >= self.segments.len()
            && !segments.contains(&"..")
            && self.segments.iter().zip(segments).all(|(pattern, segment)| pattern.matches(segment))
    }
}

impl Setting for CgroupPattern {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        format!("a path or pattern (* and ?) of up to {} bytes, as in \"/system.slice/web.service\"", Self::BYTES_MAX)
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let segments = || text.split('/').skip(1);
        let fits = text.starts_with('/')
            && text.len() <= Self::BYTES_MAX
            && !text.contains(char::is_control)
            && segments().all(|segment| !matches!(segment, "" | "." | ".."));
        if !fits {
            let key = item.key.clone();
            let wrong = ProblemKind::WrongText { key, found: item.found(), expected: Self::expected() };
            findings.push(item.finding(wrong, Some("isthmus domain list --json shows cgroups of programs".to_owned())));
        }
        fits.then(|| Self { text: text.to_owned(), segments: segments().map(Glob::segment).collect() })
    }

    fn to_toml(&self) -> toml::Value {
        self.text.as_str().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_pattern_matches_whole_segments_from_the_root() {
        let cases = [
            ("/system.slice/web.service", "/system.slice/web.service", true),
            ("/system.slice/web.service", "/system.slice/web.service/worker", true),
            ("/system.slice/web.service", "/system.slice/web.service2", false),
            ("/system.slice/web.service", "/user.slice/system.slice/web.service", false),
            ("/system.slice/docker-*.scope", "/system.slice/docker-0a1b.scope", true),
            ("/system.slice/docker-*.scope", "/system.slice/docker-a/b.scope", false),
            ("/*/web.service", "/user.slice/evil/web.service", false),
            ("/*/web.service", "/../web.service", false),
            ("/a", "/a/../b", false),
            ("/a", "/", false),
            ("/a/?", "/a/b", true),
            ("/a/?", "/a", false),
        ];
        for (pattern, path, expected) in cases {
            let segments = pattern.split('/').skip(1).map(Glob::segment).collect();
            let pattern = CgroupPattern { text: pattern.to_owned(), segments };
            assert_eq!(pattern.matches(path), expected, "{pattern:?} on {path}");
        }
    }
}
