//! Tests of boards through their public interface: the table of peers, discovery, and the handling of frames.
#![allow(clippy::unwrap_used, reason = "tests")]

mod attacks;
mod corpus;
mod demux;
mod discovery;
mod endpoints;
mod links;
mod names;
mod network;
#[path = "../net/random.rs"]
mod random;
#[path = "../wire/samples.rs"]
mod samples;
mod schedules;
mod spec;
mod steps;
mod table;

use isthmus_layout::NicId;
use isthmus_mx::board::{
    Board, BoardCounters, BoardEvent, BoardSetup, Dropped, FrameAction, LinkNumber, OwnPacket, PeerReport,
};
use isthmus_mx::net::Time;
use isthmus_mx::wire::{self, Announcement, BROADCAST, BoardName, Dialect, Header, Packet, PeerIndex, Raw};

const DIALECTS: [Dialect; 2] = [Dialect::Mx, Dialect::OPEN_MX];
const LINK: LinkNumber = LinkNumber(0);
const START: Time = Time::from_us(1_000_000);
const SECOND: u64 = 1_000_000;

fn nic(number: u16) -> NicId {
    let [high, low] = number.to_be_bytes();
    NicId::from_octets([2, 0, 0, 0, high, low])
}

fn name(number: u16) -> BoardName {
    BoardName::new(format!("node{number}:0").as_bytes()).unwrap()
}

fn index(number: u16) -> PeerIndex {
    PeerIndex::new(number).unwrap()
}

fn setup(number: u16) -> BoardSetup {
    BoardSetup::new(nic(number), name(number), Dialect::OPEN_MX, u32::from(number), 77)
}

/// Returns board `number`, with one link.
fn board(number: u16) -> Board {
    linked(setup(number))
}

fn linked(setup: BoardSetup) -> Board {
    let mut board = Board::new(setup);
    board.add_link(START, LINK, 1).unwrap();
    board
}

/// Returns a board without discovery: it has no peers, and sends nothing until it has one.
fn quiet(number: u16) -> Board {
    linked(BoardSetup { discovery: false, ..setup(number) })
}

fn frame(header: &Header, packet: &Packet<impl AsRef<[u8]>>) -> Vec<u8> {
    let mut buffer = vec![0xee; 70_000];
    let bytes = wire::emit(Dialect::OPEN_MX, header, packet, &mut buffer).unwrap();
    buffer.truncate(bytes);
    buffer
}

fn announcement(from: NicId, serial: u32) -> Vec<u8> {
    let header = Header { dst: BROADCAST, src: from, peer_index: PeerIndex::new(0) };
    let data = Announcement { nic_id: from, serial }.emit();
    frame(&header, &Packet::Raw(Raw { data }))
}

/// Returns all packets that a board sends itself.
fn sent(board: &mut Board, now: Time) -> Vec<(LinkNumber, Header, OwnPacket)> {
    std::iter::from_fn(|| board.transmit(now)).collect()
}

/// Returns these packets without announcements.
fn sent_to_peers(board: &mut Board, now: Time) -> Vec<(LinkNumber, Header, OwnPacket)> {
    sent(board, now).into_iter().filter(|(_, header, _)| header.dst != BROADCAST).collect()
}

fn events(board: &mut Board) -> Vec<BoardEvent> {
    std::iter::from_fn(|| board.event()).collect()
}

fn report(board: &Board, peer: PeerIndex) -> PeerReport {
    board.peers().find(|report| report.index == peer).unwrap()
}

/// Receives a frame that is dropped and counted for this reason.
fn is_dropped(board: &mut Board, now: Time, bytes: &[u8], reason: Dropped) {
    let before = board.counters().dropped(reason);
    assert_eq!(board.receive(now, LINK, bytes), FrameAction::Dropped(reason));
    assert_eq!(board.counters().dropped(reason), before + 1);
}

fn all_dropped(counters: &BoardCounters) -> u64 {
    counters.all_dropped().map(|(_, count)| count).sum()
}
