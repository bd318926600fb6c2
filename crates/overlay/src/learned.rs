//! Learned addresses: the port by which each station was last seen, with its age.
//!
//! ```text
//!   by_station ──► slots │ station, port, last seen │ ...     neighbours in age are linked, oldest first
//!              histories │ moves, claim, reports │ ...    touched only when an address moves
//! ```
//!
//! The table is bounded: a new address takes the slot of the one that was not seen for longest. Every operation on a frame takes constant time.
//! An address that ages out stays in its slot until the slot is needed, and counts as unknown.
//!
//! [`moves`] says what happens when an address appears at another port.

mod moves;
mod order;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use crate::frame::FrameHeader;
use crate::mac::{KeyedHash, MacAddr, MacMap};
use crate::network::{DropReason, Millis, Reports};
use crate::ports::Port;
use moves::History;
pub use moves::{CLAIM_AFTER_MS, FLAP_MOVES_MAX, FLAP_WINDOW_MS, LOOP_MS, REPORT_INTERVAL_MS};
use order::{Links, Order};

/// An address in a VLAN. Two stations of different VLANs may have one address, as virtual routers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// The address.
    pub mac: MacAddr,
    /// The VLAN. None without a tag.
    pub vlan: Option<u16>,
}

impl From<MacAddr> for Station {
    /// The station with an address outside of VLANs.
    fn from(mac: MacAddr) -> Self {
        Self { mac, vlan: None }
    }
}

impl Hash for Station {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.mac.bits() << 16 | u64::from(self.vlan.unwrap_or(0))); // No VLAN has the number 0.
    }
}

impl FrameHeader {
    /// The station that sent the frame.
    #[inline]
    pub(crate) const fn sender(&self) -> Station {
        Station { mac: self.source, vlan: self.vlan }
    }

    /// The station that the frame is for.
    #[inline]
    pub(crate) const fn receiver(&self) -> Station {
        Station { mac: self.destination, vlan: self.vlan }
    }
}

/// A place in the table that may be out of date. It is compared with the address before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotHint(u32);

impl SlotHint {
    /// A place that no table has.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

struct Slot {
    /// [`FREE`] while the slot is free. That address is never learned.
    station: Station,
    /// Whether the history of the address has a part in what the next frame does.
    watched: bool,
    port: Port,
    seen: Millis,
    links: Links,
}

const FREE: Station = Station { mac: MacAddr([0; 6]), vlan: None };

/// Counts of the changes of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LearnedCounts {
    /// Addresses that were learned.
    pub learned: u64,
    /// Addresses that moved to another port.
    pub moved: u64,
    /// Addresses that were forgotten because the table was full.
    pub evicted: u64,
}

/// The learned addresses of a network.
pub(crate) struct LearnedAddresses {
    by_station: MacMap<Station, u32>,
    slots: Vec<Slot>,
    histories: Vec<History>,
    order: Order,
    free: Vec<u32>,
    addresses_max: usize,
    age_max: Millis,
    /// Whether frames that [`moves`] takes for those of a loop are refused.
    loop_protection: bool,
    counts: LearnedCounts,
}

impl LearnedAddresses {
    pub(crate) fn new(hash: KeyedHash, addresses_max: usize, age_max: Millis, loop_protection: bool) -> Self {
        Self {
            by_station: MacMap::with_hasher(hash),
            slots: Vec::new(),
            histories: Vec::new(),
            order: Order::default(),
            free: Vec::new(),
            addresses_max: addresses_max.min(u32::MAX as usize),
            age_max,
            loop_protection,
            counts: LearnedCounts::default(),
        }
    }

    pub(crate) const fn counts(&self) -> LearnedCounts {
        self.counts
    }

    /// Notes that a frame from the station `mac` came by `from`. Refuses the frame if [`moves`] says that it must not be forwarded.
    #[inline]
    pub(crate) fn note(
        &mut self,
        now: Millis,
        from: Port,
        station: Station,
        hint: &mut SlotHint,
        reports: &mut Reports,
    ) -> Result<(), DropReason> {
        if let Some(slot) = self.slots.get(hint.0 as usize)
            && slot.station == station
            && slot.port == from
            && !slot.watched
        {
            self.touch(hint.0, now);
            return Ok(());
        }
        match self.find(station, hint) {
            Some(at) => self.note_known(now, from, at, reports),
            None => {
                self.insert(now, from, station, hint);
                Ok(())
            }
        }
    }

    /// The port by which a station is reached. `None` if it is unknown, or was not seen for too long.
    #[inline]
    pub(crate) fn locate(&mut self, now: Millis, station: Station, hint: &mut SlotHint) -> Option<Port> {
        let at = self.find(station, hint)?;
        self.settle_claim(now, at);
        let slot = &self.slots[at as usize];
        (!self.is_expired(now, slot.seen)).then_some(slot.port)
    }

    /// The port by which `destination` is reached once a frame of the station `source` is noted, and the time since it was seen.
    pub(crate) fn peek(
        &self,
        now: Millis,
        from: Port,
        source: Station,
        destination: Station,
    ) -> Option<(Port, Millis)> {
        if source.mac.is_station() && self.addresses_max > 0 {
            if source == destination {
                return Some((from, Millis(0)));
            }
            let evicts = self.is_full() && !self.by_station.contains_key(&source);
            if evicts && self.order.oldest().is_some_and(|oldest| self.slots[oldest as usize].station == destination) {
                return None;
            }
        }
        self.place(now, *self.by_station.get(&destination)?)
    }

