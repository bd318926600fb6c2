//! `isthmus board list` and `isthmus peer list`: the two halves of the daemon's MX report.

use std::path::PathBuf;

use anyhow::Result;
use isthmus_client::Topic;
use isthmus_report::{MxBoardRow, MxLinkRow, MxNumber, MxReport};

use crate::daemon::{Daemon, ask, named, read, show};
use crate::doctor::{CheckPlace, Finding, unexpected};
use crate::output::{Align, Outcome, Output, Table, hidden};

pub(super) fn list_boards(output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    show(output, "mx", &ask(socket, Topic::Mx, &[])?, boards_text)
}

pub(super) fn list_peers(output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    show(output, "mx", &ask(socket, Topic::Mx, &[])?, peers_text)
}

/// Formats an endpoint number: `mx0:3` is number 3 on board 0.
pub(super) fn number(number: &MxNumber) -> String {
    format!("mx{}:{}", number.board, number.endpoint)
}

fn boards_text(answer: &MxReport) -> String {
    let mut table = Table::new(&[
        ("board", Align::Left),
        ("nic id", Align::Left),
        ("name", Align::Left),
        ("used", Align::Right),
        ("max", Align::Right),
        ("links", Align::Left),
        ("remote peers", Align::Right),
        ("retransmits", Align::Right),
        ("lost", Align::Right),
        ("domains", Align::Left),
    ]);
    for board in &answer.boards {
        let by: Vec<String> =
            board.endpoints.iter().map(|taken| format!("{} {}", taken.number, named(&taken.domain))).collect();
        table.row(vec![
            format!("mx{}", board.number),
            if has_duplicate_address(board) { format!("{} (duplicate address)", board.mac) } else { board.mac.clone() },
            board.name.clone(),
            (board.endpoints.len() as u64 + u64::from(board.endpoints_hidden.unwrap_or(0))).to_string(),
            board.endpoints_max.to_string(),
            links(board),
            linked_count(board, board.remote_peers),
            linked_count(board, board.retransmitted + board.rerequested),
            linked_count(board, board.links.iter().flat_map(|link| &link.lost).map(|lost| lost.count).sum()),
            if by.is_empty() { "-".to_owned() } else { by.join(", ") },
        ]);
    }
    table.text() + &hidden(Some(answer.boards.iter().filter_map(|board| board.endpoints_hidden).sum()))
}

/// Returns whether another host announces the same address.
fn has_duplicate_address(board: &MxBoardRow) -> bool {
    board.dropped.iter().any(|dropped| dropped.reason == "duplicate_address")
}

/// Formats a count that only boards with links have.
fn linked_count(board: &MxBoardRow, count: u64) -> String {
    if board.links.is_empty() { "-".to_owned() } else { count.to_string() }
}

/// Checks the hosts of the links that the daemon's boards have.
pub(super) fn check(place: &CheckPlace<'_>, findings: &mut Vec<Finding>) {
    let Some(options) = place.daemon else { return };
    let (id, tried) = ("mx.peers", "querying the hosts of the links of MX boards");
    let report = Daemon::connect(options).and_then(|mut daemon| daemon.ask(Topic::Mx, &[]));
    match report.and_then(|answer| read::<MxReport>(&answer)) {
        Ok(report) => findings.extend(unresolved(&report).map(|hosts| {
            Finding::problem(id, tried, format!("these names of hosts do not resolve: {hosts}")).remedy(
                "Correct `peers` of the link in the daemon's configuration and restart it, or make the name known \
                 (`getent ahosts NAME`): the daemon tries again every 5 s.",
            )
        })),
        Err(error) => findings.push(unexpected(id, tried, &error)),
    }
}

/// The hosts of links that do not resolve; none if all do.
fn unresolved(report: &MxReport) -> Option<String> {
    let links = report.boards.iter().flat_map(|board| &board.links);
    let hosts: Vec<_> = links.flat_map(|link| link.unresolved.iter().map(String::as_str)).collect();
    (!hosts.is_empty()).then(|| hosts.join(", "))
}

