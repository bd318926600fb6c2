//! A window that two guests have in common: pieces of it are handed to programs of both, and of nobody else.
//!
//! ```text
//!   CommonWindow ── Common: Sheet   a memory file that devices show to both guests (KVM)
//!                           Lots    pages that one guest grants to the other, for each piece anew (Xen)
//! ```
//!
//! The host's daemon keeps account of it, as of a guest's own window. Both guests may write anywhere in it at any time; what the daemon
//! decides by is not in it.

use std::sync::Arc;

use isthmus_layout::RegionSize;
use isthmus_layout::border::lots::Wanted;
use isthmus_layout::border::{FrameKind, Handed, WindowNumber, Withdrawn};
use isthmus_layout::ids::DomainId;
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::reason::Reason;
use isthmus_shm::Window;

use super::{Estate, GroundNumber, Item};
use crate::broker::Refusal;

mod lots;
mod sheet;
pub(crate) use lots::Lots;
pub(crate) use sheet::Sheet;

/// What a guest is told.
pub(crate) type Order = (FrameKind, Vec<u8>);

/// How a common window comes along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It is not there in full.
    Pending,
    /// It is.
    Ready,
    /// It will not be, and why not.
    Refused(String),
}

/// Of pieces that were let go, how many each guest has taken away beyond those that both have.
#[derive(Debug, Default)]
struct Away([usize; 2]);

impl Away {
    /// How many that is on a side.
    fn beyond(&self, side: usize) -> usize {
        self.0[side]
    }

    /// Another one is away on a side. True if it is on both now.
    fn count(&mut self, side: usize) -> bool {
        self.0[side] += 1;
        let both = self.0.iter().all(|&away| away > 0);
        if both {
            self.0.iter_mut().for_each(|away| *away -= 1);
        }
        both
    }
}

/// What such a window is made of. Guests are counted as in [`CommonWindow`]: the side of one is 0 or 1.
pub(crate) trait Common: std::fmt::Debug + Send + Sync {
    /// A place of so many bytes, in whole pages, for a piece; and which use of it this is.
    fn take(&self, bytes: u64) -> Option<(u64, u32)>;
    /// Makes what was taken zeroes.
    fn clear(&self, at: u64, bytes: u64) -> Result<(), Refusal>;
    /// Our mapping of a part, where we see it.
    fn map(&self, at: u64, size: RegionSize) -> Result<Window, Refusal>;
    /// Reads a part without a mapping of it. False if that cannot be.
    fn look(&self, at: u64, into: &mut [u8]) -> bool;
    /// What was taken is no piece any more.
    fn let_go(&self, at: u64, bytes: u64);
    /// True as long as this use of a place lasts.
    fn holds(&self, at: u64, age: u32) -> bool;
    /// Of what was let go, what the guest of a side is to be told of next that was told of so many.
    fn withdrawn(&self, side: usize, told: usize) -> Option<Withdrawn>;
    /// The first of them is away there.
    fn away(&self, side: usize);
    /// Bytes that there may be at once.
    fn bytes(&self) -> u64;
    /// Whether programs can have memory of their own in it.
    fn has_regions(&self) -> bool {
        false
    }
    /// Either end of what programs of the one ring those of the other by, without their daemons, where a board lies there.
    fn line(&self, _board: u64) -> Option<Handed> {
        None
    }
    /// What rings a vector of `of` from `from`.
    fn ringer(&self, of: &Estate, from: &Estate, vector: u16) -> Result<Handed, Refusal>;

