//! Creates reports about the broker's state, as the [`schema`](isthmus_report)'s JSON.

mod config;
pub(crate) mod paths;
pub(crate) mod slices;
pub(crate) mod written;

use std::sync::atomic::Ordering::Relaxed;

use isthmus_layout::Refusal;
use isthmus_layout::control::{Name, Owner, Topic};
use isthmus_layout::ids::{DomainId, EndpointAddress};
use isthmus_layout::reason::Reason;

use crate::broker::Broker;
use crate::core::attachment::Attachment;
use crate::core::types::ControlSessionId;
use crate::directory::DomainEntry;
use crate::metrics;
use crate::mx;
use crate::sockets;
use crate::verbs::{self, Verbs};
use crate::viewer::Viewer;
use isthmus_report::{
    Doctor, DomainName, DomainRow, Domains, EndpointRow, Endpoints, GuestRow, ReasonCount, SCHEMA, StatusReport,
    WorkerRow,
};

use slices::{ReportMaker, Rows, Table, Whole};
use written::{Finish, hidden, json, wrong_arguments};

const NANOSECONDS: u64 = 1_000_000_000;

/// Begins the report on a topic for a connection. It has what the program at the other end may see.
pub(crate) fn begin(
    broker: &Broker,
    asker: ControlSessionId,
    topic: Topic,
    arguments: &[Name],
) -> Result<Box<dyn ReportMaker>, Refusal> {
    let viewer = Viewer::of(&broker.core, asker);
    let maker: Box<dyn ReportMaker> = match topic {
        Topic::Why => match arguments {
            [a, b] => Box::new(Whole::new(paths::why(broker, &viewer, a, b)?)),
            _ => return Err(wrong_arguments("2", arguments)),
        },
        Topic::Verbs => match arguments {
            [] => Box::new(Rows::<verbs::report::DomainTable>::new(viewer)),
            [number] => Box::new(Whole::new(Verbs::queue_pair(broker, &viewer, number)?)),
            _ => return Err(wrong_arguments("0 or 1", arguments)),
        },
        Topic::Overlay => {
            Box::new(Whole::from(broker.capabilities.overlay.report(broker.core.now, &viewer, arguments)?))
        }
        _ if !arguments.is_empty() => return Err(wrong_arguments("no", arguments)),
        Topic::Status => Box::new(Whole::new(status(broker, &viewer))),
        Topic::Domains => Box::new(Rows::<DomainTable>::new(viewer)),
        Topic::Channels => Box::new(Rows::<paths::PairTable>::new(viewer)),
        Topic::Endpoints => Box::new(Rows::<EndpointTable>::new(viewer)),
        Topic::Doctor => {
            let doctor = doctor(broker);
            let finish: Finish = Box::new(move || json(&Doctor { fds: open_fds(), ..doctor }));
            Box::new(Whole::from(finish))
        }
        Topic::Config => Box::new(Whole::new(config::visible(&broker.core.settings.report_facts.config, &viewer))),
        Topic::Metrics => Box::new(Rows::<metrics::MetricsTable>::new(viewer)),
        Topic::Mx => Box::new(Rows::<mx::report::BoardTable>::new(viewer)),
        Topic::Streams => Box::new(Rows::<sockets::report::StreamTable>::new(viewer)),
    };
    Ok(maker)
}

impl From<&DomainEntry> for DomainName {
    fn from(domain: &DomainEntry) -> Self {
        Self { id: domain.id.number(), name: domain.name.to_string() }
    }
}

fn reason_counts(counts: impl Iterator<Item = (Reason, u64)>) -> Vec<ReasonCount> {
    counts.map(|(reason, count)| ReasonCount::new(reason, count)).collect()
}

