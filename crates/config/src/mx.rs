//! The MX boards of this host: the settings.
//!
//! ```text
//!   [[mx.board]]   Boards ─► Board   mac, name, endpoints_max                      known before the daemon opens anything
//!                              └─► Network   dialect, sizes, peers, times          only with links to other hosts
//!                                    └─► LinkPlan   interface or udp, rank
//!   Mx::plans(host) ─► MxBoardPlan   generates open values; names of interfaces are resolved later
//! ```

mod address;
mod link;
mod network;
mod plan;
mod udp;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use isthmus_layout::mx::{BOARDS_MAX, ENDPOINTS_MAX};

pub use address::{Mac, MxBoardName};
pub use link::{Carrier, LinkPlan, MX_LINKS_MAX};
pub use network::{Network, StaticPeer};
pub use plan::{BoardNic, MxBoardEntry, MxBoardPlan, MxHost};
pub use udp::{UDP_FRAME_BYTES_MAX, UDP_PORT, UdpPeer};

use link::{Link, Links};

use super::fields::{Field, FieldTable, Fields, listed, members, names};
use super::problem::{Finding, ProblemKind};
use super::setting::{ConfigValue, Integer, Setting};

/// The boards, numbered from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MxBoardList(Vec<MxBoardConfig>);

impl MxBoardList {
    /// In the order of their numbers.
    #[must_use]
    pub fn as_slice(&self) -> &[MxBoardConfig] {
        &self.0
    }
}

impl Setting for MxBoardList {
    const TYPE: &'static str = "list of tables";
    const EXAMPLE: &'static str = "boards are written as in [{ name = \"web:0\", endpoints_max = 64 }]";
    const TABLES: &'static [FieldTable] = &[
        FieldTable { of: "A board", fields: &MxBoardConfig::FIELDS },
        FieldTable { of: "A board with links", fields: &Network::FIELDS },
        FieldTable { of: "A link", fields: &Link::FIELDS },
    ];

    fn expected() -> String {
        format!("a list of at most {BOARDS_MAX} tables {{ {} }}", MxBoardConfig::NAMES.join(", "))
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let boards = members::<Self, MxBoardConfig>(item, BOARDS_MAX, findings)?;
        let mut seen = BTreeSet::new();
        for (member, board) in &boards {
            let named = [
                board.mac.map(|mac| format!("the address {}", mac.nic())),
                board.name.as_ref().map(MxBoardName::describe),
            ];
            for found in named.into_iter().flatten().filter(|named| !seen.insert(named.clone())) {
                findings.push(member.finding(ProblemKind::Repeated { key: item.key.clone(), found }, None));
            }
        }
        for (index, (member, board)) in boards.iter().enumerate() {
            let conflict = boards[..index].iter().find_map(|(other, earlier)| Some((other, board.conflict(earlier)?)));
            if let Some((other, (what, help))) = conflict {
                let conflict = format!("{what}, as {} does", other.key);
                let wrong = ProblemKind::Conflict { key: member.key.clone(), conflict };
                findings.push(member.finding(wrong, Some(help.to_owned())));
            }
        }
        (findings.len() == before).then(|| Self(boards.into_iter().map(|(_, board)| board).collect()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.iter().map(MxBoardConfig::to_toml).collect::<Vec<_>>().into()
    }
}

/// A board. Values that it leaves open are generated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MxBoardConfig {
    /// Its address.
    pub mac: Option<Mac>,
    /// The name of the board.
    pub name: Option<MxBoardName>,
    /// The number of its endpoints.
    pub endpoints_max: Option<Endpoints>,
    /// The other hosts it reaches, if it has links.
    pub network: Option<Network>,
}

type Endpoints = Integer<1, ENDPOINTS_MAX>;

impl MxBoardConfig {
    const FIELDS: [Field; 4] = [
        Field {
            name: "mac",
            expected: Mac::expected,
            default: "that of its first interface, or generated",
            text: "The address of the board (`nic_id`).",
        },
        Field {
            name: "name",
            expected: MxBoardName::expected,
            default: "`<host>:<number>`",
            text: "The name by which programs find it.",
        },
        Field {
            name: "endpoints_max",
            expected: Endpoints::expected,
            default: "`32`",
            text: "The number of endpoints that can be open on it at once.",
        },
        Field {
            name: "links",
            expected: Links::expected,
            default: "`[]`",
            text: "The interfaces, or hosts over UDP, by which it reaches boards of other hosts.",
        },
    ];

