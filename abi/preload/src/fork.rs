//! `fork`: the child keeps the streams, and makes a session of its own.

use core::sync::atomic::{AtomicI32, Ordering};
use std::sync::Once;
use std::time::Duration;

use crate::connection::{Connection, Stage};
use crate::table::Tracked;
use crate::{pool, session};

/// The longest time that `fork` waits for doorbells of peers, which only this process can receive.
const DOORBELLS_TIME: Duration = Duration::from_millis(100);

/// The process that the tables belong to.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Returns true in a child after `vfork`. It uses the memory of its parent, and descriptors of its own, so it must change no table.
pub(crate) fn is_borrowed() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    // SAFETY: a call without arguments.
    owner != 0 && owner != unsafe { libc::getpid() }
}

/// Returns the process that the tables belong to.
pub(crate) fn owner() -> i32 {
    OWNER.load(Ordering::Relaxed)
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
        libc::pthread_atfork(Some(before), None, Some(in_child));
    });
}

extern "C" fn before() {
    Connection::table().for_each(|fd, connection| match connection.stage() {
        // The child will have the stream, too.
        Stage::Attached => connection.forks(),
        // The child may use the connection before this process attaches. Then both would count bytes that the other one misses.
        Stage::Shown | Stage::Paired => Connection::leave(&connection, fd),
        Stage::Plain | Stage::Off | Stage::Listener => {}
    });
    session::await_missed(DOORBELLS_TIME);
}

extern "C" fn in_child() {
    own();
    pool::forget_free();
    session::forget();
}
