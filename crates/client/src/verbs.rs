//! Queue pair numbers: taking blocks of them, finding the endpoint that has one, and the virtual RDMA device. The daemon decides. What
//! queue pairs exchange goes to the endpoint as messages.

use crate::domain::Domain;
use crate::error::Refusal;
use crate::matcher::Matcher;
use crate::query::QueryClient;
use isthmus_layout::EndpointAddress;
use isthmus_layout::control::{ToClient, Topic};
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::reason::Reason;
use isthmus_layout::verbs::{VerbsResolve, VerbsTake, VerbsToClient};
use serde::{Deserialize, Deserializer, de};
use std::net::Ipv6Addr;
use std::ops::Range;

/// The virtual RDMA device of the daemon, and the domains that use it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct VerbsDevice {
    /// True if the configuration of the daemon enables verbs.
    pub enabled: bool,
    /// The name of the device.
    #[serde(rename = "device")]
    pub name: String,
    /// The node GUID.
    #[serde(deserialize_with = "guid")]
    pub node_guid: u64,
    /// The GIDs, by index.
    pub gids: Vec<VerbsGid>,
    /// The domains that have queue pair numbers.
    pub domains: Vec<VerbsDomain>,
}

/// A GID of the device.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct VerbsGid {
    /// The GID: an IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`.
    pub gid: Ipv6Addr,
    /// The interface that has the address; none for the GID that is made of the node GUID.
    pub interface: Option<String>,
}

/// A domain that has queue pair numbers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct VerbsDomain {
    /// The number and name of the domain.
    pub domain: VerbsDomainName,
    /// The user that the domain belongs to, as the daemon sees it.
    pub uid: u32,
    /// The blocks of numbers.
    pub blocks: Vec<VerbsBlock>,
}

/// The number and name of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct VerbsDomainName {
    /// The number.
    pub id: u32,
    /// The name.
    pub name: String,
}

/// A block of queue pair numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct VerbsBlock {
    /// The first number.
    pub first: u32,
    /// The number of queue pair numbers.
    pub count: u32,
}

impl<M: Matcher> Domain<M> {
    /// Takes a block of queue pair numbers for the open endpoint `index`. The block is returned when the endpoint closes, and taken again
    /// from a daemon that comes after this one.
    ///
    /// Refused with [`Reason::VerbsNumbersFull`], [`Reason::EndpointClosed`] or [`Reason::VerbsDisabled`].
    pub fn verbs_take(&mut self, index: EndpointIndex) -> Result<Range<u32>, Refusal> {
        match self.core.request(VerbsTake { index, first: None }.into())?.message {
            ToClient::Verbs(VerbsToClient::VerbsTaken(taken)) => {
                let end = taken.first.checked_add(taken.count).ok_or(Reason::NotIsthmus)?;
                self.core.endpoints.claim(index, VerbsTake { index, first: Some(taken.first) }.into());
                Ok(taken.first..end)
            }
            _ => Err(Reason::NotIsthmus.into()),
        }
    }

    /// Returns the endpoint that has a queue pair number; a GID of zeros stands for this host. From then on the daemon notifies this
    /// domain when the other one leaves. Blocks until the daemon replies.
    ///
    /// Refused with [`Reason::VerbsGidUnknown`], [`Reason::VerbsNumberUnknown`], [`Reason::TalkForbidden`] or [`Reason::VerbsDisabled`].
    pub fn verbs_resolve(&mut self, gid: [u8; 16], qpn: u32) -> Result<EndpointAddress, Refusal> {
        let gid = u128::from_be_bytes(gid);
        let resolve = VerbsResolve { gid_high: (gid >> 64) as u64, gid_low: gid as u64, qpn };
        match self.core.request(resolve.into())?.message {
            ToClient::Verbs(VerbsToClient::VerbsFound(found)) => {
                Ok(EndpointAddress { domain: found.domain, endpoint: found.endpoint })
            }
            _ => Err(Reason::NotIsthmus.into()),
        }
    }

    /// The virtual RDMA device.
    pub fn verbs(&mut self) -> Result<VerbsDevice, Refusal> {
        self.query(Topic::Verbs, &[]).and_then(|json| report(&json))
    }
}

impl QueryClient {
    /// The virtual RDMA device.
    pub fn verbs(&mut self) -> Result<VerbsDevice, Refusal> {
        self.query(Topic::Verbs, &[]).and_then(|json| report(&json))
    }
}

/// Parses a report. Unknown fields are ignored, because the daemon may be newer.
fn report(json: &str) -> Result<VerbsDevice, Refusal> {
    serde_json::from_str(json).map_err(|error| Refusal::new(Reason::NotIsthmus, format!("report on verbs: {error}")))
}

/// Parses four groups of four hexadecimal digits.
fn guid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    let is_guid = text.split(':').count() == 4 && text.split(':').all(|group| group.len() == 4);
    let number = u64::from_str_radix(&text.replace(':', ""), 16).ok().filter(|_| is_guid);
    number.ok_or_else(|| de::Error::invalid_value(de::Unexpected::Str(&text), &"a GUID"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(node_guid: &str) -> String {
        let gid = r#"{ "index": 0, "gid": "0000:0000:0000:0000:0000:ffff:0a00:0001", "interface": "eth0", "kind": "RoCE v2" }"#;
        let block = r#"{ "first": 256, "count": 256, "new": 1 }"#;
        let domain = format!(r#"{{ "domain": {{ "id": 1, "name": "web" }}, "uid": 5, "blocks": [{block}] }}"#);
        format!(
            r#"{{ "schema": 1, "enabled": true, "device": "isthmus0", "node_guid": "{node_guid}", "gids": [{gid}], "domains": [{domain}] }}"#
        )
    }

    #[test]
    fn report_is_parsed_and_unknown_fields_are_ignored() {
        let device = report(&json("0211:2233:4455:66ff")).unwrap();
        assert_eq!((device.enabled, device.name.as_str(), device.node_guid), (true, "isthmus0", 0x0211_2233_4455_66ff));
        assert_eq!(device.gids[0].gid.to_ipv4_mapped(), Some([10, 0, 0, 1].into()));
        assert_eq!(device.domains[0].blocks, [VerbsBlock { first: 256, count: 256 }]);
    }

    #[test]
    fn report_with_a_wrong_guid_is_refused() {
        for guid in ["", "1:2:3:4", "0211:2233:4455", "0211:2233:4455:66fg", "+211:2233:4455:66ff:0"] {
            assert_eq!(report(&json(guid)).map_err(|refusal| refusal.reason), Err(Reason::NotIsthmus), "{guid}");
        }
    }
}
