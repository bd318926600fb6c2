//! Checks of the overlay: whether the interfaces of its networks exist, and whether the hosts of its edges can be reached.

use isthmus_client::Topic;
use isthmus_report::overlay::{OverlayEdgeRow, OverlayNetworkRow, OverlayReport, OverlaySocketRow};

use crate::daemon::{Daemon, read};
use crate::doctor::{CheckPlace, Finding, unexpected};
use crate::output::counted;

/// The age in milliseconds up to which a warning counts.
const RECENT_MS: u64 = 60_000;

/// The number of frames to a host from which on its silence counts.
const SENT_MIN: u64 = 16;

/// Checks the networks of the daemon.
pub(crate) fn check(place: &CheckPlace<'_>, findings: &mut Vec<Finding>) {
    let Some(options) = place.daemon else { return };
    let (id, tried) = ("overlay", "querying the overlay networks of the daemon");
    let report = Daemon::connect(options).and_then(|mut daemon| daemon.ask(Topic::Overlay, &[]));
    match report.and_then(|answer| read::<OverlayReport>(&answer)) {
        Ok(report) if report.hidden.unwrap_or(0) > 0 => {
            let networks = counted(report.hidden.unwrap_or(0) as usize, "network");
            findings.push(Finding::ok(id, tried, format!("{networks}, which root and the daemon's user can check")));
        }
        Ok(report) if report.networks.is_empty() => {
            findings.push(Finding::ok(id, tried, "not used: the configuration has no overlay network"));
        }
        Ok(report) => {
            let networks = report.networks.iter();
            findings.extend(networks.flat_map(|network| [interfaces(network), edges(network), addresses(network)]));
            findings.extend(report.sockets.iter().filter_map(unknown));
        }
        Err(error) => findings.push(unexpected(id, tried, &error)),
    }
}

/// The interfaces of a network. Each that is missing has a reason, which says what to do.
fn interfaces(network: &OverlayNetworkRow) -> Finding {
    let (id, tried) =
        ("overlay.interfaces", format!("querying the interfaces of the overlay network {}", network.name));
    let missing = network.interfaces.iter().filter_map(|row| Some((&row.name, row.missing.as_ref()?)));
    let missing: Vec<_> = missing.map(|(name, reason)| format!("{name} is missing: {reason}")).collect();
    if missing.is_empty() {
        return Finding::ok(id, tried, format!("{}: {}", network.name, counted(network.interfaces.len(), "interface")));
    }
    Finding::problem(id, tried, format!("{}: {}", network.name, missing.join("; ")))
        .remedy("The reason says what to do. The daemon tries again each second.")
}

/// The reason of frames that the kernel did not permit the daemon to send.
const NOT_PERMITTED: &str = "not-permitted";

/// The edges of a network. Losses count since the daemon's start, and a change of its unit takes a restart.
fn edges(network: &OverlayNetworkRow) -> Finding {
    let (id, tried) = ("overlay.edges", format!("querying the edges of the overlay network {}", network.name));
    let lost: Vec<_> = network.edges.iter().filter(|row| row.datagram_bytes.is_none()).map(|row| &*row.to).collect();
    let is_denied = |row: &&OverlayEdgeRow| row.traffic.lost.iter().any(|loss| loss.reason == NOT_PERMITTED);
    let denied: Vec<_> = network.edges.iter().filter(is_denied).map(|row| &*row.to).collect();
    if !denied.is_empty() {
        let result = format!("{}: this host did not permit the daemon to send to {}", network.name, denied.join(", "));
        return Finding::note(id, tried, result).remedy(
            "With the unit of systemd, name the hosts in `IPAddressAllow=` (share/isthmus/systemd/other-hosts.conf, docs/operate/install.md) and \
             restart the daemon. Otherwise permit the address in this host's firewall (`nft list ruleset`).",
        );
    }
    let is_silent = |row: &&OverlayEdgeRow| row.heard_ms.is_none() && row.traffic.sent >= SENT_MIN;
    let silent: Vec<_> = network.edges.iter().filter(is_silent).map(|row| &*row.to).collect();
    if lost.is_empty() && !silent.is_empty() {
        let result = format!("{}: frames were sent to {}, and none came from there", network.name, silent.join(", "));
        return Finding::note(id, tried, result).remedy(
            "Check on the other host that its network has an edge to this host, with the same VNI, kind and port (`isthmus overlay list`), and that \
             no firewall between the hosts drops the UDP port.",
        );
    }
    if lost.is_empty() {
        return Finding::ok(id, tried, format!("{}: {}", network.name, counted(network.edges.len(), "edge")));
    }
    Finding::note(id, tried, format!("{}: no route to {}", network.name, lost.join(", ")))
        .remedy("Check the address in `edges`, and the routes of this host (`ip route get ADDRESS`).")
}

