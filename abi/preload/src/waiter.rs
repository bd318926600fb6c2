//! The waiter of an epoll set or of a blocked thread: a doorbell, and a page of each board by which peers reach it.
//!
//! ```text
//!              board of the session   board of an earlier one   board for another owner
//!   waiter 0   page                   page                      page        eventfd, socket of the other owner
//!   waiter 1   page                                                         eventfd
//! ```
//!
//! Waiters belong to the process, and boards to a session with the daemon. A waiter *joins* a board with the first stream that needs it: the
//! daemon gives its doorbell to the peers that know the board. Peers of the own owner get the eventfd. Those of another owner could drain it
//! or fill it, so these get a socket that was made for them ([`crate::owner_bells`]).
//!
//! A page is memory of its waiter for as long as the waiter may look at it. It is unmapped after the last stream and the session of its board.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use std::cell::RefCell;
use std::sync::{Arc, Weak};

use isthmus_channel::wait::AdaptiveSpin;
use isthmus_layout::limits::READY_MAPS_MAX;
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::sockets::{ALARM, WaiterIndex, Want};
use isthmus_platform::{Doorbell, Ring};
use isthmus_shm::SharedMapping;
use isthmus_shm::stream::Board;
use rustix::fd::{AsFd, AsRawFd};

use crate::inside::{Inside, SleepBell};
use crate::owner_bells::{OwnerBell, OwnerBells};
use crate::private_lock::PrivateLock;
use crate::{kernel, session};

/// The waiters of the process. The lock is taken after that of a set.
pub(crate) static LOCK: PrivateLock<Waiters> = PrivateLock::new(Waiters { free: Vec::new(), made: 0 });

/// Waiters that are tried for a board, before the caller goes without.
const TRIES: usize = 2;

/// The number of forks between this process and the first one with the library.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The waiters that no one uses.
pub(crate) struct Waiters {
    free: Vec<Parts>,
    made: u8,
}

/// A board of this process. Streams and sessions have it; waiters have pages of it.
pub(crate) struct LocalBoard {
    /// The memory.
    pub(crate) memory: Arc<Board<SharedMapping>>,
    /// The session that the board belongs to.
    pub(crate) session: u64,
    /// The daemon's number of a board for another owner. None: peers of the own owner use the board.
    pub(crate) number: Option<u32>,
}

/// A page of a board that a waiter has joined.
struct Page {
    board: Weak<LocalBoard>,
    memory: Arc<Board<SharedMapping>>,
    /// The doorbell for another owner.
    bell: Option<OwnerBell>,
}

/// The parts of a waiter.
struct Parts {
    index: WaiterIndex,
    doorbell: Doorbell,
    pages: Vec<Page>,
    bells: Option<OwnerBells>,
    /// The process that has made it. A child of `fork` uses the waiters of its parent for the boards that they have joined, and no others.
    generation: u32,
}

/// A waiter. It returns to the free ones when dropped.
pub(crate) struct Waiter(Option<Parts>);

impl Waiters {
    /// Takes a free waiter for a board, if possible one that serves it already. One that has no page left is none, nor is the one that was refused
    /// before.
    fn take_free(&mut self, board: &Arc<LocalBoard>, refused: Option<WaiterIndex>) -> Option<Parts> {
        let serving = self.free.iter().position(|free| free.serves(board));
        let may_join = |free: &Parts| free.is_own() && free.has_page() && Some(free.index) != refused;
        let at = serving.or_else(|| self.free.iter().rposition(may_join))?;
        Some(self.free.swap_remove(at))
    }
}

impl LocalBoard {
    /// A board in this memory.
    pub(crate) fn new(memory: SharedMapping, session: u64, number: Option<u32>) -> Self {
        Self { memory: Arc::new(Board::new(memory)), session, number }
    }
}

impl Page {
    fn is_of(&self, board: &Arc<LocalBoard>) -> bool {
        core::ptr::eq(self.board.as_ptr(), Arc::as_ptr(board))
    }

    /// True if peers of another owner have misused the page, and nothing looks at it for now.
    fn is_muted(&self) -> bool {
        self.bell.as_ref().is_some_and(OwnerBell::is_muted)
    }
}

impl Parts {
    fn serves(&self, board: &Arc<LocalBoard>) -> bool {
        self.pages.iter().any(|page| page.is_of(board))
    }

    /// True if the waiter can join one more board.
    fn has_page(&self) -> bool {
        self.pages.iter().filter(|page| page.board.strong_count() > 0).count() < READY_MAPS_MAX
    }

    fn is_own(&self) -> bool {
        self.generation == GENERATION.load(Ordering::Relaxed)
    }
}

