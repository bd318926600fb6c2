//! Brings domains together: takes requests from connections, decides, and says what is to be sent to whom.
//!
//! ```text
//!   connection ── packet, fds ──► Broker ──► Outgoing: packets, reports, ends
//!                                   │ ├── Directory, Channels, Policy   who is there, what may be
//!                                   │ ├── Tickets                       who was there before
//!                                   └─┴── DataPlane                     the workers' commands
//! ```
//!
//! The broker knows connections by number only and sends nothing itself: [`Server`](crate::server::Server) reads packets, passes them in, and carries
//! out what stands in the [`Outgoing`] queue afterwards. Its own doing is making memory and doorbells, which it passes on as descriptors.

mod adopt;
mod attach;
mod attachment;
mod capture;
mod channels;
mod grants;
mod guests;
mod leave;
mod mx;
mod pairs;
mod refusal;
mod regions;
mod remote_peers;
mod requests;
mod types;
mod workers;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, RwLock};

use isthmus_layout::control::{Name, Owner, Refused, RequestSerial, Text, ToClient, Version, version};
use isthmus_layout::ids::{ChannelId, DomainId, RegionId};
use isthmus_layout::reason::{Reason, ReasonKind};
use isthmus_service::{Event, MxView, SendPolicy};

use crate::allocator::{Resource, RingMemory};
use crate::directory::Directory;
use crate::directory::channels::{Channels, Overdue};
use crate::fd_reaper::{self, PENDING_MAX, ReceivedFd};
use crate::policy::{Identity, Policy};
use crate::reason_log::ReasonLog;
use crate::tickets::{ResumableDomain, Tickets};
use pairs::Pairs;
use remote_peers::RemotePeers;

pub use attachment::Attachment;
pub(crate) use guests::{GuestState, GuestView};
pub(crate) use pairs::{PairRequest, PairState};
pub(crate) use refusal::Refusal;
pub use types::{ControlSessionId, Outgoing, ReportFacts, Settings, SocketPeer};
pub use workers::DataPlane;
pub(crate) use workers::WorkerReadyMaps;

/// A connection.
#[derive(Debug)]
struct Session {
    socket_peer: SocketPeer,
    stage: SessionStage,
    /// Messages that it has not taken yet.
    backlog: usize,
}

#[derive(Clone, Debug)]
enum SessionStage {
    /// Has not said hello.
    Greeting,
    /// Has, and may ask.
    Greeted { version: Version, library: Name },
    /// Is a domain.
    Attached { domain: DomainId },
    /// Is being ended.
    Closed,
}

/// The identities of all domains, where the workers read them.
type Identities = Arc<RwLock<BTreeMap<DomainId, Identity>>>;

/// See the module.
#[derive(Debug)]
pub struct Broker {
    pub(crate) settings: Settings,
    pub(crate) policy: Arc<Policy>,
    pub(crate) directory: Directory,
    pub(crate) channels: Channels<Resource>,
    lingering: BTreeMap<ChannelId, channels::LingeringMemory>,
    /// In guests' windows, by their owner.
    regions: BTreeMap<(DomainId, RegionId), regions::GuestRegion>,
    pub(crate) tickets: Tickets,
    /// Domains of the daemon before, which may still come back.
    resumable: BTreeMap<DomainId, ResumableDomain>,
    pub(crate) attachments: BTreeMap<DomainId, Attachment>,
    /// Domains that are gone but for what their worker still delivers: why they went, and who has to hear of it.
    leaving: BTreeMap<DomainId, (Reason, Vec<DomainId>)>,
    sessions: BTreeMap<ControlSessionId, Session>,
    pub(crate) workers: WorkerReadyMaps,
    pub(crate) remote_peers: RemotePeers,
    /// Captures that are under way.
    captures: usize,
    guests: BTreeMap<Name, GuestView>,
    pairs: Pairs,
    identities: Identities,
    pub(crate) reason_log: ReasonLog,
    outgoing: VecDeque<Outgoing>,
    pub(crate) now: u64,
}

impl Broker {
    /// A broker over a data plane. Nobody is connected yet.
    pub fn new(
        settings: Settings,
        policy: Policy,
        mut directory: Directory,
        tickets: Tickets,
        plane: Box<dyn DataPlane>,
    ) -> Self {
        for (number, domain) in tickets.claims() {
            directory.mx_mut().reserve(number, domain);
        }
        let resumable =
            tickets.resumable().iter().map(|resumable_domain| (resumable_domain.domain, *resumable_domain)).collect();
        let broker = Self {
            channels: Channels::new(settings.epoch << 32),
            lingering: BTreeMap::new(),
            regions: BTreeMap::new(),
            settings,
            policy: Arc::new(policy),
            directory,
            tickets,
            resumable,
            attachments: BTreeMap::new(),
            leaving: BTreeMap::new(),
            sessions: BTreeMap::new(),
            workers: WorkerReadyMaps::new(plane),
            remote_peers: RemotePeers::default(),
            guests: BTreeMap::new(),
            pairs: Pairs::default(),
            captures: 0,
            identities: Identities::default(),
            reason_log: ReasonLog::default(),
            outgoing: VecDeque::new(),
            now: 0,
        };
        broker.send_policy();
        broker
    }

