//! Rows of two guests, and of a guest with another host.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use isthmus_bench::result_table::{ResultTable, Row, Runs, Target, Unit, Versus};

use crate::bench_lab::{Bare, BenchLab, BenchPlan, Case};
use crate::task::{Guests, MessagePath, Place, Task, Wait, attach, first_message, run_for_lines, serve};

/// Measures 8 bytes between two guests, and the primitives of the path.
pub(crate) fn latency(bench_lab: &mut BenchLab, result_table: &mut ResultTable) -> Result<()> {
    let cases = [
        Case::latency(MessagePath::Window, Wait::Poll),
        Case::latency(MessagePath::Bridged, Wait::Poll),
        Case::latency(MessagePath::Window, Wait::Sleep),
        Case::latency(MessagePath::Bridged, Wait::Sleep),
        Case::latency(MessagePath::Daemon, Wait::Poll),
        Case::latency(MessagePath::Daemon, Wait::Sleep),
        Case::latency(MessagePath::Window, Wait::Adaptive),
        Case::latency(MessagePath::Bridged, Wait::Adaptive),
        Case::latency(MessagePath::Tcp, Wait::Sleep),
        Case::Echo,
        Case::Bare(Bare::Doorbell),
        Case::Bare(Bare::Word),
    ];
    let [poll, bridged_poll, sleep, bridged_sleep, daemon_poll, daemon_sleep, adaptive, bridged_adaptive, rest @ ..] =
        bench_lab.measure_in_turns("8 bytes", cases);
    let [tcp, echo, doorbells, words] = rest;
    let row = |name, runs: &Runs| Row::new(name, Unit::Microseconds, runs.clone());
    let poll = row("guest.qemu.half_rtt.8b.poll", &poll)
        .with_target(Target::at_most(0.01, Versus::Peer))
        .with_baseline("bridged.half_rtt.8b.poll", bridged_poll)
        .with_baseline("bridged.half_rtt.8b.sleep", bridged_sleep.clone())
        .with_baseline("daemon.half_rtt.8b.poll", daemon_poll)
        .with_baseline("window.word", words.clone())
        .with_baseline("tcp.half_rtt.8b", tcp.clone())
        .with_baseline("icmp.half_rtt.8b", echo.clone());
    result_table.take(poll)?;
    let asleep = SleepLatencies {
        window: sleep.clone(),
        bridged: bridged_sleep,
        daemon: daemon_sleep,
        adaptive,
        bridged_adaptive,
        tcp,
        echo: echo.clone(),
    };
    result_table.take(asleep.row("guest.qemu"))?;
    let added = row("guest.qemu.half_rtt.8b.added", &sleep)
        .with_target(Target::at_most(1.25, Versus::Floor))
        .with_floor("guest.qemu.doorbell", doorbells.clone());
    result_table.take(added)?;
    let bell = row("guest.qemu.doorbell", &doorbells);
    result_table.take(bell.with_baseline("icmp.half_rtt.8b", echo.clone()))?;
    let word = row("guest.qemu.word", &words).with_target(Target::at_most(0.001, Versus::Peer));
    result_table.take(word.with_baseline("icmp.half_rtt.8b", echo))
}

/// The times of 8 bytes between two guests, with both sides sleeping, or with the default waiting of `mx_wait` (`adaptive`).
pub(crate) struct SleepLatencies {
    pub(crate) window: Runs,
    pub(crate) bridged: Runs,
    pub(crate) daemon: Runs,
    pub(crate) adaptive: Runs,
    pub(crate) bridged_adaptive: Runs,
    pub(crate) tcp: Runs,
    pub(crate) echo: Runs,
}

impl SleepLatencies {
    /// Returns the row, with this prefix of its name.
    pub(crate) fn row(self, prefix: &str) -> Row {
        Row::new(format!("{prefix}.half_rtt.8b.sleep"), Unit::Microseconds, self.window)
            .with_target(Target::at_most(0.6, Versus::Peer))
            .with_baseline("bridged.half_rtt.8b.sleep", self.bridged)
            .with_baseline("daemon.half_rtt.8b.sleep", self.daemon)
            .with_baseline("bridged.half_rtt.8b.adaptive", self.bridged_adaptive)
            .with_baseline("window.half_rtt.8b.adaptive", self.adaptive)
            .with_baseline("tcp.half_rtt.8b", self.tcp)
            .with_baseline("icmp.half_rtt.8b", self.echo)
    }
}

/// Measures 1 MiB from one guest to another.
pub(crate) fn one_direction(bench_lab: &mut BenchLab, result_table: &mut ResultTable) -> Result<()> {
    let runs = bench_lab.measure_in_turns("1 MiB one way", BANDWIDTH_PATHS.map(Case::bandwidth));
    bandwidth("guest.qemu", runs, result_table)
}

/// The paths that are measured with 1 MiB from one guest to another.
pub(crate) const BANDWIDTH_PATHS: [MessagePath; 5] =
    [MessagePath::Window, MessagePath::Plain, MessagePath::Daemon, MessagePath::Bridged, MessagePath::Tcp];

