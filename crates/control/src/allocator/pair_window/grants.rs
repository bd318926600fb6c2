//! A pair window that one guest grants to the other, batch by batch. The host does not see its memory (docs/spec/guest-proxy.md).
//!
//! ```text
//!    GrantRequest ──► guest 0 ── GrantReply: its grant ──► MapRequest ──► guest 1 ── MapReply: it can map it ──► free
//! ```
//!
//! The daemon passes a guest's grants on unchanged, and the other guest checks them when it maps them. The daemon alone knows which batches
//! exist and which are allocated. It accepts a reply only for a batch that it has requested from that guest.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_layout::Refusal;
use isthmus_layout::RegionSize;
use isthmus_layout::proxy::grants::GrantRequest;
use isthmus_layout::proxy::pair_window::{MapRequest, PairInvite};
use isthmus_layout::proxy::{ProxyFrameKind, ResourceRef, RevokedExtent, WindowId};
use isthmus_layout::reason::Reason;
use isthmus_platform_kvm::GUEST;
use isthmus_shm::SharedMapping;

use super::{OutgoingFrame, PairBacking, PairProgress, ReclaimCounts};
use crate::allocator::GuestWindow;
use crate::allocator::grant_pool::{GENERATION, GrantPool, SizeClass};

/// The side that grants.
const GRANTING_SIDE: usize = 0;
/// The side that maps.
const MAPPING_SIDE: usize = 1;

/// The memory of a pair window between two Xen guests.
#[derive(Debug)]
pub(crate) struct PairGrantBacking {
    number: WindowId,
    /// The domain numbers by which the guests address each other.
    domains: [u16; 2],
    state: Mutex<GrantState>,
}

#[derive(Debug)]
struct GrantState {
    pool: GrantPool<()>,
    /// Offsets of batches that are granted, and for which the other guest has not confirmed the mapping.
    mapping: BTreeSet<u64>,
    reclaimed: ReclaimCounts,
    offer_forwarded: bool,
    refused: Option<String>,
}

impl PairGrantBacking {
    /// Creates the backing for guests with these domain numbers. All batches together have at most `bytes_max` bytes.
    pub(crate) fn new(number: WindowId, domains: [u16; 2], size_classes: &[SizeClass], bytes_max: u64) -> Self {
        let pool = GrantPool::new(number, size_classes, bytes_max);
        let state = GrantState {
            pool,
            mapping: BTreeSet::new(),
            reclaimed: ReclaimCounts::default(),
            offer_forwarded: false,
            refused: None,
        };
        Self { number, domains, state: Mutex::new(state) }
    }

    /// Returns the first frame about the window: the side that receives it, and the invitation.
    pub(crate) fn invitation(&self) -> (usize, OutgoingFrame) {
        (GRANTING_SIDE, self.invite(MAPPING_SIDE, &[]))
    }

    fn invite(&self, with: usize, offer: &[u8]) -> OutgoingFrame {
        let invite = PairInvite { window: self.number, domid: self.domains[with], offer };
        (ProxyFrameKind::PairInvite, invite.emit())
    }

    fn state(&self) -> MutexGuard<'_, GrantState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PairBacking for PairGrantBacking {
    fn alloc(&self, bytes: u64) -> Option<(u64, u32)> {
        self.state().pool.alloc(bytes).map(|offset| (offset, GENERATION))
    }

    fn clear(&self, _at: u64, _bytes: u64) -> Result<(), Refusal> {
        Ok(()) // The extent was never used before.
    }

    fn map(&self, _at: u64, _size: RegionSize) -> Result<SharedMapping, Refusal> {
        Err(Refusal::new(Reason::NoSharedMemory, "the host does not see what one guest grants to another"))
    }

    fn read_at(&self, _at: u64, _into: &mut [u8]) -> bool {
        false
    }

    fn free(&self, at: u64, _bytes: u64) {
        self.state().pool.free(at);
    }

    fn is_live(&self, at: u64, generation: u32) -> bool {
        generation == GENERATION && self.state().pool.get(at).is_some()
    }

    fn revoked(&self, side: usize, reported: usize) -> Option<RevokedExtent> {
        let state = self.state();
        state.pool.revoked(state.reclaimed.beyond(side) + reported)
    }

    fn reclaimed(&self, side: usize) {
        let mut state = self.state();
        if state.reclaimed.count(side) {
            state.pool.reclaim_first();
        }
    }

    fn bytes(&self) -> u64 {
        self.state().pool.bytes_max()
    }

