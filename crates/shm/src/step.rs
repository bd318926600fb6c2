//! The steps of a message through the code, noted for the test that keeps `docs/design/walk.md` true.
//!
//! `step!("push")` is nothing at all in a release. Other builds note where it stands, once a thread has asked for that.

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
    /// None until the thread asks for its steps.
    static STEPS: std::cell::RefCell<Option<Vec<&'static str>>> = const { std::cell::RefCell::new(None) };
}

/// Notes a step of this thread.
#[cfg(debug_assertions)]
pub fn note(step: &'static str) {
    STEPS.with_borrow_mut(|steps| steps.iter_mut().for_each(|steps| steps.push(step)));
}

/// The steps of this thread since the last call. The first call begins to note them.
#[cfg(debug_assertions)]
pub fn take() -> Vec<&'static str> {
    STEPS.replace(Some(Vec::new())).unwrap_or_default()
}
