//! Overlay networks of this host: the settings.
//!
//! ```text
//!   [[overlay.network]]   Networks ─► Network   name, vni, learning, loop_protection
//!                                              ├─► Interface   name, namespace, mac, mtu, addresses, bridge, source_macs
//!                                              └─► Edge        to, kind
//!                         └── edited(&[Edit])  the networks after changes at run time
//! ```

mod edge;
mod edit;
mod interface;
mod route;
mod value;

use std::collections::BTreeSet;
use std::path::Path;

use isthmus_layout::limits::TAP_INTERFACES_MAX;
use isthmus_overlay::MacAddr;
use isthmus_overlay::vnet::{PortName, RouteLine};

pub use edge::{Edge, EdgeKind};
pub use edit::{ChangeRequest, Edit, EditError};
pub use interface::{Interface, Place};
use route::Routes;
pub use value::{InterfaceAddress, ListenAddress};

use super::fields::{Field, FieldTable, Fields, listed, members, names, table};
use super::guests::GuestName;
use super::problem::{Finding, ProblemKind};
use super::setting::{ConfigValue, Integer, Setting};

impl super::Config {
    /// The socket of the privileged helper, which creates interfaces and has connections recorded.
    #[must_use]
    pub fn helper_socket(&self) -> &Path {
        self.overlay.helper.path()
    }
}

/// The maximum number of networks of one host.
pub const NETWORKS_MAX: usize = 64;

/// The maximum number of interfaces, and of edges, of one network.
pub const PORTS_MAX: usize = 256;

/// The network identifier of a VXLAN header, which has 24 bits.
type Vni = Integer<0, 0xFF_FFFF>;

/// The networks, in the order they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<Network>);

impl Networks {
    /// All networks.
    #[must_use]
    pub fn as_slice(&self) -> &[Network] {
        &self.0
    }
}

impl Setting for Networks {
    const TYPE: &'static str = "list of tables";
    const EXAMPLE: &'static str = "networks are written as in [{ name = \"lan\", interfaces = [{ name = \"lan0\" }], edges = [{ to = \"192.0.2.2\" }] }]";
    const TABLES: &'static [FieldTable] = &[
        FieldTable { of: "A network", fields: &Network::FIELDS },
        FieldTable { of: "An interface", fields: &Interface::FIELDS },
        FieldTable { of: "An edge", fields: &Edge::FIELDS },
    ];

    fn expected() -> String {
        format!("a list of at most {NETWORKS_MAX} tables {{ {} }}", Network::NAMES.join(", "))
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let networks = members::<Self, Network>(item, NETWORKS_MAX, findings)?;
        let mut seen = BTreeSet::new();
        for (member, network) in &networks {
            for found in network.unique_values().into_iter().filter(|own| !seen.insert(own.clone())) {
                findings.push(member.finding(ProblemKind::Repeated { key: item.key.clone(), found }, None));
            }
        }
        let edges: Vec<_> = networks
            .iter()
            .flat_map(|(member, network)| network.edges.iter().map(move |edge| (member, edge)))
            .collect();
        for (index, (member, edge)) in edges.iter().enumerate() {
            if let Some((_, other)) = edges[..index].iter().find(|(_, other)| edge.shares_port_wrongly(other)) {
                let conflict = format!(
                    "has an edge of kind \"{}\" at port {}, which edges of kind \"{}\" use",
                    edge.kind.as_str(),
                    edge.to.port(),
                    other.kind.as_str()
                );
                let help = "give one of them another port: to = \"192.0.2.2:8472\"".to_owned();
                findings.push(member.finding(ProblemKind::Conflict { key: member.key.clone(), conflict }, Some(help)));
            }
        }
        let interfaces: usize = networks.iter().map(|(_, network)| network.interfaces.len()).sum();
        if interfaces > TAP_INTERFACES_MAX {
            let conflict = format!(
                "has {interfaces} interfaces in all networks together, but a host has at most {TAP_INTERFACES_MAX}"
            );
            findings.push(item.finding(ProblemKind::Conflict { key: item.key.clone(), conflict }, None));
        }
        (findings.len() == before).then(|| Self(networks.into_iter().map(|(_, network)| network).collect()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.iter().map(Network::to_toml).collect::<Vec<_>>().into()
    }
}

/// An interface or edge of a network, by its place in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkPort {
    /// An interface.
    Interface(usize),
    /// An edge.
    Edge(usize),
}

/// An overlay network: one Ethernet LAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The name of the network on this host.
    pub name: GuestName,
    vni: Option<Vni>,
    learning: Option<bool>,
    loop_protection: Option<bool>,
    /// The interfaces of this host.
    pub interfaces: Vec<Interface>,
    /// The edges to other hosts.
    pub edges: Vec<Edge>,
    routes: Routes,
}

impl Network {
    const FIELDS: [Field; 7] = [
        Field {
            name: "name",
            expected: GuestName::expected,
            default: "none; required",
            text: "The name of the network on this host.",
        },
        Field {
            name: "vni",
            expected: Vni::expected,
            default: "`0`",
            text: "The number of the network on `fast` and `vxlan` edges. All hosts of the network need the same one.",
        },
        Field {
            name: "learning",
            expected: bool::expected,
            default: "`true`",
            text: "Whether the network learns which interface or edge has a MAC address, and sends a frame for an unknown address to all. Without learning, frames take explicit routes only.",
        },
        Field {
            name: "loop_protection",
            expected: bool::expected,
            default: "`true`",
            text: "Whether frames that come back are dropped: see `flapping`, `loop` and `circulating` in docs/reference/overlay.md. Without it, a network follows each move of an address, and a bridge that connects two of its interfaces lets frames circulate without end.",
        },
        Field {
            name: "interfaces",
            expected: Interfaces::expected,
            default: "`[]`",
            text: "The interfaces of the network on this host.",
        },
        Field {
            name: "edges",
            expected: Edges::expected,
            default: "`[]`",
            text: "The other hosts of the network. Each host needs an edge to every other one.",
        },
        Field {
            name: "routes",
            expected: Routes::expected,
            default: "`[]`",
            text: "Explicit routes, which come before learned addresses: the words of VNET's `ADD`, as in `any 02:00:00:00:00:01 edge 192.0.2.2 any`. An interface is named by its name or by the `mac` that it has here.",
        },
    ];