fn status(broker: &Broker, viewer: &Viewer) -> StatusReport {
    let workers = broker.core.workers.counters().iter().enumerate().map(|(worker, counters)| WorkerRow {
        worker: worker as u32,
        records: counters.records.load(Relaxed),
        bytes: counters.bytes.load(Relaxed),
        bounces: counters.bounces.load(Relaxed),
        queued_bytes: counters.held_bytes.load(Relaxed),
        sleeps: counters.sleeps.load(Relaxed),
        wakeups: counters.wakeups.load(Relaxed),
        faults: reason_counts(counters.faults.iter()),
        drops: reason_counts(counters.drops.iter()),
    });
    let settings = &broker.core.settings;
    let is_on_host = viewer.is_on_host();
    let guests = guests(broker, viewer);
    StatusReport {
        schema: SCHEMA,
        daemon: settings.name.to_string(),
        protocol: settings.versions.version().to_string(),
        pid: if is_on_host { std::process::id() } else { 0 },
        uid: if is_on_host { settings.uid } else { 0 },
        uptime_s: broker.core.now / NANOSECONDS,
        epoch: settings.epoch,
        socket: if is_on_host { settings.report_facts.socket.clone() } else { String::new() },
        wait: settings.report_facts.wait.clone(),
        domains: broker.core.directory.len() as u32,
        domains_max: broker.core.directory.limits().domains as u32,
        domains_resumable: broker.resumable().count() as u32,
        connections: broker.core.session_count() as u32,
        endpoints: broker.core.directory.iter().map(|domain| domain.endpoints.len() as u32).sum(),
        channels: broker.channels.iter().len() as u32,
        workers: workers.collect(),
        guest: viewer.guest().map(Name::to_string),
        guests_hidden: Some((broker.guests().len() - guests.len()) as u32),
        guests: Some(guests),
        loops: Some(broker.loop_rows(|name, uid| viewer.sees_guest(name, Owner(uid)))),
        reasons: reason_counts(broker.core.reason_log.counts().into_iter()),
    }
}

fn guests(broker: &Broker, viewer: &Viewer) -> Vec<GuestRow> {
    let visible = broker.guests().iter().filter(|(name, guest)| viewer.sees_guest(name, Owner(guest.uid)));
    // The sockets, and errors about them, are paths of the host.
    let on_host = |text: &Option<String>| text.clone().filter(|_| viewer.is_on_host());
    let rows = visible.map(|(name, guest)| {
        let is_in_guest = |attachment: &&Attachment| attachment.allocator.guest() == Some(name);
        GuestRow {
            name: name.to_string(),
            uid: guest.uid,
            platform: Some(guest.platform.to_owned()),
            socket: if viewer.is_on_host() { guest.socket.clone() } else { String::new() },
            window_bytes: guest.window_bytes,
            used_bytes: guest.guest_window.as_ref().map(|guest_window| guest_window.window().used()),
            vectors: guest.vectors,
            daemon: guest.daemon,
            state: Some(guest.state(broker.core.now).name().to_owned()),
            last_seen_s: guest.silent_for(broker.core.now).map(|silent_ns| silent_ns / NANOSECONDS),
            keeps_device: guest.device_is_stored(),
            last_error: on_host(&guest.last_error),
            domains: broker.core.attachments.values().filter(is_in_guest).count() as u32,
            monitor: on_host(&guest.monitor),
            pair_window_bytes: Some(guest.pair_window_bytes),
        }
    });
    rows.collect()
}

fn guests_losing_device(broker: &Broker) -> u32 {
    broker.guests().values().filter(|guest| guest.device_is_stored() == Some(false)).count() as u32
}

/// The rows of domains.
enum DomainTable {}

impl Table for DomainTable {
    type Key = DomainId;
    type Row = DomainRow;
    type Report = Domains;

    const SLICE: usize = 32;

    fn next(broker: &Broker, after: Option<&DomainId>) -> Option<DomainId> {
        broker.core.directory.next_after(after.copied())
    }

    fn add(broker: &Broker, viewer: &Viewer, id: &DomainId, rows: &mut Vec<DomainRow>) {
        let domain = broker.core.directory.get(*id).filter(|domain| viewer.sees_domain(&broker.core, domain));
        rows.extend(domain.and_then(|domain| domain_row(broker, domain)));
    }

