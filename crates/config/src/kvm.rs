//! Guests under QEMU: the settings.

use std::path::{Path, PathBuf};

use isthmus_layout::proxy::loops::{LOOP_INTERFACES_MAX, Mac as StationMac};

use super::fields::{Field, Fields, listed, members, names, table};
use super::guests::{ConfiguredGuest, GuestName, USER, WindowMib, window_bytes};
use super::paths::SocketPath;
use super::policy::User;
use super::problem::Finding;
use super::setting::{ConfigValue, Integer, Setting};
use crate::Mac;

/// A guest under QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvmGuest {
    /// The name of the guest.
    pub name: GuestName,
    /// The owner of the domains of its programs.
    pub user: User,
    socket: Option<SocketPath>,
    qemu_user: Option<User>,
    window_mib: Option<WindowMib>,
    vectors: Option<Vectors>,
    monitor: Option<SocketPath>,
    loops: Option<LoopInterfaces>,
}

/// An interface of a guest. Its frames may go to other guests through shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopInterface {
    /// The network. Guests that name the same one reach each other.
    pub network: String,
    mac: Mac,
}

/// The interfaces of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LoopInterfaces(Vec<LoopInterface>);

type Vectors = Integer<2, 64>;

/// The number of vectors of a guest that names none.
const VECTORS: u16 = 16;

const FIELDS: [Field; 8] = [
    Field { name: "name", expected: GuestName::expected, default: "none; required", text: "The name of the guest." },
    USER,
    Field {
        name: "socket",
        expected: SocketPath::expected,
        default: "`guest-<name>.sock` beside `daemon.socket`",
        text: "The socket at which its QEMU finds the device: the path of the character device of an `ivshmem-doorbell`.",
    },
    Field {
        name: "qemu_user",
        expected: User::expected,
        default: "none",
        text: "The user that its QEMU runs as, if not root or the daemon's own user: `libvirt-qemu`. The daemon trusts that user as it trusts QEMU.",
    },
    Field {
        name: "window_mib",
        expected: WindowMib::expected,
        default: "`64`",
        text: "The size of the window that guest and daemon share. The rings and channels of its programs are in it.",
    },
    Field {
        name: "vectors",
        expected: Vectors::expected,
        default: "`16`",
        text: "The number of vectors of its device. The daemons use one, and each of the others wakes one domain of the guest.",
    },
    Field {
        name: "monitor",
        expected: SocketPath::expected,
        default: "none",
        text: "A monitor of its QEMU (QMP) that no other program uses. When two guests with a monitor first exchange messages, the daemon plugs a window into both, which only these two share. Without it, messages to other guests go through this daemon.",
    },
    Field {
        name: "loops",
        expected: LoopInterfaces::expected,
        default: "none",
        text: "The network interfaces of the guest that exchange frames with other guests of this host through shared memory, past the host's bridge and firewall: a list of `{ network, mac }`. `mac` is the MAC address of the interface, and the guest may send from no other one there. Guests exchange frames if their interfaces name the same `network`, for which the name of their bridge is a good choice. All of them need a `monitor`.",
    },
];

const NAMES: &[&str] = &names(&FIELDS);

impl KvmGuest {
    /// The socket at which its QEMU finds its device.
    #[must_use]
    pub fn socket(&self, daemon: &Path) -> PathBuf {
        match &self.socket {
            Some(socket) => socket.path().to_owned(),
            None => daemon.with_file_name(format!("guest-{}.sock", self.name.name())),
        }
    }

    /// The user that its QEMU runs as, beside those that may have the device anyway.
    #[must_use]
    pub fn qemu_user(&self) -> Option<u32> {
        self.qemu_user.as_ref().map(|user| user.uid)
    }

    /// A monitor of its QEMU.
    #[must_use]
    pub fn monitor(&self) -> Option<&Path> {
        self.monitor.as_ref().map(SocketPath::path)
    }

    /// The interfaces that may exchange frames with other guests through shared memory.
    #[must_use]
    pub fn loops(&self) -> &[LoopInterface] {
        self.loops.as_ref().map_or(&[], |loops| &loops.0)
    }

