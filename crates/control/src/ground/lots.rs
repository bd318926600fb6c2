//! A window that the guest makes piece by piece: each is a lot of pages that it grants when we want it (docs/spec/border.md).
//!
//! Which lots there are is known to us alone ([`Stock`]): a guest names none that it was not asked for, and what it grants is mapped when it
//! says so, in full or not at all.

use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_layout::RegionSize;
use isthmus_layout::border::lots::{FIRST_LOT, Wanted};
use isthmus_layout::border::{CROSSING_AT, WindowNumber, Withdrawn};
use isthmus_layout::reason::Reason;
use isthmus_shm::{Payload as _, Window};

use super::stock::{AGE, Sort, Stock};
use super::{Land, OutOfLand};
use crate::broker::Refusal;

/// Maps what a guest has granted.
pub(crate) type Mapper = Box<dyn Fn(&[u8], RegionSize) -> Result<Window, String> + Send + Sync>;

/// The lots of a window.
pub(crate) struct Lots {
    head: Window,
    crossing: Window,
    map: Mapper,
    stock: Mutex<Stock<Window>>,
}

impl std::fmt::Debug for Lots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lots").field("stock", &self.stock).finish_non_exhaustive()
    }
}

impl Lots {
    /// Over a window whose head and crossing are mapped. All lots together have `bytes_max` bytes at most.
    pub(crate) fn new(head: Window, crossing: Window, sorts: &[Sort], bytes_max: u64, map: Mapper) -> Self {
        Self { head, crossing, map, stock: Mutex::new(Stock::new(WindowNumber::OWN, sorts, bytes_max)) }
    }

    fn stock(&self) -> MutexGuard<'_, Stock<Window>> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Land for Lots {
    fn map(&self, at: u64, size: RegionSize) -> Result<Window, Refusal> {
        let found = match at {
            0 => Some(self.head.clone()),
            CROSSING_AT => Some(self.crossing.clone()),
            _ => self.stock().held(at).cloned(),
        };
        let outside = || Refusal::new(Reason::OutOfMemory, "that part of the window is not there");
        found.filter(|window| size.0 <= window.size().0).ok_or_else(outside)
    }

    fn look(&self, at: u64, into: &mut [u8]) -> bool {
        let stock = self.stock();
        let Some((start, window)) = stock.before(at) else { return false };
        let is_inside = at - start + into.len() as u64 <= window.size().0;
        if is_inside {
            window.copy_out(at - start, into);
        }
        is_inside
    }

    fn take(&self, bytes: u64) -> Result<(u64, u32), OutOfLand> {
        self.stock().take(bytes).map(|place| (place, AGE)).ok_or(OutOfLand)
    }

    fn clear(&self, _at: u64, _bytes: u64) -> Result<(), Refusal> {
        Ok(()) // Nobody has had it before.
    }

    fn let_go(&self, at: u64, _bytes: u64) {
        self.stock().let_go(at);
    }

    fn holds(&self, at: u64, age: u32) -> bool {
        age == AGE && self.stock().held(at).is_some()
    }

    fn withdrawn(&self, told: usize) -> Option<Withdrawn> {
        self.stock().withdrawn(told)
    }

    fn away(&self, withdrawn: Withdrawn, _told: usize) -> bool {
        let mut stock = self.stock();
        let is_first = stock.withdrawn(0) == Some(withdrawn);
        if is_first {
            stock.away();
        }
        is_first
    }

    fn bytes(&self) -> u64 {
        self.stock().bytes_max()
    }

    fn has_regions(&self) -> bool {
        false
    }

    fn used(&self) -> u64 {
        FIRST_LOT + self.stock().bytes()
    }

    fn wanted(&self) -> Option<Wanted> {
        self.stock().wanted()
    }

    fn asked(&self) {
        self.stock().asked();
    }

    fn supply(&self, place: u64, grant: &[u8]) -> Result<(), String> {
        let bytes = self.stock().asked_for(place).ok_or("it makes a piece that nobody wanted")?;
        let made = match grant {
            [] => Err("it has no memory or no grants left".to_owned()),
            _ => (self.map)(grant, RegionSize(bytes)),
        };
        let made = made.inspect_err(|why| tracing::warn!(bytes, "a guest's window does not grow: {why}"));
        self.stock().answered(place, made.ok());
        Ok(())
    }

    fn is_ready(&self) -> bool {
        let stock = self.stock();
        stock.is_whole() || stock.is_quiet()
    }

