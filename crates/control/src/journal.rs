//! Counts every refusal, fault and end by its reason, and logs a few of them: at most one line a second for each user, so that nobody can fill
//! the log by being refused.

use std::collections::HashMap;

use isthmus_layout::control::Owner;
use isthmus_layout::reason::{Kind, Reason};

/// Nanoseconds between two lines about one user.
const PAUSE: u64 = 1_000_000_000;

/// Users whose last line is remembered. When there are more, all are forgotten, which costs a few lines too many.
const USERS_MAX: usize = 4096;

/// What happened how often.
#[derive(Debug, Default)]
pub struct Journal {
    counts: HashMap<Reason, u64>,
    lines: HashMap<Owner, Line>,
}

#[derive(Debug)]
struct Line {
    at: u64,
    left_out: u64,
}

impl Journal {
    /// Takes note of something that a user's connection brought about.
    pub fn note(&mut self, now: u64, owner: Owner, reason: Reason, text: &dyn std::fmt::Display) {
        *self.counts.entry(reason).or_default() += 1;
        if self.lines.len() >= USERS_MAX {
            self.lines.clear();
        }
        let left_out = match self.lines.get_mut(&owner) {
            Some(line) if now.saturating_sub(line.at) < PAUSE => {
                line.left_out += 1;
                return;
            }
            Some(line) => std::mem::take(&mut line.left_out),
            None => 0,
        };
        self.lines.insert(owner, Line { at: now, left_out: 0 });
        match reason.kind() {
            Kind::Fault => tracing::warn!(%owner, %reason, left_out, "{text}"),
            Kind::Refusal | Kind::Fallback => tracing::info!(%owner, %reason, left_out, "{text}"),
            Kind::Ended => tracing::debug!(%owner, %reason, left_out, "{text}"),
        }
    }

    /// How often each reason was met, by code.
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
    fn everything_is_counted_and_little_is_logged() {
        let mut journal = Journal::default();
        for step in 0..100 {
            journal.note(step * 10_000_000, Owner(5), Reason::MalformedControl, &"test");
        }
        assert_eq!(journal.counts(), [(Reason::MalformedControl, 100)]);
        assert_eq!(journal.lines[&Owner(5)].left_out, 99);
        journal.note(PAUSE, Owner(5), Reason::NameTaken, &"test");
        assert_eq!(journal.lines[&Owner(5)].left_out, 0);
    }
}
