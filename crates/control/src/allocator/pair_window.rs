//! Pair windows: memory shared by two guests. Only programs of these two guests are given extents of it.
//!
//! ```text
//!   PairWindow ── PairBacking: PairFileBacking    a memory file that devices show to both guests (KVM)
//!                              PairGrantBacking   pages that one guest grants to the other, for each extent anew (Xen)
//! ```
//!
//! The host daemon keeps the account of the window, as for a guest's own window. Both guests may write anywhere in the window at any time.
//! The daemon's decisions depend on nothing that is stored in it.

use std::sync::Arc;

use isthmus_layout::Refusal;
use isthmus_layout::RegionSize;
use isthmus_layout::ids::DomainId;
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::proxy::grants::GrantRequest;
use isthmus_layout::proxy::{ProxyFrameKind, ResourceRef, RevokedExtent, WindowId};
use isthmus_layout::reason::Reason;
use isthmus_shm::SharedMapping;

use super::{GuestId, GuestWindow, Resource};

mod file;
mod grants;
pub(crate) use file::PairFileBacking;
pub(crate) use grants::PairGrantBacking;

/// A proxy frame to a guest.
pub(crate) type OutgoingFrame = (ProxyFrameKind, Vec<u8>);

/// The progress of setting up a pair window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PairProgress {
    /// The window is not set up completely.
    Pending,
    /// The window is set up.
    Ready,
    /// The window cannot be set up, for this reason.
    Refused(String),
}

/// For each guest, the number of revoked extents that it has reclaimed and the other guest has not.
#[derive(Debug, Default)]
struct ReclaimCounts([usize; 2]);

impl ReclaimCounts {
    /// The count of a side.
    fn beyond(&self, side: usize) -> usize {
        self.0[side]
    }

    /// Counts another extent that a side has reclaimed. Returns true if both sides have reclaimed one now.
    fn count(&mut self, side: usize) -> bool {
        self.0[side] += 1;
        let both = self.0.iter().all(|&reclaimed| reclaimed > 0);
        if both {
            self.0.iter_mut().for_each(|reclaimed| *reclaimed -= 1);
        }
        both
    }
}

/// The memory of a pair window. The side of a guest is 0 or 1, its index in [`PairWindow`].
pub(crate) trait PairBacking: std::fmt::Debug + Send + Sync {
    /// Allocates an extent of `bytes`, in whole pages. Returns its offset and its generation.
    fn alloc(&self, bytes: u64) -> Option<(u64, u32)>;
    /// Zeroes an allocated extent.
    fn clear(&self, at: u64, bytes: u64) -> Result<(), Refusal>;
    /// Maps a part of the window into this process, if the host can see it.
    fn map(&self, at: u64, size: RegionSize) -> Result<SharedMapping, Refusal>;
    /// Reads a part of the window without a mapping. Returns false if that is not possible.
    fn read_at(&self, at: u64, into: &mut [u8]) -> bool;
    /// Frees an extent.
    fn free(&self, at: u64, bytes: u64);
    /// True as long as the extent of this generation is allocated.
    fn is_live(&self, at: u64, generation: u32) -> bool;
    /// Returns the next revoked extent, given that the guest of a side already knows of the first `reported` ones.
    fn revoked(&self, side: usize, reported: usize) -> Option<RevokedExtent>;
    /// Notes that the guest of a side has unmapped the first revoked extent.
    fn reclaimed(&self, side: usize);
    /// The number of bytes that can be allocated at once.
    fn bytes(&self) -> u64;
    /// True if programs can have memory of their own in the window.
    fn supports_regions(&self) -> bool {
        false
    }
    /// The event channel of the ready map at this offset, by which programs of the two guests ring each other directly. The reference
    /// serves for either end.
    fn event_channel(&self, _ready_map: u64) -> Option<ResourceRef> {
        None
    }
    /// Returns the doorbell by which `from` rings a vector of `of`.
    fn doorbell(&self, of: &GuestWindow, from: &GuestWindow, vector: u16) -> Result<ResourceRef, Refusal>;

    /// Reports whether extents can be allocated.
    fn progress(&self) -> PairProgress {
        PairProgress::Ready
    }
    /// The next grant request to the guest of a side.
    fn grant_request(&self, _side: usize) -> Option<GrantRequest> {
        None
    }
    /// Notes that the request was sent.
    fn mark_requested(&self, _side: usize) {}
    /// Handles the reply to a grant request. Returns the frame for the other guest, or an error if no such request is pending.
    fn handle_grant_reply(&self, _side: usize, _offset: u64, _grant: &[u8]) -> Result<Option<OutgoingFrame>, String> {
        Err("nothing of it is to be made".to_owned())
    }
    /// Handles the reply to a map request.
    fn handle_map_reply(&self, _side: usize, _offset: u64, _mapped: bool) -> Result<(), String> {
        Err("no map request is pending".to_owned())
    }
    /// Handles an offer of the window; an empty one means that the guest cannot have it. Returns the frame for the other guest.
    fn handle_pair_offer(&self, _side: usize, _offer: &[u8]) -> Result<Option<OutgoingFrame>, String> {
        Err("nothing of it is to be offered".to_owned())
    }
}

