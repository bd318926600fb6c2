//! The metrics of overlay networks.

use isthmus_service::overlay::PortCounters;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::interface::InterfaceStage;
use super::{Overlay, monitor};
use isthmus_overlay::{PairCount, Port};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PortLabels {
    network: String,
    port: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LossLabels {
    network: String,
    port: String,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PairLabels {
    network: String,
    source: String,
    destination: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RefusalLabels {
    socket: String,
    reason: &'static str,
}

/// The number of pairs of each network in the metrics: those with the most bytes.
const PAIRS: usize = 32;

/// A count of a port, with its name and help.
type PortCount = (&'static str, &'static str, fn(&PortCounters) -> u64);

const COUNTS: [PortCount; 4] = [
    ("overlay_received_frames", "Frames that came from an interface or edge", |counters| counters.received),
    ("overlay_received_bytes", "Bytes in frames that came from an interface or edge", |counters| {
        counters.received_bytes
    }),
    ("overlay_sent_frames", "Frames that left by an interface or edge", |counters| counters.sent),
    ("overlay_sent_bytes", "Bytes in frames that left by an interface or edge", |counters| counters.sent_bytes),
];

impl Overlay {
    /// Adds the metrics of the overlay.
    pub(crate) fn metrics(&self, registry: &mut Registry) {
        if self.networks.is_empty() {
            return;
        }
        let missing = self.interfaces().filter(|interface| !matches!(interface.stage, InterfaceStage::Open { .. }));
        let gauge = Gauge::<i64>::default();
        gauge.set(missing.count() as i64);
        registry.register("overlay_missing_interfaces", "Interfaces of overlay networks that do not exist", gauge);
        let counts = COUNTS.map(|_| Family::<PortLabels, Counter>::default());
        let lost = Family::<LossLabels, Counter>::default();
        for state in &self.networks {
            let view = state.view();
            let interfaces = view.interfaces.iter().map(|served| (Port::Interface(served.interface), &served.counters));
            let edges = view.edges.iter().map(|served| (Port::Edge(served.edge), &served.counters));
            for (port, counters) in interfaces.chain(edges) {
                let labels = PortLabels { network: state.name().to_owned(), port: state.port_name(port) };
                for (family, (_, _, count)) in counts.iter().zip(COUNTS) {
                    family.get_or_create(&labels).inc_by(count(counters));
                }
                for (reason, count) in counters.lost.iter().filter(|(_, count)| *count > 0) {
                    let PortLabels { network, port } = labels.clone();
                    lost.get_or_create(&LossLabels { network, port, reason }).inc_by(count);
                }
            }
        }
        for (family, (name, help, _)) in counts.into_iter().zip(COUNTS) {
            registry.register(name, help, family);
        }
        self.pair_metrics(registry);
        let refused = Family::<RefusalLabels, Counter>::default();
        for socket in self.sockets.iter() {
            for (reason, count) in socket.refused() {
                let bound = socket.bound.to_string();
                refused.get_or_create(&RefusalLabels { socket: bound, reason }).inc_by(count);
            }
        }
        registry.register("overlay_refused_datagrams", "Received datagrams that belong to no edge, by reason", refused);
        registry.register("overlay_lost_frames", "Frames that were lost at an interface or edge, by reason", lost);
    }

    /// Adds the traffic matrix. The number of pairs is bounded, because guests choose their addresses.
    fn pair_metrics(&self, registry: &mut Registry) {
        let [frames, bytes] = [(); 2].map(|()| Family::<PairLabels, Counter>::default());
        for state in &self.networks {
            let mut pairs = state.view().pairs;
            monitor::sort(&mut pairs);
            for PairCount { source, destination, count } in pairs.into_iter().take(PAIRS) {
                let network = state.name().to_owned();
                let labels = PairLabels { network, source: source.to_string(), destination: destination.to_string() };
                frames.get_or_create(&labels).inc_by(count.frames);
                bytes.get_or_create(&labels).inc_by(count.bytes);
            }
        }
        let text = "from one address to another; the pairs with the most bytes";
        registry.register("overlay_pair_frames", format!("Forwarded frames {text}"), frames);
        registry.register("overlay_pair_bytes", format!("Bytes in forwarded frames {text}"), bytes);
    }
}
