//! The process's session with the daemon: sockets that were shown, and what came of them.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use core::ffi::c_int;
use isthmus_client::sockets::{StreamAttachment, StreamEvent, StreamSession};
use isthmus_layout::sockets::{
    ALARM, BOARD_SIZE, LISTED_KEY, LISTED_KEY_WORDS, LISTED_SIZE, STREAM_SIZE, StreamEndIndex, WAITERS_MAX,
    WaiterIndex, listed_bit, listed_mask, listed_word,
};
use isthmus_platform::{Doorbell, Ring};
use isthmus_shm::stream::{Board, StreamMemory};
use isthmus_shm::{Access, Mapping, SharedMapping, Words};
use isthmus_sockets::SPILL_MS;
use rustix::fd::{AsFd, OwnedFd};

use crate::connection::{Connection, Stage, Stream};
use crate::inside::Inside;
use crate::private_lock::PrivateLock;
use crate::table::InUse;
use crate::waiter::LocalBoard;
use crate::{alarm, kernel, settings};

/// Time between two tries to reach a daemon that does not answer.
const RETRY_MS: u64 = 1000;

/// The time after which a thread looks for doorbells again, while some are missing.
const MISSED_NS: u64 = 5_000_000;

/// The longest time that a thread waits for the doorbell of a peer's new waiter, in nanoseconds. Later ones are rung when a thread of this
/// process waits or looks.
const DOORBELL_NS: u64 = 100_000_000;

/// The time after which a thread looks again for what a peer may not have been able to announce.
const FORKED_NS: u64 = 20_000_000;

/// Calls after which a waiting answer is looked for only on one of [`RARE`] calls.
const EAGER_CALLS: u32 = 64;
const RARE: u32 = 16;

/// A process at the other end of streams.
pub(crate) struct Peer {
    pub(crate) board: Board<SharedMapping>,
    /// Each is set once.
    doorbells: [OnceLock<Doorbell>; WAITERS_MAX as usize],
    /// Waiters that must be woken when their doorbells come: a bit for each.
    missed: AtomicU64,
}

impl Peer {
    /// Rings the doorbell of one of the peer's waiters.
    pub(crate) fn ring(&self, waiter: WaiterIndex) {
        if !self.try_ring(waiter) {
            self.ring_late(waiter);
        }
    }

    /// Looks for the doorbell of a new waiter. The daemon sent it before the peer could use the waiter, but it sends no descriptor while
    /// this process has not received the one before. So the doorbell may come later, and is rung then.
    #[cold]
    fn ring_late(&self, waiter: WaiterIndex) {
        let is_mine = with_present(|session| session.peers.values().any(|peer| core::ptr::eq(&raw const **peer, self)));
        if is_mine != Some(true) {
            return; // The doorbell never comes: the session has ended, or it is that of a parent. Then the peer looks again without a doorbell.
        }
        let bit = 1 << waiter.number();
        if self.missed.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            MISSED.fetch_add(1, Ordering::Relaxed);
        }
        // This thread may not come back for long, so it waits for the doorbell. The daemon answers at once, unless it is stopped.
        let until = kernel::now_ns() + DOORBELL_NS;
        loop {
            take_messages();
            self.ring_missed(waiter);
            if self.missed.load(Ordering::Acquire) & bit == 0 || kernel::now_ns() >= until {
                return;
            }
            kernel::pause();
        }
    }

    /// Rings a doorbell that was missing before, if it has come.
    fn ring_missed(&self, waiter: WaiterIndex) {
        let bit = 1 << waiter.number();
        if self.missed.load(Ordering::Acquire) & bit != 0
            && self.try_ring(waiter)
            && self.missed.fetch_and(!bit, Ordering::AcqRel) & bit != 0
        {
            MISSED.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Rings the peer's alarm.
    pub(crate) fn alarm(&self) {
        WaiterIndex::new(ALARM).map(|alarm| self.try_ring(alarm));
    }

    fn try_ring(&self, waiter: WaiterIndex) -> bool {
        self.doorbells[usize::from(waiter.number())].get().inspect(|doorbell| doorbell.ring()).is_some()
    }
}

pub(crate) struct Session {
    daemon: StreamSession,
    board: Arc<LocalBoard>,
    peers: HashMap<u32, Arc<Peer>>,
    /// Doorbells that came before their peer's board.
    early: HashMap<u32, Vec<(u8, Doorbell)>>,
    shown: HashMap<u32, InUse<Connection>>,
}

/// The state of the session.
pub(crate) enum State {
    /// No daemon answered at this time, in milliseconds.
    Without(u64),
    With(Box<Session>),
}

static SESSION: PrivateLock<Option<State>> = PrivateLock::new(None);
/// The listed page of the last session. Those of earlier ones stay mapped, because a thread may be looking at them.
static LISTED: AtomicPtr<SharedMapping> = AtomicPtr::new(core::ptr::null_mut());
/// The bytes after which a connection is shown, as the daemon says.
static AFTER_BYTES: AtomicU64 = AtomicU64::new(u64::MAX);
static TOKENS: AtomicU32 = AtomicU32::new(1);
/// Sockets that were shown and not answered.
static WAITING: AtomicU32 = AtomicU32::new(0);
/// Doorbells that are missing.
static MISSED: AtomicU32 = AtomicU32::new(0);
static CALLS: AtomicU32 = AtomicU32::new(0);

/// Calls `f` with the session, which is made if a daemon answers.
fn with<R>(f: impl FnOnce(&mut Session) -> R) -> Option<R> {
    if !settings::get().enabled {
        return None;
    }
    let _inside = Inside::enter();
    SESSION.with(|state| {
        let is_due = match &*state {
            None => true,
            Some(State::Without(since)) => kernel::now_ms().saturating_sub(*since) >= RETRY_MS,
            Some(State::With(_)) => false,
        };
        if is_due {
            *state = Some(attach().map_or_else(without, |session| State::With(Box::new(session))));
        }
        match state {
            Some(State::With(session)) => Some(f(session)),
            _ => None,
        }
    })
}

fn without() -> State {
    State::Without(kernel::now_ms())
}

/// The lock of the session, which `fork` holds.
pub(crate) fn lock() -> &'static PrivateLock<Option<State>> {
    &SESSION
}