/// Memory that two guests share, and the two guests.
#[derive(Debug)]
pub(crate) struct PairWindow {
    number: WindowId,
    guests: [Arc<GuestWindow>; 2],
    backing: Box<dyn PairBacking>,
}

impl PairWindow {
    /// Creates a window of these two guests.
    pub(crate) fn new(
        number: WindowId,
        guests: [Arc<GuestWindow>; 2],
        backing: impl PairBacking + 'static,
    ) -> Arc<Self> {
        assert!(number != WindowId::OWN && guests[0].number() != guests[1].number()); // Ours.
        let window = Arc::new(Self { number, guests, backing: Box::new(backing) });
        window.guests.iter().for_each(|guest| guest.add_pair_window(&window));
        window
    }

    /// The number by which both guests know the window.
    pub(crate) fn number(&self) -> WindowId {
        self.number
    }

    /// The size of the window in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.backing.bytes()
    }

    /// True if programs can have memory of their own in the window.
    pub(crate) fn supports_regions(&self) -> bool {
        self.backing.supports_regions()
    }

    /// Reports whether extents can be allocated.
    pub(crate) fn progress(&self) -> PairProgress {
        self.backing.progress()
    }

    /// Allocates zeroed memory.
    pub(crate) fn allocate(self: &Arc<Self>, size: RegionSize) -> Result<Resource, Refusal> {
        let bytes = size.0.next_multiple_of(u64::from(PAGE_BYTES));
        let allocated = self.backing.alloc(bytes);
        // The backing may now want to request another extent from a guest, as a replacement or for the next allocation.
        self.guests.iter().for_each(|guest| guest.changed.notify_one());
        let (at, generation) = allocated.ok_or_else(|| {
            let [one, other] = &self.guests;
            let text =
                format!("the window of guests {} and {} has no room for {bytes} bytes", one.name(), other.name());
            Refusal::new(Reason::OutOfMemory, text)
        })?;
        let extent = Resource::PairExtent(Arc::new(PairExtent { window: Arc::clone(self), at, bytes, generation }));
        // Removes the previous contents, and anything that the guests wrote there since.
        self.backing.clear(at, bytes)?;
        Ok(extent)
    }

    /// Returns a doorbell of a domain in one guest for domains of the other: the end at which the domain listens, and the one that its
    /// peers ring.
    pub(crate) fn doorbell(&self, domain: DomainId, guest: GuestId) -> Result<(Resource, Resource), Refusal> {
        let own = self.side(guest);
        let (of, from) = (&self.guests[own], &self.guests[1 - own]);
        let vector = of.vector(domain)?;
        let doorbell = self.backing.doorbell(of, from, vector)?;
        Ok((Resource::Doorbell(ResourceRef::VectorEvents { vector }), Resource::Doorbell(doorbell)))
    }

    /// Returns the event channel of a ready map, if the window has them. It replaces the doorbell for programs that support event channels.
    pub(crate) fn event_channel(&self, ready_map: &Resource) -> Option<Resource> {
        let Resource::PairExtent(extent) = ready_map else { return None };
        self.backing.event_channel(extent.at).map(Resource::Doorbell)
    }

    /// Queues a frame to the guest of a side.
    pub(crate) fn queue_frame(&self, side: usize, frame: OutgoingFrame) {
        self.guests[side].queue_frame(frame);
    }

    /// Returns the next revoked extent, given that a guest already knows of the first `reported` ones.
    pub(super) fn revoked(&self, guest: GuestId, reported: usize) -> Option<RevokedExtent> {
        self.backing.revoked(self.side(guest), reported)
    }

    /// Notes that a guest has unmapped the first revoked extent.
    pub(super) fn reclaimed(&self, guest: GuestId) {
        self.backing.reclaimed(self.side(guest));
    }

    pub(super) fn grant_request(&self, guest: GuestId) -> Option<GrantRequest> {
        self.backing.grant_request(self.side(guest))
    }

    pub(super) fn mark_requested(&self, guest: GuestId) {
        self.backing.mark_requested(self.side(guest));
    }

    pub(super) fn handle_grant_reply(&self, guest: GuestId, offset: u64, grant: &[u8]) -> Result<(), String> {
        let side = self.side(guest);
        self.forward_frame(side, self.backing.handle_grant_reply(side, offset, grant)?);
        Ok(())
    }

    pub(super) fn handle_map_reply(&self, guest: GuestId, offset: u64, mapped: bool) -> Result<(), String> {
        self.backing.handle_map_reply(self.side(guest), offset, mapped)
    }

    pub(super) fn handle_pair_offer(&self, guest: GuestId, offer: &[u8]) -> Result<(), String> {
        let side = self.side(guest);
        self.forward_frame(side, self.backing.handle_pair_offer(side, offer)?);
        Ok(())
    }

    fn forward_frame(&self, from: usize, frame: Option<OutgoingFrame>) {
        if let Some(frame) = frame {
            self.queue_frame(1 - from, frame);
        }
    }

    pub(super) fn is_live(&self, offset: u64, generation: u32) -> bool {
        self.backing.is_live(offset, generation)
    }

    fn side(&self, guest: GuestId) -> usize {
        usize::from(self.guests[0].number() != guest)
    }
}

