//! Reports MX boards, their endpoint numbers and links, and the peers that can be reached.

use isthmus_config::MxBoardEntry;
use isthmus_layout::ids::EndpointAddress;
use isthmus_mx::board::{PeerOrigin, PeerReport};
use isthmus_service::{LinkView, MxView};

use super::Mx;
use crate::broker::Broker;
use crate::report::slices::Table;
use crate::report::written::hidden;
use crate::viewer::Viewer;
use isthmus_report::{
    DomainName, MxBoardRow, MxDropped, MxEndpointRow, MxLinkRow, MxNumber, MxPeerRow, MxReport, SCHEMA,
};

impl Mx {
    /// The endpoint number of an endpoint, for the list of endpoints.
    pub(crate) fn number_row(&self, at: EndpointAddress) -> Option<MxNumber> {
        let number = self.numbers.number_of(at)?;
        Some(MxNumber { board: number.board, endpoint: number.endpoint })
    }

    /// The visible state of a board. None if the board has no links.
    pub(super) fn view(&self, board: usize) -> Option<MxView> {
        let view = self.views.get(board)?.as_ref()?;
        Some(view.lock().ok()?.clone())
    }
}

/// The boards, and the peers that can be reached.
pub(crate) enum BoardTable {}

impl Table for BoardTable {
    type Key = u32;
    type Row = (MxBoardRow, Vec<MxPeerRow>);
    type Report = MxReport;

    const SLICE: usize = 1;

    fn next(broker: &Broker, after: Option<&u32>) -> Option<u32> {
        let next = after.map_or(0, |after| after + 1);
        broker.capabilities.mx.numbers.board(next).map(|_| next)
    }

    fn add(broker: &Broker, viewer: &Viewer, number: &u32, rows: &mut Vec<Self::Row>) {
        let mx = &broker.capabilities.mx;
        let Some(board) = mx.numbers.board(*number) else { return };
        let view = mx.view(*number as usize);
        let others = view.iter().flat_map(|view| view.peers.iter().map(move |peer| (view, peer)));
        let others = others.filter(|(_, peer)| peer.origin != PeerOrigin::Local && !peer.forgotten);
        // A peer may have several names, and programs may ask for it by any of them.
        let peers = others.flat_map(|(view, other)| {
            names(other).into_iter().map(move |name| peer(viewer, *number as usize, view, other, name))
        });
        rows.push((board_row(broker, viewer, *number, board), peers.collect()));
    }

    fn finish(_: &Broker, _: &Viewer, rows: Vec<Self::Row>) -> impl FnOnce() -> MxReport + Send + 'static + use<> {
        move || {
            let (boards, others): (Vec<MxBoardRow>, Vec<Vec<MxPeerRow>>) = rows.into_iter().unzip();
            let peers = boards.iter().map(local_peer).chain(others.into_iter().flatten()).collect();
            MxReport { schema: SCHEMA, boards, peers }
        }
    }
}

fn board_row(broker: &Broker, viewer: &Viewer, number: u32, board: &MxBoardEntry) -> MxBoardRow {
    let mx = &broker.capabilities.mx;
    let view = mx.view(number as usize).unwrap_or_default();
    let endpoints = endpoints(broker, viewer, number);
    // Links have the names of interfaces of the host.
    let links = view.links.iter().filter(|_| viewer.is_on_host());
    MxBoardRow {
        number,
        nic: board.nic.number(),
        mac: board.nic.to_string(),
        name: board.name.clone(),
        endpoints_hidden: hidden(mx.numbers.claims_of(number).count(), endpoints.len()),
        endpoints,
        endpoints_max: board.endpoints,
        links: links.map(|view| link(mx, view)).collect(),
        dropped: nonzero_counts(view.counters.all_dropped()),
        ignored: nonzero_counts(view.ignored.all()),
        served_endpoints: view.transports as u64,
        remote_peers: view.remote_peers as u64,
        sent_bytes: view.traffic.sent_bytes,
        received_bytes: view.traffic.received_bytes,
        retransmitted: view.traffic.retransmitted,
        rerequested: view.traffic.rerequested,
    }
}

/// A board of this host, as one of the peers that can be reached.
fn local_peer(board: &MxBoardRow) -> MxPeerRow {
    MxPeerRow {
        nic: board.nic,
        mac: board.mac.clone(),
        name: board.name.clone(),
        origin: PeerOrigin::Local.word().to_owned(),
        board: board.number,
        link: None,
        last_seen_ms: None,
        restarts: 0,
    }
}

fn names(peer: &PeerReport) -> Vec<String> {
    if peer.names.is_empty() {
        return vec![peer.nic.to_string()];
    }
    peer.names.iter().map(ToString::to_string).collect()
}

fn peer(viewer: &Viewer, board: usize, view: &MxView, peer: &PeerReport, name: String) -> MxPeerRow {
    let chosen = peer.links.iter().find(|way| way.chosen && way.up).filter(|_| viewer.is_on_host());
    let since = u64::try_from(view.updated_at.elapsed().as_millis()).unwrap_or(u64::MAX);
    MxPeerRow {
        nic: peer.nic.number(),
        mac: peer.nic.to_string(),
        name,
        origin: peer.origin.word().to_owned(),
        board: board as u32,
        link: chosen.and_then(|way| Some(view.links.get(usize::from(way.link.0))?.name.clone())),
        last_seen_ms: peer.heard.map(|heard| view.now.since_us(heard) / 1000 + since),
        restarts: peer.restarts,
    }
}

fn link(mx: &Mx, link: &LinkView) -> MxLinkRow {
    MxLinkRow {
        name: link.name.clone(),
        kind: link.kind.to_string(),
        state: if link.broken { "broken".to_owned() } else { link.state.to_string() },
        frame_bytes_max: link.frame_bytes_max,
        sent_frames: link.counters.sent,
        sent_bytes: link.counters.sent_bytes,
        received_frames: link.counters.received,
        received_bytes: link.counters.received_bytes,
        lost: nonzero_counts(link.lost()),
        unresolved: mx.unresolved.of(&link.name),
    }
}

fn nonzero_counts(counts: impl Iterator<Item = (&'static str, u64)>) -> Vec<MxDropped> {
    let occurred = counts.filter(|(_, count)| *count > 0);
    occurred.map(|(reason, count)| MxDropped { reason: reason.to_owned(), count }).collect()
}

fn endpoints(broker: &Broker, viewer: &Viewer, board: u32) -> Vec<MxEndpointRow> {
    let rows = broker.capabilities.mx.numbers.claims_of(board).filter_map(|(number, claim)| {
        let domain =
            broker.core.directory.get(claim.at.domain).filter(|domain| viewer.sees_domain(&broker.core, domain))?;
        Some(MxEndpointRow {
            number: number.endpoint,
            domain: DomainName::from(domain),
            index: claim.at.endpoint.number(),
            uid: domain.owner.0,
        })
    });
    rows.collect()
}
