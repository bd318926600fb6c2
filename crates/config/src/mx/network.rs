//! A board's settings for the network that its links lead to: protocol, other boards, time limits.

use std::collections::BTreeSet;
use std::path::PathBuf;

use isthmus_layout::ids::NicId;
use isthmus_mx::net::EndpointTuning;
use isthmus_mx::wire::{self, Dialect, ETHERTYPE, Sizes};

use super::address::{Mac, MxBoardName};
use super::link::{Carrier, LinkPlan, Links};
use super::udp::UDP_FRAME_BYTES_MAX;
use crate::fields::{Field, Fields, listed, members, names};
use crate::paths::FilePath;
use crate::problem::{Finding, ProblemKind};
use crate::setting::{Bytes, ConfigValue, Millis, Seconds, Setting, read_number, words};

/// The largest number of boards of other hosts in the configuration itself; `peers_file` has no such limit.
const PEERS_MAX: usize = 1024;

/// The other hosts of a board, and the way to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The dialect of all boards of the network.
    pub dialect: Dialect,
    /// The length of the longest frame with its Ethernet header; if none, the daemon derives it from the links.
    pub frame_bytes_max: Option<u32>,
    /// Whether the board announces itself and discovers others.
    pub discovery: bool,
    /// The boards that are known without discovery. A board may have several names.
    pub peers: Vec<StaticPeer>,
    /// A file with more such boards: a table of lines with an address and a name.
    pub peers_file: Option<PathBuf>,
    /// The longest time before an unacknowledged frame is sent again.
    pub resend_ms: u32,
    /// The time after which a silent peer is given up.
    pub give_up_s: u32,
    /// The links, numbered from 0: at least one.
    pub links: Vec<LinkPlan>,
}

/// A board of another host, or of this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticPeer {
    /// Its address.
    pub nic: NicId,
    /// The name of the board.
    pub name: wire::BoardName,
}

impl Network {
    /// The settings of the reliability engine.
    #[must_use]
    pub fn tuning(&self) -> EndpointTuning {
        let resend_us = u64::from(self.resend_ms) * 1000;
        let give_up_us = u64::from(self.give_up_s) * 1_000_000;
        let resends_max = u32::try_from(give_up_us.div_ceil(resend_us)).expect("both were checked");
        // A peer that is silent while it has data to fetch is asked well before it is given up.
        let probe_us = EndpointTuning::DEFAULT.probe_us.min((give_up_us / 10).max(resend_us));
        EndpointTuning { resend_us, resends_max, probe_us, ..EndpointTuning::DEFAULT }
    }

    /// The interface that a board without an address takes it from: that of the first link which has one.
    #[must_use]
    pub fn first_interface(&self) -> Option<&str> {
        self.links.iter().find_map(|link| link.carrier.ethernet_interface())
    }
}

words! {
    /// The dialect of the boards of a network.
    enum DialectWord {
        /// The dialect of Open-MX in its default build.
        OpenMx = "open-mx",
        /// The dialect of Myricom's own hosts.
        Mx = "mx",
    }
}

/// The number that marks the frames of a protocol; lower numbers are lengths.
struct Ethertype(u16);

impl Setting for Ethertype {
    const TYPE: &'static str = "integer";

    fn expected() -> String {
        "an ethertype from 0x0600 to 0xffff".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let number = read_number::<Self>(item, (0x0600, 0xffff), |_| true, findings)?;
        Some(Self(number as u16))
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::Integer(self.0.into())
    }
}

type FrameBytes = Bytes<{ Sizes::FRAME_LIMIT_MIN }, { Sizes::FRAME_LIMIT_MAX }>;
/// No shorter than the engine's own shortest.
type ResendMs = Millis<{ (EndpointTuning::DEFAULT.resend_us_min / 1000) as u32 }, RESEND_MS_MAX>;
type GiveUpS = Seconds<1, 86_400>;

const RESEND_MS_MAX: u32 = 60_000;
const RESEND_MS: u32 = (EndpointTuning::DEFAULT.resend_us / 1000) as u32;
/// More than the longest `resend_ms`: only a file that sets both can have values that do not fit.
const GIVE_UP_S: u32 =
    (EndpointTuning::DEFAULT.resend_us * EndpointTuning::DEFAULT.resends_max as u64 / 1_000_000) as u32;

