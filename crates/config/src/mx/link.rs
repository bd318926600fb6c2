//! The links of a board: interfaces, or hosts over UDP.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::address::Interface;
use super::udp::{UdpAddress, UdpPeer, UdpPeers};
use crate::fields::{Field, Fields, listed, members, names};
use crate::problem::{Finding, ProblemKind};
use crate::setting::{ConfigValue, Integer, Setting, words};

/// The largest number of links of one board.
pub const MX_LINKS_MAX: usize = 8;

/// The plan of a link that the daemon opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkPlan {
    /// The order of preference: of the links that reach a peer, the first one of the lowest rank is used.
    pub rank: u8,
    /// The carrier of its frames.
    pub carrier: Carrier,
}

/// The carrier of the frames of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Packet sockets.
    Packet {
        /// The interface, by its name.
        interface: String,
    },
    /// AF_XDP sockets, which take all of the interface's frames of our ethertype.
    Xdp {
        /// The interface, by its name.
        interface: String,
    },
    /// Datagrams, each with one frame.
    Udp {
        /// The address of this host for datagrams in both directions.
        local: SocketAddr,
        /// The other hosts; addresses are of the family of `local`.
        peers: Vec<UdpPeer>,
        /// The interface that the socket is bound to, if any.
        interface: Option<String>,
    },
}

impl Carrier {
    /// The interface that carries the frames of the link; none for a link over UDP.
    #[must_use]
    pub fn ethernet_interface(&self) -> Option<&str> {
        match self {
            Self::Packet { interface } | Self::Xdp { interface } => Some(interface),
            Self::Udp { .. } => None,
        }
    }

    /// Names the resource that only one link of a board can have, and only one link over UDP of the host.
    pub(super) fn resource_name(&self) -> String {
        match self {
            Self::Packet { interface } | Self::Xdp { interface } => format!("the interface {interface}"),
            Self::Udp { local, interface: None, .. } => format!("the address {local}"),
            Self::Udp { local, interface: Some(interface), .. } => format!("the address {local} on {interface}"),
        }
    }
}

words! {
    /// The kind of sockets between an interface and the daemon.
    enum LinkKind {
        /// Packet sockets, for every interface.
        Packet = "packet",
        /// AF_XDP sockets, which are faster on cards that support them.
        Xdp = "xdp",
    }
}

/// The value of a link's [`LinkKind`].
struct Kind(LinkKind);

impl Setting for Kind {
    const TYPE: &'static str = LinkKind::TYPE;

    fn expected() -> String {
        LinkKind::expected()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        if item.value.get_ref().as_str() == Some("udp") {
            findings.push(item.wrong_text(&Self::expected(), Some(format!("a link over UDP is {}", Link::OVER_UDP))));
            return None;
        }
        LinkKind::read(item, findings).map(Self)
    }

    fn to_toml(&self) -> toml::Value {
        self.0.to_toml()
    }
}

/// All of a board.
#[derive(Default)]
pub(super) struct Links(pub(super) Vec<LinkPlan>);

impl Setting for Links {
    const TYPE: &'static str = "list of tables";
    const EXAMPLE: &'static str = "links are written as in [{ interface = \"eth0\" }]";

    fn expected() -> String {
        format!("a list of at most {MX_LINKS_MAX} tables {{ {} }}", Link::NAMES.join(", "))
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let (mut links, mut seen) = (Vec::new(), BTreeSet::new());
        for (place, (member, link)) in members::<Self, Link>(item, MX_LINKS_MAX, findings)?.into_iter().enumerate() {
            if !seen.insert(link.carrier.resource_name()) {
                let wrong = ProblemKind::Repeated { key: item.key.clone(), found: link.carrier.resource_name() };
                findings.push(member.finding(wrong, None));
            }
            links.push(LinkPlan { rank: link.rank.unwrap_or(place as u8), carrier: link.carrier });
        }
        (findings.len() == before).then_some(Self(links))
    }

    fn to_toml(&self) -> toml::Value {
        let link = |link: &LinkPlan| Link { rank: Some(link.rank), carrier: link.carrier.clone() }.to_toml();
        self.0.iter().map(link).collect::<Vec<_>>().into()
    }
}

/// A link. Its default rank is its place in the list.
pub(super) struct Link {
    rank: Option<u8>,
    carrier: Carrier,
}

/// At most [`u8::MAX`].
type Rank = Integer<0, 255>;

