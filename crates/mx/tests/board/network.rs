//! Boards on wires that lose, repeat and delay frames, in virtual time.

use crate::random::Random;
use crate::{name, nic, setup};
use isthmus_mx::board::{Board, BoardSetup, FrameAction, LinkNumber};
use isthmus_mx::net::Time;
use std::collections::{BTreeMap, BTreeSet};

/// The faults of the wires.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NetConditions {
    pub(crate) loss_per_million: u64,
    pub(crate) repeat_per_million: u64,
    pub(crate) delay_us_max: u64,
}

/// Boards on wires, one wire per link. Every frame reaches all other boards, as with a switch that has learned nothing.
pub(crate) struct Network {
    pub(crate) now: Time,
    pub(crate) boards: Vec<Board>,
    conditions: NetConditions,
    random: Random,
    flying: BTreeMap<(Time, u64), (usize, LinkNumber, Vec<u8>)>,
    count: u64,
    /// The wires that a board is not attached to.
    detached: BTreeSet<(usize, LinkNumber)>,
}

impl Network {
    /// Creates boards 1 to `boards`, each with `links` links. The last link is the fastest.
    pub(crate) fn new(boards: u16, links: u8, conditions: NetConditions, seed: u64) -> Self {
        let mut network = Self {
            now: Time::ZERO,
            boards: Vec::new(),
            conditions,
            random: Random::new(seed),
            flying: BTreeMap::new(),
            count: 0,
            detached: BTreeSet::new(),
        };
        network.boards = (1..=boards).map(|number| network.start(setup(number), links)).collect();
        network
    }

    /// Starts a daemon.
    pub(crate) fn start(&self, setup: BoardSetup, links: u8) -> Board {
        let mut board = Board::new(setup);
        for link in 0..links {
            board.add_link(self.now, LinkNumber(link), u32::from(link)).unwrap();
        }
        board
    }

    /// Breaks or repairs the wire to a board. The board is not notified.
    pub(crate) fn attach(&mut self, board: usize, link: LinkNumber, attached: bool) {
        if attached {
            self.detached.remove(&(board, link));
        } else {
            self.detached.insert((board, link));
        }
    }

    /// Handles all events until `end`.
    pub(crate) fn run_until(&mut self, end: Time) {
        loop {
            self.transmit_all();
            let arrival = self.flying.first_key_value().map(|((at, _), _)| *at);
            let due = self.boards.iter().filter_map(Board::next_deadline).min();
            let Some(next) = arrival.into_iter().chain(due).min().filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            while let Some(entry) = self.flying.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let (to, link, bytes) = entry.remove();
                let received = self.boards[to].receive(self.now, link, &bytes);
                assert!(!matches!(received, FrameAction::ForEndpoint { .. } | FrameAction::Raw { .. }), "{received:?}");
            }
        }
        self.now = end;
    }

    fn transmit_all(&mut self) {
        for from in 0..self.boards.len() {
            while let Some((link, header, packet)) = self.boards[from].transmit(self.now) {
                let bytes = crate::frame(&header, &packet);
                if self.detached.contains(&(from, link)) {
                    continue;
                }
                for to in (0..self.boards.len()).filter(|to| *to != from && !self.detached.contains(&(*to, link))) {
                    let NetConditions { loss_per_million, repeat_per_million, delay_us_max } = self.conditions;
                    let times = u64::from(!self.random.chance(loss_per_million))
                        + u64::from(self.random.chance(repeat_per_million));
                    for _ in 0..times {
                        self.count += 1;
                        let at = self.now.after_us(10 + self.random.below(delay_us_max + 1));
                        self.flying.insert((at, self.count), (to, link, bytes.clone()));
                    }
                }
            }
        }
    }

    /// Returns the number of frames that have arrived or will arrive.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns true if each board knows every other by name and address, and the other's index for it.
    pub(crate) fn all_know_all(&self) -> bool {
        let everybody: Vec<u16> = (1..).take(self.boards.len()).collect();
        self.boards.iter().zip(&everybody).all(|(board, own)| {
            everybody.iter().filter(|number| *number != own).all(|number| {
                let Some(peer) = board.find(nic(*number)) else { return false };
                let other = &self.boards[usize::from(*number) - 1];
                board.find_by_name(name(*number).as_bytes()) == Some(peer)
                    && board.header_to(peer).unwrap().peer_index == other.find(nic(*own))
            })
        })
    }
}
