//! `isthmus overlay explain`: why a frame goes where it goes.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use isthmus_client::Topic;
use isthmus_report::overlay::OverlayExplanation;

use crate::daemon::{ask, show};
use crate::output::{Align, Outcome, Output, Table};

#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// The network.
    network: String,
    /// The interface or edge that the frame comes from, as `isthmus overlay list` names it.
    from: String,
    /// The source MAC address of the frame.
    source: String,
    /// The destination MAC address of the frame.
    destination: String,
}

pub(super) fn explain(output: Output, socket: Option<PathBuf>, args: &ExplainArgs) -> Result<Outcome> {
    let ExplainArgs { network, from, source, destination } = args;
    show(output, "overlay_explanation", &ask(socket, Topic::Overlay, &[network, from, source, destination])?, text)
}

fn text(explanation: &OverlayExplanation) -> String {
    let OverlayExplanation { network, from, source, destination, rule, .. } = explanation;
    let mut text = format!("{network}: a frame of {source} to {destination}, from {from}\n{rule}\n");
    for copy in &explanation.copies {
        text += &format!("  to {}: {}\n", copy.to, copy.path);
    }
    if !explanation.routes.is_empty() {
        let mut routes = Table::new(&[("", Align::Right), ("route", Align::Left), ("", Align::Left)]);
        for row in &explanation.routes {
            routes.row(vec![row.number.to_string(), row.route.clone(), row.outcome.clone()]);
        }
        text += &format!("\n{}", routes.text());
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::daemon::read;

    #[test]
    fn the_rule_the_copies_and_all_routes_are_printed() {
        let route = |number: u32, route: &str, wins: bool, outcome: &str| json!({ "number": number, "route": route, "wins": wins, "outcome": outcome });
        let report = json!({
            "schema": 1, "network": "lan", "from": "eth0@web", "source": "02:00:00:00:00:01", "destination": "02:00:00:00:00:02",
            "rule": "the routes of rank 6",
            "copies": [{ "to": "192.0.2.2:9001", "path": "whole, with its offloads, in datagrams of 1472 bytes" }],
            "routes": [
                route(1, "any 02:00:00:00:00:02 edge 192.0.2.2 any", true, "wins with rank 6"),
                route(2, "any any interface eth0@web any", false, "matches with rank 3, which is below 6"),
            ],
        });
        insta::assert_snapshot!("explanation", text(&read(&report).expect("a report")));
    }
}
