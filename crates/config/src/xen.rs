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
    /// The name of the guest.
    pub name: GuestName,
    /// The owner of the domains of its programs.
    pub user: User,
    window_mib: Option<WindowMib>,
    vectors: Option<Vectors>,
    maps: Option<bool>,
}

type Vectors = Integer<2, { VECTORS_MAX as u32 }>;

/// The number of vectors of a guest that names none.
const VECTORS: u16 = 64;

const FIELDS: [Field; 5] = [
    Field {
        name: "name",
        expected: GuestName::expected,
        default: "none; required",
        text: "The name of its Xen domain, or the number of the domain. Only domain 0 can read names, so in a driver domain it is the number.",
    },
    USER,
    Field {
        name: "window_mib",
        expected: WindowMib::expected,
        default: "`64`",
        text: "The memory that it may grant to this daemon at once. The rings and channels of its programs are in it. It is granted as needed.",
    },
    Field {
        name: "vectors",
        expected: Vectors::expected,
        default: "`64`",
        text: "The number of doorbells toward it. The daemons use one, and each of the others wakes one domain of the guest.",
    },
    Field {
        name: "maps",
        expected: bool::expected,
        default: "`true`",
        text: "Whether it may map memory that other guests grant to it. Use `false` for guests that are saved or migrated, because a guest with such mappings is not restored whole unless `isthmus guest deny` came first. With `false`, it still grants memory to others; messages between two such guests go through this daemon.",
    },
];

const NAMES: &[&str] = &names(&FIELDS);

impl XenGuest {
    /// The size of its window in bytes.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        window_bytes(self.window_mib)
    }

    /// The number of doorbells toward it.
    #[must_use]
    pub fn vectors(&self) -> u16 {
        self.vectors.map_or(VECTORS, |vectors| vectors.get() as u16)
    }

    /// Whether it may map memory that other guests grant to it.
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
