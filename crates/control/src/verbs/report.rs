//! Reports the virtual RDMA device, its GIDs, and the domains that have queue pair numbers.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use isthmus_layout::Refusal;
use isthmus_layout::control::Name;
use isthmus_layout::ids::DomainId;
use isthmus_layout::reason::Reason;
use isthmus_layout::verbs::{BLOCK_NUMBERS, DEVICE, GID_KIND};
use isthmus_report::{
    DomainName, QueuePairPeer, QueuePairProgram, QueuePairReport, SCHEMA, VerbsBlockRow, VerbsDomainRow, VerbsGidRow,
    VerbsReport,
};

use super::Verbs;
use super::gids::GidEntry;
use super::peers::NumberPeer;
use crate::broker::Broker;
use crate::directory::DomainEntry;
use crate::report::paths::why_between;
use crate::report::{json, wrong_arguments};

impl Verbs {
    /// Reports the device and the domains, or the queue pair with the number that is the argument.
    pub(crate) fn report(broker: &Broker, arguments: &[Name]) -> Result<Vec<u8>, Refusal> {
        match arguments {
            [] => json(&Self::device(broker)),
            [number] => json(&Self::queue_pair(broker, number)?),
            _ => Err(wrong_arguments("0 or 1", arguments)),
        }
    }

    fn device(broker: &Broker) -> VerbsReport {
        let verbs = &broker.capabilities.verbs;
        VerbsReport {
            schema: SCHEMA,
            enabled: verbs.is_enabled,
            device: DEVICE.to_owned(),
            node_guid: groups(&verbs.gids.node_guid().to_be_bytes()),
            gids: verbs.gids.read().into_iter().enumerate().map(gid).collect(),
            domains: domains(broker),
        }
    }
}

impl Verbs {
    /// Reports a queue pair: the program that has its number, and the paths to its peers.
    fn queue_pair(broker: &Broker, number: &Name) -> Result<QueuePairReport, Refusal> {
        let invalid = || Refusal::new(Reason::RequestInvalid, format!("{number} is not the number of a queue pair"));
        let number: u32 = number.as_str().parse().map_err(|_| invalid())?;
        let unknown = || {
            let reason = Reason::VerbsNumberUnknown;
            Refusal::new(reason, format!("{}: queue pair {number:#08x}", reason.summary()))
        };
        let Self { numbers, peers, .. } = &broker.capabilities.verbs;
        let at = numbers.holder_of(number).ok_or_else(unknown)?;
        let holder = broker.directory.get(at.domain).ok_or_else(unknown)?;
        let peer = |peer: &NumberPeer| {
            let domain = broker.directory.get(peer.domain)?; // One that has left is no peer any more.
            let path = why_between(broker, holder, domain);
            Some(QueuePairPeer { program: program(broker, domain), refused: peer.refused.map(Into::into), path })
        };
        let peers = peers.of(number).iter().filter_map(peer).collect();
        Ok(QueuePairReport { schema: SCHEMA, number, holder: program(broker, holder), peers })
    }
}

fn program(broker: &Broker, domain: &DomainEntry) -> QueuePairProgram {
    let pid = broker.attachments.get(&domain.id).and_then(|attachment| attachment.pid);
    QueuePairProgram { domain: DomainName::from(domain), uid: domain.owner.0, pid }
}

fn gid((index, entry): (usize, GidEntry)) -> VerbsGidRow {
    let GidEntry { gid, interface } = entry;
    VerbsGidRow { index: index as u32, gid: full(gid), interface, kind: GID_KIND.to_owned() }
}

fn domains(broker: &Broker) -> Vec<VerbsDomainRow> {
    let mut blocks: BTreeMap<DomainId, Vec<VerbsBlockRow>> = BTreeMap::new();
    for (first, at) in broker.capabilities.verbs.numbers.iter() {
        blocks.entry(at.domain).or_default().push(VerbsBlockRow { first, count: BLOCK_NUMBERS });
    }
    let rows = blocks.into_iter().filter_map(|(domain, blocks)| {
        let domain = broker.directory.get(domain)?;
        Some(VerbsDomainRow { domain: DomainName::from(domain), uid: domain.owner.0, blocks })
    });
    rows.collect()
}

/// Formats a GID as sysfs does, with all digits.
fn full(gid: Ipv6Addr) -> String {
    groups(&gid.octets())
}

fn groups(bytes: &[u8]) -> String {
    let groups: Vec<String> =
        bytes.chunks(2).map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    groups.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_addresses_with_all_digits() {
        assert_eq!(full("::ffff:10.0.0.1".parse().unwrap()), "0000:0000:0000:0000:0000:ffff:0a00:0001");
        assert_eq!(groups(&0x0211_2233_4455_6677_u64.to_be_bytes()), "0211:2233:4455:6677");
    }
}
