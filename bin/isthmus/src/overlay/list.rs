//! `isthmus overlay list`: the daemon's report about its networks.

use std::path::PathBuf;

use anyhow::Result;
use isthmus_client::Topic;
use isthmus_report::overlay::{OverlayNetworkRow, OverlayReport, OverlayTraffic, OverlayUnknownRow};

use crate::daemon::{ask, show};
use crate::output::{Align, Outcome, Output, Table, hidden};

pub(super) fn list(output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    show(output, "overlay", &ask(socket, Topic::Overlay, &[])?, text)
}

fn text(report: &OverlayReport) -> String {
    if report.networks.is_empty() && report.hidden.unwrap_or(0) > 0 {
        return hidden(report.hidden);
    }
    if report.networks.is_empty() {
        return "there is no overlay network: [[overlay.network]] in the configuration makes one\n".to_owned();
    }
    let mut text = report.networks.iter().map(network).collect::<Vec<_>>().join("\n");
    for socket in report.sockets.iter().filter(|socket| !socket.refused.is_empty()) {
        let refused: Vec<_> = socket.refused.iter().map(|loss| format!("{} {}", loss.count, loss.reason)).collect();
        text += &format!("\n{}, {}: refused datagrams: {}\n", socket.bound, socket.kind, refused.join(", "));
        text += &socket.last_unknown.as_ref().map(|row| format!("{}\n", unknown(row))).unwrap_or_default();
    }
    text
}

/// Formats the last datagram of an unknown sender or network.
pub(super) fn unknown(row: &OverlayUnknownRow) -> String {
    let vni = row.vni.map(|vni| format!(" with VNI {vni}")).unwrap_or_default();
    let edges = if row.edges.is_empty() { "no network has an edge to it".to_owned() } else { row.edges.join(", ") };
    format!("the last one came {} s ago from {}{vni}; {edges}", row.age_ms / 1000, row.from)
}

/// Formats a network, with a line for each interface, edge and learned address.
fn network(network: &OverlayNetworkRow) -> String {
    let learning = if network.learning { "learns addresses" } else { "explicit routes only" };
    let mut ports = Table::new(&[
        ("port", Align::Left),
        ("kind", Align::Left),
        ("state", Align::Left),
        ("received", Align::Right),
        ("sent", Align::Right),
        ("lost", Align::Left),
    ]);
    for row in &network.interfaces {
        let state = if row.exists { format!("{}, MTU {}", row.mac, row.mtu) } else { "missing".to_owned() };
        ports.row(cells(&row.name, "interface", state, &row.traffic));
    }
    for row in &network.edges {
        let state = row.datagram_bytes.map_or_else(|| "no route".to_owned(), |bytes| format!("path {bytes} bytes"));
        let heard = row.heard_ms.map_or_else(|| "never heard".to_owned(), |ms| format!("heard {} s ago", ms / 1000));
        ports.row(cells(&row.to, &row.kind, format!("{state}, {heard}"), &row.traffic));
    }
    let mut text = format!("{}, VNI {}, {learning}\n\n{}", network.name, network.vni, ports.text());
    for row in &network.interfaces {
        if let Some(reason) = &row.missing {
            text += &format!("{} is missing: {reason}\n", row.name);
        }
    }
    for row in &network.warnings {
        text += &format!("{}, {} s ago: {}; {}\n", row.kind, row.age_ms / 1000, row.problem, row.remedy);
    }
    if !network.routes.is_empty() {
        text += &format!("\nroutes\n  {}\n", network.routes.join("\n  "));
    }
    if !network.learned.is_empty() {
        let mut learned = Table::new(&[("learned", Align::Left), ("port", Align::Left), ("age", Align::Right)]);
        for row in &network.learned {
            let vlan = row.vlan.map_or_else(String::new, |vlan| format!(" VLAN {vlan}"));
            learned.row(vec![format!("{}{vlan}", row.mac), row.port.clone(), format!("{} s", row.age_ms / 1000)]);
        }
        text += &format!("\n{}", learned.text());
    }
    text
}

fn cells(name: &str, kind: &str, state: String, traffic: &OverlayTraffic) -> Vec<String> {
    let lost: Vec<_> = traffic.lost.iter().map(|lost| format!("{} {}", lost.count, lost.reason)).collect();
    let lost = if lost.is_empty() { "-".to_owned() } else { lost.join(", ") };
    vec![name.to_owned(), kind.to_owned(), state, traffic.received.to_string(), traffic.sent.to_string(), lost]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::daemon::read;

    #[test]
    fn networks_with_all_their_parts_are_printed() {
        let traffic = |received: u64, lost: &[(&str, u64)]| {
            let lost: Vec<_> = lost.iter().map(|(reason, count)| json!({ "reason": reason, "count": count })).collect();
            json!({ "received": received, "received_bytes": 0, "sent": 2 * received, "sent_bytes": 0, "lost": lost })
        };
        let interface = |name: &str, missing: Option<&str>| {
            let traffic = traffic(5, &[("down", 2), ("no-route", 1)]);
            json!({ "name": name, "mac": "02:00:00:00:00:01", "mtu": 1450, "exists": missing.is_none(), "missing": missing, "traffic": traffic })
        };
        let edge = |to: &str, bytes: Option<u64>| json!({ "to": to, "kind": "fast", "datagram_bytes": bytes, "traffic": traffic(0, &[]) });
        let report = json!({ "schema": 1, "networks": [
            {
                "name": "lan", "vni": 7, "learning": true,
                "interfaces": [interface("eth0@web", None), interface("eth0@db", Some("no such namespace; create it"))],
                "edges": [edge("192.0.2.2:9001", Some(1472)), edge("[fd00::2]:9001", None)],
                "routes": ["any any edge 192.0.2.2 any"],
                "learned": [{ "mac": "02:00:00:00:00:02", "port": "192.0.2.2:9001", "age_ms": 2500 }, { "mac": "00:00:5e:00:01:01", "vlan": 5, "port": "eth0@web", "age_ms": 1000 }],
                "warnings": [{ "kind": "flapping", "mac": "02:00:00:00:00:02", "problem": "it moves", "remedy": "change it", "count": 2, "age_ms": 3500 }],
            },
            { "name": "lab", "vni": 0, "learning": false, "interfaces": [], "edges": [], "routes": [], "learned": [], "warnings": [] },
        ], "sockets": [
            { "bound": "[::]:9001", "kind": "fast", "refused": [{ "reason": "unknown-sender", "count": 3 }],
              "last_unknown": { "from": "192.0.2.9", "vni": 8, "edges": [], "age_ms": 1500 } },
            { "bound": "[::]:4789", "kind": "vxlan", "refused": [] },
        ] });
        insta::assert_snapshot!("networks", text(&read(&report).expect("a report")));
        let none = json!({ "schema": 1, "networks": [], "sockets": [] });
        insta::assert_snapshot!("no_networks", text(&read(&none).expect("a report")));
    }
}
