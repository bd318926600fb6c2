//! Guests of Xen: the settings.

use isthmus_layout::proxy::grants::VECTORS_MAX;

use super::fields::{Field, Fields, listed, names, table};
use super::guests::{ConfiguredGuest, GuestName, USER, WindowMib, window_bytes};
use super::policy::User;
use super::problem::Finding;
use super::setting::{ConfigValue, Integer, Setting};

/// A guest of Xen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XenGuest {
    /// What it is called.
    pub name: GuestName,
    /// Whose the domains of its programs are.
    pub user: User,
    window_mib: Option<WindowMib>,
    vectors: Option<Vectors>,
    maps: Option<bool>,
}

type Vectors = Integer<2, { VECTORS_MAX as u32 }>;

/// What a guest has that says nothing about it.
const VECTORS: u16 = 64;

const FIELDS: [Field; 5] = [
    Field {
        name: "name",
        expected: GuestName::expected,
        default: "none: it has to be there",
        text: "What it is called: the name of its domain, or the domain's number. Only domain 0 can read names; in a driver domain it is the number.",
    },
    USER,
    Field {
        name: "window_mib",
        expected: WindowMib::expected,
        default: "`64`",
        text: "How much it may grant to this daemon at once: what its programs' rings and channels are in. It is granted as it is needed.",
    },
    Field {
        name: "vectors",
        expected: Vectors::expected,
        default: "`64`",
        text: "Doorbells toward it: one is the daemons', each of the others wakes one domain of the guest.",
    },
    Field {
        name: "maps",
        expected: bool::expected,
        default: "`true`",
        text: "Whether it may map what other guests grant to it. One that does, and is saved without `isthmus guest deny` before, does not come back whole: `false` is for guests that are saved or migrated. It grants to others then, and programs of two such guests talk through this daemon.",
    },
];

const NAMES: &[&str] = &names(&FIELDS);

impl XenGuest {
    /// Bytes of its window.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        window_bytes(self.window_mib)
    }

    /// Doorbells toward it.
    #[must_use]
    pub fn vectors(&self) -> u16 {
        self.vectors.map_or(VECTORS, |vectors| vectors.get() as u16)
    }

    /// Whether it may map what other guests grant to it.
    #[must_use]
    pub fn may_map(&self) -> bool {
        self.maps.unwrap_or(true)
    }
}

impl ConfiguredGuest for XenGuest {
    const LABEL: &'static str = "A guest of Xen";
    const FIELDS: &'static [Field] = &FIELDS;

    fn unique_values(&self) -> Vec<String> {
        vec![format!("the name {}", self.name.name())]
    }
}

impl Setting for XenGuest {
    const TYPE: &'static str = "table";

    fn expected() -> String {
        format!("a table {{ {} }}", NAMES.join(", "))
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let help = |_: &str| format!("a guest has {}", listed(NAMES));
        let fields = Fields::of::<Self>(item, NAMES, help, findings)?;
        let (name, user) = (fields.need("name", findings), fields.need("user", findings));
        let guest = Self {
            name: name?,
            user: user?,
            window_mib: fields.get("window_mib", findings),
            vectors: fields.get("vectors", findings),
            maps: fields.get("maps", findings),
        };
        (findings.len() == before).then_some(guest)
    }

    fn to_toml(&self) -> toml::Value {
        table([
            ("name", Some(self.name.to_toml())),
            ("user", Some(self.user.to_toml())),
            ("window_mib", self.window_mib.as_ref().map(Setting::to_toml)),
            ("vectors", self.vectors.as_ref().map(Setting::to_toml)),
            ("maps", self.maps.as_ref().map(Setting::to_toml)),
        ])
    }
}
