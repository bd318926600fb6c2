//! The accounting of users: what all programs of one user together may take of the control plane.
//!
//! ```text
//!   accept ── admit ──► UserSession ──► User: connections, rate of requests, turns, descriptors, reports
//!                  └──► Refusal         (one for each account; a guest's programs have the user of their guest)
//! ```
//!
//! A subordinate user has no account of its own: see [`Accounts`]. A user may have many connections and processes, so limits of one connection do not protect other users. This module sends and receives
//! nothing. Time is an argument.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use isthmus_layout::Refusal;
use isthmus_layout::reason::Reason;
use isthmus_platform::seqpacket;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{spawn_local, yield_now};
use tokio::time::{Duration, Instant};

use crate::accounts::Accounts;
use crate::places::may_take;

/// The number of requests that a user may send at once, and per second. A job of many processes starts with many requests.
const BURST_REQUESTS: f64 = 65_536.0;
const REQUESTS_PER_SECOND: f64 = 8_192.0;

/// The cost of a connection in requests. A user that connects too often is read more slowly, until it has too many connections.
const CONNECT_COST: f64 = 32.0;

/// The least time for which a user that exceeds its rate of requests is not read. All its connections continue at once afterwards, so this
/// bounds how often they compete.
const REQUESTS_PAUSE_MIN: Duration = Duration::from_millis(20);

/// The number of packets of one user that are handled in one turn, before those of other users.
const TURN_PACKETS: usize = 32;

/// The pause between two checks of which packets with descriptors a user's programs have received.
const UNREAD_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The pause between two checks of the sockets of ended connections.
const ENDED_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The number of reports that are under way at once. A report is as long as the tables of the daemon.
const REPORTS_MAX: usize = 16;

/// The number of users that are remembered without a connection.
const IDLE_USERS_MAX: usize = 1024;

/// The limits of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionLimits {
    /// The number of connections at once that all users share. There are more places, of which each user without a connection gets one.
    pub(crate) shared: usize,
    /// The number of connections at once of one user.
    pub(crate) per_user: usize,
}

impl SessionLimits {
    /// The number of all places.
    fn all(self) -> usize {
        self.shared + (self.shared / 8).max(16)
    }
}

/// The users of the control plane.
#[derive(Debug)]
pub(crate) struct Users {
    limits: SessionLimits,
    accounts: Accounts,
    users: BTreeMap<u32, Rc<User>>,
    /// The number of users from which on idle ones are forgotten.
    forget_from: usize,
    /// The number of connections of all users.
    sessions: Rc<Cell<usize>>,
    unread_fds: Rc<UnreadFds>,
    reports: Arc<Semaphore>,
}

/// The permit for a report that is under way, until it is dropped: the only one of its user, and one of [`REPORTS_MAX`].
#[derive(Debug)]
pub(crate) struct ReportPermit {
    _of_user: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// Descriptors that were sent and not received. The kernel allows the daemon's user as many as a process may have open.
#[derive(Debug)]
struct UnreadFds {
    max: usize,
    /// The descriptors of all users.
    total: Cell<usize>,
}

/// The account of one user.
#[derive(Debug)]
pub(crate) struct User {
    /// The user, as the daemon sees it. Subordinate users of it have this account, too.
    pub(crate) uid: u32,
    sessions: Cell<usize>,
    all_sessions: Rc<Cell<usize>>,
    requests: RefCell<TokenBucket>,
    /// A permit for each packet that may still be handled in this turn.
    turn: Semaphore,
    /// The next turn was requested.
    is_turn_over: Cell<bool>,
    /// Descriptors in packets that wait for a connection.
    queued_fds: Cell<usize>,
    /// Descriptors in packets that were sent and not received.
    unread_fds: Cell<usize>,
    /// Sockets of ended connections with descriptors that were not received. They stay in flight until the program closes its end.
    ended: RefCell<Vec<(OwnedFd, usize)>>,
    /// A task checks `ended` regularly.
    is_watched: Cell<bool>,
    checked_at: Cell<Instant>,
    all_unread_fds: Rc<UnreadFds>,
    report: Arc<Semaphore>,
    all_reports: Arc<Semaphore>,
}

/// A connection in its user's account, until it is dropped.
#[derive(Debug)]
pub(crate) struct UserSession(Rc<User>);

impl Users {
    /// Returns an empty table for a process that may have `fds_max` descriptors.
    pub(crate) fn new(limits: SessionLimits, fds_max: usize) -> Self {
        // Other processes of the daemon's user may have descriptors in flight, too.
        let unread_fds = Rc::new(UnreadFds { max: fds_max / 2, total: Cell::new(0) });
        Self {
            limits,
            accounts: Accounts::of_host(),
            users: BTreeMap::new(),
            forget_from: IDLE_USERS_MAX,
            sessions: Rc::default(),
            unread_fds,
            reports: Arc::new(Semaphore::new(REPORTS_MAX)),
        }
    }