/// Writes the rows of these paths, with this prefix of their names.
pub(crate) fn bandwidth(
    prefix: &str,
    runs: [Runs; BANDWIDTH_PATHS.len()],
    result_table: &mut ResultTable,
) -> Result<()> {
    let [window, plain, daemon, bridged, tcp] = runs; // As in `BANDWIDTH_PATHS`.
    let row = |name, runs: &Runs| Row::new(format!("{prefix}.{name}"), Unit::GigabytesPerSecond, runs.clone());
    let over_tcp = Target::at_least(2.0, Versus::Peer).of("tcp.bandwidth.1m");
    let target = Target::at_least(3.0, Versus::Peer).of("bridged.bandwidth.1m").and(over_tcp);
    let bandwidth = row("bandwidth.1m", &window)
        .with_target(target)
        .with_baseline("bridged.bandwidth.1m", bridged)
        .with_baseline("tcp.bandwidth.1m", tcp)
        .with_baseline("daemon.bandwidth.1m", daemon);
    result_table.take(bandwidth)?;
    result_table.take(row("rcache.1m", &window).with_baseline("window.bandwidth.1m.plain", plain))
}

/// Measures the cost of moving a buffer to memory that its receiver can read, by size: a breakdown like figure 12 of Xen2MX. The rest of the
/// call that starts a send is the cost of a new buffer.
pub(crate) fn registration(bench_lab: &mut BenchLab, result_table: &mut ResultTable) -> Result<()> {
    let mut prices = BTreeMap::<usize, [Runs; 3]>::new();
    let pace = bench_lab.pace;
    for run in 1..=pace.runs {
        pace.report_progress(&format!("registration: run {run} of {}", pace.runs));
        for line in registration_cost(bench_lab).map_err(|said| anyhow!(said))? {
            let words = line.split_whitespace().skip(1).filter_map(|word| word.parse::<f64>().ok());
            let [size, told @ ..] = words.collect::<Vec<_>>()[..].try_into().unwrap_or([0.0; 4]);
            let all = prices.entry(size as usize).or_default();
            all.iter_mut().zip(told).for_each(|(runs, ns)| runs.push(Ok(ns / 1e3)));
        }
    }
    for (size, [cold, miss, hit]) in prices {
        let row = Row::new(format!("guest.qemu.register.{size}"), Unit::Microseconds, hit);
        result_table.take(row.with_baseline("moved by this call", miss).with_baseline("new", cold))?;
    }
    Ok(())
}

fn registration_cost(bench_lab: &mut BenchLab) -> Result<Vec<String>, String> {
    let setting = "by window; export MX_RCACHE=1; unset ISTHMUS_CHANNELS ISTHMUS_WAIT";
    let guests = &mut bench_lab.site;
    let endpoint = serve(guests, 1, &format!("{setting}; serve regions"))?;
    let said = run_for_lines(guests, 0, &format!("{setting}; regions -r {endpoint} price"));
    run_for_lines(guests, 1, if said.is_ok() { "served" } else { "kill $served_pid; served" })?;
    Ok(said?.into_iter().filter(|line| line.starts_with("price ")).collect())
}

/// Measures from a guest to another host, by the host daemon.
pub(crate) fn another_host(bench_lab: &mut BenchLab, result_table: &mut ResultTable) -> Result<()> {
    const WAYS: [MessagePath; 3] = [MessagePath::Window, MessagePath::Bridged, MessagePath::Tcp];
    let far = |task: Task| Case::Task(Task { server: Place::Remote, ..task });
    let latencies =
        bench_lab.measure_in_turns("8 bytes to another host", WAYS.map(|way| far(Task::latency(way, Wait::Sleep))));
    let goodputs = bench_lab.measure_in_turns("1 MiB to another host", WAYS.map(|way| far(Task::bandwidth(way))));
    let row = |name, unit, target: Target, [window, bridged, tcp]: [Runs; 3]| {
        let row = Row::new(name, unit, window).with_target(target.of("bridged"));
        row.with_baseline("bridged", bridged).with_baseline("tcp", tcp)
    };
    let target = Target::at_most(0.5, Versus::Peer);
    result_table.take(row("guest.qemu.wire.half_rtt.8b", Unit::Microseconds, target, latencies))?;
    let target = Target::at_least(2.0, Versus::Peer);
    result_table.take(row("guest.qemu.wire.goodput.1m", Unit::GigabytesPerSecond, target, goodputs))
}

/// Measures the time to attach a guest and to send the first message, in rows with this prefix of their names.
pub(crate) fn attach_times(
    guests: &mut impl Guests,
    pace: BenchPlan,
    prefix: &str,
    result_table: &mut ResultTable,
) -> Result<()> {
    let cases = [0, 1, 2];
    let [attach, window, bridged] = pace.measure_in_turns("attach, and a first message", cases, |case| match case {
        0 => attach(guests),
        1 => first_message(guests, "window", ""),
        _ => first_message(guests, "isthmus", "-d guest1:0"),
    });
    result_table.take(Row::new(format!("{prefix}.attach"), Unit::Milliseconds, attach))?;
    let first = Row::new(format!("{prefix}.first_message"), Unit::Milliseconds, window);
    result_table.take(first.with_baseline("bridged", bridged))
}
