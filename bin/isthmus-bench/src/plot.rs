//! Two charts side by side as an SVG picture, both axes logarithmic: latency and bandwidth by size with one line for each path and
//! way to wait, or other lines.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::job::Wait;
use crate::path::Path;
use crate::sweep::Point;

const SIZE: (u32, u32) = (1300, 620);
/// One for each path: Okabe and Ito's colours, which most colour-blind readers can distinguish, and a grey.
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

/// One chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The quantity that goes up, with its unit.
    pub title: String,
    /// The quantity that goes across, with its unit.
    pub across: &'static str,
    /// From the first to the last in the legend.
    pub lines: Vec<Line>,
}

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Line {
    /// The name in the legend.
    pub label: String,
    /// The number of the colour; lines that belong together have the same.
    pub colour: usize,
    /// Thick with full dots, or thin with rings.
    pub is_thick: bool,
    /// Across and up. Points that have no place on a logarithmic axis are left out.
    pub points: Vec<(f64, f64)>,
}

/// Draws the points; the machine stands below.
pub(crate) fn draw(points: &[Point], machine: &str) -> Result<String> {
    let chart = |title: &str, lines| Chart { title: title.to_owned(), across: "message, bytes", lines };
    let latency = chart("half round trip, us", lines(points, |point| point.half_rtt_us));
    let bandwidth = chart("one direction, GB/s", lines(points, |point| point.bandwidth_gb_s));
    side_by_side([&latency, &bandwidth], machine)
}

/// Draws two charts; the first line of `foot` stands below.
pub(crate) fn side_by_side(charts: [&Chart; 2], foot: &str) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        paint(&area, charts, foot).map_err(|error| anyhow!("cannot draw the plot: {error}"))?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn paint(area: &Area<'_>, charts: [&Chart; 2], foot: &str) -> Result<(), Box<dyn std::error::Error>> {
    area.fill(&WHITE)?;
    let (above, below) = area.split_vertically(SIZE.1 - 30);
    let (left, right) = above.split_horizontally(SIZE.0 / 2);
    let first_line = foot.lines().next().unwrap_or_default();
    below.draw(&Text::new(first_line.to_owned(), (12, 6), ("sans-serif", 13)))?;
    paint_chart(&left, charts[0])?;
    paint_chart(&right, charts[1])
}

/// Polling is drawn thick and sleeping thin; a message of 0 bytes stands at 1. Adaptive waiting is left out, because its line lies on
/// the line of polling.
fn lines(points: &[Point], value: impl Fn(&Point) -> Option<f64>) -> Vec<Line> {
    let mut lines = BTreeMap::<(Path, Wait), Vec<(f64, f64)>>::new();
    for point in points.iter().filter(|point| point.wait != Wait::Adaptive) {
        if let Some(value) = value(point) {
            lines.entry((point.path, point.wait)).or_default().push((point.size.max(1) as f64, value));
        }
    }
    let line = |((path, wait), points): ((Path, Wait), _)| Line {
        label: format!("{} ({})", path.name(), wait.name()),
        colour: path as usize,
        is_thick: wait == Wait::Poll,
        points,
    };
    lines.into_iter().map(line).collect()
}

fn paint_chart(area: &Area<'_>, shown: &Chart) -> Result<(), Box<dyn std::error::Error>> {
    let can_stand = |&&(across, up): &&(f64, f64)| across > 0.0 && up > 0.0;
    let all = || shown.lines.iter().flat_map(|line| &line.points).filter(can_stand);
    let end = |pick: fn(&(f64, f64)) -> f64, largest: bool| {
        let values = all().map(pick);
        if largest { values.fold(f64::MIN_POSITIVE, f64::max) } else { values.fold(f64::MAX, f64::min) }
    };
    if all().next().is_none() {
        area.draw(&Text::new(format!("{}: nothing was measured", shown.title), (20, 20), ("sans-serif", 16)))?;
        return Ok(());
    }
    let (x_end, y_start, y_end) = (end(|at| at.0, true).max(2.0), end(|at| at.1, false), end(|at| at.1, true));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .caption(&shown.title, ("sans-serif", 20))
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((1.0..x_end * 1.2).log_scale().base(2.0), (y_start / 1.5..y_end * 1.5).log_scale())?;
    chart
        .configure_mesh()
        .x_desc(shown.across)
        .x_label_formatter(&|x| bytes(*x))
        .y_label_formatter(&|y| format!("{y}"))
        .light_line_style(WHITE)
        .draw()?;
    for line in &shown.lines {
        let points = || line.points.iter().filter(can_stand).copied();
        let colour = COLOURS[line.colour % COLOURS.len()];
        let style = colour.stroke_width(if line.is_thick { 3 } else { 1 });
        chart
            .draw_series(LineSeries::new(points(), style))?
            .label(line.label.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        chart.draw_series(points().map(|at| match line.is_thick {
            true => Circle::new(at, 3, colour.filled()),
            false => Circle::new(at, 4, colour.stroke_width(1)),
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