impl Waiter {
    /// Returns a waiter that serves a board. None if the process has no more, or the daemon does not answer.
    pub(crate) fn serving(board: &Arc<LocalBoard>) -> Option<Self> {
        let mut refused = None;
        for _ in 0..TRIES {
            let free = LOCK.with(|waiters| waiters.take_free(board, refused)).map(|parts| Self(Some(parts)));
            let mut waiter = free.or_else(Self::make)?;
            if waiter.join(board) {
                return Some(waiter);
            }
            refused = Some(waiter.parts().index);
            waiter.wait_behind_others();
            if !session::is_of(board) {
                return None; // Nothing can join it any more.
            }
        }
        None
    }

    /// Puts a waiter that could not join a board behind the other free ones. The daemon may know its number already, from a try of which
    /// this process did not get the answer.
    fn wait_behind_others(mut self) {
        if let Some(parts) = self.0.take() {
            LOCK.with(|waiters| waiters.free.insert(0, parts));
        }
    }

    fn make() -> Option<Self> {
        let _inside = Inside::enter();
        let doorbell = kernel::placed_doorbell(Doorbell::new().ok()?);
        let index = LOCK.with(|waiters| {
            let index = WaiterIndex::new(waiters.made).filter(|_| waiters.made < ALARM)?;
            waiters.made += 1;
            Some(index)
        })?;
        let generation = GENERATION.load(Ordering::Relaxed);
        Some(Self(Some(Parts { index, doorbell, pages: Vec::new(), bells: None, generation })))
    }

    fn parts(&self) -> &Parts {
        self.0.as_ref().expect("taken when dropped")
    }

    /// Returns true if peers reach the waiter by this board.
    pub(crate) fn serves(&self, board: &Arc<LocalBoard>) -> bool {
        self.parts().serves(board)
    }

    /// Lets peers reach the waiter by this board, too. Returns false if they cannot: the session of the board has ended, or the daemon does
    /// not answer.
    pub(crate) fn join(&mut self, board: &Arc<LocalBoard>) -> bool {
        self.serves(board) || self.join_new(board).is_some()
    }

    #[cold]
    fn join_new(&mut self, board: &Arc<LocalBoard>) -> Option<()> {
        let _inside = Inside::enter();
        let parts = self.0.as_mut().filter(|parts| parts.is_own())?;
        parts.leave_ended_boards();
        if parts.pages.len() >= READY_MAPS_MAX {
            return None;
        }
        let bell = match board.number {
            None => {
                session::add_waiter(board, parts.index, parts.doorbell.as_fd()).then_some(())?;
                None
            }
            Some(_) => {
                let (receiver, ringing) = Doorbell::socket_pair().ok()?;
                let bells = match &parts.bells {
                    Some(bells) => bells,
                    None => parts.bells.insert(OwnerBells::new()?),
                };
                let bell = bells.watch(kernel::placed_doorbell(receiver))?;
                session::add_waiter(board, parts.index, ringing.as_fd()).then_some(())?;
                Some(bell)
            }
        };
        parts.pages.push(Page { board: Arc::downgrade(board), memory: Arc::clone(&board.memory), bell });
        Some(())
    }

    /// The descriptor to wait on.
    pub(crate) fn fd(&self) -> c_int {
        self.parts().doorbell.as_fd().as_raw_fd()
    }

    /// The second descriptor to wait on, for peers of other owners. None if there are none. A child of `fork` does not use that of its
    /// parent: it looks again without doorbells.
    pub(crate) fn bells_fd(&self) -> Option<c_int> {
        self.own_bells().map(|bells| bells.as_fd().as_raw_fd())
    }

    fn own_bells(&self) -> Option<&OwnerBells> {
        let parts = self.parts();
        parts.bells.as_ref().filter(|_| parts.is_own())
    }

    /// Rings the waiter's own doorbell.
    pub(crate) fn ring(&self) {
        self.parts().doorbell.ring();
    }

    /// Discards rings that were not waited for.
    pub(crate) fn clear(&self) {
        self.parts().doorbell.clear();
        self.take_rings();
    }

    /// Takes the rings of peers of other owners.
    pub(crate) fn take_rings(&self) {
        if let Some(bells) = self.own_bells() {
            bells.take(|| self.parts().pages.iter().filter_map(|page| page.bell.as_ref()));
        }
    }

    /// Notes that a stream of a board was ready, so its peers wake this waiter with a reason.
    #[inline]
    pub(crate) fn found(&self, board: &Arc<LocalBoard>) {
        let parts = self.parts();
        if parts.bells.is_some()
            && let Some(page) = parts.pages.iter().find(|page| page.is_of(board))
        {
            page.bell.iter().for_each(OwnerBell::had_reason);
        }
    }

