//! `isthmus overlay network|interface|edge|route list` and `isthmus overlay stats`: parts of the report about the networks.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use isthmus_client::{Reason, Refusal, Topic};
use isthmus_report::overlay::{OverlayNetworkRow, OverlayReport, OverlayTraffic};
use serde_json::{Value, json};

use crate::daemon::{ask, read};
use crate::output::{Align, Outcome, Output, Table, bytes, hidden};

#[derive(Args)]
pub(crate) struct NetworkChoice {
    /// The network; all if absent.
    network: Option<String>,
}

/// A kind of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartKind {
    Networks,
    Interfaces,
    Edges,
    Routes,
}

impl PartKind {
    /// The field of a network in the report that has the parts.
    const fn field(self) -> &'static str {
        match self {
            Self::Networks => "networks",
            Self::Interfaces => "interfaces",
            Self::Edges => "edges",
            Self::Routes => "routes",
        }
    }
}

impl NetworkChoice {
    /// Leaves only the chosen network in a report. `key` is the field of a network with its name.
    pub(super) fn choose(&self, report: &mut Value, key: &str) -> Result<()> {
        let is_hidden = report["hidden"].as_u64().unwrap_or(0) > 0;
        let (Some(name), Some(networks)) = (&self.network, report["networks"].as_array_mut()) else { return Ok(()) };
        if is_hidden {
            return Err(Refusal::new(Reason::NotYours, format!("overlay network {name}")).into());
        }
        let names: Vec<_> = networks.iter().filter_map(|network| network[key].as_str()).map(str::to_owned).collect();
        networks.retain(|network| network[key] == **name);
        if networks.is_empty() {
            let known =
                if names.is_empty() { "there is none".to_owned() } else { format!("there is {}", names.join(", ")) };
            bail!("there is no overlay network {name}: {known}");
        }
        Ok(())
    }
}

/// Lists parts of one network or of all.
pub(super) fn list(output: Output, socket: Option<PathBuf>, kind: PartKind, choice: &NetworkChoice) -> Result<Outcome> {
    let mut report = ask(socket, Topic::Overlay, &[])?;
    choice.choose(&mut report, "name")?;
    let networks = if output.json {
        OverlayReport { schema: 0, networks: Vec::new(), sockets: Vec::new(), hidden: None }
    } else {
        read(&report)?
    };
    output.result(&format!("overlay_{}", kind.field()), &parts(kind, &report), || {
        text(kind, &networks.networks) + &hidden(networks.hidden)
    })?;
    Ok(Outcome::Done)
}

/// Prints the counters of the interfaces and edges of one network or of all.
pub(super) fn stats(output: Output, socket: Option<PathBuf>, choice: &NetworkChoice) -> Result<Outcome> {
    let mut report = ask(socket, Topic::Overlay, &[])?;
    choice.choose(&mut report, "name")?;
    let stats = |report: OverlayReport| stats_text(&report) + &hidden(report.hidden);
    let shown = if output.json { String::new() } else { stats(read(&report)?) };
    output.result("overlay", &report, || shown)?;
    Ok(Outcome::Done)
}

/// The parts of a report as one list; each says which network has it.
fn parts(kind: PartKind, report: &Value) -> Value {
    let networks = report["networks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let part = |network: &Value, part: &Value| match part.clone() {
        Value::Object(mut fields) => {
            fields.insert("network".to_owned(), network["name"].clone());
            Value::Object(fields)
        }
        route => json!({ "network": network["name"], "route": route }),
    };
    let of_network = |network| match kind {
        PartKind::Networks => vec![Value::clone(network)],
        _ => network[kind.field()].as_array().into_iter().flatten().map(|found| part(network, found)).collect(),
    };
    let list: Vec<_> = networks.iter().flat_map(of_network).collect();
    json!({ "schema": report["schema"], kind.field(): list })
}

fn text(kind: PartKind, networks: &[OverlayNetworkRow]) -> String {
    let headers: &[&'static str] = match kind {
        PartKind::Networks => &["network", "VNI", "learning", "interfaces", "edges", "routes", "learned"],
        PartKind::Interfaces => &["network", "interface", "MAC", "MTU", "state"],
        PartKind::Edges => &["network", "edge", "kind", "path"],
        PartKind::Routes => &["network", "route"],
    };
    let mut table = Table::new(&headers.iter().map(|header| (*header, Align::Left)).collect::<Vec<_>>());
    for network in networks {
        rows(kind, network).into_iter().for_each(|row| table.row(row));
    }
    table.text()
}

fn rows(kind: PartKind, network: &OverlayNetworkRow) -> Vec<Vec<String>> {
    let name = || network.name.clone();
    match kind {
        PartKind::Networks => {
            let learning = if network.learning { "yes" } else { "no" };
            let counts = [network.interfaces.len(), network.edges.len(), network.routes.len(), network.learned.len()];
            let cells = [name(), network.vni.to_string(), learning.to_owned()].into_iter();
            vec![cells.chain(counts.map(|count| count.to_string())).collect()]
        }
        PartKind::Interfaces => {
            let state = |missing: &Option<String>| {
                missing.as_ref().map_or("exists".to_owned(), |why| format!("missing: {why}"))
            };
            let interfaces = network.interfaces.iter();
            interfaces
                .map(|row| vec![name(), row.name.clone(), row.mac.clone(), row.mtu.to_string(), state(&row.missing)])
                .collect()
        }
        PartKind::Edges => {
            let path = |bytes: Option<u64>| bytes.map_or("no route".to_owned(), |bytes| format!("{bytes} bytes"));
            network
                .edges
                .iter()
                .map(|row| vec![name(), row.to.clone(), row.kind.clone(), path(row.datagram_bytes)])
                .collect()
        }
        PartKind::Routes => network.routes.iter().map(|route| vec![name(), route.clone()]).collect(),
    }
}

