//! The floor of all latencies: one cache line that goes to and fro between two cores.
//!
//! Nothing can be said from one core to another in less than moving one line. Two threads take turns on one word, without a
//! pause instruction in between, which would only add to it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow};

use crate::case::{Case, Reading, Unit};
use crate::pair::Bench;
use crate::pin::pin;
use crate::stats::median;

/// Round trips of one batch; the value is the median over batches.
const BATCH: u64 = 1000;
const BATCHES_MIN: usize = 10;

/// The stop sign: beyond all counts.
const STOP: u64 = u64::MAX;

/// Alone on its line, and on the pair of lines that the CPU may fetch together.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// Half a round trip of one line between two threads.
pub(crate) struct CacheLine;

impl Case for CacheLine {
    fn name(&self) -> String {
        "cache_line.half_rtt".to_owned()
    }

    fn unit(&self) -> Unit {
        Unit::Microseconds
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        let line = Line::default();
        let (lead, follow) = (bench.placement.lead(0), bench.placement.follow(0));
        thread::scope(|scope| {
            let answers = scope.spawn(|| {
                let pinned = pin(&[follow]);
                reply(&line);
                pinned
            });
            let asks = scope.spawn(|| {
                let halves = pin(&[lead]).map(|()| ask(&line, bench));
                line.0.store(STOP, Ordering::Relaxed);
                halves
            });
            let halves = asks.join().map_err(|_| anyhow!("the asking thread panicked"))??;
            answers.join().map_err(|_| anyhow!("the answering thread panicked"))??;
            let half_ns = median(&halves).ok_or_else(|| anyhow!("no batch was measured"))?;
            Ok(Reading::value(half_ns / 1e3))
        })
    }
}

/// Makes the word odd and waits until it is even again; gives the nanoseconds of half a round trip for each batch.
fn ask(line: &Line, bench: &Bench) -> Vec<f64> {
    let mut halves = Vec::new();
    let mut count = 0;
    let begin = Instant::now();
    while halves.len() < BATCHES_MIN || begin.elapsed() < bench.budget {
        let start = Instant::now();
        for _ in 0..BATCH {
            line.0.store(count + 1, Ordering::Relaxed);
            count += 2;
            while line.0.load(Ordering::Relaxed) != count {}
        }
        halves.push(start.elapsed().as_nanos() as f64 / (2 * BATCH) as f64);
    }
    halves
}

/// Makes each odd word even.
fn reply(line: &Line) {
    let mut expected = 1;
    loop {
        let word = line.0.load(Ordering::Relaxed);
        if word == expected {
            line.0.store(word + 1, Ordering::Relaxed);
            expected += 2;
        } else if word == STOP {
            return;
        }
    }
}