/// An extent of a pair window. It is freed when the last reference is dropped.
#[derive(Debug)]
pub struct PairExtent {
    window: Arc<PairWindow>,
    at: u64,
    bytes: u64,
    generation: u32,
}

impl PairExtent {
    pub(super) fn window(&self) -> WindowId {
        self.window.number
    }

    pub(super) fn map(&self, size: RegionSize) -> Result<SharedMapping, Refusal> {
        self.window.backing.map(self.at, size)
    }

    pub(super) fn read_at(&self, at: u64, into: &mut [u8]) -> bool {
        self.window.backing.read_at(self.at + at, into)
    }

    pub(super) fn to_ref(&self) -> ResourceRef {
        ResourceRef::Extent {
            window: self.window.number,
            offset: self.at,
            bytes: self.bytes,
            generation: self.generation,
        }
    }
}

impl Drop for PairExtent {
    fn drop(&mut self) {
        self.window.backing.free(self.at, self.bytes);
        self.window.guests.iter().for_each(|guest| guest.changed.notify_one());
    }
}

#[cfg(test)]
mod tests {
    use isthmus_layout::control::Name;
    use isthmus_platform::{Doorbell, local};

    use super::*;
    use crate::allocator::descriptor;

    fn guest(number: u32, vectors: usize) -> Arc<GuestWindow> {
        let doorbells = |count| (0..count).map(|_| descriptor(&Doorbell::new().unwrap()).unwrap()).collect();
        let (name, bytes) = (Name::new(&format!("guest{number}")).unwrap(), 1 << 20);
        let window = local::memory(RegionSize(bytes)).unwrap();
        GuestWindow::new(
            GuestId(number),
            name,
            crate::allocator::FileBacking::new(window, bytes),
            (doorbells(vectors), doorbells(2)),
        )
    }

    const NUMBER: WindowId = WindowId(5);
    const PAGE: RegionSize = RegionSize(4096);

    fn file_window(guests: &[Arc<GuestWindow>; 2]) -> Arc<PairWindow> {
        let memory = Arc::new(local::memory(PAGE).unwrap());
        PairWindow::new(NUMBER, guests.clone(), PairFileBacking::new(NUMBER, memory, PAGE.0))
    }

    fn domain(number: u32) -> DomainId {
        DomainId::new(number).unwrap()
    }

    #[test]
    fn reuses_an_extent_when_both_guests_have_reclaimed_it() {
        let guests = [guest(1, 4), guest(2, 4)];
        let window = file_window(&guests);
        let extent = window.allocate(PAGE).unwrap();
        let Some(ResourceRef::Extent { window: NUMBER, offset: 0, bytes: 4096, generation }) = extent.to_ref() else {
            panic!("{extent:?}")
        };
        assert!(
            guests
                .iter()
                .all(|guest| guest.is_live(NUMBER, 0, generation) && !guest.is_live(WindowId::OWN, 0, generation))
        );
        drop(extent);
        assert!(!guests[0].is_live(NUMBER, 0, generation));
        let revoked = RevokedExtent { window: NUMBER, offset: 0, generation };
        for guest in &guests {
            assert_eq!(window.allocate(PAGE).unwrap_err().reason, Reason::OutOfMemory);
            assert_eq!(guest.revoked(|_| 0), Some(revoked));
            assert_eq!(guest.revoked(|_| 1), None);
            assert!(!guest.reclaimed(RevokedExtent { generation: generation + 1, ..revoked }));
            assert!(guest.reclaimed(revoked) && !guest.reclaimed(revoked));
            assert_eq!(guest.revoked(|_| 0), None);
        }
        assert!(window.allocate(PAGE).is_ok());
    }

    #[test]
    fn uses_the_domain_vector_when_the_peer_device_has_it() {
        let guests = [guest(1, 4), guest(2, 2)];
        let window = file_window(&guests);
        let (listener, doorbell) = window.doorbell(domain(7), GuestId(1)).unwrap();
        assert_eq!(listener.to_ref(), Some(ResourceRef::VectorEvents { vector: 1 }));
        assert_eq!(doorbell.to_ref(), Some(ResourceRef::Doorbell { peer: guests[0].peer().unwrap(), vector: 1 }));
        assert_eq!(window.doorbell(domain(8), GuestId(1)).unwrap_err().reason, Reason::GuestVectorsFull);
        assert_ne!(guests[0].peer(), guests[1].peer());
    }
}
