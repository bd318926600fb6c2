//! The table of `isthmus try`: a line for each size, a column for each path, and how many times better the first one is.

use isthmus_bench::demo::{LowerBound, Path, Point, Wait};

use crate::output::{Align, Table};

/// A quantity to show.
struct Quantity {
    title: &'static str,
    wait: Wait,
    value: fn(&Point) -> Option<f64>,
    less_is_better: bool,
    /// Sizes for which it says something.
    sizes: fn(usize) -> bool,
}

const QUANTITIES: [Quantity; 3] = [
    Quantity {
        title: "Half a round trip in microseconds, both sides looking without a pause",
        wait: Wait::Poll,
        value: |point| point.half_rtt_us,
        less_is_better: true,
        sizes: |_| true,
    },
    Quantity {
        title: "Half a round trip in microseconds, both sides sleeping until woken",
        wait: Wait::Sleep,
        value: |point| point.half_rtt_us,
        less_is_better: true,
        sizes: |_| true,
    },
    Quantity {
        title: "One direction, GB/s, both sides looking without a pause",
        wait: Wait::Poll,
        value: |point| point.bandwidth_gb_s,
        less_is_better: false,
        sizes: |size| size > 0,
    },
];

/// All tables, and the floors below them.
pub(super) fn text(points: &[Point], lower_bounds: &[LowerBound]) -> String {
    let mut text: String = QUANTITIES.iter().map(|quantity| quantity.text(points) + "\n").collect();
    text += "What no path can beat here:\n";
    for floor in lower_bounds {
        let value = floor
            .value
            .map_or_else(|| floor.why.clone().unwrap_or_default(), |value| format!("{} {}", digits(value), floor.unit));
        text += &format!("  {:24}{value}\n", floor.name);
    }
    let troubles = points.iter().filter_map(|point| Some((point, point.why.as_ref()?)));
    for (point, why) in troubles {
        text += &format!("failed: {} ({}), {} bytes: {why}\n", point.path.name(), point.wait.name(), point.size);
    }
    text
}

impl Quantity {
    fn text(&self, points: &[Point]) -> String {
        let shown: Vec<&Point> =
            points.iter().filter(|point| point.wait == self.wait && (self.sizes)(point.size)).collect();
        let paths = distinct(shown.iter().map(|point| point.path));
        let Some((&first, others)) = paths.split_first() else { return String::new() };
        // MX is ours as well.
        let others: Vec<Path> = others.iter().copied().filter(|&path| path != Path::Mx).collect();
        let mut heads = vec![("bytes", Align::Right)];
        heads.extend(paths.iter().map(|path| (path.name(), Align::Right)));
        heads.extend(others.iter().map(|path| (times(*path), Align::Right)));
        let mut table = Table::new(&heads);
        for size in distinct(shown.iter().map(|point| point.size)) {
            let value = |path: Path| {
                shown
                    .iter()
                    .find(|point| point.path == path && point.size == size)
                    .and_then(|point| (self.value)(point))
            };
            let mut row = vec![size.to_string()];
            row.extend(paths.iter().map(|&path| value(path).map_or_else(|| "-".to_owned(), digits)));
            row.extend(others.iter().map(|&path| self.ratio(value(first), value(path))));
            table.row(row);
        }
        format!("{}\n{}", self.title, table.text())
    }

    /// How many times better `ours` is.
    fn ratio(&self, ours: Option<f64>, theirs: Option<f64>) -> String {
        match (ours, theirs) {
            (Some(ours), Some(theirs)) if ours > 0.0 && theirs > 0.0 => {
                digits(if self.less_is_better { theirs / ours } else { ours / theirs })
            }
            _ => "-".to_owned(),
        }
    }
}

const fn times(path: Path) -> &'static str {
    match path {
        Path::Tcp => "x tcp",
        Path::Unix => "x unix",
        Path::Pipe => "x pipe",
        _ => "x",
    }
}

/// In the order of their first appearance.
fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for one in all {
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    seen
}

/// Three digits that count.
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
    fn three_digits_count() {
        let shown: Vec<_> = [0.0631, 0.5, 9.96, 12.34, 1234.5, 0.0].map(digits).into();
        assert_eq!(shown, ["0.0631", "0.500", "9.96", "12.3", "1234", "0"]);
    }

    #[test]
    fn better_is_more_than_one_whatever_the_unit() {
        let [latency, _, bandwidth] = &QUANTITIES;
        assert_eq!(latency.ratio(Some(1.0), Some(4.0)), "4.00");
        assert_eq!(bandwidth.ratio(Some(8.0), Some(2.0)), "4.00");
        assert_eq!(bandwidth.ratio(Some(8.0), None), "-");
    }
}
