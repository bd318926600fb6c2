//! The domains that have asked for a queue pair: its peers, as far as the daemon knows them.
//!
//! A program asks for the number of the peer's queue pair, and does not say for which of its own. So a queue pair has the peers that have
//! asked for its number. Requests before the start of this daemon are unknown.

use std::collections::BTreeMap;

use isthmus_layout::ids::DomainId;
use isthmus_layout::reason::Reason;
use isthmus_layout::verbs::BLOCK_NUMBERS;

/// The domains that are remembered for a number. A queue pair for datagrams may have more.
const PEERS_MAX: usize = 8;

/// A domain that has asked for a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NumberPeer {
    pub(super) domain: DomainId,
    /// Why its last request was refused.
    pub(super) refused: Option<Reason>,
}

/// The peers of all numbers that are taken, the last one first.
#[derive(Debug, Default)]
pub(super) struct NumberPeers(BTreeMap<u32, Vec<NumberPeer>>);

impl NumberPeers {
    /// Remembers a request for a number that a domain has.
    pub(super) fn add(&mut self, number: u32, peer: NumberPeer) {
        let peers = self.0.entry(number).or_default();
        peers.retain(|other| other.domain != peer.domain);
        peers.truncate(PEERS_MAX - 1);
        peers.insert(0, peer);
    }

    /// The peers of a number.
    pub(super) fn of(&self, number: u32) -> &[NumberPeer] {
        self.0.get(&number).map_or(&[], Vec::as_slice)
    }

    /// Forgets the numbers of a block that was returned.
    pub(super) fn remove_block(&mut self, first: u32) {
        let mut rest = self.0.split_off(&first);
        self.0.append(&mut rest.split_off(&first.saturating_add(BLOCK_NUMBERS)));
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
        [255, 256, 511, 512].into_iter().for_each(|number| peers.add(number, peer(number)));
        peers.remove_block(256);
        let known = [255, 256, 511, 512].map(|number| peers.of(number).len());
        assert_eq!(known, [1, 0, 0, 1]);
    }
}
