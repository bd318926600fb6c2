//! The grant batches of a window, which a guest makes on request: requested, free, live or revoked.
//!
//! ```text
//!           request             complete          alloc          free             reclaimed
//!   nothing ────────► requested ─────────► free ────────► live ────────► revoked ───────────► nothing
//! ```
//!
//! An allocation cannot wait for the guest, so the pool holds some free batches of each size that is needed.

use std::collections::{BTreeMap, VecDeque};

use isthmus_layout::proxy::grants::{FIRST_GRANT_BATCH, GRANT_BATCH_BYTES_MAX, GrantRequest};
use isthmus_layout::proxy::{RevokedExtent, WindowId};

/// The number of batches of one size that the pool holds.
#[derive(Clone, Copy, Debug)]
pub struct SizeClass {
    /// The size of a batch, in whole pages.
    pub bytes: u64,
    /// The number of batches that the pool holds if there is room.
    pub target: usize,
    /// The number of batches that must exist before the window is used.
    pub minimum: usize,
}

/// Each offset is used once, so there is one generation.
pub(crate) const GENERATION: u32 = 1;

/// The grant batches of a window. The daemon keeps a `T` for each batch.
#[derive(Debug)]
pub(crate) struct GrantPool<T> {
    window: WindowId,
    size_classes: Vec<SizeClass>,
    bytes_max: u64,
    /// The offset of the next batch.
    next: u64,
    /// Requests that are to be sent to the guest.
    unsent: VecDeque<GrantRequest>,
    /// Requests that were sent and have no reply yet: bytes by offset.
    requested: BTreeMap<u64, u64>,
    /// Free batches, by their bytes.
    free: BTreeMap<u64, VecDeque<(u64, T)>>,
    /// Live batches by offset, with their bytes.
    live: BTreeMap<u64, (u64, T)>,
    /// Revoked batches with their bytes. The guest has to unmap them before there is room for others.
    revoked: VecDeque<(RevokedExtent, u64)>,
    /// The bytes of all these batches.
    bytes: u64,
    /// The guest could not grant the batch that was requested last.
    refused: bool,
}

impl<T> GrantPool<T> {
    /// Creates a pool. All batches together have at most `bytes_max` bytes.
    pub(crate) fn new(window: WindowId, size_classes: &[SizeClass], bytes_max: u64) -> Self {
        assert!(size_classes.iter().all(|size_class| size_class.bytes <= GRANT_BATCH_BYTES_MAX)); // Ours: limits of slabs.
        let mut all = BTreeMap::new();
        for size_class in size_classes {
            let known = all.entry(size_class.bytes).or_insert(SizeClass { target: 0, minimum: 0, ..*size_class });
            known.target += size_class.target;
            known.minimum += size_class.minimum;
        }
        let mut pool = Self {
            window,
            size_classes: all.into_values().collect(),
            bytes_max,
            next: FIRST_GRANT_BATCH,
            unsent: VecDeque::new(),
            requested: BTreeMap::new(),
            free: BTreeMap::new(),
            live: BTreeMap::new(),
            revoked: VecDeque::new(),
            bytes: 0,
            refused: false,
        };
        pool.request_missing();
        pool
    }

    /// Requests the missing batches, those of the minimum of each size first.
    fn request_missing(&mut self) {
        for count in [|size_class: &SizeClass| size_class.minimum, |size_class: &SizeClass| size_class.target] {
            for at in 0..self.size_classes.len() {
                let (bytes, count) = (self.size_classes[at].bytes, count(&self.size_classes[at]));
                while !self.refused
                    && self.available_or_requested(bytes) < count
                    && self.bytes + bytes <= self.bytes_max
                {
                    let offset = self.next;
                    self.next += bytes;
                    self.bytes += bytes;
                    self.unsent.push_back(GrantRequest { window: self.window, offset, bytes });
                }
            }
        }
    }

