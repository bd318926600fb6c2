//! Reports the virtual RDMA device, its GIDs, and the domains that have queue pair numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use isthmus_layout::Refusal;
use isthmus_layout::control::Name;
use isthmus_layout::ids::DomainId;
use isthmus_layout::reason::Reason;
use isthmus_layout::verbs::BLOCK_NUMBERS;
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
use crate::report::{hidden, json, wrong_arguments};
use crate::viewer::{Viewer, not_yours};

/// The name of the device.
const DEVICE: &str = "isthmus0";

/// The name of the GID type in sysfs.
const GID_KIND: &str = "RoCE v2";

impl Verbs {
    /// Reports the device and the domains, or the queue pair with the number that is the argument.
    pub(crate) fn report(broker: &Broker, viewer: &Viewer, arguments: &[Name]) -> Result<Vec<u8>, Refusal> {
        match arguments {
            [] => json(&Self::device(broker, viewer)),
            [number] => json(&Self::queue_pair(broker, viewer, number)?),
            _ => Err(wrong_arguments("0 or 1", arguments)),
        }
    }

    fn device(broker: &Broker, viewer: &Viewer) -> VerbsReport {
        let verbs = &broker.capabilities.verbs;
        let holders: BTreeSet<_> = verbs.numbers.iter().map(|(_, at)| at.domain).collect();
        let domains = domains(broker, viewer);
        VerbsReport {
            schema: SCHEMA,
            enabled: verbs.is_enabled,
            device: DEVICE.to_owned(),
            node_guid: groups(&verbs.gids.node_guid().to_be_bytes()),
            gids: verbs.gids.read().into_iter().enumerate().map(gid).collect(),
            hidden: hidden(holders.len(), domains.len()),
            domains,
        }
    }
}

impl Verbs {
    /// Reports a queue pair: the program that has its number, and the paths to its peers.
    fn queue_pair(broker: &Broker, viewer: &Viewer, number: &Name) -> Result<QueuePairReport, Refusal> {
        let invalid = || Refusal::new(Reason::RequestInvalid, format!("{number} is not the number of a queue pair"));
        let number: u32 = number.as_str().parse().map_err(|_| invalid())?;
        let unknown = || {
            let reason = Reason::VerbsNumberUnknown;
            Refusal::new(reason, format!("{}: queue pair {number:#08x}", reason.summary()))
        };
        let Self { numbers, peers, .. } = &broker.capabilities.verbs;
        let at = numbers.holder_of(number).ok_or_else(unknown)?;
        let holder = broker.directory.get(at.domain).ok_or_else(unknown)?;
        let sees = |domain: &DomainEntry| viewer.sees_domain(broker, domain);
        let peer = |peer: &NumberPeer| {
            // One that has left is no peer any more.
            let domain = broker.directory.get(peer.domain).filter(|domain| sees(holder) || sees(domain))?;
            let path = why_between(broker, viewer, holder, domain);
            let program = program(broker, viewer, domain, holder);
            Some((QueuePairPeer { program, refused: peer.refused.map(Into::into), path }, domain))
        };
        let (peers, domains): (Vec<_>, Vec<_>) = peers.of(number).iter().filter_map(peer).unzip();
        if !sees(holder) && domains.is_empty() {
            return Err(not_yours(format_args!("queue pair {number:#08x}")));
        }
        let of = domains.first().copied().unwrap_or(holder);
        Ok(QueuePairReport { schema: SCHEMA, number, holder: program(broker, viewer, holder, of), peers })
    }
}

/// A program at one end of a connection with a queue pair of the domain `of`.
fn program(broker: &Broker, viewer: &Viewer, domain: &DomainEntry, of: &DomainEntry) -> QueuePairProgram {
    let attachment = broker.attachments.get(&domain.id).filter(|_| viewer.sees_domain(broker, domain));
    let pid = attachment.and_then(|attachment| attachment.pid);
    QueuePairProgram { domain: viewer.peer_name(broker, domain, of), uid: domain.owner.0, pid }
}

fn gid((index, entry): (usize, GidEntry)) -> VerbsGidRow {
    let GidEntry { gid, interface } = entry;
    VerbsGidRow { index: index as u32, gid: full(gid), interface, kind: GID_KIND.to_owned() }
}

fn domains(broker: &Broker, viewer: &Viewer) -> Vec<VerbsDomainRow> {
    let mut blocks: BTreeMap<DomainId, Vec<VerbsBlockRow>> = BTreeMap::new();
    for (first, at) in broker.capabilities.verbs.numbers.iter() {
        blocks.entry(at.domain).or_default().push(VerbsBlockRow { first, count: BLOCK_NUMBERS });
    }
    let rows = blocks.into_iter().filter_map(|(domain, blocks)| {
        let domain = broker.directory.get(domain).filter(|domain| viewer.sees_domain(broker, domain))?;
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
