//! Interfaces: how containers and this host are attached to an overlay network.

use std::fmt;
use std::path::{Path, PathBuf};

use super::value::{Addresses, InterfaceAddress, InterfaceName, Namespace, SourceMacs};
use crate::Mac;
use crate::fields::{Field, Fields, listed, names, table};
use crate::problem::Finding;
use crate::setting::{ConfigValue, Integer, Setting};

/// The network namespace that an interface is created in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The namespace of the helper: that of the host.
    Host,
    /// A namespace, by its file.
    Namespace(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("the host"),
            Self::Namespace(path) => path.display().fmt(f),
        }
    }
}

/// The MTU, as Linux limits it.
type Mtu = Integer<68, 65_535>;

/// An interface of an overlay network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    name: InterfaceName,
    namespace: Option<Namespace>,
    mac: Option<Mac>,
    mtu: Option<Mtu>,
    addresses: Addresses,
    bridge: Option<InterfaceName>,
    source_macs: Option<SourceMacs>,
}

impl Interface {
    pub(super) const FIELDS: [Field; 7] = [
        Field {
            name: "name",
            expected: InterfaceName::expected,
            default: "none; required",
            text: "The name of the interface, which the daemon creates.",
        },
        Field {
            name: "namespace",
            expected: Namespace::expected,
            default: "that of the host",
            text: "The network namespace of a container: its name under `/run/netns`, or the path of its file, as in `/proc/4711/ns/net`. The daemon waits until it exists.",
        },
        Field {
            name: "mac",
            expected: Mac::expected,
            default: "generated from the host, the network and the name",
            text: "The MAC address of the interface.",
        },
        Field {
            name: "mtu",
            expected: Mtu::expected,
            default: "`1500`; if the network has `vxlan` or `udp` edges, what fits a datagram of their paths",
            text: "The MTU of the interface. All interfaces of a network need the same one.",
        },
        Field {
            name: "addresses",
            expected: Addresses::expected,
            default: "`[]`",
            text: "IP addresses with prefix lengths, which the interface gets.",
        },
        Field {
            name: "bridge",
            expected: InterfaceName::expected,
            default: "none",
            text: "The bridge of Linux that the interface becomes a port of, as for guests of QEMU. It is in the same namespace; the daemon waits until it exists.",
        },
        Field {
            name: "source_macs",
            expected: SourceMacs::expected,
            default: "`\"any\"` with `bridge`, otherwise `[]`",
            text: "The MAC addresses that frames of the interface may come from, besides its own: a list, as for VRRP, or `\"any\"`, as for macvlan or a bridge that the interface is put into by hand. Frames from others are dropped as `foreign-source`.",
        },
    ];

    pub(super) const NAMES: &'static [&'static str] = &names(&Self::FIELDS);

    /// The name of the interface in its namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The name of the interface in reports: `lan0` in the host's namespace, `lan0@web` in that of a container. A namespace that is written as
    /// `/proc/4711/ns/net` is `4711`; other paths stand for themselves by their last part.
    #[must_use]
    pub fn label(&self) -> String {
        label(self.name.as_str(), self.namespace.as_ref().map(Namespace::as_str))
    }

    /// The namespace that the interface is created in.
    #[must_use]
    pub fn place(&self) -> Place {
        match &self.namespace {
            None => Place::Host,
            Some(namespace) if namespace.as_str().starts_with('/') => {
                Place::Namespace(PathBuf::from(namespace.as_str()))
            }
            Some(namespace) => Place::Namespace(Path::new("/run/netns").join(namespace.as_str())),
        }
    }

    /// The MAC address, if it was written.
    #[must_use]
    pub fn mac(&self) -> Option<[u8; 6]> {
        self.mac.map(Mac::octets)
    }

    /// The MTU, if it was written.
    #[must_use]
    pub fn mtu(&self) -> Option<u16> {
        self.mtu.map(|mtu| mtu.get() as u16) // At most 65535.
    }

    /// The IP addresses of the interface.
    #[must_use]
    pub fn addresses(&self) -> &[InterfaceAddress] {
        self.addresses.as_slice()
    }

    /// The bridge that the interface becomes a port of.
    #[must_use]
    pub fn bridge(&self) -> Option<&str> {
        self.bridge.as_ref().map(InterfaceName::as_str)
    }

    /// The MAC addresses besides its own that the interface may send from. None if it may send from any.
    #[must_use]
    pub fn source_macs(&self) -> Option<&[Mac]> {
        match &self.source_macs {
            Some(SourceMacs::Listed(macs)) => Some(macs),
            None if self.bridge.is_none() => Some(&[]),
            Some(SourceMacs::Any) | None => None,
        }
    }
}

/// The name of an interface in reports.
pub(super) fn label(name: &str, namespace: Option<&str>) -> String {
    match namespace {
        None => name.to_owned(),
        Some(namespace) => format!("{name}@{}", Namespace::short(namespace)),
    }
}

impl Setting for Interface {
    const TYPE: &'static str = "table";

    fn expected() -> String {
        format!("a table {{ {} }}", Self::NAMES.join(", "))
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let help = |_: &str| format!("an interface has {}", listed(Self::NAMES));
        let fields = Fields::of::<Self>(item, Self::NAMES, help, findings)?;
        let name = fields.need("name", findings);
        let (namespace, mac) = (fields.get("namespace", findings), fields.get("mac", findings));
        let (mtu, addresses) = (fields.get("mtu", findings), fields.get("addresses", findings));
        let (bridge, source_macs) = (fields.get("bridge", findings), fields.get("source_macs", findings));
        let addresses = addresses.unwrap_or_default();
        let interface = Self { name: name?, namespace, mac, mtu, addresses, bridge, source_macs };
        (findings.len() == before).then_some(interface)
    }

    fn to_toml(&self) -> toml::Value {
        table([
            ("name", Some(self.name.to_toml())),
            ("namespace", self.namespace.as_ref().map(Setting::to_toml)),
            ("mac", self.mac.as_ref().map(Setting::to_toml)),
            ("mtu", self.mtu.as_ref().map(Setting::to_toml)),
            ("addresses", Some(self.addresses.to_toml())),
            ("bridge", self.bridge.as_ref().map(Setting::to_toml)),
            ("source_macs", self.source_macs.as_ref().map(Setting::to_toml)),
        ])
    }
}
