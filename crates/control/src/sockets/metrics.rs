//! The metrics of streams.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Sockets;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

impl Sockets {
    /// Adds the metrics of streams.
    pub(crate) fn metrics(&self, registry: &mut Registry) {
        let gauges = [
            ("streams", "TCP connections with shared memory", self.streams.len()),
            ("stream_programs", "Programs that are attached to streams", self.sessions.len()),
            ("stream_waiting", "Shown sockets that wait for the socket at the other end", self.shown.len()),
        ];
        for (name, help, value) in gauges {
            let gauge = Gauge::<i64>::default();
            gauge.set(value as i64);
            registry.register(name, help, gauge);
        }
        let paired = Counter::<u64>::default();
        paired.inc_by(self.counts.paired);
        registry.register("stream_pairs", "Pairs of shown sockets that became streams", paired);
        let refused = Family::<ReasonLabels, Counter>::default();
        for (reason, count) in &self.counts.refused {
            refused.get_or_create(&ReasonLabels { reason: reason.name() }).inc_by(*count);
        }
        registry.register("stream_refused", "Sockets that got no stream, by reason", refused);
    }
}
