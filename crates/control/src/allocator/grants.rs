//! A window that the guest grants on request: each extent is a grant batch of pages (docs/spec/guest-proxy.md).
//!
//! Only the daemon knows which batches exist ([`GrantPool`]). It accepts a grant only for a batch that it has requested. It maps the grant
//! when the guest replies, completely or not at all.

use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_layout::Refusal;
use isthmus_layout::RegionSize;
use isthmus_layout::proxy::grants::{FIRST_GRANT_BATCH, GrantRequest};
use isthmus_layout::proxy::{PROXY_RING_OFFSET, RevokedExtent, WindowId};
use isthmus_layout::reason::Reason;
use isthmus_shm::{Payload as _, SharedMapping};

use super::grant_pool::{GENERATION, GrantPool, SizeClass};
use super::{WindowBacking, WindowFull};

/// Maps pages that a guest has granted.
pub(crate) type Mapper = Box<dyn Fn(&[u8], RegionSize) -> Result<SharedMapping, String> + Send + Sync>;

/// The grant batches of a window.
pub(crate) struct GrantBacking {
    head: SharedMapping,
    proxy_ring: SharedMapping,
    map: Mapper,
    pool: Mutex<GrantPool<SharedMapping>>,
}

impl std::fmt::Debug for GrantBacking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrantBacking").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl GrantBacking {
    /// Creates the backing over a window in which the head page and the proxy ring are already mapped. All batches together have at most
    /// `bytes_max` bytes.
    pub(crate) fn new(
        head: SharedMapping,
        proxy_ring: SharedMapping,
        size_classes: &[SizeClass],
        bytes_max: u64,
        map: Mapper,
    ) -> Self {
        Self { head, proxy_ring, map, pool: Mutex::new(GrantPool::new(WindowId::OWN, size_classes, bytes_max)) }
    }

    fn pool(&self) -> MutexGuard<'_, GrantPool<SharedMapping>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WindowBacking for GrantBacking {
    fn map(&self, at: u64, size: RegionSize) -> Result<SharedMapping, Refusal> {
        let found = match at {
            0 => Some(self.head.clone()),
            PROXY_RING_OFFSET => Some(self.proxy_ring.clone()),
            _ => self.pool().get(at).cloned(),
        };
        let outside = || Refusal::new(Reason::OutOfMemory, "that part of the window is not there");
        found.filter(|window| size.0 <= window.size().0).ok_or_else(outside)
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> bool {
        let pool = self.pool();
        let Some((start, window)) = pool.at_or_before(at) else { return false };
        let is_inside = at - start + into.len() as u64 <= window.size().0;
        if is_inside {
            window.copy_out(at - start, into);
        }
        is_inside
    }

    fn alloc(&self, bytes: u64) -> Result<(u64, u32), WindowFull> {
        self.pool().alloc(bytes).map(|offset| (offset, GENERATION)).ok_or(WindowFull)
    }

    fn clear(&self, _at: u64, _bytes: u64) -> Result<(), Refusal> {
        Ok(()) // The extent was never used before.
    }

    fn free(&self, at: u64, _bytes: u64) {
        self.pool().free(at);
    }

    fn is_live(&self, at: u64, generation: u32) -> bool {
        generation == GENERATION && self.pool().get(at).is_some()
    }

    fn revoked(&self, reported: usize) -> Option<RevokedExtent> {
        self.pool().revoked(reported)
    }

    fn reclaim_first(&self) {
        self.pool().reclaim_first();
    }

    fn bytes(&self) -> u64 {
        self.pool().bytes_max()
    }

    fn supports_regions(&self) -> bool {
        false
    }

    fn used(&self) -> u64 {
        FIRST_GRANT_BATCH + self.pool().bytes()
    }

    fn grant_request(&self) -> Option<GrantRequest> {
        self.pool().grant_request()
    }

    fn mark_requested(&self) {
        self.pool().mark_requested();
    }

    fn handle_grant_reply(&self, offset: u64, grant: &[u8]) -> Result<(), String> {
        let bytes = self.pool().requested_bytes(offset).ok_or("it makes an extent that was not requested")?;
        let made = match grant {
            [] => Err("it has no memory or no grants left".to_owned()),
            _ => (self.map)(grant, RegionSize(bytes)),
        };
        let made = made.inspect_err(|why| tracing::warn!(bytes, "a guest's window does not grow: {why}"));
        self.pool().complete_request(offset, made.ok());
        Ok(())
    }

    fn is_ready(&self) -> bool {
        let pool = self.pool();
        pool.has_minimum() || pool.has_no_requests()
    }

    fn is_reusable(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
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
        GrantBacking::new(window(PAGE), window(PAGE), &size_classes, bytes_max, Box::new(map))
    }

    fn next(backing: &GrantBacking) -> Option<GrantRequest> {
        let request = backing.grant_request();
        backing.mark_requested();
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
        assert!(backing.alloc(PAGE).is_err() && !backing.is_ready());
        let all: Vec<GrantRequest> = std::iter::from_fn(|| next(&backing)).collect();
        all.iter().for_each(|request| backing.handle_grant_reply(request.offset, b"g").unwrap());
        assert!(backing.is_ready());
        let (offset, generation) = backing.alloc(PAGE).unwrap();
        assert_eq!(backing.map(offset, RegionSize(PAGE)).unwrap().size(), RegionSize(PAGE));
        assert!(backing.map(offset, RegionSize(PAGE + 1)).is_err() && backing.map(offset + 8, RegionSize(8)).is_err());
        assert!(
            backing.is_live(offset, generation)
                && backing.read_at(offset + 8, &mut [0; 8])
                && !backing.read_at(offset + PAGE - 4, &mut [0; 8])
        );
        assert_eq!(next(&backing).map(|request| request.bytes), Some(PAGE), "one takes its place");
        backing.free(offset, PAGE);
        assert!(!backing.is_live(offset, generation) && backing.map(offset, RegionSize(PAGE)).is_err());
        assert_eq!(backing.revoked(0), Some(RevokedExtent { window: WindowId::OWN, offset, generation }));
        backing.pool().reclaim_first();
        assert_eq!(backing.revoked(0), None);
        let offsets = std::iter::from_fn(|| backing.alloc(PAGE).ok()).map(|(offset, _)| offset);
        assert!(offsets.collect::<Vec<_>>().iter().all(|other| *other != offset), "the same offset again");
    }

    #[test]
    fn takes_a_larger_batch_when_the_size_has_no_class() {
        let backing = backing(1 << 30);
        let all: Vec<GrantRequest> = std::iter::from_fn(|| next(&backing)).collect();
        all.iter().for_each(|request| backing.handle_grant_reply(request.offset, b"g").unwrap());
        let before = backing.used();
        let (offset, _) = backing.alloc(4 * PAGE).unwrap();
        assert_eq!(backing.map(offset, RegionSize(4 * PAGE)).unwrap().size(), RegionSize(8 * PAGE));
        assert_eq!(backing.used(), before + 8 * PAGE, "one takes its place");
        backing.free(offset, 4 * PAGE);
        backing.pool().reclaim_first();
        assert_eq!(backing.used(), before);
        assert!(backing.alloc(9 * PAGE).is_err());
    }

    #[test]
    fn requests_no_more_than_bytes_max() {
        let backing = backing(10 * PAGE);
        let all: Vec<GrantRequest> = std::iter::from_fn(|| next(&backing)).collect();
        assert_eq!(all.iter().map(|request| request.bytes).sum::<u64>(), 10 * PAGE);
        all.iter().for_each(|request| backing.handle_grant_reply(request.offset, b"g").unwrap());
        let (offset, _) = backing.alloc(8 * PAGE).unwrap();
        assert_eq!(next(&backing), None);
        assert!(backing.is_ready(), "no further batch comes, and the waiters are notified");
        backing.free(offset, 8 * PAGE);
        assert_eq!(next(&backing), None, "the guest does not know yet");
        backing.pool().reclaim_first();
        assert_eq!(next(&backing).map(|request| request.bytes), Some(8 * PAGE));
    }

    #[test]
    fn does_not_retry_a_failed_grant_until_an_allocation_needs_it() {
        let backing = backing(1 << 30);
        let first = next(&backing).unwrap();
        backing.handle_grant_reply(first.offset, b"").unwrap();
        assert_eq!(next(&backing), None);
        assert_eq!(backing.used(), FIRST_GRANT_BATCH);
        assert!(backing.is_ready());
        assert!(backing.alloc(PAGE).is_err());
        let second = next(&backing).unwrap();
        backing.handle_grant_reply(second.offset, b"nonsense").unwrap();
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
                        backing.handle_grant_reply(request.offset, if flag { b"g" } else { b"x" }).unwrap();
                        prop_assert!(backing.handle_grant_reply(request.offset, b"g").is_err());
                    }
                    2 => {
                        let bytes = if flag { PAGE } else { 8 * PAGE };
                        live.extend(backing.alloc(bytes).ok().map(|(offset, _)| (offset, bytes)));
                    }
                    3 if !live.is_empty() => {
                        let (offset, bytes) = live.swap_remove(which.index(live.len()));
                        backing.free(offset, bytes);
                    }
                    _ => backing.pool().reclaim_first(),
                }
                prop_assert!(backing.used() <= FIRST_GRANT_BATCH + bytes_max);
                let pool = backing.pool();
                let live: u64 = live.iter().map(|(_, bytes)| bytes).sum();
                let all = pool.free_bytes() + pool.revoked_bytes() + pool.outstanding_bytes() + live;
                prop_assert_eq!(pool.bytes(), all);
            }
        }
    }
}
