//! An open endpoint: a domain of its own, and the threads that wait on it.

use crate::change_count::ChangeCount;
use crate::deadlines::Deadlines;
use crate::environment::Settings;
use crate::matcher::MxMatcher;
use crate::types::UnexpectedHandler;
use isthmus_client::{AdaptiveSpin, Domain, EndpointAddress, Options, PollBackoff};
use isthmus_mx::{Engine, PartnerId};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

/// The address of an endpoint, as programs know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MxAddress {
    pub(crate) nic: u64,
    pub(crate) number: u32,
}

/// The handler of unexpected messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handler {
    pub(crate) function: UnexpectedHandler,
    pub(crate) context: *mut c_void,
}

// SAFETY: the context is opaque. It is passed to the program's function and never dereferenced.
unsafe impl Send for Handler {}

/// The state of the leader: the thread that makes progress for all threads that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leader {
    /// No thread waits, or the former leader has found its result.
    None,
    /// A thread that makes progress.
    Awake,
    /// A thread that sleeps on the domain's descriptor.
    Asleep,
}

/// An endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) domain: Domain<MxMatcher>,
    pub(crate) settings: &'static Settings,
    /// How long the endpoint waits for receivers of copied sends when it closes.
    pub(crate) linger: Duration,
    pub(crate) deadlines: Deadlines,
    pub(crate) board: u32,
    pub(crate) place: MxAddress,
    /// This endpoint as a partner of itself.
    pub(crate) own: PartnerId,
    /// The addresses of partners that the program connected to.
    pub(crate) partner_addresses: HashMap<EndpointAddress, MxAddress>,
    pub(crate) handler: Option<Handler>,
    /// The thread that the handler runs on.
    pub(crate) in_handler: Option<ThreadId>,
    /// `mx_disable_progression()`.
    pub(crate) progress_disabled: bool,
    pub(crate) waiting: AdaptiveSpin,
    /// The backoff of a program that polls without finding anything.
    pub(crate) idle: PollBackoff,
    pub(crate) leader: Leader,
    /// The number of sleeping threads: the leader if it sleeps, and its followers.
    pub(crate) sleepers: u32,
    /// The events that the sleeping threads were notified of.
    reported_events: u64,
    /// Calls of `mx_wakeup()`.
    pub(crate) wakeups: u64,
    pub(crate) wake_fd: Arc<WakeFd>,
    /// A thread delivers copied sends.
    pub(crate) has_delivery_thread: bool,
}

impl Endpoint {
    pub(crate) fn new(
        domain: Domain<MxMatcher>,
        settings: &'static Settings,
        board: u32,
        place: MxAddress,
        own: PartnerId,
        options: &Options,
    ) -> Result<Self, Errno> {
        let wake_fd = Arc::new(WakeFd::new(&domain)?);
        Ok(Self {
            domain,
            settings,
            linger: options.linger(),
            deadlines: Deadlines::default(),
            board,
            place,
            own,
            partner_addresses: HashMap::new(),
            handler: None,
            in_handler: None,
            progress_disabled: false,
            waiting: AdaptiveSpin::new(options.wait),
            idle: PollBackoff::default(),
            leader: Leader::None,
            sleepers: 0,
            reported_events: 0,
            wakeups: 0,
            wake_fd,
            has_delivery_thread: false,
        })
    }

    #[inline]
    pub(crate) fn matcher(&mut self) -> &mut MxMatcher {
        self.domain.matcher_mut()
    }

    #[inline]
    pub(crate) fn engine(&mut self) -> &mut Engine<crate::matcher::MxTypes> {
        &mut self.domain.matcher_mut().engine
    }

    /// Makes progress once: handles pending work until an event occurs.
    #[inline]
    pub(crate) fn progress_once(&mut self) {
        self.matcher().begin();
        self.domain.progress();
        self.matcher().finish_iteration();
        if !self.deadlines.is_empty() {
            self.expire();
        }
    }

    /// Arms the descriptor. Returns false if an event has occurred already.
    pub(crate) fn arm(&mut self) -> bool {
        self.matcher().prepare_wait();
        self.domain.arm()
    }

    /// Returns true while the endpoint makes no progress: the program has disabled it, or its handler runs.
    #[inline]
    pub(crate) fn is_progress_disabled(&self) -> bool {
        self.progress_disabled || self.in_handler.is_some()
    }

