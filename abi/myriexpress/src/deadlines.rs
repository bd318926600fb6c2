//! Deadlines of requests: `mx_set_request_timeout()`.
//!
//! ```text
//!   send, connect: pending ── its deadline has passed, or that of the endpoint ──► over, with MX_STATUS_TIMEOUT
//! ```
//!
//! A receive has no deadline, because its message may come at any time.

use crate::endpoint::Endpoint;
use isthmus_client::Token;
use isthmus_mx::{RequestId, RequestKind, StatusCode};
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// The number of deadlines from which on those of completed requests are removed.
const PURGE_MIN: usize = 1024;

/// The deadlines of an endpoint's requests. The deadline of a completed request stays until it passes, or until there
/// are many.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    /// The timeout of later requests. `None` if there is none.
    pub(crate) default: Option<Duration>,
    by_time: BTreeSet<(Instant, u64)>,
    by_request: HashMap<u64, Instant>,
    purge_at: usize,
}

impl Deadlines {
    /// Returns true if no request has a deadline.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }

    /// Returns the time until the next deadline.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.by_time.first().map(|(at, _)| at.saturating_duration_since(Instant::now()))
    }

    fn set(&mut self, request: u64, at: Option<Instant>) {
        if let Some(before) = self.by_request.remove(&request) {
            self.by_time.remove(&(before, request));
        }
        if let Some(at) = at {
            self.by_request.insert(request, at);
            self.by_time.insert((at, request));
        }
    }

    /// Removes and returns a request with a passed deadline.
    fn take_passed(&mut self, now: Instant) -> Option<RequestId> {
        let &(at, request) = self.by_time.first()?;
        if at > now {
            return None;
        }
        self.set(request, None);
        RequestId::from_bits(request)
    }

    fn purge(&mut self, is_over: impl Fn(RequestId) -> bool) {
        let over: Vec<_> = self.by_request.keys().copied().collect();
        for request in over.into_iter().filter(|bits| RequestId::from_bits(*bits).is_none_or(&is_over)) {
            self.set(request, None);
        }
        self.purge_at = PURGE_MIN.max(2 * self.by_request.len());
    }
}

impl Endpoint {
    /// Gives a new request the default deadline of the endpoint.
    #[inline]
    pub(crate) fn begin_deadline(&mut self, request: RequestId) {
        if self.deadlines.default.is_some() {
            self.set_deadline(request, self.deadlines.default);
        }
    }

    /// Sets the timeout of a request, from now on. Receives have no timeout.
    pub(crate) fn set_deadline(&mut self, request: RequestId, limit: Option<Duration>) {
        let engine = &self.domain.matcher().engine;
        if !matches!(engine.kind(request), Ok(RequestKind::Send | RequestKind::Connect)) {
            return;
        }
        if self.deadlines.by_request.len() >= self.deadlines.purge_at.max(PURGE_MIN) {
            self.deadlines.purge(|request| engine.is_done(request) != Ok(false));
        }
        self.deadlines.set(request.to_bits(), limit.map(|limit| Instant::now() + limit));
    }

    /// Ends the requests with a passed deadline, which returns their memory to the program.
    #[cold]
    pub(crate) fn expire(&mut self) {
        let now = Instant::now();
        while let Some(request) = self.deadlines.take_passed(now) {
            let engine = self.engine();
            if engine.sent(request, StatusCode::Timeout, 0) {
                self.domain.abandon_send(Token::new(request.to_bits()));
            } else if !engine.connected(request, Err(StatusCode::Timeout)) {
                continue;
            }
            self.matcher().events += 1;
        }
    }
}
