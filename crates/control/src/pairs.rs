//! The life of a window that two guests have in common: one task for each.
//!
//! ```text
//!   Wanted ──► Make: make ──► both show it ──► open
//!                     │                          nobody uses it for a while,
//!                     ▼                          a guest is gone  │
//!                  refused ──────────► Make: unmake ◄─────────────┘
//! ```
//!
//! The broker decides who is wanted ([`Broker`](crate::broker::Broker)), a maker for each platform does it ([`kvm`](crate::kvm),
//! [`xen`](crate::xen)); here is the waiting: for guests, and for time. A maker that comes to nothing, and a guest that does not take its window,
//! end in a refusal after a time limit, and nothing else waits for them.

use std::sync::Arc;
use std::time::Duration;

use isthmus_layout::reason::Reason;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::broker::{Look, Wanted};
use crate::ground::{CommonWindow, Progress};
use crate::server::Server;

/// How long domains may take what was left for them in a window that goes, and how often it is looked whether they have.
const LINGER: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How long a window stays that nobody uses.
    pub(crate) idle: Duration,
    /// How long it may take until both guests show theirs.
    pub(crate) limit: Duration,
    /// How long a guest that shows it no longer may take to show it again.
    pub(crate) absence: Duration,
}

/// What a platform does for one window.
pub(crate) trait Make {
    /// Gives both guests a window. What has to be taken away is known to the maker, whatever comes of this and whenever it is given up.
    async fn make(&mut self, wanted: &Wanted) -> Result<Arc<CommonWindow>, String>;
    /// Waits until the window is gone by itself, and says how.
    async fn gone(&self) -> &'static str;
    /// Takes it away; returns when nothing of it is left.
    async fn unmake(self, wanted: &Wanted);
}

/// One window's life.
pub(crate) async fn live(server: Server, limits: Limits, wanted: Wanted, mut maker: impl Make) {
    let (key, number, names) = (wanted.key, wanted.number, names(&wanted));
    let life = Life { server: &server, limits, wanted: &wanted };
    let made = timeout(limits.limit, life.begin(&mut maker)).await;
    let made = made.unwrap_or_else(|_| Err(format!("not both have shown it within {:?}", limits.limit)));
    let refused = made.is_err();
    match made {
        Ok(window) => {
            tracing::info!(guests = names, window = number.0, "they have a window in common");
            let why = life.watch(&window, &maker).await;
            tracing::info!(guests = names, window = number.0, "their common window goes: {why}");
            server.with(|broker| broker.pair_ends(key, Reason::WindowGone, "the window before has to go first"));
        }
        Err(text) => {
            tracing::warn!(guests = names, "they get no window in common: {text}");
            server.with(|broker| broker.pair_ends(key, Reason::WindowRefused, &text));
        }
    }
    // What was sent last may still lie in it.
    let until = Instant::now() + LINGER;
    while server.with(|broker| broker.pair_lingers(key)) && Instant::now() < until {
        sleep(LOOK).await;
    }
    server.with(|broker| broker.pair_is_left(key));
    maker.unmake(&wanted).await;
    server.with(|broker| broker.pair_over(key, refused));
}

fn names(wanted: &Wanted) -> String {
    let [one, other] = &wanted.guests;
    format!("{} and {}", one.name(), other.name())
}

struct Life<'a> {
    server: &'a Server,
    limits: Limits,
    wanted: &'a Wanted,
}

impl Life<'_> {
    fn look(&self) -> Look {
        self.server.with(|broker| broker.look_at_pair(self.wanted.key))
    }

    /// Until both show the window, and its pieces can be handed out.
    async fn begin(&self, maker: &mut impl Make) -> Result<Arc<CommonWindow>, String> {
        let window = maker.make(self.wanted).await?;
        loop {
            match (self.look(), window.progress()) {
                (_, Progress::Refused(why)) => return Err(why),
                (Look::Parted, _) => return Err("one of them is not there any more".to_owned()),
                (Look::Used | Look::Idle, Progress::Ready) => return Ok(window),
                (Look::Used | Look::Idle, Progress::Pending) | (Look::Unshown, _) => {
                    self.wanted.changed.notified().await;
                }
            }
        }
    }

    /// Waits until the window has to go, and says why.
    async fn watch(&self, window: &Arc<CommonWindow>, maker: &impl Make) -> &'static str {
        let Limits { idle, absence, .. } = self.limits;
        let (mut quiet, mut before) = (Instant::now(), Look::Unshown);
        loop {
            let look = self.look();
            if before == Look::Unshown && look != Look::Unshown {
                self.server.with(|broker| broker.pair_open(self.wanted.key, window));
            }
            if std::mem::replace(&mut before, look) != look || look == Look::Used {
                quiet = Instant::now();
            }
            let patience = match look {
                Look::Parted => return "one of them is not there any more",
                Look::Unshown if quiet.elapsed() >= absence => return "one of them does not show it any more",
                Look::Idle if quiet.elapsed() >= idle => return "nobody uses it",
                Look::Unshown => absence,
                Look::Idle | Look::Used => idle,
            };
            tokio::select! {
                () = self.wanted.changed.notified() => {}
                how = maker.gone() => return how,
                () = sleep_until(quiet + patience) => {}
            }
        }
    }
}
