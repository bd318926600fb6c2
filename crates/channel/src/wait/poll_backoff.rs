//! Backoff for a program that only polls and finds nothing.

use isthmus_platform::oversubscription;
use std::time::Duration;

/// Number of empty polls before the first yield.
const POLLS_BEFORE_YIELD: u32 = 400;

/// Number of empty polls between two yields.
const YIELD_INTERVAL: u32 = 50;

/// Number of empty polls between two yields if none of the last yields let another thread run.
const YIELD_INTERVAL_ALONE: u32 = 800;

/// A yield that took longer let another thread run.
const YIELD_TAKEN_AFTER: Duration = Duration::from_micros(15);

/// Number of untaken yields in a row after which the poller considers itself alone on its CPU.
const ALONE_AFTER_YIELDS: u32 = 200;

/// The first sleep, and the longest one.
const SLEEP_FIRST: Duration = Duration::from_micros(100);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// After this number of waits that ended with something else, the program no longer waits for the daemon.
const OTHER_WAITS_MAX: u32 = 16;

/// Number of empty polls before sleeping if the daemon runs on this CPU, because the daemon cannot run while the program polls.
/// It is more than one, because MPI libraries poll until nothing is left before they act on what they have found.
const POLLS_BEFORE_SLEEP_COLOCATED: u32 = 6;

/// Number of waits for the daemon in a sample. If the thread was preempted in at least half of them, the daemon runs on its CPU.
const COLOCATION_SAMPLES: u32 = 16;

/// Number of waits for the daemon after which colocation is measured again.
const COLOCATION_RECHECK_AFTER: u32 = 8192;

/// Detects whether the daemon that the program waits for runs on the same CPU. If it does, polling delays the daemon's messages,
/// and the thread is preempted for each of them.
#[derive(Debug, Default)]
struct DaemonColocation {
    /// The daemon's record count at the last time something was found, and the number of times something else was found since.
    daemon_records: u64,
    other_waits: u32,
    /// The current result, and the number of waits until it is measured again.
    is_colocated: bool,
    recheck_in: u32,
    /// The thread's count of involuntary context switches when this sample began; None before the first sample.
    switches: Option<i64>,
}

impl DaemonColocation {
    /// Returns true if [`Self::on_work`] has to be called for this record count of the daemon.
    #[inline]
    fn is_relevant(&self, daemon_records: u64) -> bool {
        self.is_colocated || self.daemon_records != daemon_records
    }

    /// Records that something was found. `daemon_records` is the daemon's record count, `switches` the thread's count of preemptions.
    fn on_work(&mut self, daemon_records: u64, switches: impl FnOnce() -> i64) {
        if self.daemon_records == daemon_records {
            self.other_waits = self.other_waits.saturating_add(1);
        } else {
            (self.daemon_records, self.other_waits) = (daemon_records, 0);
            match self.recheck_in.checked_sub(1) {
                Some(left) => self.recheck_in = left,
                None => self.update(switches()),
            }
        }
    }

    /// Returns true if the program now waits for a daemon on the same CPU.
    #[inline]
    fn is_awaited(&self) -> bool {
        self.is_colocated && self.other_waits < OTHER_WAITS_MAX
    }

    #[cold]
    fn update(&mut self, switches: i64) {
        // A positive result is dropped and measured again. For that the thread polls and does not sleep.
        let lost = self.switches.map_or(0, |before| switches - before);
        self.is_colocated = !self.is_colocated && lost >= i64::from(COLOCATION_SAMPLES / 2);
        self.recheck_in = if self.is_colocated { COLOCATION_RECHECK_AFTER } else { COLOCATION_SAMPLES };
        self.switches = Some(switches);
    }
}

/// Decides what a program that polls and finds nothing does next. Polling is best while every process has a CPU of its own.
/// On a shared CPU, polling keeps the awaited process from running. After a number of empty polls, the program therefore yields
/// the CPU. If another thread runs then, the program sleeps until something arrives. If it waits for a daemon on the same CPU,
/// it sleeps without yielding first.
#[derive(Debug)]
pub struct PollBackoff {
    empty_polls: u32,
    /// The value of `empty_polls` at which the program yields.
    next_yield: u32,
    yields_untaken: u32,
    oversubscribed: bool,
    sleep: Duration,
    colocation: DaemonColocation,
}

impl Default for PollBackoff {
    fn default() -> Self {
        Self {
            empty_polls: 0,
            next_yield: POLLS_BEFORE_YIELD,
            yields_untaken: 0,
            oversubscribed: false,
            sleep: Duration::ZERO,
            colocation: DaemonColocation::default(),
        }
    }
}

impl PollBackoff {
    /// Records that a poll found something; `daemon_records` is the daemon's record count.
    #[inline]
    pub fn on_work(&mut self, daemon_records: u64) {
        self.empty_polls = 0;
        if self.colocation.is_relevant(daemon_records) {
            self.colocation.on_work(daemon_records, oversubscription::involuntary_switches);
        }
    }

    /// Returns true if the last poll was empty and the next empty poll only has to be counted.
    #[inline]
    pub fn is_counting(&self) -> bool {
        self.empty_polls > 0 && self.empty_polls + 1 < self.next_yield
    }

