//! The total bandwidth of an increasing number of pairs of guests.

use anyhow::Result;
use isthmus_bench::result_table::{Chart, Line, ResultTable, Row, Runs, Unit};
use isthmus_guests_tests::GuestKit;

use crate::bench_lab::BenchLab;
use crate::task::{MessagePath, Place, Task};

/// The length of messages in that experiment of Xen2MX.
const SIZE: usize = 256 << 10;

const WAYS: [(MessagePath, &str); 3] =
    [(MessagePath::Bridged, "bridged"), (MessagePath::Window, "window"), (MessagePath::Tcp, "TCP")];

/// Measures with one pair, two, and so on. Writes a row for each number, and returns a plot.
pub(crate) fn measure_scaling(
    bench_lab: &mut BenchLab,
    kit: &GuestKit,
    pairs: u32,
    result_table: &mut ResultTable,
) -> Result<String> {
    let mut all: Vec<(f64, [Runs; 3])> = Vec::new();
    for count in 1..=pairs {
        let is_there = bench_lab.site.guests.len();
        if (2 * count) as usize > is_there {
            bench_lab.pace.report_progress(&format!("booting guests up to {}", 2 * count));
            bench_lab.site.boot(kit, 2 * count);
            bench_lab.open_channels(is_there);
        }
        let mut ways = <[Runs; 3]>::default();
        for run in 1..=bench_lab.pace.runs {
            bench_lab.pace.report_progress(&format!("{count} pairs of guests: run {run} of {}", bench_lab.pace.runs));
            for (runs, (way, _)) in ways.iter_mut().zip(WAYS) {
                runs.push(together(bench_lab, way, count as usize));
            }
        }
        let [bridged, window, tcp] = &ways;
        let row = Row::new(format!("guest.qemu.aggregate.{count}"), Unit::GigabytesPerSecond, window.clone());
        result_table.take(row.with_baseline("bridged", bridged.clone()).with_baseline("tcp", tcp.clone()))?;
        all.push((f64::from(2 * count), ways));
    }
    let together = chart("all guests together, GB/s", &all, |value, _| value);
    let each = chart("each pair, GB/s", &all, |value, guests| value / (guests / 2.0));
    result_table.plot([&together, &each])
}

/// Returns the total bandwidth of the pairs at once in GB/s, which is the sum of their own results.
fn together(bench_lab: &mut BenchLab, way: MessagePath, pairs: usize) -> Result<f64, String> {
    let task = |pair| Task { size: SIZE, client: 2 * pair, server: Place::Guest(2 * pair + 1), ..Task::bandwidth(way) };
    let ms = bench_lab.pace.ms;
    let serving: Vec<_> = (0..pairs).map(|pair| task(pair).start(&mut bench_lab.site, ms)).collect();
    // Each pair is ended, also if another one has failed.
    let ended = serving.into_iter().enumerate().map(|(pair, serving)| task(pair).finish(&mut bench_lab.site, serving?));
    ended.collect::<Vec<_>>().into_iter().sum()
}

fn chart(title: &str, all: &[(f64, [Runs; 3])], value: impl Fn(f64, f64) -> f64) -> Chart {
    let line = |(at, (way, label)): (usize, (MessagePath, &str))| Line {
        label: label.to_owned(),
        colour: at,
        is_thick: way == MessagePath::Window,
        points: all.iter().filter_map(|(guests, runs)| Some((*guests, value(runs[at].median()?, *guests)))).collect(),
    };
    Chart { title: title.to_owned(), across: "guests", lines: WAYS.into_iter().enumerate().map(line).collect() }
}
