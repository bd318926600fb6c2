//! The steps of a message through the code, noted for the test that keeps `docs/design/walk.md` true.
//!
//! `step!("push")` is nothing at all, except in builds with `--cfg isthmus_walk`: there it notes where it stands.

/// Notes that the message came by here: the module, and the function's name.
#[macro_export]
macro_rules! step {
    ($function:literal) => {
        #[cfg(isthmus_walk)]
        $crate::step::note(concat!(module_path!(), "::", $function));
    };
}

#[cfg(isthmus_walk)]
std::thread_local! {
    static STEPS: std::cell::RefCell<Vec<&'static str>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Notes a step of this thread.
#[cfg(isthmus_walk)]
pub fn note(step: &'static str) {
    STEPS.with_borrow_mut(|steps| steps.push(step));
}

/// The steps of this thread so far; begins anew.
#[cfg(isthmus_walk)]
pub fn take() -> Vec<&'static str> {
    STEPS.take()
}
