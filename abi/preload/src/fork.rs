//! `fork`: the child keeps the streams, and makes a session of its own.

use core::sync::atomic::{AtomicI32, Ordering};
use std::sync::Once;

use crate::connection::{Connection, Stage};
use crate::table::Tracked;
use crate::{pool, session};

/// The process that the tables belong to.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Returns true in a child after `vfork`. It uses the memory of its parent, and descriptors of its own, so it must change no table.
pub(crate) fn is_borrowed() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    // SAFETY: a call without arguments.
    owner != 0 && owner != unsafe { libc::getpid() }
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
    // The child will have each stream, too.
    Connection::table().for_each(|_, connection| {
        if connection.stage() == Stage::Attached {
            // A connection with two descriptors counts twice. Then no process counts as its last, and the kernel alone reports its end.
            connection.shared().processes.fetch_add(1, Ordering::Relaxed);
        }
    });
}

extern "C" fn in_child() {
    own();
    pool::forget_free();
    session::forget();
}
