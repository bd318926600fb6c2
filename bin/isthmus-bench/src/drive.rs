//! The measurements themselves: the work of both sides of a pair over any kind of link.
//!
//! Work goes in steps. The leading side sends the size of the next step over the control pipe, both sides do it over the link,
//! and the leading side reads its clock. First a step with a known content, which is compared; then steps that double until they are long
//! enough to tell the speed, and warm everything up; then the measured ones, which fill the budget.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::control_pipe::ControlPipe;
use crate::job::{Buffers, Job, Side, SideResult, Work};
use crate::path::Link;
use crate::pool::{self, Pool};
use crate::stats::{Latencies, median};

/// The number of batches. A ping-pong's half round trip is the median over them.
pub(crate) const BATCHES: u64 = 40;
/// Round trips that are timed one by one, for percentiles.
const SINGLE_ROUND_TRIPS_MAX: u64 = 200_000;

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Round trips, or messages of a stream; 0 ends the work.
    pub(crate) count: u64,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// With the pattern in it, compared by the receiver.
    Check,
    Warm,
    Measured,
}

/// Does one side's part of the work.
pub(crate) fn run<L: Link>(link: &mut L, job: &Job, control_pipe: &ControlPipe) -> Result<SideResult> {
    let budget = Duration::from_millis(job.budget_ms);
    match (job.work, job.side) {
        (Work::Open, _) => Ok(SideResult::default()),
        (Work::First { size }, side) => first(link, control_pipe, size, side),
        (Work::Idle { ms }, side) => measure_idle(link, control_pipe, ms, side),
        (Work::Match { .. }, _) => bail!("the path {} knows no matching", job.path.name()),
        (Work::PingPong { size }, Side::Lead) => ping(link, control_pipe, size, budget),
        (Work::PingPong { size }, Side::Follow) => pong(link, control_pipe, size),
        (Work::Stream { size, buffers }, Side::Lead) => stream_out(link, control_pipe, size, buffers, budget),
        (Work::Stream { size, buffers }, Side::Follow) => stream_in(link, control_pipe, size, buffers),
    }
}

/// The first message there and back, with nothing before it.
fn first<L: Link>(link: &mut L, control_pipe: &ControlPipe, size: usize, side: Side) -> Result<SideResult> {
    let mut message = vec![0; size];
    pool::write_pattern(&mut message);
    control_pipe.barrier()?;
    let (cpu, start) = (cpu_ns()?, Instant::now());
    match side {
        Side::Lead => {
            link.send(&message)?;
            link.recv(&mut message)?;
        }
        Side::Follow => {
            link.recv(&mut message)?;
            link.send(&message)?;
        }
    }
    let half_rtt_ns = Some(start.elapsed().as_nanos() as f64 / 2.0);
    Ok(SideResult { messages: 2, cpu_ns: cpu_ns()? - cpu, half_rtt_ns, ..SideResult::default() })
}

/// The following side waits for a message that does not come until the time is over; the leading one says when it is.
fn measure_idle<L: Link>(link: &mut L, control_pipe: &ControlPipe, ms: u64, side: Side) -> Result<SideResult> {
    control_pipe.barrier()?;
    match side {
        Side::Lead => {
            sleep(Duration::from_millis(ms));
            link.send(&[1])?;
        }
        Side::Follow => link.recv(&mut [0])?,
    }
    Ok(SideResult::default())
}

fn ping<L: Link>(link: &mut L, control_pipe: &ControlPipe, size: usize, budget: Duration) -> Result<SideResult> {
    let (mut out, mut into) = (vec![0; size], vec![0; size]);
    pool::write_pattern(&mut out);
    let mut round = |link: &mut L| -> Result<()> {
        link.send(&out)?;
        link.recv(&mut into)
    };
    announce(control_pipe, 1, Kind::Check)?;
    round(link)?;
    let round_ns = calibrate(budget / 20, u64::MAX, |count| {
        announce(control_pipe, count, Kind::Warm)?;
        let start = Instant::now();
        for _ in 0..count {
            round(link)?;
        }
        Ok(start.elapsed())
    })?;
    let fits = |share: f64| ((budget.as_nanos() as f64 * share / round_ns) as u64).max(1);
    let (batch, singles) = (fits(0.6 / (BATCHES + 1) as f64), fits(0.3).min(SINGLE_ROUND_TRIPS_MAX));
    // The first batch is not counted: the other side has just been woken.
    let rounds = (BATCHES + 1) * batch + singles;
    announce(control_pipe, rounds, Kind::Measured)?;
    let cpu = cpu_ns()?;
    let mut halves = Vec::new();
    for number in 0..=BATCHES {
        let start = Instant::now();
        for _ in 0..batch {
            round(link)?;
        }
        if number > 0 {
            halves.push(start.elapsed().as_nanos() as f64 / (2 * batch) as f64);
        }
    }
    let mut latencies = Latencies::new();
    for _ in 0..singles {
        let start = Instant::now();
        round(link)?;
        latencies.record(start.elapsed().as_nanos() as u64);
    }
    let cpu_ns = cpu_ns()? - cpu;
    announce(control_pipe, 0, Kind::Measured)?;
    if !pool::holds_pattern(&into) {
        bail!("the message that came back is not the one that was sent");
    }
    let round_trips = Some(latencies.recorded());
    Ok(SideResult { messages: 2 * rounds, cpu_ns, half_rtt_ns: median(&halves), round_trips, ..SideResult::default() })
}

