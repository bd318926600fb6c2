//! Bare frames from host to host, by the same system calls as those of the daemon: the speed of a link without a protocol.
//!
//! A "message" is one frame of the size that is measured, from its Ethernet header on. Streams keep a window of frames under
//! way and receive an acknowledgement of each 128th; nothing is repeated.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use isthmus_layout::NicId;
use isthmus_link::raw::{MeasurementPlan, RAW_MESSAGE_BYTES, RawWait, ping, pong, stream_in, stream_out};
use isthmus_link::{Link, PacketLink, PacketOptions, Peer, UdpLink, UdpOptions};

use super::{Path, check_options};
use crate::control_pipe::ControlPipe;
use crate::drive::{BATCHES, Kind, announce, calibrate, cpu_ns, next_step};
use crate::job::{Job, Side, SideResult, Wait, Work};
use crate::stats::{Latencies, median};

/// The option that names the interface.
pub(crate) const INTERFACE: &str = "interface";
/// The options that say where the leading and the following side are, for datagrams.
pub(crate) const FROM: &str = "from";
pub(crate) const AT: &str = "at";

/// The ethertype for local experiments (IEEE 802): no daemon receives it.
const ETHERTYPE: u16 = 0x88B5;

/// The number of frames under way. Of 32 to 1024, this is the fastest.
const WINDOW: u64 = 1024;
const ACK_EACH: u64 = 128;

/// One side of the work.
pub(super) fn run(job: &Job, control_pipe: &ControlPipe, mut ready: impl FnMut() -> Result<()>) -> Result<SideResult> {
    check_options(job)?;
    ensure!(!job.hold, "bare frames part when they are done");
    let before = Instant::now();
    let (mut link, to) = match job.path {
        Path::RawUdp => datagrams(job, control_pipe)?,
        _ => packets(job, control_pipe)?,
    };
    let open_ns = before.elapsed().as_nanos() as u64;
    let size = job.work.size();
    let (least, most) = (RAW_MESSAGE_BYTES, link.frame_bytes_max());
    ensure!((least..=most as usize).contains(&size), "a frame here has {least} to {most} bytes, not {size}");
    ready()?;
    let wait = match job.setup.wait {
        Wait::Poll => RawWait::Spin,
        Wait::Adaptive => bail!("bare frames have no adaptive waiting"),
        Wait::Sleep => RawWait::Sleep,
    };
    let plan = MeasurementPlan {
        window: WINDOW,
        ack_interval: ACK_EACH,
        ..MeasurementPlan::new(to, ETHERTYPE, size, 0).waiting(wait)
    };
    let budget = Duration::from_millis(job.budget_ms);
    let link = &mut *link;
    let done = match (job.work, job.side) {
        (Work::PingPong { .. }, Side::Lead) => lead_pings(link, &plan, control_pipe, budget),
        (Work::PingPong { .. }, Side::Follow) => follow(control_pipe, |count| {
            pong(link, &MeasurementPlan { count, ..plan.clone() })?;
            Ok(2 * count)
        }),
        (Work::Stream { .. }, Side::Lead) => lead_stream(link, &plan, control_pipe, budget),
        (Work::Stream { .. }, Side::Follow) => follow(control_pipe, |count| {
            let frames = stream_in(link, &MeasurementPlan { count, ..plan.clone() })?.frames;
            control_pipe.send(&frames)?;
            Ok(frames)
        }),
        (work, _) => bail!("bare frames do not do {work:?}"),
    }?;
    control_pipe.barrier()?;
    Ok(SideResult { open_ns, ..done })
}

/// A packet link, and the address of the other side.
fn packets(job: &Job, control_pipe: &ControlPipe) -> Result<(Box<dyn Link>, NicId)> {
    let interface = job.setup.options.get(INTERFACE).context("no interface for bare frames")?;
    let link = PacketLink::open(interface, ETHERTYPE, &PacketOptions::default())?;
    control_pipe.send(&link.nic().number())?;
    let other: u64 = control_pipe.recv()?;
    Ok((Box::new(link), nic(other)?))
}

