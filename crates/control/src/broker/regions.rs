//! Regions of guests' programs: extents of a window, which their owner writes and others read.
//!
//! Regions give way to channels: if a window has no room for a channel, all its regions are revoked. Their owners notice at the next use
//! and lose no data, because the driver preserves the contents.

use std::collections::BTreeSet;

use isthmus_layout::Refusal;
use isthmus_layout::RegionSize;
use isthmus_layout::control::{CreateRegion, Granted, RegionCreated, RequestSerial, Revoked};
use isthmus_layout::ids::{DomainId, RegionId};
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::proxy::WindowId;
use isthmus_layout::reason::Reason;

use super::Broker;
use super::channels::{PEERS_BACKLOG_MAX, SharedAllocator};
use crate::core::types::ControlSessionId;
use isthmus_window::{Allocator, Resource, WindowRef};

/// The most bytes that regions may use of a window, even if half of the window is more. The guest's driver reserves as many bytes of the
/// guest's memory, in which it preserves the contents.
const BYTES_MAX: u64 = 256 << 20;

/// A region in a window.
#[derive(Debug)]
pub(super) struct GuestRegion {
    memory: Resource,
    bytes: u64,
    readers: BTreeSet<DomainId>,
}

impl Broker {
    pub(super) fn create_region(
        &mut self,
        id: ControlSessionId,
        serial: Option<RequestSerial>,
        domain: DomainId,
        request: &CreateRegion,
    ) -> Result<(), Refusal> {
        let CreateRegion { peer, region, bytes } = *request;
        let (Some(owner), Some(reader)) = (self.core.identity(domain), self.core.identity(peer)) else {
            return Err(Reason::NoSuchDomain.into());
        };
        self.core.policy.may_grant(&owner, &reader)?;
        let shared = self.shared_allocator(domain, peer)?.ok_or(Reason::PairWindowPending)?;
        let window_ref = region_window(&shared)?;
        let session = self.core.attachments[&peer].session;
        if self.core.backlog_of(peer) >= PEERS_BACKLOG_MAX {
            let text = "the reader has not taken the regions it was granted before";
            return Err(Refusal::new(Reason::RegionsFull, text));
        }
        match self.guest_memory.regions.get(&(domain, region)) {
            Some(known) if known.memory.window_ref() != Some(window_ref) => return Err(Reason::NoSharedMemory.into()),
            Some(known) if known.bytes != bytes => return Err(Reason::RegionTooSmall.into()),
            Some(_) => {}
            None => {
                let memory = self.memory_for_region(&shared, window_ref, bytes)?;
                *self.guest_memory.region_bytes.entry(window_ref).or_default() += bytes;
                self.guest_memory
                    .regions
                    .insert((domain, region), GuestRegion { memory, bytes, readers: BTreeSet::new() });
            }
        }
        let known = self.guest_memory.regions.get_mut(&(domain, region)).expect("it is there, as just seen");
        let (private, read_only) = (known.memory.as_private(), known.memory.as_read_only());
        if known.readers.insert(peer) {
            if let Some(kept) = self.core.attachments.memory_of_peers(peer) {
                kept.reads.insert((domain, region));
            }
            self.core.directory.peer_state(domain, peer).grants += 1;
        }
        self.core.send(session, None, Granted { peer: domain, region, start: 0, bytes }.into(), vec![read_only]);
        self.core.send(id, serial, RegionCreated { region }.into(), vec![private]);
        Ok(())
    }

    fn memory_for_region(
        &self,
        shared: &SharedAllocator,
        window_ref: WindowRef,
        bytes: u64,
    ) -> Result<Resource, Refusal> {
        let room = (shared.bytes() / 2).min(BYTES_MAX);
        let used = self.guest_memory.region_bytes.get(&window_ref).copied().unwrap_or(0);
        let whole = bytes > 0 && bytes.is_multiple_of(u64::from(PAGE_BYTES));
        if !whole || bytes > room - used.min(room) {
            let text = format!("regions have {used} bytes of the window, and may have {room}: no room for {bytes}");
            return Err(Refusal::new(Reason::RegionsFull, text));
        }
        Ok(shared.allocate(RegionSize(bytes))?)
    }

