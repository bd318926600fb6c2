//! The domains that have asked for a queue pair: its peers, as far as the daemon knows them.
//!
//! A program asks for the number of the peer's queue pair, and does not say for which of its own. So a queue pair has the peers that have
//! asked for its number. Requests before the start of this daemon are unknown.

use std::collections::{BTreeMap, VecDeque};

use isthmus_layout::ids::DomainId;
use isthmus_layout::reason::Reason;
use isthmus_layout::verbs::{block_of, first_number};

/// The domains that are remembered for a number. A queue pair for datagrams may have more.
const PEERS_MAX: usize = 8;

/// The requests of one domain that are remembered.
const ASKED_MAX: usize = 512;

/// A domain that has asked for a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NumberPeer {
    pub(super) domain: DomainId,
    /// Why its last request was refused.
    pub(super) refused: Option<Reason>,
}

/// The peers of all numbers that are taken.
#[derive(Debug, Default)]
pub(super) struct NumberPeers {
    /// The peers of each number, the last one first, by the first number of its block.
    blocks: BTreeMap<u32, BTreeMap<u32, Vec<NumberPeer>>>,
    /// The numbers that each domain has asked for, the last one last.
    asked: BTreeMap<DomainId, VecDeque<u32>>,
}

impl NumberPeers {
    /// Remembers a request for a number that a domain has. The oldest request of the one that asks may be forgotten.
    pub(super) fn add(&mut self, number: u32, peer: NumberPeer) {
        let Some(block) = block_of(number) else { return };
        let peers = self.blocks.entry(first_number(block)).or_default().entry(number).or_default();
        let is_new = peers.iter().all(|other| other.domain != peer.domain);
        peers.retain(|other| other.domain != peer.domain);
        peers.truncate(PEERS_MAX - 1);
        peers.insert(0, peer);
        if is_new {
            let asked = self.asked.entry(peer.domain).or_default();
            asked.push_back(number);
            if asked.len() > ASKED_MAX
                && let Some(oldest) = asked.pop_front()
            {
                self.remove(oldest, peer.domain);
            }
        }
    }

    /// The peers of a number.
    pub(super) fn of(&self, number: u32) -> &[NumberPeer] {
        let block = block_of(number).and_then(|block| self.blocks.get(&first_number(block)));
        block.and_then(|numbers| numbers.get(&number)).map_or(&[], Vec::as_slice)
    }

    /// Forgets the numbers of a block that was returned.
    pub(super) fn remove_block(&mut self, first: u32) {
        self.blocks.remove(&first);
    }

    /// Forgets the requests of a domain that has left.
    pub(super) fn remove_domain(&mut self, domain: DomainId) {
        for number in self.asked.remove(&domain).unwrap_or_default() {
            self.remove(number, domain);
        }
    }

    fn remove(&mut self, number: u32, domain: DomainId) {
        let Some(first) = block_of(number).map(first_number) else { return };
        let Some(numbers) = self.blocks.get_mut(&first) else { return };
        if let Some(peers) = numbers.get_mut(&number) {
            peers.retain(|peer| peer.domain != domain);
            if peers.is_empty() {
                numbers.remove(&number);
            }
        }
        if numbers.is_empty() {
            self.blocks.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(domain: u32) -> NumberPeer {
        NumberPeer { domain: DomainId::new(domain).unwrap(), refused: None }
    }

    #[test]
    fn the_last_peers_of_a_number_are_remembered_once() {
        let mut peers = NumberPeers::default();
        let refused = NumberPeer { refused: Some(Reason::TalkForbidden), ..peer(1) };
        [peer(1), peer(2), refused].into_iter().for_each(|peer| peers.add(300, peer));
        assert_eq!((peers.of(300), peers.of(301)), (&[refused, peer(2)][..], &[][..]));
        (3..100).for_each(|domain| peers.add(300, peer(domain)));
        assert_eq!(peers.of(300), [99, 98, 97, 96, 95, 94, 93, 92].map(peer));
    }

    #[test]
    fn a_returned_block_is_forgotten() {
        let mut peers = NumberPeers::default();
        [511, 512, 767, 768].into_iter().for_each(|number| peers.add(number, peer(number)));
        peers.remove_block(512);
        let known = [511, 512, 767, 768].map(|number| peers.of(number).len());
        assert_eq!(known, [1, 0, 0, 1]);
    }

    #[test]
    fn requests_of_a_domain_are_bounded_and_end_with_it() {
        let mut peers = NumberPeers::default();
        peers.add(300, peer(2));
        for number in 256..256 + 3 * ASKED_MAX as u32 {
            peers.add(number, peer(1));
            peers.add(number, peer(1));
        }
        let known = |peers: &NumberPeers| -> usize {
            let numbers = peers.blocks.values().flat_map(BTreeMap::values);
            numbers.map(Vec::len).sum()
        };
        assert_eq!((known(&peers), peers.of(300)), (ASKED_MAX + 1, &[peer(2)][..]));
        assert_eq!(peers.of(256 + 3 * ASKED_MAX as u32 - 1), [peer(1)]);
        peers.remove_domain(DomainId::new(1).unwrap());
        assert_eq!((known(&peers), peers.blocks.len(), peers.asked.len()), (1, 1, 1));
    }
}
