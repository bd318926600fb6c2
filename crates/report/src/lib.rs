//! The daemon's reports as JSON types, which the daemon fills and tools read.
//!
//! Each report carries the number of its schema. A field may be added within a number; a field that changes or goes raises it.
#![forbid(unsafe_code)]

use isthmus_layout::reason::Reason;
use serde::{Deserialize, Serialize};

/// The version number of the schema described here.
pub const SCHEMA: u32 = 1;

/// The characters of the identifier that a container runtime gives to a container.
const CONTAINER_ID_CHARS: usize = 64;

/// Returns the beginning of a cgroup's path that ends with the name of a container, and that name's identifier, if it has one. None if no part
/// of the path is the name of a container. The innermost container counts.
pub fn container_of_cgroup(path: &str) -> Option<(&str, Option<&str>)> {
    let is_id = |word: &&str| word.len() == CONTAINER_ID_CHARS && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]).collect::<Vec<_>>();
    while let Some(end) = ends.pop() {
        let part = &path[..end][path[..end].rfind('/').map_or(0, |slash| slash + 1)..];
        let id = part.split(['-', '.']).find(is_id);
        if id.is_some() || part.starts_with("lxc.payload.") || part.starts_with("systemd-nspawn@") {
            return Some((&path[..end], id));
        }
    }
    None
}