/// Formats the links of a board: `eth0 up`.
fn links(board: &MxBoardRow) -> String {
    let link = |link: &MxLinkRow| match &link.unresolved[..] {
        [] => format!("{} {}", link.name, link.state),
        hosts => format!("{} {} (does not resolve: {})", link.name, link.state, hosts.join(" ")),
    };
    let links: Vec<String> = board.links.iter().map(link).collect();
    if links.is_empty() { "-".to_owned() } else { links.join(", ") }
}

fn peers_text(answer: &MxReport) -> String {
    let mut table = Table::new(&[
        ("nic id", Align::Left),
        ("name", Align::Left),
        ("origin", Align::Left),
        ("board", Align::Left),
        ("link", Align::Left),
        ("last seen", Align::Right),
        ("restarts", Align::Right),
    ]);
    for peer in &answer.peers {
        let local = peer.origin == "local";
        table.row(vec![
            peer.mac.clone(),
            peer.name.clone(),
            peer.origin.clone(),
            format!("mx{}", peer.board),
            peer.link.clone().unwrap_or_else(|| "-".to_owned()),
            match peer.last_seen_ms {
                Some(ms) => format!("{} s ago", ms / 1000),
                None if local => "-".to_owned(),
                None => "never".to_owned(),
            },
            if local { "-".to_owned() } else { peer.restarts.to_string() },
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn boards_and_peers_are_printed_in_columns() {
        let taken =
            |number: u32| json!({ "number": number, "domain": { "id": 3, "name": "rank0" }, "index": 0, "uid": 1000 });
        let link = |name: &str, state: &str| {
            json!({
                "name": name, "kind": "packet", "state": state, "frame_bytes_max": 9014, "sent_frames": 1, "sent_bytes": 60,
                "received_frames": 2, "received_bytes": 120, "lost": [{ "reason": "overruns", "count": 8 }],
                "unresolved": if name == "eth1" { vec!["node9.example"] } else { vec![] },
            })
        };
        let board = |number: u32, taken: Vec<Value>| {
            let (nic, mac) = (0x0200_0000_0001_u64 + u64::from(number), format!("02:00:00:00:00:0{}", number + 1));
            json!({
                "number": number, "nic": nic, "mac": mac, "name": format!("node7:{number}"), "endpoints": taken, "endpoints_max": 32,
                "links": if number == 0 { vec![] } else { vec![link("eth0", "up"), link("eth1", "down")] },
                "dropped": [{ "reason": if number == 2 { "duplicate_address" } else { "short" }, "count": 3 }],
                "ignored": [{ "reason": "duplicate", "count": 2 }], "served_endpoints": 1, "remote_peers": 5, "sent_bytes": 100,
                "received_bytes": 200, "retransmitted": 3, "rerequested": 4,
            })
        };
        let peer = |mac: &str, name: &str, origin: &str, link: Option<&str>, last_seen_ms: Option<u64>| {
            json!({
                "nic": 0x0200_0000_0001_u64, "mac": mac, "name": name, "origin": origin, "board": 1, "link": link,
                "last_seen_ms": last_seen_ms, "restarts": 2,
            })
        };
        let peers = [
            peer("02:00:00:00:00:01", "node7:0", "local", None, None),
            peer("02:00:00:00:00:07", "node8:0", "announced", Some("eth0"), Some(61_234)),
            peer("02:00:00:00:00:08", "02:00:00:00:00:08", "static", None, None),
        ];
        let boards = [board(0, vec![taken(0), taken(31)]), board(1, vec![]), board(2, vec![])];
        let answer = json!({ "schema": 1, "boards": boards, "peers": peers });
        assert_eq!(unresolved(&read(&answer).expect("an answer")).as_deref(), Some("node9.example, node9.example"));
        insta::assert_snapshot!("boards", boards_text(&read(&answer).expect("an answer")));
        insta::assert_snapshot!("peers", peers_text(&read(&answer).expect("an answer")));
    }
}