/// A datagram of the last minute that belongs to no edge.
fn unknown(socket: &OverlaySocketRow) -> Option<Finding> {
    let row = socket.last_unknown.as_ref().filter(|row| row.age_ms < RECENT_MS)?;
    let tried = format!("querying the datagrams that {} refuses", socket.bound);
    let result =
        format!("{}, {}: datagrams belong to no edge; {}", socket.bound, socket.kind, super::list::unknown(row));
    Some(Finding::note("overlay.datagrams", tried, result).remedy(
        "Add an edge to that address to the network, or give the network the same VNI on both hosts. Ignore it if the address is none of yours.",
    ))
}

/// The addresses of a network about which the daemon has warned within a minute.
fn addresses(network: &OverlayNetworkRow) -> Finding {
    let (id, tried) = ("overlay.addresses", format!("querying the warnings of the overlay network {}", network.name));
    let recent: Vec<_> = network.warnings.iter().filter(|row| row.age_ms < RECENT_MS).collect();
    match recent[..] {
        [] => Finding::ok(id, tried, format!("{}: no address is used twice, no frame comes back", network.name)),
        [row, ..] => {
            let problems: Vec<_> = recent.iter().map(|row| &*row.problem).collect();
            Finding::note(id, tried, format!("{}: {}", network.name, problems.join("; "))).remedy(&row.remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::doctor::Severity;

    #[test]
    fn missing_interfaces_and_lost_hosts_have_remedies() {
        let traffic = json!({ "received": 0, "received_bytes": 0, "sent": 0, "sent_bytes": 0, "lost": [] });
        let network = |missing: Option<&str>, bytes: Option<u64>| {
            let age_ms = if missing.is_some() { 59_999 } else { 60_000 };
            let warnings = json!([{ "kind": "loop", "mac": "02:00:00:00:00:02", "problem": "it comes back", "remedy": "change it", "count": 1, "age_ms": age_ms }]);
            let interface = json!({ "name": "eth0@web", "mac": "02:00:00:00:00:01", "mtu": 1500, "exists": missing.is_none(), "missing": missing, "traffic": traffic });
            let edge = json!({ "to": "192.0.2.2:9001", "kind": "fast", "datagram_bytes": bytes, "traffic": traffic });
            let row = json!({ "name": "lan", "vni": 0, "learning": true, "interfaces": [interface], "edges": [edge], "routes": [], "learned": [], "warnings": warnings });
            read::<OverlayNetworkRow>(&row).expect("a row")
        };
        let works = network(None, Some(1472));
        let severities = [interfaces(&works), edges(&works), addresses(&works)].map(|finding| finding.severity);
        assert_eq!(severities, [Severity::Ok; 3]);
        let address = addresses(&network(Some("it is not there"), None));
        assert_eq!((address.severity, address.result.as_str()), (Severity::Warning, "lan: it comes back"));
        let broken = network(Some("isthmus-helper is not running"), None);
        let (missing, lost) = (interfaces(&broken), edges(&broken));
        assert_eq!([missing.severity, lost.severity], [Severity::Problem, Severity::Warning]);
        assert!(missing.result.contains("eth0@web is missing: isthmus-helper is not running"), "{}", missing.result);
        assert!(lost.result.contains("192.0.2.2:9001"), "{}", lost.result);
        assert!(missing.remedy.is_some() && lost.remedy.is_some());
    }

    #[test]
    fn silent_hosts_and_datagrams_of_no_edge_are_told() {
        let row = |heard_ms: Option<u64>, sent: u64| {
            let traffic = json!({ "received": 0, "received_bytes": 0, "sent": sent, "sent_bytes": 0, "lost": [] });
            let edge = json!({ "to": "192.0.2.2:9001", "kind": "fast", "datagram_bytes": 1472, "heard_ms": heard_ms, "traffic": traffic });
            let row = json!({ "name": "lan", "vni": 0, "learning": true, "interfaces": [], "edges": [edge], "routes": [], "learned": [], "warnings": [] });
            edges(&read::<OverlayNetworkRow>(&row).expect("a row"))
        };
        assert_eq!((row(Some(1), 99).severity, row(None, 15).severity), (Severity::Ok, Severity::Ok));
        let silent = row(None, 16);
        assert_eq!(silent.severity, Severity::Warning);
        assert!(silent.result.contains("none came from there") && silent.remedy.is_some(), "{}", silent.result);
        let socket = |age_ms: u64| {
            let last = json!({ "from": "192.0.2.9", "vni": 8, "edges": ["lan (VNI 7) has a fast edge to 192.0.2.9:9001"], "age_ms": age_ms });
            let row = json!({ "bound": "[::]:9001", "kind": "fast", "refused": [], "last_unknown": last });
            unknown(&read::<OverlaySocketRow>(&row).expect("a row"))
        };
        assert!(socket(60_000).is_none());
        let refused = socket(1_500).unwrap();
        assert_eq!(refused.severity, Severity::Warning);
        assert!(
            refused.result.ends_with("from 192.0.2.9 with VNI 8; lan (VNI 7) has a fast edge to 192.0.2.9:9001"),
            "{}",
            refused.result
        );
    }
}