    /// The size of its window in bytes.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        window_bytes(self.window_mib)
    }

    /// The number of vectors of its device.
    #[must_use]
    pub fn vectors(&self) -> u16 {
        self.vectors.map_or(VECTORS, |vectors| vectors.get() as u16)
    }
}

impl ConfiguredGuest for KvmGuest {
    const LABEL: &'static str = "A guest";
    const FIELDS: &'static [Field] = &FIELDS;

    fn unique_values(&self) -> Vec<String> {
        let named = Some(format!("the name {}", self.name.name()));
        let socket = self.socket.as_ref().map(|socket| format!("the socket {}", socket.path().display()));
        let monitor = self.monitor.as_ref().map(|monitor| format!("the monitor {}", monitor.path().display()));
        let macs = self.loops().iter().map(|interface| format!("the MAC address {}", interface.mac()));
        [named, socket, monitor].into_iter().flatten().chain(macs).collect()
    }
}

impl Setting for KvmGuest {
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
            socket: fields.get("socket", findings),
            qemu_user: fields.get("qemu_user", findings),
            window_mib: fields.get("window_mib", findings),
            vectors: fields.get("vectors", findings),
            monitor: fields.get("monitor", findings),
            loops: fields.get("loops", findings),
        };
        if !guest.loops().is_empty() && !fields.has("monitor") {
            let help = "two guests exchange frames through a window that the daemon plugs into both: name the socket of its monitor (QMP)";
            fields.conflict("loops", "needs a `monitor` of the guest", help, findings);
        }
        (findings.len() == before).then_some(guest)
    }

    fn to_toml(&self) -> toml::Value {
        table([
            ("name", Some(self.name.to_toml())),
            ("user", Some(self.user.to_toml())),
            ("socket", self.socket.as_ref().map(Setting::to_toml)),
            ("qemu_user", self.qemu_user.as_ref().map(Setting::to_toml)),
            ("window_mib", self.window_mib.as_ref().map(Setting::to_toml)),
            ("vectors", self.vectors.as_ref().map(Setting::to_toml)),
            ("monitor", self.monitor.as_ref().map(Setting::to_toml)),
            ("loops", self.loops.as_ref().map(Setting::to_toml)),
        ])
    }
}

const NETWORK_BYTES_MAX: usize = 32;

impl LoopInterface {
    /// The MAC address of the interface.
    #[must_use]
    pub fn mac(&self) -> StationMac {
        StationMac::new(self.mac.octets()).expect("the setting accepts addresses of one station only")
    }
}

impl Setting for LoopInterface {
    const TYPE: &'static str = "table";

    fn expected() -> String {
        "a table { network, mac }".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let help = |_: &str| "an interface has network and mac".to_owned();
        let fields = Fields::of::<Self>(item, &["network", "mac"], help, findings)?;
        let (network, mac) = (fields.need::<NetworkName>("network", findings), fields.need("mac", findings));
        Some(Self { network: network?.0, mac: mac? })
    }

    fn to_toml(&self) -> toml::Value {
        table([("network", Some(self.network.as_str().into())), ("mac", Some(self.mac.to_toml()))])
    }
}

struct NetworkName(String);

impl Setting for NetworkName {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        format!("a name of 1 to {NETWORK_BYTES_MAX} letters, digits, dots, - and _")
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
        if !is_plain || text.is_empty() || text.len() > NETWORK_BYTES_MAX {
            findings.push(item.wrong_text(&Self::expected(), None));
            return None;
        }
        Some(Self(text.to_owned()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.as_str().into()
    }
}

impl Setting for LoopInterfaces {
    const TYPE: &'static str = "list of tables";
    const EXAMPLE: &'static str = "interfaces are written as in [{ network = \"br0\", mac = \"52:54:00:00:00:01\" }]";

    fn expected() -> String {
        format!("a list of at most {LOOP_INTERFACES_MAX} tables {{ network, mac }}")
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let interfaces = members::<Self, LoopInterface>(item, LOOP_INTERFACES_MAX, findings)?;
        (findings.len() == before).then(|| Self(interfaces.into_iter().map(|(_, interface)| interface).collect()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.iter().map(Setting::to_toml).collect::<Vec<_>>().into()
    }
}
