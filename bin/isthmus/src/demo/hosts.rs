//! The table of what goes from one host to another: a line for each quantity, MX beside bare frames and TCP.

use isthmus_bench::demo::{HostMeasurement, Path, Quantity};

use super::table::digits;
use crate::output::{Align, Table};

const TITLE: &str =
    "From host to host (two network namespaces, a veth pair of MTU 9000 which cuts as a plain card does)";

/// What is said of a quantity.
const fn describe(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::HalfRttPoll => "half a round trip of 8 bytes, looking without a pause, us",
        Quantity::HalfRttSleep => "half a round trip of 8 bytes, sleeping until woken, us",
        Quantity::Bandwidth => "messages of 1 MiB, one direction, sleeping, GB/s",
    }
}

/// The table, or why there is none.
pub(super) fn text(host_measurements: &[HostMeasurement]) -> String {
    let mut whys: Vec<&str> = host_measurements.iter().filter_map(|measurement| measurement.why.as_deref()).collect();
    whys.dedup();
    if let ([why], true) = (&whys[..], host_measurements.iter().all(|measurement| measurement.value.is_none())) {
        return format!("not measured: from host to host: {why}\n");
    }
    let heads = ["", "mx", "bare frames", "tcp", "mx / frames", "mx / tcp"];
    let alignments = std::iter::once(Align::Left).chain(std::iter::repeat(Align::Right));
    let mut table = Table::new(&heads.into_iter().zip(alignments).collect::<Vec<_>>());
    for quantity in [Quantity::HalfRttPoll, Quantity::HalfRttSleep, Quantity::Bandwidth] {
        let value = |path: Path| {
            host_measurements
                .iter()
                .find(|measurement| measurement.quantity == quantity && measurement.path == path)?
                .value
        };
        let values = [Path::Mx, Path::Raw, Path::Tcp].map(value);
        let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), digits);
        let ratio = |to: Option<f64>| {
            let (ours, theirs) = values[0].zip(to)?;
            (theirs > 0.0).then(|| ours / theirs)
        };
        let numbers = values.into_iter().chain([ratio(values[1]), ratio(values[2])]).map(shown);
        table.row(std::iter::once(describe(quantity).to_owned()).chain(numbers).collect());
    }
    let troubles = host_measurements.iter().filter_map(|measurement| Some((measurement, measurement.why.as_ref()?)));
    let troubles: String =
        troubles.map(|(measurement, why)| format!("not measured: {}: {why}\n", measurement.name)).collect();
    format!("{TITLE}\n{}{troubles}", table.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_measurement(quantity: Quantity, path: Path, outcome: Result<f64, &str>) -> HostMeasurement {
        let (value, why) = (outcome.ok(), outcome.err().map(str::to_owned));
        HostMeasurement { quantity, path, name: path.name().to_owned(), value, unit: "us", why, failed: false }
    }

    #[test]
    fn ratios_are_relative_to_mx_and_missing_values_have_a_reason() {
        let of = |path, outcome| host_measurement(Quantity::HalfRttSleep, path, outcome);
        let shown = text(&[of(Path::Mx, Ok(30.0)), of(Path::Raw, Ok(20.0)), of(Path::Tcp, Err("no wire"))]);
        let line = shown.lines().find(|line| line.contains("sleeping until woken")).expect("a line");
        assert!(line.contains("30.0") && line.contains("1.50") && line.trim_end().ends_with('-'), "{line}");
        assert!(shown.contains("not measured: tcp: no wire"), "{shown}");
    }

    #[test]
    fn common_reason_is_printed_once() {
        let all = [Path::Mx, Path::Raw].map(|path| host_measurement(Quantity::Bandwidth, path, Err("not root")));
        assert_eq!(text(&all), "not measured: from host to host: not root\n");
    }
}
