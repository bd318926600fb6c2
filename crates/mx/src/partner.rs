//! Partners: the endpoints that this endpoint has connected to or exchanged messages with.

use crate::PartnerId;
use crate::hash::Seed;
use crate::list_arena::ListEnds;
use crate::slab::{Full, Slab};
use core::hash::Hash;
use hashbrown::HashMap;

/// One partner.
#[derive(Debug)]
pub(crate) struct Partner<A> {
    pub(crate) address: A,
    /// The program's context of the partner.
    pub(crate) context: usize,
    /// The unexpected messages of the partner.
    pub(crate) unexpected: ListEnds,
}

/// The partners of an endpoint.
#[derive(Debug)]
pub(crate) struct Partners<A> {
    slab: Slab<Partner<A>>,
    by_address: HashMap<A, PartnerId, Seed>,
    /// The last partner that was looked up, because consecutive messages often have the same sender.
    recent: Option<(A, PartnerId)>,
}

impl<A: Copy + Eq + Hash> Partners<A> {
    pub(crate) const fn new(seed: Seed) -> Self {
        Self { slab: Slab::new(), by_address: HashMap::with_hasher(seed), recent: None }
    }

    pub(crate) const fn len(&self) -> usize {
        self.slab.len()
    }

    #[inline]
    pub(crate) fn find_or_insert(&mut self, address: A) -> Result<PartnerId, Full> {
        if let Some((recent, partner)) = self.recent
            && recent == address
        {
            return Ok(partner);
        }
        self.find_or_add_uncached(address)
    }

    fn find_or_add_uncached(&mut self, address: A) -> Result<PartnerId, Full> {
        let partner = match self.by_address.get(&address) {
            Some(partner) => *partner,
            None => {
                let id = self.slab.insert(Partner { address, context: 0, unexpected: ListEnds::default() })?;
                self.by_address.insert(address, PartnerId(id));
                PartnerId(id)
            }
        };
        self.recent = Some((address, partner));
        Ok(partner)
    }

    pub(crate) fn find(&self, address: A) -> Option<PartnerId> {
        self.by_address.get(&address).copied()
    }

    #[inline]
    pub(crate) fn get(&self, partner: PartnerId) -> Option<&Partner<A>> {
        self.slab.get(partner.0)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, partner: PartnerId) -> Option<&mut Partner<A>> {
        self.slab.get_mut(partner.0)
    }

    pub(crate) fn remove(&mut self, partner: PartnerId) {
        if let Some(removed) = self.slab.remove(partner.0) {
            self.by_address.remove(&removed.address);
            self.recent = None;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PartnerId, &Partner<A>)> {
        self.slab.iter().map(|(id, partner)| (PartnerId(id), partner))
    }
}
