//! Reports the virtual RDMA device and its GIDs in the viewer's place, and the domains that have queue pair numbers.

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
use crate::report::slices::Table;
use crate::report::written::hidden;
use crate::viewer::{Viewer, not_yours};

/// The device, and the domains that have queue pair numbers.
pub(crate) enum DomainTable {}

impl Table for DomainTable {
    type Key = DomainId;
    type Row = VerbsDomainRow;
    type Report = VerbsReport;

    const SLICE: usize = 16;

    fn next(broker: &Broker, after: Option<&DomainId>) -> Option<DomainId> {
        broker.capabilities.verbs.numbers.next_domain_after(after.copied())
    }

    fn add(broker: &Broker, viewer: &Viewer, id: &DomainId, rows: &mut Vec<VerbsDomainRow>) {
        let visible = broker.core.directory.get(*id).filter(|domain| viewer.sees_domain(&broker.core, domain));
        let blocks = || broker.capabilities.verbs.numbers.of_domain(*id);
        rows.extend(visible.map(|domain| VerbsDomainRow {
            domain: DomainName::from(domain),
            uid: domain.owner.0,
            blocks: blocks().map(|first| VerbsBlockRow { first, count: BLOCK_NUMBERS }).collect(),
        }));
    }

    fn finish(
        broker: &Broker,
        viewer: &Viewer,
        domains: Vec<VerbsDomainRow>,
    ) -> impl FnOnce() -> VerbsReport + Send + 'static + use<> {
        let verbs = &broker.capabilities.verbs;
        let node = match viewer.guest() {
            Some(name) => {
                let window = broker.guests().get(name).and_then(|guest| guest.guest_window.as_ref());
                verbs.gids.node_of_guest(window.map(|window| window.number()), name).into_owned()
            }
            None => verbs.gids.node_of_host(),
        };
        let report = VerbsReport {
            schema: SCHEMA,
            enabled: verbs.is_enabled,
            device: DEVICE.to_owned(),
            node_guid: groups(&node.guid.to_be_bytes()),
            gids: node.gids.into_iter().enumerate().map(gid).collect(),
            hidden: hidden(verbs.numbers.domains(), domains.len()),
            domains,
        };
        move || report
    }
}

impl Verbs {
    /// Reports a queue pair: the program that has its number, and the paths to its peers.
    pub(crate) fn queue_pair(broker: &Broker, viewer: &Viewer, number: &Name) -> Result<QueuePairReport, Refusal> {
        let invalid = || Refusal::new(Reason::RequestInvalid, format!("{number} is not the number of a queue pair"));
        let number: u32 = number.as_str().parse().map_err(|_| invalid())?;
        let unknown = || {
            let reason = Reason::VerbsNumberUnknown;
            Refusal::new(reason, format!("{}: queue pair {number:#08x}", reason.summary()))
        };
        let Self { numbers, peers, .. } = &broker.capabilities.verbs;
        let at = numbers.holder_of(number).ok_or_else(unknown)?;
        let holder = broker.core.directory.get(at.domain).ok_or_else(unknown)?;
        let sees = |domain: &DomainEntry| viewer.sees_domain(&broker.core, domain);
        let peer = |peer: &NumberPeer| {
            // One that has left is no peer any more.
            let domain = broker.core.directory.get(peer.domain).filter(|domain| sees(holder) || sees(domain))?;
            let path = why_between(broker, viewer, holder, domain);
            let program = program(broker, viewer, domain, holder);
            let (same_owner, refused) = (domain.owner == holder.owner, peer.refused.map(Into::into));
            Some((QueuePairPeer { program, same_owner, refused, path }, domain))
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
    let visible = Some(domain).filter(|domain| viewer.sees_domain(&broker.core, domain));
    let attachment = visible.and_then(|domain| broker.core.attachments.get(&domain.id));
    QueuePairProgram {
        domain: viewer.peer_name(&broker.core, domain, of),
        uid: visible.map(|domain| domain.owner.0),
        pid: attachment.and_then(|attachment| attachment.pid),
    }
}

fn gid((index, entry): (usize, GidEntry)) -> VerbsGidRow {
    let GidEntry { gid, interface } = entry;
    VerbsGidRow { index: index as u32, gid: full(gid), interface, kind: GID_KIND.to_owned() }
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
