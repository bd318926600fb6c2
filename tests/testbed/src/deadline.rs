//! The time that a test is willing to wait for something that must happen.
//!
//! A deadline tells a hang from progress. It is never an assertion about speed: choose it ten times longer than a quiet machine
//! needs. [`Deadline::secs`] makes that a hundred times, because the machine may be busy.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// The longest pause between two looks of [`eventually`].
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The factor by which everything may take longer than on a quiet machine.
const BUSY: u64 = 10;

/// A moment after which waiting has failed. Copies share the moment, so one deadline can bound a whole dialogue.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    end: Instant,
    timeout: Duration,
}

/// The deadline passed and the awaited thing had not happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing after {} ms", timeout.as_millis())]
pub struct TimedOut {
    /// The time that the test was willing to wait.
    pub timeout: Duration,
}

impl Deadline {
    /// `timeout` from now.
    pub fn after(timeout: Duration) -> Self {
        Self { end: Instant::now() + timeout, timeout }
    }

    /// `seconds` from now on a quiet machine: `BUSY` times as long, since any machine may be busy.
    pub fn secs(seconds: u64) -> Self {
        Self::after(Duration::from_secs(BUSY * seconds))
    }

    /// Returns the time left; zero once the deadline has passed.
    pub fn remaining(self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// True once nothing is left.
    pub fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }

    /// Returns the error of a wait that was not successful.
    pub fn timed_out(self) -> TimedOut {
        TimedOut { timeout: self.timeout }
    }

    /// Waits until one of `fds` can be read (or has ended), and says which can.
    pub fn readable<const N: usize>(self, fds: [BorrowedFd<'_>; N]) -> Result<[bool; N], TimedOut> {
        loop {
            let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            match poll(&mut polled, Some(&timespec(self.remaining()))) {
                Ok(0) if self.has_passed() => return Err(self.timed_out()),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(polled.map(|fd| !fd.revents().is_empty())),
                Err(error) => panic!("poll of our own descriptors: {error}"),
            }
        }
    }
}

/// Waits until `happened` says so, looking again after pauses that grow from 1 ms to 50 ms: for what gives no event to wait
/// for.
pub fn eventually(deadline: Deadline, mut happened: impl FnMut() -> bool) -> Result<(), TimedOut> {
    eventually_some(deadline, || happened().then_some(()))
}

/// [`eventually`] with a value: waits until `look` finds something.
pub fn eventually_some<T>(deadline: Deadline, mut look: impl FnMut() -> Option<T>) -> Result<T, TimedOut> {
    let mut pause = Duration::from_millis(1);
    loop {
        let last = deadline.has_passed(); // Before the look: a deadline never passes unlooked.
        if let Some(found) = look() {
            return Ok(found);
        }
        if last {
            return Err(deadline.timed_out());
        }
        sleep(pause.min(deadline.remaining()));
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

/// Lets time pass; never to synchronise.
pub(crate) fn sleep(pause: Duration) {
    let end = Instant::now() + pause;
    while let left = end.saturating_duration_since(Instant::now())
        && !left.is_zero()
    {
        match poll(&mut [], Some(&timespec(left))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("poll of nothing: {error}"),
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eventually_checks_once_before_timing_out() {
        let mut looks = 0;
        let late = eventually(Deadline::after(Duration::ZERO), || {
            looks += 1;
            false
        });
        assert_eq!(late, Err(TimedOut { timeout: Duration::ZERO }));
        assert_eq!(looks, 1);
        assert_eq!(eventually_some(Deadline::after(Duration::ZERO), || Some(7)), Ok(7));
    }

    #[test]
    fn eventually_sees_a_change_by_another_thread() {
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| done.store(true, std::sync::atomic::Ordering::Release));
            eventually(Deadline::secs(20), || done.load(std::sync::atomic::Ordering::Acquire)).expect("it is done");
        });
    }
}
