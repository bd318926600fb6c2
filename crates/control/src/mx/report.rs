//! Reports MX boards, their endpoint numbers and links, and the peers that can be reached.

use isthmus_config::MxBoardEntry;
use isthmus_layout::ids::EndpointAddress;
use isthmus_mx::board::{PeerOrigin, PeerReport};
use isthmus_service::{LinkView, MxView};

use super::Mx;
use crate::broker::Broker;
use crate::report::hidden;
use crate::viewer::Viewer;
use isthmus_report::{
    DomainName, MxBoardRow, MxDropped, MxEndpointRow, MxLinkRow, MxNumber, MxPeerRow, MxReport, SCHEMA,
};

impl Mx {
    /// Reports the boards and the peers that can be reached.
    pub(crate) fn report(broker: &Broker, viewer: &Viewer) -> MxReport {
        boards_and_peers(broker, viewer)
    }

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

fn boards_and_peers(broker: &Broker, viewer: &Viewer) -> MxReport {
    let mx = &broker.capabilities.mx;
    let board = |(number, board): (usize, &MxBoardEntry)| {
        let view = mx.view(number).unwrap_or_default();
        let taken = mx.numbers.claims().filter(|(taken, _)| taken.board == number as u32).count();
        let endpoints = endpoints(broker, viewer, number as u32);
        // Links have the names of interfaces of the host.
        let links = view.links.iter().filter(|_| viewer.is_on_host());
        MxBoardRow {
            number: number as u32,
            nic: board.nic.number(),
            mac: board.nic.to_string(),
            name: board.name.clone(),
            endpoints_hidden: hidden(taken, endpoints.len()),
            endpoints,
            endpoints_max: board.endpoints,
            links: links.map(link).collect(),
            dropped: nonzero_counts(view.counters.all_dropped()),
            ignored: nonzero_counts(view.ignored.all()),
            served_endpoints: view.transports as u64,
            remote_peers: view.remote_peers as u64,
            sent_bytes: view.traffic.sent_bytes,
            received_bytes: view.traffic.received_bytes,
            retransmitted: view.traffic.retransmitted,
            rerequested: view.traffic.rerequested,
        }
    };
    let boards = mx.numbers.boards();
    let local = |(number, board): (usize, &MxBoardEntry)| MxPeerRow {
        nic: board.nic.number(),
        mac: board.nic.to_string(),
        name: board.name.clone(),
        origin: PeerOrigin::Local.word().to_owned(),
        board: number as u32,
        link: None,
        last_seen_ms: None,
        restarts: 0,
    };
    let mut peers: Vec<MxPeerRow> = boards.iter().enumerate().map(local).collect();
    for number in 0..boards.len() {
        let Some(view) = mx.view(number) else { continue };
        let others = view.peers.iter().filter(|peer| peer.origin != PeerOrigin::Local && !peer.forgotten);
        // A peer may have several names, and programs may ask for it by any of them.
        peers.extend(
            others.flat_map(|other| names(other).into_iter().map(|name| peer(viewer, number, &view, other, name))),
        );
    }
    MxReport { schema: SCHEMA, boards: boards.iter().enumerate().map(board).collect(), peers }
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

fn link(link: &LinkView) -> MxLinkRow {
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
    }
}

fn nonzero_counts(counts: impl Iterator<Item = (&'static str, u64)>) -> Vec<MxDropped> {
    let occurred = counts.filter(|(_, count)| *count > 0);
    occurred.map(|(reason, count)| MxDropped { reason: reason.to_owned(), count }).collect()
}

fn endpoints(broker: &Broker, viewer: &Viewer, board: u32) -> Vec<MxEndpointRow> {
    let claims = broker.capabilities.mx.numbers.claims().filter(|(number, _)| number.board == board);
    let rows = claims.filter_map(|(number, claim)| {
        let domain = broker.directory.get(claim.at.domain).filter(|domain| viewer.sees_domain(broker, domain))?;
        Some(MxEndpointRow {
            number: number.endpoint,
            domain: DomainName::from(domain),
            index: claim.at.endpoint.number(),
            uid: domain.owner.0,
        })
    });
    rows.collect()
}
