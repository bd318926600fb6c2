//! Reports the virtual RDMA device, its GIDs, and the domains that have queue pair numbers.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use isthmus_layout::ids::DomainId;
use isthmus_layout::verbs::BLOCK_NUMBERS;
use isthmus_report::{DomainName, SCHEMA, VerbsBlockRow, VerbsDomainRow, VerbsGidRow, VerbsReport};

use super::Verbs;
use super::gids::GidEntry;
use crate::broker::Broker;

/// The name of the device.
const DEVICE: &str = "isthmus0";

/// The name of the GID type in sysfs.
const GID_KIND: &str = "RoCE v2";

impl Verbs {
    /// Reports the device and the domains.
    pub(crate) fn report(broker: &Broker) -> VerbsReport {
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
