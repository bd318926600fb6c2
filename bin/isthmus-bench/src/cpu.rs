//! CPU time of other processes, as the kernel reports it: now, and within a time that is known only afterwards.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::time::{ClockId, clock_gettime};

/// The interval of samples; CPU time in between is taken as even.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

/// CPU time of all threads that these processes have now.
fn cpu_ns_of_all(processes: &[u32]) -> Result<u64> {
    Ok(threads_of_all(processes)?.values().sum())
}

/// Calls `act`. Returns the CPU time of these processes meanwhile, without that of threads that have ended by then.
pub(crate) fn cpu_ns_during(processes: &[u32], act: impl FnOnce()) -> Result<u64> {
    let before = threads_of_all(processes)?;
    act();
    let used = |(thread, ns): (&(u32, OsString), &u64)| ns.saturating_sub(before.get(thread).copied().unwrap_or(0));
    Ok(threads_of_all(processes)?.iter().map(used).sum())
}

/// Nanoseconds of the clock that all processes of this machine share.
pub(crate) fn now_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

/// The CPU time of this thread in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    clock_ns(ClockId::ThreadCPUTime)
}

fn clock_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    (now.tv_sec * 1_000_000_000 + now.tv_nsec).cast_unsigned() // Positive since the machine or the thread was started.
}

/// The CPU time of processes: pairs of a time and the CPU time until then, both in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct CpuUsage(Vec<(u64, u64)>);

impl CpuUsage {
    /// Calls `act` and samples these processes meanwhile.
    pub(crate) fn record<T>(processes: &[u32], act: impl FnOnce() -> Result<T>) -> Result<(T, Self)> {
        let is_over = AtomicBool::new(false);
        scope(|scope| {
            let looking = scope.spawn(|| {
                let mut used = Self::default();
                while !is_over.load(Ordering::Relaxed) {
                    used.0.push((now_ns(), cpu_ns_of_all(processes)?));
                    sleep(SAMPLE_INTERVAL);
                }
                used.0.push((now_ns(), cpu_ns_of_all(processes)?));
                Ok::<_, anyhow::Error>(used)
            });
            let outcome = act();
            is_over.store(true, Ordering::Relaxed);
            let used = looking.join().map_err(|_| anyhow!("looking at the CPU time of processes"))?;
            Ok((outcome?, used?))
        })
    }

    /// CPU time between two times.
    pub(crate) fn between(&self, begin_ns: u64, end_ns: u64) -> f64 {
        self.until(end_ns) - self.until(begin_ns)
    }

    fn until(&self, at_ns: u64) -> f64 {
        let after = self.0.partition_point(|&(time, _)| time < at_ns);
        match (after.checked_sub(1).map(|before| self.0[before]), self.0.get(after)) {
            (Some((t0, c0)), Some(&(t1, c1))) => {
                c0 as f64 + (c1 as f64 - c0 as f64) * (at_ns - t0) as f64 / (t1 - t0).max(1) as f64
            }
            (Some((_, cpu)), None) | (None, Some(&(_, cpu))) => cpu as f64,
            (None, None) => 0.0,
        }
    }
}

/// True if the thread of a file has ended since the file was opened.
fn has_no_thread(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// CPU time of each thread that these processes have now.
fn threads_of_all(processes: &[u32]) -> Result<BTreeMap<(u32, OsString), u64>> {
    let mut all = BTreeMap::new();
    for &process in processes {
        let tasks = format!("/proc/{process}/task");
        for task in fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))? {
            let task = task.with_context(|| format!("cannot read {tasks}"))?;
            let file = task.path().join("schedstat");
            match fs::read_to_string(&file) {
                Ok(text) => match text.split_whitespace().next().and_then(|field| field.parse::<u64>().ok()) {
                    Some(ns) => all.insert((process, task.file_name()), ns),
                    None => bail!("cannot understand {}: {text:?}", file.display()),
                },
                // A thread that ended in between.
                Err(error) if error.kind() == ErrorKind::NotFound || has_no_thread(&error) => None,
                Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
            };
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_process_can_be_read() {
        assert!(cpu_ns_of_all(&[std::process::id()]).is_ok_and(|ns| ns > 0));
    }

    #[test]
    fn threads_that_end_take_no_time_away() {
        let (begin, spin) = (now_ns(), || while thread_cpu_ns() < 20_000_000 {});
        let (to_thread, is_over) = std::sync::mpsc::channel::<()>();
        let (spun, has_spun) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            spin();
            spun.send(()).expect("the test waits");
            let _ = is_over.recv();
        });
        has_spun.recv().expect("the thread spins first");
        let used = cpu_ns_during(&[std::process::id()], || {
            drop(to_thread);
            thread.join().expect("it returns");
        });
        let most = (now_ns() - begin) * 64; // Other tests use CPU time as well.
        assert!(used.as_ref().is_ok_and(|used| *used <= most), "{used:?}, at most {most}");
    }

    #[test]
    fn cpu_time_between_samples_is_interpolated() {
        let used = CpuUsage(vec![(100, 1000), (200, 1100), (300, 1500)]);
        assert_eq!((used.between(100, 200), used.between(150, 250)), (100.0, 250.0));
        assert_eq!((used.between(0, 1000), CpuUsage::default().between(0, 1)), (500.0, 0.0));
    }

    #[test]
    fn a_busy_process_is_seen_to_be_busy() {
        let begin = now_ns();
        let spin = || {
            while now_ns() < begin + 30_000_000 {}
            Ok(())
        };
        let ((), used) = CpuUsage::record(&[std::process::id()], spin).expect("looked at");
        assert!(used.between(begin, now_ns()) > 0.0 && used.0.len() >= 2);
    }
}