    fn event_channel(&self, ready_map: u64) -> Option<ResourceRef> {
        Some(ResourceRef::EventChannel { window: self.number, offset: ready_map })
    }

    /// Returns the event channel of the window itself.
    fn doorbell(&self, _of: &GuestWindow, _from: &GuestWindow, vector: u16) -> Result<ResourceRef, Refusal> {
        Ok(ResourceRef::Doorbell { peer: GUEST + self.number.0, vector })
    }

    fn progress(&self) -> PairProgress {
        let state = self.state();
        match &state.refused {
            Some(why) => PairProgress::Refused(why.clone()),
            None if state.pool.has_minimum() => PairProgress::Ready,
            None if state.pool.has_no_requests() => {
                PairProgress::Refused("a guest has no memory or no grants left, or the window is too small".to_owned())
            }
            None => PairProgress::Pending,
        }
    }

    fn grant_request(&self, side: usize) -> Option<GrantRequest> {
        self.state().pool.grant_request().filter(|_| side == GRANTING_SIDE)
    }

    fn mark_requested(&self, side: usize) {
        if side == GRANTING_SIDE {
            self.state().pool.mark_requested();
        }
    }

    fn handle_grant_reply(&self, side: usize, offset: u64, grant: &[u8]) -> Result<Option<OutgoingFrame>, String> {
        let mut state = self.state();
        let bytes =
            state.pool.requested_bytes(offset).filter(|_| side == GRANTING_SIDE && !state.mapping.contains(&offset));
        let bytes = bytes.ok_or("it makes an extent of a pair window that was not requested")?;
        if grant.is_empty() {
            state.pool.complete_request(offset, None);
            return Ok(None);
        }
        state.mapping.insert(offset);
        Ok(Some((ProxyFrameKind::MapRequest, MapRequest { window: self.number, offset, bytes, grant }.emit())))
    }

    fn handle_map_reply(&self, side: usize, offset: u64, mapped: bool) -> Result<(), String> {
        let mut state = self.state();
        if side != MAPPING_SIDE || !state.mapping.remove(&offset) {
            return Err("it answers a map request that is not pending".to_owned());
        }
        state.pool.complete_request(offset, mapped.then_some(()));
        Ok(())
    }

