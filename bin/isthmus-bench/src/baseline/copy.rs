//! The floors of bandwidths: copies of memory within one core, of lines that another core has just written, and twice, by both
//! cores. And copies of one core to addresses at a given distance, on which their speed depends as well.

use std::hint::black_box;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use isthmus_layout::RegionSize;
use isthmus_shm::{Mapping, Payload as _, SharedMapping};

use crate::case::{Case, Reading, Unit, size_name};
use crate::job::Buffers;
use crate::pair::Bench;
use crate::pin::pin;
use crate::pool::Pool;
use crate::stats::median;

const COPIES_MIN: usize = 10;

/// The size and the number of the pieces through which two cores copy. All of them fit into a core's second cache.
const PIECE: usize = 16 << 10;
const PIECES: usize = 16;

/// `memcpy` on one core, again and again between the same two buffers.
pub(crate) struct OneCore {
    pub(crate) size: usize,
}

/// A copy on one core out of a buffer with lines that are dirty in the other core's cache. Only the copy is timed.
pub(crate) struct CrossCore {
    pub(crate) size: usize,
}

/// A copy by one core into a few pieces of memory, and out of them by the other core at the same time: the work of two sides that
/// share only these pieces. The buffers at both ends were never used. The only protocol is the owner of each piece.
pub(crate) struct TwoCopies {
    pub(crate) size: usize,
}

/// Copies on one core out of memory that was never used, into a few pieces of memory again and again. All of them begin `distance`
/// bytes behind their source, modulo a page; some processors are slow at some distances.
pub(crate) struct OffsetCopy {
    pub(crate) distance: usize,
    pub(crate) by: CopyRoutine,
}

/// The code that copies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CopyRoutine {
    /// The C library.
    Library,
    /// The copies of messages into channels.
    SharedMapping,
}

impl Case for OneCore {
    fn name(&self) -> String {
        format!("memcpy.{}", size_name(self.size))
    }

    fn unit(&self) -> Unit {
        Unit::GigabytesPerSecond
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        let times = on_one_core(bench, || {
            let (from, mut to) = (vec![1; self.size], vec![0; self.size]);
            repeat(bench.budget, || Some(timed_copy(&from, &mut to)))
        })?;
        bytes_per_ns(self.size, &times)
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
        let (full_tx, full_rx) = channel();
        let (empty_tx, empty_rx) = channel();
        let write = move || write_each(&empty_rx, &full_tx);
        let times = on_two_cores(bench, write, move || {
            empty_tx.send(vec![0; self.size]).context("the writing thread has gone")?;
            Ok(copy_each(&full_rx, &empty_tx, self.size, bench.budget))
        })?;
        bytes_per_ns(self.size, &times)
    }
}

impl Case for TwoCopies {
    fn name(&self) -> String {
        format!("two_copies.{}.cold", size_name(self.size))
    }

    fn unit(&self) -> Unit {
        Unit::GigabytesPerSecond
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        let messages = Pool::messages_max(self.size, Buffers::Cold);
        let buffers = move || Pool::new(self.size, Buffers::Cold, messages);
        let (full_tx, full_rx) = channel();
        let (empty_tx, empty_rx) = channel();
        let send = move || while send_all(&buffers(), &empty_rx, &full_tx).is_some() {};
        let times = on_two_cores(bench, send, move || {
            for _ in 0..PIECES {
                empty_tx.send(vec![0; PIECE]).context("the sending thread has gone")?;
            }
            Ok(repeat(bench.budget, || receive_all(&mut buffers(), &full_rx, &empty_tx)))
        })?;
        // All together, as between two sides: what one of them waits for the other belongs to it.
        let bytes = (self.size as u64 * messages) as f64 * times.len() as f64;
        Ok(Reading::value(bytes / times.iter().sum::<f64>().max(1.0)))
    }
}

impl Case for OffsetCopy {
    fn name(&self) -> String {
        let by = match self.by {
            CopyRoutine::Library => "memcpy",
            CopyRoutine::SharedMapping => "channel_copy",
        };
        format!("{by}.behind.{}", self.distance)
    }