/// Returns the bytes in both directions after which a connection is shown.
pub(crate) fn after_bytes() -> u64 {
    settings::get().after_bytes.unwrap_or_else(|| AFTER_BYTES.load(Ordering::Relaxed))
}

fn attach() -> Option<Session> {
    let StreamAttachment { mut session, board, listed, after_bytes } =
        StreamSession::attach(&settings::get().options, kernel::placed).ok()?;
    let map = |file: &OwnedFd, size, access| Mapping::new(file, size, access).ok().map(SharedMapping::new);
    let board = map(&board, BOARD_SIZE, Access::ReadWrite)?;
    let page = map(&listed, LISTED_SIZE, Access::Read)?;
    LISTED.store(Box::leak(Box::new(page)), Ordering::Release);
    AFTER_BYTES.store(after_bytes, Ordering::Relaxed);
    // A daemon that does not know alarms refuses this one.
    if let (Some(at), Some(alarm)) = (WaiterIndex::new(ALARM), alarm::ringing()) {
        let _ = session.add_waiter(at, alarm);
    }
    Some(Session {
        daemon: session,
        board: Arc::new(LocalBoard::new(board)),
        peers: HashMap::new(),
        early: HashMap::new(),
        shown: HashMap::new(),
    })
}

/// Returns true if a program listens at this address, as far as the daemon knows. May return true for other addresses.
pub(crate) fn is_listed(address: core::net::SocketAddr) -> bool {
    if with(|_| ()).is_none() {
        return false;
    }
    // SAFETY: null, or a mapping that is never dropped.
    let Some(page) = (unsafe { LISTED.load(Ordering::Acquire).as_ref() }) else { return false };
    let key: [u32; LISTED_KEY_WORDS as usize] = page.load_words(LISTED_KEY);
    let is_set = |ip| {
        let bit = listed_bit(key, ip, address.port());
        page.load(listed_word(bit), Ordering::Relaxed) & listed_mask(bit) != 0
    };
    is_set(address.ip()) || is_set(core::net::Ipv6Addr::UNSPECIFIED.into())
}

fn token() -> u32 {
    TOKENS.fetch_add(1, Ordering::Relaxed)
}

/// Lists a listening socket. Returns its token, or None without a daemon.
pub(crate) fn listen(fd: c_int) -> Option<u32> {
    let token = token();
    // SAFETY: the program's descriptor, in a call of the program about it.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    with(|session| session.daemon.listen(token, socket).ok())?.map(|()| token)
}

/// Removes a listening socket from the list.
pub(crate) fn unlisten(token: u32) {
    with_present(|session| session.daemon.unlisten(token));
}

