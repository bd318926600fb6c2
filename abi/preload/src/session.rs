//! The process's session with the daemon: sockets that were shown, and what came of them.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant};

use core::ffi::c_int;
use isthmus_client::sockets::{StreamAttachment, StreamEvent, StreamSession};
use isthmus_layout::sockets::{
    BOARD_SIZE, LISTED_KEY, LISTED_KEY_WORDS, LISTED_SIZE, STREAM_SIZE, StreamEndIndex, WAITERS_MAX, WaiterIndex,
    listed_bit, listed_mask, listed_word,
};
use isthmus_platform::{Doorbell, Ring};
use isthmus_shm::stream::{Board, StreamMemory};
use isthmus_shm::{Access, Mapping, SharedMapping, Words};
use rustix::fd::{AsFd, OwnedFd};

use crate::connection::{Connection, Stage, Stream};
use crate::table::InUse;
use crate::waiter::LocalBoard;
use crate::{real, settings};

/// Time between two tries to reach a daemon that does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// The time after which a thread looks for doorbells again, while some are missing.
const MISSED_MS: c_int = 5;

/// The time after which a thread looks again for what a peer may not have been able to announce.
const FORKED_MS: c_int = 20;

/// Calls after which a waiting answer is looked for only on one of [`RARE`] calls.
const EAGER_CALLS: u32 = 64;
const RARE: u32 = 16;

/// A process at the other end of streams.
pub(crate) struct Peer {
    pub(crate) board: Board<SharedMapping>,
    doorbells: Mutex<Vec<Option<Doorbell>>>,
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
        let Ok(state) = SESSION.lock() else { return };
        let is_mine = |session: &Session| session.peers.values().any(|peer| core::ptr::eq(&raw const **peer, self));
        if !matches!(&*state, Some(State::With(session)) if is_mine(session)) {
            return; // The doorbell never comes: the session has ended, or it is that of a parent. Then the peer looks again without a doorbell.
        }
        let bit = 1 << waiter.number();
        if self.missed.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            MISSED.fetch_add(1, Ordering::Relaxed);
        }
        take_messages(state);
        self.ring_missed(waiter);
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

    fn try_ring(&self, waiter: WaiterIndex) -> bool {
        let doorbell = self.doorbells.lock().ok().and_then(|bells| bells[usize::from(waiter.number())].clone());
        doorbell.inspect(Doorbell::ring).is_some()
    }
}

struct Session {
    daemon: StreamSession,
    board: Arc<LocalBoard>,
    peers: HashMap<u32, Arc<Peer>>,
    /// Doorbells that came before their peer's board.
    early: HashMap<u32, Vec<(u8, Doorbell)>>,
    shown: HashMap<u32, InUse<Connection>>,
}

enum State {
    /// No daemon answered at this time.
    Without(Instant),
    With(Box<Session>),
}

static SESSION: Mutex<Option<State>> = Mutex::new(None);
static LISTED: RwLock<Option<SharedMapping>> = RwLock::new(None);
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
    let mut state = SESSION.lock().ok()?;
    let is_due = match &*state {
        None => true,
        Some(State::Without(since)) => since.elapsed() >= RETRY,
        Some(State::With(_)) => false,
    };
    if is_due {
        *state =
            Some(attach().map_or_else(|| State::Without(Instant::now()), |session| State::With(Box::new(session))));
    }
    match state.as_mut() {
        Some(State::With(session)) => Some(f(session)),
        _ => None,
    }
}

fn attach() -> Option<Session> {
    let StreamAttachment { session, board, listed } = StreamSession::attach(&settings::get().options).ok()?;
    let map = |file: &OwnedFd, size, access| Mapping::new(file, size, access).ok().map(SharedMapping::new);
    let board = map(&board, BOARD_SIZE, Access::ReadWrite)?;
    let page = map(&listed, LISTED_SIZE, Access::Read)?;
    *LISTED.write().ok()? = Some(page);
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
    let Ok(listed) = LISTED.read() else { return false };
    let Some(page) = &*listed else { return false };
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
    let mut state = SESSION.lock().ok()?;
    match state.as_mut() {
        Some(State::With(session)) => Some(f(session)),
        _ => None,
    }
}

