//! The floor of all bandwidths: copying memory, within one core, and of lines that another core has just written.

use std::hint::black_box;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::case::{Case, Reading, Unit, size_name};
use crate::pair::Bench;
use crate::pin::pin;
use crate::stats::median;

const COPIES_MIN: usize = 10;

/// `memcpy` on one core, again and again between the same two buffers.
pub(crate) struct OneCore {
    pub(crate) size: usize,
}

/// A copy on one core out of a buffer whose lines are dirty in the other core's cache. Only the copy is timed.
pub(crate) struct CrossCore {
    pub(crate) size: usize,
}

impl Case for OneCore {
    fn name(&self) -> String {
        format!("memcpy.{}", size_name(self.size))
    }

    fn unit(&self) -> Unit {
        Unit::GigabytesPerSecond
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        let cpu = bench.placement.lead(0);
        let copier = thread::scope(|scope| {
            scope
                .spawn(|| {
                    pin(&[cpu])?;
                    let (from, mut to) = (vec![1; self.size], vec![0; self.size]);
                    Ok(repeat(bench.budget, || Some(timed_copy(&from, &mut to))))
                })
                .join()
        });
        let times: Result<Vec<f64>> = copier.map_err(|_| anyhow!("the copying thread panicked"))?;
        bytes_per_ns(self.size, &times?)
    }
}

impl Case for CrossCore {
    fn name(&self) -> String {
        format!("cross_core_copy.{}", size_name(self.size))
    }

    fn unit(&self) -> Unit {
        Unit::GigabytesPerSecond
    }

    /// One buffer goes to and fro between a thread that writes it and a thread that copies it: while one works the other only waits.
    fn run(&self, bench: &Bench) -> Result<Reading> {
        let (lead, follow) = (bench.placement.lead(0), bench.placement.follow(0));
        let (full_tx, full_rx) = channel();
        let (empty_tx, empty_rx) = channel();
        let times = thread::scope(|scope| {
            let writer = scope.spawn(move || {
                pin(&[lead])?;
                write_each(&empty_rx, &full_tx);
                anyhow::Ok(())
            });
            let reader = scope.spawn(move || {
                pin(&[follow])?;
                empty_tx.send(vec![0; self.size]).context("the writing thread has gone")?;
                anyhow::Ok(copy_each(&full_rx, &empty_tx, self.size, bench.budget))
            });
            let times = reader.join().map_err(|_| anyhow!("the copying thread panicked"))??;
            writer.join().map_err(|_| anyhow!("the writing thread panicked"))??;
            anyhow::Ok(times)
        })?;
        bytes_per_ns(self.size, &times)
    }
}

/// Writes every byte of each buffer that comes, and passes it on; ends when the other thread has gone.
fn write_each(empty: &Receiver<Vec<u8>>, full: &Sender<Vec<u8>>) {
    let mut byte = 0_u8;
    while let Some(mut buffer) = poll(empty) {
        byte = byte.wrapping_add(1);
        buffer.fill(byte);
        if full.send(black_box(buffer)).is_err() {
            return;
        }
    }
}

/// Copies each buffer that comes and gives it back; says how long each copy took.
fn copy_each(full: &Receiver<Vec<u8>>, empty: &Sender<Vec<u8>>, size: usize, budget: Duration) -> Vec<f64> {
    let mut to = vec![0; size];
    repeat(budget, || {
        let from = poll(full)?;
        let ns = timed_copy(&from, &mut to);
        empty.send(from).ok().map(|()| ns)
    })
}

/// Waits without sleeping; `None` if the other thread has gone.
fn poll<T>(receiver: &Receiver<T>) -> Option<T> {
    loop {
        match receiver.try_recv() {
            Ok(value) => return Some(value),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return None,
        }
    }
}

fn timed_copy(from: &[u8], to: &mut [u8]) -> f64 {
    let start = Instant::now();
    black_box(&mut *to).copy_from_slice(black_box(from));
    black_box(&mut *to);
    start.elapsed().as_nanos() as f64
}

/// Collects times until the budget is used, at least a few.
fn repeat(budget: Duration, mut once: impl FnMut() -> Option<f64>) -> Vec<f64> {
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < COPIES_MIN || begin.elapsed() < budget {
        match once() {
            Some(ns) => times.push(ns),
            None => break,
        }
    }
    times
}

fn bytes_per_ns(size: usize, times: &[f64]) -> Result<Reading> {
    let ns = median(times).context("no copy was measured")?;
    Ok(Reading::value(size as f64 / ns.max(1.0)))
}
