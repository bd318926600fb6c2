//! Regions: long messages that are being sent, by the names that peers have for them (mxoe-wire 10.1).
//!
//! On the wire, a region has eight bits, and the count of its uses another eight. A peer repeats both when it requests
//! bytes and when it has them. Both together are the name: one region may be open in several uses.

use super::{Address, SendId};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

/// The number of long messages that are being sent at a time: half of the names, so that a name rests before its reuse. A partner
/// without a region may have one beyond the limit, because partners that fetch nothing must not block it.
pub(crate) const REGIONS_MAX: usize = 1 << 15;

/// The number of regions up to which each message has another region id. Most peers never see more at a time.
const REGIONS_USUAL: usize = 128;

/// The first use of a region.
const FIRST_USE: u8 = 23;

/// The name of a message toward a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RegionName {
    pub(crate) id: u8,
    pub(crate) seqnum: u8,
}

impl RegionName {
    /// The name before one is assigned.
    pub(crate) const NONE: Self = Self { id: 0, seqnum: 0 };

    /// Returns all uses of a region.
    fn uses(id: u8) -> RangeInclusive<Self> {
        Self { id, seqnum: 0 }..=Self { id, seqnum: u8::MAX }
    }

    /// Returns the next name: the next id, or the first id in its next use.
    const fn next(self) -> Self {
        let seqnum = if self.id == u8::MAX { self.seqnum.wrapping_add(1) } else { self.seqnum };
        Self { id: self.id.wrapping_add(1), seqnum }
    }
}

#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) send: SendId,
    partner: Address,
    pub(crate) length: u32,
    /// The number of bytes that are available.
    pub(crate) ready: u32,
    /// The number of bytes that were reported as wanted.
    pub(crate) wanted: u32,
    acked: bool,
    fetched: Option<u32>,
}

/// The regions of one endpoint.
#[derive(Debug)]
pub(crate) struct Regions {
    open: BTreeMap<RegionName, Region>,
    by_send: BTreeMap<SendId, RegionName>,
    /// The number of regions that each partner has to fetch.
    by_partner: BTreeMap<Address, u32>,
    next: RegionName,
}

impl Regions {
    pub(crate) const fn new() -> Self {
        let next = RegionName { id: 0, seqnum: FIRST_USE };
        Self { open: BTreeMap::new(), by_send: BTreeMap::new(), by_partner: BTreeMap::new(), next }
    }

    /// Opens a region for a message. Returns `None` if too many are open.
    pub(crate) fn open(&mut self, send: SendId, partner: Address, length: u32, ready: u32) -> Option<RegionName> {
        if self.open.len() >= REGIONS_MAX && self.has_open_for(partner) {
            return None;
        }
        // The loop ends because there are more names than regions and partners.
        while self.open.contains_key(&self.next) || (self.open.len() < REGIONS_USUAL && self.is_open(self.next.id)) {
            self.next = self.next.next();
        }
        let name = self.next;
        self.next = name.next();
        *self.by_partner.entry(partner).or_default() += 1;
        let region = Region { send, partner, length, ready, wanted: ready, acked: false, fetched: None };
        self.open.insert(name, region);
        self.by_send.insert(send, name);
        Some(name)
    }

    pub(crate) fn get(&self, name: RegionName) -> Option<&Region> {
        self.open.get(&name)
    }

    /// Returns true if a region is open in any use.
    fn is_open(&self, id: u8) -> bool {
        self.open.range(RegionName::uses(id)).next().is_some()
    }

    /// Returns the region of a send.
    pub(crate) fn of(&mut self, send: SendId) -> Option<&mut Region> {
        self.open.get_mut(self.by_send.get(&send)?)
    }

    /// Returns the region that a partner requests. The use may differ as long as only one use is open.
    pub(crate) fn requested_region(&mut self, name: RegionName, by: Address) -> Option<(RegionName, &mut Region)> {
        let of_partner = |(name, region): (&RegionName, &Region)| (region.partner == by).then_some(*name);
        let mut others = self.open.range(RegionName::uses(name.id)).filter_map(of_partner);
        let name = match (self.open.contains_key(&name), others.next(), others.next()) {
            (false, Some(only), None) => only,
            _ => name,
        };
        Some((name, self.fetchable(name, by)?))
    }

    /// Returns a region that this partner has to fetch.
    fn fetchable(&mut self, name: RegionName, by: Address) -> Option<&mut Region> {
        self.open.get_mut(&name).filter(|region| region.partner == by && region.fetched.is_none())
    }

    /// Handles the acknowledgement of an announcement. Returns the send that ends, and the number of bytes that the
    /// peer took.
    pub(crate) fn acked(&mut self, name: RegionName) -> Option<(SendId, u32)> {
        self.open.get_mut(&name)?.acked = true;
        self.close_if_over(name)
    }

    /// Handles a peer's notification that it has the bytes it wants.
    pub(crate) fn fetched(&mut self, name: RegionName, by: Address, bytes: u32) -> Option<(SendId, u32)> {
        let region = self.fetchable(name, by)?;
        region.fetched = Some(bytes.min(region.length));
        self.close_if_over(name)
    }

    fn close_if_over(&mut self, name: RegionName) -> Option<(SendId, u32)> {
        let region = self.open.get(&name)?;
        let over = (region.send, region.fetched.filter(|_| region.acked)?);
        self.close(name);
        Some(over)
    }

    /// Closes a region that will not be fetched any more.
    fn close(&mut self, name: RegionName) {
        let Some(region) = self.open.remove(&name) else { return };
        self.by_send.remove(&region.send);
        if let Some(count) = self.by_partner.get_mut(&region.partner) {
            *count -= 1;
            if *count == 0 {
                self.by_partner.remove(&region.partner);
            }
        }
    }

    /// Returns true if a partner has a region to fetch.
    pub(crate) fn has_open_for(&self, partner: Address) -> bool {
        self.by_partner.contains_key(&partner)
    }

    /// Closes all regions of this partner.
    pub(crate) fn close_all(&mut self, partner: Address) -> Vec<SendId> {
        let of_partner = self.open.iter().filter(|(_, region)| region.partner == partner);
        let names: Vec<_> = of_partner.map(|(name, region)| (*name, region.send)).collect();
        names.iter().for_each(|(name, _)| self.close(*name));
        names.into_iter().map(|(_, send)| send).collect()
    }
}