    /// Records an empty poll that [only has to be counted](Self::is_counting).
    #[inline]
    pub fn count_empty_poll(&mut self) {
        self.empty_polls += 1;
    }

    /// Records an empty poll. Returns how long to sleep, or None to poll again.
    #[inline]
    pub fn on_empty_poll(&mut self) -> Option<Duration> {
        if self.empty_polls == 0 {
            self.sleep = Duration::ZERO;
            self.next_yield =
                if self.colocation.is_awaited() { POLLS_BEFORE_SLEEP_COLOCATED } else { POLLS_BEFORE_YIELD };
        }
        self.empty_polls += 1;
        if self.empty_polls < self.next_yield { None } else { self.yield_cpu() }
    }

    #[cold]
    fn yield_cpu(&mut self) -> Option<Duration> {
        self.empty_polls = 1;
        if self.colocation.is_awaited() {
            return Some(self.next_sleep());
        }
        self.next_yield = if self.yields_untaken < ALONE_AFTER_YIELDS { YIELD_INTERVAL } else { YIELD_INTERVAL_ALONE };
        self.record_yield(super::yield_cpu())
    }

    /// Records a yield that took `took`. Returns how long to sleep, or None to poll again.
    fn record_yield(&mut self, took: Duration) -> Option<Duration> {
        if took > YIELD_TAKEN_AFTER {
            (self.oversubscribed, self.yields_untaken) = (true, 0);
        } else {
            self.yields_untaken = self.yields_untaken.saturating_add(1);
            if self.yields_untaken >= ALONE_AFTER_YIELDS {
                self.oversubscribed = false;
            }
        }
        self.oversubscribed.then(|| self.next_sleep())
    }

    fn next_sleep(&mut self) -> Duration {
        self.sleep = (self.sleep * 2).clamp(SLEEP_FIRST, SLEEP_MAX);
        self.sleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poller_alone_on_its_cpu_never_sleeps() {
        let mut backoff = PollBackoff::default();
        assert!((0..10_000).all(|_| backoff.record_yield(Duration::from_nanos(300)).is_none()));
    }

    #[test]
    fn empty_polls_are_counted_until_the_next_yield() {
        let mut backoff = PollBackoff::default();
        assert!(!backoff.is_counting(), "the first one is a close look");
        assert_eq!(backoff.on_empty_poll(), None);
        while backoff.is_counting() {
            backoff.count_empty_poll();
        }
        assert_eq!(backoff.empty_polls, POLLS_BEFORE_YIELD - 1);
        backoff.on_work(0);
        assert_eq!((backoff.empty_polls, backoff.is_counting()), (0, false));
    }

    #[test]
    fn oversubscribed_poller_sleeps_longer_until_work_arrives() {
        let mut backoff = PollBackoff::default();
        assert_eq!(backoff.record_yield(Duration::from_millis(1)), Some(SLEEP_FIRST));
        assert_eq!(backoff.record_yield(Duration::ZERO), Some(2 * SLEEP_FIRST));
        (0..20).for_each(|_| assert_ne!(backoff.record_yield(Duration::from_millis(1)), Some(Duration::ZERO)));
        assert_eq!(backoff.record_yield(Duration::from_millis(1)), Some(SLEEP_MAX));
        backoff.on_work(0);
        assert_eq!(backoff.on_empty_poll(), None);
        assert_eq!(backoff.record_yield(Duration::from_millis(1)), Some(SLEEP_FIRST));
        (0..ALONE_AFTER_YIELDS).for_each(|_| assert_ne!(backoff.record_yield(Duration::ZERO), Some(Duration::ZERO)));
        assert_eq!(backoff.record_yield(Duration::ZERO), None, "it is alone again");
    }

    #[test]
    fn poller_colocated_with_the_daemon_sleeps_and_rechecks_occasionally() {
        let (mut colocation, mut records) = (DaemonColocation::default(), 0);
        let mut wait = |lost: i64| {
            records += 1;
            colocation.on_work(records, || lost);
            colocation.is_awaited()
        };
        assert!((0..10 * COLOCATION_SAMPLES).all(|_| !wait(100)), "it never loses its processor");
        assert!((0..3 * i64::from(COLOCATION_SAMPLES)).any(|more| wait(100 + more)), "it does for each wait");
        let slept = (0..2 * COLOCATION_RECHECK_AFTER).take_while(|_| wait(1000)).count();
        assert_eq!(slept, COLOCATION_RECHECK_AFTER as usize, "then it looks again");
        assert!((0..10 * COLOCATION_SAMPLES).all(|_| !wait(1000)), "the daemon has gone elsewhere");
    }

    #[test]
    fn poller_with_other_work_does_not_count_as_waiting_for_the_daemon() {
        let mut colocation = DaemonColocation {
            is_colocated: true,
            recheck_in: COLOCATION_RECHECK_AFTER,
            ..DaemonColocation::default()
        };
        let mut is_awaited_after = |records| {
            colocation.on_work(records, || 0);
            colocation.is_awaited()
        };
        assert!(is_awaited_after(1));
        assert!((1..OTHER_WAITS_MAX).all(|_| is_awaited_after(1)), "sends that are over come in between");
        assert!(!is_awaited_after(1));
        assert!(is_awaited_after(2));
    }
}
