//! The tables of `isthmus try`: a row for each path and way to wait, a column for each quantity or size. In every column higher is
//! better.

use isthmus_bench::demo::{COPY_BYTES, LowerBound, Path, Point, default_wait};

use super::{SIZE_LARGE, SIZE_SMALL, SIZES};
use crate::output::{Align, Table};

/// A quantity of which more is better.
#[derive(Clone, Copy)]
enum Quantity {
    /// Thousands of round trips each second.
    RoundTrips,
    /// Millions of messages each second in one direction.
    Messages,
    /// Gigabytes each second in one direction.
    Bandwidth,
}

/// A quantity at one size.
struct Column {
    header: &'static str,
    size: usize,
    quantity: Quantity,
}

/// The largest messages in the table of message rates, and the smallest in the table of bandwidths.
const SIZE_BETWEEN: usize = 4 << 10;

/// Returns the three figures that matter most.
pub(super) fn summary(points: &[Point], lower_bounds: &[LowerBound]) -> String {
    let column = |header, size, quantity| Column { header, size, quantity };
    let columns = [
        column("8 B round trips, 1000/s", SIZE_SMALL, Quantity::RoundTrips),
        column("8 B messages, million/s", SIZE_SMALL, Quantity::Messages),
        column("1 MiB messages, GB/s", SIZE_LARGE, Quantity::Bandwidth),
    ];
    table(&columns, points, lower_bounds)
}

/// Returns a table for each quantity, with a column for each size.
pub(super) fn by_size(points: &[Point], lower_bounds: &[LowerBound]) -> String {
    let of = |title: &str, quantity, is_shown: fn(usize) -> bool| {
        let sizes = SIZES.into_iter().filter(|&(size, _)| is_shown(size));
        let columns: Vec<Column> = sizes.map(|(size, header)| Column { header, size, quantity }).collect();
        format!("{title}\n{}\n", table(&columns, points, lower_bounds))
    };
    of("Round trips by message size, 1000/s", Quantity::RoundTrips, |_| true)
        + &of("Messages in one direction, million/s", Quantity::Messages, |size| size <= SIZE_BETWEEN)
        + &of("Bytes in one direction, GB/s", Quantity::Bandwidth, |size| size >= SIZE_BETWEEN)
}

/// Returns a line for each point that failed.
pub(super) fn failures(points: &[Point]) -> String {
    let failed = points.iter().filter_map(|point| Some((point, point.why.as_ref()?)));
    failed
        .map(|(point, why)| {
            format!("failed: {} ({}), {} bytes: {why}\n", name(point.path), point.wait.name(), point.size)
        })
        .collect()
}

fn table(columns: &[Column], points: &[Point], lower_bounds: &[LowerBound]) -> String {
    let mut headers = vec![("", Align::Left), ("waiting", Align::Left)];
    headers.extend(columns.iter().map(|column| (column.header, Align::Right)));
    let mut table = Table::new(&headers);
    for (path, wait) in distinct(points.iter().map(|point| (point.path, point.wait))) {
        let is_default = if wait == default_wait(path) { " (default)" } else { "" };
        let cells = columns.iter().map(|column| {
            let at = |point: &&Point| point.path == path && point.wait == wait && point.size == column.size;
            shown(points.iter().find(at).and_then(|point| column.quantity.of_point(point)))
        });
        table.row([name(path).to_owned(), format!("{}{is_default}", wait.name())].into_iter().chain(cells).collect());
    }
    for bound in lower_bounds {
        let values: Vec<Option<f64>> = columns.iter().map(|column| column.of_bound(bound)).collect();
        if values.iter().any(Option::is_some) {
            let blank = |value: Option<f64>| value.map(digits).unwrap_or_default();
            table.row(
                [bound_name(&bound.name).to_owned(), String::new()]
                    .into_iter()
                    .chain(values.into_iter().map(blank))
                    .collect(),
            );
        }
    }
    table.text()
}

impl Quantity {
    fn of_point(self, point: &Point) -> Option<f64> {
        match self {
            Self::RoundTrips => point.half_rtt_us.and_then(round_trips),
            Self::Messages => point.rate_mmsg_s,
            Self::Bandwidth => point.bandwidth_gb_s,
        }
    }
}

impl Column {
    /// Returns the value of a bound in this column; none if the bound is of another quantity or size.
    fn of_bound(&self, bound: &LowerBound) -> Option<f64> {
        match (self.quantity, bound.unit) {
            (Quantity::RoundTrips, "us") if self.size == SIZE_SMALL => bound.value.and_then(round_trips),
            (Quantity::Bandwidth, "GB/s") if self.size == COPY_BYTES => bound.value,
            _ => None,
        }
    }
}

/// Converts half a round trip in microseconds to thousands of round trips each second.
pub(super) fn round_trips(half_rtt_us: f64) -> Option<f64> {
    (half_rtt_us > 0.0).then(|| 500.0 / half_rtt_us)
}

/// The name of a path as people read it.
pub(super) const fn name(path: Path) -> &'static str {
    match path {
        Path::Isthmus => "Isthmus",
        Path::Mx => "MX",
        Path::Tcp => "TCP",
        Path::Sockets => "sockets",
        Path::Unix => "Unix socket",
        Path::Raw => "bare frames",
        other => other.name(),
    }
}

/// The name of a bound as people read it.
fn bound_name(name: &str) -> &str {
    match name.split('.').next() {
        Some("cache_line") => "cache line",
        Some("memcpy") => "memcpy, 1 CPU",
        Some("cross_core_copy") => "memcpy, 2 CPUs",
        _ => name,
    }
}

/// Returns each value once, in the order of first appearance.
pub(super) fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for one in all {
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    seen
}

/// Formats a value, or a dash where there is none.
pub(super) fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), digits)
}

/// Formats a value with three significant digits.
pub(super) fn digits(value: f64) -> String {
    if value <= 0.0 {
        return "0".to_owned();
    }
    let decimals = (2 - value.log10().floor() as i32).clamp(0, 4) as usize;
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_three_significant_digits() {
        let shown: Vec<_> = [0.0631, 0.5, 9.96, 12.34, 1234.5, 0.0].map(digits).into();
        assert_eq!(shown, ["0.0631", "0.500", "9.96", "12.3", "1234", "0"]);
    }

    #[test]
    fn shows_a_higher_value_for_a_shorter_round_trip() {
        assert_eq!([0.5, 2.0, 0.0].map(round_trips), [Some(1000.0), Some(250.0), None]);
    }

    #[test]
    fn shows_bounds_in_the_column_of_their_quantity_and_size() {
        let bound = |name: &str, value, unit| LowerBound { name: name.to_owned(), value: Some(value), unit, why: None };
        let bounds = [bound("cache_line.half_rtt", 0.05, "us"), bound("memcpy.1m", 12.0, "GB/s")];
        let text = summary(&[], &bounds);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1..], [vec!["cache", "line", "10000"], vec!["memcpy,", "1", "CPU", "12.0"]]);
    }
}
