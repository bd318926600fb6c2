//! Windows that a guest grants on request: each extent is a grant batch of pages (docs/spec/guest-proxy.md).
//!
//! ```text
//!   own window    GrantRequest ──► guest ── GrantReply: its grant ──► mapped by the host ──► free
//!
//!   pair window   GrantRequest ──► guest 0 ── GrantReply: its grant ──► MapRequest ──► guest 1 ── MapReply ──► free
//! ```
//!
//! Only the daemon knows which batches exist and which are allocated ([`GrantPool`]). It accepts a reply only for a batch that it has
//! requested from that guest. The host maps a batch of a guest's own window when the guest replies, completely or not at all. It does not
//! see the memory of a pair window: it passes the grants on unchanged, and the other guest checks them when it maps them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_layout::RegionSize;
use isthmus_layout::proxy::grants::{FIRST_GRANT_BATCH, GrantRequest};
use isthmus_layout::proxy::pair_window::{MapRequest, PairInvite};
use isthmus_layout::proxy::{PROXY_RING_OFFSET, ProxyFrameKind, RevokedExtent, WindowId};
use isthmus_shm::{Payload as _, SharedMapping};

use crate::grant_pool::{GENERATION, GrantPool, SizeClass};
use crate::{OutgoingFrame, Progress, UnexpectedReply, WindowError};

/// Maps pages that a guest has granted. The error says why the grant cannot be mapped.
pub type MapGrant = Box<dyn Fn(&[u8], RegionSize) -> Result<SharedMapping, String> + Send + Sync>;

/// The viewer that grants.
pub(crate) const GRANTING: usize = 0;

/// The viewer of a pair window that maps.
const MAPPING: usize = 1;

/// The grant batches of a window.
#[derive(Debug)]
pub struct GrantBacking {
    number: WindowId,
    mapped_by: MappedBy,
    state: Mutex<GrantState>,
}

/// The side that maps what the guest grants.
enum MappedBy {
    /// The host, in a window in which it has already mapped the head page and the proxy ring.
    Host { head: SharedMapping, proxy_ring: SharedMapping, map: MapGrant },
    /// Another guest. The guests address each other by these domain numbers.
    Guest { domains: [u16; 2] },
}

impl fmt::Debug for MappedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host { .. } => "Host",
            Self::Guest { .. } => "Guest",
        })
    }
}

#[derive(Debug)]
struct GrantState {
    /// The batches, with their mappings if the host maps them.
    pool: GrantPool<Option<SharedMapping>>,
    /// Offsets of batches that are granted, and for which the other guest has not confirmed the mapping.
    mapping: BTreeSet<u64>,
    offer_forwarded: bool,
    refused: Option<&'static str>,
}

impl GrantBacking {
    /// Creates the backing of a guest's own window. All batches together have at most `bytes_max` bytes.
    pub fn own(
        head: SharedMapping,
        proxy_ring: SharedMapping,
        size_classes: &[SizeClass],
        bytes_max: u64,
        map: MapGrant,
    ) -> Self {
        Self::new(WindowId::OWN, MappedBy::Host { head, proxy_ring, map }, size_classes, bytes_max)
    }

    /// Creates the backing of a pair window of guests with these domain numbers. All batches together have at most `bytes_max` bytes.
    pub fn pair(number: WindowId, domains: [u16; 2], size_classes: &[SizeClass], bytes_max: u64) -> Self {
        Self::new(number, MappedBy::Guest { domains }, size_classes, bytes_max)
    }

    fn new(number: WindowId, mapped_by: MappedBy, size_classes: &[SizeClass], bytes_max: u64) -> Self {
        let pool = GrantPool::new(number, size_classes, bytes_max);
        let state = GrantState { pool, mapping: BTreeSet::new(), offer_forwarded: false, refused: None };
        Self { number, mapped_by, state: Mutex::new(state) }
    }

    /// Returns the first frame about a pair window, for the guest that grants.
    pub(crate) fn invitation(&self) -> Option<OutgoingFrame> {
        self.invite(MAPPING, &[])
    }

    /// Returns the frame that invites a guest to a pair window with the guest `with`.
    fn invite(&self, with: usize, offer: &[u8]) -> Option<OutgoingFrame> {
        let MappedBy::Guest { domains } = self.mapped_by else { return None };
        let invite = PairInvite { window: self.number, domid: domains[with], offer };
        Some((ProxyFrameKind::PairInvite, invite.emit()))
    }