    /// Some MX boards have links: this is to be seen of each that has.
    pub fn set_mx_views(&mut self, views: Vec<Option<Arc<Mutex<MxView>>>>) {
        self.remote_peers = RemotePeers::new(views);
    }

    /// The configuration was read again.
    pub fn set_report_facts(&mut self, report_facts: ReportFacts) {
        self.settings.report_facts = report_facts;
    }

    /// What is to be sent next.
    pub fn next_outgoing(&mut self) -> Option<Outgoing> {
        self.outgoing.pop_front()
    }

    /// The attached domains.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Domains of the daemon before that have not come back yet.
    pub fn resumable(&self) -> impl Iterator<Item = &ResumableDomain> {
        self.resumable.values()
    }

    /// Nanoseconds as they pass; called before anything else that happens then.
    pub fn set_now(&mut self, now: u64) {
        self.now = now;
    }

    /// Somebody has connected. A connection that is refused gets its `Refused` and ends.
    pub fn connected(&mut self, id: ControlSessionId, socket_peer: SocketPeer) {
        let owner = socket_peer.uid;
        let of_owner = self.sessions.values().filter(|session| session.socket_peer.uid == owner).count();
        self.sessions.insert(id, Session { socket_peer, stage: SessionStage::Greeting, backlog: 0 });
        if self.sessions.len() > self.settings.sessions_max || of_owner >= self.settings.sessions_per_owner_max {
            self.end_session(id, &Reason::ConnectionsFull.into());
        }
    }

    /// A packet has come.
    pub fn packet(&mut self, id: ControlSessionId, packet: &[u8], fds: Vec<ReceivedFd>) {
        let Some(session) = self.sessions.get(&id) else { return };
        if !fds.is_empty() && fd_reaper::pending(session.socket_peer.uid) > PENDING_MAX {
            let text = format!("{PENDING_MAX} file descriptors that this user has sent take too long to close");
            return self.end_session(id, &Refusal::new(Reason::RequestInvalid, text));
        }
        match session.stage {
            SessionStage::Closed => {}
            SessionStage::Greeting => self.reply_to_hello(id, packet, fds.len()),
            _ => self.request(id, packet, fds),
        }
    }

    fn reply_to_hello(&mut self, id: ControlSessionId, packet: &[u8], fds: usize) {
        let name = self.settings.name.clone();
        let (serial, reply, outcome) = version::reply_to_hello(packet, fds, self.settings.versions, name);
        if let Err(reason) = outcome {
            let text = match &reply {
                ToClient::Refused(refused) => refused.text.to_string(),
                _ => String::new(),
            };
            self.log_reason(id, reason, &text);
        }
        self.send(id, serial, reply, Vec::new());
        match (outcome, self.sessions.get_mut(&id)) {
            (Ok((version, library)), Some(session)) => session.stage = SessionStage::Greeted { version, library },
            _ => self.close_session(id),
        }
    }

    /// The connection did not do in time what it should.
    pub fn timed_out(&mut self, id: ControlSessionId) {
        if self.sessions.get(&id).is_some_and(|session| matches!(session.stage, SessionStage::Greeting)) {
            self.end_session(id, &Reason::HandshakeTimeout.into());
        }
    }

    /// The connection sends so much that it is read more slowly.
    pub fn throttled(&mut self, id: ControlSessionId) {
        self.log_reason(id, Reason::TooManyRequests, Reason::TooManyRequests.summary());
    }

    /// Connections wait, because the process may not open more descriptors.
    pub fn accept_paused(&mut self) {
        let text = format_args!("connections wait: {}", Reason::DaemonOutOfFds.remedy());
        self.reason_log.record(self.now, Owner(self.settings.uid), Reason::DaemonOutOfFds, &text);
    }

    /// The connection takes nothing any more.
    pub fn backlog_exceeded(&mut self, id: ControlSessionId) {
        self.end_session(id, &Reason::ControlQueueFull.into());
    }

    /// A packet came without its descriptors: this process could not open as many. It is no fault of who sent it.
    pub fn descriptors_lost(&mut self, id: ControlSessionId, serial: Option<RequestSerial>) {
        self.refuse(id, serial, &Reason::DaemonOutOfFds.into());
    }