    /// All fields: its own, and those of its network.
    const NAMES: &'static [&'static str] = &{
        let (own, network) = (names(&Self::FIELDS), names(&Network::FIELDS));
        let (mut all, mut at) = ([""; Self::FIELDS.len() + Network::FIELDS.len()], 0);
        while at < all.len() {
            all[at] = if at < own.len() { own[at] } else { network[at - own.len()] };
            at += 1;
        }
        all
    };

    /// Returns what to write instead of a field that does not exist.
    fn help(name: &str) -> String {
        match name {
            "interface" | "kind" | "rank" => "links stand in a list: links = [{ interface = \"eth0\" }]".to_owned(),
            "udp" => format!("links stand in a list: links = [{}]", Link::OVER_UDP),
            "mtu" | "MTU" => "what Open-MX calls the MTU is frame_bytes_max".to_owned(),
            _ => format!("a board has {}", listed(Self::NAMES)),
        }
    }

    /// The interface that the board takes its address from.
    fn address_interface(&self) -> Option<&str> {
        self.network.as_ref().filter(|_| self.mac.is_none())?.first_interface()
    }

    /// The address of its datagrams, if it has a link over UDP.
    fn udp_address(&self) -> Option<SocketAddr> {
        self.carriers().find_map(|carrier| match carrier {
            Carrier::Udp { local, .. } => Some(*local),
            Carrier::Packet { .. } | Carrier::Xdp { .. } => None,
        })
    }

    fn carriers(&self) -> impl Iterator<Item = &Carrier> {
        self.network.iter().flat_map(|network| &network.links).map(|link| &link.carrier)
    }

    /// Returns what this board and another one cannot both do, and what to do instead.
    fn conflict(&self, other: &Self) -> Option<(String, &'static str)> {
        if let Some(lender) = self.address_interface().filter(|&lender| other.address_interface() == Some(lender)) {
            return Some((format!("takes the address of the interface {lender}"), "give one of them a mac"));
        }
        let both = |ours: &&Carrier| {
            other.carriers().any(|theirs| {
                let has_udp = matches!(ours, Carrier::Udp { .. }) && ours.resource_name() == theirs.resource_name();
                let is_xdp = matches!(ours, Carrier::Xdp { .. }) || matches!(theirs, Carrier::Xdp { .. });
                has_udp || is_xdp && ours.ethernet_interface() == theirs.ethernet_interface()
            })
        };
        let carrier = self.carriers().find(both)?;
        let help = match carrier {
            Carrier::Udp { .. } => "give one of them another port",
            _ => "a link of kind \"xdp\" has its interface for itself",
        };
        Some((format!("has a link at {}", carrier.resource_name()), help))
    }
}

impl Setting for MxBoardConfig {
    const TYPE: &'static str = "table";

    fn expected() -> String {
        format!("a table {{ {} }}", Self::NAMES.join(", "))
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let fields = Fields::of::<Self>(item, Self::NAMES, Self::help, findings)?;
        let board = Self {
            mac: fields.get("mac", findings),
            name: fields.get("name", findings),
            endpoints_max: fields.get("endpoints_max", findings),
            network: Network::read(&fields, findings),
        };
        (findings.len() == before).then_some(board)
    }

    fn to_toml(&self) -> toml::Value {
        let mut table = toml::Table::new();
        let fields = [
            ("mac", self.mac.as_ref().map(Setting::to_toml)),
            ("name", self.name.as_ref().map(Setting::to_toml)),
            ("endpoints_max", self.endpoints_max.as_ref().map(Setting::to_toml)),
        ];
        for (name, value) in fields {
            table.extend(value.map(|value| (name.to_owned(), value)));
        }
        if let Some(network) = &self.network {
            network.write(&mut table);
        }
        table.into()
    }
}
