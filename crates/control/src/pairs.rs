//! The life of a pair window: one task for each.
//!
//! ```text
//!   PairRequest ──► PairMaker: create ──► both show it ──► open
//!                     │                                      nobody uses it for a while,
//!                     ▼                                      a guest is gone  │
//!                  refused ──────────► PairMaker: destroy ◄───────────────────┘
//! ```
//!
//! The broker decides which are requested ([`Broker`](crate::broker::Broker)), a maker for each platform does it ([`kvm`](crate::kvm),
//! [`xen`](crate::xen)); here is the waiting: for guests, and for time. A maker that comes to nothing, and a guest that does not take its window,
//! end in a refusal after a time limit, and nothing else waits for them.

use std::sync::Arc;
use std::time::Duration;

use isthmus_layout::reason::Reason;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::allocator::{PairProgress, PairWindow};
use crate::broker::{PairRequest, PairState};
use crate::server::Server;

/// How long domains may take what was left for them in a window that goes, and how often it is looked whether they have.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_POLL: Duration = Duration::from_millis(20);

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairTimeouts {
    /// How long a window stays that nobody uses.
    pub(crate) idle: Duration,
    /// How long it may take until both guests show theirs.
    pub(crate) limit: Duration,
    /// How long a guest that shows it no longer may take to show it again.
    pub(crate) absence: Duration,
}

/// What a platform does for one window.
pub(crate) trait PairMaker {
    /// Gives both guests a window. What has to be taken away is known to the maker, whatever comes of this and whenever it is given up.
    async fn create(&mut self, request: &PairRequest) -> Result<Arc<PairWindow>, String>;
    /// Waits until the window is gone by itself, and says how.
    async fn closed(&self) -> &'static str;
    /// Takes it away; returns when nothing of it is left.
    async fn destroy(self, request: &PairRequest);
}

/// One window's life.
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
            tracing::info!(guests = names, window = number.0, "their pair window goes: {why}");
            server.with(|broker| broker.close_pair(key, Reason::PairWindowClosed, "the window before has to go first"));
        }
        Err(text) => {
            tracing::warn!(guests = names, "they get no pair window: {text}");
            server.with(|broker| broker.close_pair(key, Reason::PairWindowRefused, &text));
        }
    }
    // What was sent last may still lie in it.
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

    /// Until both show the window, and its extents can be handed out.
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

    /// Waits until the window has to go, and says why.
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
                PairState::Idle if last_change.elapsed() >= idle => return "nobody uses it",
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
