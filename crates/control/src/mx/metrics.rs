//! The metrics of MX: endpoint numbers; of boards with links also links, frames, packets and endpoints.

use isthmus_service::{LinkView, MxView};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Mx;
use crate::viewer::Viewer;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BoardLabels {
    board: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BoardReasonLabels {
    board: u32,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LinkLabels {
    board: u32,
    link: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LinkReasonLabels {
    board: u32,
    link: String,
    reason: &'static str,
}

/// The boards that have links.
struct LinkedBoards(Vec<(u32, MxView)>);

impl LinkedBoards {
    fn links(&self) -> impl Iterator<Item = (u32, &LinkView)> {
        self.0.iter().flat_map(|(board, view)| view.links.iter().map(|link| (*board, link)))
    }
}

impl Mx {
    /// Adds the metrics of MX.
    pub(crate) fn metrics(&self, viewer: &Viewer, registry: &mut Registry) {
        add_all(self, viewer, registry);
    }
}

fn add_all(mx: &Mx, viewer: &Viewer, registry: &mut Registry) {
    let taken = Gauge::<i64>::default();
    taken.set(mx.numbers.claims().len() as i64);
    registry.register("mx_endpoints", "MX endpoint numbers that are taken", taken);
    let numbers = 0..mx.numbers.boards().len();
    let views = numbers.filter_map(|number| Some((number as u32, mx.view(number)?)));
    let boards = LinkedBoards(views.collect());
    if boards.0.is_empty() {
        return;
    }
    // Links have the names of interfaces of the host.
    if viewer.is_on_host() {
        add_links(&boards, registry);
    }
    add_reasons(&boards, registry);
    add_endpoints(&boards, registry);
    let connects = Gauge::<i64>::default();
    connects.set(mx.connects.len() as i64);
    registry.register("mx_pending_connects", "Connects to other hosts without an answer", connects);
}

fn add_links(boards: &LinkedBoards, registry: &mut Registry) {
    type Field = fn(&LinkView) -> u64;
    let counters: [(&str, &str, Field); 4] = [
        ("mx_link_sent_frames", "Frames sent by a link of an MX board", |link| link.counters.sent),
        ("mx_link_sent_bytes", "Their bytes", |link| link.counters.sent_bytes),
        ("mx_link_received_frames", "Frames that came by a link of an MX board", |link| link.counters.received),
        ("mx_link_received_bytes", "Their bytes", |link| link.counters.received_bytes),
    ];
    for (name, help, field) in counters {
        let family = Family::<LinkLabels, Counter>::default();
        for (board, link) in boards.links() {
            family.get_or_create(&LinkLabels { board, link: link.name.clone() }).inc_by(field(link));
        }
        registry.register(name, help, family);
    }
    let lost = Family::<LinkReasonLabels, Counter>::default();
    for (board, link) in boards.links() {
        for (reason, count) in link.lost() {
            lost.get_or_create(&LinkReasonLabels { board, link: link.name.clone(), reason }).inc_by(count);
        }
    }
    registry.register("mx_link_lost", "Frames that a link lost, and times that it could not send", lost);
}

fn add_reasons(boards: &LinkedBoards, registry: &mut Registry) {
    let (dropped, ignored) =
        (Family::<BoardReasonLabels, Counter>::default(), Family::<BoardReasonLabels, Counter>::default());
    for &(board, ref view) in &boards.0 {
        for (reason, count) in view.counters.all_dropped() {
            dropped.get_or_create(&BoardReasonLabels { board, reason }).inc_by(count);
        }
        for (reason, count) in view.ignored.all() {
            ignored.get_or_create(&BoardReasonLabels { board, reason }).inc_by(count);
        }
    }
    registry.register("mx_dropped", "Frames that an MX board dropped", dropped);
    registry.register("mx_ignored", "Packets that changed nothing at an MX endpoint", ignored);
}

fn add_endpoints(boards: &LinkedBoards, registry: &mut Registry) {
    type Field = fn(&MxView) -> u64;
    let counters: [(&str, &str, Field); 4] = [
        ("mx_sent_bytes", "Message bytes sent to other hosts, those sent again among them", |view| {
            view.traffic.sent_bytes
        }),
        ("mx_received_bytes", "Message bytes from other hosts", |view| view.traffic.received_bytes),
        ("mx_retransmits", "Packets that were sent again", |view| view.traffic.retransmitted),
        ("mx_pull_rerequests", "Frames that were asked for again", |view| view.traffic.rerequested),
    ];
    for (name, help, field) in counters {
        let family = Family::<BoardLabels, Counter>::default();
        for &(board, ref view) in &boards.0 {
            family.get_or_create(&BoardLabels { board }).inc_by(field(view));
        }
        registry.register(name, help, family);
    }
    let gauges: [(&str, &str, Field); 3] = [
        ("mx_served_endpoints", "Endpoints that an MX board serves on the wire", |view| view.transports as u64),
        ("mx_remote_peers", "Endpoints of other hosts that they know", |view| view.remote_peers as u64),
        ("mx_peers", "Boards that an MX board knows", |view| view.peers.len() as u64),
    ];
    for (name, help, field) in gauges {
        let family = Family::<BoardLabels, Gauge>::default();
        for &(board, ref view) in &boards.0 {
            family.get_or_create(&BoardLabels { board }).set(field(view) as i64);
        }
        registry.register(name, help, family);
    }
}
