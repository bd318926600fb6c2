//! The steps of a message through the code, noted for the test that keeps `docs/design/walk.md` true.
//!
//! `step!("push")` is nothing at all in a release. Other builds note where it stands, once a thread has asked for that.

#[cfg(debug_assertions)]
use std::cell::{Cell, RefCell};

/// Notes that the message came by here: the module, and the function's name.
#[macro_export]
macro_rules! step {
    ($function:literal) => {
        #[cfg(debug_assertions)]
        $crate::step::note(concat!(module_path!(), "::", $function));
    };
}

#[cfg(debug_assertions)]
std::thread_local! {
    static IS_NOTED: Cell<bool> = const { Cell::new(false) };
    /// Not touched by threads that do not ask, because it is dropped at their end.
    static STEPS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// Notes a step of this thread.
#[cfg(debug_assertions)]
pub fn note(step: &'static str) {
    if IS_NOTED.get() {
        STEPS.with_borrow_mut(|steps| steps.push(step));
    }
}

/// The steps of this thread since the last call. The first call begins to note them.
#[cfg(debug_assertions)]
pub fn take() -> Vec<&'static str> {
    IS_NOTED.set(true);
    STEPS.take()
}
