//! The serving thread of an open device: it acts for peers while the program makes no calls.
//!
//! Peers write memory that could not be moved, wait for acknowledgements, and ask for channels, also while the program computes, polls
//! memory or sleeps. The thread starts with the first connection. It is in one of two states:
//!
//! ```text
//!   watching ── no call of the program since the last tick ──► serving: the domain is armed, the thread sleeps until a doorbell rings
//!      ▲                                                          │ rings: one iteration of all work
//!      └───────────────── the next call of the program ───────────┘
//! ```
//!
//! While the program calls, the thread only wakes at each tick and looks at a counter. While it does not, the thread sleeps without a
//! limit unless a peer needs it. So an idle device costs no processor time, and a busy one no atomic operation.

use crate::device::Shared;
use isthmus_client::serving::{self, ServingThread};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The time without a call after which the thread serves.
const TICK: Duration = Duration::from_millis(1);

/// The tick of a program that has made calls for long.
const TICK_MAX: Duration = Duration::from_millis(8);

/// The stack of the thread.
const STACK_BYTES: usize = 256 << 10;

/// The words that the program and the thread exchange. Each word is written by one side in the common case.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Handover {
    /// Counts calls of the program.
    calls: AtomicU32,
    /// The thread serves.
    serving: AtomicBool,
    stopped: AtomicBool,
    /// Wakes the thread.
    wake_fd: OwnedFd,
}

impl Handover {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let wake_fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { calls: AtomicU32::new(0), serving: AtomicBool::new(false), stopped: AtomicBool::new(false), wake_fd })
    }

    /// The program makes a call that does the work of the thread as well. Called under the lock of the device.
    #[inline]
    pub(crate) fn note_call(&self) {
        self.calls.store(self.calls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if self.serving.load(Ordering::Relaxed) {
            self.resume_watching();
        }
    }

    #[cold]
    fn resume_watching(&self) {
        self.serving.store(false, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        // Refused where the counter is full: then it is readable, which is all that is wanted.
        let _ = rustix::io::write(&self.wake_fd, &1_u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.wake_fd, &mut [0; 8]);
    }
}

/// The thread, from the side of the program.
#[derive(Debug)]
pub(crate) struct Serving(JoinHandle<()>);

impl Serving {
    /// Starts the thread. None if the system allows no further thread: the program's calls then do everything.
    pub(crate) fn start(shared: &Arc<Shared>) -> Option<Self> {
        let shared = Arc::clone(shared);
        let sleeper = Sleeper::new(shared.adapter.lock().fd(), &shared.handover).ok()?;
        let thread = std::thread::Builder::new().name("isthmus-verbs".into()).stack_size(STACK_BYTES);
        let run = move || {
            // SAFETY: a thread of `std`. Outside of the gate, `watch` only sleeps, reads an eventfd into its stack, and loads words.
            unsafe { serving::run(|thread| watch(thread, &shared, &sleeper)) }
        };
        thread.spawn(run).ok().map(Self)
    }

    /// Ends the thread, and waits until it has ended.
    pub(crate) fn stop(self, shared: &Shared) {
        shared.handover.stopped.store(true, Ordering::Relaxed);
        shared.handover.wake();
        let _ = self.0.join();
    }
}

/// The descriptors on which the thread sleeps.
#[derive(Debug)]
struct Sleeper {
    set: OwnedFd,
}

/// Why a sleep has ended.
#[derive(Clone, Copy, Debug, Default)]
struct Woken {
    /// A doorbell of the domain.
    rung: bool,
    /// The program, which makes a call or closes the device.
    called: bool,
}

impl Sleeper {
    const RUNG: u64 = 1;
    const CALLED: u64 = 2;

    /// The descriptor of the domain may stay readable while the program polls, so only a new doorbell counts.
    fn new(domain: BorrowedFd<'_>, handover: &Handover) -> rustix::io::Result<Self> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&set, domain, EventData::new_u64(Self::RUNG), EventFlags::IN | EventFlags::ET)?;
        epoll::add(&set, &handover.wake_fd, EventData::new_u64(Self::CALLED), EventFlags::IN)?;
        Ok(Self { set })
    }

    /// Sleeps until there is a reason to wake, or the limit is over.
    fn sleep(&self, limit: Option<Duration>) -> Woken {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut events = [const { MaybeUninit::uninit() }; 2];
        // Interrupted, it is as if the limit were over: the caller looks.
        let Ok((happened, _)) = epoll::wait(&self.set, &mut events[..], limit.as_ref()) else {
            return Woken::default();
        };
        let has = |tag| happened.iter().any(|event| event.data.u64() == tag);
        Woken { rung: has(Self::RUNG), called: has(Self::CALLED) }
    }
}

fn watch(thread: &mut ServingThread, shared: &Shared, sleeper: &Sleeper) {
    let handover = &shared.handover;
    let (mut seen, mut tick) = (handover.calls.load(Ordering::Relaxed), TICK);
    while !handover.stopped.load(Ordering::Relaxed) {
        // A program that asks for an event arms the domain: then a doorbell ends the sleep.
        let woken = sleeper.sleep(Some(tick));
        handover.clear();
        let calls = handover.calls.load(Ordering::Relaxed);
        if calls == seen || woken.rung {
            serve(thread, shared, sleeper);
            tick = TICK;
        } else {
            tick = (tick * 2).min(TICK_MAX);
        }
        seen = calls;
    }
}

/// Acts for peers until the program makes a call.
fn serve(thread: &mut ServingThread, shared: &Shared, sleeper: &Sleeper) {
    let handover = &shared.handover;
    while !handover.stopped.load(Ordering::Relaxed) {
        let gate = thread.enter();
        // The program is in a call if the lock is not free. It may wait for the gate there, so this thread does not wait for the lock.
        let Some(mut adapter) = shared.adapter.try_visit() else { return };
        adapter.serve();
        let armed = adapter.arm();
        handover.serving.store(true, Ordering::Relaxed);
        let limit = adapter.pause_left();
        drop(adapter);
        drop(gate);
        if armed && sleeper.sleep(limit).called {
            return;
        }
    }
}
