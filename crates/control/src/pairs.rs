//! The life cycle of a pair window. Each window has one task.
//!
//! ```text
//!   PairRequest ──► PairMaker: create ──► both show it ──► open
//!                     │                                      the window is unused for a while,
//!                     ▼                                      a guest is gone  │
//!                  refused ──────────► PairMaker: destroy ◄───────────────────┘
//! ```
//!
//! The [`Broker`](crate::broker::Broker) decides which windows are requested. A maker for each platform creates them ([`kvm`](crate::kvm),
//! [`xen`](crate::xen)). This module waits for guests and enforces time limits. If a maker fails, or a guest does not attach its window in time,
//! the request is refused. No other request waits for it.

use std::sync::Arc;
use std::time::Duration;

use isthmus_layout::reason::Reason;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::allocator::{PairProgress, PairWindow};
use crate::broker::{PairRequest, PairState};
use crate::server::Server;

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

/// The operations of a platform for one window.
pub(crate) trait PairMaker {
    /// Creates a window and gives it to both guests. The maker records what `destroy` has to remove, also if this fails or is cancelled.
    async fn create(&mut self, request: &PairRequest) -> Result<Arc<PairWindow>, String>;
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
    let created = created.unwrap_or_else(|_| Err(format!("not both have shown it within {:?}", limits.limit)));
    let refused = created.is_err();
    match created {
        Ok(window) => {
            tracing::info!(guests = names, window = number.0, "they have a pair window");
            let why = life.watch(&window, &maker).await;
            tracing::info!(guests = names, window = number.0, "their pair window is closed: {why}");
            server.with(|broker| broker.close_pair(key, Reason::PairWindowClosed, "the window before has to go first"));
        }
        Err(text) => {
            tracing::warn!(guests = names, "they get no pair window: {text}");
            server.with(|broker| broker.close_pair(key, Reason::PairWindowRefused, &text));
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
    async fn open(&self, maker: &mut impl PairMaker) -> Result<Arc<PairWindow>, String> {
        let window = maker.create(self.request).await?;
        loop {
            match (self.state(), window.progress()) {
                (_, PairProgress::Refused(why)) => return Err(why),
                (PairState::GuestGone, _) => return Err("one of them is not there any more".to_owned()),
                (PairState::InUse | PairState::Idle, PairProgress::Ready) => return Ok(window),
                (PairState::InUse | PairState::Idle, PairProgress::Pending) | (PairState::Absent, _) => {
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
                PairState::GuestGone => return "one of them is not there any more",
                PairState::Absent if last_change.elapsed() >= absence => return "one of them does not show it any more",
                PairState::Idle if last_change.elapsed() >= idle => return "it was unused",
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
