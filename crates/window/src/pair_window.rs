//! Pair windows: memory shared by two guests. Only programs of these two guests are given extents of it.
//!
//! The host daemon keeps the account of the window, as for a guest's own window.

use std::sync::Arc;

use isthmus_layout::RegionSize;
use isthmus_layout::ids::DomainId;
use isthmus_layout::proxy::grants::GrantRequest;
use isthmus_layout::proxy::{GUEST, ResourceRef, RevokedExtent, WindowId};

use crate::grants::GRANTING;
use crate::{
    Backing, GuestId, GuestWindow, OutgoingFrame, Progress, Resource, UnexpectedReply, Window, WindowError, WindowRef,
};

/// Memory that two guests share, and the two guests. The number of a guest among the viewers is its index.
#[derive(Debug)]
pub struct PairWindow {
    number: WindowId,
    window: Arc<Window>,
    guests: [Arc<GuestWindow>; 2],
}

/// How one guest rings the loop devices of the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopDoorbell {
    /// The guest with the devices, among the peers of the other one's device.
    pub peer: u16,
    /// The vector of the guest with the devices.
    pub vector: u16,
}

impl PairWindow {
    /// Creates a window of these two guests. A window that is made of grants is offered to the first one.
    pub fn new(number: WindowId, guests: [Arc<GuestWindow>; 2], backing: impl Into<Backing>) -> Arc<Self> {
        assert!(number != WindowId::OWN && guests[0].number() != guests[1].number()); // Ours.
        let viewers = guests.iter().map(|guest| guest.viewer()).collect();
        let window = Window::new(WindowRef::Pair(number), backing.into(), viewers);
        let pair = Arc::new(Self { number, window, guests });
        pair.guests.iter().for_each(|guest| guest.add_pair_window(&pair));
        if let Some(invitation) = pair.window.backing().grants().and_then(|grants| grants.invitation()) {
            pair.guests[GRANTING].queue_frame(invitation);
        }
        pair
    }

    /// The number by which both guests know the window.
    pub fn number(&self) -> WindowId {
        self.number
    }

    /// The memory.
    pub fn window(&self) -> &Arc<Window> {
        &self.window
    }

    /// Allocates zeroed memory.
    pub fn allocate(self: &Arc<Self>, size: RegionSize) -> Result<Resource, WindowError> {
        self.window.allocate(size, Some(Arc::clone(self)))
    }

    /// Reports whether extents can be allocated.
    pub fn progress(&self) -> Progress {
        self.window.backing().progress()
    }

    /// Returns a doorbell of a domain in one guest for domains of the other: the end at which the domain listens, and the one that its
    /// peers ring.
    pub fn doorbell(&self, domain: DomainId, guest: GuestId) -> Result<(Resource, Resource), WindowError> {
        let own = self.side(guest);
        let vector = self.guests[own].vector(domain)?;
        let peer = self.peer_that_rings(own, vector)?;
        Ok((
            Resource::Doorbell(ResourceRef::VectorEvents { vector }),
            Resource::Doorbell(ResourceRef::Doorbell { peer, vector }),
        ))
    }

    /// Returns for each guest how the other one rings its loop devices.
    pub fn loop_doorbells(&self) -> Result<[LoopDoorbell; 2], WindowError> {
        let doorbell = |side: usize| {
            let vector = self.guests[side].loop_vector()?;
            Ok::<_, WindowError>(LoopDoorbell { peer: self.peer_that_rings(side, vector)?, vector })
        };
        Ok([doorbell(0)?, doorbell(1)?])
    }

    /// Returns the number of one guest among the peers of the other one's device, which can ring this vector.
    fn peer_that_rings(&self, side: usize, vector: u16) -> Result<u16, WindowError> {
        let (of, from) = (&self.guests[side], &self.guests[1 - side]);
        match self.window.backing() {
            // The event channel of the window itself.
            Backing::Grants(_) => Ok(GUEST + self.number.0),
            // The guests' devices ring each other.
            Backing::File(_) if vector >= from.vectors_max() => {
                let (from, of) = (from.name().clone(), of.name().clone());
                Err(WindowError::VectorOutOfReach { from, of, vector })
            }
            Backing::File(_) => of.peer().ok_or_else(|| WindowError::NoPeerNumber(of.name().clone())),
        }
    }

    /// Returns the event channel of a ready map, if the window has them: programs of the two guests ring each other by it directly. It
    /// replaces the doorbell for programs that support event channels, and serves for either end.
    pub fn event_channel(&self, ready_map: &Resource) -> Option<Resource> {
        self.window.backing().grants()?;
        let offset = ready_map.offset()?;
        Some(Resource::Doorbell(ResourceRef::EventChannel { window: self.number, offset }))
    }

    pub(crate) fn revoked(&self, guest: GuestId, reported: usize) -> Option<RevokedExtent> {
        self.window.revoked(self.side(guest), reported)
    }

    pub(crate) fn reclaim(&self, guest: GuestId, revoked: RevokedExtent) -> bool {
        self.window.reclaim(self.side(guest), revoked)
    }