macro_rules! reports {
    ($($(#[doc = $doc:literal])* $name:ident { $($(#[doc = $field_doc:literal])* $field:ident: $type:ty,)* })*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name {
            $($(#[doc = $field_doc])* pub $field: $type,)*
        }
    )*};
}

mod mx;
pub mod overlay;
mod sockets;
mod verbs;
pub use mx::{MxBoardRow, MxDropped, MxEndpointRow, MxLinkRow, MxNumber, MxPeerRow, MxReport};
pub use sockets::{EndedStreamsRow, StreamEndRow, StreamRow, StreamSocketRow, StreamsReport};
pub use verbs::{
    QueuePairPeer, QueuePairProgram, QueuePairReport, VerbsBlockRow, VerbsDomainRow, VerbsGidRow, VerbsReport,
};

reports! {
    /// An entry of the reason table.
    ReasonRow {
        /// Identifier of the reason.
        reason: String,
        /// Numeric code of the reason.
        code: u16,
        /// `refusal`, `fallback`, `fault` or `ended`.
        kind: String,
        /// Summary of what happened.
        summary: String,
        /// Remedy for the operator.
        remedy: String,
    }

    /// The number and name of a domain, in the report of another object.
    DomainName {
        /// Number of the domain.
        id: u32,
        /// Name of the domain.
        name: String,
    }

    /// The number of occurrences of a reason.
    ReasonCount {
        /// Identifier of the reason.
        reason: String,
        /// Kind of the reason, as in [`ReasonRow::kind`].
        kind: String,
        /// Number of occurrences.
        count: u64,
    }

    /// The counters of a worker.
    WorkerRow {
        /// Number of the worker.
        worker: u32,
        /// Records moved from one domain to another.
        records: u64,
        /// Message bytes in these records.
        bytes: u64,
        /// Messages that could not be delivered and were bounced to their sender.
        bounces: u64,
        /// Bytes held for domains that are slow to read.
        queued_bytes: u64,
        /// Number of times the worker went to sleep.
        sleeps: u64,
        /// Number of times a doorbell woke the worker.
        wakeups: u64,
        /// Domains disconnected for a protocol violation, by reason.
        faults: Vec<ReasonCount>,
        /// Records dropped, by reason.
        drops: Vec<ReasonCount>,
    }

    /// The report of `isthmus status`.
    StatusReport {
        /// Schema number, see [`SCHEMA`].
        schema: u32,
        /// The daemon's name and version.
        daemon: String,
        /// The newest control protocol that the daemon speaks.
        protocol: String,
        /// The daemon's process ID; 0 for programs of guests.
        pid: u32,
        /// The user ID that the daemon runs as; 0 for programs of guests.
        uid: u32,
        /// Seconds since the daemon started.
        uptime_s: u64,
        /// A number that differs for each start of the daemon.
        epoch: u64,
        /// Path of the daemon's socket; empty for programs of guests.
        socket: String,
        /// Wait strategy of the workers.
        wait: String,
        /// Number of attached domains.
        domains: u32,
        /// Maximum number of domains.
        domains_max: u32,
        /// Domains of the previous daemon that have not resumed yet.
        domains_resumable: u32,
        /// Number of connections, including those that are not attached as a domain.
        connections: u32,
        /// Number of open endpoints.
        endpoints: u32,
        /// Number of channels.
        channels: u32,
        /// The workers.
        workers: Vec<WorkerRow>,
        /// Name of the guest that the asker is a program of; none on the host of the daemon.
        guest: Option<String>,
        /// The guests in the configuration.
        guests: Option<Vec<GuestRow>>,
        /// Number of guests that are not listed, because the asker may not see them.
        guests_hidden: Option<u32>,
        /// Interfaces of guests that may exchange packets through shared memory, then the pairs that have tried.
        loops: Option<Vec<LoopRow>>,
        /// Refusals, faults and ended connections on the control socket, by reason.
        reasons: Vec<ReasonCount>,
    }

    /// An interface of a guest that may exchange packets through shared memory, or two guests that have tried.
    LoopRow {
        /// Name of the guest.
        guest: String,
        /// The network, as in the configuration.
        network: String,
        /// MAC address of the guest's interface.
        mac: String,
        /// Name of the other guest; none in the row of an interface.
        peer: Option<String>,
        /// MAC address of the other guest's interface.
        peer_mac: Option<String>,
        /// `shared memory` or `bridge`; none in the row of an interface that is ready.
        path: Option<String>,
        /// The reason why packets take the bridge.
        why: Option<String>,
    }

    /// A guest.
    GuestRow {
        /// Name of the guest.
        name: String,
        /// The user ID that the guest's domains belong to.
        uid: u32,
        /// `kvm` or `xen`.
        platform: Option<String>,
        /// Path of the socket at which QEMU finds the guest's device. For a Xen guest: its path in XenStore, once it is known.
        socket: String,
        /// Size of the guest's window in bytes; for a Xen guest the maximum size.
        window_bytes: u64,
        /// Allocated bytes of the window; none while the guest has no device, or has not granted a window.
        used_bytes: Option<u64>,
        /// Number of vectors of the guest's device, or of doorbells toward the guest.
        vectors: u16,
        /// True if the guest daemon is connected.
        daemon: bool,
        /// `no device`, `waiting for guest daemon`, `not responding` (no heartbeat for a while) or `attached`.
        state: Option<String>,
        /// Seconds since the guest daemon was last heard.
        last_seen_s: Option<u64>,
        /// True if the guest keeps its device when this daemon is restarted; none for guests that have no device.
        keeps_device: Option<bool>,
        /// The error of the last failed connection for the guest's device; none after a later connection succeeded.
        last_error: Option<String>,
        /// Number of the guest's domains.
        domains: u32,
        /// The guest's monitor; none if none is configured.
        monitor: Option<String>,
        /// Bytes of a pair window that the guest shares with another guest.
        pair_window_bytes: Option<u64>,
    }

    /// The report of `isthmus domain list`.
    Domains {
        /// Schema number, see [`SCHEMA`].
        schema: u32,
        /// The domains, ordered by number.
        domains: Vec<DomainRow>,
        /// Number of domains that are not listed, because the asker may not see them.
        hidden: Option<u32>,
    }

    /// A domain.
    DomainRow {
        /// Number of the domain.
        id: u32,
        /// Name of the domain.
        name: String,
        /// The user ID that the domain belongs to.
        uid: u32,
        /// The domain's process ID, if the daemon can see it.
        pid: Option<i32>,
        /// The guest that the domain runs in; none for this host.
        guest: Option<String>,
        /// The cgroup in which the domain's process was when it attached, if the daemon knows it.
        cgroup: Option<String>,
        /// Name that the domain's library reports.
        library: String,
        /// The control protocol spoken with the domain.
        protocol: String,
        /// Seconds since the domain attached.
        age_s: u64,
        /// Number of open endpoints.
        endpoints: u32,
        /// Number of channels.
        channels: u32,
        /// Maximum number of channels.
        channels_max: u32,
        /// Number of the domain's ready maps.
        ready_maps: u32,
        /// Number of the worker that serves the domain ring.
        worker: u32,
        /// Records that the domain sent on the daemon path.
        daemon_path_sent: u64,
        /// Message bytes in the sent records.
        daemon_path_sent_bytes: u64,
        /// Records that the domain received on the daemon path.
        daemon_path_received: u64,
        /// Message bytes in the received records.
        daemon_path_received_bytes: u64,
        /// Bytes queued for the domain.
        queued_bytes: u64,
        /// Messages of the domain that could not be delivered.
        bounces: u64,
        /// Control messages that the domain has not read yet.
        backlog: u32,
    }

    /// The report of `isthmus endpoint list`.
    Endpoints {
        /// Schema number, see [`SCHEMA`].
        schema: u32,
        /// The endpoints, ordered by domain and index.
        endpoints: Vec<EndpointRow>,
        /// Number of endpoints that are not listed, because the asker may not see them.
        hidden: Option<u32>,
    }

    /// An endpoint.
    EndpointRow {
        /// The domain that has the endpoint.
        domain: DomainName,
        /// Index of the endpoint in its domain.
        index: u8,
        /// Purpose of the endpoint, as its program states it.
        label: Option<String>,
        /// The endpoint's MX endpoint number, if it has one.
        mx: Option<MxNumber>,
    }

    /// The report of `isthmus channel list`: the pairs that have a channel, and those that asked for one and have none.
    Channels {
        /// Schema number, see [`SCHEMA`].
        schema: u32,
        /// The pairs, ordered by the lower of the two numbers.
        pairs: Vec<PairRow>,
        /// Number of pairs that are not listed, because the asker may not see them.
        hidden: Option<u32>,
    }

    /// A pair of domains.
    PairRow {
        /// The domain with the lower number.
        a: DomainName,
        /// The other domain.
        b: DomainName,
        /// Path between the two: `channel`, `daemon` or `none`.
        path: String,
        /// The reason why the path is not a channel.
        reason: Option<ReasonRow>,
        /// The channel, if there is one.
        channel: Option<ChannelRow>,
    }

    /// A channel.
    ChannelRow {
        /// Number of the channel.
        id: String,
        /// `offered` if the listener has not answered yet, or `open`.
        state: String,
        /// The domain that requested the channel.
        connector: u32,
        /// Seconds since the channel was made or taken over.
        age_s: u64,
        /// Bytes of each slab.
        slab_bytes: u32,
        /// Bytes of memory that the channel uses now; none if the daemon could not keep its descriptor.
        memory_bytes: Option<u64>,
        /// The connector's direction and the listener's.
        directions: Option<[DirectionRow; 2]>,
    }

    /// One direction of a channel, as counted by its sender.
    DirectionRow {
        /// Number of the sending domain.
        from: u32,
        /// Number of messages.
        messages: u64,
        /// Number of message bytes.
        bytes: u64,
        /// Number of times the sender rang the receiver's doorbell.
        wakeups: u64,
        /// The reason why the sender's last long message was copied twice, in fragments; none if it was not, or if there was none.
        fragmented: Option<ReasonRow>,
        /// The reason why the receiver's last access to memory registered by the sender needed the sender's help; none if no access did.
        assisted: Option<ReasonRow>,
        /// Number of accesses of the sender to the receiver's memory that it made in that memory itself. A library may report some late.
        direct: Option<u64>,
        /// Number of accesses of the receiver that the sender performed at its request.
        served: Option<u64>,
        /// Number of requests of the receiver for memory of the sender that it may not access.
        refused: Option<u64>,
    }

    /// The report of `isthmus why A B`: the path between two domains, and the reason for it.
    Why {
        /// Schema number, see [`SCHEMA`].
        schema: u32,
        /// The domain named first.
        a: DomainName,
        /// The other domain.
        b: DomainName,
        /// Path between the two: `channel`, `daemon`, `none`, or `local` for one domain.
        path: String,
        /// The reason why the path is not a faster one; none for a channel.
        reason: Option<ReasonRow>,
        /// The reason why large messages are not copied out of mapped pages; none if they can be.
        large: Option<ReasonRow>,
        /// The channel, if there is one.
        channel: Option<ChannelRow>,
        /// The path as seen from `a`.
        from_a: PathEnd,
        /// The path as seen from `b`.
        from_b: PathEnd,
    }

    /// One end of a path.
    PathEnd {
        /// True if the policy allows this domain to send messages to the other one.
        may_talk: bool,
        /// True if the policy allows this domain to do so by a channel.
        may_channel: bool,
        /// Index of the deciding policy rule, from 0; none if `policy.talk` and `policy.channels` decide.
        rule: Option<u32>,
        /// The reason why this side's last request for a channel was refused, or why its last channel ended.
        last: Option<ReasonRow>,
        /// Number of channels that this domain has.
        channels: u32,
        /// Maximum number of channels of this domain.
        channels_max: u32,
        /// Number of ready maps that this domain has.
        ready_maps: u32,
        /// Maximum number of ready maps of this domain.
        ready_maps_max: u32,
        /// Control messages that this domain has not read yet: its program does not call the library, or its process is stopped.
        backlog: u32,
        /// Number of regions that this domain offers to the other one.
        grants: u32,
    }

    /// The daemon's view of its environment, for `isthmus doctor`.
    Doctor {
        /// Schema number, see [`SCHEMA`].
        schema: u32,
        /// Maximum number of file descriptors of the daemon.
        fds_max: u64,
        /// Number of file descriptors that the daemon has.
        fds: u64,
        /// The user ID that the kernel shows for users without an ID in the daemon's user namespace; none if all users have one.
        nobody_uid: Option<u32>,
        /// Number of processes in another PID namespace. The daemon cannot see them, and learns of their death by the socket alone.
        domains_without_pid: u32,
        /// Number of channels without counters, because the daemon may not have more descriptors.
        channels_without_counters: u32,
        /// False if domains cannot come back after a restart.
        resumable: bool,
        /// Number of guests that would lose their device if the daemon were restarted.
        guests_losing_device: Option<u32>,
    }

    /// The daemon's metrics.
    MetricsText {
        /// Schema number, see [`SCHEMA`].
        schema: u32,
        /// The metrics in the Prometheus text format.
        text: String,
    }
}

impl From<Reason> for ReasonRow {
    fn from(reason: Reason) -> Self {
        Self {
            reason: reason.name().to_owned(),
            code: reason.code(),
            kind: reason.kind().name().to_owned(),
            summary: reason.summary().to_owned(),
            remedy: reason.remedy().to_owned(),
        }
    }
}

impl ReasonCount {
    /// Returns a row for `reason` with `count` occurrences.
    pub fn new(reason: Reason, count: u64) -> Self {
        Self { reason: reason.name().to_owned(), kind: reason.kind().name().to_owned(), count }
    }
}
