//! A domain's boards and the places on them. The daemon assigns both; the domain only hears of them.

use isthmus_layout::board::Place;
use isthmus_layout::border::WindowNumber;
use isthmus_layout::control::{BoardIndex, Owner};
use isthmus_layout::limits::{BOARD_PLACES, BOARDS_MAX};
use isthmus_layout::reason::Reason;

const WORDS: usize = BOARD_PLACES as usize / 64;

/// Places of one board: a bit for each that is taken.
#[derive(Clone, Debug)]
pub struct Places {
    taken: [u64; WORDS],
    count: u32,
}

impl Default for Places {
    /// None taken but those that mean something on every board.
    fn default() -> Self {
        let mut taken = [0; WORDS];
        taken[0] = (1 << Place::FIRST) - 1;
        Self { taken, count: 0 }
    }
}

impl Places {
    /// The lowest that is free.
    pub fn take(&mut self) -> Option<Place> {
        let word = self.taken.iter().position(|&word| word != u64::MAX)?;
        let place = Place::new((64 * word) as u16 + self.taken[word].trailing_ones() as u16)?;
        self.take_this(place).then_some(place)
    }

    /// That one; false if it is taken.
    pub fn take_this(&mut self, place: Place) -> bool {
        let (word, bit) = (usize::from(place.number()) / 64, 1_u64 << (place.number() % 64));
        let free = self.taken[word] & bit == 0;
        self.taken[word] |= bit;
        self.count += u32::from(free);
        free
    }

    /// Gives one back that was taken.
    pub fn give_back(&mut self, place: Place) {
        let (word, bit) = (usize::from(place.number()) / 64, 1_u64 << (place.number() % 64));
        assert!(place.number() >= Place::FIRST && self.taken[word] & bit != 0); // Ours.
        self.taken[word] &= !bit;
        self.count -= 1;
    }

    /// How many are taken.
    pub fn count(&self) -> u32 {
        self.count
    }
}

#[derive(Debug)]
struct Slot {
    owner: Owner,
    /// Which of a guest's windows it lies in.
    window: WindowNumber,
    places: Places,
    /// False for a board from before a restart whose ringing end only its peers have, and for one whose window is gone: it cannot be
    /// offered to others.
    offered: bool,
}

/// A place on a board, taken for a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The board.
    pub board: BoardIndex,
    /// The place on it.
    pub place: Place,
    /// True if the board has to be made: there was none for this owner in this window.
    pub new_board: bool,
}

/// The boards of one domain. Board 0 is for the daemon and for domains of its own owner.
#[derive(Debug)]
pub struct Boards {
    slots: [Option<Slot>; BOARDS_MAX],
}

impl Boards {
    /// The board that a domain begins with.
    pub fn new(own: Owner) -> Self {
        let mut slots = [const { None }; BOARDS_MAX];
        let (places, window) = (Places::default(), WindowNumber::OWN);
        slots[0] = Some(Slot { owner: own, window, places, offered: true });
        Self { slots }
    }

    /// Takes a place for a channel with a domain of `owner`, in this window. Where there is no board for both, one that nobody uses any
    /// more gives way, or a new one is made.
    pub fn reserve(&mut self, owner: Owner, window: WindowNumber) -> Result<Reserved, Reason> {
        let fits = |slot: &Slot| slot.owner == owner && slot.window == window && slot.offered;
        let known = self.slots.iter().position(|slot| slot.as_ref().is_some_and(fits));
        let idle = |slot: &Option<Slot>| slot.as_ref().is_none_or(|slot| slot.places.count() == 0);
        let index = match known {
            Some(index) => index,
            None => {
                let free = self.slots.iter().position(Option::is_none);
                let index =
                    free.or_else(|| Some(1 + self.slots[1..].iter().position(idle)?)).ok_or(Reason::BoardsFull)?;
                self.slots[index] = Some(Slot { owner, window, places: Places::default(), offered: true });
                index
            }
        };
        let slot = self.slots[index].as_mut().expect("found or made above");
        let place = slot.places.take().ok_or(Reason::PlacesFull)?;
        let board = BoardIndex::new(index as u8).expect("there are no more slots than boards");
        Ok(Reserved { board, place, new_board: known.is_none() })
    }

    /// Takes note of a board from before a restart.
    pub fn adopt(&mut self, board: BoardIndex, owner: Owner) -> Result<(), Reason> {
        let slot = &mut self.slots[usize::from(board.number())];
        if slot.is_some() {
            return Err(Reason::RequestInvalid);
        }
        *slot = Some(Slot { owner, window: WindowNumber::OWN, places: Places::default(), offered: false });
        Ok(())
    }

