//! The process's session with the daemon: sockets that were shown, and what came of them.

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use core::ffi::c_int;
use isthmus_client::sockets::{StreamAttachment, StreamEvent, StreamSession};
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::{
    ALARM, BOARD_SIZE, LISTED_BITS, LISTED_BITS_COUNT, LISTED_KEY, LISTED_KEY_WORDS, LISTED_SIZE, STREAM_SIZE,
    StreamEndIndex, WAITERS_MAX, WaiterIndex, listed_bit, listed_mask, listed_word,
};
use isthmus_platform::{Doorbell, Ring};
use isthmus_shm::stream::{Board, StreamMemory};
use isthmus_shm::{Access, Mapping, SharedMapping, Words};
use isthmus_sockets::SPILL_MS;
use rustix::fd::OwnedFd;

use crate::connection::{Connection, Stage, Stream, flags};
use crate::inside::Inside;
use crate::private_lock::PrivateLock;
use crate::table::{InUse, Tracked};
use crate::waiter::LocalBoard;
use crate::{alarm, fork, kernel, not_here, settings};

/// The number of streams of an earlier daemon that a process names at the next one.
const KEPT_MAX: usize = 1024;

/// Time between two tries to reach a daemon that does not answer.
const RETRY_MS: u64 = 1000;

/// The time after which a thread looks for doorbells again, while some are missing.
const MISSED_NS: u64 = 5_000_000;

/// The time for which threads look for the doorbells of a peer of another owner.
const LOOK_NS: u64 = 1_000_000_000;

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
    /// The peer may be hostile to other programs of this owner: nothing that it says makes this process wait.
    is_other_owner: bool,
    /// Each is set once.
    doorbells: [OnceLock<Doorbell>; WAITERS_MAX as usize],
    /// Waiters that must be woken when their doorbells come: a bit for each. It changes under the lock of the session.
    missed: AtomicU64,
    /// Another owner's: the time until which threads look for its doorbells. It is set when the first of those that are missing is missed.
    look_until_ns: AtomicU64,
}

