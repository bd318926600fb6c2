//! Reports the overlay networks.

use isthmus_config::overlay::EdgeKind;
use isthmus_layout::Refusal;
use isthmus_layout::control::Name;
use isthmus_report::SCHEMA;
use isthmus_report::overlay::{
    OverlayEdgeRow, OverlayInterfaceRow, OverlayLearnedRow, OverlayLoss, OverlayNetworkRow, OverlayReport,
    OverlaySocketRow, OverlayTraffic, OverlayUnknownRow,
};
use isthmus_service::overlay::{OverlayView, PortCounters, UnknownDatagram};
use std::net::IpAddr;

use super::Overlay;
use super::interface::{InterfaceStage, InterfaceState};
use super::network::{EdgeState, NetworkState};
use super::sockets::SocketState;
use crate::report::written::{Finish, finish, hidden, wrong_arguments};
use crate::viewer::{Viewer, not_yours};

/// The number of edges that the report of an unknown datagram names.
const EDGES_SHOWN_MAX: usize = 4;

impl Overlay {
    /// Reports all networks; with the word `table` as the configuration would have them, with `monitor` their traffic matrices. With four
    /// words it explains the way of a frame: of a network, from an interface or edge, with a source and a destination. Networks belong to
    /// the host, so other viewers than root and the daemon's user get their number only.
    pub(crate) fn report(&self, now: u64, viewer: &Viewer, arguments: &[Name]) -> Result<Finish, Refusal> {
        Ok(match arguments {
            [] if !viewer.sees_all() => finish(self.number_only()),
            [_] | [_, _, _, _] if !viewer.sees_all() => return Err(not_yours("overlay networks")),
            [] => finish(self.all(now)),
            [topic] if topic.as_str() == "table" => finish(self.table()),
            [topic] if topic.as_str() == "monitor" => finish(self.monitor(now)),
            [network, from, source, destination] => finish(self.explain(network, from, source, destination)?),
            _ => return Err(wrong_arguments("0, 1 or 4", arguments)),
        })
    }

    fn all(&self, now: u64) -> OverlayReport {
        OverlayReport {
            schema: SCHEMA,
            networks: self.networks.iter().map(|state| network(state, now)).collect(),
            sockets: self.sockets.iter().map(|state| self.socket(state)).collect(),
            hidden: Some(0),
        }
    }

    fn socket(&self, state: &SocketState) -> OverlaySocketRow {
        let last = state.last_unknown().map(|UnknownDatagram { from, vni, at }| OverlayUnknownRow {
            from: from.to_string(),
            vni: (state.kind != EdgeKind::Udp).then_some(vni.number()),
            edges: self.edges_to(from),
            age_ms: u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
        OverlaySocketRow {
            bound: state.bound.to_string(),
            kind: state.kind.as_str().to_owned(),
            refused: losses(state.refused()),
            last_unknown: last,
        }
    }

    /// The edges to an address, with their networks. No more than a line shows.
    fn edges_to(&self, address: IpAddr) -> Vec<String> {
        let edges = self.networks.iter().flat_map(|network| network.edges.iter().map(move |edge| (network, edge)));
        let edges = edges.filter(|(_, edge)| edge.plan.to.ip() == address);
        let text = |(network, edge): (&NetworkState, &EdgeState)| {
            format!(
                "{} (VNI {}) has a {} edge to {}",
                network.name(),
                network.plan.vni(),
                edge.plan.kind.as_str(),
                edge.plan.to
            )
        };
        edges.map(text).take(EDGES_SHOWN_MAX).collect()
    }

    fn number_only(&self) -> OverlayReport {
        let hidden = hidden(self.networks.len(), 0);
        OverlayReport { schema: SCHEMA, networks: Vec::new(), sockets: Vec::new(), hidden }
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
        age_ms: learned.age_ms + shown_ms(&view),
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

/// The age of a view in milliseconds.
fn shown_ms(view: &OverlayView) -> u64 {
    u64::try_from(view.updated_at.elapsed().as_millis()).unwrap_or(u64::MAX >> 1)
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
        heard_ms: served.and_then(|served| served.heard_ms).map(|age_ms| age_ms + shown_ms(view)),
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