    /// Admits another connection of a user, or says why not. `has_others` is false if the daemon serves one user alone.
    pub(crate) fn admit(&mut self, uid: u32, has_others: bool, now: Instant) -> Result<UserSession, Refusal> {
        let refused = |text: String| Err(Refusal::new(Reason::ConnectionsFull, text));
        let per_user = self.limits.per_user;
        let user = self.user(uid, now);
        let (own, total) = (user.sessions.get(), self.sessions.get());
        if own >= per_user {
            return refused(format!("user {} has {per_user} connections, the limit for each user", user.uid));
        }
        if let Err(full) = may_take(own, total, self.limits.all(), has_others) {
            return refused(format!("there are {total} connections: {full}"));
        }
        user.sessions.set(own + 1);
        self.sessions.set(total + 1);
        user.take_requests(CONNECT_COST);
        Ok(UserSession(user))
    }

    fn user(&mut self, uid: u32, now: Instant) -> Rc<User> {
        self.accounts.refresh();
        let uid = self.accounts.account_of(uid).0;
        if self.users.len() >= self.forget_from && !self.users.contains_key(&uid) {
            self.users.retain(|_, user| !user.is_idle(now));
            self.forget_from = IDLE_USERS_MAX.max(2 * self.users.len());
        }
        let new_user = || {
            Rc::new(User {
                uid,
                sessions: Cell::new(0),
                all_sessions: Rc::clone(&self.sessions),
                requests: RefCell::new(TokenBucket::new(BURST_REQUESTS, REQUESTS_PER_SECOND, now)),
                turn: Semaphore::new(TURN_PACKETS),
                is_turn_over: Cell::new(false),
                queued_fds: Cell::new(0),
                unread_fds: Cell::new(0),
                ended: RefCell::default(),
                is_watched: Cell::new(false),
                checked_at: Cell::new(now),
                all_unread_fds: Rc::clone(&self.unread_fds),
                report: Arc::new(Semaphore::new(1)),
                all_reports: Arc::clone(&self.reports),
            })
        };
        Rc::clone(self.users.entry(uid).or_insert_with(new_user))
    }
}

impl User {
    /// Takes the cost of a request. That of a report is known afterwards.
    pub(crate) fn take_requests(&self, cost: f64) {
        self.requests.borrow_mut().take(cost);
    }

    /// Returns none if a request may be read now, else the time from which one may.
    pub(crate) fn requests_allowed_at(&self, now: Instant) -> Option<Instant> {
        Some(self.requests.borrow_mut().next_allowed(now)?.max(now + REQUESTS_PAUSE_MIN))
    }

    /// Waits until a report of the user may be made.
    pub(crate) async fn report_permit(&self) -> ReportPermit {
        let _of_user = Arc::clone(&self.report).acquire_owned().await.expect("never closed");
        let _of_all = Arc::clone(&self.all_reports).acquire_owned().await.expect("never closed");
        ReportPermit { _of_user, _of_all }
    }

    fn is_idle(&self, now: Instant) -> bool {
        self.forget_received();
        self.sessions.get() == 0 && self.unread_fds.get() == 0 && self.requests.borrow_mut().is_full(now)
    }

    /// Adds the descriptors of a packet that waits for a connection.
    pub(crate) fn queue_fds(&self, fds: usize) {
        self.queued_fds.set(self.queued_fds.get() + fds);
    }

    /// Removes the descriptors of a packet that does not wait any more.
    pub(crate) fn unqueue_fds(&self, fds: usize) {
        self.queued_fds.set(self.queued_fds.get() - fds);
    }

    /// True if packets for the user's connections hold as many descriptors as they may. The daemon has to keep the files open meanwhile.
    pub(crate) fn is_queue_full(&self) -> bool {
        self.queued_fds.get() >= self.all_unread_fds.max / 4
    }

    /// True if a packet with this number of descriptors may be sent to the user: with it, the user has at most half of what all other users
    /// leave. So several users together cannot take all.
    pub(crate) fn may_send_fds(&self, fds: usize) -> bool {
        let (own, all) = (self.unread_fds.get(), &*self.all_unread_fds);
        let others = all.total.get() - own;
        own + fds <= all.max.saturating_sub(others) / 2
    }

