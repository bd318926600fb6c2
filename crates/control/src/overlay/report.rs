//! Reports the overlay networks.

use isthmus_layout::Refusal;
use isthmus_layout::control::Name;
use isthmus_report::SCHEMA;
use isthmus_report::overlay::{
    OverlayEdgeRow, OverlayInterfaceRow, OverlayLearnedRow, OverlayLoss, OverlayNetworkRow, OverlayReport,
    OverlaySocketRow, OverlayTraffic,
};
use isthmus_service::overlay::{OverlayView, PortCounters};

use super::Overlay;
use super::interface::{InterfaceStage, InterfaceState};
use super::network::{EdgeState, NetworkState};
use super::sockets::SocketState;
use crate::broker::Broker;
use crate::report::slices::{Finish, finish};
use crate::report::{hidden, wrong_arguments};
use crate::viewer::{Viewer, not_yours};

impl Overlay {
    /// Reports all networks; with the word `table` as the configuration would have them, with `monitor` their traffic matrices. With four
    /// words it explains the way of a frame: of a network, from an interface or edge, with a source and a destination. Networks belong to
    /// the host, so other viewers than root and the daemon's user get their number only.
    pub(crate) fn report(broker: &Broker, viewer: &Viewer, arguments: &[Name]) -> Result<Finish, Refusal> {
        let overlay = &broker.capabilities.overlay;
        Ok(match arguments {
            [] if !viewer.sees_all() => finish(overlay.number_only()),
            [_] | [_, _, _, _] if !viewer.sees_all() => return Err(not_yours("overlay networks")),
            [] => finish(overlay.all(broker.now)),
            [topic] if topic.as_str() == "table" => finish(overlay.table()),
            [topic] if topic.as_str() == "monitor" => finish(overlay.monitor(broker.now)),
            [network, from, source, destination] => finish(overlay.explain(network, from, source, destination)?),
            _ => return Err(wrong_arguments("0, 1 or 4", arguments)),
        })
    }

    fn all(&self, now: u64) -> OverlayReport {
        OverlayReport {
            schema: SCHEMA,
            networks: self.networks.iter().map(|state| network(state, now)).collect(),
            sockets: self.sockets.iter().map(socket).collect(),
            hidden: Some(0),
        }
    }

    fn number_only(&self) -> OverlayReport {
        let hidden = hidden(self.networks.len(), 0);
        OverlayReport { schema: SCHEMA, networks: Vec::new(), sockets: Vec::new(), hidden }
    }
}

fn socket(state: &SocketState) -> OverlaySocketRow {
    OverlaySocketRow {
        bound: state.bound.to_string(),
        kind: state.kind.as_str().to_owned(),
        refused: losses(state.refused()),
    }
}

/// The counts that are not 0.
fn losses(counts: impl IntoIterator<Item = (&'static str, u64)>) -> Vec<OverlayLoss> {
    let counts = counts.into_iter().filter(|(_, count)| *count > 0);
    counts.map(|(reason, count)| OverlayLoss { reason: reason.to_owned(), count }).collect()
}

fn network(network: &NetworkState, now: u64) -> OverlayNetworkRow {
    let view = network.view();
    let learned = view.learned.iter().map(|learned| OverlayLearnedRow {
        mac: learned.mac.to_string(),
        vlan: learned.vlan,
        port: network.port_name(learned.port),
        age_ms: learned.age_ms + u64::try_from(view.updated_at.elapsed().as_millis()).unwrap_or(u64::MAX),
    });
    OverlayNetworkRow {
        name: network.name().to_owned(),
        vni: network.plan.vni(),
        learning: network.plan.learning(),
        interfaces: network.interfaces.iter().map(|state| interface(state, &view)).collect(),
        edges: network.edges.iter().map(|state| edge(state, &view)).collect(),
        routes: network.routes().map(|(_, text)| text).collect(),
        learned: learned.collect(),
        warnings: network.warning_rows(now),
    }
}

fn interface(state: &InterfaceState, view: &OverlayView) -> OverlayInterfaceRow {
    let exists = matches!(state.stage, InterfaceStage::Open { .. });
    let served = view.interfaces.iter().find(|served| served.interface == state.key.interface);
    OverlayInterfaceRow {
        name: state.plan.label(),
        mac: state.mac.to_string(),
        mtu: state.mtu,
        exists,
        missing: state.reason.clone().filter(|_| !exists),
        traffic: traffic(&served.map(|served| served.counters).unwrap_or_default()),
    }
}

fn edge(state: &EdgeState, view: &OverlayView) -> OverlayEdgeRow {
    let served = view.edges.iter().find(|served| served.edge == state.id);
    OverlayEdgeRow {
        to: state.plan.to.to_string(),
        kind: state.plan.kind.as_str().to_owned(),
        datagram_bytes: served.and_then(|served| served.datagram_bytes).map(|bytes| bytes as u64),
        traffic: traffic(&served.map(|served| served.counters).unwrap_or_default()),
    }
}

fn traffic(counters: &PortCounters) -> OverlayTraffic {
    OverlayTraffic {
        received: counters.received,
        received_bytes: counters.received_bytes,
        sent: counters.sent,
        sent_bytes: counters.sent_bytes,
        lost: losses(counters.lost.iter()),
    }
}
