//! `isthmus board list` and `isthmus peer list`: the same answer of the daemon, its one half or the other.

use std::path::PathBuf;

use anyhow::Result;
use isthmus_client::Topic;
use isthmus_report::{MxBoardRow, MxNumber, MxReport};

use super::{ask, named, show};
use crate::output::{Align, Outcome, Output, Table};

pub(crate) fn boards(output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    show(output, "mx", &ask(socket, Topic::Mx, &[])?, boards_text)
}

pub(crate) fn peers(output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    show(output, "mx", &ask(socket, Topic::Mx, &[])?, peers_text)
}

/// As `mx0:3`: endpoint number 3 on board 0.
pub(super) fn number(number: &MxNumber) -> String {
    format!("mx{}:{}", number.board, number.endpoint)
}

pub(super) fn boards_text(answer: &MxReport) -> String {
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
            board.endpoints.len().to_string(),
            board.endpoints_max.to_string(),
            links(board),
            linked_count(board, board.remote_peers),
            linked_count(board, board.retransmitted + board.rerequested),
            linked_count(board, board.links.iter().flat_map(|link| &link.lost).map(|lost| lost.count).sum()),
            if by.is_empty() { "-".to_owned() } else { by.join(", ") },
        ]);
    }
    table.text()
}

/// Another host announces the same address.
fn has_duplicate_address(board: &MxBoardRow) -> bool {
    board.dropped.iter().any(|dropped| dropped.reason == "duplicate_address")
}

/// What a board without links does not have.
fn linked_count(board: &MxBoardRow, count: u64) -> String {
    if board.links.is_empty() { "-".to_owned() } else { count.to_string() }
}

/// As `eth0 up`.
fn links(board: &MxBoardRow) -> String {
    let links: Vec<String> = board.links.iter().map(|link| format!("{} {}", link.name, link.state)).collect();
    if links.is_empty() { "-".to_owned() } else { links.join(", ") }
}

pub(super) fn peers_text(answer: &MxReport) -> String {
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