fn pong<L: Link>(link: &mut L, control_pipe: &ControlPipe, size: usize) -> Result<SideResult> {
    let mut message = vec![0; size];
    let mut done = SideResult::default();
    while let Some(step) = next_step(control_pipe)? {
        let cpu = cpu_ns()?;
        for _ in 0..step.count {
            link.recv(&mut message)?;
            link.send(&message)?;
        }
        if step.kind == Kind::Measured {
            done.cpu_ns += cpu_ns()? - cpu;
            done.messages += 2 * step.count;
        }
    }
    Ok(done)
}

fn stream_out<L: Link>(
    link: &mut L,
    control_pipe: &ControlPipe,
    size: usize,
    buffers: Buffers,
    budget: Duration,
) -> Result<SideResult> {
    let mut done = SideResult::default();
    let step = |link: &mut L, count: u64, kind: Kind, done: &mut SideResult| -> Result<Duration> {
        let mut pool = match kind {
            // The pattern must not be overwritten.
            Kind::Check if buffers == Buffers::Rewritten => Pool::new(size, Buffers::Warm, count),
            _ => Pool::new(size, buffers, count),
        };
        if kind == Kind::Check {
            pool.write_pattern();
        }
        announce(control_pipe, count, kind)?;
        let (cpu, start) = (cpu_ns()?, Instant::now());
        link.stream_out(&mut pool)?;
        link.recv(&mut [0])?;
        let elapsed = start.elapsed();
        if kind == Kind::Measured {
            done.cpu_ns += cpu_ns()? - cpu;
            done.messages += count;
            done.elapsed_ns = Some(done.elapsed_ns.unwrap_or(0) + elapsed.as_nanos() as u64);
        }
        Ok(elapsed)
    };
    let most = Pool::messages_max(size, buffers);
    step(link, 5.min(most), Kind::Check, &mut done)?;
    let message_ns = calibrate(budget / 10, most, |count| step(link, count, Kind::Warm, &mut done))?;
    let count = ((budget.as_nanos() as f64 / message_ns) as u64).clamp(1, most);
    let start = Instant::now();
    loop {
        step(link, count, Kind::Measured, &mut done)?;
        // Making fresh buffers takes time as well, and is not what the budget is for; but it must end.
        if done.elapsed_ns.unwrap_or(0) >= budget.as_nanos() as u64 * 4 / 5 || start.elapsed() >= budget * 4 {
            break;
        }
    }
    announce(control_pipe, 0, Kind::Measured)?;
    Ok(done)
}

fn stream_in<L: Link>(link: &mut L, control_pipe: &ControlPipe, size: usize, buffers: Buffers) -> Result<SideResult> {
    let mut done = SideResult::default();
    loop {
        let step: Step = control_pipe.recv()?;
        if step.count == 0 {
            return Ok(done);
        }
        let mut pool = Pool::new(size, buffers, step.count);
        control_pipe.send(&step)?;
        let cpu = cpu_ns()?;
        link.stream_in(&mut pool)?;
        link.send(&[1])?;
        if step.kind == Kind::Measured {
            done.cpu_ns += cpu_ns()? - cpu;
            done.messages += step.count;
        }
        if step.kind == Kind::Check && !pool.holds_pattern() {
            bail!("the messages that arrived are not those that were sent");
        }
    }
}

/// Repeats with twice as many until it takes `min_time`; returns the nanoseconds of one.
pub(crate) fn calibrate(min_time: Duration, most: u64, mut time: impl FnMut(u64) -> Result<Duration>) -> Result<f64> {
    let mut count = 1;
    loop {
        let elapsed = time(count)?;
        if elapsed >= min_time || count == most {
            return Ok((elapsed.as_nanos() as f64 / count as f64).max(0.1));
        }
        count = (count * 2).min(most);
    }
}

/// Sends the next step, and waits until the other side is about to begin it.
pub(crate) fn announce(control_pipe: &ControlPipe, count: u64, kind: Kind) -> Result<()> {
    let step = Step { count, kind };
    control_pipe.send(&step)?;
    if count > 0 && control_pipe.recv::<Step>()? != step {
        bail!("the other side is at another step");
    }
    Ok(())
}

/// The other side's part of [`announce`]; `None` at the end.
pub(crate) fn next_step(control_pipe: &ControlPipe) -> Result<Option<Step>> {
    let step: Step = control_pipe.recv()?;
    if step.count == 0 {
        return Ok(None);
    }
    control_pipe.send(&step)?;
    Ok(Some(step))
}

/// CPU time of this process so far, user and system. (The kernel's own sum that getrusage splits, without its rounding.)
pub(crate) fn cpu_ns() -> Result<u64> {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Ok(u64::try_from(time.tv_sec)? * 1_000_000_000 + u64::try_from(time.tv_nsec)?)
}
