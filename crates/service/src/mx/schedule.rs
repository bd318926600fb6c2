//! Which boards are polled next: those that are active, and those that are due.
//!
//! A board is active from the moment that something happens to it until a poll leaves it without work. Other boards cost nothing,
//! however many there are.

use super::board::BoardIndex;
use isthmus_mx::net::Time;

/// The result of a poll of one board.
#[derive(Clone, Copy, Debug)]
pub(super) struct Polled {
    /// Something was done: there may be more.
    pub(super) is_busy: bool,
    /// Frames wait for room.
    pub(super) has_unsent: bool,
    /// The time of the next poll, if nothing happens before.
    pub(super) due: Option<Time>,
}

/// The place of one board.
#[derive(Debug)]
struct Entry {
    is_active: bool,
    /// The board was polled since the last sleep.
    is_touched: bool,
    due: Option<Time>,
}

/// The places of all boards.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    entries: Vec<Entry>,
    active: Vec<BoardIndex>,
    touched: Vec<BoardIndex>,
    /// The earliest of all times. May be too early.
    earliest: Option<Time>,
}

impl Schedule {
    /// Adds a board, which is active.
    pub(super) fn add(&mut self) -> BoardIndex {
        let board = BoardIndex(self.entries.len() as u32); // Control has 32 boards at most.
        self.entries.push(Entry { is_active: false, is_touched: false, due: None });
        self.activate(board);
        board
    }

    /// Has a board polled.
    pub(super) fn activate(&mut self, board: BoardIndex) {
        let Some(entry) = self.entries.get_mut(board.0 as usize) else { return };
        if !std::mem::replace(&mut entry.is_active, true) {
            self.active.push(board);
        }
    }

    /// Activates the boards that are due.
    pub(super) fn activate_due(&mut self, now: Time) {
        if self.earliest.is_none_or(|earliest| earliest > now) {
            return;
        }
        for at in 0..self.entries.len() {
            if self.entries[at].due.is_some_and(|due| due <= now) {
                self.activate(BoardIndex(at as u32));
            }
        }
        self.earliest = self.entries.iter().filter(|entry| !entry.is_active).filter_map(|entry| entry.due).min();
    }

    /// Calls `poll` with each active board. True if a poll did anything.
    pub(super) fn poll_active(&mut self, mut poll: impl FnMut(BoardIndex) -> Polled) -> bool {
        let mut busy = false;
        let mut active = std::mem::take(&mut self.active);
        active.retain(|&board| {
            let polled = poll(board);
            busy |= polled.is_busy;
            let entry = &mut self.entries[board.0 as usize];
            entry.is_active = polled.is_busy || polled.has_unsent;
            if !std::mem::replace(&mut entry.is_touched, true) {
                self.touched.push(board);
            }
            let is_active = entry.is_active;
            self.set_due(board, polled.due);
            is_active
        });
        self.active = active;
        busy
    }

    /// Sets the time at which a board is polled.
    pub(super) fn set_due(&mut self, board: BoardIndex, due: Option<Time>) {
        self.entries[board.0 as usize].due = due;
        self.earliest = self.earliest.into_iter().chain(due).min();
    }

    /// Takes one of the boards that were polled since the last sleep.
    pub(super) fn pop_touched(&mut self) -> Option<BoardIndex> {
        let board = self.touched.pop()?;
        self.entries[board.0 as usize].is_touched = false;
        Some(board)
    }

    /// The earliest time at which a board has to be polled.
    pub(super) fn next_due(&mut self) -> Option<Time> {
        self.earliest = self.entries.iter().filter_map(|entry| entry.due).min();
        self.earliest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::ZERO;

    fn polled(schedule: &mut Schedule, polled: Polled) -> Vec<u32> {
        let mut boards = Vec::new();
        schedule.poll_active(|board| {
            boards.push(board.0);
            polled
        });
        boards
    }

    #[test]
    fn boards_are_polled_while_they_have_work() {
        let mut schedule = Schedule::default();
        let idle = Polled { is_busy: false, has_unsent: false, due: None };
        let boards: Vec<_> = (0..3).map(|_| schedule.add()).collect();
        assert_eq!(polled(&mut schedule, Polled { is_busy: true, ..idle }), [0, 1, 2]);
        assert_eq!(polled(&mut schedule, Polled { has_unsent: true, ..idle }), [0, 1, 2]);
        assert_eq!(polled(&mut schedule, idle), [0, 1, 2]);
        assert_eq!(polled(&mut schedule, idle), []);
        schedule.activate(boards[1]);
        schedule.activate(boards[1]);
        assert_eq!(polled(&mut schedule, idle), [1]);
        assert_eq!(polled(&mut schedule, idle), []);
    }

    #[test]
    fn boards_are_polled_when_they_are_due() {
        let mut schedule = Schedule::default();
        let boards: Vec<_> = (0..3).map(|_| schedule.add()).collect();
        let due = |us| Polled { is_busy: false, has_unsent: false, due: Some(NOW.after_us(us)) };
        assert_eq!(polled(&mut schedule, due(30)), [0, 1, 2]);
        schedule.set_due(boards[2], Some(NOW.after_us(10)));
        assert_eq!(schedule.next_due(), Some(NOW.after_us(10)));
        schedule.activate_due(NOW.after_us(9));
        assert_eq!(polled(&mut schedule, due(50)), []);
        schedule.activate_due(NOW.after_us(10));
        assert_eq!(polled(&mut schedule, due(50)), [2]);
        schedule.activate_due(NOW.after_us(49));
        assert_eq!(polled(&mut schedule, due(90)), [0, 1]);
        schedule.activate_due(NOW.after_us(50));
        assert_eq!(polled(&mut schedule, due(90)), [2]);
        assert_eq!(schedule.next_due(), Some(NOW.after_us(90)));
    }

    #[test]
    fn boards_are_touched_by_polls() {
        let mut schedule = Schedule::default();
        let (first, _) = (schedule.add(), schedule.add());
        assert_eq!(schedule.pop_touched(), None);
        let busy = Polled { is_busy: true, has_unsent: false, due: None };
        for _ in 0..2 {
            polled(&mut schedule, busy);
            let touched = [schedule.pop_touched(), schedule.pop_touched()];
            assert!(touched.contains(&Some(first)) && !touched.contains(&None), "{touched:?}");
            assert_eq!(schedule.pop_touched(), None);
        }
    }
}
