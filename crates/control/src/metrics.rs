//! The daemon's counters in Prometheus' text format. They are read at each request from where they are counted; nothing is copied in
//! between.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use isthmus_layout::ids::{ChannelId, DomainId};
use isthmus_layout::reason::Reason;
use isthmus_report::{DirectionRow, MetricsText, SCHEMA};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::broker::Broker;
use crate::directory::DomainEntry;
use crate::report::paths::directions;
#[cfg(test)]
use crate::report::slices::Rows;
use crate::report::slices::Table;
use crate::viewer::Viewer;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WorkerLabels {
    worker: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct DomainLabels {
    domain: u32,
    name: String,
}

/// All metrics. Those of domains, interfaces and networks are the ones that the viewer sees. Each domain and each channel is a key.
pub(crate) enum MetricsTable {}

/// A domain or a channel.
pub(crate) enum MetricsKey {
    Domain(DomainId),
    Channel(ChannelId),
}

/// The counts of a domain, or of a direction of a channel.
pub(crate) enum MetricsRow {
    /// In the order of [`DOMAIN_COUNTERS`].
    Domain(DomainLabels, [u64; DOMAIN_COUNTERS.len()]),
    /// With the domain that sends, if the viewer sees it.
    Direction(Option<DomainLabels>, Box<DirectionRow>),
}

impl Table for MetricsTable {
    type Key = MetricsKey;
    type Row = MetricsRow;
    type Report = MetricsText;

    const SLICE: usize = 32;

    fn next(broker: &Broker, after: Option<&MetricsKey>) -> Option<MetricsKey> {
        let first_channel = || Some(MetricsKey::Channel(broker.channels.next_after(None)?));
        let next_domain =
            |after| broker.core.directory.next_after(after).map(MetricsKey::Domain).or_else(first_channel);
        match after {
            None => next_domain(None),
            Some(MetricsKey::Domain(id)) => next_domain(Some(*id)),
            Some(MetricsKey::Channel(id)) => broker.channels.next_after(Some(*id)).map(MetricsKey::Channel),
        }
    }

    fn add(broker: &Broker, viewer: &Viewer, key: &MetricsKey, rows: &mut Vec<MetricsRow>) {
        let visible = |id| broker.core.directory.get(id).filter(|domain| viewer.sees_domain(&broker.core, domain));
        let labels = |domain: &DomainEntry| DomainLabels { domain: domain.id.number(), name: domain.name.to_string() };
        match key {
            MetricsKey::Domain(id) => {
                if let Some((domain, attachment)) = visible(*id).zip(broker.core.attachments.get(id)) {
                    let counts = DOMAIN_COUNTERS.map(|(.., field)| field(&attachment.counters).load(Relaxed));
                    rows.push(MetricsRow::Domain(labels(domain), counts));
                }
            }
            MetricsKey::Channel(id) => rows.extend(directions(broker, *id).map(|row| {
                MetricsRow::Direction(DomainId::new(row.from).and_then(visible).map(labels), Box::new(row))
            })),
        }
    }

    fn finish(
        broker: &Broker,
        viewer: &Viewer,
        rows: Vec<MetricsRow>,
    ) -> impl FnOnce() -> MetricsText + Send + 'static + use<> {
        let mut registry = Registry::with_prefix("isthmus");
        add_gauges(broker, &mut registry);
        let help = "Processor time of each turn of the control thread, for which all users wait";
        registry.register_with_unit("control_turn", help, Unit::Seconds, broker.turns.histogram());
        add_reasons(broker, &mut registry);
        add_workers(broker, &mut registry);
        broker.capabilities.metrics(viewer, &mut registry);
        move || {
            add_domains(&rows, &mut registry);
            add_accesses(&rows, &mut registry);
            let mut text = String::new();
            let encoded = encode(&mut text, &registry);
            let text = encoded.map_or_else(|error| format!("# {error}\n"), |()| text); // Writing to a string does not fail.
            MetricsText { schema: SCHEMA, text }
        }
    }
}

/// Returns all metrics as text.
#[cfg(test)]
pub(crate) fn text(broker: &Broker, viewer: &Viewer) -> String {
    let mut rows = Rows::<MetricsTable>::new(viewer.clone());
    loop {
        if let Some(finish) = rows.step(broker) {
            return finish().text;
        }
    }
}

fn add_gauges(broker: &Broker, registry: &mut Registry) {
    let endpoints: usize = broker.core.directory.iter().map(|domain| domain.endpoints.len()).sum();
    let gauges = [
        ("domains", "Attached domains", broker.core.directory.len()),
        ("connections", "Connections to the control socket", broker.core.session_count()),
        ("endpoints", "Open endpoints", endpoints),
        ("channels", "Channels between domains", broker.channels.iter().len()),
    ];
    let undelivered = Counter::<u64>::default();
    undelivered.inc_by(broker.core.reason_log.undelivered_messages);
    let help = "Messages that domains left behind after their sends were over";
    registry.register("undelivered_messages", help, undelivered);
    for (name, help, value) in gauges {
        let gauge = Gauge::<i64>::default();
        gauge.set(value as i64);
        registry.register(name, help, gauge);
    }
}

