//! The life cycle of a pair window. Each window has one task.
//!
//! ```text
//!   PairRequest ──► PairMaker: create ──► both show it ──► open
//!                     │                                      the window is unused for a while,
//!                     ▼                                      a guest is gone  │
//!                  refused ──────────► PairMaker: destroy ◄───────────────────┘
//! ```
//!
//! The [`Broker`](isthmus_control::broker::Broker) decides which windows are requested. A maker for each platform creates them ([`kvm`](crate::kvm),
//! [`xen`](crate::xen)). This module waits for guests and enforces time limits. If a maker fails, or a guest does not attach its window in time,
//! the request is refused. No other request waits for it.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use isthmus_layout::control::Name;
use isthmus_layout::reason::Reason;
use isthmus_platform::PlatformError;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use isthmus_control::broker::{PairRequest, PairState};
use isthmus_control::server::Server;
use isthmus_window::{PairWindow, Progress, WindowError};

/// How long domains may still read from a window that is being closed, and the interval at which the daemon checks whether they have finished.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_POLL: Duration = Duration::from_millis(20);

/// The time limits of a pair window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairTimeouts {
    /// How long an unused window is kept.
    pub(crate) idle: Duration,
    /// How long both guests may take to attach the window.
    pub(crate) limit: Duration,
    /// How long a guest that has detached the window may take to attach it again.
    pub(crate) absence: Duration,
}

/// The reason why two guests get no pair window.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PairError {
    /// The system refused memory or a descriptor.
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// A guest has no number among the peers of another guest's device.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// A guest ended meanwhile.
    #[error("one of the guests is not there any more")]
    GuestGone,
    /// A guest ended while its device was prepared.
    #[error("guest {0} is not there any more")]
    DeviceGone(Name),
    /// The daemon was not given the monitor of a guest.
    #[error("guest {0} has no monitor")]
    NoMonitor(Name),
    /// The monitor of a guest refused a device.
    #[error("the monitor of guest {guest}: {source}")]
    Monitor { guest: Name, source: Box<dyn Error> },
    /// The daemon of a guest does not read what it is sent.
    #[error("the daemon of guest {0} does not read its frames")]
    Unresponsive(Name),
    /// Neither of two Xen guests may map the grants of the other.
    #[error("neither guest may map what the other one grants (xen.guest: maps)")]
    MayNotMap,
    /// The window cannot be set up.
    #[error("{0}")]
    Refused(String),
    /// The guests took too long.
    #[error("the guests have not both shown the window within {0:?}")]
    NotShown(Duration),
}

/// The operations of a platform for one window.
pub(crate) trait PairMaker {
    /// Creates a window and gives it to both guests. The maker records what `destroy` has to remove, also if this fails or is cancelled.
    async fn create(&mut self, request: &PairRequest) -> Result<Arc<PairWindow>, PairError>;
    /// Waits until the window has gone without `destroy`, and returns the reason.
    async fn closed(&self) -> &'static str;
    /// Removes the window. Returns when nothing is left of it.
    async fn destroy(self, request: &PairRequest);
}

/// Runs one window from its creation to its removal.
pub(crate) async fn run_pair(server: Server, limits: PairTimeouts, request: PairRequest, mut maker: impl PairMaker) {
    let (key, number, names) = (request.key, request.number, names(&request));
    let life = PairLifecycle { server: &server, limits, request: &request };
    let created = timeout(limits.limit, life.open(&mut maker)).await;
    let created = created.unwrap_or_else(|_| Err(PairError::NotShown(limits.limit)));
    let refused = created.is_err();
    match created {
        Ok(window) => {
            tracing::info!(guests = names, window = number.0, "the guests have a pair window");
            let why = life.watch(&window, &maker).await;
            tracing::info!(guests = names, window = number.0, "the pair window is closed: {why}");
            server.with(|broker| broker.close_pair(key, Reason::PairWindowClosed, "the window before has to go first"));
        }
        Err(error) => {
            tracing::warn!(guests = names, "the guests get no pair window: {error}");
            server.with(|broker| broker.close_pair(key, Reason::PairWindowRefused, &error.to_string()));
        }
    }
    // The window may still contain messages that were not read.
    let until = Instant::now() + LINGER;
    while server.with(|broker| broker.pair_lingers(key)) && Instant::now() < until {
        sleep(LINGER_POLL).await;
    }
    server.with(|broker| broker.release_pair(key));
    maker.destroy(&request).await;
    server.with(|broker| broker.remove_pair(key, refused));
}

fn names(request: &PairRequest) -> String {
    let [one, other] = &request.guests;
    format!("{} and {}", one.name(), other.name())
}

struct PairLifecycle<'a> {
    server: &'a Server,
    limits: PairTimeouts,
    request: &'a PairRequest,
}

impl PairLifecycle<'_> {
    fn state(&self) -> PairState {
        self.server.with(|broker| broker.pair_state(self.request.key))
    }

    /// Creates the window, and waits until both guests have attached it and its extents can be allocated.
    async fn open(&self, maker: &mut impl PairMaker) -> Result<Arc<PairWindow>, PairError> {
        let window = maker.create(self.request).await?;
        loop {
            match (self.state(), window.progress()) {
                (_, Progress::Refused(why)) => return Err(PairError::Refused(why)),
                (PairState::GuestGone, _) => return Err(PairError::GuestGone),
                (PairState::InUse | PairState::Idle, Progress::Ready) => return Ok(window),
                (PairState::InUse | PairState::Idle, Progress::Pending) | (PairState::Absent, _) => {
                    self.request.changed.notified().await;
                }
            }
        }
    }

    /// Waits until the window has to be closed, and returns the reason.
    async fn watch(&self, window: &Arc<PairWindow>, maker: &impl PairMaker) -> &'static str {
        let PairTimeouts { idle, absence, .. } = self.limits;
        let (mut last_change, mut before) = (Instant::now(), PairState::Absent);
        loop {
            let state = self.state();
            if before == PairState::Absent && state != PairState::Absent {
                self.server.with(|broker| broker.open_pair(self.request.key, window));
            }
            if std::mem::replace(&mut before, state) != state || state == PairState::InUse {
                last_change = Instant::now();
            }
            let wait = match state {
                PairState::GuestGone => return "one of the guests is not there any more",
                PairState::Absent if last_change.elapsed() >= absence => {
                    return "one of the guests does not show the window any more";
                }
                PairState::Idle if last_change.elapsed() >= idle => return "the window was unused",
                PairState::Absent => absence,
                PairState::Idle | PairState::InUse => idle,
            };
            tokio::select! {
                () = self.request.changed.notified() => {}
                how = maker.closed() => return how,
                () = sleep_until(last_change + wait) => {}
            }
        }
    }
}