/// A UDP link that knows the other side.
fn datagrams(job: &Job, control_pipe: &ControlPipe) -> Result<(Box<dyn Link>, NicId)> {
    let address = |option: &str| -> Result<IpAddr> {
        let text = job.setup.options.get(option).with_context(|| format!("no address {option:?} for datagrams"))?;
        text.parse().with_context(|| format!("{text:?} is no address"))
    };
    let (own, other, last) = match job.side {
        Side::Lead => (address(FROM)?, address(AT)?, 1),
        Side::Follow => (address(AT)?, address(FROM)?, 2),
    };
    let own_nic = NicId::from_octets([0x02, 0x69, 0x73, 0xFF, 0xFE, last]);
    let options = UdpOptions { bind: SocketAddr::from((own, 0)), ethertype: ETHERTYPE, ..UdpOptions::new(own_nic) };
    let mut link = UdpLink::open(&options)?;
    control_pipe.send(&(link.bound().port(), own_nic.number()))?;
    let (port, number): (u16, u64) = control_pipe.recv()?;
    let to = nic(number)?;
    link.set_peers(&[Peer { address: SocketAddr::from((other, port)), nics: vec![to] }])?;
    control_pipe.barrier()?; // Both know each other before the first frame.
    Ok((Box::new(link), to))
}

fn nic(number: u64) -> Result<NicId> {
    let [0, 0, octets @ ..] = number.to_be_bytes() else { bail!("{number:#x} is no address of frames") };
    Ok(NicId::from_octets(octets))
}

fn lead_pings(
    link: &mut dyn Link,
    plan: &MeasurementPlan,
    control_pipe: &ControlPipe,
    budget: Duration,
) -> Result<SideResult> {
    let mut step = |count: u64, kind: Kind| -> Result<(Duration, Vec<u64>)> {
        announce(control_pipe, count, kind)?;
        let mut rounds = Vec::with_capacity(usize::try_from(count)?);
        let report =
            ping(link, &MeasurementPlan { count, ..plan.clone() }, |took| rounds.push(took.as_nanos() as u64))?;
        Ok((report.took, rounds))
    };
    let round_ns = calibrate(budget / 20, u64::MAX, |count| Ok(step(count, Kind::Warm)?.0))?;
    let batch = ((budget.as_nanos() as f64 * 0.9 / round_ns) as u64 / (BATCHES + 1)).max(1);
    let count = (BATCHES + 1) * batch;
    let cpu = cpu_ns()?;
    let (_, rounds) = step(count, Kind::Measured)?;
    let cpu_ns = cpu_ns()? - cpu;
    announce(control_pipe, 0, Kind::Measured)?;
    // The first batch is not counted: the other side has just been woken.
    let counted = &rounds[batch as usize..];
    let half = |batch: &[u64]| batch.iter().sum::<u64>() as f64 / (2 * batch.len()) as f64;
    let halves: Vec<f64> = counted.chunks(batch as usize).map(half).collect();
    let mut latencies = Latencies::new();
    counted.iter().for_each(|&ns| latencies.record(ns));
    let round_trips = Some(latencies.recorded());
    Ok(SideResult { messages: 2 * count, cpu_ns, half_rtt_ns: median(&halves), round_trips, ..SideResult::default() })
}

fn lead_stream(
    link: &mut dyn Link,
    plan: &MeasurementPlan,
    control_pipe: &ControlPipe,
    budget: Duration,
) -> Result<SideResult> {
    let mut step = |count: u64, kind: Kind| -> Result<(Duration, u64)> {
        announce(control_pipe, count, kind)?;
        let report = stream_out(link, &MeasurementPlan { count, ..plan.clone() })?;
        Ok((report.took, control_pipe.recv()?)) // Only what has come counts.
    };
    let frame_ns = calibrate(budget / 10, u64::MAX, |count| Ok(step(count, Kind::Warm)?.0))?;
    let count = ((budget.as_nanos() as f64 / frame_ns) as u64).max(1);
    let cpu = cpu_ns()?;
    let (took, messages) = step(count, Kind::Measured)?;
    let cpu_ns = cpu_ns()? - cpu;
    announce(control_pipe, 0, Kind::Measured)?;
    Ok(SideResult { messages, cpu_ns, elapsed_ns: Some(took.as_nanos() as u64), ..SideResult::default() })
}

/// Does what the leading side announces; `step` says how many messages that were.
fn follow(control_pipe: &ControlPipe, mut step: impl FnMut(u64) -> Result<u64>) -> Result<SideResult> {
    let mut done = SideResult::default();
    while let Some(next) = next_step(control_pipe)? {
        let cpu = cpu_ns()?;
        let messages = step(next.count)?;
        if next.kind == Kind::Measured {
            done.cpu_ns += cpu_ns()? - cpu;
            done.messages += messages;
        }
    }
    Ok(done)
}
