//! Delivery of copied sends while the program makes no calls.
//!
//! A short send is over for the program once its bytes are copied, even where the receiver has no room for them yet. The program may then
//! compute, or wait for something else, and never call the library again. A thread of the library delivers the bytes in this case.
//!
//! ```text
//!   post() leaves copied sends waiting ─► thread ─► sleep ─► has the program posted meanwhile? ── yes ──► sleep
//!                                                     ▲                  │ no
//!                                                     └── progress ◄─────┘
//! ```
//!
//! The thread ends when no copied send waits. It takes the lock only if the program is silent, because the lock belongs to the thread
//! that uses it most.

use crate::endpoint::Leader;
use crate::table::{self, Locked};
use crate::types::EndpointHandle;
use std::thread;
use std::time::Duration;

/// The pause before the thread acts, and after progress that delivered nothing.
const PAUSE: Duration = Duration::from_millis(20);

/// The pause after progress that delivered something.
const SHORT_PAUSE: Duration = Duration::from_millis(1);

/// The number of progress calls that the thread makes at once at most.
const PROGRESS_CALLS: usize = 64;

/// Starts the thread if copied sends wait and no thread delivers them.
#[inline]
pub(crate) fn start_if_needed(locked: &mut Locked) {
    if locked.matcher().copied_sends() > 0 && !locked.has_delivery_thread {
        start(locked);
    }
}

#[cold]
fn start(locked: &mut Locked) {
    let handle = locked.handle();
    let thread = thread::Builder::new().name("mx-delivery".to_owned()).spawn(move || deliver(handle));
    locked.has_delivery_thread = thread.is_ok(); // Otherwise, the next send tries again.
}

/// Delivers copied sends until none waits, or the endpoint is closed.
fn deliver(endpoint: EndpointHandle) {
    let (mut pause, mut posts) = (PAUSE, None);
    loop {
        thread::sleep(pause);
        let Some(slot) = table::slot(endpoint) else { return };
        if posts.replace(slot.posts()) != Some(slot.posts()) {
            pause = PAUSE;
            continue;
        }
        let Ok(mut locked) = table::lock(endpoint) else { return };
        let before = locked.matcher().copied_sends();
        make_progress(&mut locked);
        let after = locked.matcher().copied_sends();
        if after == 0 {
            locked.has_delivery_thread = false;
            return;
        }
        pause = if after < before { SHORT_PAUSE } else { PAUSE };
    }
}

/// Makes progress, unless another thread does. Handlers are not called: the program expects them only inside its own calls.
fn make_progress(locked: &mut Locked) {
    for _ in 0..PROGRESS_CALLS {
        if locked.is_progress_disabled() || locked.leader != Leader::None {
            return;
        }
        let events = locked.events();
        locked.progress_once();
        if locked.events() == events {
            return;
        }
    }
}