    /// Removes a peer from a region's readers. A region without readers is removed.
    pub(super) fn region_revoked(&mut self, owner: DomainId, region: RegionId, peer: DomainId) {
        if let Some(kept) = self.core.attachments.memory_of_peers(peer) {
            kept.reads.remove(&(owner, region));
        }
        if let Some(known) = self.guest_memory.regions.get_mut(&(owner, region)) {
            known.readers.remove(&peer);
            if known.readers.is_empty() {
                self.remove_region((owner, region));
            }
        }
    }

    /// Removes the regions of a domain that is gone, and the regions that no other domain reads.
    pub(super) fn remove_regions_of(&mut self, domain: DomainId) {
        let reads = self.core.attachments.memory_of_peers(domain).map(|kept| std::mem::take(&mut kept.reads));
        for (owner, region) in reads.unwrap_or_default() {
            self.region_revoked(owner, region, domain);
        }
        let own = self.guest_memory.regions.range((domain, RegionId(0))..=(domain, RegionId(u64::MAX)));
        let own: Vec<_> = own.map(|(key, _)| *key).collect();
        own.into_iter().for_each(|key| drop(self.remove_region(key)));
    }

    /// Removes a region, and returns its readers.
    fn remove_region(&mut self, (owner, region): (DomainId, RegionId)) -> BTreeSet<DomainId> {
        let Some(removed) = self.guest_memory.regions.remove(&(owner, region)) else { return BTreeSet::new() };
        let window_ref = removed.memory.window_ref();
        if let Some(bytes) = window_ref.and_then(|window_ref| self.guest_memory.region_bytes.get_mut(&window_ref)) {
            *bytes -= removed.bytes;
            if *bytes == 0 {
                window_ref.and_then(|window_ref| self.guest_memory.region_bytes.remove(&window_ref));
            }
        }
        for reader in &removed.readers {
            if let Some(kept) = self.core.attachments.memory_of_peers(*reader) {
                kept.reads.remove(&(owner, region));
            }
        }
        removed.readers
    }

    /// Revokes the regions in a window, because a channel needs the room.
    pub(super) fn revoke_regions(&mut self, shared: &SharedAllocator) {
        if let Ok(window_ref) = region_window(shared) {
            self.revoke_regions_in(window_ref);
        }
    }

    /// Revokes the regions in a pair window that is being closed.
    pub(super) fn revoke_regions_in_pair(&mut self, window: WindowId) {
        self.revoke_regions_in(WindowRef::Pair(window));
    }

    fn revoke_regions_in(&mut self, window_ref: WindowRef) {
        let here =
            self.guest_memory.regions.iter().filter(|(_, region)| region.memory.window_ref() == Some(window_ref));
        let ended: Vec<_> = here.map(|(key, _)| *key).collect();
        for (owner, region) in ended {
            for reader in self.remove_region((owner, region)) {
                self.core.notify(reader, Revoked { peer: owner, region }.into());
            }
        }
    }
}

/// Returns the window in which the regions of two domains lie. Fails if there can be none.
fn region_window(shared: &SharedAllocator) -> Result<WindowRef, Refusal> {
    let (window_ref, supports_regions) = match shared {
        SharedAllocator::Same(Allocator::Host) => {
            return Err(Refusal::new(Reason::NoSharedMemory, "the domains are in no guest"));
        }
        SharedAllocator::Same(Allocator::Guest(guest_window)) => {
            (WindowRef::Own(guest_window.number()), guest_window.window().supports_regions())
        }
        SharedAllocator::Window(window) => (WindowRef::Pair(window.number()), window.window().supports_regions()),
    };
    if supports_regions {
        return Ok(window_ref);
    }
    Err(Refusal::new(Reason::NoSharedMemory, "memory that Xen guests grant cannot hold regions of programs"))
}
