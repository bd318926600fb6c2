//! The floor of atomic operations: two cores that add to one word.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow};

use crate::case::{Case, Reading, Unit};
use crate::pair::Bench;
use crate::pin::pin;

/// Additions between two looks at the clock.
const BATCH: u64 = 1000;

/// The time of an addition to a word to which another thread adds as well.
pub(crate) struct LockedAdd;

impl Case for LockedAdd {
    fn name(&self) -> String {
        "locked_add.both".to_owned()
    }

    fn unit(&self) -> Unit {
        Unit::Microseconds
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        let (word, begin) = (AtomicU64::new(0), Barrier::new(2));
        let each = thread::scope(|scope| {
            let sides = [bench.placement.lead(0), bench.placement.follow(0)];
            let sides = sides.map(|cpu| {
                let (word, begin) = (&word, &begin);
                scope.spawn(move || {
                    let pinned = pin(&[cpu]);
                    begin.wait();
                    pinned.map(|()| add(word, bench))
                })
            });
            sides.map(|side| side.join().map_err(|_| anyhow!("a thread that adds panicked"))?)
        });
        let [one, other] = each;
        Ok(Reading::value((one? + other?) / 2.0 / 1e3))
    }
}

/// Adds until the time is over, and returns the nanoseconds of an addition: their mean, because a core that has the word in its cache
/// adds several times.
fn add(word: &AtomicU64, bench: &Bench) -> f64 {
    let (begin, mut adds) = (Instant::now(), 0);
    while begin.elapsed() < bench.budget || adds == 0 {
        for _ in 0..BATCH {
            word.fetch_add(1, Ordering::SeqCst);
        }
        adds += BATCH;
    }
    begin.elapsed().as_nanos() as f64 / adds as f64
}
