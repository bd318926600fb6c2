//! An open endpoint: its domain, which is its alone, and who waits for what.

use crate::changes::Changes;
use crate::environment::Settings;
use crate::matching::Matching;
use crate::types::UnexpectedHandler;
use isthmus_client::{Domain, EndpointAddress, Idle, Wait, Waiting};
use isthmus_mx::{Engine, PartnerIndex};
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

/// Where an endpoint is, as programs know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) nic: u64,
    pub(crate) number: u32,
}

/// The handler of unexpected messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handler {
    pub(crate) function: UnexpectedHandler,
    pub(crate) context: *mut c_void,
}

// SAFETY: the context is the program's word; it is passed to the program's function and never looked at.
unsafe impl Send for Handler {}

/// Who does what has to be done for all who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leader {
    /// Nobody waits, or the one who did has what it waited for.
    None,
    /// A thread that looks.
    Awake,
    /// A thread that sleeps on the domain's descriptor.
    Asleep,
}

/// An endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) domain: Domain<Matching>,
    pub(crate) settings: &'static Settings,
    pub(crate) board: u32,
    pub(crate) place: Place,
    /// This endpoint as a partner of itself.
    pub(crate) own: PartnerIndex,
    /// Where partners are that somebody asked for.
    pub(crate) places: HashMap<EndpointAddress, Place>,
    pub(crate) handler: Option<Handler>,
    /// The thread that the handler runs on.
    pub(crate) in_handler: Option<ThreadId>,
    /// `mx_disable_progression()`.
    pub(crate) still: bool,
    pub(crate) waiting: Waiting,
    /// What a program that polls does about finding nothing.
    pub(crate) idle: Idle,
    pub(crate) leader: Leader,
    /// Threads that sleep: a leader, and those who rely on it.
    pub(crate) sleepers: u32,
    /// Events that those who sleep have heard of.
    told: u64,
    /// Calls of `mx_wakeup()`.
    pub(crate) wakeups: u64,
    pub(crate) bell: Arc<Bell>,
}

impl Endpoint {
    pub(crate) fn new(
        domain: Domain<Matching>,
        settings: &'static Settings,
        board: u32,
        place: Place,
        own: PartnerIndex,
        wait: Wait,
    ) -> Result<Self, Errno> {
        let bell = Arc::new(Bell::new(&domain)?);
        Ok(Self {
            domain,
            settings,
            board,
            place,
            own,
            places: HashMap::new(),
            handler: None,
            in_handler: None,
            still: false,
            waiting: Waiting::new(wait),
            idle: Idle::default(),
            leader: Leader::None,
            sleepers: 0,
            told: 0,
            wakeups: 0,
            bell,
        })
    }

    #[inline]
    pub(crate) fn matching(&mut self) -> &mut Matching {
        self.domain.matcher_mut()
    }

    #[inline]
    pub(crate) fn engine(&mut self) -> &mut Engine<crate::matching::Parts> {
        &mut self.domain.matcher_mut().engine
    }

    /// One turn of the wheel: what there is to do is done, until something is over.
    #[inline]
    pub(crate) fn turn(&mut self) {
        self.matching().begin();
        self.domain.progress();
        self.matching().end_turn();
    }

    /// Has the descriptor tell of everything from now on. False if there is something already.
    pub(crate) fn arm(&mut self) -> bool {
        self.matching().begin_to_wait();
        self.domain.arm()
    }

    /// True while nothing is to happen by itself.
    #[inline]
    pub(crate) fn is_still(&self) -> bool {
        self.still || self.in_handler.is_some()
    }

    /// True while the handler of unexpected messages is to be called.
    #[inline]
    pub(crate) fn calls_handler(&self) -> bool {
        !self.domain.matcher().asked.is_empty() && !self.is_still()
    }

    /// One turn for a program that polls. How long to sleep, if that is the thing to do as it has found nothing.
    #[inline]
    pub(crate) fn look(&mut self) -> Option<Duration> {
        let events = self.events();
        self.turn();
        if self.events() == events {
            return self.idle.nothing();
        }
        self.found();
        None
    }

    /// A program that polls has found something.
    #[inline]
    pub(crate) fn found(&mut self) {
        let brought = self.domain.brought();
        self.idle.found(brought);
    }

    pub(crate) fn events(&self) -> u64 {
        self.domain.matcher().events
    }

    /// True once after something happened: somebody has to be told.
    pub(crate) fn has_news(&mut self) -> bool {
        let events = self.events();
        std::mem::replace(&mut self.told, events) != events
    }

    /// True if threads sleep that rely on the one that leads.
    pub(crate) fn has_followers(&self) -> bool {
        self.sleepers > u32::from(self.leader == Leader::Asleep)
    }

    /// Wakes the one that leads, if it sleeps.
    pub(crate) fn wake_leader(&self) {
        if self.leader == Leader::Asleep {
            self.bell.ring();
        }
    }

    /// Tells those who sleep if anything happened, and sees to it that whoever sleeps on the descriptor is woken by what comes.
    #[cold]
    pub(crate) fn tell(&mut self, changes: &Changes) {
        let asleep = self.leader == Leader::Asleep;
        let must_look = asleep && (self.is_still() || !self.arm());
        let news = self.has_news();
        if news && self.has_followers() {
            changes.tell();
        }
        if news || must_look {
            self.wake_leader();
        }
    }
}

/// Marks events of the nudge in the domain's set, which takes no notice of them.
const NUDGE: u64 = 2;

/// What ended the leader's sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Woken {
    /// The daemon has news.
    pub(crate) news: bool,
    /// A signal came.
    pub(crate) interrupted: bool,
}

/// What the leader of those who wait sleeps on. It outlives the endpoint for as long as somebody does.
///
/// ```text
///   domain's epoll set ◄── doorbells, the daemon's socket, a timer
///                      ◄── nudge: another thread has done something
/// ```
#[derive(Debug)]
pub(crate) struct Bell {
    /// A descriptor of ours for the domain's set.
    set: OwnedFd,
    nudge: OwnedFd,
}

impl Bell {
    fn new(domain: &Domain<Matching>) -> Result<Self, Errno> {
        let nudge = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let set = rustix::io::fcntl_dupfd_cloexec(domain.fd(), 3)?;
        // Level-triggered: another thread's look at the set must not take what is meant for the one that sleeps.
        epoll::add(&set, &nudge, EventData::new_u64(NUDGE), EventFlags::IN)?;
        Ok(Self { set, nudge })
    }

    pub(crate) fn ring(&self) {
        // Refused where the counter is full: then it is readable, which is all that is wanted.
        let _ = rustix::io::write(&self.nudge, &1_u64.to_ne_bytes());
    }

    /// Sleeps until the domain has something, the bell rings, or `limit` is over.
    pub(crate) fn sleep(&self, limit: Option<Duration>) -> Woken {
        let mut events = [const { MaybeUninit::uninit() }; 8];
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match epoll::wait(&self.set, &mut events[..], limit.as_ref()) {
            Ok((happened, _)) => {
                let by = |tag| happened.iter().any(|event| event.data.u64() == tag);
                if by(NUDGE) {
                    let _ = rustix::io::read(&self.nudge, &mut [0; 8]);
                }
                Woken { news: by(Domain::<Matching>::NEWS), interrupted: false }
            }
            Err(errno) => Woken { news: false, interrupted: errno == Errno::INTR },
        }
    }
}