    pub(crate) fn grant_request(&self, guest: GuestId) -> Option<GrantRequest> {
        self.window.backing().grants()?.request(self.side(guest))
    }

    pub(crate) fn mark_requested(&self, guest: GuestId) {
        if let Some(grants) = self.window.backing().grants() {
            grants.mark_requested(self.side(guest));
        }
    }

    pub(crate) fn handle_grant_reply(&self, guest: GuestId, offset: u64, grant: &[u8]) -> Result<(), UnexpectedReply> {
        let grants = self.window.backing().grants().ok_or(UnexpectedReply::Grant)?;
        let side = self.side(guest);
        self.forward_frame(side, grants.handle_grant_reply(side, offset, grant)?);
        Ok(())
    }

    pub(crate) fn handle_map_reply(&self, guest: GuestId, offset: u64, mapped: bool) -> Result<(), UnexpectedReply> {
        let grants = self.window.backing().grants().ok_or(UnexpectedReply::Map)?;
        grants.handle_map_reply(self.side(guest), offset, mapped)
    }

    pub(crate) fn handle_pair_offer(&self, guest: GuestId, offer: &[u8]) -> Result<(), UnexpectedReply> {
        let grants = self.window.backing().grants().ok_or(UnexpectedReply::Offer)?;
        let side = self.side(guest);
        self.forward_frame(side, grants.handle_pair_offer(side, offer)?);
        Ok(())
    }

    fn forward_frame(&self, from: usize, frame: Option<OutgoingFrame>) {
        if let Some(frame) = frame {
            self.guests[1 - from].queue_frame(frame);
        }
    }

    fn side(&self, guest: GuestId) -> usize {
        usize::from(self.guests[0].number() != guest)
    }
}

#[cfg(test)]
mod tests {
    use isthmus_layout::Refusal;
    use isthmus_layout::control::Name;
    use isthmus_layout::reason::Reason;
    use isthmus_platform::{Doorbell, copy_fd, local};

    use super::*;
    use crate::FileBacking;

    fn guest(number: u32, vectors: usize) -> Arc<GuestWindow> {
        let doorbells = |count| (0..count).map(|_| copy_fd(Doorbell::new().unwrap()).unwrap()).collect();
        let (name, bytes) = (Name::new(&format!("guest{number}")).unwrap(), 1 << 20);
        let window = local::memory(RegionSize(bytes)).unwrap();
        GuestWindow::new(GuestId(number), name, FileBacking::own(window, bytes), (doorbells(vectors), doorbells(2)))
    }

    const NUMBER: WindowId = WindowId(5);
    const PAGE: RegionSize = RegionSize(4096);

    fn file_window(guests: &[Arc<GuestWindow>; 2]) -> Arc<PairWindow> {
        let memory = Arc::new(local::memory(PAGE).unwrap());
        PairWindow::new(NUMBER, guests.clone(), FileBacking::pair(NUMBER, memory, PAGE.0))
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
            assert_eq!(window.allocate(PAGE).map_err(Refusal::from).unwrap_err().reason, Reason::OutOfMemory);
            assert_eq!(guest.revoked(|_| 0), Some(revoked));
            assert_eq!(guest.revoked(|_| 1), None);
            assert!(!guest.reclaim(RevokedExtent { generation: generation + 1, ..revoked }));
            assert!(guest.reclaim(revoked) && !guest.reclaim(revoked));
            assert_eq!(guest.revoked(|_| 0), None);
        }
        assert!(window.allocate(PAGE).is_ok());
    }

    #[test]
    fn guests_know_the_window_as_long_as_there_are_extents_of_it() {
        let guests = [guest(1, 4), guest(2, 4)];
        let window = file_window(&guests);
        let extent = window.allocate(PAGE).unwrap();
        let Some(ResourceRef::Extent { offset, generation, .. }) = extent.to_ref() else { panic!("{extent:?}") };
        drop(window);
        assert!(guests.iter().all(|guest| guest.is_live(NUMBER, offset, generation)));
        drop(extent);
        assert!(guests.iter().all(|guest| !guest.is_live(NUMBER, offset, generation)));
    }

    #[test]
    fn uses_the_domain_vector_when_the_peer_device_has_it() {
        let guests = [guest(1, 4), guest(2, 2)];
        let window = file_window(&guests);
        let (listener, doorbell) = window.doorbell(domain(7), GuestId(1)).unwrap();
        assert_eq!(listener.to_ref(), Some(ResourceRef::VectorEvents { vector: 1 }));
        assert_eq!(doorbell.to_ref(), Some(ResourceRef::Doorbell { peer: guests[0].peer().unwrap(), vector: 1 }));
        assert_eq!(
            window.doorbell(domain(8), GuestId(1)).map_err(Refusal::from).unwrap_err().reason,
            Reason::GuestVectorsFull
        );
        assert_ne!(guests[0].peer(), guests[1].peer());
    }
}
