//! The number of events that one progress call of a library may find.

/// The number of events that one progress call may find before the program handles them.
///
/// A poll behind the last message is expensive: it fetches the cache line of the next cell, and waits for it while the program could
/// already reply. So a call ends with the first event. If a call found as many events as it might, the next one may find twice as many.
///
/// The caller counts the events. All methods take its count.
#[derive(Debug)]
pub struct PollBudget {
    /// The count of events at which the call ends.
    limit: u64,
    /// Events that the call may find.
    budget: u64,
    /// The last call found all that it might.
    exhausted: bool,
    /// The call after the last one was skipped.
    skipped: bool,
}

/// The most events that one call may find: the program takes those it found without another call.
const EVENTS_MAX: u64 = 16;

impl Default for PollBudget {
    fn default() -> Self {
        Self { limit: 1, budget: 1, exhausted: false, skipped: false }
    }
}

impl PollBudget {
    /// A progress call begins.
    #[inline]
    pub fn begin(&mut self, events: u64) {
        self.budget = if self.exhausted { (2 * self.budget).min(EVENTS_MAX) } else { 1 };
        self.limit = events + self.budget;
        self.skipped = false;
    }

    /// True if the call has found all events that it may find.
    #[inline]
    pub const fn is_used_up(&self, events: u64) -> bool {
        events >= self.limit
    }

    /// A progress call ends.
    #[inline]
    pub const fn end(&mut self, events: u64) {
        self.exhausted = self.is_used_up(events);
    }

    /// A progress call finds nothing, and does nothing. It needs no [`Self::begin`].
    #[inline]
    pub const fn note_idle(&mut self) {
        (self.exhausted, self.skipped) = (false, false);
    }

    /// True if the last call has ended with a single event.
    #[inline]
    pub const fn will_skip(&self) -> bool {
        self.budget == 1 && self.exhausted
    }

    /// True once after a call that has ended with a single event: a program that polls until there is nothing more is told so without a
    /// poll.
    #[inline]
    pub const fn should_skip(&mut self) -> bool {
        self.will_skip() && !core::mem::replace(&mut self.skipped, true)
    }

    /// From now on any event ends the wait.
    pub const fn prepare_wait(&mut self, events: u64) {
        self.limit = events + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Progress calls with `waiting` events each: how many each call finds, or None if it is skipped. A program that `skips` none calls in
    /// any case.
    fn progress_calls(budget: &mut PollBudget, skips: bool, waiting: &[u64]) -> Vec<Option<u64>> {
        let mut events = 0;
        let call = |&waiting: &u64| {
            let skipped = skips && budget.should_skip();
            let found = (!skipped).then(|| {
                budget.begin(events);
                let begun = events;
                while !budget.is_used_up(events) && events < begun + waiting {
                    events += 1;
                }
                budget.end(events);
                events - begun
            });
            events += 1; // A send is over between two calls, and does not count as an event that they find.
            found
        };
        waiting.iter().map(call).collect()
    }

    #[test]
    fn call_ends_at_the_first_event_and_the_next_one_is_skipped() {
        let found = progress_calls(&mut PollBudget::default(), true, &[0, 0, 1, 0, 0, 1, 0]);
        assert_eq!(found, [Some(0), Some(0), Some(1), None, Some(0), Some(1), None]);
    }

    #[test]
    fn budget_doubles_while_it_is_used_up() {
        let many = u64::MAX / 2;
        let found =
            progress_calls(&mut PollBudget::default(), true, &[many, many, many, many, many, many, many, 0, many]);
        assert_eq!(found, [Some(1), None, Some(2), Some(4), Some(8), Some(16), Some(16), Some(0), Some(1)]);
        let found =
            progress_calls(&mut PollBudget::default(), false, &[many, many, many, many, many, many, 3, many, 0, many]);
        assert_eq!(found, [1, 2, 4, 8, 16, 16, 3, 1, 0, 1].map(Some));
        let found = progress_calls(&mut PollBudget::default(), false, &[0, 3, 0, 3, 0, 0]);
        assert_eq!(found, [0, 1, 0, 1, 0, 0].map(Some));
    }

    #[test]
    fn idle_call_ends_the_series() {
        let mut budget = PollBudget::default();
        progress_calls(&mut budget, false, &[9]);
        assert!(budget.will_skip());
        budget.note_idle();
        assert!(!budget.will_skip() && !budget.should_skip());
        assert_eq!(progress_calls(&mut budget, false, &[9, 9]), [Some(1), Some(2)]);
    }

    #[test]
    fn any_event_ends_a_wait() {
        let mut budget = PollBudget::default();
        progress_calls(&mut budget, false, &[9; 9]);
        budget.prepare_wait(100);
        assert!(!budget.is_used_up(100) && budget.is_used_up(101));
    }
}
