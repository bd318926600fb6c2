//! The table of the measurements between two hosts: a row for each path. In every column higher is better.

use isthmus_bench::demo::{HostMeasurement, Path, Quantity};

use super::table::{distinct, name, round_trips, shown};
use crate::output::{Align, Table};

const TITLE: &str = "Between two hosts on this machine (network namespaces, a veth pair of MTU 9000 without offloads)";

const COLUMNS: [(Quantity, &str); 3] = [
    (Quantity::HalfRttPoll, "8 B round trips, poll, 1000/s"),
    (Quantity::HalfRttSleep, "8 B round trips, sleep, 1000/s"),
    (Quantity::Bandwidth, "1 MiB messages, sleep, GB/s"),
];

/// Returns the table, or the reason why there is none.
pub(super) fn text(all: &[HostMeasurement]) -> String {
    if all.iter().all(|measurement| measurement.value.is_none()) {
        let whys = distinct(all.iter().filter_map(|measurement| measurement.why.as_deref()));
        return format!("Between two hosts: not measured: {}\n", whys.join("; "));
    }
    let headers = COLUMNS.map(|(_, header)| (header, Align::Right));
    let mut table = Table::new(&[&[("", Align::Left)], &headers[..]].concat());
    for path in [Path::Mx, Path::Raw, Path::Tcp] {
        let cells = COLUMNS.map(|(quantity, _)| shown(value(all, quantity, path)));
        table.row(std::iter::once(name(path).to_owned()).chain(cells).collect());
    }
    let missing = all.iter().filter_map(|measurement| {
        let subject = if measurement.failed { &measurement.name } else { name(measurement.path) };
        Some(format!("{subject}: {}\n", measurement.why.as_ref()?))
    });
    format!("{TITLE}\n{}{}", table.text(), distinct(missing).concat())
}

fn value(all: &[HostMeasurement], quantity: Quantity, path: Path) -> Option<f64> {
    let found = all.iter().find(|measurement| measurement.quantity == quantity && measurement.path == path)?;
    match quantity {
        Quantity::Bandwidth => found.value,
        Quantity::HalfRttPoll | Quantity::HalfRttSleep => found.value.and_then(round_trips),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_measurement(quantity: Quantity, path: Path, outcome: Result<f64, &str>) -> HostMeasurement {
        let (value, why) = (outcome.ok(), outcome.err().map(str::to_owned));
        HostMeasurement { quantity, path, name: path.name().to_owned(), value, unit: "us", why, failed: false }
    }

    #[test]
    fn shows_rates_and_the_reason_of_a_missing_value() {
        let of = |path, outcome| host_measurement(Quantity::HalfRttSleep, path, outcome);
        let shown = text(&[of(Path::Mx, Ok(25.0)), of(Path::Raw, Ok(20.0)), of(Path::Tcp, Err("no wire"))]);
        let line = shown.lines().find(|line| line.starts_with("MX")).expect("a line");
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["MX", "-", "20.0", "-"]);
        assert!(shown.ends_with("\nTCP: no wire\n"), "{shown}");
    }

    #[test]
    fn prints_a_common_reason_once() {
        let of = |path, why| host_measurement(Quantity::Bandwidth, path, Err(why));
        let all = [of(Path::Mx, "not installed"), of(Path::Raw, "not root"), of(Path::Tcp, "not root")];
        assert_eq!(text(&all), "Between two hosts: not measured: not installed; not root\n");
    }
}
