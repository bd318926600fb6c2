//! Counts every refusal, fault and end by its reason, and logs a few of them. The log has at most one line a second for each user, so that
//! no user can fill it by being refused, and one about lost messages, which no other line suppresses.

use std::collections::HashMap;

use isthmus_layout::control::Owner;
use isthmus_layout::reason::{Reason, ReasonKind};

/// Nanoseconds between two lines about one user.
const LOG_INTERVAL_NS: u64 = 1_000_000_000;

/// The number of users for which the last line is remembered. When there are more, all are forgotten, which costs a few additional lines.
const USERS_MAX: usize = 4096;

/// The counts by reason, and the times of the last lines.
#[derive(Debug, Default)]
pub struct ReasonLog {
    counts: HashMap<Reason, u64>,
    /// By user, and whether the line is about lost messages.
    users: HashMap<(Owner, bool), UserLog>,
    /// The number of messages that domains have left behind; see [`Reason::MessagesUndelivered`].
    pub undelivered_messages: u64,
}

#[derive(Debug)]
struct UserLog {
    at: u64,
    suppressed: u64,
}

impl ReasonLog {
    /// Records an event that a user's connection has caused.
    pub fn record(&mut self, now: u64, owner: Owner, reason: Reason, text: &dyn std::fmt::Display) {
        *self.counts.entry(reason).or_default() += 1;
        if self.users.len() >= USERS_MAX {
            self.users.clear();
        }
        let lost = reason == Reason::MessagesUndelivered;
        let suppressed = match self.users.get_mut(&(owner, lost)) {
            Some(entry) if now.saturating_sub(entry.at) < LOG_INTERVAL_NS => {
                entry.suppressed += 1;
                return;
            }
            Some(entry) => std::mem::take(&mut entry.suppressed),
            None => 0,
        };
        self.users.insert((owner, lost), UserLog { at: now, suppressed: 0 });
        match reason.kind() {
            _ if lost => tracing::warn!(%owner, %reason, suppressed, "{text}"),
            ReasonKind::Fault => tracing::warn!(%owner, %reason, suppressed, "{text}"),
            ReasonKind::Refusal | ReasonKind::Fallback => tracing::info!(%owner, %reason, suppressed, "{text}"),
            ReasonKind::Ended => tracing::debug!(%owner, %reason, suppressed, "{text}"),
        }
    }

    /// The count of each reason that has occurred, by code.
    pub fn counts(&self) -> Vec<(Reason, u64)> {
        let mut counts: Vec<_> = self.counts.iter().map(|(reason, count)| (*reason, *count)).collect();
        counts.sort_unstable();
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_everything_and_rate_limits_the_log() {
        let mut log = ReasonLog::default();
        for step in 0..100 {
            log.record(step * 10_000_000, Owner(5), Reason::MalformedControl, &"test");
        }
        assert_eq!(log.counts(), [(Reason::MalformedControl, 100)]);
        assert_eq!(log.users[&(Owner(5), false)].suppressed, 99);
        log.record(990_000_000, Owner(5), Reason::MessagesUndelivered, &"test");
        assert_eq!(log.users[&(Owner(5), true)].suppressed, 0, "it has a line of its own");
        log.record(LOG_INTERVAL_NS, Owner(5), Reason::NameTaken, &"test");
        assert_eq!(log.users[&(Owner(5), false)].suppressed, 0);
    }
}