    /// The wish of a stream that this waiter checks before it sleeps.
    pub(crate) fn hot(&self) -> Want {
        Want::Hot(self.parts().index)
    }

    /// The wish of a stream that this waiter does not check.
    pub(crate) fn parked(&self, ready_bit: ReadyBit) -> Want {
        Want::Parked { waiter: self.parts().index, ready_bit }
    }

    /// Marks the waiter as sleeping. Returns true if it may sleep.
    pub(crate) fn begin_sleep(&self) -> bool {
        let parts = self.parts();
        let mut is_quiet = true;
        for page in &parts.pages {
            if let (Some(bell), Some(bells)) = (&page.bell, self.own_bells()) {
                bells.end_mute(bell);
            }
            if page.is_muted() || page.memory.ready_map(parts.index).begin_sleep() {
                continue;
            }
            // A page of the parent's waiter is no reason to stay awake: this process looks again in any case.
            is_quiet &= page.bell.is_some() && self.own_bells().is_none();
        }
        if !is_quiet {
            self.end_sleep();
        }
        is_quiet
    }

    /// Marks the waiter as awake.
    pub(crate) fn end_sleep(&self) {
        let parts = self.parts();
        parts.pages.iter().for_each(|page| page.memory.ready_map(parts.index).end_sleep());
    }

    /// Wakes the waiter if it sleeps.
    pub(crate) fn wake(&self) {
        let parts = self.parts();
        if parts.pages.iter().any(|page| page.memory.wake_hot(parts.index)) {
            parts.doorbell.ring();
        }
    }

    /// Returns true if any ready bit is set.
    pub(crate) fn is_any_set(&self) -> bool {
        let parts = self.parts();
        parts.pages.iter().any(|page| !page.is_muted() && page.memory.ready_map(parts.index).is_any_set())
    }

    /// Clears all ready bits, and calls `found` for each that was set, with the board that it was set in. The bits of another owner count as
    /// one, whether the waiter has slept or not: to look at them costs the more, the more streams there are.
    pub(crate) fn drain(&self, mut found: impl FnMut(*const LocalBoard, ReadyBit)) {
        let parts = self.parts();
        for page in parts.pages.iter().filter(|page| !page.is_muted()) {
            let ready_map = page.memory.ready_map(parts.index);
            if let (Some(bell), Some(bells), true) = (&page.bell, self.own_bells(), ready_map.is_any_set()) {
                bells.count(bell);
            }
            ready_map.drain(|bit| found(page.board.as_ptr(), bit));
        }
    }
}

impl Parts {
    /// Leaves the boards that no stream has any more, nor gets. The waiter is not asleep with any of them.
    fn leave_ended_boards(&mut self) {
        let bells = &self.bells;
        self.pages.retain(|page| {
            let is_used = page.board.strong_count() > 0;
            if let (false, Some(bells), Some(bell)) = (is_used, bells, &page.bell) {
                bells.forget(bell);
            }
            is_used
        });
    }
}

/// Marks a thread's sleep with a waiter that [`Waiter::begin_sleep`] allows, until it is dropped. A thread that is cancelled drops it, too.
pub(crate) struct Asleep<'a> {
    waiter: &'a Waiter,
    _bell: SleepBell,
}

impl<'a> Asleep<'a> {
    /// Begins.
    pub(crate) fn begin(waiter: &'a Waiter) -> Self {
        Self { waiter, _bell: SleepBell::begin(waiter.fd()) }
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.waiter.end_sleep();
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.0.is_none() {
            return; // It waits behind the others.
        }
        self.drain(|_, _| {});
        if let Some(parts) = self.0.take() {
            LOCK.with(|waiters| waiters.free.push(parts));
        }
    }
}

/// Begins to make waiters of its own, in a child after `fork`.
pub(crate) fn forget() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    LOCK.with(|waiters| waiters.made = 0); // Their boards are those of sessions of the child.
}

/// A thread's own means of waiting.
pub(crate) struct ThreadWaiter {
    pub(crate) spin: AdaptiveSpin,
    pub(crate) waiter: Option<Waiter>,
}

impl ThreadWaiter {
    /// Returns true if the thread's waiter serves a board. It may be another waiter than before.
    pub(crate) fn serves(&mut self, board: &Arc<LocalBoard>) -> bool {
        if self.waiter.as_mut().is_some_and(|waiter| waiter.join(board)) {
            return true;
        }
        let other = Waiter::serving(board);
        let is_found = other.is_some();
        if is_found {
            self.waiter = other;
        }
        is_found
    }
}

