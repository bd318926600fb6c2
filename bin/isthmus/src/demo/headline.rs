//! The headline of `isthmus try`: one sentence for each capability that compares it with TCP.

use isthmus_bench::demo::{Path, PerftestTime, Point, RedisRates, default_wait};

use super::table::name;
use super::{SIZE_LARGE, SIZE_SMALL};

/// The capabilities that the headline compares with TCP.
const COMPARED: [Path; 2] = [Path::Isthmus, Path::Mx];
const BASELINE: Path = Path::Tcp;

/// Ratios this close to 1 count as equal.
const TOLERANCE: f64 = 0.05;

/// Returns a sentence for each compared path that was measured. Each side waits as it does by default.
pub(super) fn sentences(points: &[Point]) -> Vec<String> {
    let measured = COMPARED.into_iter().filter(|path| points.iter().any(|point| point.path == *path));
    measured.map(|path| sentence(points, path)).collect()
}

/// Returns the sentence about Redis, if it was measured.
pub(super) fn redis_sentence(rates: &RedisRates) -> Option<String> {
    let ratio = rates.sockets.requests_per_s? / rates.tcp.requests_per_s?;
    Some(format!("Sockets: redis-benchmark, GET: {}.", compare(Some(ratio))))
}

/// Returns the sentence about RDMA programs, if they were measured. The time of TCP is half a round trip in microseconds.
pub(super) fn perftest_sentence(times: &[PerftestTime], tcp: Option<f64>) -> Option<String> {
    let fastest = times.iter().find(|time| time.half_rtt_us.is_some())?;
    let ratio = tcp? / fastest.half_rtt_us?;
    Some(format!("Verbs: {}, 8 bytes: {}.", fastest.program, compare(Some(ratio))))
}

fn sentence(points: &[Point], path: Path) -> String {
    let point = |path, size| {
        points.iter().find(|point| point.path == path && point.size == size && point.wait == default_wait(path))
    };
    let both =
        |size, value: fn(&Point) -> Option<f64>| Some((value(point(path, size)?)?, value(point(BASELINE, size)?)?));
    let small = both(SIZE_SMALL, |point| point.half_rtt_us).map(|(ours, tcp)| tcp / ours);
    let large = both(SIZE_LARGE, |point| point.bandwidth_gb_s).map(|(ours, tcp)| ours / tcp);
    format!("{}: 8 bytes: {}; 1 MiB: {}.", name(path), compare(small), compare(large))
}

/// Says what a ratio of speeds means.
fn compare(speed_ratio: Option<f64>) -> String {
    let Some(ratio) = speed_ratio.filter(|ratio| ratio.is_finite() && *ratio > 0.0) else {
        return "not measured".to_owned();
    };
    if (ratio - 1.0).abs() <= TOLERANCE {
        "as fast as TCP".to_owned()
    } else if ratio > 1.0 {
        format!("{} × faster than TCP", short(ratio))
    } else {
        format!("{} × slower than TCP", short(1.0 / ratio))
    }
}

/// Two significant digits: `1.4`, `13`, `120`.
fn short(ratio: f64) -> String {
    if ratio >= 10.0 { format!("{ratio:.0}") } else { format!("{ratio:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_slower_when_the_ratio_is_below_one() {
        let said = [Some(45.2), Some(9.44), Some(1.04), Some(0.5), Some(f64::NAN), None].map(compare);
        let expected = [
            "45 × faster than TCP",
            "9.4 × faster than TCP",
            "as fast as TCP",
            "2.0 × slower than TCP",
            "not measured",
            "not measured",
        ];
        assert_eq!(said, expected);
    }
}
