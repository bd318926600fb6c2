//! Regions of guests' programs: pieces of a window, which their owner writes and others read.
//!
//! They are less than channels: where a window has no room for one, its regions go. Their owners notice at the next use, and
//! lose nothing: the driver leaves them their bytes.

use std::collections::BTreeSet;

use isthmus_layout::RegionSize;
use isthmus_layout::border::WindowNumber;
use isthmus_layout::control::{Granted, MakeRegion, RegionMade, RequestSerial, Revoked};
use isthmus_layout::ids::{DomainId, RegionId};
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::reason::Reason;

use super::channels::{Common, PEERS_BACKLOG_MAX};
use super::{Broker, Refusal, SessionId};
use crate::ground::{Ground, Item, Place};

/// Of a window of which half is more, regions have no more than this: the driver holds as many pages of the guest's in reserve.
const BYTES_MAX: u64 = 256 << 20;

/// A region in a window.
#[derive(Debug)]
pub(super) struct Region {
    memory: Item,
    bytes: u64,
    readers: BTreeSet<DomainId>,
}

impl Broker {
    pub(super) fn make_region(
        &mut self,
        id: SessionId,
        serial: Option<RequestSerial>,
        domain: DomainId,
        asked: &MakeRegion,
    ) -> Result<(), Refusal> {
        let MakeRegion { peer, region, bytes } = *asked;
        let (Some(owner), Some(reader)) = (self.identity(domain), self.identity(peer)) else {
            return Err(Reason::NoSuchDomain.into());
        };
        self.policy.grant(&owner, &reader)?;
        let common = self.common_memory(domain, peer)?.ok_or(Reason::WindowPending)?;
        let place = place_of_regions(&common)?;
        let session = self.homes[&peer].session;
        if self.backlog_of(peer) >= PEERS_BACKLOG_MAX {
            let text = "the reader has not taken the regions it was granted before";
            return Err(Refusal::new(Reason::RegionsFull, text));
        }
        match self.regions.get(&(domain, region)) {
            Some(known) if known.memory.place() != Some(place) => return Err(Reason::NoCommonMemory.into()),
            Some(known) if known.bytes != bytes => return Err(Reason::RegionTooSmall.into()),
            Some(_) => {}
            None => {
                let memory = self.memory_for_region(&common, place, bytes)?;
                self.regions.insert((domain, region), Region { memory, bytes, readers: BTreeSet::new() });
            }
        }
        let known = self.regions.get_mut(&(domain, region)).expect("it is there, as just seen");
        let (home, view) = (known.memory.as_home(), known.memory.as_view());
        if known.readers.insert(peer) {
            self.directory.acquaintance(domain, peer).grants += 1;
        }
        self.send(session, None, Granted { peer: domain, region, start: 0, bytes }.into(), vec![view]);
        self.send(id, serial, RegionMade { region }.into(), vec![home]);
        Ok(())
    }

    fn memory_for_region(&self, common: &Common, place: Place, bytes: u64) -> Result<Item, Refusal> {
        let room = (common.bytes() / 2).min(BYTES_MAX);
        let here = self.regions.values().filter(|region| region.memory.place() == Some(place));
        let used: u64 = here.map(|region| region.bytes).sum();
        let whole = bytes > 0 && bytes.is_multiple_of(u64::from(PAGE_BYTES));
        if !whole || bytes > room - used.min(room) {
            let text = format!("regions have {used} bytes of the window, and may have {room}: no room for {bytes}");
            return Err(Refusal::new(Reason::RegionsFull, text));
        }
        common.memory(RegionSize(bytes))
    }

    /// A region's owner has taken it back from a peer.
    pub(super) fn region_revoked(&mut self, owner: DomainId, region: RegionId, peer: DomainId) {
        if let Some(known) = self.regions.get_mut(&(owner, region)) {
            known.readers.remove(&peer);
            if known.readers.is_empty() {
                self.regions.remove(&(owner, region));
            }
        }
    }

    /// A domain is gone: so are its regions, and those that nobody else reads.
    pub(super) fn regions_left(&mut self, domain: DomainId) {
        self.regions.retain(|(owner, _), region| {
            region.readers.remove(&domain);
            *owner != domain && !region.readers.is_empty()
        });
    }

    /// A channel needs the room.
    pub(super) fn end_regions(&mut self, common: &Common) {
        if let Ok(place) = place_of_regions(common) {
            self.end_regions_at(place);
        }
    }

    /// The window goes.
    pub(super) fn end_regions_in(&mut self, window: WindowNumber) {
        self.end_regions_at(Place::Common(window));
    }

    fn end_regions_at(&mut self, place: Place) {
        let ended: Vec<_> = self.regions.extract_if(.., |_, region| region.memory.place() == Some(place)).collect();
        for ((owner, region), ended) in ended {
            for reader in ended.readers {
                self.tell(reader, Revoked { peer: owner, region }.into());
            }
        }
    }
}

/// Which window regions of theirs would lie in, where it is one.
fn place_of_regions(common: &Common) -> Result<Place, Refusal> {
    let (place, has_regions) = match common {
        Common::Ground(Ground::Host) => return Err(Refusal::new(Reason::NoCommonMemory, "they are in no guest")),
        Common::Ground(Ground::Guest(estate)) => (Place::Own(estate.number()), estate.has_regions()),
        Common::Window(window) => (Place::Common(window.number()), window.has_regions()),
    };
    if has_regions {
        return Ok(place);
    }
    Err(Refusal::new(Reason::NoCommonMemory, "what guests of Xen grant is no memory of programs"))
}