impl Link {
    pub(super) const FIELDS: [Field; 5] = [
        Field {
            name: "interface",
            expected: Interface::expected,
            default: "none",
            text: "The network interface that sends and receives the frames. With `udp`: the interface which datagrams are bound to.",
        },
        Field {
            name: "kind",
            expected: Kind::expected,
            default: "`\"packet\"`",
            text: "The kind of sockets: packet sockets, or AF_XDP, which takes the interface's MX frames away from other links. Not with `udp`.",
        },
        Field {
            name: "udp",
            expected: UdpAddress::expected,
            default: "none",
            text: "The address at which frames leave and arrive as datagrams, for hosts with only an IP path.",
        },
        Field {
            name: "peers",
            expected: UdpPeers::expected,
            default: "none; needed with `udp`",
            text: "The hosts that exchange datagrams with this one. Names are looked up when the daemon starts.",
        },
        Field {
            name: "rank",
            expected: Rank::expected,
            default: "its place in the list, from 0",
            text: "The order of preference: of the links that reach a peer, the one of the lowest rank is used.",
        },
    ];
    const NAMES: &'static [&'static str] = &names(&Self::FIELDS);
    pub(super) const OVER_UDP: &'static str = "{ udp = \"10.0.0.1\", peers = [\"10.0.0.2\"] }";

    /// Returns the carrier of its frames, if the fields fit together.
    fn carrier(fields: &Fields<'_, '_>, findings: &mut Vec<Finding>) -> Option<Carrier> {
        let before = findings.len();
        let is_udp = fields.has("udp");
        let interface = fields.get::<Interface>("interface", findings).map(|interface| interface.0);
        let kind = fields.get::<Kind>("kind", findings).map(|kind| kind.0);
        let udp = fields.get::<UdpAddress>("udp", findings);
        let peers: Option<UdpPeers> =
            if is_udp { fields.need("peers", findings) } else { fields.get("peers", findings) };
        if is_udp && fields.has("kind") {
            fields.conflict("kind", "does not go with udp: datagrams have one kind of socket", "", findings);
        }
        if !is_udp && fields.has("peers") {
            let help = "boards of other hosts are found by discovery, or named by the board's own peers";
            fields.conflict("peers", "goes with udp only", help, findings);
        }
        if !is_udp && !fields.has("interface") {
            let help = format!("a link is {{ interface = \"eth0\" }} or {}", Self::OVER_UDP);
            fields.refuse("names neither interface nor udp, so it leads nowhere", &help, findings);
        }
        if findings.len() > before {
            return None;
        }
        let Some(UdpAddress(local)) = udp else {
            let interface = interface?;
            return Some(match kind.unwrap_or(LinkKind::Packet) {
                LinkKind::Packet => Carrier::Packet { interface },
                LinkKind::Xdp => Carrier::Xdp { interface },
            });
        };
        let UdpPeers(peers) = peers?;
        let is_other = |peer: &&UdpPeer| matches!(peer, UdpPeer::Address(at) if at.is_ipv4() != local.is_ipv4());
        if let Some(other) = peers.iter().find(is_other) {
            let conflict = format!("does not fit udp: {} is not reached from {local}", other.describe());
            fields.conflict("peers", conflict, "IPv4 and IPv6 take a link each", findings);
            return None;
        }
        Some(Carrier::Udp { local, peers, interface })
    }
}

impl Setting for Link {
    const TYPE: &'static str = "table";

    fn expected() -> String {
        format!("a table {{ {} }}", Self::NAMES.join(", "))
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let help = |_: &str| format!("a link has {}", listed(Self::NAMES));
        let fields = Fields::of::<Self>(item, Self::NAMES, help, findings)?;
        let rank = fields.get::<Rank>("rank", findings).map(|rank| rank.get() as u8);
        let carrier = Self::carrier(&fields, findings);
        let carrier = carrier.filter(|_| findings.len() == before)?;
        Some(Self { rank, carrier })
    }

    fn to_toml(&self) -> toml::Value {
        let mut table = toml::Table::new();
        let mut say = |name: &str, value: toml::Value| drop(table.insert(name.to_owned(), value));
        match &self.carrier {
            Carrier::Packet { interface } | Carrier::Xdp { interface } => {
                let is_packet = matches!(self.carrier, Carrier::Packet { .. });
                say("interface", interface.as_str().into());
                say("kind", if is_packet { LinkKind::Packet } else { LinkKind::Xdp }.to_toml());
            }
            Carrier::Udp { local, peers, interface } => {
                say("udp", UdpAddress(*local).to_toml());
                say("peers", UdpPeers(peers.clone()).to_toml());
                if let Some(interface) = interface {
                    say("interface", interface.as_str().into());
                }
            }
        }
        if let Some(rank) = self.rank {
            say("rank", toml::Value::Integer(rank.into()));
        }
        table.into()
    }
}