    const NAMES: &'static [&'static str] = &names(&Self::FIELDS);

    /// The number of the network on the wire.
    #[must_use]
    pub fn vni(&self) -> u32 {
        self.vni.map_or(0, Vni::get)
    }

    /// Whether the network learns MAC addresses.
    #[must_use]
    pub fn learning(&self) -> bool {
        self.learning.unwrap_or(true)
    }

    /// Whether frames that come back are dropped.
    #[must_use]
    pub fn loop_protection(&self) -> bool {
        self.loop_protection.unwrap_or(true)
    }

    /// The explicit routes.
    #[must_use]
    pub fn routes(&self) -> &[RouteLine] {
        &self.routes.0
    }

    /// Returns the place of an interface or edge of this network that a route names.
    #[must_use]
    pub fn port_of(&self, name: &PortName) -> Option<NetworkPort> {
        match name {
            PortName::Interface(id) => {
                let mac = id.parse::<MacAddr>().ok().map(|mac| mac.0);
                let is_named =
                    |interface: &Interface| interface.label() == *id || mac.is_some() && interface.mac() == mac;
                self.interfaces.iter().position(is_named).map(NetworkPort::Interface)
            }
            PortName::Edge(id) => {
                let is_named = |edge: &Edge| edge.to.ip().to_string() == *id || edge.to.to_string() == *id;
                self.edges.iter().position(is_named).map(NetworkPort::Edge)
            }
        }
    }

    /// Notes the routes that name an interface or edge which the network does not have.
    fn check_routes(&self, fields: &Fields<'_, '_>, findings: &mut Vec<Finding>) {
        for route in self.routes() {
            if let Some(unknown) = route.ports().find(|name| self.port_of(name).is_none()) {
                let conflict = format!("name {unknown}, which the network does not have");
                let help = "name an interface of `interfaces` by its name or mac, or an edge of `edges` by its address";
                fields.conflict("routes", conflict, help, findings);
            }
        }
    }

    /// The values that no other network may have.
    fn unique_values(&self) -> Vec<String> {
        let named = format!("the name {}", self.name.name());
        let interfaces = self
            .interfaces
            .iter()
            .map(|interface| format!("the interface {} of {}", interface.name(), interface.place()));
        let edges = self.edges.iter().map(|edge| match edge.kind {
            EdgeKind::Udp => format!("the UDP edge to {}", edge.to),
            kind => format!("the network number {} on the {} edge to {}", self.vni(), kind.as_str(), edge.to),
        });
        std::iter::once(named).chain(interfaces).chain(edges).collect()
    }
}

impl Setting for Network {
    const TYPE: &'static str = "table";

    fn expected() -> String {
        format!("a table {{ {} }}", Self::NAMES.join(", "))
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let help = |_: &str| format!("a network has {}", listed(Self::NAMES));
        let fields = Fields::of::<Self>(item, Self::NAMES, help, findings)?;
        let name = fields.need("name", findings);
        let (vni, learning) = (fields.get("vni", findings), fields.get("learning", findings));
        let loop_protection = fields.get("loop_protection", findings);
        let interfaces = fields.get::<Interfaces>("interfaces", findings).unwrap_or_default().0;
        let edges = fields.get::<Edges>("edges", findings).unwrap_or_default().0;
        let routes = fields.get("routes", findings).unwrap_or_default();
        let network = Self { name: name?, vni, learning, loop_protection, interfaces, edges, routes };
        if findings.len() == before {
            network.check_routes(&fields, findings); // Without all interfaces and edges, each route would be a finding.
        }
        (findings.len() == before).then_some(network)
    }

    fn to_toml(&self) -> toml::Value {
        table([
            ("name", Some(self.name.to_toml())),
            ("vni", self.vni.as_ref().map(Setting::to_toml)),
            ("learning", self.learning.as_ref().map(Setting::to_toml)),
            ("loop_protection", self.loop_protection.as_ref().map(Setting::to_toml)),
            ("interfaces", Some(Interfaces(self.interfaces.clone()).to_toml())),
            ("edges", Some(Edges(self.edges.clone()).to_toml())),
            ("routes", Some(self.routes.to_toml())),
        ])
    }
}

/// Declares a list of tables.
macro_rules! lists {
    ($($name:ident of $member:ident, $example:literal;)*) => { $(
        #[derive(Default)]
        struct $name(Vec<$member>);

        impl Setting for $name {
            const TYPE: &'static str = "list of tables";
            const EXAMPLE: &'static str = $example;

            fn expected() -> String {
                format!("a list of at most {PORTS_MAX} tables {{ {} }}", $member::NAMES.join(", "))
            }

            fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
                let before = findings.len();
                let members = members::<Self, $member>(item, PORTS_MAX, findings)?;
                (findings.len() == before).then(|| Self(members.into_iter().map(|(_, member)| member).collect()))
            }

            fn to_toml(&self) -> toml::Value {
                self.0.iter().map($member::to_toml).collect::<Vec<_>>().into()
            }
        }
    )* };
}

lists! {
    Interfaces of Interface, "interfaces are written as in [{ name = \"lan0\", namespace = \"web\" }]";
    Edges of Edge, "edges are written as in [{ to = \"192.0.2.2\" }]";
}
