//! The metrics of verbs.

use isthmus_layout::verbs::BLOCK_NUMBERS;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Verbs;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

impl Verbs {
    /// Adds the metrics of verbs.
    pub(crate) fn metrics(&self, registry: &mut Registry) {
        let Self { numbers, counts, .. } = self;
        let gauges = [
            ("verbs_domains", "Domains that have queue pair numbers", numbers.domains()),
            ("verbs_numbers", "Queue pair numbers that domains have taken", numbers.taken() * BLOCK_NUMBERS as usize),
        ];
        for (name, help, value) in gauges {
            let gauge = Gauge::<i64>::default();
            gauge.set(value as i64);
            registry.register(name, help, gauge);
        }
        let resolved = Counter::<u64>::default();
        resolved.inc_by(counts.resolved);
        registry.register("verbs_resolves", "Queue pair numbers for which a domain was found", resolved);
        let refused = Family::<ReasonLabels, Counter>::default();
        for (reason, count) in &counts.refused {
            refused.get_or_create(&ReasonLabels { reason: reason.name() }).inc_by(*count);
        }
        registry.register("verbs_refused", "Requests about queue pair numbers that were refused, by reason", refused);
    }
}
