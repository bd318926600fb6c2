//! Medians, spreads and latency percentiles of samples.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Two significant digits: percentiles exact to one percent, and small enough to travel between processes.
const DIGITS: u8 = 2;

/// The middle value, or the mean of the two middle ones; `None` of nothing.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(sorted[sorted.len() / 2 - 1], upper))
}

/// The spread of the runs: (largest - smallest) / median. 0.1 means that all runs fit into a tenth of the median.
pub(crate) fn spread(values: &[f64]) -> Option<f64> {
    let middle = median(values)?;
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    let most = values.iter().copied().max_by(f64::total_cmp)?;
    if most == least {
        return Some(0.0);
    }
    (middle != 0.0).then(|| (most - least) / middle)
}

/// Latencies in nanoseconds, as a histogram that can be sent as JSON and merged with others.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

/// A histogram on its way between processes: values and how often each was seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Recorded(Vec<(u64, u64)>);

/// The percentiles that are printed, in the unit of the histogram they came from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        Self(Histogram::new(DIGITS).expect("two digits are a valid precision"))
    }

    pub(crate) fn record(&mut self, ns: u64) {
        self.0.record(ns).expect("a histogram that resizes itself takes any value");
    }

    pub(crate) fn add(&mut self, recorded: &Recorded) {
        for &(value, count) in &recorded.0 {
            self.0.record_n(value, count).expect("a histogram that resizes itself takes any value");
        }
    }

    pub(crate) fn recorded(&self) -> Recorded {
        Recorded(self.0.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect())
    }

    /// The percentiles, each divided by `by` (2 turns round trips into half round trips); `None` if nothing was recorded.
    pub(crate) fn percentiles(&self, by: f64) -> Option<Percentiles> {
        if self.0.is_empty() {
            return None;
        }
        let at = |percentile: f64| self.0.value_at_percentile(percentile) as f64 / by;
        Some(Percentiles { p50: at(50.0), p90: at(90.0), p99: at(99.0), p999: at(99.9), max: self.0.max() as f64 / by })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn spread_is_relative_to_the_median() {
        assert_eq!(spread(&[9.0, 10.0, 12.0]), Some(0.3));
        assert_eq!(spread(&[5.0]), Some(0.0));
        assert_eq!(spread(&[0.0, 0.0]), Some(0.0));
        assert_eq!(spread(&[0.0, 0.0, 1.0]), None);
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn percentiles_survive_the_way_between_processes() {
        let mut near = Latencies::new();
        (1..=1000).for_each(|ns| near.record(ns));
        let text = serde_json::to_string(&near.recorded()).expect("serialises");
        let back: Recorded = serde_json::from_str(&text).expect("parses");
        let mut far = Latencies::new();
        far.add(&back);
        let (a, b) = (near.percentiles(2.0).expect("some"), far.percentiles(2.0).expect("some"));
        assert!((a.p50 - 250.0).abs() <= 3.0, "{a:?}");
        assert!((a.p50 - b.p50).abs() <= 3.0 && (a.p99 - b.p99).abs() <= 5.0, "{a:?} {b:?}");
    }

    #[test]
    fn percentiles_of_an_empty_histogram_are_none() {
        assert_eq!(Latencies::new().percentiles(1.0), None);
    }
}
