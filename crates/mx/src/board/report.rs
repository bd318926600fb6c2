//! What a board knows, for those who ask: `isthmus peer list`.

use super::table::{Peer, PeerOrigin};
use super::{Board, LinkNumber};
use crate::net::Time;
use crate::wire::{BoardName, PeerIndex};
use alloc::vec::Vec;
use isthmus_layout::NicId;

/// A peer, as the board knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// Our number for it.
    pub index: PeerIndex,
    /// Its address.
    pub nic: NicId,
    /// What it is called, the name that is shown first.
    pub names: Vec<BoardName>,
    /// How it became known.
    pub origin: PeerOrigin,
    /// It was forgotten: its entry is kept for its index.
    pub forgotten: bool,
    /// Its number for us, once it has told it.
    pub remote_index: Option<PeerIndex>,
    /// When a frame of it was last taken.
    pub heard: Option<Time>,
    /// By which links.
    pub links: Vec<LinkReport>,
    /// Frames that were taken.
    pub frames: u64,
    /// How often its daemon has started anew since it became known.
    pub restarts: u64,
    /// Questions since it was last found or lost to which it has not necessarily answered.
    pub queries: u32,
}

/// A link, as it leads to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkReport {
    /// The link.
    pub link: LinkNumber,
    /// It works.
    pub up: bool,
    /// When the peer was last heard there.
    pub heard: Option<Time>,
    /// Frames for the peer go by it.
    pub chosen: bool,
}

impl Board {
    /// All peers, in the order in which they became known; this board first.
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