/// Shows a connection to the daemon. Its stage is `Shown`.
pub(crate) fn show(connection: &InUse<Connection>, fd: c_int) {
    let token = token();
    connection.token.store(token, Ordering::Relaxed);
    // SAFETY: as in `listen`.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let shown = with(|session| {
        session.daemon.show(token, socket, connection.syn()).ok()?;
        session.shown.insert(token, connection.clone());
        WAITING.fetch_add(1, Ordering::Relaxed);
        CALLS.store(0, Ordering::Relaxed);
        Some(())
    });
    if shown.flatten().is_none() {
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

/// Tells the daemon that this end of a stream is gone.
pub(crate) fn ended(stream: u64, violation: bool) {
    with_present(|session| session.daemon.ended(stream, violation));
}

/// Makes a doorbell for a new waiter of `board`.
pub(crate) fn new_doorbell(board: &Arc<LocalBoard>, waiter: WaiterIndex) -> Option<Doorbell> {
    with_present(|session| {
        if !Arc::ptr_eq(&session.board, board) {
            return None;
        }
        let doorbell = Doorbell::new().ok()?;
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

/// Returns how long a thread may sleep that wants to sleep for `timeout` milliseconds. While doorbells are missing, that is a short time,
/// because a peer may not answer before this process has rung. `has_forked`: a peer that the thread waits for may not be able to ring.
pub(crate) fn sleep_ms(timeout: c_int, has_forked: bool) -> c_int {
    let most = if MISSED.load(Ordering::Relaxed) != 0 {
        pump();
        MISSED_MS
    } else if has_forked {
        FORKED_MS
    } else {
        return timeout;
    };
    if timeout < 0 { most } else { timeout.min(most) }
}

/// Takes the messages of the daemon, and waits until no doorbell is missing, for at most `time`.
pub(crate) fn await_missed(time: Duration) {
    let until = Instant::now() + time;
    pump();
    while MISSED.load(Ordering::Relaxed) != 0 && Instant::now() < until {
        // SAFETY: no entries.
        unsafe { real::poll(core::ptr::null_mut(), 0, 1) };
        pump();
    }
}

/// Takes all messages of the daemon, unless another thread uses the session.
fn pump() {
    if let Ok(state) = SESSION.try_lock() {
        take_messages(state);
    }
}

fn take_messages(mut state: MutexGuard<'_, Option<State>>) {
    let mut done = Vec::new();
    let Some(State::With(session)) = state.as_mut() else { return };
    loop {
        match session.daemon.next_event() {
            Ok(Some(event)) => done.extend(session.take(event)),
            Ok(None) => break,
            Err(_) => {
                // The daemon is gone. Streams go on without it; what was shown stays on TCP.
                for connection in session.shown.drain().map(|(_, connection)| connection) {
                    connection.set_stage(Stage::Off);
                    done.push(connection);
                }
                WAITING.store(0, Ordering::Relaxed);
                *state = Some(State::Without(Instant::now()));
                break;
            }
        }
    }
    drop(state);
    drop(done); // Outside the lock, because each may be a last use.
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
            StreamEvent::Waiter { peer, waiter, doorbell } => {
                self.add_doorbell(peer, waiter, doorbell);
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
        if connection.is_some() {
            WAITING.fetch_sub(1, Ordering::Relaxed);
        }
        connection
    }

    fn add_doorbell(&mut self, peer: u32, waiter: u8, doorbell: Doorbell) {
        let Some(known) = self.peers.get(&peer) else {
            self.early.entry(peer).or_default().push((waiter, doorbell));
            return;
        };
        if let Ok(mut doorbells) = known.doorbells.lock()
            && let Some(place) = doorbells.get_mut(usize::from(waiter))
        {
            *place = Some(doorbell);
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
            let doorbells = Mutex::new(vec![None; usize::from(WAITERS_MAX)]);
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
    // Another thread of the parent may have held the lock. Then the child has no session.
    if let Ok(mut state) = SESSION.try_lock()
        && let Some(State::With(session)) = state.take()
    {
        for connection in session.shown.values() {
            connection.set_stage(Stage::Off);
        }
    }
    WAITING.store(0, Ordering::Relaxed);
}
