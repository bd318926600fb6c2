//! Guests under QEMU: the settings.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use isthmus_layout::control::Name;

use super::fields::{Field, FieldTable, Fields, listed, members, names};
use super::places::SocketPath;
use super::policy::User;
use super::problem::{Finding, Wrong};
use super::setting::{Integer, Item, PowerOfTwoMib, Setting};

/// Guests of one daemon.
const GUESTS_MAX: usize = 256;

/// Their names are those of files, too.
const NAME_BYTES_MAX: usize = 32;

/// The guests, in the order they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guests(Vec<KvmGuest>);

impl Guests {
    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[KvmGuest] {
        &self.0
    }
}

impl Setting for Guests {
    const TYPE: &'static str = "list of tables";
    const EXAMPLE: &'static str = "guests are written as in [{ name = \"web\", user = \"ann\" }]";
    const TABLES: &'static [FieldTable] = &[FieldTable { of: "A guest", fields: &KvmGuest::FIELDS }];

    fn expected() -> String {
        format!("a list of at most {GUESTS_MAX} tables {{ {} }}", KvmGuest::NAMES.join(", "))
    }

    fn read(item: &Item<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let guests = members::<Self, KvmGuest>(item, GUESTS_MAX, findings)?;
        let mut seen = BTreeSet::new();
        for (member, guest) in &guests {
            let socket = guest.socket.as_ref().map(|socket| format!("the socket {}", socket.path().display()));
            let monitor = guest.monitor.as_ref().map(|monitor| format!("the monitor {}", monitor.path().display()));
            let named = [Some(format!("the name {}", guest.name.0)), socket, monitor];
            for found in named.into_iter().flatten().filter(|named| !seen.insert(named.clone())) {
                findings.push(member.finding(Wrong::Repeated { key: item.key.clone(), found }, None));
            }
        }
        (findings.len() == before).then(|| Self(guests.into_iter().map(|(_, guest)| guest).collect()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.iter().map(KvmGuest::to_toml).collect::<Vec<_>>().into()
    }
}

/// What a guest is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestName(Name);

impl GuestName {
    /// As reports show it.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.0
    }
}

impl Setting for GuestName {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        format!("1 to {NAME_BYTES_MAX} letters, digits, - and _")
    }

    fn read(item: &Item<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        let name = Name::new(text).ok().filter(|_| is_plain && text.len() <= NAME_BYTES_MAX);
        if name.is_none() {
            findings.push(item.wrong_text(&Self::expected(), None));
        }
        name.map(Self)
    }

    fn to_toml(&self) -> toml::Value {
        self.0.as_str().into()
    }
}

/// A guest under QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvmGuest {
    /// What it is called.
    pub name: GuestName,
    /// Whose the domains of its programs are.
    pub user: User,
    socket: Option<SocketPath>,
    window_mib: Option<Window>,
    vectors: Option<Vectors>,
    monitor: Option<SocketPath>,
}

type Window = PowerOfTwoMib<1, 4096>;
type Vectors = Integer<2, 64>;

/// What a guest has that says nothing about it.
const WINDOW_BYTES: u64 = 64 << 20;
const VECTORS: u16 = 16;

impl KvmGuest {
    const FIELDS: [Field; 6] = [
        Field {
            name: "name",
            expected: GuestName::expected,
            default: "none: it has to be there",
            text: "What it is called.",
        },
        Field {
            name: "user",
            expected: User::expected,
            default: "none: it has to be there",
            text: "Whose the domains of its programs are on this host, whoever they are in the guest. `policy.attach` has to admit the user.",
        },
        Field {
            name: "socket",
            expected: SocketPath::expected,
            default: "`guest-<name>.sock` beside `daemon.socket`",
            text: "Where its QEMU finds its device: the path of the character device of an `ivshmem-doorbell`.",
        },
        Field {
            name: "window_mib",
            expected: Window::expected,
            default: "`64`",
            text: "The window that it and this daemon share: what its programs' rings and channels are in.",
        },
        Field {
            name: "vectors",
            expected: Vectors::expected,
            default: "`16`",
            text: "Vectors of its device: one is the daemons', each of the others wakes one domain of the guest.",
        },
        Field {
            name: "monitor",
            expected: SocketPath::expected,
            default: "none: its messages to other guests go through this daemon",
            text: "A monitor of its QEMU (QMP) that nobody else uses. Into two guests that have one the daemon plugs a window which only these two share, when they first talk.",
        },
    ];

    const NAMES: &'static [&'static str] = &names(&Self::FIELDS);

    /// Where its QEMU finds its device.
    #[must_use]
    pub fn socket(&self, daemon: &Path) -> PathBuf {
        match &self.socket {
            Some(socket) => socket.path().to_owned(),
            None => daemon.with_file_name(format!("guest-{}.sock", self.name.0)),
        }
    }

    /// A monitor of its QEMU.
    #[must_use]
    pub fn monitor(&self) -> Option<&Path> {
        self.monitor.as_ref().map(SocketPath::path)
    }

    /// Bytes of its window.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        self.window_mib.map_or(WINDOW_BYTES, |window| u64::from(window.get()) << 20)
    }

    /// Vectors of its device.
    #[must_use]
    pub fn vectors(&self) -> u16 {
        self.vectors.map_or(VECTORS, |vectors| vectors.get() as u16)
    }
}

impl Setting for KvmGuest {
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
            socket: fields.get("socket", findings),
            window_mib: fields.get("window_mib", findings),
            vectors: fields.get("vectors", findings),
            monitor: fields.get("monitor", findings),
        };
        (findings.len() == before).then_some(guest)
    }

    fn to_toml(&self) -> toml::Value {
        let fields = [
            ("name", Some(self.name.to_toml())),
            ("user", Some(self.user.to_toml())),
            ("socket", self.socket.as_ref().map(Setting::to_toml)),
            ("window_mib", self.window_mib.as_ref().map(Setting::to_toml)),
            ("vectors", self.vectors.as_ref().map(Setting::to_toml)),
            ("monitor", self.monitor.as_ref().map(Setting::to_toml)),
        ];
        let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        toml::Value::Table(fields.collect())
    }
}