impl Network {
    /// The fields of a board that are about other hosts, except `links`.
    pub(super) const FIELDS: [Field; 8] = [
        Field {
            name: "dialect",
            expected: DialectWord::expected,
            default: "`\"open-mx\"`",
            text: "The dialect of all boards of the network: that of Open-MX in its usual build, or that of Myricom's own hosts.",
        },
        Field {
            name: "ethertype",
            expected: Ethertype::expected,
            default: "`0x86DF`",
            text: "The ethertype of the frames, if Open-MX was built with another one. Not with `mx`.",
        },
        Field {
            name: "frame_bytes_max",
            expected: FrameBytes::expected,
            default: "what the MTU of the links allows; 4144 with `mx`",
            text: "The length of the longest frame, with its Ethernet header. Open-MX calls this the MTU. It must be the same on all hosts of the network.",
        },
        Field {
            name: "discovery",
            expected: bool::expected,
            default: "`true`",
            text: "Whether the board announces itself and finds others that do.",
        },
        Field {
            name: "peers",
            expected: StaticPeers::expected,
            default: "`[]`",
            text: "Boards that are known without discovery. One address may have several names.",
        },
        Field {
            name: "peers_file",
            expected: FilePath::expected,
            default: "none",
            text: "A file with more such boards: lines `MAC name`, with comments behind `#`. It is read when the daemon starts.",
        },
        Field {
            name: "resend_ms",
            expected: ResendMs::expected,
            default: "`500`",
            text: "The longest time after which an unacknowledged frame is sent again.",
        },
        Field {
            name: "give_up_s",
            expected: GiveUpS::expected,
            default: "`500`",
            text: "The time after which a silent peer is given up while an answer of it is due. Messages under way to and from it fail.",
        },
    ];

    const NAMES: &'static [&'static str] = &names(&Self::FIELDS);

    /// Reads a board's settings for other hosts; none if it has no links, or something is wrong.
    pub(super) fn read(fields: &Fields<'_, '_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let links = fields.get::<Links>("links", findings);
        let dialect = fields.get::<DialectWord>("dialect", findings);
        let ethertype = fields.get::<Ethertype>("ethertype", findings);
        let frame_bytes_max = fields.get::<FrameBytes>("frame_bytes_max", findings).map(Bytes::get);
        let discovery = fields.get("discovery", findings).unwrap_or(true);
        let peers = fields.get::<StaticPeers>("peers", findings).unwrap_or_default();
        let peers_file = fields.get::<FilePath>("peers_file", findings).map(|file| file.path().to_owned());
        let resend_ms = fields.get::<ResendMs>("resend_ms", findings).map_or(RESEND_MS, Millis::get);
        let give_up_s = fields.get::<GiveUpS>("give_up_s", findings).map_or(GIVE_UP_S, Seconds::get);
        let Links(links) = links.unwrap_or_default();
        if findings.len() > before {
            return None;
        }
        if links.is_empty() {
            Self::refuse_without_links(fields, findings);
            return None;
        }
        let (dialect, ethertype) = (dialect.unwrap_or(DialectWord::OpenMx), ethertype.map(|ethertype| ethertype.0));
        let network = Self {
            dialect: match dialect {
                DialectWord::OpenMx => Dialect::OpenMx { ethertype: ethertype.unwrap_or(ETHERTYPE) },
                DialectWord::Mx => Dialect::Mx,
            },
            frame_bytes_max: match dialect {
                DialectWord::OpenMx => frame_bytes_max,
                DialectWord::Mx => Some(Sizes::MX.frame_bytes_max()),
            },
            discovery,
            peers: peers.0,
            peers_file,
            resend_ms,
            give_up_s,
            links,
        };
        network.check_together(fields, ethertype, frame_bytes_max, findings);
        (findings.len() == before).then_some(network)
    }

    /// Refuses settings for other hosts on a board without links, where they would decide nothing.
    fn refuse_without_links(fields: &Fields<'_, '_>, findings: &mut Vec<Finding>) {
        let said: Vec<&str> = Self::NAMES.iter().copied().filter(|name| fields.has(name)).collect();
        if !said.is_empty() {
            let conflict = format!("says {}, but has no links to other hosts", listed(&said));
            fields.refuse(conflict, "give it links = [{ interface = \"eth0\" }]", findings);
        }
    }

    /// Checks values which are right alone, but not together. Reports show sizes and ethertype as they were written.
    fn check_together(
        &self,
        fields: &Fields<'_, '_>,
        ethertype: Option<u16>,
        frame_bytes_max: Option<u32>,
        findings: &mut Vec<Finding>,
    ) {
        if self.dialect == Dialect::Mx {
            if ethertype.is_some_and(|ethertype| ethertype != ETHERTYPE) {
                let conflict = format!("does not fit dialect \"mx\", which has {ETHERTYPE:#06x} only");
                fields.conflict("ethertype", conflict, "", findings);
            }
            if frame_bytes_max.is_some_and(|bytes| bytes != Sizes::MX.frame_bytes_max()) {
                let conflict = format!("does not fit dialect \"mx\", which has {} only", Sizes::MX.frame_bytes_max());
                fields.conflict("frame_bytes_max", conflict, "", findings);
            }
        }
        let has_udp = self.links.iter().any(|link| matches!(link.carrier, Carrier::Udp { .. }));
        if has_udp && self.frame_bytes_max.is_some_and(|bytes| bytes > UDP_FRAME_BYTES_MAX) {
            let conflict = format!("does not fit a link over UDP: a datagram has room for {UDP_FRAME_BYTES_MAX} bytes");
            fields.conflict("frame_bytes_max", conflict, "", findings);
        }
        if u64::from(self.give_up_s) * 1000 < u64::from(self.resend_ms) {
            let conflict = format!(
                "does not fit resend_ms: a peer would be given up after {} s, before anything is sent again after {} ms",
                self.give_up_s, self.resend_ms
            );
            fields.conflict("give_up_s", conflict, "", findings);
        }
    }

    /// Its fields as a board has them, each with its value.
    pub(super) fn write(&self, table: &mut toml::Table) {
        let mut say = |name: &str, value: toml::Value| drop(table.insert(name.to_owned(), value));
        match self.dialect {
            Dialect::Mx => say("dialect", DialectWord::Mx.to_toml()),
            Dialect::OpenMx { ethertype } => {
                say("dialect", DialectWord::OpenMx.to_toml());
                say("ethertype", Ethertype(ethertype).to_toml());
            }
        }
        if let Some(bytes) = self.frame_bytes_max {
            say("frame_bytes_max", toml::Value::Integer(bytes.into()));
        }
        say("discovery", self.discovery.into());
        say("peers", StaticPeers(self.peers.clone()).to_toml());
        if let Some(path) = &self.peers_file {
            say("peers_file", path.to_str().expect("paths are read from TOML strings, which are UTF-8").into());
        }
        say("resend_ms", toml::Value::Integer(self.resend_ms.into()));
        say("give_up_s", toml::Value::Integer(self.give_up_s.into()));
        say("links", Links(self.links.clone()).to_toml());
    }
}