thread_local! {
    static THREAD: RefCell<ThreadWaiter> =
        RefCell::new(ThreadWaiter { spin: AdaptiveSpin::new(crate::settings::get().wait), waiter: None });
}

/// Calls `f` with what this thread waits by. None if the thread ends, or waits already.
pub(crate) fn with_thread<R>(f: impl FnOnce(&mut ThreadWaiter) -> R) -> Option<R> {
    let with = |thread: &RefCell<ThreadWaiter>| Some(f(&mut *thread.try_borrow_mut().ok()?));
    THREAD.try_with(with).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_layout::sockets::BOARD_SIZE;
    use isthmus_shm::{Access, Mapping};

    fn board(number: Option<u32>) -> Arc<LocalBoard> {
        let file = isthmus_platform::local::memory(BOARD_SIZE).unwrap();
        let memory = SharedMapping::new(Mapping::new(&file, BOARD_SIZE, Access::ReadWrite).unwrap());
        Arc::new(LocalBoard::new(memory, 0, number))
    }

    /// A waiter with a page of each board, as if the daemon knew it. Those for another owner have a doorbell.
    fn parts(index: u8, boards: &[Arc<LocalBoard>]) -> Parts {
        let bells = OwnerBells::new().unwrap();
        let page = |board: &Arc<LocalBoard>| {
            let bell = board.number.and_then(|_| bells.watch(Doorbell::socket_pair().unwrap().0));
            Page { board: Arc::downgrade(board), memory: Arc::clone(&board.memory), bell }
        };
        let (index, doorbell) = (WaiterIndex::new(index).unwrap(), Doorbell::new().unwrap());
        let (pages, generation) = (boards.iter().map(page).collect(), GENERATION.load(Ordering::Relaxed));
        Parts { index, doorbell, pages, bells: Some(bells), generation }
    }

    #[test]
    fn waiter_that_cannot_join_waits_behind_the_other_free_ones() {
        const NUMBERS: [u8; 2] = [40, 41];
        let places = || {
            LOCK.with(|waiters| {
                NUMBERS.map(|number| waiters.free.iter().position(|free| free.index.number() == number))
            })
        };
        let [first, second] = NUMBERS.map(|number| Waiter(Some(parts(number, &[]))));
        drop(first);
        second.wait_behind_others();
        let [first, second] = places();
        assert!(second.is_some() && second < first, "{first:?} {second:?}");
        LOCK.with(|waiters| waiters.free.retain(|free| !NUMBERS.contains(&free.index.number())));
    }

    #[test]
    fn free_waiter_without_a_page_left_is_not_taken_for_another_board() {
        let mut boards: Vec<_> = (0..READY_MAPS_MAX).map(|_| board(None)).collect();
        let (other, last) = (board(None), board(None));
        let free = vec![parts(0, &[]), parts(1, core::slice::from_ref(&last)), parts(2, &boards), parts(3, &[])];
        let mut waiters = Waiters { free, made: 4 };
        let refused = WaiterIndex::new(3);
        let mut take = |board: &Arc<LocalBoard>| {
            let taken = waiters.take_free(board, refused).map(|parts| parts.index.number());
            (taken, waiters.free.len())
        };
        assert_eq!(take(&last), (Some(1), 3), "it serves the board already");
        assert_eq!(take(&other), (Some(0), 2));
        assert_eq!(take(&other), (None, 2), "a new one is made");
        boards.pop();
        assert_eq!(take(&other), (Some(2), 1), "a board has ended");
    }

    #[test]
    fn bits_without_a_reason_mute_a_waiter_that_never_sleeps() {
        let board = board(Some(1));
        let waiter = Waiter(Some(parts(0, core::slice::from_ref(&board))));
        let mut found = 0;
        let mut set_and_drain = |is_reason: bool| {
            for bit in 0..100 {
                board.memory.notify(waiter.parked(ReadyBit::new(bit).unwrap()));
            }
            waiter.drain(|_, _| found += 1);
            if is_reason {
                waiter.found(&board);
            }
            waiter.parts().pages[0].bell.as_ref().unwrap().muted_until() != 0
        };
        for _ in 0..100 {
            assert!(!set_and_drain(true), "a program with a reason is not muted");
        }
        let drains = (1..=100).find(|_| set_and_drain(false)).unwrap();
        assert_eq!(found, 100 * (100 + drains), "the bits of one look count as one");
        assert!(drains > 1 && !waiter.is_any_set());
    }
}