    fn finish(broker: &Broker, _: &Viewer, rows: Vec<DomainRow>) -> impl FnOnce() -> Domains + Send + 'static + use<> {
        let hidden = hidden(broker.core.directory.len(), rows.len());
        move || Domains { schema: SCHEMA, hidden, domains: rows }
    }
}

fn domain_row(broker: &Broker, domain: &DomainEntry) -> Option<DomainRow> {
    let attachment = broker.core.attachments.get(&domain.id)?;
    let counters = &attachment.counters;
    Some(DomainRow {
        id: domain.id.number(),
        name: domain.name.to_string(),
        uid: domain.owner.0,
        pid: attachment.pid,
        guest: attachment.allocator.guest().map(Name::to_string),
        cgroup: attachment.credentials.cgroup.clone(),
        library: attachment.library.to_string(),
        protocol: attachment.version.to_string(),
        age_s: broker.core.now.saturating_sub(attachment.since) / NANOSECONDS,
        endpoints: domain.endpoints.len() as u32,
        channels: domain.channels().count() as u32,
        channels_max: broker.core.directory.limits().channels as u32,
        ready_maps: domain.ready_maps.len() as u32,
        worker: u32::from(attachment.worker.0),
        daemon_path_sent: counters.sent_records.load(Relaxed),
        daemon_path_sent_bytes: counters.sent_bytes.load(Relaxed),
        daemon_path_received: counters.received_records.load(Relaxed),
        daemon_path_received_bytes: counters.received_bytes.load(Relaxed),
        queued_bytes: counters.held_bytes.load(Relaxed),
        bounces: counters.bounces.load(Relaxed),
        backlog: broker.core.backlog_of(domain.id) as u32,
    })
}

/// The rows of endpoints, those of a domain together.
enum EndpointTable {}

impl Table for EndpointTable {
    type Key = DomainId;
    type Row = EndpointRow;
    type Report = Endpoints;

    const SLICE: usize = 16;

    fn next(broker: &Broker, after: Option<&DomainId>) -> Option<DomainId> {
        broker.core.directory.next_after(after.copied())
    }

    fn add(broker: &Broker, viewer: &Viewer, id: &DomainId, rows: &mut Vec<EndpointRow>) {
        let domain = broker.core.directory.get(*id).filter(|domain| viewer.sees_domain(&broker.core, domain));
        rows.extend(domain.into_iter().flat_map(|domain| {
            domain.endpoints.iter().map(move |(index, label)| EndpointRow {
                domain: DomainName::from(domain),
                index: index.number(),
                label: label.as_ref().map(Name::to_string),
                mx: broker.capabilities.mx.number_row(EndpointAddress { domain: domain.id, endpoint: *index }),
            })
        }));
    }

    fn finish(
        broker: &Broker,
        _: &Viewer,
        rows: Vec<EndpointRow>,
    ) -> impl FnOnce() -> Endpoints + Send + 'static + use<> {
        let all = broker.core.directory.iter().map(|domain| domain.endpoints.len()).sum();
        let hidden = hidden(all, rows.len());
        move || Endpoints { schema: SCHEMA, hidden, endpoints: rows }
    }
}

fn doctor(broker: &Broker) -> Doctor {
    Doctor {
        schema: SCHEMA,
        fds_max: broker.core.settings.fds_max as u64,
        fds: 0, // See `open_fds`.
        nobody_uid: broker.core.settings.overflow_uid,
        domains_without_pid: broker.core.attachments.values().filter(|attachment| attachment.pid.is_none()).count()
            as u32,
        channels_without_counters: broker.channels.iter().filter(|channel| channel.memory.is_none()).count() as u32,
        resumable: broker.core.tickets.is_persistent(),
        guests_losing_device: Some(guests_losing_device(broker)),
    }
}

/// The number of descriptors of this process. The kernel lists all of them.
fn open_fds() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64
}
