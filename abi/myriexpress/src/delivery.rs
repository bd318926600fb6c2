//! Delivery of copied sends while the program makes no calls, and before an endpoint or the process ends.
//!
//! A short send is complete for the program once its bytes are copied, even if the receiver has no room for them yet.
//! The program may then compute, or wait for another event, and never call the library again. A thread of the library
//! delivers the bytes in this case.
//!
//! ```text
//!   post() leaves copied sends waiting ─► thread ─► sleep ─► has the program posted meanwhile? ── yes ──► sleep
//!                                                     ▲                  │ no
//!                                                     └── progress ◄─────┘
//! ```
//!
//! The thread ends when no copied send waits. It takes the lock only if the program is silent, because the lock belongs to the thread
//! that uses it most.
//!
//! An endpoint that is closed, and a process that exits, wait until the receivers have taken these sends: for as long as they live, and for
//! `ISTHMUS_LINGER_S` at most. What is left then is lost; the library and the daemon report it.

use crate::endpoint::{Endpoint, Leader};
use crate::library;
use crate::matcher::MxMatcher;
use crate::table::{self, Locked};
use crate::types::EndpointHandle;
use std::io::Write;
use std::panic::catch_unwind;
use std::thread;
use std::time::{Duration, Instant};

/// The pause before the thread acts, and after progress that delivered nothing.
const PAUSE: Duration = Duration::from_millis(20);

/// The pause after progress that delivered something.
const SHORT_PAUSE: Duration = Duration::from_millis(1);

/// The number of progress calls that the thread makes at once at most.
const PROGRESS_CALLS: usize = 64;

/// How long the exit of the process waits for another thread to unlock an endpoint. That thread may be the one that exits, in a signal handler.
const LOCKED_MAX: Duration = Duration::from_secs(1);

/// The line that is printed if the exit does not wait.
const INTERRUPTED: &str = "libmyriexpress: the program exits within a call of MX, so it does not wait for the receivers of sends that \
                           are over; they may be lost\n";

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

/// Waits until the receivers have taken the copied sends of an endpoint that is being closed, and reports those that are left. The wait has
/// begun at `begun`, perhaps for another endpoint.
pub(crate) fn finish(closed: &mut Endpoint, begun: Instant) {
    let limit = closed.linger.saturating_sub(begun.elapsed());
    closed.domain.deliver(limit, MxMatcher::is_over, |_| advance_others());
    report_left(closed);
}

/// Makes progress on the open endpoints of the process: the receiver may be one of them, and this thread may be the only one.
fn advance_others() {
    for mut other in table::handles().filter_map(table::try_visit) {
        make_progress(&mut other);
    }
}

/// Reports the copied sends that are lost because their endpoint ends.
fn report_left(endpoint: &mut Endpoint) {
    let left = endpoint.domain.report_undelivered(MxMatcher::is_over);
    if left > 0 {
        let (board, number, seconds) = (endpoint.board, endpoint.place.number, endpoint.linger.as_secs());
        let line = format!(
            "libmyriexpress: endpoint {number} of board {board} ends, and {left} messages are lost although their sends were over: their \
             receivers have not taken them within {seconds} s (ISTHMUS_LINGER_S)\n"
        );
        // A write error is ignored: there is no other place to report it. The daemon's log has a line as well.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// Called by `exit`: waits for the receivers as [`finish`] does, for all endpoints that the program has not closed.
pub(crate) extern "C" fn at_exit() {
    let _ = catch_unwind(finish_all);
}

fn finish_all() {
    if library::check_own().is_err() {
        return; // A child of fork has no part in the endpoints of its parent.
    }
    let begun = Instant::now();
    if !have_been_unlocked(begun) {
        // A write error is ignored, as in `report_left`.
        let _ = std::io::stderr().write_all(INTERRUPTED.as_bytes());
        return;
    }
    let mut open: Vec<(EndpointHandle, Instant)> = table::handles().map(|handle| (handle, begun)).collect();
    while !open.is_empty() {
        open.retain_mut(|(handle, visited)| match table::try_visit(*handle) {
            Some(mut locked) => {
                *visited = Instant::now();
                !is_finished(&mut locked, begun.elapsed())
            }
            None => table::slot(*handle).is_some() && visited.elapsed() < LOCKED_MAX,
        });
        if !open.is_empty() {
            advance_others();
            thread::sleep(SHORT_PAUSE);
        }
    }
}

/// Returns true once each endpoint was unlocked at some time. Returns false if one stays locked, because a signal
/// handler that interrupts a call may have called `exit`. The interrupted code may also hold the lock of the memory
/// allocator, so nothing is allocated until then.
fn have_been_unlocked(begun: Instant) -> bool {
    table::handles().all(|handle| {
        loop {
            if table::try_visit(handle).is_some() || table::slot(handle).is_none() {
                return true;
            }
            if begun.elapsed() >= LOCKED_MAX {
                return false;
            }
            thread::sleep(SHORT_PAUSE);
        }
    })
}

/// Returns true if an endpoint has delivered its copied sends, or has waited for long enough.
fn is_finished(locked: &mut Locked, elapsed: Duration) -> bool {
    let endpoint = &mut **locked;
    if !endpoint.domain.has_undelivered(MxMatcher::is_over) {
        return true;
    }
    endpoint.progress_once(); // Also if the program has disabled progress: it does not come back.
    let ends = elapsed >= endpoint.linger;
    if ends {
        report_left(endpoint);
    }
    ends
}
