//! Ping-pong of all sizes between two guests: latency and bandwidth, bridged, by windows, and by windows with the registration cache.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use isthmus_bench::result_table::{Chart, Line, ResultTable, Row, Runs, Unit};

use crate::bench_lab::BenchPlan;
use crate::task::{Guests, MessagePath, run_for_lines, serve};

/// The arguments of `mx_pingpong` besides the address of the server.
const ROUNDS: &str = "-n 20 -W 3 -S 0 -E 1048576";

/// The paths with their settings, in the order of the legend.
const WAYS: [(MessagePath, &str, &str); 3] = [
    (MessagePath::Bridged, "by isthmus; unset MX_RCACHE ISTHMUS_CHANNELS ISTHMUS_WAIT", "-d guest1:0"),
    (MessagePath::Plain, "by window; export MX_RCACHE=0; unset ISTHMUS_CHANNELS ISTHMUS_WAIT", ""),
    (MessagePath::Window, "by window; export MX_RCACHE=1; unset ISTHMUS_CHANNELS ISTHMUS_WAIT", ""),
];

/// Returns the name of a path in the rows and in the plot.
fn name(way: MessagePath) -> &'static str {
    match way {
        MessagePath::Bridged => "bridged",
        MessagePath::Plain => "window, cache off",
        MessagePath::Window => "window, cache on",
        MessagePath::Daemon => "by the daemon",
        MessagePath::Tcp => "TCP",
    }
}

/// Half the round trips in µs, by size, for each path.
type Times = [BTreeMap<usize, Runs>; 3];

/// Measures all sizes, writes a row for each with this prefix of its name, and returns a plot.
pub(crate) fn sweep(
    guests: &mut impl Guests,
    pace: BenchPlan,
    prefix: &str,
    result_table: &mut ResultTable,
) -> Result<String> {
    let mut times = Times::default();
    for run in 1..=pace.runs {
        for (times, (way, setting, address)) in times.iter_mut().zip(WAYS) {
            pace.report_progress(&format!("all sizes, {}: run {run} of {}", name(way), pace.runs));
            let said = all_sizes(guests, setting, address).map_err(|said| anyhow!(said))?;
            for (size, half_us) in said.iter().filter_map(|line| point(line)) {
                times.entry(size).or_default().push(Ok(half_us));
            }
        }
    }
    let [bridged, plain, window] = &times;
    for (size, runs) in window {
        let beside = |times: &BTreeMap<usize, Runs>| times.get(size).cloned().unwrap_or_default();
        let row = Row::new(format!("{prefix}.half_rtt.{size}"), Unit::Microseconds, runs.clone());
        result_table
            .take(row.with_baseline("bridged", beside(bridged)).with_baseline("window, cache off", beside(plain)))?;
    }
    let latency = chart("half round trip, us", &times, |_, half_us| half_us);
    let bandwidth = chart("ping-pong, one direction, GB/s", &times, |size, half_us| size as f64 / half_us / 1e3);
    result_table.plot([&latency, &bandwidth])
}

/// Returns the output of `mx_pingpong` in guest0.
fn all_sizes(guests: &mut impl Guests, setting: &str, address: &str) -> Result<Vec<String>, String> {
    let endpoint = serve(guests, 1, &format!("{setting}; serve mx_pingpong -w"))?;
    let said = run_for_lines(guests, 0, &format!("{setting}; mx_pingpong -w {address} -r {endpoint} {ROUNDS}"))?;
    run_for_lines(guests, 1, "served")?;
    Ok(said)
}

/// Parses a line of `mx_pingpong`: the size and half the round trip.
fn point(line: &str) -> Option<(usize, f64)> {
    let mut words = line.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

fn chart(title: &str, times: &Times, value: impl Fn(usize, f64) -> f64) -> Chart {
    let line = |(colour, (times, (way, ..))): (usize, (&BTreeMap<usize, Runs>, (MessagePath, _, _)))| Line {
        label: name(way).to_owned(),
        colour,
        is_thick: way == MessagePath::Window,
        points: times
            .iter()
            .filter_map(|(&size, runs)| Some((size.max(1) as f64, value(size, runs.median()?))))
            .collect(),
    };
    Chart {
        title: title.to_owned(),
        across: "message, bytes",
        lines: times.iter().zip(WAYS).enumerate().map(line).collect(),
    }
}