impl Peer {
    fn new(board: Board<SharedMapping>, is_other_owner: bool) -> Self {
        let doorbells = [const { OnceLock::new() }; WAITERS_MAX as usize];
        Self { board, is_other_owner, doorbells, missed: AtomicU64::new(0), look_until_ns: AtomicU64::new(0) }
    }

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
        // Under the lock, so that the peer and the session do not end before the doorbell counts as missing.
        let is_missed = with_present(|session| {
            let is_mine = session.peers.values().any(|peer| core::ptr::eq(&raw const **peer, self));
            is_mine && !self.try_ring(waiter) && {
                self.miss(waiter, kernel::now_ns());
                true
            }
        });
        if is_missed != Some(true) {
            return; // It came meanwhile, or never comes: the session has ended, or it is that of a parent. Then the peer looks again without it.
        }
        let bit = 1 << waiter.number();
        // This thread may not come back for long, so it waits for the doorbell. The daemon answers at once, unless it is stopped. A peer of
        // another owner may name waiters that it never adds, so it has to do with what is there.
        let until = if self.is_other_owner { 0 } else { kernel::now_ns() + DOORBELL_NS };
        loop {
            take_messages();
            if self.missed.load(Ordering::Acquire) & bit == 0 || kernel::now_ns() >= until {
                return;
            }
            kernel::pause();
        }
    }

    /// Counts a doorbell as missing. The caller holds the lock of the session.
    fn miss(&self, waiter: WaiterIndex, now_ns: u64) {
        let before = self.missed.fetch_or(1 << waiter.number(), Ordering::AcqRel);
        if before == 0 && self.is_other_owner {
            self.look_until_ns.store(now_ns + LOOK_NS, Ordering::Relaxed);
        }
        if before & 1 << waiter.number() == 0 {
            self.missed_count().fetch_add(1, Ordering::Relaxed);
        }
        if self.is_other_owner {
            LOOK_FOR_OTHERS_UNTIL_NS.fetch_max(self.look_until_ns.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Rings a doorbell that was missing before, and has come. The caller holds the lock of the session.
    fn ring_missed(&self, waiter: WaiterIndex) {
        let bit = 1 << waiter.number();
        if self.missed.load(Ordering::Acquire) & bit != 0 && self.try_ring(waiter) {
            self.missed.fetch_and(!bit, Ordering::AcqRel);
            self.missed_count().fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Waits for no doorbell any more, because the peer has left. The caller holds the lock of the session.
    fn forget_missed(&self) {
        let missed = self.missed.swap(0, Ordering::AcqRel).count_ones();
        self.missed_count().fetch_sub(missed, Ordering::Relaxed);
    }

    /// The count of missing doorbells that has those of this peer.
    fn missed_count(&self) -> &'static AtomicU32 {
        if self.is_other_owner { &MISSED_OF_OTHERS } else { &MISSED }
    }

    /// Rings the peer's alarm. One of another owner has none, because the alarm interrupts a program.
    pub(crate) fn alarm(&self) {
        WaiterIndex::new(ALARM).map(|alarm| self.try_ring(alarm));
    }

    fn try_ring(&self, waiter: WaiterIndex) -> bool {
        self.doorbells[usize::from(waiter.number())].get().inspect(|doorbell| doorbell.ring()).is_some()
    }
}

pub(crate) struct Session {
    daemon: StreamSession,
    /// Distinguishes the sessions of this process.
    number: u64,
    board: Arc<LocalBoard>,
    /// The boards for other owners, by the daemon's number.
    owner_boards: HashMap<u32, Arc<LocalBoard>>,
    /// The board by which each peer of another owner reaches this process. It is missing among the others if it was lost.
    board_of_peer: HashMap<u32, u32>,
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
/// Doorbells of peers that are missing. Those of other owners may never come: nothing waits for them but threads that sleep.
static MISSED: AtomicU32 = AtomicU32::new(0);
static MISSED_OF_OTHERS: AtomicU32 = AtomicU32::new(0);
/// The time until which they do, because such a peer may name waiters without end that it never adds.
static LOOK_FOR_OTHERS_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU32 = AtomicU32::new(0);
/// Sessions so far.
static SESSIONS: AtomicU64 = AtomicU64::new(0);
/// There is no session that knows the listening sockets: no daemon has answered yet, the session has ended, or it is that of the parent.
static IS_UNLISTED: AtomicBool = AtomicBool::new(false);
/// The session with a daemon has ended, so the next one does not know the streams.
static HAS_KEPT: AtomicBool = AtomicBool::new(false);
/// The time in milliseconds from which [`prepare`] has something to do.
static LOOK_AT_MS: AtomicU64 = AtomicU64::new(0);

/// Calls `f` with the session, which is made if a daemon answers.
fn with<R>(f: impl FnOnce(&mut Session) -> R) -> Option<R> {
    if !settings::get().enabled || fork::is_borrowed() {
        return None;
    }
    let _inside = Inside::enter();
    after_reach(SESSION.with(|state| reach(state, f)))
}

/// Makes the session if need be, because the program has accepted a connection that may become worth a stream. Most calls look at one word;
/// one thread looks for the daemon about once a second, and no other one waits for it here.
pub(crate) fn prepare() {
    if kernel::now_ms() < LOOK_AT_MS.load(Ordering::Relaxed) || !settings::get().enabled || fork::is_borrowed() {
        return;
    }
    let _inside = Inside::enter();
    SESSION.try_with(|state| reach(state, |_| ())).map(after_reach);
}

/// Calls `f` with the session, which is made if a daemon answers. Returns connections to drop outside the lock, too.
fn reach<R>(state: &mut Option<State>, f: impl FnOnce(&mut Session) -> R) -> (Vec<InUse<Connection>>, Option<R>) {
    let done = take_all(state); // The daemon may be gone.
    let is_due = match &*state {
        None => true,
        Some(State::Without(since)) => kernel::now_ms().saturating_sub(*since) >= RETRY_MS,
        Some(State::With(_)) => false,
    };
    if is_due {
        *state = Some(attach().map_or_else(without, |session| State::With(Box::new(session))));
    }
    LOOK_AT_MS.store(kernel::now_ms() + RETRY_MS, Ordering::Relaxed);
    match state {
        Some(State::With(session)) => (done, Some(f(session))),
        _ => (done, None),
    }
}

/// Ends a call of [`reach`], outside the lock.
fn after_reach<R>((done, result): (Vec<InUse<Connection>>, Option<R>)) -> Option<R> {
    drop(done); // Each may be a last use.
    if result.is_some() && IS_UNLISTED.swap(false, Ordering::Relaxed) {
        list_again();
        if HAS_KEPT.swap(false, Ordering::Relaxed) {
            name_kept();
        }
    }
    result
}

/// Lists the listening sockets of the process at a new daemon.
#[cold]
fn list_again() {
    for (fd, listener) in all_in(Stage::Listener) {
        let token = token();
        // SAFETY: the number of a descriptor that the library tracks. The daemon refuses what is no listening socket any more.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        with_present(|session| session.daemon.listen_later(token, socket));
        listener.token.store(token, Ordering::SeqCst);
        // The program may have closed the socket meanwhile, and have withdrawn the earlier token. Then the number may be another listener,
        // which has a token of its own.
        if Connection::table().get(fd).as_ref() != Some(&listener) || listener.stage() != Stage::Listener {
            unlisten(token);
        }
    }
}

/// Returns the connections and listening sockets in a stage, each with one of its descriptors.
fn all_in(stage: Stage) -> Vec<(c_int, InUse<Connection>)> {
    let (mut all, mut seen) = (Vec::new(), HashSet::new());
    Connection::table().for_each(|fd, tracked| {
        if tracked.stage() == stage && seen.insert(core::ptr::from_ref::<Connection>(&tracked).addr()) {
            all.push((fd, tracked));
        }
    });
    all
}

/// Names streams of an earlier daemon at a new one, for its reports: as many as fit into its socket soon.
#[cold]
fn name_kept() {
    for (fd, connection) in all_in(Stage::Attached).into_iter().take(KEPT_MAX) {
        let Some((inode, addresses)) = kernel::name_of_socket(fd) else { continue };
        let Some(stream) = connection.stream().filter(|_| !connection.has_left.load(Ordering::Relaxed)) else {
            continue;
        };
        let is_open = Connection::table().get(fd).as_ref() == Some(&connection);
        if !is_open || connection.has_flag(flags::BROKEN) {
            continue;
        }
        let named = with_present(|session| {
            let is_earlier = session.number != stream.board.session;
            is_earlier.then(|| {
                let token = token();
                connection.token.store(token, Ordering::Relaxed); // [`ended`] follows, because `connection` is in use here.
                session.daemon.kept(token, inode, addresses).is_ok()
            })
        });
        if named.flatten() == Some(false) {
            return;
        }
    }
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
    let number = SESSIONS.fetch_add(1, Ordering::Relaxed);
    Some(Session {
        daemon: session,
        number,
        board: Arc::new(LocalBoard::new(board, number, None)),
        owner_boards: HashMap::new(),
        board_of_peer: HashMap::new(),
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
    let Some(page) = listed_page() else { return false };
    let key: [u32; LISTED_KEY_WORDS as usize] = page.load_words(LISTED_KEY);
    let is_set = |ip| {
        let bit = listed_bit(key, ip, address.port());
        page.load(listed_word(bit), Ordering::Relaxed) & listed_mask(bit) != 0
    };
    is_set(address.ip()) || is_set(core::net::Ipv6Addr::UNSPECIFIED.into())
}

fn listed_page() -> Option<&'static SharedMapping> {
    // SAFETY: null, or a mapping that is never dropped.
    unsafe { LISTED.load(Ordering::Acquire).as_ref() }
}

/// Returns true if a listed page names every address, so it says nothing about any of them.
fn has_all_bits(page: &impl Words) -> bool {
    (0..LISTED_BITS_COUNT / 32).all(|word| page.load(LISTED_BITS + word, Ordering::Relaxed) == u32::MAX)
}

fn token() -> u32 {
    TOKENS.fetch_add(1, Ordering::Relaxed)
}

/// Lists a listening socket, and makes its stage `Listener`, or `Off` if the daemon is known to deny it. Without a daemon, the next one lists
/// it.
pub(crate) fn listen(listener: &InUse<Connection>, fd: c_int, waits: bool) {
    let token = token();
    // SAFETY: the program's descriptor, in a call of the program about it.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let listed = with(|session| match waits {
        true => session.daemon.listen(token, socket).map_err(|refusal| refusal.reason),
        false => session.daemon.listen_later(token, socket).map_err(|refusal| refusal.reason),
    });
    listener.token.store(token, Ordering::SeqCst);
    listener.set_stage(if listed == Some(Err(Reason::StreamDenied)) { Stage::Off } else { Stage::Listener });
    if listed != Some(Ok(())) {
        IS_UNLISTED.store(true, Ordering::Relaxed); // After the stage, which the thread that lists looks at.
    }
    // As in `list_again`.
    if Connection::table().get(fd).as_ref() != Some(listener) {
        unlisten(token);
    }
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

/// Tells the daemon that this end of a stream is gone. One of an earlier session has a token if that was told to the daemon. A stream of
/// the parent's is not this process's to end.
pub(crate) fn ended(stream: &Stream, token: u32, violation: bool) {
    with_present(|session| match session.number == stream.board.session {
        true => session.daemon.ended(stream.number, violation),
        false => session.daemon.gone(token),
    });
}

/// Gives the doorbell of a waiter to the peers that know `board`. Returns false if its session has ended, or the daemon does not answer.
pub(crate) fn add_waiter(board: &LocalBoard, waiter: WaiterIndex, doorbell: BorrowedFd<'_>) -> bool {
    let added = with_present(|session| {
        let daemon = (session.number == board.session).then_some(&mut session.daemon)?;
        match board.number {
            None => daemon.add_waiter(waiter, doorbell).ok(),
            Some(number) => daemon.add_board_waiter(number, waiter, doorbell).ok(),
        }
    });
    added.flatten().is_some()
}

/// Returns true if the session of a board goes on.
pub(crate) fn is_of(board: &LocalBoard) -> bool {
    with_present(|session| session.number == board.session) == Some(true)
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
    let most = if is_any_missed() {
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

/// Returns true if a doorbell is missing that may come.
fn is_any_missed() -> bool {
    MISSED.load(Ordering::Relaxed) != 0
        || MISSED_OF_OTHERS.load(Ordering::Relaxed) != 0
            && kernel::now_ns() < LOOK_FOR_OTHERS_UNTIL_NS.load(Ordering::Relaxed)
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
                // No answer and no doorbell comes any more.
                session.peers.values().for_each(|peer| peer.forget_missed());
                WAITING.store(0, Ordering::Relaxed);
                IS_UNLISTED.store(true, Ordering::Relaxed);
                HAS_KEPT.store(true, Ordering::Relaxed);
                LOOK_AT_MS.store(0, Ordering::Relaxed);
                *state = Some(State::Without(0)); // The next daemon may be there already.
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
            StreamEvent::Refused { token, reason } => {
                let connection = self.answered(token);
                if let Some(connection) = &connection {
                    // An exact page says that a program listens here, and the next connection to it may be one of a stream.
                    let may_be_elsewhere = reason == Reason::StreamPeerMissing && connection.is_connector();
                    if may_be_elsewhere && listed_page().is_some_and(has_all_bits) {
                        not_here::add(connection.to.load(Ordering::Relaxed));
                    }
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
            StreamEvent::Board { peer, board, memory } => {
                self.add_board(peer, board, memory);
                None
            }
            StreamEvent::PeerLeft { peer } => {
                self.early.remove(&peer);
                if let Some(peer) = self.peers.remove(&peer) {
                    peer.forget_missed();
                }
                // The daemon ends a board with its last peer, too.
                if let Some(board) = self.board_of_peer.remove(&peer)
                    && self.board_of_peer.values().all(|other| *other != board)
                {
                    self.owner_boards.remove(&board);
                }
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

    /// Notes by which board a peer of another owner reaches this process.
    fn add_board(&mut self, peer: u32, number: u32, memory: Option<OwnedFd>) {
        self.board_of_peer.insert(peer, number);
        let mapping = memory.and_then(|file| Mapping::new(&file, BOARD_SIZE, Access::ReadWrite).ok());
        if let Some(mapping) = mapping {
            let board = LocalBoard::new(SharedMapping::new(mapping), self.number, Some(number));
            self.owner_boards.insert(number, Arc::new(board));
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
        let own_board = match self.board_of_peer.get(&peer) {
            Some(board) => self.owner_boards.get(board).cloned(),
            None => Some(Arc::clone(&self.board)),
        };
        if let Some(board) = board {
            let board = Board::new(map(&board, BOARD_SIZE)?);
            let is_other_owner = self.board_of_peer.contains_key(&peer);
            let before = self.peers.insert(peer, Arc::new(Peer::new(board, is_other_owner)));
            before.iter().for_each(|before| before.forget_missed());
            for (waiter, doorbell) in self.early.remove(&peer).unwrap_or_default() {
                self.add_doorbell(peer, waiter, doorbell);
            }
        }
        let peer = Arc::clone(self.peers.get(&peer)?);
        let memory = StreamMemory::new(map(memory, STREAM_SIZE)?, end);
        Some(Stream { number, memory, peer, board: own_board? })
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
    for count in [&WAITING, &MISSED, &MISSED_OF_OTHERS] {
        count.store(0, Ordering::Relaxed);
    }
    HAS_KEPT.store(false, Ordering::Relaxed); // The parent names them.
    IS_UNLISTED.store(true, Ordering::Relaxed); // The parent may end, and this process may go on to listen.
    LOOK_AT_MS.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(is_other_owner: bool) -> Peer {
        let file = isthmus_platform::local::memory(BOARD_SIZE).unwrap();
        let mapping = Mapping::new(&file, BOARD_SIZE, Access::ReadWrite).unwrap();
        Peer::new(Board::new(SharedMapping::new(mapping)), is_other_owner)
    }

    #[test]
    fn listed_page_names_every_address_only_if_all_bits_are_set() {
        let file = isthmus_platform::local::memory(LISTED_SIZE).unwrap();
        let page = SharedMapping::new(Mapping::new(&file, LISTED_SIZE, Access::ReadWrite).unwrap());
        assert!(!has_all_bits(&page));
        (0..=u16::MAX).for_each(|bit| page.or(listed_word(bit), listed_mask(bit), Ordering::Relaxed));
        assert!(has_all_bits(&page));
        page.store(listed_word(u16::MAX), u32::MAX / 2, Ordering::Relaxed);
        assert!(!has_all_bits(&page));
    }

    #[test]
    fn doorbells_are_missing_until_they_come_or_their_peer_leaves() {
        let [first, second] = [1, 2].map(|number| WaiterIndex::new(number).unwrap());
        let peer = peer(false);
        [first, second, first].into_iter().for_each(|waiter| peer.miss(waiter, 0));
        assert_eq!(MISSED.load(Ordering::Relaxed), 2);
        peer.ring_missed(first);
        assert_eq!(MISSED.load(Ordering::Relaxed), 2, "it has not come");
        assert!(peer.doorbells[1].set(Doorbell::new().unwrap()).is_ok());
        (0..2).for_each(|_| peer.ring_missed(first));
        assert_eq!(MISSED.load(Ordering::Relaxed), 1);
        (0..2).for_each(|_| peer.forget_missed());
        assert_eq!(MISSED.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn peer_of_another_owner_that_never_adds_its_waiters_is_looked_for_once() {
        let [first, second] = [1, 2].map(|number| WaiterIndex::new(number).unwrap());
        let peer = peer(true);
        let until = || LOOK_FOR_OTHERS_UNTIL_NS.load(Ordering::Relaxed);
        peer.miss(first, 5);
        peer.miss(second, 7 * LOOK_NS);
        peer.miss(first, 8 * LOOK_NS);
        assert_eq!((until(), MISSED_OF_OTHERS.load(Ordering::Relaxed)), (5 + LOOK_NS, 2));
        for (waiter, place) in [(first, 1), (second, 2)] {
            assert!(peer.doorbells[place].set(Doorbell::new().unwrap()).is_ok());
            peer.ring_missed(waiter);
        }
        let third = WaiterIndex::new(3).unwrap();
        peer.miss(third, 9 * LOOK_NS);
        assert_eq!((until(), MISSED_OF_OTHERS.load(Ordering::Relaxed)), (10 * LOOK_NS, 1), "all had come before");
        peer.forget_missed();
    }

    #[test]
    fn accept_does_not_wait_for_a_session_that_another_thread_uses() {
        SESSION.with(|_| {
            LOOK_AT_MS.store(0, Ordering::Relaxed);
            prepare(); // It would wait for its own thread.
        });
        let next = kernel::now_ms() + RETRY_MS;
        LOOK_AT_MS.store(next, Ordering::Relaxed);
        prepare();
        assert_eq!(LOOK_AT_MS.load(Ordering::Relaxed), next, "the time has not come");
    }
}
