//! A common window that one guest grants to the other, piece by piece, and that we do not see (docs/spec/border.md).
//!
//! ```text
//!    Wanted ──► guest 0 ── Lot: its grant ──► Lend ──► guest 1 ── Lent: it can map it ──► in stock
//! ```
//!
//! What the one says of its pages is passed on as it is; whether it is true the other one sees when it maps them. Which lots there are, and
//! which are pieces, is known to us alone, and a guest names none that was not asked of it.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_layout::RegionSize;
use isthmus_layout::border::lots::Wanted;
use isthmus_layout::border::shared::{Lend, Share};
use isthmus_layout::border::{FrameKind, Handed, WindowNumber, Withdrawn};
use isthmus_layout::reason::Reason;
use isthmus_platform_kvm::GUEST;
use isthmus_shm::Window;

use super::{Away, Common, Order, Progress};
use crate::broker::Refusal;
use crate::ground::Estate;
use crate::ground::stock::{AGE, Sort, Stock};

/// Who grants.
const GRANTS: usize = 0;
/// Who maps.
const MAPS: usize = 1;

/// See the module.
#[derive(Debug)]
pub(crate) struct Lots {
    number: WindowNumber,
    /// Who the guests are, for each other.
    domains: [u16; 2],
    account: Mutex<Account>,
}

#[derive(Debug)]
struct Account {
    stock: Stock<()>,
    /// Made, and the other guest has not said whether it can map them.
    lending: BTreeSet<u64>,
    away: Away,
    offered: bool,
    refused: Option<String>,
}

impl Lots {
    /// Of the guests with these numbers of domains; all pieces together have `bytes_max` bytes at most.
    pub(crate) fn new(number: WindowNumber, domains: [u16; 2], sorts: &[Sort], bytes_max: u64) -> Self {
        let stock = Stock::new(number, sorts, bytes_max);
        let account = Account { stock, lending: BTreeSet::new(), away: Away::default(), offered: false, refused: None };
        Self { number, domains, account: Mutex::new(account) }
    }

    /// What a guest is told of it first: on which side it is, and what it is to do.
    pub(crate) fn invitation(&self) -> (usize, Order) {
        (GRANTS, self.share(MAPS, &[]))
    }