    /// Allocates a batch of exactly `bytes`. If no size class has that size, allocates a batch of the next larger one. Returns its offset.
    pub(crate) fn alloc(&mut self, bytes: u64) -> Option<u64> {
        self.refused = false; // The guest may have memory again by now.
        let most = if self.size_classes.iter().any(|size_class| size_class.bytes == bytes) { bytes } else { u64::MAX };
        let found = self.free.range_mut(bytes..=most);
        let found = found.filter_map(|(bytes, batches)| batches.pop_front().map(|batch| (*bytes, batch))).next();
        let offset = found.map(|(bytes, (offset, batch))| {
            self.live.insert(offset, (bytes, batch));
            offset
        });
        self.request_missing();
        offset
    }

    /// Returns the `T` of a live batch.
    pub(crate) fn get(&self, offset: u64) -> Option<&T> {
        self.live.get(&offset).map(|(_, batch)| batch)
    }

    /// Returns the last live batch that begins at or before `at`: its offset and its `T`.
    pub(crate) fn at_or_before(&self, at: u64) -> Option<(u64, &T)> {
        self.live.range(..=at).next_back().map(|(offset, (_, batch))| (*offset, batch))
    }

    /// Revokes an allocated batch.
    pub(crate) fn free(&mut self, offset: u64) {
        if let Some((bytes, _)) = self.live.remove(&offset) {
            self.revoked.push_back((RevokedExtent { window: self.window, offset, generation: GENERATION }, bytes));
        }
    }

    /// The number of bytes that all batches together may have.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Returns the next revoked batch, given that the guest already knows of the first `reported` ones.
    pub(crate) fn revoked(&self, reported: usize) -> Option<RevokedExtent> {
        self.revoked.get(reported).map(|(revoked, _)| *revoked)
    }

    /// Removes the first revoked batch, after all sides of the window have unmapped it.
    pub(crate) fn reclaim_first(&mut self) {
        if let Some((_, bytes)) = self.revoked.pop_front() {
            self.bytes -= bytes;
            self.request_missing();
        }
    }

    /// The next request to the guest.
    pub(crate) fn grant_request(&self) -> Option<GrantRequest> {
        self.unsent.front().copied()
    }

    /// Notes that the request was sent.
    pub(crate) fn mark_requested(&mut self) {
        if let Some(GrantRequest { offset, bytes, .. }) = self.unsent.pop_front() {
            self.requested.insert(offset, bytes);
        }
    }

    /// The size of a batch that was requested from the guest and is not complete yet.
    pub(crate) fn requested_bytes(&self, offset: u64) -> Option<u64> {
        self.requested.get(&offset).copied()
    }

    /// Completes a request. Without a batch, no other request is made before an allocation needs one.
    pub(crate) fn complete_request(&mut self, offset: u64, batch: Option<T>) {
        let Some(bytes) = self.requested.remove(&offset) else { return };
        match batch {
            Some(batch) => self.free.entry(bytes).or_default().push_back((offset, batch)),
            None => {
                self.refused = true;
                let given_up: u64 = self.unsent.drain(..).map(|request| request.bytes).sum();
                self.bytes -= bytes + given_up;
            }
        }
    }

    fn available(&self, bytes: u64) -> usize {
        self.free.get(&bytes).map_or(0, VecDeque::len)
    }

    /// The number of free batches of a size, and of those that are requested or will be.
    fn available_or_requested(&self, bytes: u64) -> usize {
        let requested = self.requested.values().filter(|requested| **requested == bytes).count();
        self.available(bytes) + requested + self.unsent.iter().filter(|request| request.bytes == bytes).count()
    }

    /// True if every size class has at least its minimum of free batches.
    pub(crate) fn has_minimum(&self) -> bool {
        self.size_classes.iter().all(|size_class| self.available(size_class.bytes) >= size_class.minimum)
    }

    /// True if no request is pending.
    pub(crate) fn has_no_requests(&self) -> bool {
        self.requested.is_empty() && self.unsent.is_empty()
    }

    /// The bytes of all batches.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free.iter().map(|(bytes, batches)| bytes * batches.len() as u64).sum()
    }

    #[cfg(test)]
    pub(crate) fn outstanding_bytes(&self) -> u64 {
        self.requested.values().sum::<u64>() + self.unsent.iter().map(|request| request.bytes).sum::<u64>()
    }

    #[cfg(test)]
    pub(crate) fn revoked_bytes(&self) -> u64 {
        self.revoked.iter().map(|(_, bytes)| bytes).sum()
    }
}
