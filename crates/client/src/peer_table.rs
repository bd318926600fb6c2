//! The table of peers. An index is stable for as long as its peer is known.

use crate::peer::{Peer, PeerIndex};
use isthmus_layout::DomainId;
use std::collections::HashMap;
use std::ops::{Index, IndexMut};

/// The peers of a domain.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    list: Vec<Option<Box<Peer>>>,
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
        let free = self.list.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.list.push(None);
            self.list.len() - 1
        });
        let at = PeerIndex(place as u32);
        self.index.insert(peer.id, at);
        self.list[place] = Some(Box::new(peer));
        at
    }

    pub(crate) fn remove(&mut self, at: PeerIndex) {
        if let Some(peer) = self.list[at.0 as usize].take() {
            self.index.remove(&peer.id);
            self.last = None;
        }
    }

    pub(crate) fn contains(&self, at: PeerIndex) -> bool {
        self.list.get(at.0 as usize).is_some_and(Option::is_some)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.list.iter().flatten().map(Box::as_ref)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.list.iter_mut().flatten().map(Box::as_mut)
    }

    pub(crate) fn indices(&self) -> Vec<PeerIndex> {
        let there = |(at, peer): (usize, &Option<_>)| peer.is_some().then_some(PeerIndex(at as u32));
        self.list.iter().enumerate().filter_map(there).collect()
    }
}

#[cold]
#[inline(never)]
fn unknown_peer() -> ! {
    panic!("indices name peers that are there")
}

impl Index<PeerIndex> for Peers {
    type Output = Peer;

    #[inline(always)]
    fn index(&self, at: PeerIndex) -> &Peer {
        self.list.get(at.0 as usize).and_then(Option::as_deref).unwrap_or_else(|| unknown_peer())
    }
}

impl IndexMut<PeerIndex> for Peers {
    #[inline(always)]
    fn index_mut(&mut self, at: PeerIndex) -> &mut Peer {
        self.list.get_mut(at.0 as usize).and_then(Option::as_deref_mut).unwrap_or_else(|| unknown_peer())
    }
}