    fn share(&self, with: usize, offer: &[u8]) -> Order {
        let share = Share { window: self.number, domain: self.domains[with], offer };
        (FrameKind::Share, share.emit())
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Common for Lots {
    fn take(&self, bytes: u64) -> Option<(u64, u32)> {
        self.account().stock.take(bytes).map(|place| (place, AGE))
    }

    fn clear(&self, _at: u64, _bytes: u64) -> Result<(), Refusal> {
        Ok(()) // Nobody has had it before.
    }

    fn map(&self, _at: u64, _size: RegionSize) -> Result<Window, Refusal> {
        Err(Refusal::new(Reason::NoCommonMemory, "the host does not see what one guest grants to another"))
    }

    fn look(&self, _at: u64, _into: &mut [u8]) -> bool {
        false
    }

    fn let_go(&self, at: u64, _bytes: u64) {
        self.account().stock.let_go(at);
    }

    fn holds(&self, at: u64, age: u32) -> bool {
        age == AGE && self.account().stock.held(at).is_some()
    }

    fn withdrawn(&self, side: usize, told: usize) -> Option<Withdrawn> {
        let account = self.account();
        account.stock.withdrawn(account.away.beyond(side) + told)
    }

    fn away(&self, side: usize) {
        let mut account = self.account();
        if account.away.count(side) {
            account.stock.away();
        }
    }

    fn bytes(&self) -> u64 {
        self.account().stock.bytes_max()
    }

    fn line(&self, board: u64) -> Option<Handed> {
        Some(Handed::Line { window: self.number, place: board })
    }

    /// By the window's own event channel.
    fn ringer(&self, _of: &Estate, _from: &Estate, vector: u16) -> Result<Handed, Refusal> {
        Ok(Handed::Ringer { peer: GUEST + self.number.0, vector })
    }

    fn progress(&self) -> Progress {
        let account = self.account();
        match &account.refused {
            Some(why) => Progress::Refused(why.clone()),
            None if account.stock.is_whole() => Progress::Ready,
            None if account.stock.is_quiet() => {
                Progress::Refused("a guest has no memory or no grants left, or the window is too small".to_owned())
            }
            None => Progress::Pending,
        }
    }

    fn wanted(&self, side: usize) -> Option<Wanted> {
        self.account().stock.wanted().filter(|_| side == GRANTS)
    }

    fn asked(&self, side: usize) {
        if side == GRANTS {
            self.account().stock.asked();
        }
    }

    fn supply(&self, side: usize, place: u64, grant: &[u8]) -> Result<Option<Order>, String> {
        let mut account = self.account();
        let bytes = account.stock.asked_for(place).filter(|_| side == GRANTS && !account.lending.contains(&place));
        let bytes = bytes.ok_or("it makes a piece of a common window that nobody wanted")?;
        if grant.is_empty() {
            account.stock.answered(place, None);
            return Ok(None);
        }
        account.lending.insert(place);
        Ok(Some((FrameKind::Lend, Lend { window: self.number, place, bytes, grant }.emit())))
    }

    fn lent(&self, side: usize, place: u64, good: bool) -> Result<(), String> {
        let mut account = self.account();
        if side != MAPS || !account.lending.remove(&place) {
            return Err("it was not lent what it says that it was".to_owned());
        }
        account.stock.answered(place, good.then_some(()));
        Ok(())
    }

    fn offered(&self, side: usize, offer: &[u8]) -> Result<Option<Order>, String> {
        let mut account = self.account();
        match (side, offer) {
            (GRANTS, []) => account.refused = Some("a guest cannot grant anything to the other".to_owned()),
            (_, []) => account.refused = Some("a guest cannot map what the other grants".to_owned()),
            (GRANTS, offer) if !account.offered => {
                account.offered = true;
                return Ok(Some(self.share(GRANTS, offer)));
            }
            _ => return Err("it offers a window that it was not asked for".to_owned()),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use isthmus_layout::border::lots::FIRST_LOT;

    use super::*;

    const NUMBER: WindowNumber = WindowNumber(5);
    const PAGE: u64 = 4096;

    fn lots(bytes_max: u64) -> Lots {
        let sorts = [Sort { bytes: PAGE, stock: 2, least: 1 }, Sort { bytes: 8 * PAGE, stock: 1, least: 1 }];
        Lots::new(NUMBER, [7, 8], &sorts, bytes_max)
    }

    fn next(lots: &Lots) -> Option<Wanted> {
        assert_eq!(lots.wanted(MAPS), None);
        lots.asked(MAPS);
        let wanted = lots.wanted(GRANTS);
        lots.asked(GRANTS);
        wanted
    }

    #[test]
    fn what_the_one_offers_and_grants_is_passed_on_to_the_other() {
        let lots = lots(1 << 20);
        let (side, (kind, content)) = lots.invitation();
        assert_eq!((side, kind), (GRANTS, FrameKind::Share));
        assert_eq!(Share::parse(&content), Ok(Share { window: NUMBER, domain: 8, offer: b"" }));
        let (kind, content) = lots.offered(GRANTS, b"N").unwrap().unwrap();
        assert_eq!(kind, FrameKind::Share);
        assert_eq!(Share::parse(&content), Ok(Share { window: NUMBER, domain: 7, offer: b"N" }));
        let all: Vec<Wanted> = std::iter::from_fn(|| next(&lots)).collect();
        assert_eq!(all.iter().map(|wanted| wanted.bytes / PAGE).collect::<Vec<_>>(), [1, 8, 1]);
        for Wanted { window, place, bytes } in all {
            assert_eq!(lots.progress(), if place > FIRST_LOT + PAGE { Progress::Ready } else { Progress::Pending });
            let (kind, content) = lots.supply(GRANTS, place, b"G").unwrap().unwrap();
            assert_eq!(kind, FrameKind::Lend);
            assert_eq!(Lend::parse(&content), Ok(Lend { window, place, bytes, grant: b"G" }));
            lots.lent(MAPS, place, true).unwrap();
        }
        let (place, age) = lots.take(PAGE).unwrap();
        assert!(lots.holds(place, age) && !lots.look(place, &mut [0]) && lots.map(place, RegionSize(PAGE)).is_err());
    }

    #[test]
    fn a_piece_is_gone_when_both_have_taken_it_away() {
        let lots = lots(10 * PAGE);
        lots.offered(GRANTS, b"N").unwrap();
        for Wanted { place, .. } in std::iter::from_fn(|| next(&lots)).collect::<Vec<_>>() {
            lots.supply(GRANTS, place, b"G").unwrap();
            lots.lent(MAPS, place, true).unwrap();
        }
        let (place, _) = lots.take(8 * PAGE).unwrap();
        assert_eq!(next(&lots), None, "there is no room");
        lots.let_go(place, 8 * PAGE);
        for side in [MAPS, GRANTS] {
            assert_eq!(next(&lots), None, "one of them does not know yet");
            assert_eq!(lots.withdrawn(side, 0).map(|gone| (gone.window, gone.offset)), Some((NUMBER, place)));
            lots.away(side);
            assert_eq!(lots.withdrawn(side, 0), None);
        }
        assert_eq!(next(&lots).map(|wanted| wanted.bytes), Some(8 * PAGE));
    }

    #[test]
    fn what_nobody_asked_for_is_no_piece() {
        let lots = lots(1 << 20);
        let first = next(&lots).unwrap();
        assert!(lots.supply(GRANTS, first.place + PAGE, b"G").is_err(), "it was not asked for");
        assert!(lots.supply(MAPS, first.place, b"G").is_err(), "of the other one it was");
        assert!(lots.lent(MAPS, first.place, true).is_err(), "it was not made");
        lots.supply(GRANTS, first.place, b"G").unwrap();
        assert!(lots.supply(GRANTS, first.place, b"G").is_err(), "it was made already");
        assert!(lots.lent(GRANTS, first.place, true).is_err(), "the other one maps it");
        lots.lent(MAPS, first.place, true).unwrap();
        assert!(lots.lent(MAPS, first.place, true).is_err(), "that was said already");
        lots.offered(GRANTS, b"N").unwrap();
        assert!(lots.offered(GRANTS, b"N").is_err() && lots.offered(MAPS, b"N").is_err());
    }

    #[test]
    fn a_guest_that_cannot_is_a_refusal() {
        for side in [GRANTS, MAPS] {
            let lots = lots(1 << 20);
            lots.offered(side, b"").unwrap();
            assert!(matches!(lots.progress(), Progress::Refused(_)));
        }
        let lots = lots(1 << 20);
        let first = next(&lots).unwrap();
        lots.supply(GRANTS, first.place, b"").unwrap();
        assert!(matches!(lots.progress(), Progress::Refused(_)));
        let other = self::lots(1 << 20);
        let first = next(&other).unwrap();
        other.supply(GRANTS, first.place, b"rubbish").unwrap();
        other.lent(MAPS, first.place, false).unwrap();
        assert!(matches!(other.progress(), Progress::Refused(_)));
    }
}
