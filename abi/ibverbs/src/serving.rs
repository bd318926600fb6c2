//! The serving thread of an open device: it acts for peers while the program makes no calls.
//!
//! Peers write memory that could not be moved, wait for acknowledgements, and ask for channels, also while the program computes, polls
//! memory or sleeps. A daemon that restarts finds the device again. The thread starts when the device opens. It is in one of three states:
//!
//! ```text
//!   watching ── no call of the program since the last tick ──► serving: the domain is armed, the thread sleeps until a doorbell rings
//!      ▲ ▲                                                        │ rings: one iteration of all work
//!      │ └─────────────── the next call of the program ───────────┤
//!      │                                                          │ a thread of the program sleeps for an event, and serves itself
//!      └── no thread of the program has slept for 5 ms ── standing by ◄── also from watching
//! ```
//!
//! While the program calls, the thread only wakes at each tick and looks at a counter. While it does not, the thread sleeps without a
//! limit unless a peer needs it. While it stands by, no doorbell wakes it. So an idle device costs no processor time, and a busy one no
//! atomic operation. A thread of the program that serves ([`sleeping`](crate::sleeping)) is in the first two states itself.
//!
//! A program that polls memory between its calls would wait for a tick each time. So once the thread has performed accesses for peers,
//! each call arms the domain as it ends, and a doorbell wakes the thread while it watches. This ends after a few visits without accesses.

use crate::device::Shared;
use crate::handover::{Handover, SleepSet, Woken};
use isthmus_client::serving::{self, ServingThread};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The time without a call after which the thread serves.
const TICK: Duration = Duration::from_millis(1);

/// The tick of a program that has made calls for long.
const TICK_MAX: Duration = Duration::from_millis(8);

/// The time slices that the thread requests, so that it runs soon after a doorbell also where the program computes.
const TIME_SLICE: Duration = Duration::from_micros(150);

/// The stack of the thread.
const STACK_BYTES: usize = 256 << 10;

/// The thread, from the side of the program.
#[derive(Debug)]
pub(crate) struct Serving(JoinHandle<()>);

impl Serving {
    /// Starts the thread, and waits until it keeps no memory from being moved. None if the system allows no further thread: the program's
    /// calls then do everything.
    pub(crate) fn start(shared: &Arc<Shared>) -> Option<Self> {
        let shared = Arc::clone(shared);
        let thread = std::thread::Builder::new().name("isthmus-verbs".into()).stack_size(STACK_BYTES);
        let (begun, has_begun) = std::sync::mpsc::sync_channel(1);
        let main = move || {
            isthmus_client::request_short_slices(TIME_SLICE);
            let mut begun = Some(begun);
            let serve = |thread: &mut ServingThread| {
                let inside = thread.enter();
                begun.take().into_iter().for_each(|begun| _ = begun.send(()));
                drop(inside);
                run(&mut Thread { thread, shared: &shared });
            };
            // SAFETY: a thread of `std`. Outside of the gate, `run` only sleeps, reads an eventfd or a timer into its stack, and loads
            // words.
            unsafe { serving::run(serve) }
        };
        let started = thread.spawn(main).ok()?;
        let _ = has_begun.recv(); // It has begun, or has ended.
        Some(Self(started))
    }

    /// Waits until the thread has ended, after [`Handover::stop`].
    pub(crate) fn join(self) {
        let _ = self.0.join();
    }
}

/// Acts for peers: the serving thread, or a thread of the program that sleeps for an event.
pub(crate) trait Server {
    /// Where it sleeps.
    fn set(&self) -> &SleepSet;

    /// Does all work, and arms the domain. If the server `stays`, the next call of the program wakes it.
    fn visit(&mut self, stays: bool) -> Visit;

    /// Sleeps until there is a reason to wake, or the limit is over. None if this server's turn is over.
    fn sleep(&mut self, limit: Option<Duration>) -> Option<Woken>;
}

/// The end of a visit of a server to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Visit {
    /// Another thread has the device, and does the work.
    Refused,
    /// There is more work.
    Unfinished,
    /// The domain is armed: the server sleeps, for this time at most.
    Armed(Option<Duration>),
    /// The server's turn is over.
    Over,
}

/// Watches the program, and serves when it makes no calls, until the server's turn is over.
pub(crate) fn watch(server: &mut impl Server, handover: &Handover) {
    let (mut seen, mut tick) = (handover.calls(), TICK);
    // A program that asks for an event arms the domain, and so may any call: then a doorbell ends the sleep.
    while let Some(woken) = server.sleep(Some(tick)) {
        if woken.called {
            server.set().clear();
        }
        let calls = handover.calls();
        let end = if woken.rung && handover.arms_after_calls() {
            tick = TICK_MAX; // A doorbell comes first. A short tick would cost the processor a timer each time.
            act(server)
        } else if woken.rung || calls == seen {
            tick = TICK;
            serve(server)
        } else {
            handover.note_visit(false);
            tick = (tick * 2).min(TICK_MAX);
            Some(())
        };
        if end.is_none() {
            return;
        }
        seen = calls;
    }
}

/// Acts for peers until the program makes a call. None if the server's turn is over.
pub(crate) fn serve(server: &mut impl Server) -> Option<()> {
    loop {
        match server.visit(true) {
            Visit::Refused => return Some(()),
            Visit::Unfinished => {}
            Visit::Armed(limit) if server.sleep(limit)?.called => return Some(()),
            Visit::Armed(_) => {}
            Visit::Over => return None,
        }
    }
}

/// Acts for peers once. None if the server's turn is over.
fn act(server: &mut impl Server) -> Option<()> {
    loop {
        match server.visit(false) {
            Visit::Refused | Visit::Armed(_) => return Some(()),
            Visit::Unfinished => {}
            Visit::Over => return None,
        }
    }
}

/// The serving thread.
struct Thread<'a> {
    thread: &'a mut ServingThread,
    shared: &'a Shared,
}

fn run(server: &mut Thread<'_>) {
    let handover = &server.shared.handover;
    while !handover.is_stopped() {
        watch(server, handover);
        server.stand_by();
    }
}

impl Thread<'_> {
    /// Waits while a thread of the program serves.
    fn stand_by(&mut self) {
        let handover = &self.shared.handover;
        let mut inside = self.thread.enter();
        handover.thread_wakes();
        while handover.has_turn() && !handover.is_stopped() {
            drop(inside);
            handover.wait_for_timer();
            inside = self.thread.enter();
            handover.timer_is_over();
        }
    }
}

impl Server for Thread<'_> {
    fn set(&self) -> &SleepSet {
        &self.shared.handover.thread
    }

    fn visit(&mut self, stays: bool) -> Visit {
        let handover = &self.shared.handover;
        let _inside = self.thread.enter();
        // The program is in a call if the lock is not free. It may wait for the gate there, so this thread does not wait for the lock.
        let Some(mut adapter) = self.shared.adapter.try_visit() else {
            handover.note_visit(false);
            return Visit::Refused;
        };
        if handover.has_turn() {
            return Visit::Over;
        }
        handover.note_visit(adapter.serve(|| false));
        if stays {
            handover.thread_sleeps();
        }
        adapter.prepare_sleep().map_or(Visit::Unfinished, Visit::Armed)
    }

    fn sleep(&mut self, limit: Option<Duration>) -> Option<Woken> {
        let handover = &self.shared.handover;
        let woken = handover.thread.sleep(limit);
        (!handover.is_stopped() && !handover.has_turn()).then_some(woken)
    }
}

#[cfg(test)]
mod tests;
