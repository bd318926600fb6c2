//! A window that two guests have in common: pieces of it are handed to programs of both, and of nobody else.
//!
//! The host's daemon keeps account of it, as of a guest's own window, and empties each piece before it is handed out. Both guests may write
//! anywhere in it at any time; what the daemon decides by is not in it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isthmus_layout::RegionSize;
use isthmus_layout::border::{Handed, WindowNumber, Withdrawn};
use isthmus_layout::ids::DomainId;
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::reason::Reason;
use isthmus_platform::local;
use isthmus_shm::{Access, MapError, Mapping};

use super::pieces::Pieces;
use super::{Estate, GroundNumber, Item};
use crate::broker::Refusal;

/// See the module.
#[derive(Debug)]
pub(crate) struct CommonWindow {
    number: WindowNumber,
    guests: [Arc<Estate>; 2],
    memory: OwnedFd,
    account: Mutex<Account>,
}

#[derive(Debug)]
struct Account {
    pieces: Pieces,
    /// Of how many withdrawn pieces each guest was told beyond those that both know of.
    told: [usize; 2],
}

impl CommonWindow {
    /// A window of these two guests, of whole pages, that nobody has yet.
    pub(crate) fn new(number: WindowNumber, guests: [Arc<Estate>; 2], size: RegionSize) -> Result<Arc<Self>, Refusal> {
        assert!(number != WindowNumber::OWN && guests[0].number() != guests[1].number()); // Ours.
        let memory = local::memory(size)?;
        let account = Mutex::new(Account { pieces: Pieces::new(number, 0, size.0), told: [0; 2] });
        let window = Arc::new(Self { number, guests, memory, account });
        window.guests.iter().for_each(|guest| guest.add_common(&window));
        Ok(window)
    }

    /// What both guests call it.
    pub(crate) fn number(&self) -> WindowNumber {
        self.number
    }

    /// Zeroed memory.
    pub(crate) fn memory(self: &Arc<Self>, size: RegionSize) -> Result<Item, Refusal> {
        let bytes = size.0.next_multiple_of(u64::from(PAGE_BYTES));
        let (at, age) = self.account().pieces.take(bytes).ok_or_else(|| {
            let [one, other] = &self.guests;
            let text =
                format!("the window of guests {} and {} has no room for {bytes} bytes", one.name(), other.name());
            Refusal::new(Reason::OutOfMemory, text)
        })?;
        let piece = Item::Common(Arc::new(CommonPiece { window: Arc::clone(self), at, bytes, age }));
        // What the piece was before, and whatever the guests wrote there since.
        piece.map(RegionSize(bytes))?.give_back(0, bytes);
        Ok(piece)
    }

    /// A bell of a domain in one of the guests for those of the other: where it hears it, and what they ring.
    pub(crate) fn bell(&self, domain: DomainId, guest: GroundNumber) -> Result<(Item, Item), Refusal> {
        let own = self.side(guest);
        self.guests[own].bell_for(domain, &self.guests[1 - own])
    }

    /// Of pieces that were let go, the one that a guest is to be told of next.
    pub(super) fn withdrawn(&self, guest: GroundNumber) -> Option<Withdrawn> {
        let account = self.account();
        account.pieces.withdrawn(account.told[self.side(guest)])
    }

    /// It was told of that.
    pub(super) fn told(&self, guest: GroundNumber) {
        let mut account = self.account();
        account.told[self.side(guest)] += 1;
        while account.told.iter().all(|&told| told > 0) {
            account.pieces.told();
            account.told.iter_mut().for_each(|told| *told -= 1);
        }
    }

    pub(super) fn holds(&self, offset: u64, age: u32) -> bool {
        self.account().pieces.holds(offset, age)
    }

    fn side(&self, guest: GroundNumber) -> usize {
        usize::from(self.guests[0].number() != guest)
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for CommonWindow {
    /// Its memory.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
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

    pub(super) fn map(&self, size: RegionSize) -> Result<Mapping, MapError> {
        Mapping::window(&self.window.memory, self.at, size, Access::ReadWrite)
    }

    pub(super) fn look(&self, at: u64, into: &mut [u8]) -> bool {
        rustix::io::pread(&self.window.memory, &mut *into, self.at + at) == Ok(into.len())
    }

    pub(super) fn handed(&self) -> Handed {
        Handed::Piece { window: self.window.number, offset: self.at, bytes: self.bytes, age: self.age }
    }
}

impl Drop for CommonPiece {
    fn drop(&mut self) {
        self.window.account().pieces.let_go(self.at, self.bytes);
        self.window.guests.iter().for_each(|guest| guest.changed.notify_one());
    }
}

#[cfg(test)]
mod tests {
    use isthmus_layout::control::Name;
    use isthmus_platform::Doorbell;

    use super::*;
    use crate::ground::{Sheet, descriptor};

    fn guest(number: u32, vectors: usize) -> Arc<Estate> {
        let bells = |count| (0..count).map(|_| descriptor(&Doorbell::new().unwrap()).unwrap()).collect();
        let (name, bytes) = (Name::new(&format!("guest{number}")).unwrap(), 1 << 20);
        let window = local::memory(RegionSize(bytes)).unwrap();
        Estate::new(GroundNumber(number), name, Sheet::new(window, bytes), (bells(vectors), bells(2)))
    }

    const NUMBER: WindowNumber = WindowNumber(5);
    const PAGE: RegionSize = RegionSize(4096);

    fn domain(number: u32) -> DomainId {
        DomainId::new(number).unwrap()
    }

    #[test]
    fn bytes_are_handed_out_again_when_both_guests_know_that_they_were_withdrawn() {
        let guests = [guest(1, 4), guest(2, 4)];
        let window = CommonWindow::new(NUMBER, guests.clone(), PAGE).unwrap();
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
            assert_eq!(guest.withdrawn(), Some(withdrawn));
            guest.told(withdrawn);
            assert_eq!(guest.withdrawn(), None);
        }
        assert!(window.memory(PAGE).is_ok());
    }

    #[test]
    fn a_domain_is_rung_from_the_other_guest_by_its_own_vector_as_far_as_that_one_has_it() {
        let guests = [guest(1, 4), guest(2, 2)];
        let window = CommonWindow::new(NUMBER, guests.clone(), PAGE).unwrap();
        let (listener, ringer) = window.bell(domain(7), GroundNumber(1)).unwrap();
        assert_eq!(listener.handed(), Some(Handed::Listener { vector: 1 }));
        assert_eq!(ringer.handed(), Some(Handed::Ringer { peer: guests[0].peer().unwrap(), vector: 1 }));
        assert_eq!(window.bell(domain(8), GroundNumber(1)).unwrap_err().reason, Reason::GuestVectorsFull);
        assert_ne!(guests[0].peer(), guests[1].peer());
    }
}
