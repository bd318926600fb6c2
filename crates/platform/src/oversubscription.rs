//! Detects whether more threads want to run than there are CPUs. Polling then takes CPU time from the threads that the poller waits for.
//! Also measures how often the calling thread is preempted.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Shortest interval between two reads of the load, because a read costs about two microseconds.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(2);

/// The state of this process's sampler.
struct LoadSampler {
    started: Instant,
    loadavg: Option<File>,
    processors: u32,
    /// The time of the next sample, in nanoseconds since `started`. The lowest two bits are the results of the last two samples.
    next: AtomicU64,
}

static SAMPLER: OnceLock<LoadSampler> = OnceLock::new();

/// Returns true if the last two samples found more runnable threads than CPUs. `now` is the time, which callers have at hand.
pub fn is_oversubscribed(now: Instant) -> bool {
    let sampler = SAMPLER.get_or_init(|| LoadSampler {
        started: now,
        loadavg: File::open("/proc/loadavg").ok(),
        processors: std::thread::available_parallelism().map_or(1, |count| count.get() as u32).max(online()),
        next: AtomicU64::new(0),
    });
    let state = sampler.next.load(Relaxed);
    let now = u64::try_from(now.saturating_duration_since(sampler.started).as_nanos()).unwrap_or(u64::MAX);
    if now & !3 < state & !3 {
        return state & 3 == 3;
    }
    let found = (state << 1 & 2) | u64::from(sampler.sample());
    // A thread that comes here at the same time samples as well, with the same result.
    sampler.next.store(((now + SAMPLE_INTERVAL.as_nanos() as u64) & !3) | found, Relaxed);
    found == 3
}

/// Returns how often this thread was preempted while it wanted to run.
pub fn involuntary_switches() -> i64 {
    // SAFETY: numbers, of which all zeros are some.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is ours and as large as the kernel expects. Refused only for another word than this one.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_nivcsw
}

/// Number of CPUs of the machine, which may be more than this process is allowed to use.
fn online() -> u32 {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    count_cpus(&list)
}

/// Counts the CPUs in a list such as `0-3,5`.
fn count_cpus(list: &str) -> u32 {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.trim().parse::<u32>().ok()?.saturating_sub(first.trim().parse().ok()?) + 1)
    };
    list.split(',').filter_map(range).sum()
}

impl LoadSampler {
    fn sample(&self) -> bool {
        let mut text = [0; 64];
        let bytes = self.loadavg.as_ref().and_then(|loads| loads.read_at(&mut text, 0).ok()).unwrap_or(0);
        running(&text[..bytes]).is_some_and(|running| running > self.processors)
    }
}

/// Number of threads that run or want to, from the fourth word of `/proc/loadavg`: `0.20 0.18 0.12 1/80 11206`.
fn running(loadavg: &[u8]) -> Option<u32> {
    let word = std::str::from_utf8(loadavg).ok()?.split_whitespace().nth(3)?;
    word.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_counts_how_often_a_processor_was_lost() {
        assert!(involuntary_switches() >= 0);
    }

    #[test]
    fn loadavg_and_cpu_lists_are_parsed() {
        assert_eq!(running(b"0.20 0.18 0.12 1/80 11206\n"), Some(1));
        assert_eq!(running(b"12.20 0.18 0.12 117/8000 1\n"), Some(117));
        assert_eq!([running(b""), running(b"1 2 3"), running(b"1 2 3 x/4"), running(b"\xff")], [None; 4]);
        assert_eq!(
            [count_cpus("0-3,5\n"), count_cpus("0\n"), count_cpus("0,2-2"), count_cpus(""), count_cpus("x-y")],
            [5, 1, 2, 0, 0]
        );
        assert!(online() >= 1);
        let loads = std::fs::read("/proc/loadavg").unwrap();
        assert!(running(&loads).is_some_and(|running| running >= 1), "at least this thread runs");
    }

    #[test]
    fn one_sample_does_not_mean_oversubscription() {
        let now = Instant::now();
        let _ = is_oversubscribed(now);
        let state = SAMPLER.get().unwrap().next.load(Relaxed);
        assert_eq!(is_oversubscribed(now), state & 3 == 3, "it does not sample twice at the same time");
    }
}
