//! Latency and bandwidth by size as an SVG picture, both axes logarithmic, one line for each path and way to wait.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::job::Wait;
use crate::path::Path;
use crate::sweep::Point;

const SIZE: (u32, u32) = (1300, 620);
/// One for each path: Okabe and Ito's colours, which most colour-blind readers can tell apart, and a grey.
const COLOURS: [RGBColor; 8] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(120, 120, 120),
];

type Lines = BTreeMap<(Path, Wait), Vec<(f64, f64)>>;

/// Draws the points; the machine stands below.
pub(crate) fn draw(points: &[Point], machine: &str) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        paint(&area, points, machine).map_err(|error| anyhow!("cannot draw the plot: {error}"))?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn paint(area: &Area<'_>, points: &[Point], machine: &str) -> Result<(), Box<dyn std::error::Error>> {
    area.fill(&WHITE)?;
    let (charts, foot) = area.split_vertically(SIZE.1 - 30);
    let (left, right) = charts.split_horizontally(SIZE.0 / 2);
    let first_line = machine.lines().next().unwrap_or_default();
    foot.draw(&Text::new(first_line.to_owned(), (12, 6), ("sans-serif", 13)))?;
    chart(&left, "half round trip, us", &lines(points, |point| point.half_rtt_us))?;
    chart(&right, "one direction, GB/s", &lines(points, |point| point.bandwidth_gb_s))
}

/// Only what can stand on a logarithmic axis; a message of 0 bytes stands at 1.
fn lines(points: &[Point], value: impl Fn(&Point) -> Option<f64>) -> Lines {
    let mut lines = Lines::new();
    for point in points {
        if let Some(value) = value(point).filter(|&value| value > 0.0) {
            lines.entry((point.path, point.wait)).or_default().push((point.size.max(1) as f64, value));
        }
    }
    lines
}

fn chart(area: &Area<'_>, title: &str, lines: &Lines) -> Result<(), Box<dyn std::error::Error>> {
    let all = || lines.values().flatten();
    let end = |pick: fn(&(f64, f64)) -> f64, largest: bool| {
        let values = all().map(pick);
        if largest { values.fold(f64::MIN_POSITIVE, f64::max) } else { values.fold(f64::MAX, f64::min) }
    };
    if all().next().is_none() {
        area.draw(&Text::new(format!("{title}: nothing was measured"), (20, 20), ("sans-serif", 16)))?;
        return Ok(());
    }
    let (x_end, y_start, y_end) = (end(|at| at.0, true).max(2.0), end(|at| at.1, false), end(|at| at.1, true));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .caption(title, ("sans-serif", 20))
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((1.0..x_end * 1.2).log_scale().base(2.0), (y_start / 1.5..y_end * 1.5).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("message, bytes")
        .x_label_formatter(&|x| bytes(*x))
        .y_label_formatter(&|y| format!("{y}"))
        .light_line_style(WHITE)
        .draw()?;
    for ((path, wait), points) in lines {
        let colour = COLOURS[*path as usize % COLOURS.len()];
        // Pollers thick with full dots, sleepers thin with rings.
        let style = colour.stroke_width(if *wait == Wait::Poll { 3 } else { 1 });
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))?
            .label(format!("{} ({})", path.name(), wait.name()))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        chart.draw_series(points.iter().map(|&at| match *wait {
            Wait::Poll => Circle::new(at, 3, colour.filled()),
            Wait::Sleep => Circle::new(at, 4, colour.stroke_width(1)),
        }))?;
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .position(SeriesLabelPosition::UpperLeft)
        .draw()?;
    Ok(())
}

/// `64`, `4k`, `1M`.
fn bytes(size: f64) -> String {
    let size = size.round() as u64;
    match size {
        size if size >= 1 << 20 => format!("{}M", size >> 20),
        size if size >= 1 << 10 => format!("{}k", size >> 10),
        size => size.to_string(),
    }
}
