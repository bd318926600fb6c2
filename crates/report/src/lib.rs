//! The daemon's reports as JSON types, which the daemon fills and tools read.
//!
//! Each report carries the number of its schema. A field may be added within a number; a field that changes or goes raises it.
#![forbid(unsafe_code)]

use isthmus_layout::reason::Reason;
use serde::{Deserialize, Serialize};

/// The number of the schema described here.
pub const SCHEMA: u32 = 1;

macro_rules! reports {
    ($($(#[doc = $doc:literal])* $name:ident { $($(#[doc = $field_doc:literal])* $field:ident: $type:ty,)* })*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name {
            $($(#[doc = $field_doc])* pub $field: $type,)*
        }
    )*};
}

reports! {
    /// An entry of the table of reasons.
    ReasonRow {
        /// Its identifier.
        reason: String,
        /// Its code.
        code: u16,
        /// `refusal`, `fallback`, `fault` or `ended`.
        kind: String,
        /// What happened.
        summary: String,
        /// What a person can do about it.
        remedy: String,
    }

    /// A domain, where another thing is about it.
    DomainName {
        /// Its number.
        id: u32,
        /// Its name.
        name: String,
    }

    /// How often a reason was met.
    ReasonCount {
        /// Its identifier.
        reason: String,
        /// Its kind.
        kind: String,
        /// How often.
        count: u64,
    }

    /// What a worker has done.
    WorkerRow {
        /// Which.
        worker: u32,
        /// Records moved from one domain to another.
        records: u64,
        /// Message bytes in them.
        bytes: u64,
        /// Messages that reached nobody and were answered so.
        bounces: u64,
        /// Bytes held for domains that are slow to read.
        queued_bytes: u64,
        /// Times it went to sleep.
        sleeps: u64,
        /// Times a doorbell woke it.
        wakeups: u64,
        /// Domains cut off, by reason.
        faults: Vec<ReasonCount>,
        /// Records dropped, by reason.
        drops: Vec<ReasonCount>,
    }

    /// `isthmus status`.
    StatusReport {
        /// See [`SCHEMA`].
        schema: u32,
        /// The daemon's name and version.
        daemon: String,
        /// The newest control protocol it speaks.
        protocol: String,
        /// Its process.
        pid: u32,
        /// The user it runs as.
        uid: u32,
        /// Seconds since it started.
        uptime_s: u64,
        /// Different for each start.
        epoch: u64,
        /// Its socket.
        socket: String,
        /// How workers wait.
        wait: String,
        /// Attached domains.
        domains: u32,
        /// The most there may be.
        domains_max: u32,
        /// Domains of the daemon before that have not come back yet.
        domains_resumable: u32,
        /// Connections, domains or not.
        connections: u32,
        /// Open endpoints.
        endpoints: u32,
        /// Channels.
        channels: u32,
        /// The workers.
        workers: Vec<WorkerRow>,
        /// Guests of the configuration.
        guests: Option<Vec<GuestRow>>,
        /// Refusals, faults and ends on the control socket.
        reasons: Vec<ReasonCount>,
    }

    /// A guest.
    GuestRow {
        /// What it is called.
        name: String,
        /// Whose its domains are.
        uid: u32,
        /// `kvm` or `xen`.
        platform: Option<String>,
        /// Where its QEMU finds its device; of a guest of Xen, where it says in XenStore that it is there, once it does.
        socket: String,
        /// Bytes of its window; of a guest of Xen, at most.
        window_bytes: u64,
        /// Those that are taken; none while it has no device, or has not granted a window.
        used_bytes: Option<u64>,
        /// Vectors of its device, or doorbells toward it.
        vectors: u16,
        /// Whether its own daemon is there.
        daemon: bool,
        /// `no device`, `waiting for guest daemon`, `not responding` (no heartbeat for a while) or `attached`.
        state: Option<String>,
        /// Seconds since its daemon was heard.
        last_seen_s: Option<u64>,
        /// Whether it keeps its device when this daemon is started again; none for those that have no device.
        keeps_device: Option<bool>,
        /// Why the last connection for its device came to nothing; none once another one did not.
        last_error: Option<String>,
        /// Its domains.
        domains: u32,
        /// Its monitor; none if the daemon was given none.
        monitor: Option<String>,
        /// Bytes of a pair window that it has with another guest.
        pair_window_bytes: Option<u64>,
    }

    /// `isthmus domain list`.
    Domains {
        /// See [`SCHEMA`].
        schema: u32,
        /// By number.
        domains: Vec<DomainRow>,
    }

    /// A domain.
    DomainRow {
        /// Its number.
        id: u32,
        /// Its name.
        name: String,
        /// The user it belongs to.
        uid: u32,
        /// Its process, if the daemon can see it.
        pid: Option<i32>,
        /// The guest it is in; none for this host.
        guest: Option<String>,
        /// What its library calls itself.
        library: String,
        /// The control protocol spoken with it.
        protocol: String,
        /// Seconds since it attached.
        age_s: u64,
        /// Open endpoints.
        endpoints: u32,
        /// Channels.
        channels: u32,
        /// The most there may be.
        channels_max: u32,
        /// Its ready maps.
        ready_maps: u32,
        /// The worker that serves its domain ring.
        worker: u32,
        /// Records it sent by the daemon path.
        daemon_path_sent: u64,
        /// Message bytes in them.
        daemon_path_sent_bytes: u64,
        /// Records it got by the daemon path.
        daemon_path_received: u64,
        /// Message bytes in them.
        daemon_path_received_bytes: u64,
        /// Bytes held for it.
        queued_bytes: u64,
        /// Messages of it that reached nobody.
        bounces: u64,
        /// Control messages that it has not taken yet.
        backlog: u32,
    }

    /// `isthmus endpoint list`.
    Endpoints {
        /// See [`SCHEMA`].
        schema: u32,
        /// By domain and index.
        endpoints: Vec<EndpointRow>,
    }

    /// An endpoint.
    EndpointRow {
        /// Whose.
        domain: DomainName,
        /// Which.
        index: u8,
        /// What it is for.
        label: Option<String>,
        /// Its MX endpoint number, if it has one.
        mx: Option<MxNumber>,
    }

    /// An MX endpoint number.
    MxNumber {
        /// On which board.
        board: u32,
        /// Which number.
        endpoint: u32,
    }

    /// `isthmus board list` and `isthmus peer list`: MX.
    MxReport {
        /// See [`SCHEMA`].
        schema: u32,
        /// The boards of this host, by number.
        boards: Vec<MxBoardRow>,
        /// Boards that can be reached, those of this host first.
        peers: Vec<MxPeerRow>,
    }

    /// An MX board.
    MxBoardRow {
        /// Its number.
        number: u32,
        /// Its address as a number.
        nic: u64,
        /// The same as people write it.
        mac: String,
        /// What it is called.
        name: String,
        /// Endpoint numbers that are taken.
        endpoints: Vec<MxEndpointRow>,
        /// How many there are.
        endpoints_max: u32,
        /// Its links to other hosts, in the order of the configuration.
        links: Vec<MxLinkRow>,
        /// Frames that came and were dropped, by reason; reasons that never occurred are not listed.
        dropped: Vec<MxDropped>,
        /// Packets for its endpoints that changed nothing, by reason.
        ignored: Vec<MxDropped>,
        /// Endpoints of this host that it serves, those among them that are closed and still have something to bring.
        served_endpoints: u64,
        /// Endpoints of other hosts that they know, counted for each.
        remote_peers: u64,
        /// Message bytes that were sent, those sent again among them.
        sent_bytes: u64,
        /// Message bytes that came and were taken.
        received_bytes: u64,
        /// Packets of messages that were sent again, because nobody had acknowledged them.
        retransmitted: u64,
        /// Frames of long messages that were asked for again, because they had not come.
        rerequested: u64,
    }

    /// Frames or packets that were dropped, or lost.
    MxDropped {
        /// Why; that of a board's frames as in docs/spec/mxoe.md.
        reason: String,
        /// How many.
        count: u64,
    }

    /// A link of an MX board.
    MxLinkRow {
        /// The interface, or the address.
        name: String,
        /// `packet`, `xdp` or `udp`.
        kind: String,
        /// `up`, `down`, `gone`, or `broken` when it is not tried any more.
        state: String,
        /// The longest frame that it carries, from the Ethernet header on.
        frame_bytes_max: u32,
        /// Frames that were sent.
        sent_frames: u64,
        /// Their bytes.
        sent_bytes: u64,
        /// Frames that came.
        received_frames: u64,
        /// Their bytes.
        received_bytes: u64,
        /// What it lost, by reason; reasons that never occurred are not listed.
        lost: Vec<MxDropped>,
    }

    /// An MX endpoint number that is taken.
    MxEndpointRow {
        /// Which.
        number: u32,
        /// By which domain.
        domain: DomainName,
        /// For which of its endpoints.
        index: u8,
        /// The user it belongs to.
        uid: u32,
    }

    /// An MX board that can be reached.
    MxPeerRow {
        /// Its address as a number.
        nic: u64,
        /// The same as people write it.
        mac: String,
        /// What it is called; its address, as long as that is not known.
        name: String,
        /// How it is known: `local` (of this host), `static`, `announced` or `requested`.
        origin: String,
        /// The board of this host that knows it.
        board: u32,
        /// The link that frames for it go by. None for boards of this host, and without a link that works.
        link: Option<String>,
        /// Milliseconds since it was last heard; none if it never was.
        last_seen_ms: Option<u64>,
        /// How often its daemon has started anew since it became known.
        restarts: u64,
    }

    /// `isthmus channel list`: the pairs that have a channel, and those that asked for one and have none.
    Channels {
        /// See [`SCHEMA`].
        schema: u32,
        /// By the lower of the two numbers.
        pairs: Vec<PairRow>,
    }

    /// Two domains.
    PairRow {
        /// The one with the lower number.
        a: DomainName,
        /// The other one.
        b: DomainName,
        /// `channel`, `daemon` or `none`.
        path: String,
        /// Why it is not a channel.
        reason: Option<ReasonRow>,
        /// The channel.
        channel: Option<ChannelRow>,
    }

    /// A channel.
    ChannelRow {
        /// Its number.
        id: String,
        /// `offered`: the listener has not answered yet. `open`.
        state: String,
        /// The domain that asked for it.
        connector: u32,
        /// Seconds since it was made or taken over.
        age_s: u64,
        /// Bytes of each slab.
        slab_bytes: u32,
        /// Bytes of memory it takes now; none if the daemon could not keep its descriptor.
        memory_bytes: Option<u64>,
        /// The connector's direction and the listener's.
        directions: Option<[DirectionRow; 2]>,
    }

    /// One direction of a channel, as its sender counts.
    DirectionRow {
        /// The sender.
        from: u32,
        /// Messages.
        messages: u64,
        /// Message bytes.
        bytes: u64,
        /// Times it rang the receiver's doorbell.
        wakeups: u64,
        /// Why its last long message was copied twice, in fragments; none if it was not, or there was none.
        fragmented: Option<ReasonRow>,
        /// Why the receiver had to ask for what it last wanted of memory that the sender has registered; none if it never had to.
        assisted: Option<ReasonRow>,
    }

    /// `isthmus why A B`: the path between two domains, and why it is that one.
    Why {
        /// See [`SCHEMA`].
        schema: u32,
        /// The one asked about first.
        a: DomainName,
        /// The other one.
        b: DomainName,
        /// `channel`, `daemon`, `none`, or `local` for one domain.
        path: String,
        /// Why it is not a faster one; none for a channel.
        reason: Option<ReasonRow>,
        /// Why large messages are not copied out of mapped pages; none if they can be.
        large: Option<ReasonRow>,
        /// The channel.
        channel: Option<ChannelRow>,
        /// Seen from `a`.
        from_a: PathEnd,
        /// Seen from `b`.
        from_b: PathEnd,
    }

    /// One end of a path.
    PathEnd {
        /// The policy lets it send messages to the other one.
        may_talk: bool,
        /// The policy lets it do so by a channel.
        may_channel: bool,
        /// The rule that says so, from 0; none if `policy.talk` and `policy.channels` do.
        rule: Option<u32>,
        /// Why a channel was refused when this side asked last, or why the last one ended.
        last: Option<ReasonRow>,
        /// Channels it has.
        channels: u32,
        /// Channels it may have.
        channels_max: u32,
        /// Ready maps it has.
        ready_maps: u32,
        /// Ready maps it may have.
        ready_maps_max: u32,
        /// Control messages it has not taken yet: a program that does not call the library, or a stopped process.
        backlog: u32,
        /// Regions it offers to the other one.
        grants: u32,
    }

    /// What the daemon knows of its surroundings, for `isthmus doctor`.
    Doctor {
        /// See [`SCHEMA`].
        schema: u32,
        /// File descriptors that the daemon may have.
        fds_max: u64,
        /// Those it has.
        fds: u64,
        /// The user number that the kernel shows for users who have none in the daemon's namespace; none if all have one.
        nobody_uid: Option<u32>,
        /// Processes that the daemon cannot see, because they are in another pid namespace: it learns of their death by the socket alone.
        domains_without_pid: u32,
        /// Channels whose counters it cannot show, because it may not have more descriptors.
        channels_without_counters: u32,
        /// False if domains cannot come back after a restart.
        resumable: bool,
        /// Guests with a device that they would lose if the daemon were started again.
        guests_losing_device: Option<u32>,
    }

    /// The counters.
    MetricsText {
        /// See [`SCHEMA`].
        schema: u32,
        /// In Prometheus' text format.
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
    /// Of an entry of the table.
    pub fn new(reason: Reason, count: u64) -> Self {
        Self { reason: reason.name().to_owned(), kind: reason.kind().name().to_owned(), count }
    }
}
