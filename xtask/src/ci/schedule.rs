//! Runs jobs beside each other, as far as the machine allows it.
//!
//! The order is that of the list: of the jobs that fit beside those that run, the first starts. A job that measures runs alone.

use std::num::NonZero;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The part of the machine that a job needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    /// The job mostly waits.
    Waits,
    /// The job keeps about one processor busy.
    Computes,
    /// The job runs cargo, which would wait for another cargo: one at a time.
    Builds,
    /// The job measures, or bounds how long something takes: nothing runs beside it.
    Alone,
}

impl Cost {
    /// In halves of a processor.
    fn halves(self) -> usize {
        match self {
            Self::Waits => 1,
            Self::Computes | Self::Builds => 2,
            Self::Alone => 0,
        }
    }

    /// Returns whether a job of this cost may start beside the running ones.
    fn fits(self, running: &[Self], processors: usize) -> bool {
        let alone = self == Self::Alone || running.contains(&Self::Alone);
        let second_build = self == Self::Builds && running.contains(&Self::Builds);
        let busy: usize = running.iter().map(|cost| cost.halves()).sum();
        running.is_empty() || !alone && !second_build && busy + self.halves() <= 2 * processors
    }
}

/// The number of processors that jobs share; two at least, since one job may wait.
pub(super) fn processors() -> usize {
    thread::available_parallelism().map_or(2, NonZero::get).max(2)
}

/// Runs every job to its end, and gives each result to `done`, with the time it took, as soon as it is there.
pub(super) fn run<J: Send, T: Send>(
    jobs: Vec<(Cost, J)>,
    processors: usize,
    work: impl Fn(&J) -> T + Sync,
    mut done: impl FnMut(J, T, Duration),
) {
    let mut waiting = jobs;
    let mut running: Vec<Cost> = Vec::new();
    let (sender, results) = mpsc::channel();
    let work = &work;
    thread::scope(|scope| {
        while !waiting.is_empty() || !running.is_empty() {
            if let Some(next) = waiting.iter().position(|(cost, _)| cost.fits(&running, processors)) {
                let (cost, job) = waiting.remove(next);
                let sender = sender.clone();
                running.push(cost);
                scope.spawn(move || {
                    let start = Instant::now();
                    let result = work(&job);
                    drop(sender.send((cost, job, result, start.elapsed()))); // The receiver outlives all jobs.
                });
                continue;
            }
            let (cost, job, result, took) = results.recv().expect("a job that runs sends its result");
            let place = running.iter().position(|other| *other == cost).expect("it was running");
            running.swap_remove(place);
            done(job, result, took);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn measures_run_alone_and_builds_one_at_a_time() {
        use Cost::{Alone, Builds, Computes, Waits};
        assert!(Computes.fits(&[Builds], 2) && !Computes.fits(&[Builds, Computes], 2));
        assert!(Waits.fits(&[Computes, Waits], 2) && !Waits.fits(&[Computes, Computes], 2));
        assert!(!Builds.fits(&[Builds], 8) && Builds.fits(&[Computes], 2));
        assert!(!Alone.fits(&[Waits], 8) && !Waits.fits(&[Alone], 8) && Alone.fits(&[], 2));
    }

    #[test]
    fn starts_two_jobs_beside_each_other() {
        let both = Barrier::new(2);
        let mut ended = Vec::new();
        run(vec![(Cost::Computes, 1), (Cost::Computes, 2)], 2, |_| both.wait(), |job, _, _| ended.push(job));
        ended.sort_unstable();
        assert_eq!(ended, [1, 2]);
    }

    #[test]
    fn starts_jobs_in_order_where_one_fits_at_a_time() {
        let started = Mutex::new(Vec::new());
        let jobs = [3, 1, 2].map(|job| (Cost::Alone, job)).to_vec();
        run(jobs, 2, |job| started.lock().unwrap().push(*job), |_, (), _| {});
        assert_eq!(started.into_inner().unwrap(), [3, 1, 2]);
    }
}