    /// Returns true if the handler of unexpected messages is to be called.
    #[inline]
    pub(crate) fn must_call_handler(&self) -> bool {
        !self.domain.matcher().handler_pending.is_empty() && !self.is_progress_disabled()
    }

    /// Makes progress once, for a program that polls. Returns how long to sleep, if nothing was found and sleeping is worthwhile.
    #[inline]
    pub(crate) fn poll(&mut self) -> Option<Duration> {
        let events = self.events();
        self.progress_once();
        if self.events() == events {
            return self.idle.on_empty_poll();
        }
        self.on_work();
        None
    }

    /// Records that a program that polls has found something.
    #[inline]
    pub(crate) fn on_work(&mut self) {
        let brought = self.domain.daemon_records();
        self.idle.on_work(brought);
    }

    pub(crate) fn events(&self) -> u64 {
        self.domain.matcher().events
    }

    /// Returns true once after each event: the sleeping threads have to be notified.
    pub(crate) fn take_event_flag(&mut self) -> bool {
        let events = self.events();
        std::mem::replace(&mut self.reported_events, events) != events
    }

    /// Returns true if there are sleeping followers of the leader.
    pub(crate) fn has_followers(&self) -> bool {
        self.sleepers > u32::from(self.leader == Leader::Asleep)
    }

    /// Wakes the leader, if it sleeps.
    pub(crate) fn wake_leader(&self) {
        if self.leader == Leader::Asleep {
            self.wake_fd.wake();
        }
    }

    /// Notifies the sleeping threads if an event occurred, and arms the descriptor so that later events wake a leader that sleeps on it.
    #[cold]
    pub(crate) fn notify(&mut self, change_count: &ChangeCount) {
        let asleep = self.leader == Leader::Asleep;
        let must_look = asleep && (self.is_progress_disabled() || !self.arm());
        let has_event = self.take_event_flag();
        if has_event && self.has_followers() {
            change_count.notify();
        }
        if has_event || must_look {
            self.wake_leader();
        }
    }
}

/// Marks events of the eventfd in the domain's set. The client library ignores them.
const WAKE_EVENT: u64 = 2;

/// The reason for the end of the leader's sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WakeReason {
    /// The daemon has sent a notification.
    pub(crate) has_daemon_event: bool,
    /// A signal came.
    pub(crate) interrupted: bool,
}

/// The descriptors that the leader sleeps on. They outlive the endpoint for as long as a thread sleeps on them.
///
/// ```text
///   domain's epoll set ◄── doorbells, the daemon's socket, a timer
///                      ◄── eventfd: another thread has done something
/// ```
#[derive(Debug)]
pub(crate) struct WakeFd {
    /// A duplicate of the domain's epoll descriptor.
    set: OwnedFd,
    eventfd: OwnedFd,
}

impl WakeFd {
    fn new(domain: &Domain<MxMatcher>) -> Result<Self, Errno> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let set = rustix::io::fcntl_dupfd_cloexec(domain.fd(), 3)?;
        // Level-triggered: another thread that checks the set must not consume an event that is meant for the leader.
        epoll::add(&set, &eventfd, EventData::new_u64(WAKE_EVENT), EventFlags::IN)?;
        Ok(Self { set, eventfd })
    }

    pub(crate) fn wake(&self) {
        // The write fails if the counter is full. The eventfd is readable then, as intended.
        let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
    }

    /// Sleeps until the domain has an event, another thread calls [`Self::wake`], or `limit` is over.
    pub(crate) fn sleep(&self, limit: Option<Duration>) -> WakeReason {
        let mut events = [const { MaybeUninit::uninit() }; 8];
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match epoll::wait(&self.set, &mut events[..], limit.as_ref()) {
            Ok((happened, _)) => {
                let by = |tag| happened.iter().any(|event| event.data.u64() == tag);
                if by(WAKE_EVENT) {
                    let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
                }
                WakeReason { has_daemon_event: by(Domain::<MxMatcher>::NOTIFICATIONS), interrupted: false }
            }
            Err(errno) => WakeReason { has_daemon_event: false, interrupted: errno == Errno::INTR },
        }
    }
}