fn reason_labels(reason: Reason) -> ReasonLabels {
    ReasonLabels { reason: reason.name(), kind: reason.kind().name() }
}

fn add_reasons(broker: &Broker, registry: &mut Registry) {
    let control = Family::<ReasonLabels, Counter>::default();
    for (reason, count) in broker.core.reason_log.counts() {
        control.get_or_create(&reason_labels(reason)).inc_by(count);
    }
    registry.register("control_reasons", "Refusals, faults and ends on the control socket", control);
    let (faults, drops) = (Family::<ReasonLabels, Counter>::default(), Family::<ReasonLabels, Counter>::default());
    for counters in broker.core.workers.counters() {
        for (reason, count) in counters.faults.iter() {
            faults.get_or_create(&reason_labels(reason)).inc_by(count);
        }
        for (reason, count) in counters.drops.iter() {
            drops.get_or_create(&reason_labels(reason)).inc_by(count);
        }
    }
    registry.register("ring_violations", "Domains cut off because of what they wrote into their ring", faults);
    registry.register("ring_drops", "Records on the daemon path without a receiver", drops);
}

fn add_workers(broker: &Broker, registry: &mut Registry) {
    type Field = fn(&isthmus_service::WorkerCounters) -> &AtomicU64;
    let counters: [(&str, &str, Field); 6] = [
        ("worker_records", "Records moved on the daemon path", |counters| &counters.records),
        ("worker_bytes", "Message bytes moved on the daemon path", |counters| &counters.bytes),
        ("worker_credits", "Credits passed on", |counters| &counters.credits),
        ("worker_bounces", "Messages answered with a bounce", |counters| &counters.bounces),
        ("worker_sleeps", "Times the worker went to sleep", |counters| &counters.sleeps),
        ("worker_wakeups", "Times a doorbell woke the worker", |counters| &counters.wakeups),
    ];
    for (name, help, field) in counters {
        let family = Family::<WorkerLabels, Counter>::default();
        for (worker, counters) in broker.core.workers.counters().iter().enumerate() {
            family.get_or_create(&WorkerLabels { worker: worker as u32 }).inc_by(field(counters).load(Relaxed));
        }
        registry.register(name, help, family);
    }
    let held_bytes = Family::<WorkerLabels, Gauge>::default();
    for (worker, counters) in broker.core.workers.counters().iter().enumerate() {
        held_bytes.get_or_create(&WorkerLabels { worker: worker as u32 }).set(counters.held_bytes.load(Relaxed) as i64);
    }
    registry.register("worker_queued_bytes", "Bytes held for domains that are slow to read", held_bytes);
}

type DomainField = fn(&isthmus_service::DomainCounters) -> &AtomicU64;

/// The counters of a domain, each with its name and its help.
const DOMAIN_COUNTERS: [(&str, &str, DomainField); 5] = [
    ("domain_sent_records", "Records sent by the daemon path", |counters| &counters.sent_records),
    ("domain_sent_bytes", "Message bytes sent by the daemon path", |counters| &counters.sent_bytes),
    ("domain_received_records", "Records received by the daemon path", |counters| &counters.received_records),
    ("domain_received_bytes", "Message bytes received by the daemon path", |counters| &counters.received_bytes),
    ("domain_bounces", "Messages without a receiver", |counters| &counters.bounces),
];

fn add_domains(rows: &[MetricsRow], registry: &mut Registry) {
    for (at, (name, help, _)) in DOMAIN_COUNTERS.iter().enumerate() {
        let family = Family::<DomainLabels, Counter>::default();
        for row in rows {
            if let MetricsRow::Domain(labels, counts) = row {
                family.get_or_create(labels).inc_by(counts[at]);
            }
        }
        registry.register(*name, *help, family);
    }
}

/// Adds what the ends of channels count of accesses to each other's memory. A channel that has ended takes its counts with it, so these are
/// gauges.
fn add_accesses(rows: &[MetricsRow], registry: &mut Registry) {
    type Field = fn(&DirectionRow) -> Option<u64>;
    let gauges: [(&str, &str, Field); 3] = [
        ("domain_direct_accesses", "Accesses to memory of peers, made in that memory itself", |row| row.direct),
        ("domain_served_accesses", "Accesses of peers that this domain performed at their request", |row| row.served),
        ("domain_refused_accesses", "Requests of peers for memory that they may not access", |row| row.refused),
    ];
    let directions = || {
        rows.iter().filter_map(|row| match row {
            MetricsRow::Direction(labels, row) => Some((labels, row)),
            MetricsRow::Domain(..) => None,
        })
    };
    for (name, help, field) in gauges {
        let family = Family::<DomainLabels, Gauge>::default();
        for (labels, row) in directions() {
            if let (Some(labels), Some(count)) = (labels, field(row).filter(|count| *count > 0)) {
                family.get_or_create(labels).inc_by(count as i64);
            }
        }
        registry.register(name, help, family);
    }
    let assisted = Family::<ReasonLabels, Gauge>::default();
    for reason in directions().filter_map(|(_, row)| Reason::from_code(row.assisted.as_ref()?.code)) {
        assisted.get_or_create(&reason_labels(reason)).inc();
    }
    let help = "Directions of channels in which an access to memory needed its owner's help, by the last reason";
    registry.register("channel_assisted", help, assisted);
}
