//! The table of peers. An index is stable for as long as its peer is known.

use crate::peer::{Peer, PeerIndex};
use isthmus_layout::{DomainId, SlotTable};
use std::collections::HashMap;
use std::ops::{Index, IndexMut};

/// The peers of a domain.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    list: SlotTable<Box<Peer>>,
    pub(crate) index: HashMap<DomainId, PeerIndex>,
    /// The result of the last lookup.
    last: Option<(DomainId, PeerIndex)>,
}

impl Peers {
    #[inline(always)]
    pub(crate) fn find(&mut self, domain: DomainId) -> Option<PeerIndex> {
        match self.last {
            Some((last, at)) if last == domain => Some(at),
            _ => self.find_slow(domain),
        }
    }

    #[inline(never)]
    fn find_slow(&mut self, domain: DomainId) -> Option<PeerIndex> {
        let at = *self.index.get(&domain)?;
        self.last = Some((domain, at));
        Some(at)
    }

    pub(crate) fn add(&mut self, peer: Peer) -> PeerIndex {
        let domain = peer.id;
        let at = PeerIndex(self.list.insert(Box::new(peer)));
        self.index.insert(domain, at);
        at
    }

    pub(crate) fn remove(&mut self, at: PeerIndex) {
        if let Some(peer) = self.list.remove(at.0) {
            self.index.remove(&peer.id);
            self.last = None;
        }
    }

    pub(crate) fn contains(&self, at: PeerIndex) -> bool {
        self.list.get(at.0).is_some()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.list.values().map(Box::as_ref)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.list.values_mut().map(Box::as_mut)
    }

    pub(crate) fn indices(&self) -> Vec<PeerIndex> {
        self.list.iter().map(|(at, _)| PeerIndex(at)).collect()
    }
}

impl Index<PeerIndex> for Peers {
    type Output = Peer;

    #[inline(always)]
    fn index(&self, at: PeerIndex) -> &Peer {
        &self.list[at.0]
    }
}

impl IndexMut<PeerIndex> for Peers {
    #[inline(always)]
    fn index_mut(&mut self, at: PeerIndex) -> &mut Peer {
        &mut self.list[at.0]
    }
}