fn stats_text(report: &OverlayReport) -> String {
    let left = ["network", "port"].map(|header| (header, Align::Left));
    let right = ["received", "bytes", "sent", "bytes", "lost"].map(|header| (header, Align::Right));
    let mut counts = Table::new(&[&left[..], &right].concat());
    let mut losses = Table::new(&[left[0], left[1], ("lost", Align::Right), ("reason", Align::Left)]);
    let mut has_losses = false;
    for network in &report.networks {
        let interfaces = network.interfaces.iter().map(|row| (&row.name, &row.traffic));
        for (port, traffic) in interfaces.chain(network.edges.iter().map(|row| (&row.to, &row.traffic))) {
            let OverlayTraffic { received, received_bytes, sent, sent_bytes, lost } = traffic;
            let place = || vec![network.name.clone(), port.clone()];
            let all: u64 = lost.iter().map(|loss| loss.count).sum();
            let cells =
                [received.to_string(), bytes(*received_bytes), sent.to_string(), bytes(*sent_bytes), all.to_string()];
            counts.row(place().into_iter().chain(cells).collect());
            for loss in lost {
                has_losses = true;
                losses.row(place().into_iter().chain([loss.count.to_string(), loss.reason.clone()]).collect());
            }
        }
    }
    let mut text = counts.text();
    if has_losses {
        text += &format!("\n{}", losses.text());
    }
    for socket in &report.sockets {
        for loss in &socket.refused {
            text +=
                &format!("\n{}, {}: {} datagrams refused: {}\n", socket.bound, socket.kind, loss.count, loss.reason);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Value {
        let traffic = |lost: Value| json!({ "received": 5, "received_bytes": 5000, "sent": 7, "sent_bytes": 70_000, "lost": lost });
        let interface = |name: &str, missing: Option<&str>| json!({ "name": name, "mac": "02:00:00:00:00:01", "mtu": 1450, "exists": missing.is_none(), "missing": missing, "traffic": traffic(json!([{ "reason": "down", "count": 2 }])) });
        let edge = |to: &str, bytes: Option<u64>| json!({ "to": to, "kind": "fast", "datagram_bytes": bytes, "traffic": traffic(json!([])) });
        let lan = json!({
            "name": "lan", "vni": 7, "learning": true, "routes": ["any any edge 192.0.2.2 any"], "learned": [], "warnings": [],
            "interfaces": [interface("eth0@web", None), interface("eth0@db", Some("no such namespace"))],
            "edges": [edge("192.0.2.2:9001", Some(1472)), edge("[fd00::2]:9001", None)],
        });
        let lab = json!({ "name": "lab", "vni": 0, "learning": false, "interfaces": [interface("lan0", None)], "edges": [], "routes": [], "learned": [], "warnings": [] });
        let socket =
            json!({ "bound": "[::]:9001", "kind": "fast", "refused": [{ "reason": "unknown-sender", "count": 3 }] });
        json!({ "schema": 1, "networks": [lan, lab], "sockets": [socket] })
    }

    #[test]
    fn each_kind_of_parts_is_printed_for_all_networks() {
        let read: OverlayReport = read(&report()).expect("a report");
        let kinds = [PartKind::Networks, PartKind::Interfaces, PartKind::Edges, PartKind::Routes];
        let texts: Vec<_> = kinds.iter().map(|kind| text(*kind, &read.networks)).collect();
        insta::assert_snapshot!("parts", texts.join("\n"));
        insta::assert_snapshot!("stats", stats_text(&read));
    }

    #[test]
    fn parts_for_programs_say_which_network_has_them() {
        let report = report();
        let edges = parts(PartKind::Edges, &report);
        assert_eq!((&edges["schema"], edges["edges"].as_array().map(Vec::len)), (&json!(1), Some(2)));
        assert_eq!(
            (&edges["edges"][1]["network"], &edges["edges"][1]["to"]),
            (&json!("lan"), &json!("[fd00::2]:9001"))
        );
        let route = json!({ "network": "lan", "route": "any any edge 192.0.2.2 any" });
        assert_eq!(parts(PartKind::Routes, &report)["routes"], json!([route]));
        assert_eq!(parts(PartKind::Networks, &report)["networks"][1]["name"], "lab");
    }

    #[test]
    fn a_choice_leaves_one_network_and_refuses_others_by_name() {
        let mut chosen = report();
        let choice = |name: &str| NetworkChoice { network: Some(name.to_owned()) };
        choice("lab").choose(&mut chosen, "name").expect("it is there");
        assert_eq!(parts(PartKind::Interfaces, &chosen)["interfaces"][0]["name"], "lan0");
        let error = choice("lan").choose(&mut chosen, "name").expect_err("it is gone");
        assert_eq!(error.to_string(), "there is no overlay network lan: there is lab");
    }
}
