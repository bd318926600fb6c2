//! Links over UDP: an address of this host, and the hosts that frames are sent to.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::fields::members;
use crate::problem::{Finding, ProblemKind};
use crate::setting::{ConfigValue, Setting};

/// The default port of the carrier: the number of the ethertype.
pub const UDP_PORT: u16 = isthmus_mx::wire::ETHERTYPE;

/// The length of the longest frame in one datagram: 65535 bytes of IPv4, less headers of 20 and 8 bytes.
pub const UDP_FRAME_BYTES_MAX: u32 = 65_507;

/// Another host, by address or name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UdpPeer {
    /// An address.
    Address(SocketAddr),
    /// A name, which the daemon looks up.
    Name {
        /// Its name.
        host: String,
        /// The port at which it listens.
        port: u16,
    },
}

impl UdpPeer {
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Address(address) => address.to_string(),
            Self::Name { host, port } => format!("{host}:{port}"),
        }
    }
}

/// The reason why a text is no address for frames.
enum AddressProblem {
    Port,
    Multicast,
    Other,
}

impl AddressProblem {
    fn help(&self) -> Option<String> {
        match self {
            Self::Port => Some("name a port from 1 to 65535".to_owned()),
            Self::Multicast => Some("that is the address of a group, not of a host".to_owned()),
            Self::Other => None,
        }
    }
}

/// Parses an address with a port, or with the default port.
fn socket_address(text: &str) -> Option<Result<SocketAddr, AddressProblem>> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = text
        .parse::<SocketAddr>()
        .or_else(|_| bare.parse::<IpAddr>().map(|address| SocketAddr::new(address, UDP_PORT)))
        .ok()?;
    let is_group = match address.ip() {
        IpAddr::V4(ip) => ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_multicast(),
    };
    Some(match address.port() {
        0 => Err(AddressProblem::Port),
        _ if is_group => Err(AddressProblem::Multicast),
        _ => Ok(address),
    })
}

/// Parses a name with a port, or with the default port.
fn parse_named(text: &str) -> Result<UdpPeer, AddressProblem> {
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, port.parse().ok().filter(|&port| port != 0)),
        None => (text, Some(UDP_PORT)),
    };
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let is_number = host.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    let address = text.rsplit_once(':').map(|(host, _)| host.trim_start_matches('[').trim_end_matches(']'));
    if address.is_some_and(|address| address.parse::<IpAddr>().is_ok()) {
        return Err(AddressProblem::Port);
    }
    if host.len() > 253 || !host.split('.').all(is_label) || is_number {
        return Err(AddressProblem::Other);
    }
    let port = port.ok_or(AddressProblem::Port)?;
    Ok(UdpPeer::Name { host: host.to_owned(), port })
}

/// The address at which frames are received.
pub(super) struct UdpAddress(pub(super) SocketAddr);

impl Setting for UdpAddress {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        format!(
            "an address of this host, with a port unless it is {UDP_PORT}, as in \"10.0.0.1\" or \"[fd00::1]:7000\""
        )
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let help = match socket_address(text) {
            Some(Ok(address)) => return Some(Self(address)),
            Some(Err(unfit)) => unfit.help(),
            None => match (text.strip_prefix(':'), parse_named(text)) {
                (Some(port), _) if port.parse::<u16>().is_ok() => Some(format!("did you mean \"0.0.0.0:{port}\"?")),
                (_, Ok(_)) => Some("this host's own address is not looked up: write it in numbers".to_owned()),
                (_, Err(unfit)) => unfit.help(),
            },
        };
        findings.push(item.wrong_text(&Self::expected(), help));
        None
    }

    fn to_toml(&self) -> toml::Value {
        self.0.to_string().into()
    }
}

impl Setting for UdpPeer {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        format!(
            "the address or name of a host, with a port unless it is {UDP_PORT}, as in \"10.0.0.2\" or \"node7:7000\""
        )
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let help = match socket_address(text) {
            Some(Ok(address)) if address.ip().is_unspecified() => Some("no host can be reached there".to_owned()),
            Some(Ok(address)) => return Some(Self::Address(address)),
            Some(Err(unfit)) => unfit.help(),
            None => match parse_named(text) {
                Ok(peer) => return Some(peer),
                Err(unfit) => unfit.help(),
            },
        };
        findings.push(item.wrong_text(&Self::expected(), help));
        None
    }

    fn to_toml(&self) -> toml::Value {
        self.describe().into()
    }
}

/// All hosts that a link sends frames to.
pub(super) struct UdpPeers(pub(super) Vec<UdpPeer>);

impl UdpPeers {
    /// The largest number of peers. A message to all boards of a network goes to each of them.
    const LENGTH_MAX: usize = 1024;
}

impl Setting for UdpPeers {
    const TYPE: &'static str = "list";
    const EXAMPLE: &'static str = "hosts are written as in [\"10.0.0.2\", \"node7:7000\"]";

    fn expected() -> String {
        format!("a list of 1 to {} addresses or names of hosts", Self::LENGTH_MAX)
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let (mut peers, mut seen) = (Vec::new(), BTreeSet::new());
        for (member, peer) in members::<Self, UdpPeer>(item, Self::LENGTH_MAX, findings)? {
            if !seen.insert(peer.clone()) {
                findings.push(
                    member.finding(ProblemKind::Repeated { key: item.key.clone(), found: peer.describe() }, None),
                );
            }
            peers.push(peer);
        }
        if peers.is_empty() && findings.len() == before {
            let (key, found) = (item.key.clone(), "an empty list".to_owned());
            findings.push(item.finding(ProblemKind::OutOfRange { key, found, expected: Self::expected() }, None));
        }
        (findings.len() == before).then_some(Self(peers))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.iter().map(UdpPeer::to_toml).collect::<Vec<_>>().into()
    }
}