    /// Takes a place that a channel from before a restart has.
    pub fn adopt_place(&mut self, board: BoardIndex, place: Place) -> Result<(), Reason> {
        let slot = self.slots[usize::from(board.number())].as_mut().ok_or(Reason::RequestInvalid)?;
        if slot.places.take_this(place) { Ok(()) } else { Err(Reason::RequestInvalid) }
    }

    /// Gives back the place of a channel that is over.
    pub fn give_back(&mut self, board: BoardIndex, place: Place) {
        let slot = self.slots[usize::from(board.number())].as_mut().expect("a board with channels stays");
        slot.places.give_back(place);
    }

    /// A window is gone: the boards in it, which are offered to nobody from now on.
    pub fn retire(&mut self, window: WindowNumber) -> Vec<BoardIndex> {
        let mut retired = Vec::new();
        for (index, slot) in (0..).zip(&mut self.slots) {
            if let Some(slot) = slot.as_mut().filter(|slot| slot.window == window && slot.offered) {
                slot.offered = false;
                retired.extend(BoardIndex::new(index));
            }
        }
        retired
    }

    /// How many boards there are.
    pub fn len(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Never: there is the first one.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_owner_has_a_board_and_each_channel_a_place() {
        let mut boards = Boards::new(Owner(7));
        let own = boards.reserve(Owner(7), WindowNumber::OWN).unwrap();
        assert_eq!((own.board.number(), own.place.number(), own.new_board), (0, 2, false));
        let other = boards.reserve(Owner(8), WindowNumber::OWN).unwrap();
        assert_eq!((other.board.number(), other.place.number(), other.new_board), (1, 2, true));
        let next = boards.reserve(Owner(8), WindowNumber::OWN).unwrap();
        assert_eq!((next.board.number(), next.place.number(), next.new_board), (1, 3, false));
        boards.give_back(other.board, other.place);
        assert_eq!(boards.reserve(Owner(8), WindowNumber::OWN).unwrap().place.number(), 2);
    }

    #[test]
    fn each_window_has_boards_of_its_own_until_it_is_gone() {
        let mut boards = Boards::new(Owner(7));
        let common = boards.reserve(Owner(7), WindowNumber(3)).unwrap();
        assert_eq!((common.board.number(), common.new_board), (1, true));
        assert!(!boards.reserve(Owner(7), WindowNumber(3)).unwrap().new_board);
        assert_eq!(boards.reserve(Owner(7), WindowNumber::OWN).unwrap().board.number(), 0);
        assert_eq!(boards.retire(WindowNumber(3)), [common.board]);
        boards.give_back(common.board, common.place);
        let next = boards.reserve(Owner(7), WindowNumber(3)).unwrap();
        assert_eq!((next.board.number(), next.new_board), (2, true));
    }

    #[test]
    fn a_board_without_channels_gives_way() {
        let mut boards = Boards::new(Owner(0));
        let taken: Vec<_> =
            (1..BOARDS_MAX as u32).map(|owner| boards.reserve(Owner(owner), WindowNumber::OWN).unwrap()).collect();
        assert_eq!(boards.reserve(Owner(99), WindowNumber::OWN), Err(Reason::BoardsFull));
        boards.give_back(taken[4].board, taken[4].place);
        let reserved = boards.reserve(Owner(99), WindowNumber::OWN).unwrap();
        assert_eq!((reserved.board, reserved.new_board), (taken[4].board, true));
    }

    #[test]
    fn places_run_out() {
        let mut boards = Boards::new(Owner(0));
        for _ in u32::from(Place::FIRST)..BOARD_PLACES {
            boards.reserve(Owner(0), WindowNumber::OWN).unwrap();
        }
        assert_eq!(boards.reserve(Owner(0), WindowNumber::OWN), Err(Reason::PlacesFull));
    }

    #[test]
    fn an_adopted_board_is_not_offered_again() {
        let mut boards = Boards::new(Owner(0));
        let (board, place) = (BoardIndex::new(1).unwrap(), Place::new(9).unwrap());
        boards.adopt(board, Owner(5)).unwrap();
        assert_eq!(boards.adopt(board, Owner(5)), Err(Reason::RequestInvalid));
        boards.adopt_place(board, place).unwrap();
        assert_eq!(boards.adopt_place(board, place), Err(Reason::RequestInvalid));
        assert_eq!(boards.adopt_place(BoardIndex::new(3).unwrap(), place), Err(Reason::RequestInvalid));
        let fresh = boards.reserve(Owner(5), WindowNumber::OWN).unwrap();
        assert_eq!((fresh.board.number(), fresh.new_board), (2, true));
    }
}