/// Calls `f` if there is a session, without making one.
fn with_present<R>(f: impl FnOnce(&mut Session) -> R) -> Option<R> {
    let _inside = Inside::enter();
    SESSION.with(|state| match state {
        Some(State::With(session)) => Some(f(session)),
        _ => None,
    })
}

/// Shows a connection to the daemon. Its stage is `Shown`.
pub(crate) fn show(connection: &InUse<Connection>, fd: c_int) {
    let token = token();
    connection.token.store(token, Ordering::Relaxed);
    // SAFETY: as in `listen`.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    connection.is_copied.store(true, Ordering::Release);
    let shown = with(|session| {
        session.daemon.show(token, socket, connection.syn()).ok()?;
        session.shown.insert(token, connection.clone());
        WAITING.fetch_add(1, Ordering::Relaxed);
        CALLS.store(0, Ordering::Relaxed);
        Some(())
    });
    if shown.flatten().is_none() {
        connection.is_copied.store(false, Ordering::Release);
        connection.set_stage(Stage::Off);
    }
}

/// Withdraws a connection that was shown.
pub(crate) fn withdraw(token: u32) {
    let removed = with_present(|session| {
        let removed = session.shown.remove(&token);
        if removed.is_some() {
            WAITING.fetch_sub(1, Ordering::Relaxed);
            let _ = session.daemon.gone(token);
        }
        removed
    });
    drop(removed); // Outside the lock, because it may be the last use.
}

/// Tells the daemon that this end of a stream is gone. A stream of an earlier session, or of the parent's, is not this one's to end.
pub(crate) fn ended(stream: &Stream, violation: bool) {
    with_present(|session| {
        Arc::ptr_eq(&session.board, &stream.board).then(|| session.daemon.ended(stream.number, violation))
    });
}

/// Makes a doorbell for a new waiter of `board`.
pub(crate) fn new_doorbell(board: &Arc<LocalBoard>, waiter: WaiterIndex) -> Option<Doorbell> {
    with_present(|session| {
        if !Arc::ptr_eq(&session.board, board) {
            return None;
        }
        let doorbell = kernel::placed_doorbell(Doorbell::new().ok()?);
        session.daemon.add_waiter(waiter, doorbell.as_fd()).ok()?;
        Some(doorbell)
    })
    .flatten()
}

/// Looks for an answer of the daemon, if one is due.
#[inline]
pub(crate) fn look() {
    if WAITING.load(Ordering::Relaxed) > 0 {
        let calls = CALLS.fetch_add(1, Ordering::Relaxed);
        if calls < EAGER_CALLS || calls.is_multiple_of(RARE) {
            pump();
        }
    }
}

/// Returns the nanoseconds that a thread may sleep that wants to sleep for `time`, or without end. While doorbells are missing, that is a
/// short time, because a peer may not answer before this process has rung. `has_forked`: a peer that the thread waits for may not be able
/// to ring. `waits_for_room`: a ring is full, and goes to TCP if the peer reads nothing.
pub(crate) fn sleep_ns(time: Option<u64>, has_forked: bool, waits_for_room: bool) -> Option<u64> {
    let most = if MISSED.load(Ordering::Relaxed) != 0 {
        pump();
        MISSED_NS
    } else if waits_for_room {
        SPILL_MS * 1_000_000
    } else if has_forked {
        FORKED_NS
    } else {
        return time;
    };
    Some(time.map_or(most, |time| time.min(most)))
}

/// Takes the messages of the daemon, and waits until no doorbell is missing and the daemon has no copy of a socket, for at most `time`.
pub(crate) fn await_daemon(time: Duration) {
    let until = kernel::now_ns() + time.as_nanos() as u64;
    let is_awaited = || {
        MISSED.load(Ordering::Relaxed) != 0
            || WAITING.load(Ordering::Relaxed) != 0
                && with_present(|session| session.shown.values().any(|shown| shown.is_copied.load(Ordering::Relaxed)))
                    == Some(true)
    };
    pump();
    while is_awaited() && kernel::now_ns() < until {
        kernel::pause();
        pump();
    }
}

/// Takes all messages of the daemon, unless another thread uses the session.
pub(crate) fn pump() {
    let _inside = Inside::enter();
    let done = SESSION.try_with(take_all);
    drop(done); // Outside the lock, because each may be a last use.
}

/// Takes all messages of the daemon.
fn take_messages() {
    let _inside = Inside::enter();
    let done = SESSION.with(take_all);
    drop(done); // As above.
}

