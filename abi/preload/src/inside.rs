//! Whether a thread is inside the library. Calls that the library's own parts make are the kernel's then.
//!
//! Descriptors of the library are closed by the C library's `close`, which is a hook. Their numbers may be those of sockets that the
//! program has closed past the library.

use core::cell::Cell;

thread_local! {
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// Marks that the thread is inside, until it is dropped.
pub(crate) struct Inside(());

impl Inside {
    /// Enters.
    pub(crate) fn enter() -> Self {
        INSIDE.set(INSIDE.get() + 1);
        Self(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(INSIDE.get() - 1);
    }
}

/// True if the library itself makes the call.
#[inline]
pub(crate) fn is_inside() -> bool {
    INSIDE.get() != 0
}
