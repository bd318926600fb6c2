//! Long messages that are being sent, by the names that peers have for them (mxoe-wire 10.1).

use super::{Address, SendId};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Long messages that are being sent at a time: half of what can be named, so that a name rests before it is used again.
const REGIONS_MAX: usize = 128;

/// The first use of a region.
const FIRST_USE: u8 = 23;

#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) send: SendId,
    pub(crate) partner: Address,
    pub(crate) length: u32,
    /// So many of its bytes are here.
    pub(crate) ready: u32,
    /// So many were said to be wanted.
    pub(crate) wanted: u32,
    pub(crate) seqnum: u8,
    acked: bool,
    pub(crate) fetched: Option<u32>,
}

/// All of one endpoint.
#[derive(Debug)]
pub(crate) struct Regions {
    pub(crate) open: BTreeMap<u8, Region>,
    /// How many each partner has to fetch.
    by_partner: BTreeMap<Address, u32>,
    uses: [u8; 256],
    next: u8,
}

impl Regions {
    pub(crate) const fn new() -> Self {
        Self { open: BTreeMap::new(), by_partner: BTreeMap::new(), uses: [FIRST_USE; 256], next: 0 }
    }

    /// A name for a message; none if too many are under way.
    pub(crate) fn open(&mut self, send: SendId, partner: Address, length: u32, ready: u32) -> Option<u8> {
        if self.open.len() >= REGIONS_MAX {
            return None;
        }
        while self.open.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        self.next = id.wrapping_add(1);
        let seqnum = self.uses[usize::from(id)];
        self.uses[usize::from(id)] = seqnum.wrapping_add(1);
        *self.by_partner.entry(partner).or_default() += 1;
        let region = Region { send, partner, length, ready, wanted: ready, seqnum, acked: false, fetched: None };
        self.open.insert(id, region);
        Some(id)
    }

    pub(crate) fn seqnum(&self, id: u8) -> u8 {
        self.open.get(&id).map_or(0, |region| region.seqnum)
    }

    /// The announcement was acknowledged. What ends thereby, and what the peer took.
    pub(crate) fn acked(&mut self, id: u8) -> Option<(SendId, u32)> {
        self.open.get_mut(&id)?.acked = true;
        self.close_if_over(id)
    }

    /// The peer has what it wants.
    pub(crate) fn fetched(&mut self, id: u8, seqnum: u8, by: Address, bytes: u32) -> Option<(SendId, u32)> {
        let region = self.open.get_mut(&id)?;
        if region.seqnum != seqnum || region.partner != by || region.fetched.is_some() {
            return None;
        }
        region.fetched = Some(bytes.min(region.length));
        self.close_if_over(id)
    }

    fn close_if_over(&mut self, id: u8) -> Option<(SendId, u32)> {
        let region = self.open.get(&id)?;
        let over = (region.send, region.fetched.filter(|_| region.acked)?);
        self.close(id);
        Some(over)
    }

    /// It will not be fetched.
    fn close(&mut self, id: u8) {
        let Some(region) = self.open.remove(&id) else { return };
        if let Some(count) = self.by_partner.get_mut(&region.partner) {
            *count -= 1;
            if *count == 0 {
                self.by_partner.remove(&region.partner);
            }
        }
    }

    /// Whether a partner has something to fetch.
    pub(crate) fn are_open_for(&self, partner: Address) -> bool {
        self.by_partner.contains_key(&partner)
    }

    /// Nothing of this partner's will be fetched.
    pub(crate) fn close_all(&mut self, partner: Address) -> Vec<SendId> {
        let mut sends = Vec::new();
        self.by_partner.remove(&partner);
        self.open.retain(|_, region| {
            let stays = region.partner != partner;
            if !stays {
                sends.push(region.send);
            }
            stays
        });
        sends
    }
}