    /// Whether its pieces can be handed out.
    fn progress(&self) -> Progress {
        Progress::Ready
    }
    /// What the guest of a side is to make.
    fn wanted(&self, _side: usize) -> Option<Wanted> {
        None
    }
    /// It was told of that.
    fn asked(&self, _side: usize) {}
    /// A guest has made what it was to make, or cannot: what the other one is told of it. What was wrong with that.
    fn supply(&self, _side: usize, _place: u64, _grant: &[u8]) -> Result<Option<Order>, String> {
        Err("nothing of it is to be made".to_owned())
    }
    /// The other guest can map that, or cannot.
    fn lent(&self, _side: usize, _place: u64, _good: bool) -> Result<(), String> {
        Err("nothing of it is lent".to_owned())
    }
    /// A guest offers the window, or says with nothing that it cannot have it: what the other one is told of it.
    fn offered(&self, _side: usize, _offer: &[u8]) -> Result<Option<Order>, String> {
        Err("nothing of it is to be offered".to_owned())
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct CommonWindow {
    number: WindowNumber,
    guests: [Arc<Estate>; 2],
    common: Box<dyn Common>,
}

impl CommonWindow {
    /// A window of these two guests that nobody has yet.
    pub(crate) fn over(number: WindowNumber, guests: [Arc<Estate>; 2], common: impl Common + 'static) -> Arc<Self> {
        assert!(number != WindowNumber::OWN && guests[0].number() != guests[1].number()); // Ours.
        let window = Arc::new(Self { number, guests, common: Box::new(common) });
        window.guests.iter().for_each(|guest| guest.add_common(&window));
        window
    }

    /// What both guests call it.
    pub(crate) fn number(&self) -> WindowNumber {
        self.number
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.common.bytes()
    }

    /// Whether programs can have memory of their own in it.
    pub(crate) fn has_regions(&self) -> bool {
        self.common.has_regions()
    }

    /// Whether its pieces can be handed out.
    pub(crate) fn progress(&self) -> Progress {
        self.common.progress()
    }

    /// Zeroed memory.
    pub(crate) fn memory(self: &Arc<Self>, size: RegionSize) -> Result<Item, Refusal> {
        let bytes = size.0.next_multiple_of(u64::from(PAGE_BYTES));
        let taken = self.common.take(bytes);
        // Another one may be wanted in its place, or for the next who asks.
        self.guests.iter().for_each(|guest| guest.changed.notify_one());
        let (at, age) = taken.ok_or_else(|| {
            let [one, other] = &self.guests;
            let text =
                format!("the window of guests {} and {} has no room for {bytes} bytes", one.name(), other.name());
            Refusal::new(Reason::OutOfMemory, text)
        })?;
        let piece = Item::Common(Arc::new(CommonPiece { window: Arc::clone(self), at, bytes, age }));
        // What the piece was before, and whatever the guests wrote there since.
        self.common.clear(at, bytes)?;
        Ok(piece)
    }

    /// A bell of a domain in one of the guests for those of the other: where it hears it, and what they ring.
    pub(crate) fn bell(&self, domain: DomainId, guest: GroundNumber) -> Result<(Item, Item), Refusal> {
        let own = self.side(guest);
        let (of, from) = (&self.guests[own], &self.guests[1 - own]);
        let vector = of.vector(domain)?;
        let ringer = self.common.ringer(of, from, vector)?;
        Ok((Item::Bell(Handed::Listener { vector }), Item::Bell(ringer)))
    }

    /// The same by a line, where there are any: for programs that know lines.
    pub(crate) fn line(&self, board: &Item) -> Option<Item> {
        let Item::Common(piece) = board else { return None };
        self.common.line(piece.at).map(Item::Bell)
    }

    /// Tells the guest of a side something.
    pub(crate) fn order(&self, side: usize, order: Order) {
        self.guests[side].order(order);
    }

    /// Of pieces that were let go and are not away, the one that a guest is to be told of next, which was told of so many.
    pub(super) fn withdrawn(&self, guest: GroundNumber, told: usize) -> Option<Withdrawn> {
        self.common.withdrawn(self.side(guest), told)
    }

    /// A guest has taken the first of them away.
    pub(super) fn away(&self, guest: GroundNumber) {
        self.common.away(self.side(guest));
    }

    pub(super) fn wanted(&self, guest: GroundNumber) -> Option<Wanted> {
        self.common.wanted(self.side(guest))
    }

    pub(super) fn asked(&self, guest: GroundNumber) {
        self.common.asked(self.side(guest));
    }

    pub(super) fn supply(&self, guest: GroundNumber, place: u64, grant: &[u8]) -> Result<(), String> {
        let side = self.side(guest);
        self.pass_on(side, self.common.supply(side, place, grant)?);
        Ok(())
    }

    pub(super) fn lent(&self, guest: GroundNumber, place: u64, good: bool) -> Result<(), String> {
        self.common.lent(self.side(guest), place, good)
    }

    pub(super) fn offered(&self, guest: GroundNumber, offer: &[u8]) -> Result<(), String> {
        let side = self.side(guest);
        self.pass_on(side, self.common.offered(side, offer)?);
        Ok(())
    }

    fn pass_on(&self, from: usize, order: Option<Order>) {
        if let Some(order) = order {
            self.order(1 - from, order);
        }
    }

    pub(super) fn holds(&self, offset: u64, age: u32) -> bool {
        self.common.holds(offset, age)
    }

    fn side(&self, guest: GroundNumber) -> usize {
        usize::from(self.guests[0].number() != guest)
    }
}

/// A piece of it, for as long as it is held.
#[derive(Debug)]
pub struct CommonPiece {
    window: Arc<CommonWindow>,
    at: u64,
    bytes: u64,
    age: u32,
}

impl CommonPiece {
    pub(super) fn window(&self) -> WindowNumber {
        self.window.number
    }

    pub(super) fn map(&self, size: RegionSize) -> Result<Window, Refusal> {
        self.window.common.map(self.at, size)
    }

    pub(super) fn look(&self, at: u64, into: &mut [u8]) -> bool {
        self.window.common.look(self.at + at, into)
    }

    pub(super) fn handed(&self) -> Handed {
        Handed::Piece { window: self.window.number, offset: self.at, bytes: self.bytes, age: self.age }
    }
}

impl Drop for CommonPiece {
    fn drop(&mut self) {
        self.window.common.let_go(self.at, self.bytes);
        self.window.guests.iter().for_each(|guest| guest.changed.notify_one());
    }
}

#[cfg(test)]
mod tests {
    use isthmus_layout::control::Name;
    use isthmus_platform::{Doorbell, local};

    use super::*;
    use crate::ground::descriptor;

    fn guest(number: u32, vectors: usize) -> Arc<Estate> {
        let bells = |count| (0..count).map(|_| descriptor(&Doorbell::new().unwrap()).unwrap()).collect();
        let (name, bytes) = (Name::new(&format!("guest{number}")).unwrap(), 1 << 20);
        let window = local::memory(RegionSize(bytes)).unwrap();
        Estate::new(GroundNumber(number), name, crate::ground::Sheet::new(window, bytes), (bells(vectors), bells(2)))
    }

    const NUMBER: WindowNumber = WindowNumber(5);
    const PAGE: RegionSize = RegionSize(4096);

    fn sheet(guests: &[Arc<Estate>; 2]) -> Arc<CommonWindow> {
        let memory = Arc::new(local::memory(PAGE).unwrap());
        CommonWindow::over(NUMBER, guests.clone(), Sheet::new(NUMBER, memory, PAGE.0))
    }

    fn domain(number: u32) -> DomainId {
        DomainId::new(number).unwrap()
    }

    #[test]
    fn bytes_are_handed_out_again_when_both_guests_have_taken_them_away() {
        let guests = [guest(1, 4), guest(2, 4)];
        let window = sheet(&guests);
        let piece = window.memory(PAGE).unwrap();
        let Some(Handed::Piece { window: NUMBER, offset: 0, bytes: 4096, age }) = piece.handed() else {
            panic!("{piece:?}")
        };
        assert!(guests.iter().all(|guest| guest.holds(NUMBER, 0, age) && !guest.holds(WindowNumber::OWN, 0, age)));
        drop(piece);
        assert!(!guests[0].holds(NUMBER, 0, age));
        let withdrawn = Withdrawn { window: NUMBER, offset: 0, age };
        for guest in &guests {
            assert_eq!(window.memory(PAGE).unwrap_err().reason, Reason::OutOfMemory);
            assert_eq!(guest.withdrawn(|_| 0), Some(withdrawn));
            assert_eq!(guest.withdrawn(|_| 1), None);
            assert!(!guest.away(Withdrawn { age: age + 1, ..withdrawn }, 1));
            assert!(guest.away(withdrawn, 1) && !guest.away(withdrawn, 1));
            assert_eq!(guest.withdrawn(|_| 0), None);
        }
        assert!(window.memory(PAGE).is_ok());
    }

    #[test]
    fn a_domain_is_rung_from_the_other_guest_by_its_own_vector_as_far_as_that_one_has_it() {
        let guests = [guest(1, 4), guest(2, 2)];
        let window = sheet(&guests);
        let (listener, ringer) = window.bell(domain(7), GroundNumber(1)).unwrap();
        assert_eq!(listener.handed(), Some(Handed::Listener { vector: 1 }));
        assert_eq!(ringer.handed(), Some(Handed::Ringer { peer: guests[0].peer().unwrap(), vector: 1 }));
        assert_eq!(window.bell(domain(8), GroundNumber(1)).unwrap_err().reason, Reason::GuestVectorsFull);
        assert_ne!(guests[0].peer(), guests[1].peer());
    }
}
