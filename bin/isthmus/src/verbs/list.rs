//! `isthmus verbs list`: the daemon's report about verbs.

use std::path::PathBuf;

use anyhow::Result;
use isthmus_client::Topic;
use isthmus_report::{VerbsBlockRow, VerbsDomainRow, VerbsReport};

use crate::daemon::{ask, named, show};
use crate::output::{Align, Outcome, Output, Table, hidden};

pub(super) fn list(output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    show(output, "verbs", &ask(socket, Topic::Verbs, &[])?, text)
}

/// Formats the device, its GIDs, and a line for each domain.
fn text(report: &VerbsReport) -> String {
    let disabled = if report.enabled { "" } else { "verbs are disabled: verbs.enabled is false\n" };
    let device = format!("{disabled}{}, node GUID {}\n", report.device, report.node_guid);
    let mut gids =
        Table::new(&[("gid", Align::Right), ("value", Align::Left), ("type", Align::Left), ("interface", Align::Left)]);
    for row in &report.gids {
        let interface = row.interface.clone().unwrap_or_else(|| "-".to_owned());
        gids.row(vec![row.index.to_string(), row.gid.clone(), row.kind.clone(), interface]);
    }
    let mut domains = Table::new(&[
        ("domain", Align::Left),
        ("user", Align::Right),
        ("numbers", Align::Right),
        ("queue pairs", Align::Left),
    ]);
    for row in &report.domains {
        domains.row(vec![named(&row.domain), row.uid.to_string(), count(row).to_string(), ranges(&row.blocks)]);
    }
    let domains = if report.domains.is_empty() { String::new() } else { format!("\n{}", domains.text()) };
    format!("{device}\n{}{domains}{}", gids.text(), hidden(report.hidden))
}

fn count(row: &VerbsDomainRow) -> u32 {
    row.blocks.iter().map(|block| block.count).sum()
}

/// Formats blocks, with those that follow each other as one.
fn ranges(blocks: &[VerbsBlockRow]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for block in blocks {
        let last = block.first.saturating_add(block.count).saturating_sub(1);
        match ranges.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(block.first) => *end = last,
            _ => ranges.push((block.first, last)),
        }
    }
    ranges.iter().map(|(first, last)| format!("{first:#08x}-{last:#08x}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::daemon::read;

    #[test]
    fn device_gids_and_domains_are_printed() {
        let gid = |index: u32, gid: &str, interface: Option<&str>| json!({ "index": index, "gid": gid, "interface": interface, "kind": "RoCE v2" });
        let block = |first: u32| json!({ "first": first, "count": 256 });
        let report = json!({
            "schema": 1, "enabled": true, "device": "isthmus0", "node_guid": "0211:2233:4455:6677",
            "gids": [
                gid(0, "fe80:0000:0000:0000:0211:2233:4455:6677", None),
                gid(1, "0000:0000:0000:0000:0000:ffff:0a00:0001", Some("eth0")),
            ],
            "domains": [
                { "domain": { "id": 1, "name": "web" }, "uid": 1000, "blocks": [block(256), block(512), block(0x4000)] },
                { "domain": { "id": 12, "name": "db" }, "uid": 0, "blocks": [block(0x0300)] },
            ],
        });
        insta::assert_snapshot!("verbs", text(&read(&report).expect("a report")));
    }
}
