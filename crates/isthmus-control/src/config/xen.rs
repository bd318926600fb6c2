//! Guests of Xen: the settings.

use std::collections::BTreeSet;

use isthmus_layout::border::lots::VECTORS_MAX;

use super::fields::{Field, FieldTable, Fields, listed, members, names};
use super::kvm::GuestName;
use super::policy::User;
use super::problem::{Finding, Wrong};
use super::setting::{Integer, Item, PowerOfTwoMib, Setting};

/// Guests of one daemon.
const GUESTS_MAX: usize = 256;

/// The guests, in the order they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XenGuests(Vec<XenGuest>);

impl XenGuests {
    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[XenGuest] {
        &self.0
    }
}

impl Setting for XenGuests {
    const TYPE: &'static str = "list of tables";
    const EXAMPLE: &'static str = "guests are written as in [{ name = \"web\", user = \"ann\" }]";
    const TABLES: &'static [FieldTable] = &[FieldTable { of: "A guest of Xen", fields: &XenGuest::FIELDS }];

    fn expected() -> String {
        format!("a list of at most {GUESTS_MAX} tables {{ {} }}", XenGuest::NAMES.join(", "))
    }

    fn read(item: &Item<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let guests = members::<Self, XenGuest>(item, GUESTS_MAX, findings)?;
        let mut seen = BTreeSet::new();
        for (member, guest) in &guests {
            let named = format!("the name {}", guest.name.name());
            if !seen.insert(named.clone()) {
                findings.push(member.finding(Wrong::Repeated { key: item.key.clone(), found: named }, None));
            }
        }
        (findings.len() == before).then(|| Self(guests.into_iter().map(|(_, guest)| guest).collect()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.iter().map(XenGuest::to_toml).collect::<Vec<_>>().into()
    }
}

/// A guest of Xen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XenGuest {
    /// What it is called.
    pub name: GuestName,
    /// Whose the domains of its programs are.
    pub user: User,
    window_mib: Option<Window>,
    vectors: Option<Vectors>,
}

type Window = PowerOfTwoMib<1, 4096>;
type Vectors = Integer<2, { VECTORS_MAX as u32 }>;

/// What a guest has that says nothing about it.
const WINDOW_BYTES: u64 = 64 << 20;
const VECTORS: u16 = 64;

impl XenGuest {
    const FIELDS: [Field; 4] = [
        Field {
            name: "name",
            expected: GuestName::expected,
            default: "none: it has to be there",
            text: "What it is called: the name of its domain, or the domain's number. Only domain 0 can read names; in a driver domain it is the number.",
        },
        Field {
            name: "user",
            expected: User::expected,
            default: "none: it has to be there",
            text: "Whose the domains of its programs are on this host, whoever they are in the guest. `policy.attach` has to admit the user.",
        },
        Field {
            name: "window_mib",
            expected: Window::expected,
            default: "`64`",
            text: "How much it may grant to this daemon at once: what its programs' rings and channels are in. It is granted as it is needed.",
        },
        Field {
            name: "vectors",
            expected: Vectors::expected,
            default: "`64`",
            text: "Bells toward it: one is the daemons', each of the others wakes one domain of the guest.",
        },
    ];

    const NAMES: &'static [&'static str] = &names(&Self::FIELDS);

    /// Bytes of its window.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        self.window_mib.map_or(WINDOW_BYTES, |window| u64::from(window.get()) << 20)
    }

    /// Bells toward it.
    #[must_use]
    pub fn vectors(&self) -> u16 {
        self.vectors.map_or(VECTORS, |vectors| vectors.get() as u16)
    }
}

impl Setting for XenGuest {
    const TYPE: &'static str = "table";

    fn expected() -> String {
        format!("a table {{ {} }}", Self::NAMES.join(", "))
    }

    fn read(item: &Item<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let help = |_: &str| format!("a guest has {}", listed(Self::NAMES));
        let fields = Fields::of::<Self>(item, Self::NAMES, help, findings)?;
        let (name, user) = (fields.need("name", findings), fields.need("user", findings));
        let guest = Self {
            name: name?,
            user: user?,
            window_mib: fields.get("window_mib", findings),
            vectors: fields.get("vectors", findings),
        };
        (findings.len() == before).then_some(guest)
    }

    fn to_toml(&self) -> toml::Value {
        let fields = [
            ("name", Some(self.name.to_toml())),
            ("user", Some(self.user.to_toml())),
            ("window_mib", self.window_mib.as_ref().map(Setting::to_toml)),
            ("vectors", self.vectors.as_ref().map(Setting::to_toml)),
        ];
        let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        toml::Value::Table(fields.collect())
    }
}