    fn state(&self) -> MutexGuard<'_, GrantState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn map(&self, at: u64, size: RegionSize) -> Result<SharedMapping, WindowError> {
        let found = match (&self.mapped_by, at) {
            (MappedBy::Guest { .. }, _) => return Err(WindowError::NotVisible),
            (MappedBy::Host { head, .. }, 0) => Some(head.clone()),
            (MappedBy::Host { proxy_ring, .. }, PROXY_RING_OFFSET) => Some(proxy_ring.clone()),
            (MappedBy::Host { .. }, _) => self.state().pool.get(at).cloned().flatten(),
        };
        found.filter(|batch| size.0 <= batch.size().0).ok_or(WindowError::Outside)
    }

    pub(crate) fn read_at(&self, at: u64, into: &mut [u8]) -> bool {
        let state = self.state();
        let Some((start, Some(batch))) = state.pool.at_or_before(at) else { return false };
        let is_inside = at - start + into.len() as u64 <= batch.size().0;
        if is_inside {
            batch.copy_out(at - start, into);
        }
        is_inside
    }

    pub(crate) fn alloc(&self, bytes: u64) -> Option<(u64, u32)> {
        self.state().pool.alloc(bytes).map(|offset| (offset, GENERATION))
    }

    pub(crate) fn free(&self, at: u64) {
        self.state().pool.free(at);
    }

    pub(crate) fn is_live(&self, at: u64, generation: u32) -> bool {
        generation == GENERATION && self.state().pool.get(at).is_some()
    }

    pub(crate) fn revoked(&self, place: usize) -> Option<RevokedExtent> {
        self.state().pool.revoked(place)
    }

    pub(crate) fn reclaim_first(&self) {
        self.state().pool.reclaim_first();
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.state().pool.bytes_max()
    }

    pub(crate) fn used(&self) -> u64 {
        FIRST_GRANT_BATCH + self.state().pool.bytes()
    }

    /// Reports whether extents can be allocated. A guest's own window is used with what the guest could grant.
    pub(crate) fn progress(&self) -> Progress {
        let state = self.state();
        match state.refused {
            Some(why) => Progress::Refused(why.to_owned()),
            None if state.pool.has_minimum() => Progress::Ready,
            None if state.pool.has_no_requests() => {
                Progress::Refused("a guest has no memory or no grants left, or the window is too small".to_owned())
            }
            None => Progress::Pending,
        }
    }

    /// The next grant request to a viewer.
    pub(crate) fn request(&self, viewer: usize) -> Option<GrantRequest> {
        self.state().pool.grant_request().filter(|_| viewer == GRANTING)
    }

    /// Notes that the request was sent.
    pub(crate) fn mark_requested(&self, viewer: usize) {
        if viewer == GRANTING {
            self.state().pool.mark_requested();
        }
    }

    /// Handles a viewer's reply to a grant request; an empty grant means that the guest has no memory left. Returns the frame for the other
    /// guest.
    pub(crate) fn handle_grant_reply(
        &self,
        viewer: usize,
        offset: u64,
        grant: &[u8],
    ) -> Result<Option<OutgoingFrame>, UnexpectedReply> {
        let mut state = self.state();
        let is_requested = viewer == GRANTING && !state.mapping.contains(&offset);
        let bytes = state.pool.requested_bytes(offset).filter(|_| is_requested).ok_or(UnexpectedReply::Grant)?;
        match &self.mapped_by {
            MappedBy::Guest { .. } if !grant.is_empty() => {
                state.mapping.insert(offset);
                let request = MapRequest { window: self.number, offset, bytes, grant };
                return Ok(Some((ProxyFrameKind::MapRequest, request.emit())));
            }
            MappedBy::Guest { .. } => state.pool.complete_request(offset, None),
            MappedBy::Host { map, .. } => {
                drop(state);
                let mapped = match grant {
                    [] => Err("the guest has no memory or no grants left".to_owned()),
                    _ => map(grant, RegionSize(bytes)),
                };
                let mapped = mapped.inspect_err(|why| tracing::warn!(bytes, "a guest's window does not grow: {why}"));
                self.state().pool.complete_request(offset, mapped.ok().map(Some));
            }
        }
        Ok(None)
    }

    /// Handles a viewer's reply to a map request.
    pub(crate) fn handle_map_reply(&self, viewer: usize, offset: u64, mapped: bool) -> Result<(), UnexpectedReply> {
        let mut state = self.state();
        if viewer != MAPPING || !state.mapping.remove(&offset) {
            return Err(UnexpectedReply::Map);
        }
        state.pool.complete_request(offset, mapped.then_some(None));
        Ok(())
    }

    /// Handles a viewer's offer of a pair window; an empty one means that the guest cannot have it. Returns the frame for the other guest.
    pub(crate) fn handle_pair_offer(
        &self,
        viewer: usize,
        offer: &[u8],
    ) -> Result<Option<OutgoingFrame>, UnexpectedReply> {
        let mut state = self.state();
        match (viewer, offer) {
            (GRANTING, []) => state.refused = Some("a guest cannot grant anything to the other"),
            (_, []) => state.refused = Some("a guest cannot map what the other grants"),
            (GRANTING, offer) if !state.offer_forwarded => {
                state.offer_forwarded = true;
                return Ok(self.invite(GRANTING, offer));
            }
            _ => return Err(UnexpectedReply::Offer),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod own_window_tests {
    use super::*;
    use isthmus_shm::Mapping;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    fn window(bytes: u64) -> SharedMapping {
        SharedMapping::new(Mapping::private(RegionSize(bytes)))
    }

    /// Returns a backing that accepts the grant `g` and no other.
    fn backing(bytes_max: u64) -> GrantBacking {
        let size_classes = [
            SizeClass { bytes: PAGE, target: 4, minimum: 2 },
            SizeClass { bytes: 8 * PAGE, target: 1, minimum: 1 },
            SizeClass { bytes: 8 * PAGE, target: 1, minimum: 0 },
        ];
        let map = |grant: &[u8], size: RegionSize| match grant {
            b"g" => Ok(window(size.0)),
            _ => Err("not granted".to_owned()),
        };
        GrantBacking::own(window(PAGE), window(PAGE), &size_classes, bytes_max, Box::new(map))
    }

    fn grant(backing: &GrantBacking, requests: &[GrantRequest]) {
        for request in requests {
            assert_eq!(backing.handle_grant_reply(GRANTING, request.offset, b"g"), Ok(None));
        }
    }

    fn next(backing: &GrantBacking) -> Option<GrantRequest> {
        let request = backing.request(GRANTING);
        backing.mark_requested(GRANTING);
        request
    }

    #[test]
    fn requests_the_minimum_first_and_then_fills_the_pool() {
        let backing = backing(1 << 30);
        let sizes: Vec<u64> = std::iter::from_fn(|| next(&backing)).map(|request| request.bytes / PAGE).collect();
        assert_eq!(sizes, [1, 1, 8, 1, 1, 8]);
        assert_eq!(backing.used(), FIRST_GRANT_BATCH + 20 * PAGE);
    }

    #[test]
    fn uses_each_batch_for_one_extent() {
        let backing = backing(1 << 30);
        assert!(backing.alloc(PAGE).is_none() && backing.progress() == Progress::Pending);
        let all: Vec<GrantRequest> = std::iter::from_fn(|| next(&backing)).collect();
        grant(&backing, &all);
        assert!(backing.progress() != Progress::Pending);
        let (offset, generation) = backing.alloc(PAGE).unwrap();
        assert_eq!(backing.map(offset, RegionSize(PAGE)).unwrap().size(), RegionSize(PAGE));
        assert!(backing.map(offset, RegionSize(PAGE + 1)).is_err() && backing.map(offset + 8, RegionSize(8)).is_err());
        assert!(
            backing.is_live(offset, generation)
                && backing.read_at(offset + 8, &mut [0; 8])
                && !backing.read_at(offset + PAGE - 4, &mut [0; 8])
        );
        assert_eq!(next(&backing).map(|request| request.bytes), Some(PAGE), "one takes its place");
        backing.free(offset);
        assert!(!backing.is_live(offset, generation) && backing.map(offset, RegionSize(PAGE)).is_err());
        assert_eq!(backing.revoked(0), Some(RevokedExtent { window: WindowId::OWN, offset, generation }));
        backing.reclaim_first();
        assert_eq!(backing.revoked(0), None);
        let offsets = std::iter::from_fn(|| backing.alloc(PAGE)).map(|(offset, _)| offset);
        assert!(offsets.collect::<Vec<_>>().iter().all(|other| *other != offset), "the same offset again");
    }

    #[test]
    fn takes_a_larger_batch_when_the_size_has_no_class() {
        let backing = backing(1 << 30);
        let all: Vec<GrantRequest> = std::iter::from_fn(|| next(&backing)).collect();
        grant(&backing, &all);
        let before = backing.used();
        let (offset, _) = backing.alloc(4 * PAGE).unwrap();
        assert_eq!(backing.map(offset, RegionSize(4 * PAGE)).unwrap().size(), RegionSize(8 * PAGE));
        assert_eq!(backing.used(), before + 8 * PAGE, "one takes its place");
        backing.free(offset);
        backing.reclaim_first();
        assert_eq!(backing.used(), before);
        assert!(backing.alloc(9 * PAGE).is_none());
    }

    #[test]
    fn requests_no_more_than_bytes_max() {
        let backing = backing(10 * PAGE);
        let all: Vec<GrantRequest> = std::iter::from_fn(|| next(&backing)).collect();
        assert_eq!(all.iter().map(|request| request.bytes).sum::<u64>(), 10 * PAGE);
        grant(&backing, &all);
        let (offset, _) = backing.alloc(8 * PAGE).unwrap();
        assert_eq!(next(&backing), None);
        assert!(backing.progress() != Progress::Pending, "no further batch comes, and the waiters are notified");
        backing.free(offset);
        assert_eq!(next(&backing), None, "the guest does not know yet");
        backing.reclaim_first();
        assert_eq!(next(&backing).map(|request| request.bytes), Some(8 * PAGE));
    }

    #[test]
    fn does_not_retry_a_failed_grant_until_an_allocation_needs_it() {
        let backing = backing(1 << 30);
        let first = next(&backing).unwrap();
        backing.handle_grant_reply(GRANTING, first.offset, b"").unwrap();
        assert_eq!(next(&backing), None);
        assert_eq!(backing.used(), FIRST_GRANT_BATCH);
        assert!(backing.progress() != Progress::Pending);
        assert!(backing.alloc(PAGE).is_none());
        let second = next(&backing).unwrap();
        backing.handle_grant_reply(GRANTING, second.offset, b"nonsense").unwrap();
        assert_eq!(next(&backing), None);
    }

    proptest! {
        #[test]
        fn pool_counts_stay_consistent_for_any_replies(
            steps in prop::collection::vec((0..5_u8, any::<prop::sample::Index>(), any::<bool>()), 1..200),
        ) {
            let bytes_max = 30 * PAGE;
            let backing = backing(bytes_max);
            let (mut requested, mut live): (Vec<GrantRequest>, Vec<(u64, u64)>) = (Vec::new(), Vec::new());
            for (step, which, flag) in steps {
                match step {
                    0 => requested.extend(next(&backing)),
                    1 if !requested.is_empty() => {
                        let request = requested.swap_remove(which.index(requested.len()));
                        backing.handle_grant_reply(GRANTING, request.offset, if flag { b"g" } else { b"x" }).unwrap();
                        prop_assert!(backing.handle_grant_reply(GRANTING, request.offset, b"g").is_err());
                    }
                    2 => {
                        let bytes = if flag { PAGE } else { 8 * PAGE };
                        live.extend(backing.alloc(bytes).map(|(offset, _)| (offset, bytes)));
                    }
                    3 if !live.is_empty() => {
                        let (offset, _) = live.swap_remove(which.index(live.len()));
                        backing.free(offset);
                    }
                    _ => backing.reclaim_first(),
                }
                prop_assert!(backing.used() <= FIRST_GRANT_BATCH + bytes_max);
                let pool = &backing.state().pool;
                let live: u64 = live.iter().map(|(_, bytes)| bytes).sum();
                let all = pool.free_bytes() + pool.revoked_bytes() + pool.outstanding_bytes() + live;
                prop_assert_eq!(pool.bytes(), all);
            }
        }
    }
}

#[cfg(test)]
mod pair_window_tests {
    use isthmus_layout::proxy::grants::FIRST_GRANT_BATCH;

    use super::*;

    const NUMBER: WindowId = WindowId(5);
    const PAGE: u64 = 4096;

    fn backing(bytes_max: u64) -> GrantBacking {
        let size_classes =
            [SizeClass { bytes: PAGE, target: 2, minimum: 1 }, SizeClass { bytes: 8 * PAGE, target: 1, minimum: 1 }];
        GrantBacking::pair(NUMBER, [7, 8], &size_classes, bytes_max)
    }

    fn next(backing: &GrantBacking) -> Option<GrantRequest> {
        assert_eq!(backing.request(MAPPING), None);
        backing.mark_requested(MAPPING);
        let request = backing.request(GRANTING);
        backing.mark_requested(GRANTING);
        request
    }

    #[test]
    fn forwards_offers_and_grants_to_the_mapping_guest() {
        let backing = backing(1 << 20);
        let (kind, content) = backing.invitation().unwrap();
        assert_eq!(kind, ProxyFrameKind::PairInvite);
        assert_eq!(PairInvite::parse(&content), Ok(PairInvite { window: NUMBER, domid: 8, offer: b"" }));
        let (kind, content) = backing.handle_pair_offer(GRANTING, b"N").unwrap().unwrap();
        assert_eq!(kind, ProxyFrameKind::PairInvite);
        assert_eq!(PairInvite::parse(&content), Ok(PairInvite { window: NUMBER, domid: 7, offer: b"N" }));
        let all: Vec<GrantRequest> = std::iter::from_fn(|| next(&backing)).collect();
        assert_eq!(all.iter().map(|request| request.bytes / PAGE).collect::<Vec<_>>(), [1, 8, 1]);
        for GrantRequest { window, offset, bytes } in all {
            assert_eq!(
                backing.progress(),
                if offset > FIRST_GRANT_BATCH + PAGE { Progress::Ready } else { Progress::Pending }
            );
            let (kind, content) = backing.handle_grant_reply(GRANTING, offset, b"G").unwrap().unwrap();
            assert_eq!(kind, ProxyFrameKind::MapRequest);
            assert_eq!(MapRequest::parse(&content), Ok(MapRequest { window, offset, bytes, grant: b"G" }));
            backing.handle_map_reply(MAPPING, offset, true).unwrap();
        }
        let (offset, generation) = backing.alloc(PAGE).unwrap();
        assert!(
            backing.is_live(offset, generation)
                && !backing.read_at(offset, &mut [0])
                && backing.map(offset, RegionSize(PAGE)).is_err()
        );
    }

    #[test]
    fn rejects_replies_that_were_not_requested() {
        let backing = backing(1 << 20);
        let first = next(&backing).unwrap();
        assert!(backing.handle_grant_reply(GRANTING, first.offset + PAGE, b"G").is_err(), "it was not asked for");
        assert!(backing.handle_grant_reply(MAPPING, first.offset, b"G").is_err(), "of the other one it was");
        assert!(backing.handle_map_reply(MAPPING, first.offset, true).is_err(), "it was not made");
        backing.handle_grant_reply(GRANTING, first.offset, b"G").unwrap();
        assert!(backing.handle_grant_reply(GRANTING, first.offset, b"G").is_err(), "it was made already");
        assert!(backing.handle_map_reply(GRANTING, first.offset, true).is_err(), "the other one maps it");
        backing.handle_map_reply(MAPPING, first.offset, true).unwrap();
        assert!(backing.handle_map_reply(MAPPING, first.offset, true).is_err(), "that was said already");
        backing.handle_pair_offer(GRANTING, b"N").unwrap();
        assert!(
            backing.handle_pair_offer(GRANTING, b"N").is_err() && backing.handle_pair_offer(MAPPING, b"N").is_err()
        );
    }

    #[test]
    fn refuses_the_window_when_a_guest_cannot_grant_or_map() {
        for side in [GRANTING, MAPPING] {
            let backing = backing(1 << 20);
            backing.handle_pair_offer(side, b"").unwrap();
            assert!(matches!(backing.progress(), Progress::Refused(_)));
        }
        let backing = backing(1 << 20);
        let first = next(&backing).unwrap();
        backing.handle_grant_reply(GRANTING, first.offset, b"").unwrap();
        assert!(matches!(backing.progress(), Progress::Refused(_)));
        let other = self::backing(1 << 20);
        let first = next(&other).unwrap();
        other.handle_grant_reply(GRANTING, first.offset, b"rubbish").unwrap();
        other.handle_map_reply(MAPPING, first.offset, false).unwrap();
        assert!(matches!(other.progress(), Progress::Refused(_)));
    }
}