    /// Notes that a packet with descriptors was sent.
    pub(crate) fn fds_sent(&self, fds: usize) {
        self.unread_fds.set(self.unread_fds.get() + fds);
        self.all_unread_fds.total.set(self.all_unread_fds.total.get() + fds);
    }

    /// Notes that packets with these descriptors were received.
    pub(crate) fn fds_received(&self, fds: usize) {
        self.unread_fds.set(self.unread_fds.get() - fds);
        self.all_unread_fds.total.set(self.all_unread_fds.total.get() - fds);
    }

    /// Keeps account of descriptors that were not received when their connection ended.
    pub(crate) fn keep_unread(&self, socket: OwnedFd, fds: usize) {
        self.ended.borrow_mut().push((socket, fds));
    }

    /// Closes the sockets of ended connections once their descriptors were received. Returns at once if another task does this already.
    pub(crate) async fn watch_ended(&self) {
        self.forget_received();
        if self.ended.borrow().is_empty() || self.is_watched.replace(true) {
            return;
        }
        while !self.ended.borrow().is_empty() {
            tokio::time::sleep(ENDED_CHECK_INTERVAL).await;
            self.forget_received();
        }
        self.is_watched.set(false);
    }

    /// True if it is time to check which descriptors of the user were received, because its share is used up.
    pub(crate) fn is_check_due(&self, now: Instant) -> bool {
        let is_due = now >= self.checked_at.get() + UNREAD_CHECK_INTERVAL;
        if is_due {
            self.checked_at.set(now);
        }
        is_due
    }

    /// Removes the descriptors of ended connections that were received, or that have no receiver any more.
    pub(crate) fn forget_received(&self) {
        let mut ended = self.ended.borrow_mut();
        for (_, fds) in ended.extract_if(.., |(socket, _)| !seqpacket::has_unread(socket).unwrap_or(false)) {
            self.fds_received(fds);
        }
    }
}

impl UserSession {
    /// Returns the account itself, without another connection in it.
    pub(crate) fn account(&self) -> Rc<User> {
        Rc::clone(&self.0)
    }

    /// Waits until a packet of the user may be handled. All connections of a user share the packets of its turn, in the order in which they
    /// have asked. The next turn begins after the sockets of all users were polled once.
    pub(crate) async fn turn(&self) {
        self.0.turn.acquire().await.expect("never closed").forget();
        if self.0.turn.available_permits() == 0 {
            self.end_turn();
        }
    }

    /// Ends the turn. Called after a request that has taken as long as many others, too.
    pub(crate) fn end_turn(&self) {
        if self.0.is_turn_over.replace(true) {
            return;
        }
        self.0.turn.forget_permits(TURN_PACKETS);
        let user = Rc::clone(&self.0);
        spawn_local(async move {
            yield_now().await; // Until all other tasks were run and the sockets were polled.
            user.is_turn_over.set(false);
            user.turn.add_permits(TURN_PACKETS);
        });
    }
}

impl Deref for UserSession {
    type Target = User;

    fn deref(&self) -> &User {
        &self.0
    }
}

impl Drop for UserSession {
    fn drop(&mut self) {
        self.0.sessions.set(self.0.sessions.get() - 1);
        self.0.all_sessions.set(self.0.all_sessions.get() - 1);
    }
}

/// A bounded rate of actions. The bucket may be overdrawn, because some actions show their cost afterwards.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    tokens: f64,
    burst: f64,
    per_second: f64,
    at: Instant,
}

impl TokenBucket {
    /// Returns a full bucket.
    pub(crate) fn new(burst: f64, per_second: f64, now: Instant) -> Self {
        Self { tokens: burst, burst, per_second, at: now }
    }

    /// Takes the cost of an action.
    pub(crate) fn take(&mut self, cost: f64) {
        self.tokens -= cost;
    }

    /// Returns none if an action is allowed now, else the time from which one is.
    pub(crate) fn next_allowed(&mut self, now: Instant) -> Option<Instant> {
        self.refill(now);
        (self.tokens < 1.0).then(|| now + Duration::from_secs_f64((1.0 - self.tokens) / self.per_second))
    }

    /// True if at least half of the burst is allowed. Valid after [`next_allowed`](Self::next_allowed).
    pub(crate) fn is_half_full(&self) -> bool {
        self.tokens >= self.burst / 2.0
    }

    fn is_full(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.tokens >= self.burst
    }

    fn refill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + seconds * self.per_second).min(self.burst);
        self.at = now;
    }
}

#[cfg(test)]
mod tests;
