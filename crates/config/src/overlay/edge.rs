//! Edges: the other hosts of an overlay network.

use std::net::{IpAddr, SocketAddr};

use isthmus_overlay::vnet::is_host;

use crate::fields::{Field, Fields, listed, names, table};
use crate::problem::Finding;
use crate::setting::{ConfigValue, Setting, words};

words! {
    /// The encapsulation of an edge.
    pub enum EdgeKind {
        /// Between Isthmus daemons: whole frames with their offloads.
        Fast = "fast",
        /// VXLAN (RFC 7348), to any implementation.
        Vxlan = "vxlan",
        /// Bare frames in UDP datagrams, as in VNET/P.
        Udp = "udp",
    }
}

impl EdgeKind {
    /// The port at which hosts receive frames of this kind.
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Fast => 9001,
            Self::Vxlan => 4789,
            Self::Udp => 9000,
        }
    }
}

/// An edge: another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The address and the port of the other host. This host receives at the same port.
    pub to: SocketAddr,
    /// The encapsulation.
    pub kind: EdgeKind,
}

impl Edge {
    pub(super) const FIELDS: [Field; 2] = [
        Field {
            name: "to",
            expected: Host::expected,
            default: "none; required",
            text: "The address of the other host, with a port unless it is that of the kind: 9001 (`fast`), 4789 (`vxlan`), 9000 (`udp`). This host receives at the same port, from this address alone.",
        },
        Field {
            name: "kind",
            expected: EdgeKind::expected,
            default: "`\"fast\"`",
            text: "The encapsulation: `fast` between Isthmus daemons, `vxlan` to any implementation of VXLAN, `udp` to VNET/P. A `udp` edge carries one network only.",
        },
    ];

    pub(super) const NAMES: &'static [&'static str] = &names(&Self::FIELDS);

    /// The address of an edge that is written in TOML. None if it is not well formed.
    pub(super) fn address_in(edge: &toml::Value) -> Option<SocketAddr> {
        let field = |name| edge.get(name).and_then(toml::Value::as_str);
        let kinds = [EdgeKind::Fast, EdgeKind::Vxlan, EdgeKind::Udp];
        let kind = kinds.into_iter().find(|kind| Some(kind.as_str()) == field("kind")).unwrap_or(EdgeKind::Fast);
        let Host { address, port } = Host::parse(field("to")?)?;
        Some(SocketAddr::new(address, port.unwrap_or(kind.default_port())))
    }

    /// True if `name` is the address of an edge, with or without its port.
    pub(super) fn is_named(to: SocketAddr, name: &str) -> bool {
        Host::parse(name).is_some_and(|host| host.address == to.ip() && host.port.is_none_or(|port| port == to.port()))
    }

    /// True if both edges need one port for different encapsulations.
    pub(super) fn shares_port_wrongly(&self, other: &Self) -> bool {
        self.to.port() == other.to.port() && self.kind != other.kind
    }
}

impl Setting for Edge {
    const TYPE: &'static str = "table";

    fn expected() -> String {
        format!("a table {{ {} }}", Self::NAMES.join(", "))
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let help = |_: &str| format!("an edge has {}", listed(Self::NAMES));
        let fields = Fields::of::<Self>(item, Self::NAMES, help, findings)?;
        let to = fields.need::<Host>("to", findings);
        let kind = fields.get("kind", findings).unwrap_or(EdgeKind::Fast);
        let Host { address, port } = to?;
        let edge = Self { to: SocketAddr::new(address, port.unwrap_or(kind.default_port())), kind };
        (findings.len() == before).then_some(edge)
    }

    fn to_toml(&self) -> toml::Value {
        table([("to", Some(self.to.to_string().into())), ("kind", Some(self.kind.to_toml()))])
    }
}

/// An address, perhaps with a port.
struct Host {
    address: IpAddr,
    port: Option<u16>,
}

impl Host {
    fn parse(text: &str) -> Option<Self> {
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        let (address, port) = match bare.parse::<IpAddr>() {
            Ok(address) => (address, None),
            Err(_) => text.parse::<SocketAddr>().map(|address| (address.ip(), Some(address.port()))).ok()?,
        };
        (is_host(address) && port != Some(0)).then_some(Self { address, port })
    }
}

impl Setting for Host {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        "the address of a host, perhaps with a port, as in \"192.0.2.2\" or \"[fd00::2]:4789\"".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let host = Self::parse(text);
        if host.is_none() {
            findings.push(item.wrong_text(&Self::expected(), None));
        }
        host
    }

    fn to_toml(&self) -> toml::Value {
        self.port
            .map_or_else(|| self.address.to_string(), |port| SocketAddr::new(self.address, port).to_string())
            .into()
    }
}
