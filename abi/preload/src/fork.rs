//! `fork`: the child keeps the streams, and makes a session of its own.
//!
//! What a process knows about plain connections is private memory, so a child goes on with its own copy. A connection of which several
//! processes have a copy stays on TCP until one is left ([`Connection::is_sole`]).

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::Once;
use std::time::Duration;

use crate::connection::{Connection, LINKS, Stage};
use crate::epoll_set::EpollSet;
use crate::shared_cell::Cells;
use crate::table::{InUse, Recount, Tracked};
use crate::{session, signals, waiter};

/// The longest time that `fork` waits for the daemon: for doorbells of peers, which only this process can receive, and until no socket of
/// this process is held by the daemon.
const DAEMON_TIME: Duration = Duration::from_millis(100);

/// The sets that `before` has locked. [`LINKS`] guards them.
struct HeldSets(UnsafeCell<Vec<InUse<EpollSet>>>);

// SAFETY: used under a lock only.
unsafe impl Sync for HeldSets {}

static HELD: HeldSets = HeldSets(UnsafeCell::new(Vec::new()));

/// The process that the tables belong to.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Returns true in a child after `vfork`. It uses the memory of its parent, and descriptors of its own, so it must change no table.
pub(crate) fn is_borrowed() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    // SAFETY: a call without arguments.
    owner != 0 && owner != unsafe { libc::getpid() }
}

static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Returns true in a process that was forked from one with this library.
pub(crate) fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

fn own() {
    // SAFETY: a call without arguments.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// Registers the handlers, once.
pub(crate) fn register() {
    static ONCE: Once = Once::new();
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    ONCE.call_once(|| unsafe {
        own();
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}

pub(crate) extern "C" fn before() {
    session::await_daemon(DAEMON_TIME);
    let mut cells = Cells::default();
    Connection::table().for_each(|fd, connection| match connection.stage() {
        // The child will have the stream, too.
        Stage::Attached => connection.forks(),
        // The child may use the connection before this process attaches. Then both would count bytes that the other one misses.
        Stage::Shown | Stage::Paired => Connection::leave(&connection, fd),
        Stage::Plain => connection.shares_plain(&mut cells),
        Stage::Off | Stage::Listener | Stage::Unconnected => {}
    });
    EpollSet::table().for_each(|_, set| set.shares(&mut cells));
    LINKS.lock();
    let mut sets = Vec::new();
    EpollSet::table().for_each(|_, set| sets.push(set));
    sets.iter().for_each(|set| set.lock().lock());
    // SAFETY: LINKS is held, from here to `release`.
    unsafe { *HELD.0.get() = sets };
    waiter::LOCK.lock();
    session::lock().lock();
    Connection::table().lock().lock();
    EpollSet::table().lock().lock();
    signals::LOCK.lock();
}

pub(crate) extern "C" fn in_parent() {
    release();
}

pub(crate) extern "C" fn in_child() {
    signals::forget_deferred();
    release();
    own();
    IS_CHILD.store(true, Ordering::Relaxed);
    session::forget();
    crate::hooks::socket::forget_adoption();
    waiter::forget();
    let (mut connections, mut sets) = (Recount::new(), Recount::new());
    Connection::table().for_each_once(|connection| connection.forget_threads(&mut sets));
    EpollSet::table().for_each_once(|set| set.becomes_copy(&mut connections, &mut sets));
    connections.store();
    sets.store();
}

/// Releases the locks that `before` has taken.
fn release() {
    signals::LOCK.unlock();
    EpollSet::table().lock().unlock();
    Connection::table().lock().unlock();
    session::lock().unlock();
    waiter::LOCK.unlock();
    // SAFETY: LINKS is still held.
    let sets = unsafe { core::mem::take(&mut *HELD.0.get()) };
    sets.iter().for_each(|set| set.lock().unlock());
    LINKS.unlock();
}
