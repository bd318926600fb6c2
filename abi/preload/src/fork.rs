//! `fork`: the child keeps the streams, and makes a session of its own.

use core::sync::atomic::Ordering;
use std::sync::Once;

use crate::connection::{Connection, Stage};
use crate::table::Tracked;
use crate::{pool, session};

/// Registers the handlers, once.
pub(crate) fn register() {
    static ONCE: Once = Once::new();
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    ONCE.call_once(|| unsafe {
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
    pool::forget_free();
    session::forget();
}