    fn lasts(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_shm::Mapping;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    fn window(bytes: u64) -> Window {
        Window::new(Mapping::private(RegionSize(bytes)))
    }

    /// A grant of `g` is good, others are not.
    fn lots(bytes_max: u64) -> Lots {
        let sorts = [
            Sort { bytes: PAGE, stock: 4, least: 2 },
            Sort { bytes: 8 * PAGE, stock: 1, least: 1 },
            Sort { bytes: 8 * PAGE, stock: 1, least: 0 },
        ];
        let map = |grant: &[u8], size: RegionSize| match grant {
            b"g" => Ok(window(size.0)),
            _ => Err("not granted".to_owned()),
        };
        Lots::new(window(PAGE), window(PAGE), &sorts, bytes_max, Box::new(map))
    }

    fn next(lots: &Lots) -> Option<Wanted> {
        let wanted = lots.wanted();
        lots.asked();
        wanted
    }

    #[test]
    fn what_a_domain_needs_is_wanted_first_and_then_a_stock() {
        let lots = lots(1 << 30);
        let sizes: Vec<u64> = std::iter::from_fn(|| next(&lots)).map(|wanted| wanted.bytes / PAGE).collect();
        assert_eq!(sizes, [1, 1, 8, 1, 1, 8]);
        assert_eq!(lots.used(), FIRST_LOT + 20 * PAGE);
    }

    #[test]
    fn a_lot_is_a_piece_once() {
        let lots = lots(1 << 30);
        assert!(lots.take(PAGE).is_err() && !lots.is_ready());
        let all: Vec<Wanted> = std::iter::from_fn(|| next(&lots)).collect();
        all.iter().for_each(|wanted| lots.supply(wanted.place, b"g").unwrap());
        assert!(lots.is_ready());
        let (place, age) = lots.take(PAGE).unwrap();
        assert_eq!(lots.map(place, RegionSize(PAGE)).unwrap().size(), RegionSize(PAGE));
        assert!(lots.map(place, RegionSize(PAGE + 1)).is_err() && lots.map(place + 8, RegionSize(8)).is_err());
        assert!(
            lots.holds(place, age) && lots.look(place + 8, &mut [0; 8]) && !lots.look(place + PAGE - 4, &mut [0; 8])
        );
        assert_eq!(next(&lots).map(|wanted| wanted.bytes), Some(PAGE), "one takes its place");
        lots.let_go(place, PAGE);
        assert!(!lots.holds(place, age) && lots.map(place, RegionSize(PAGE)).is_err());
        assert_eq!(lots.withdrawn(0), Some(Withdrawn { window: WindowNumber::OWN, offset: place, age }));
        lots.stock().away();
        assert_eq!(lots.withdrawn(0), None);
        let places = std::iter::from_fn(|| lots.take(PAGE).ok()).map(|(place, _)| place);
        assert!(places.collect::<Vec<_>>().iter().all(|other| *other != place), "the same place again");
    }

    #[test]
    fn a_size_that_is_not_in_stock_is_the_start_of_a_larger_one() {
        let lots = lots(1 << 30);
        let all: Vec<Wanted> = std::iter::from_fn(|| next(&lots)).collect();
        all.iter().for_each(|wanted| lots.supply(wanted.place, b"g").unwrap());
        let before = lots.used();
        let (place, _) = lots.take(4 * PAGE).unwrap();
        assert_eq!(lots.map(place, RegionSize(4 * PAGE)).unwrap().size(), RegionSize(8 * PAGE));
        assert_eq!(lots.used(), before + 8 * PAGE, "one takes its place");
        lots.let_go(place, 4 * PAGE);
        lots.stock().away();
        assert_eq!(lots.used(), before);
        assert!(lots.take(9 * PAGE).is_err());
    }

    #[test]
    fn no_more_is_wanted_than_there_may_be() {
        let lots = lots(10 * PAGE);
        let all: Vec<Wanted> = std::iter::from_fn(|| next(&lots)).collect();
        assert_eq!(all.iter().map(|wanted| wanted.bytes).sum::<u64>(), 10 * PAGE);
        all.iter().for_each(|wanted| lots.supply(wanted.place, b"g").unwrap());
        let (place, _) = lots.take(8 * PAGE).unwrap();
        assert_eq!(next(&lots), None);
        assert!(lots.is_ready(), "nothing more comes, and who waits is told so");
        lots.let_go(place, 8 * PAGE);
        assert_eq!(next(&lots), None, "the guest does not know yet");
        lots.stock().away();
        assert_eq!(next(&lots).map(|wanted| wanted.bytes), Some(8 * PAGE));
    }

    #[test]
    fn a_guest_that_cannot_is_not_asked_again_before_there_is_need() {
        let lots = lots(1 << 30);
        let first = next(&lots).unwrap();
        lots.supply(first.place, b"").unwrap();
        assert_eq!(next(&lots), None);
        assert_eq!(lots.used(), FIRST_LOT);
        assert!(lots.is_ready());
        assert!(lots.take(PAGE).is_err());
        let second = next(&lots).unwrap();
        lots.supply(second.place, b"nonsense").unwrap();
        assert_eq!(next(&lots), None);
    }

    proptest! {
        #[test]
        fn whatever_is_supplied_counts_stay_true(
            steps in prop::collection::vec((0..5_u8, any::<prop::sample::Index>(), any::<bool>()), 1..200),
        ) {
            let bytes_max = 30 * PAGE;
            let lots = lots(bytes_max);
            let (mut asked, mut held): (Vec<Wanted>, Vec<(u64, u64)>) = (Vec::new(), Vec::new());
            for (step, which, flag) in steps {
                match step {
                    0 => asked.extend(next(&lots)),
                    1 if !asked.is_empty() => {
                        let wanted = asked.swap_remove(which.index(asked.len()));
                        lots.supply(wanted.place, if flag { b"g" } else { b"x" }).unwrap();
                        prop_assert!(lots.supply(wanted.place, b"g").is_err());
                    }
                    2 => {
                        let bytes = if flag { PAGE } else { 8 * PAGE };
                        held.extend(lots.take(bytes).ok().map(|(place, _)| (place, bytes)));
                    }
                    3 if !held.is_empty() => {
                        let (place, bytes) = held.swap_remove(which.index(held.len()));
                        lots.let_go(place, bytes);
                    }
                    _ => lots.stock().away(),
                }
                prop_assert!(lots.used() <= FIRST_LOT + bytes_max);
                let stock = lots.stock();
                let held: u64 = held.iter().map(|(_, bytes)| bytes).sum();
                let all = stock.free_bytes() + stock.withdrawn_bytes() + stock.open_bytes() + held;
                prop_assert_eq!(stock.bytes(), all);
            }
        }
    }
}
