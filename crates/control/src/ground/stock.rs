//! Lots of pages that a guest makes when we want them: which are asked for, there, in use.
//!
//! ```text
//!            wanted, asked          have                take             let_go           away
//!   nothing ────────────────► asked ──────► in stock ───────────► a piece ──────► withdrawn ────► nothing
//! ```
//!
//! Whoever needs a piece cannot wait for it, so some of each size that is ever needed are in stock.

use std::collections::{BTreeMap, VecDeque};

use isthmus_layout::border::lots::{FIRST_LOT, LOT_BYTES_MAX, Wanted};
use isthmus_layout::border::{WindowNumber, Withdrawn};

/// How many of one size are in stock, if there is room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sort {
    /// In whole pages.
    pub(crate) bytes: u64,
    /// How many.
    pub(crate) stock: usize,
    /// How many there are before anybody uses the window.
    pub(crate) least: usize,
}

/// Each place is used once, so there is one use of it.
pub(super) const AGE: u32 = 1;

/// The lots of a window; of each we have a `T`.
#[derive(Debug)]
pub(super) struct Stock<T> {
    window: WindowNumber,
    sorts: Vec<Sort>,
    bytes_max: u64,
    /// The place of the next one.
    next: u64,
    /// To be said to the guest.
    wanted: VecDeque<Wanted>,
    /// Said, and not answered.
    asked: BTreeMap<u64, u64>,
    /// By their bytes.
    free: BTreeMap<u64, VecDeque<(u64, T)>>,
    /// With their bytes.
    held: BTreeMap<u64, (u64, T)>,
    /// Those that the guest has to take away before there is room for others, with their bytes.
    withdrawn: VecDeque<(Withdrawn, u64)>,
    /// Of all these.
    bytes: u64,
    /// The guest could not make the last one that it was asked for.
    refused: bool,
}

impl<T> Stock<T> {
    /// All lots together have `bytes_max` bytes at most.
    pub(super) fn new(window: WindowNumber, sorts: &[Sort], bytes_max: u64) -> Self {
        assert!(sorts.iter().all(|sort| sort.bytes <= LOT_BYTES_MAX)); // Ours: limits of slabs.
        let mut all = BTreeMap::new();
        for sort in sorts {
            let known = all.entry(sort.bytes).or_insert(Sort { stock: 0, least: 0, ..*sort });
            known.stock += sort.stock;
            known.least += sort.least;
        }
        let mut stock = Self {
            window,
            sorts: all.into_values().collect(),
            bytes_max,
            next: FIRST_LOT,
            wanted: VecDeque::new(),
            asked: BTreeMap::new(),
            free: BTreeMap::new(),
            held: BTreeMap::new(),
            withdrawn: VecDeque::new(),
            bytes: 0,
            refused: false,
        };
        stock.plan();
        stock
    }

    /// Wants what is missing, what is needed before anything else first.
    fn plan(&mut self) {
        for count in [|sort: &Sort| sort.least, |sort: &Sort| sort.stock] {
            for at in 0..self.sorts.len() {
                let (bytes, count) = (self.sorts[at].bytes, count(&self.sorts[at]));
                while !self.refused && self.coming(bytes) < count && self.bytes + bytes <= self.bytes_max {
                    let place = self.next;
                    self.next += bytes;
                    self.bytes += bytes;
                    self.wanted.push_back(Wanted { window: self.window, place, bytes });
                }
            }
        }
    }

    /// A piece of just so many bytes, or, of a size that is not in stock, of the next larger one: its place.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        self.refused = false; // Perhaps it can by now.
        let most = if self.sorts.iter().any(|sort| sort.bytes == bytes) { bytes } else { u64::MAX };
        let found = self.free.range_mut(bytes..=most);
        let found = found.filter_map(|(bytes, lots)| lots.pop_front().map(|lot| (*bytes, lot))).next();
        let place = found.map(|(bytes, (place, lot))| {
            self.held.insert(place, (bytes, lot));
            place
        });
        self.plan();
        place
    }

    /// What we have of a piece.
    pub(super) fn held(&self, place: u64) -> Option<&T> {
        self.held.get(&place).map(|(_, lot)| lot)
    }

    /// What we have of the last piece that begins at or before this, and where it begins.
    pub(super) fn before(&self, at: u64) -> Option<(u64, &T)> {
        self.held.range(..=at).next_back().map(|(place, (_, lot))| (*place, lot))
    }

    /// It is no piece any more.
    pub(super) fn let_go(&mut self, place: u64) {
        if let Some((bytes, _)) = self.held.remove(&place) {
            self.withdrawn.push_back((Withdrawn { window: self.window, offset: place, age: AGE }, bytes));
        }
    }

    /// Bytes that all lots together may have.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// What a guest is to be told of next that was told of so many.
    pub(super) fn withdrawn(&self, told: usize) -> Option<Withdrawn> {
        self.withdrawn.get(told).map(|(withdrawn, _)| *withdrawn)
    }

    /// The first is away, for all who see the window.
    pub(super) fn away(&mut self) {
        if let Some((_, bytes)) = self.withdrawn.pop_front() {
            self.bytes -= bytes;
            self.plan();
        }
    }

    /// What the guest is to make.
    pub(super) fn wanted(&self) -> Option<Wanted> {
        self.wanted.front().copied()
    }

    /// It was told of that.
    pub(super) fn asked(&mut self) {
        if let Some(Wanted { place, bytes, .. }) = self.wanted.pop_front() {
            self.asked.insert(place, bytes);
        }
    }

    /// Bytes of a lot that the guest was asked for, and has not made.
    pub(super) fn asked_for(&self, place: u64) -> Option<u64> {
        self.asked.get(&place).copied()
    }

    /// One that it was asked for is there, or is not, and it is asked for no other one before there is need.
    pub(super) fn answered(&mut self, place: u64, lot: Option<T>) {
        let Some(bytes) = self.asked.remove(&place) else { return };
        match lot {
            Some(lot) => self.free.entry(bytes).or_default().push_back((place, lot)),
            None => {
                self.refused = true;
                let given_up: u64 = self.wanted.drain(..).map(|wanted| wanted.bytes).sum();
                self.bytes -= bytes + given_up;
            }
        }
    }

    fn have(&self, bytes: u64) -> usize {
        self.free.get(&bytes).map_or(0, VecDeque::len)
    }

    /// Those that are here, and those that the guest knows of or will.
    fn coming(&self, bytes: u64) -> usize {
        let asked = self.asked.values().filter(|asked| **asked == bytes).count();
        self.have(bytes) + asked + self.wanted.iter().filter(|wanted| wanted.bytes == bytes).count()
    }

    /// There are as many of each size as there are to be at least.
    pub(super) fn is_whole(&self) -> bool {
        self.sorts.iter().all(|sort| self.have(sort.bytes) >= sort.least)
    }

    /// Nothing is on its way.
    pub(super) fn is_quiet(&self) -> bool {
        self.asked.is_empty() && self.wanted.is_empty()
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[cfg(test)]
    pub(super) fn free_bytes(&self) -> u64 {
        self.free.iter().map(|(bytes, lots)| bytes * lots.len() as u64).sum()
    }

    #[cfg(test)]
    pub(super) fn open_bytes(&self) -> u64 {
        self.asked.values().sum::<u64>() + self.wanted.iter().map(|wanted| wanted.bytes).sum::<u64>()
    }

    #[cfg(test)]
    pub(super) fn withdrawn_bytes(&self) -> u64 {
        self.withdrawn.iter().map(|(_, bytes)| bytes).sum()
    }
}
