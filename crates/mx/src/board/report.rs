//! A board's report on its peers, for `isthmus peer list`.

use super::table::{Peer, PeerOrigin};
use super::{Board, LinkNumber};
use crate::net::Time;
use crate::wire::{BoardName, PeerIndex};
use alloc::vec::Vec;
use isthmus_layout::NicId;

/// A peer, as the board knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// Our index of the peer.
    pub index: PeerIndex,
    /// The address of the peer.
    pub nic: NicId,
    /// The peer's names; the first one is displayed first.
    pub names: Vec<BoardName>,
    /// How the peer became known.
    pub origin: PeerOrigin,
    /// The peer was forgotten. Its entry stays because its index is never reused.
    pub forgotten: bool,
    /// The peer's index for us, once the peer has sent it.
    pub remote_index: Option<PeerIndex>,
    /// When a frame from the peer was last accepted.
    pub heard: Option<Time>,
    /// The links, with the state of each.
    pub links: Vec<LinkReport>,
    /// The number of frames that were accepted.
    pub frames: u64,
    /// The number of restarts of the peer's daemon since the peer became known.
    pub restarts: u64,
    /// Queries since the peer was last found or lost that may be unanswered.
    pub queries: u32,
}

/// The state of a link toward a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkReport {
    /// The link.
    pub link: LinkNumber,
    /// The link works.
    pub up: bool,
    /// When a frame from the peer last arrived on this link.
    pub heard: Option<Time>,
    /// Frames for the peer use this link.
    pub chosen: bool,
}

impl Board {
    /// Returns all peers in the order in which they became known, this board first.
    pub fn peers(&self) -> impl Iterator<Item = PeerReport> + '_ {
        self.table.iter().map(|(index, peer)| self.report(index, peer))
    }

    fn report(&self, index: PeerIndex, peer: &Peer) -> PeerReport {
        let chosen = self.link_to(index);
        let is_remote = peer.origin != PeerOrigin::Local;
        let way = |link: LinkNumber| LinkReport {
            link,
            up: self.links.is_up(link),
            heard: peer.last_seen_by_link.get(usize::from(link.0)).copied().flatten(),
            chosen: chosen == Some(link),
        };
        PeerReport {
            index,
            nic: peer.nic,
            names: peer.names().collect(),
            origin: peer.origin,
            forgotten: peer.forgotten,
            remote_index: peer.remote_index,
            heard: peer.heard,
            links: self.links.all().filter(|_| is_remote).map(way).collect(),
            frames: peer.frames,
            restarts: peer.restarts,
            queries: peer.query.tries,
        }
    }
}