/// All boards that the configuration names.
#[derive(Default)]
pub(super) struct StaticPeers(Vec<StaticPeer>);

impl Setting for StaticPeers {
    const TYPE: &'static str = "list of tables";
    const EXAMPLE: &'static str = "boards are written as in [{ mac = \"02:00:5e:00:00:01\", name = \"node7:0\" }]";

    fn expected() -> String {
        format!("a list of at most {PEERS_MAX} tables {{ {} }}", StaticPeer::NAMES.join(", "))
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let (mut peers, mut seen) = (Vec::new(), BTreeSet::new());
        for (member, peer) in members::<Self, StaticPeer>(item, PEERS_MAX, findings)? {
            if !seen.insert(peer.name.to_string()) {
                let found = format!("the name \"{}\"", peer.name);
                findings.push(member.finding(ProblemKind::Repeated { key: item.key.clone(), found }, None));
            }
            peers.push(peer);
        }
        (findings.len() == before).then_some(Self(peers))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.iter().map(StaticPeer::to_toml).collect::<Vec<_>>().into()
    }
}

impl StaticPeer {
    const NAMES: &'static [&'static str] = &["mac", "name"];
}

impl Setting for StaticPeer {
    const TYPE: &'static str = "table";

    fn expected() -> String {
        format!("a table {{ {} }}", Self::NAMES.join(", "))
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let help = |_: &str| format!("a peer has {}", listed(Self::NAMES));
        let fields = Fields::of::<Self>(item, Self::NAMES, help, findings)?;
        let (mac, name) = (fields.need::<Mac>("mac", findings), fields.need::<MxBoardName>("name", findings));
        let name = wire::BoardName::new(name?.as_str().as_bytes()).expect("as short on the wire, and without zeros");
        let peer = Self { nic: mac?.nic(), name };
        (findings.len() == before).then_some(peer)
    }

    fn to_toml(&self) -> toml::Value {
        let mut table = toml::Table::new();
        table.insert("mac".to_owned(), self.nic.to_string().into());
        table.insert("name".to_owned(), self.name.to_string().into());
        table.into()
    }
}

const _: () = assert!(GIVE_UP_S * 1000 >= RESEND_MS_MAX);
const _: () = assert!(wire::BoardName::BYTES_MAX == isthmus_layout::mx::NAME_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    fn network(resend_ms: u32, give_up_s: u32) -> Network {
        Network {
            dialect: Dialect::OPEN_MX,
            frame_bytes_max: None,
            discovery: true,
            peers: Vec::new(),
            peers_file: None,
            resend_ms,
            give_up_s,
            links: Vec::new(),
        }
    }

    #[test]
    fn defaults_match_the_engine_and_the_document() {
        assert_eq!(network(RESEND_MS, GIVE_UP_S).tuning(), EndpointTuning::DEFAULT);
        let default = |name: &str| Network::FIELDS.iter().find(|field| field.name == name).map(|field| field.default);
        assert_eq!(default("resend_ms"), Some(format!("`{RESEND_MS}`").as_str()));
        assert_eq!(default("give_up_s"), Some(format!("`{GIVE_UP_S}`").as_str()));
        assert_eq!(default("ethertype"), Some(format!("`0x{ETHERTYPE:X}`").as_str()));
        assert!(default("frame_bytes_max").unwrap().contains(&Sizes::MX.frame_bytes_max().to_string()));
    }

    #[test]
    fn gives_up_a_silent_peer_after_give_up_s() {
        let tuning = network(300, 10).tuning();
        assert_eq!((tuning.resend_us, tuning.resends_max, tuning.probe_us), (300_000, 34, 1_000_000));
        let tuning = network(40, 86_400).tuning();
        assert_eq!((tuning.resends_max, tuning.probe_us), (2_160_000, EndpointTuning::DEFAULT.probe_us));
        let tuning = network(1000, 1).tuning();
        assert_eq!((tuning.resends_max, tuning.probe_us), (1, 1_000_000));
    }
}