    /// Returns the reason for which a frame from `mac` that came by `from` would be refused, without a change.
    pub(crate) fn check(&self, now: Millis, from: Port, station: Station) -> Result<(), DropReason> {
        let Some(at) = self.by_station.get(&station) else { return Ok(()) };
        let Some((port, age)) = self.place(now, *at).filter(|_| self.loop_protection) else { return Ok(()) };
        self.histories[*at as usize].check(now, port, age, from)
    }

    /// The addresses that are known now, with port and age, those not seen for longest first.
    pub(crate) fn iter(&self, now: Millis) -> impl Iterator<Item = (Station, Port, Millis)> {
        let mut next = self.order.oldest();
        let slots = core::iter::from_fn(move || {
            let at = next?;
            next = self.slots[at as usize].links.newer();
            Some(at)
        });
        slots.filter_map(move |at| self.place(now, at).map(|(port, age)| (self.slots[at as usize].station, port, age)))
    }

    /// Forgets all addresses that were learned at a port.
    pub(crate) fn forget_port(&mut self, port: Port) {
        for at in 0..self.slots.len() {
            if self.slots[at].station != FREE && self.slots[at].port == port {
                self.remove(at as u32);
            } else {
                self.histories[at].withdraw_claim(port);
            }
        }
    }

    fn is_full(&self) -> bool {
        self.by_station.len() >= self.addresses_max
    }

    fn is_expired(&self, now: Millis, seen: Millis) -> bool {
        now.since(seen) >= self.age_max
    }

    /// The place of an address as a claim that is due would leave it, and the time since it was seen there.
    fn place(&self, now: Millis, at: u32) -> Option<(Port, Millis)> {
        let slot = &self.slots[at as usize];
        let claim = self.histories[at as usize].due_claim(now, slot.seen);
        let (port, seen) = claim.unwrap_or((slot.port, slot.seen));
        (!self.is_expired(now, seen)).then(|| (port, now.since(seen)))
    }

    #[inline]
    fn find(&self, station: Station, hint: &mut SlotHint) -> Option<u32> {
        if self.slots.get(hint.0 as usize).is_none_or(|slot| slot.station != station) {
            *hint = self.by_station.get(&station).map_or(SlotHint::NONE, |at| SlotHint(*at));
        }
        (*hint != SlotHint::NONE).then_some(hint.0)
    }

    /// Notes a frame of an address that has a slot and either came by another port or has a history.
    #[cold]
    fn note_known(&mut self, now: Millis, from: Port, at: u32, reports: &mut Reports) -> Result<(), DropReason> {
        // A frame by the known port withdraws a claim, even one that is due.
        if self.slots[at as usize].port != from {
            self.settle_claim(now, at);
        }
        let slot = &mut self.slots[at as usize];
        let history = &mut self.histories[at as usize];
        let age = now.since(slot.seen);
        if age >= self.age_max {
            history.expire();
        } else if !self.loop_protection {
            self.counts.moved += u64::from(slot.port != from);
        } else {
            let outcome = history.note(now, slot.station.mac, (slot.port, age), from, reports);
            slot.watched = history.is_watched(now);
            outcome?;
            self.counts.moved += u64::from(slot.port != from);
        }
        slot.port = from;
        self.touch(at, now);
        Ok(())
    }

    /// Moves an address to the port of a claim that is due.
    #[inline]
    fn settle_claim(&mut self, now: Millis, at: u32) {
        let slot = &mut self.slots[at as usize];
        if !slot.watched {
            return;
        }
        let history = &mut self.histories[at as usize];
        if let Some((port, seen)) = history.due_claim(now, slot.seen) {
            history.withdraw_claim(port);
            slot.port = port;
            self.counts.moved += 1;
            self.touch(at, seen);
        }
    }

    /// Notes when an address was last seen, and makes it the newest. Costs little within one millisecond.
    #[inline]
    fn touch(&mut self, at: u32, seen: Millis) {
        let slot = &mut self.slots[at as usize];
        if slot.seen == seen {
            return;
        }
        slot.seen = seen;
        self.order.unlink(&mut self.slots, at);
        self.order.push_newest(&mut self.slots, at);
    }

    fn insert(&mut self, now: Millis, from: Port, station: Station, hint: &mut SlotHint) {
        if self.addresses_max == 0 {
            return;
        }
        if self.is_full()
            && let Some(oldest) = self.order.oldest()
        {
            self.remove(oldest);
            self.counts.evicted += 1;
        }
        let slot = Slot { station, watched: false, port: from, seen: now, links: Links::default() };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                self.histories.push(History::default());
                (self.slots.len() - 1) as u32
            }
        };
        self.order.push_newest(&mut self.slots, at);
        self.by_station.insert(station, at);
        self.counts.learned += 1;
        *hint = SlotHint(at);
    }

    fn remove(&mut self, at: u32) {
        self.order.unlink(&mut self.slots, at);
        let slot = &mut self.slots[at as usize];
        self.by_station.remove(&slot.station);
        slot.station = FREE;
        self.histories[at as usize] = History::default();
        self.free.push(at);
    }
}