    /// How many messages a connection has not taken yet.
    pub fn backlog(&mut self, id: ControlSessionId, messages: usize) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.backlog = messages;
        }
    }

    /// A worker has something to say.
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Fault { domain, violation } => {
                let (reason, text) = (violation.reason(), violation.to_string());
                if let Some(attachment) = self.attachments.get(domain) {
                    self.end_session(attachment.session, &Refusal::new(reason, text));
                }
            }
            Event::Removed { domain } => self.finish_detach(*domain),
            Event::Stopped { worker } => tracing::debug!(worker = worker.0, "worker has ended"),
            Event::MxConnected { .. } | Event::RemoteAdded { .. } | Event::RemoteRemoved { .. } => {
                self.handle_mx_event(event)
            }
        }
    }

    /// When [`Broker::tick`] has something to do.
    pub fn deadline(&self) -> Option<u64> {
        self.channels.deadline()
    }

    /// Time has passed.
    pub fn tick(&mut self) {
        while let Some(due) = self.channels.overdue(self.now) {
            match due {
                Overdue::Offer(channel) => self.offer_timed_out(channel),
                Overdue::Half(channel, domain) => self.half_timed_out(channel, domain),
            }
        }
    }

    /// A message to a connection, if it is still one.
    fn send(
        &mut self,
        to: ControlSessionId,
        serial: Option<RequestSerial>,
        message: ToClient,
        resources: Vec<Resource>,
    ) {
        if self.sessions.get(&to).is_some_and(|session| !matches!(session.stage, SessionStage::Closed)) {
            assert_eq!(message.descriptors(), resources.len()); // Ours.
            self.outgoing.push_back(Outgoing::Packet { to, packet: message.emit(serial), resources });
        }
    }

    /// News to a domain.
    fn notify(&mut self, domain: DomainId, message: ToClient) {
        if let Some(attachment) = self.attachments.get(&domain) {
            self.send(attachment.session, None, message, Vec::new());
        }
    }

    fn refuse(&mut self, id: ControlSessionId, serial: Option<RequestSerial>, refusal: &Refusal) {
        self.log_reason(id, refusal.reason, &refusal.text);
        let message = Refused { reason: refusal.reason, text: Text::clip(&refusal.text) };
        self.send(id, serial, message.into(), Vec::new());
    }

    /// Refuses a connection as a whole: says why, lets its domain go, ends it.
    fn end_session(&mut self, id: ControlSessionId, refusal: &Refusal) {
        self.refuse(id, None, refusal);
        if let Some(SessionStage::Attached { domain }) = self.sessions.get(&id).map(|session| session.stage.clone()) {
            let fault = refusal.reason.kind() == ReasonKind::Fault;
            self.detach(domain, if fault { Reason::PeerFault } else { refusal.reason });
        }
        self.close_session(id);
    }

    /// Nothing is taken from the connection and nothing more is sent.
    fn close_session(&mut self, id: ControlSessionId) {
        if let Some(session) =
            self.sessions.get_mut(&id).filter(|session| !matches!(session.stage, SessionStage::Closed))
        {
            session.stage = SessionStage::Closed;
            self.outgoing.push_back(Outgoing::End { to: id });
        }
    }

    fn log_reason(&mut self, id: ControlSessionId, reason: Reason, text: &str) {
        if let Some(session) = self.sessions.get(&id) {
            let SocketPeer { uid, pid, program, .. } = &session.socket_peer;
            let about = format_args!("{program} (pid {}): {text}", pid.unwrap_or(0));
            self.reason_log.record(self.now, Owner(*uid), reason, &about);
        }
    }

    /// Somebody gets less memory than is usual.
    fn log_smaller_slabs(&mut self, id: ControlSessionId, rings: &RingMemory, refusal: &Refusal) {
        self.log_reason(
            id,
            refusal.reason,
            &format!("gets slabs of {} KiB: {}", rings.slab.bytes() >> 10, refusal.text),
        );
    }

    /// How many connections there are.
    pub(crate) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// How many messages a domain has not taken yet.
    pub(crate) fn backlog_of(&self, domain: DomainId) -> usize {
        let session = self.attachments.get(&domain).and_then(|attachment| self.sessions.get(&attachment.session));
        session.map_or(0, |session| session.backlog)
    }

    pub(crate) fn identity(&self, domain: DomainId) -> Option<Identity> {
        let domain = self.directory.get(domain)?;
        Some(Identity { name: domain.name.clone(), owner: domain.owner })
    }

    /// Passes the policy to the workers. They ask once for each pair, on their threads; the lock is held for as long as a map takes to look up
    /// or change.
    fn send_policy(&self) {
        let (policy, identities) = (Arc::clone(&self.policy), Arc::clone(&self.identities));
        self.workers.set_send_policy(SendPolicy::new(move |from, to| {
            let identities = identities.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            match (identities.get(&from), identities.get(&to)) {
                (Some(from), Some(to)) => policy.may_send(from, to),
                _ => Err(Reason::NoSuchDomain),
            }
        }));
    }

    fn change_identities(&self, change: impl FnOnce(&mut BTreeMap<DomainId, Identity>)) {
        change(&mut self.identities.write().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    fn channel_of(&self, a: DomainId, b: DomainId) -> Option<ChannelId> {
        self.directory.get(a)?.peers.get(&b)?.channel
    }
}