    fn handle_pair_offer(&self, side: usize, offer: &[u8]) -> Result<Option<OutgoingFrame>, String> {
        let mut state = self.state();
        match (side, offer) {
            (GRANTING_SIDE, []) => state.refused = Some("a guest cannot grant anything to the other".to_owned()),
            (_, []) => state.refused = Some("a guest cannot map what the other grants".to_owned()),
            (GRANTING_SIDE, offer) if !state.offer_forwarded => {
                state.offer_forwarded = true;
                return Ok(Some(self.invite(GRANTING_SIDE, offer)));
            }
            _ => return Err("it offers a window that it was not asked for".to_owned()),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use isthmus_layout::proxy::grants::FIRST_GRANT_BATCH;

    use super::*;

    const NUMBER: WindowId = WindowId(5);
    const PAGE: u64 = 4096;

    fn backing(bytes_max: u64) -> PairGrantBacking {
        let size_classes =
            [SizeClass { bytes: PAGE, target: 2, minimum: 1 }, SizeClass { bytes: 8 * PAGE, target: 1, minimum: 1 }];
        PairGrantBacking::new(NUMBER, [7, 8], &size_classes, bytes_max)
    }

    fn next(backing: &PairGrantBacking) -> Option<GrantRequest> {
        assert_eq!(backing.grant_request(MAPPING_SIDE), None);
        backing.mark_requested(MAPPING_SIDE);
        let request = backing.grant_request(GRANTING_SIDE);
        backing.mark_requested(GRANTING_SIDE);
        request
    }

    #[test]
    fn forwards_offers_and_grants_to_the_mapping_guest() {
        let backing = backing(1 << 20);
        let (side, (kind, content)) = backing.invitation();
        assert_eq!((side, kind), (GRANTING_SIDE, ProxyFrameKind::PairInvite));
        assert_eq!(PairInvite::parse(&content), Ok(PairInvite { window: NUMBER, domid: 8, offer: b"" }));
        let (kind, content) = backing.handle_pair_offer(GRANTING_SIDE, b"N").unwrap().unwrap();
        assert_eq!(kind, ProxyFrameKind::PairInvite);
        assert_eq!(PairInvite::parse(&content), Ok(PairInvite { window: NUMBER, domid: 7, offer: b"N" }));
        let all: Vec<GrantRequest> = std::iter::from_fn(|| next(&backing)).collect();
        assert_eq!(all.iter().map(|request| request.bytes / PAGE).collect::<Vec<_>>(), [1, 8, 1]);
        for GrantRequest { window, offset, bytes } in all {
            assert_eq!(
                backing.progress(),
                if offset > FIRST_GRANT_BATCH + PAGE { PairProgress::Ready } else { PairProgress::Pending }
            );
            let (kind, content) = backing.handle_grant_reply(GRANTING_SIDE, offset, b"G").unwrap().unwrap();
            assert_eq!(kind, ProxyFrameKind::MapRequest);
            assert_eq!(MapRequest::parse(&content), Ok(MapRequest { window, offset, bytes, grant: b"G" }));
            backing.handle_map_reply(MAPPING_SIDE, offset, true).unwrap();
        }
        let (offset, generation) = backing.alloc(PAGE).unwrap();
        assert!(
            backing.is_live(offset, generation)
                && !backing.read_at(offset, &mut [0])
                && backing.map(offset, RegionSize(PAGE)).is_err()
        );
    }

    #[test]
    fn frees_an_extent_when_both_guests_have_reclaimed_it() {
        let backing = backing(10 * PAGE);
        backing.handle_pair_offer(GRANTING_SIDE, b"N").unwrap();
        for GrantRequest { offset, .. } in std::iter::from_fn(|| next(&backing)).collect::<Vec<_>>() {
            backing.handle_grant_reply(GRANTING_SIDE, offset, b"G").unwrap();
            backing.handle_map_reply(MAPPING_SIDE, offset, true).unwrap();
        }
        let (offset, _) = backing.alloc(8 * PAGE).unwrap();
        assert_eq!(next(&backing), None, "there is no room");
        backing.free(offset, 8 * PAGE);
        for side in [MAPPING_SIDE, GRANTING_SIDE] {
            assert_eq!(next(&backing), None, "one of them does not know yet");
            assert_eq!(backing.revoked(side, 0).map(|gone| (gone.window, gone.offset)), Some((NUMBER, offset)));
            backing.reclaimed(side);
            assert_eq!(backing.revoked(side, 0), None);
        }
        assert_eq!(next(&backing).map(|request| request.bytes), Some(8 * PAGE));
    }

    #[test]
    fn rejects_replies_that_were_not_requested() {
        let backing = backing(1 << 20);
        let first = next(&backing).unwrap();
        assert!(backing.handle_grant_reply(GRANTING_SIDE, first.offset + PAGE, b"G").is_err(), "it was not asked for");
        assert!(backing.handle_grant_reply(MAPPING_SIDE, first.offset, b"G").is_err(), "of the other one it was");
        assert!(backing.handle_map_reply(MAPPING_SIDE, first.offset, true).is_err(), "it was not made");
        backing.handle_grant_reply(GRANTING_SIDE, first.offset, b"G").unwrap();
        assert!(backing.handle_grant_reply(GRANTING_SIDE, first.offset, b"G").is_err(), "it was made already");
        assert!(backing.handle_map_reply(GRANTING_SIDE, first.offset, true).is_err(), "the other one maps it");
        backing.handle_map_reply(MAPPING_SIDE, first.offset, true).unwrap();
        assert!(backing.handle_map_reply(MAPPING_SIDE, first.offset, true).is_err(), "that was said already");
        backing.handle_pair_offer(GRANTING_SIDE, b"N").unwrap();
        assert!(
            backing.handle_pair_offer(GRANTING_SIDE, b"N").is_err()
                && backing.handle_pair_offer(MAPPING_SIDE, b"N").is_err()
        );
    }

    #[test]
    fn refuses_the_window_when_a_guest_cannot_grant_or_map() {
        for side in [GRANTING_SIDE, MAPPING_SIDE] {
            let backing = backing(1 << 20);
            backing.handle_pair_offer(side, b"").unwrap();
            assert!(matches!(backing.progress(), PairProgress::Refused(_)));
        }
        let backing = backing(1 << 20);
        let first = next(&backing).unwrap();
        backing.handle_grant_reply(GRANTING_SIDE, first.offset, b"").unwrap();
        assert!(matches!(backing.progress(), PairProgress::Refused(_)));
        let other = self::backing(1 << 20);
        let first = next(&other).unwrap();
        other.handle_grant_reply(GRANTING_SIDE, first.offset, b"rubbish").unwrap();
        other.handle_map_reply(MAPPING_SIDE, first.offset, false).unwrap();
        assert!(matches!(other.progress(), PairProgress::Refused(_)));
    }
}