    fn unit(&self) -> Unit {
        Unit::GigabytesPerSecond
    }

    fn run(&self, bench: &Bench) -> Result<Reading> {
        let times = on_one_core(bench, || repeat(bench.budget, || Some(self.copy_all())))?;
        bytes_per_ns(OFFSET_COPY_BYTES, &times)
    }
}

/// The number of bytes that are copied at once, out of fresh memory.
const OFFSET_COPY_BYTES: usize = 64 << 20;

const PAGE: usize = 4096;

impl OffsetCopy {
    /// Returns the nanoseconds of copying all.
    fn copy_all(&self) -> f64 {
        let pool = Pool::new(OFFSET_COPY_BYTES, Buffers::Cold, 1);
        let from = pool.slot(0);
        let bytes = PIECE * PIECES + PAGE;
        let (window, mut ring) = (SharedMapping::new(Mapping::private(RegionSize(bytes as u64))), vec![0_u8; bytes]);
        let begins = match self.by {
            CopyRoutine::SharedMapping => 0, // It is pages.
            CopyRoutine::Library => ring.as_ptr().addr(),
        };
        let at = from.as_ptr().addr().wrapping_add(self.distance).wrapping_sub(begins) % PAGE;
        ring.fill(1); // Page faults are taken here.
        window.copy_in(0, &ring);
        let start = Instant::now();
        for (nth, part) in from.chunks(PIECE).enumerate() {
            let at = at + nth % PIECES * PIECE;
            match self.by {
                CopyRoutine::SharedMapping => window.copy_in(at as u64, black_box(part)),
                CopyRoutine::Library => ring[at..at + part.len()].copy_from_slice(black_box(part)),
            }
            black_box(&mut ring);
        }
        start.elapsed().as_nanos() as f64
    }
}

/// Does it on a core of its own.
fn on_one_core<T: Send>(bench: &Bench, work: impl FnOnce() -> T + Send) -> Result<T> {
    let cpu = bench.placement.lead(0);
    let done = thread::scope(|scope| scope.spawn(|| pin(&[cpu]).map(|()| work())).join());
    done.map_err(|_| anyhow!("the copying thread panicked"))?
}

/// Does both at the same time, each on a core of its own, and returns the result of the second. The first ends when the second has.
fn on_two_cores<T: Send>(
    bench: &Bench,
    lead: impl FnOnce() + Send,
    follow: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let cpus = (bench.placement.lead(0), bench.placement.follow(0));
    thread::scope(|scope| {
        let leads = scope.spawn(move || pin(&[cpus.0]).map(|()| lead()));
        let follows = scope.spawn(move || pin(&[cpus.1]).and_then(|()| follow()));
        let done = follows.join().map_err(|_| anyhow!("the following thread panicked"))??;
        leads.join().map_err(|_| anyhow!("the leading thread panicked"))??;
        Ok(done)
    })
}

/// Copies all messages into pieces; `None` if the other thread has gone.
fn send_all(pool: &Pool, empty: &Receiver<Vec<u8>>, full: &Sender<Vec<u8>>) -> Option<()> {
    for message in 0..pool.messages() {
        for part in pool.slot(message).chunks(PIECE) {
            let mut piece = poll(empty)?;
            piece[..part.len()].copy_from_slice(part);
            full.send(black_box(piece)).ok()?;
        }
    }
    Some(())
}

/// Copies all messages out of pieces, and says how long that took since the first one came.
fn receive_all(pool: &mut Pool, full: &Receiver<Vec<u8>>, empty: &Sender<Vec<u8>>) -> Option<f64> {
    let mut start = None;
    for message in 0..pool.messages() {
        for part in pool.slot_mut(message).chunks_mut(PIECE) {
            let piece = poll(full)?;
            start.get_or_insert_with(Instant::now);
            part.copy_from_slice(&piece[..part.len()]);
            empty.send(piece).ok()?;
        }
        black_box(pool.slot(message));
    }
    Some(start?.elapsed().as_nanos() as f64)
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