fn take_all(state: &mut Option<State>) -> Vec<InUse<Connection>> {
    let mut done = Vec::new();
    let Some(State::With(session)) = state.as_mut() else { return done };
    loop {
        match session.daemon.next_event() {
            Ok(Some(event)) => done.extend(session.take(event)),
            Ok(None) => return done,
            Err(_) => {
                // The daemon is gone. Streams go on without it; what was shown stays on TCP.
                for connection in session.shown.drain().map(|(_, connection)| connection) {
                    connection.is_copied.store(false, Ordering::Release);
                    connection.set_stage(Stage::Off);
                    done.push(connection);
                }
                WAITING.store(0, Ordering::Relaxed);
                *state = Some(without());
                return done;
            }
        }
    }
}

impl Session {
    /// Handles a message. Returns the connection that it answers.
    fn take(&mut self, event: StreamEvent) -> Option<InUse<Connection>> {
        match event {
            StreamEvent::Paired { token, stream, end, peer, memory, board } => {
                let connection = self.answered(token);
                let made = self.stream(stream, end, peer, &memory, board);
                match (&connection, made) {
                    (Some(connection), Some(made)) => connection.pair(made),
                    (connection, _) => {
                        if let Some(connection) = connection {
                            connection.set_stage(Stage::Off);
                        }
                        let _ = self.daemon.ended(stream, false);
                    }
                }
                connection
            }
            StreamEvent::Refused { token, .. } => {
                let connection = self.answered(token);
                if let Some(connection) = &connection {
                    connection.set_stage(Stage::Off);
                }
                connection
            }
            StreamEvent::Waiting { token } => {
                if let Some(connection) = self.shown.get(&token) {
                    connection.is_copied.store(false, Ordering::Release);
                }
                None
            }
            StreamEvent::Waiter { peer, waiter, doorbell } => {
                self.add_doorbell(peer, waiter, kernel::placed_doorbell(doorbell));
                None
            }
            StreamEvent::PeerLeft { peer } => {
                self.peers.remove(&peer);
                self.early.remove(&peer);
                None
            }
            StreamEvent::Other => None,
        }
    }

    fn answered(&mut self, token: u32) -> Option<InUse<Connection>> {
        let connection = self.shown.remove(&token);
        if let Some(connection) = &connection {
            WAITING.fetch_sub(1, Ordering::Relaxed);
            connection.is_copied.store(false, Ordering::Release);
        }
        connection
    }

    fn add_doorbell(&mut self, peer: u32, waiter: u8, doorbell: Doorbell) {
        let Some(known) = self.peers.get(&peer) else {
            self.early.entry(peer).or_default().push((waiter, doorbell));
            return;
        };
        if let Some(place) = known.doorbells.get(usize::from(waiter)) {
            let _ = place.set(doorbell); // The daemon sends each once.
        }
        if let Some(waiter) = WaiterIndex::new(waiter) {
            known.ring_missed(waiter);
        }
    }

    fn stream(
        &mut self,
        number: u64,
        end: StreamEndIndex,
        peer: u32,
        memory: &OwnedFd,
        board: Option<OwnedFd>,
    ) -> Option<Stream> {
        let map = |file: &OwnedFd, size| Mapping::new(file, size, Access::ReadWrite).ok().map(SharedMapping::new);
        if let Some(board) = board {
            let board = Board::new(map(&board, BOARD_SIZE)?);
            let doorbells = [const { OnceLock::new() }; WAITERS_MAX as usize];
            self.peers.insert(peer, Arc::new(Peer { board, doorbells, missed: AtomicU64::new(0) }));
            for (waiter, doorbell) in self.early.remove(&peer).unwrap_or_default() {
                self.add_doorbell(peer, waiter, doorbell);
            }
        }
        let peer = Arc::clone(self.peers.get(&peer)?);
        let memory = StreamMemory::new(map(memory, STREAM_SIZE)?, end);
        Some(Stream { number, memory, peer, board: Arc::clone(&self.board) })
    }
}

/// Forgets the session of the parent, in a child after `fork`.
pub(crate) fn forget() {
    let _inside = Inside::enter();
    if let Some(State::With(session)) = SESSION.with(Option::take) {
        for connection in session.shown.values() {
            connection.set_stage(Stage::Off);
        }
    }
    for count in [&WAITING, &MISSED] {
        count.store(0, Ordering::Relaxed);
    }
}
