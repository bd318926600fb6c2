//! `isthmus board list` and `isthmus peer list`: the same answer of the daemon, its one half or the other.

use std::path::PathBuf;

use anyhow::Result;
use isthmus_client::Topic;
use isthmus_control::schema::{Mx, MxBoardRow, MxNumber};

use super::{ask, named, show};
use crate::output::{Ended, Lean, Output, Table};

pub(crate) fn boards(output: Output, socket: Option<PathBuf>) -> Result<Ended> {
    show(output, "mx", &ask(socket, Topic::Mx, &[])?, boards_text)
}

pub(crate) fn peers(output: Output, socket: Option<PathBuf>) -> Result<Ended> {
    show(output, "mx", &ask(socket, Topic::Mx, &[])?, peers_text)
}

/// As `mx0:3`: endpoint number 3 on board 0.
pub(super) fn number(number: &MxNumber) -> String {
    format!("mx{}:{}", number.board, number.endpoint)
}

pub(super) fn boards_text(answer: &Mx) -> String {
    let mut table = Table::new(&[
        ("board", Lean::Left),
        ("nic id", Lean::Left),
        ("name", Lean::Left),
        ("taken", Lean::Right),
        ("of", Lean::Right),
        ("links", Lean::Left),
        ("strangers", Lean::Right),
        ("again", Lean::Right),
        ("lost", Lean::Right),
        ("by", Lean::Left),
    ]);
    for board in &answer.boards {
        let by: Vec<String> =
            board.endpoints.iter().map(|taken| format!("{} {}", taken.number, named(&taken.domain))).collect();
        table.row(vec![
            format!("mx{}", board.number),
            if is_twice(board) { format!("{} (twice)", board.mac) } else { board.mac.clone() },
            board.name.clone(),
            board.endpoints.len().to_string(),
            board.endpoints_max.to_string(),
            links(board),
            of_links(board, board.strangers),
            of_links(board, board.sent_again + board.asked_again),
            of_links(board, board.links.iter().flat_map(|link| &link.lost).map(|lost| lost.count).sum()),
            if by.is_empty() { "-".to_owned() } else { by.join(", ") },
        ]);
    }
    table.text()
}

/// Another host announces the same address.
fn is_twice(board: &MxBoardRow) -> bool {
    board.dropped.iter().any(|dropped| dropped.reason == "address_twice")
}

/// What a board without links does not have.
fn of_links(board: &MxBoardRow, count: u64) -> String {
    if board.links.is_empty() { "-".to_owned() } else { count.to_string() }
}

/// As `eth0 up`.
fn links(board: &MxBoardRow) -> String {
    let links: Vec<String> = board.links.iter().map(|link| format!("{} {}", link.name, link.state)).collect();
    if links.is_empty() { "-".to_owned() } else { links.join(", ") }
}

pub(super) fn peers_text(answer: &Mx) -> String {
    let mut table = Table::new(&[
        ("nic id", Lean::Left),
        ("name", Lean::Left),
        ("known", Lean::Left),
        ("board", Lean::Left),
        ("link", Lean::Left),
        ("heard", Lean::Right),
        ("restarts", Lean::Right),
    ]);
    for peer in &answer.peers {
        let local = peer.known == "local";
        table.row(vec![
            peer.mac.clone(),
            peer.name.clone(),
            peer.known.clone(),
            format!("mx{}", peer.board),
            peer.link.clone().unwrap_or_else(|| "-".to_owned()),
            match peer.heard_ms {
                Some(ms) => format!("{} s ago", ms / 1000),
                None if local => "-".to_owned(),
                None => "never".to_owned(),
            },
            if local { "-".to_owned() } else { peer.restarts.to_string() },
        ]);
    }
    table.text()
}
