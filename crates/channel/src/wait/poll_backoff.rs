//! What a program does that only polls, and finds nothing.

use isthmus_platform::oversubscription;
use std::time::Duration;

/// Looks that find nothing before the processor is offered to others.
const POLLS_BEFORE_YIELD: u32 = 400;

/// Looks between two offers.
const YIELD_INTERVAL: u32 = 50;

/// The same for who is alone: nobody has accepted any of the last ones.
const YIELD_INTERVAL_ALONE: u32 = 800;

/// An offer that took longer was accepted: somebody else had to run.
const YIELD_TAKEN_AFTER: Duration = Duration::from_micros(15);

/// Offers in a row that nobody accepted before we believe that we are alone.
const ALONE_AFTER_YIELDS: u32 = 200;

/// The first sleep, and the longest one.
const SLEEP_FIRST: Duration = Duration::from_micros(100);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// Something else was found so often: then the daemon is not what is waited for any more.
const OTHER_WAITS_MAX: u32 = 16;

/// Looks before the sleep where the daemon is on this processor: while we look, it brings nothing. But MPIs look until nothing is there
/// before they act on what they have found.
const POLLS_BEFORE_SLEEP_COLOCATED: u32 = 6;

/// Of so many waits for the daemon, half or more in which this thread lost its processor say that the daemon is on it.
const COLOCATION_SAMPLES: u32 = 16;

/// So many waits later that is looked at again.
const COLOCATION_RECHECK_AFTER: u32 = 8192;

/// Whether a daemon that is waited for runs on this thread's processor. Then looking for its messages keeps them from coming, and the
/// thread loses its processor for each of them.
#[derive(Debug, Default)]
struct DaemonColocation {
    /// Records that the daemon had brought when something was found last, and how often something else was found since.
    daemon_records: u64,
    other_waits: u32,
    /// What is believed, for so many waits more.
    is_colocated: bool,
    recheck_in: u32,
    /// How often the thread had lost its processor when this began; None before the first time.
    switches: Option<i64>,
}

impl DaemonColocation {
    /// True if it matters what was found, when the daemon had brought so many records.
    #[inline]
    fn is_relevant(&self, daemon_records: u64) -> bool {
        self.is_colocated || self.daemon_records != daemon_records
    }

    /// Something was found, when the daemon had brought so many records and this thread had lost its processor `switches` times.
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

    /// True if what is waited for now is a daemon beside this thread.
    #[inline]
    fn is_awaited(&self) -> bool {
        self.is_colocated && self.other_waits < OTHER_WAITS_MAX
    }

    #[cold]
    fn update(&mut self, switches: i64) {
        // What was believed is observed anew: for that the thread looks, and does not sleep.
        let lost = self.switches.map_or(0, |before| switches - before);
        self.is_colocated = !self.is_colocated && lost >= i64::from(COLOCATION_SAMPLES / 2);
        self.recheck_in = if self.is_colocated { COLOCATION_RECHECK_AFTER } else { COLOCATION_SAMPLES };
        self.switches = Some(switches);
    }
}

/// What a program that polls and finds nothing does about it. Polling is the best there is while every process has a processor of its own;
/// where they have not, it keeps the one from running that is waited for. So after some time the processor is offered
/// to others, and if it is taken, the next thing is to sleep until something comes. Where it is the daemon beside us that is waited for,
/// the sleep comes at once.
#[derive(Debug)]
pub struct PollBackoff {
    empty_polls: u32,
    /// At how many of them the processor is offered.
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
    /// Something was there, when the daemon had brought so many records.
    #[inline]
    pub fn on_work(&mut self, daemon_records: u64) {
        self.empty_polls = 0;
        if self.colocation.is_relevant(daemon_records) {
            self.colocation.on_work(daemon_records, oversubscription::involuntary_switches);
        }
    }

    /// The last look found nothing, the next one may, and then nothing is to be done about it yet.
    #[inline]
    pub fn is_counting(&self) -> bool {
        self.empty_polls > 0 && self.empty_polls + 1 < self.next_yield
    }

    /// Nothing was there, and [nothing is to be done](Self::is_counting) about it.
    #[inline]
    pub fn count_empty_poll(&mut self) {
        self.empty_polls += 1;
    }

    /// Nothing was there. How long to sleep, if that is the thing to do.
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

    /// An offer came back after so long.
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
