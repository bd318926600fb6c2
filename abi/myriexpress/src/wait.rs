//! Progress, and waits for it.
//!
//! ```text
//!   until(found) ─► look ─► is a thread leading?
//!                    ▲         │ no: lead                 │ yes: follow
//!                    │         ▼                          ▼
//!                    │   progress while that pays,    sleep until told
//!                    │   then sleep on the descriptor     │
//!                    └─────────┴──────────────────────────┘
//! ```
//!
//! One of the threads that wait on an endpoint is the leader. It makes progress, and sleeps without the lock on the descriptors that
//! wake the domain. All threads are notified of each event and check for their own result. A leader that leaves hands the lead on.

use crate::endpoint::Leader;
use crate::errors::Failure;
use crate::handler;
use crate::table::{self, Locked};
use isthmus_client::WaitMode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Makes progress and calls the program's handlers, unless progress is disabled now.
#[inline(always)]
pub(crate) fn progress(mut locked: Locked) -> Result<Locked, Failure> {
    if locked.is_progress_disabled() {
        return Ok(locked);
    }
    locked.progress_once();
    run_handlers(locked)
}

/// Like [`progress`] for a program that polls: after polls that found nothing, sleeping may help.
#[inline(always)]
pub(crate) fn poll(mut locked: Locked) -> Result<Locked, Failure> {
    if locked.is_progress_disabled() {
        return Ok(locked);
    }
    let idle = locked.poll();
    after_poll(locked, idle)
}

/// Completes a poll by the program: sleeps for `idle`, or calls its handler.
#[inline]
pub(crate) fn after_poll(locked: Locked, idle: Option<Duration>) -> Result<Locked, Failure> {
    match idle {
        None => run_handlers(locked),
        Some(limit) => sleep_until_event(locked, limit),
    }
}

/// Sleeps for at most `limit` until an event comes, unless this thread may be needed elsewhere meanwhile: by another thread that
/// waits on the endpoint, or by the program at another endpoint.
#[cold]
fn sleep_until_event(mut locked: Locked, limit: Duration) -> Result<Locked, Failure> {
    let elsewhere = table::has_several() || locked.waiting.wait() == WaitMode::Spin;
    if elsewhere || locked.leader != Leader::None || locked.sleepers > 0 {
        return Ok(locked);
    }
    let events = locked.events();
    (locked, _) = leader_sleep(locked, events, Some(limit))?;
    if locked.events() != events {
        locked.on_work();
    }
    give_up_lead(&mut locked, true);
    run_handlers(locked)
}

/// The reason why a wait ended.
#[derive(Debug)]
pub(crate) enum Ended<T> {
    Found(T),
    TimedOut,
    /// Another thread called `mx_wakeup()`.
    Woken,
}

impl<T> Ended<T> {
    pub(crate) fn found(self) -> Option<T> {
        match self {
            Self::Found(found) => Some(found),
            Self::TimedOut | Self::Woken => None,
        }
    }
}

/// Returns the deadline of a wait that begins now. A timeout of 0 means no deadline.
pub(crate) fn deadline(timeout_ms: u32) -> Option<Instant> {
    (timeout_ms != 0).then(|| Instant::now() + Duration::from_millis(u64::from(timeout_ms)))
}

/// Waits until `check` finds something.
pub(crate) fn until<T>(
    mut locked: Locked,
    timeout_ms: u32,
    mut check: impl FnMut(&mut Locked) -> Option<T>,
) -> Result<(Ended<T>, Locked), Failure> {
    if let Some(found) = check(&mut locked) {
        return Ok((Ended::Found(found), locked));
    }
    let deadline = deadline(timeout_ms);
    let wakeups = locked.wakeups;
    let mut leads = false;
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let mut interrupted = false;
        if !locked.is_progress_disabled() && (leads || locked.leader == Leader::None) {
            (leads, locked.leader) = (true, Leader::Awake);
            (locked, interrupted) = lead(locked, left)?;
            locked = run_handlers(locked)?;
        } else {
            leads = give_up_lead(&mut locked, leads);
            locked.sleepers += 1;
            locked = locked.sleep(left)?;
            locked.sleepers -= 1;
        }
        let ended = match check(&mut locked) {
            Some(found) => Ended::Found(found),
            None if locked.wakeups != wakeups => Ended::Woken,
            None if interrupted || left.is_some_and(|left| left.is_zero()) => Ended::TimedOut,
            None => {
                // The event was for another thread. A leader that never sleeps releases the lock only for threads that wait for it.
                locked.notify_followers();
                continue;
            }
        };
        give_up_lead(&mut locked, leads);
        return Ok((ended, locked));
    }
}

/// Calls the program's handler for pending messages, unless progress is disabled now.
#[inline]
pub(crate) fn run_handlers(locked: Locked) -> Result<Locked, Failure> {
    if locked.must_call_handler() { handler::run(locked) } else { Ok(locked) }
}

/// Gives up the lead if this thread has it. The sleeping threads wake and choose the next leader.
fn give_up_lead(locked: &mut Locked, leads: bool) -> bool {
    if leads {
        locked.leader = Leader::None;
        if locked.sleepers > 0 {
            locked.wake_followers();
        }
    }
    false
}

/// Spins while that pays off, then sleeps. Returns true if a signal ended the sleep and has to end the wait.
fn lead(mut locked: Locked, left: Option<Duration>) -> Result<(Locked, bool), Failure> {
    let slot = locked.slot();
    let events = locked.events();
    let mut waiting = locked.waiting.clone();
    let happened = waiting.spin(|| {
        locked.progress_once();
        locked.events() != events || slot.is_contended()
    });
    let spins = waiting.wait() == WaitMode::Spin;
    locked.waiting = waiting;
    if slot.is_contended() {
        // Without this loop, this thread would take the lock again before another thread noticed that it was free.
        let (locked, ()) = locked.unlocked(|| {
            while slot.is_contended() {
                std::thread::yield_now();
            }
        })?;
        return Ok((locked, false));
    }
    if happened || spins || left.is_some_and(|left| left.is_zero()) {
        return Ok((locked, false));
    }
    leader_sleep(locked, events, left)
}

/// Sleeps as the leader, unless there are more events than `events` already. Returns true if a signal ended the sleep
/// and has to end the wait.
fn leader_sleep(mut locked: Locked, events: u64, left: Option<Duration>) -> Result<(Locked, bool), Failure> {
    if !locked.arm() || locked.events() != events {
        return Ok((locked, false));
    }
    let wake_fd = Arc::clone(&locked.wake_fd);
    let ends_by_signal = locked.settings.wait_ends_by_signal;
    locked.leader = Leader::Asleep;
    locked.sleepers += 1;
    let limit = [left, locked.deadlines.next()].into_iter().flatten().min();
    let (mut locked, woken) = locked.unlocked_asleep(|| wake_fd.sleep(limit))?;
    locked.sleepers -= 1;
    locked.leader = Leader::Awake;
    if !locked.is_progress_disabled() {
        locked.domain.woke_up(woken.has_daemon_event);
        locked.progress_once(); // The event is probably the awaited one.
    }
    Ok((locked, woken.interrupted && ends_by_signal))
}
