//! The broker connects domains with each other. It takes requests from connections, decides, and queues the messages to send.
//!
//! ```text
//!   connection ── packet, fds ──► Broker ──► Outgoing: packets, reports, ends
//!                                   │ ├── Directory, Channels, Policy   attached domains, permissions
//!                                   │ ├── Tickets                       domains of the previous daemon
//!                                   │ ├── Capabilities                  MX, sockets, verbs, overlay
//!                                   └─┴── DataPlane                     the workers' commands
//! ```
//!
//! The broker knows connections by number only and does no I/O on them. [`Server`](crate::server::Server) reads packets, passes them in,
//! and carries out the [`Outgoing`] queue afterwards. The broker itself only allocates memory and doorbells, which it passes on as
//! resources.

mod adopt;
mod attach;
mod attachment;
mod capture;
mod channels;
mod grants;
mod guests;
mod leave;
mod pairs;
mod pending_requests;
mod refusal;
mod regions;
mod remote_peers;
mod requests;
mod resumable;
mod types;
mod workers;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, RwLock};

use isthmus_config::AttachPolicy;
use isthmus_layout::Refusal;
use isthmus_layout::control::{Name, Owner, Refused, RequestSerial, ToClient, Version, version};
use isthmus_layout::ids::{ChannelId, DomainId, RegionId};
use isthmus_layout::reason::{Reason, ReasonKind};
use isthmus_service::{Event, SendPolicy};

use crate::allocator::{Resource, RingMemory, WindowRef};
use crate::capabilities::Capabilities;
use crate::directory::Directory;
use crate::directory::channels::{Channels, Overdue};
use crate::fd_reaper::{self, PENDING_MAX, ReceivedFd};
use crate::mx::Mx;
use crate::overlay::Overlay;
use crate::places::Taker;
use crate::policy::{Identity, Policy};
use crate::reason_log::ReasonLog;
use crate::sockets::{Sockets, StreamSession};
use crate::tickets::Tickets;
use crate::turns::Turns;
use pairs::Pairs;
use remote_peers::RemotePeers;
use resumable::ResumableDomains;

pub use attachment::{Attachment, Attachments};
pub(crate) use guests::{GuestState, GuestView};
pub(crate) use pairs::{PairRequest, PairState};
pub(crate) use pending_requests::{PendingRequest, PendingRequests};
pub(crate) use refusal::OrRefuse;
pub use types::{AwaitedWork, ControlSessionId, Outgoing, ReportFacts, Settings, SocketPeer};
pub use workers::DataPlane;
pub(crate) use workers::WorkerReadyMaps;

/// The number of items of deferred work that are done at once: of all, and of one piece of work before others have their turn.
const DEFERRED_SLICE: usize = 64;
const DEFERRED_SHARE: usize = 16;

/// The number of overdue channels that are handled at once.
const OVERDUE_SLICE: usize = 64;

/// A connection.
#[derive(Debug)]
struct Session {
    socket_peer: SocketPeer,
    stage: SessionStage,
    /// The number of messages that its program has not read yet.
    backlog: usize,
}

/// Work that is done in slices.
#[derive(Debug)]
pub(crate) enum Deferred {
    /// The end of a domain.
    Domain(DomainId),
    /// The end of a program that was attached to streams.
    StreamSession(ControlSessionId, Box<StreamSession>),
}

#[derive(Clone, Debug)]
enum SessionStage {
    /// The program has not sent its hello.
    Greeting,
    /// The program has sent its hello and may send requests.
    Greeted { version: Version, library: Name },
    /// The connection has attached as a domain.
    Attached { domain: DomainId },
    /// The connection is being ended.
    Closed,
}

/// The identities of all domains, shared with the workers.
type Identities = Arc<RwLock<BTreeMap<DomainId, Identity>>>;

/// The memory in windows of guests that the broker keeps.
#[derive(Debug, Default)]
struct GuestMemory {
    lingering: BTreeMap<ChannelId, channels::LingeringMemory>,
    /// Regions, by their owner.
    regions: BTreeMap<(DomainId, RegionId), regions::GuestRegion>,
    /// The bytes of regions in each window.
    region_bytes: BTreeMap<WindowRef, u64>,
}

/// The ends of domains and programs that are under way.
#[derive(Debug, Default)]
struct Endings {
    /// Domains that have left while their worker still delivers their last messages, or some of their peers do not know.
    leaving: BTreeMap<DomainId, leave::Leaving>,
    /// The work that is done in slices, so that no user has to wait for the end of another one.
    deferred: VecDeque<Deferred>,
}

/// The state of the control plane: connections, domains, channels and guests.
#[derive(Debug)]
pub struct Broker {
    pub(crate) settings: Settings,
    pub(crate) policy: Arc<Policy>,
    pub(crate) directory: Directory,
    pub(crate) channels: Channels<Resource>,
    guest_memory: GuestMemory,
    pub(crate) tickets: Tickets,
    /// Domains of the previous daemon that may still resume.
    resumable: ResumableDomains,
    pub(crate) attachments: Attachments,
    endings: Endings,
    sessions: BTreeMap<ControlSessionId, Session>,
    pub(crate) workers: WorkerReadyMaps,
    pub(crate) remote_peers: RemotePeers,
    pub(crate) capabilities: Capabilities,
    /// The number of running captures.
    captures: usize,
    guests: BTreeMap<Name, GuestView>,
    pairs: Pairs,
    identities: Identities,
    pub(crate) reason_log: ReasonLog,
    pub(crate) turns: Turns,
    outgoing: VecDeque<Outgoing>,
    pub(crate) now: u64,
}

impl Broker {
    /// Creates a broker over a data plane, without connections.
    pub fn new(
        settings: Settings,
        policy: Policy,
        directory: Directory,
        tickets: Tickets,
        plane: Box<dyn DataPlane>,
        capabilities: Capabilities,
    ) -> Self {
        let resumable = ResumableDomains::new(tickets.resumable());
        let mut broker = Self {
            channels: Channels::new(settings.epoch << 32),
            guest_memory: GuestMemory::default(),
            settings,
            policy: Arc::new(policy),
            directory,
            tickets,
            resumable,
            attachments: Attachments::default(),
            endings: Endings::default(),
            sessions: BTreeMap::new(),
            workers: WorkerReadyMaps::new(plane),
            remote_peers: RemotePeers::default(),
            capabilities,
            guests: BTreeMap::new(),
            pairs: Pairs::default(),
            captures: 0,
            identities: Identities::default(),
            reason_log: ReasonLog::default(),
            turns: Turns::default(),
            outgoing: VecDeque::new(),
            now: 0,
        };
        broker.reserve_names();
        broker.send_policy();
        broker
    }

    /// Replaces the report facts after the configuration was read again.
    pub fn set_report_facts(&mut self, report_facts: ReportFacts) {
        self.settings.report_facts = report_facts;
    }

    /// Returns the next action for the server.
    pub fn next_outgoing(&mut self) -> Option<Outgoing> {
        self.outgoing.pop_front()
    }

    /// The attached domains.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Sets the time in nanoseconds. Called before anything else that happens at that time.
    pub fn set_now(&mut self, now: u64) {
        self.now = now;
    }

    /// Adds a connection.
    pub fn connected(&mut self, id: ControlSessionId, socket_peer: SocketPeer) {
        self.sessions.insert(id, Session { socket_peer, stage: SessionStage::Greeting, backlog: 0 });
    }

    /// Records that a connection of a user was refused. It has never had a session.
    pub fn connection_refused(&mut self, uid: u32, refusal: &Refusal) {
        self.reason_log.record(self.now, Owner(uid), refusal.reason, &refusal.text());
    }

    /// Handles a packet.
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

    /// Ends a connection that did not send its hello in time.
    pub fn timed_out(&mut self, id: ControlSessionId) {
        if self.sessions.get(&id).is_some_and(|session| matches!(session.stage, SessionStage::Greeting)) {
            self.end_session(id, &Reason::HandshakeTimeout.into());
        }
    }

    /// Records that a connection sends too many packets and is read more slowly.
    pub fn throttled(&mut self, id: ControlSessionId) {
        self.log_reason(id, Reason::TooManyRequests, Reason::TooManyRequests.summary());
    }

    /// Records that connections wait, because the process may not open more descriptors.
    pub fn accept_paused(&mut self) {
        let text = format_args!("connections wait: {}", Reason::DaemonOutOfFds.remedy());
        self.reason_log.record(self.now, Owner(self.settings.uid), Reason::DaemonOutOfFds, &text);
    }

    /// Ends a connection because its program does not read its messages.
    pub fn backlog_exceeded(&mut self, id: ControlSessionId) {
        self.end_session(id, &Reason::ControlQueueFull.into());
    }

    /// Refuses a packet because this process could not open its descriptors. The sender is not at fault.
    pub fn descriptors_lost(&mut self, id: ControlSessionId, serial: Option<RequestSerial>) {
        self.refuse(id, serial, &Reason::DaemonOutOfFds.into());
    }

    /// Sets the number of messages that a connection's program has not read yet.
    pub fn backlog(&mut self, id: ControlSessionId, messages: usize) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.backlog = messages;
        }
    }

    /// Handles an event of a worker.
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Fault { domain, violation, flight } => {
                tracing::debug!(%domain, %violation, flight, "events of the ring before a violation");
                let (reason, text) = (violation.reason(), violation.to_string());
                if let Some(attachment) = self.attachments.get(domain) {
                    self.end_session(attachment.session, &Refusal::new(reason, text));
                }
            }
            Event::Removed { domain } => self.finish_detach(*domain),
            Event::Stopped { worker } => tracing::debug!(worker = worker.0, "worker has ended"),
            Event::RemoteConnected { .. } | Event::RemoteAdded { .. } | Event::RemoteRemoved { .. } => {
                Mx::event(self, event);
            }
            Event::Overlay(event) => Overlay::event(self, *event),
        }
    }

    /// The time at which [`Broker::tick`] has something to do.
    pub fn deadline(&self) -> Option<u64> {
        let deferred = (!self.endings.deferred.is_empty()).then_some(0);
        let deadlines = [deferred, self.channels.deadline(), self.resumable.deadline(), self.capabilities.deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Defers work to the next [`Broker::tick`].
    pub(crate) fn defer(&mut self, work: Deferred) {
        self.endings.deferred.push_back(work);
    }

    /// Does a part of the work that was deferred. All of it takes turns.
    fn do_deferred(&mut self) {
        let mut left = DEFERRED_SLICE;
        while left > 0
            && let Some(mut work) = self.endings.deferred.pop_front()
        {
            let share = left.min(DEFERRED_SHARE);
            let unused = match &mut work {
                Deferred::Domain(domain) => self.release_part(*domain, share),
                Deferred::StreamSession(id, session) => Sockets::release_part(self, *id, session, share),
            };
            if unused == 0 {
                self.endings.deferred.push_back(work);
            }
            left -= (share - unused).max(1);
        }
    }

    /// Handles deadlines that have passed, and a part of the work that was deferred.
    pub fn tick(&mut self) {
        self.do_deferred();
        self.answer_overdue_lookups();
        Capabilities::tick(self);
        for _ in 0..OVERDUE_SLICE {
            let Some(due) = self.channels.overdue(self.now) else { break };
            match due {
                Overdue::Offer(channel) => self.offer_timed_out(channel),
                Overdue::Half(channel, domain) => self.half_timed_out(channel, domain),
            }
        }
    }

    /// Lets work of another thread be waited for.
    pub(crate) fn await_work(&mut self, to: ControlSessionId, work: AwaitedWork) {
        self.outgoing.push_back(Outgoing::Await { to, work });
    }

    /// The program at the other end of a connection.
    pub(crate) fn socket_peer(&self, id: ControlSessionId) -> Option<&SocketPeer> {
        Some(&self.sessions.get(&id)?.socket_peer)
    }

    /// The user at the other end of a connection, as the taker of places.
    pub(crate) fn taker(&self, id: ControlSessionId) -> Option<Taker> {
        Some(Taker { account: Owner(self.socket_peer(id)?.account.uid), has_others: self.has_others() })
    }

    /// False if the daemon serves one user alone.
    pub(crate) fn has_others(&self) -> bool {
        self.policy.settings().attach != AttachPolicy::SameUser || !self.guests.is_empty()
    }

    /// The user of a domain, as the taker of places.
    pub(crate) fn taker_of(&self, domain: DomainId) -> Option<Taker> {
        self.taker(self.attachments.get(&domain)?.session)
    }

    /// Queues a message to a connection, unless the connection is being ended.
    pub(crate) fn send(
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

    /// Queues a notification to a domain.
    fn notify(&mut self, domain: DomainId, message: ToClient) {
        if let Some(attachment) = self.attachments.get(&domain) {
            self.send(attachment.session, None, message, Vec::new());
        }
    }

    /// Refuses a request, and logs the refusal.
    pub(crate) fn refuse(&mut self, id: ControlSessionId, serial: Option<RequestSerial>, refusal: &Refusal) {
        self.log_reason(id, refusal.reason, refusal.text());
        self.send(id, serial, Refused::from(refusal).into(), Vec::new());
    }

    /// Refuses a connection as a whole: sends the reason, removes its domain, and ends the connection.
    fn end_session(&mut self, id: ControlSessionId, refusal: &Refusal) {
        self.refuse(id, None, refusal);
        if let Some(SessionStage::Attached { domain }) = self.sessions.get(&id).map(|session| session.stage.clone()) {
            let fault = refusal.reason.kind() == ReasonKind::Fault;
            self.detach(domain, if fault { Reason::PeerFault } else { refusal.reason });
        }
        self.close_session(id);
    }

    /// Ends a connection. No more packets of it are handled, and nothing more is sent to it.
    fn close_session(&mut self, id: ControlSessionId) {
        if let Some(session) =
            self.sessions.get_mut(&id).filter(|session| !matches!(session.stage, SessionStage::Closed))
        {
            session.stage = SessionStage::Closed;
            self.outgoing.push_back(Outgoing::End { to: id });
            Capabilities::session_closed(self, id);
        }
    }

    pub(crate) fn log_reason(&mut self, id: ControlSessionId, reason: Reason, text: &str) {
        if let Some(session) = self.sessions.get(&id) {
            let SocketPeer { uid, pid, program, .. } = &session.socket_peer;
            let about = format_args!("{program} (pid {}): {text}", pid.unwrap_or(0));
            self.reason_log.record(self.now, Owner(*uid), reason, &about);
        }
    }

    /// Records that a domain or channel gets smaller slabs than usual.
    fn log_smaller_slabs(&mut self, id: ControlSessionId, rings: &RingMemory, refusal: &Refusal) {
        self.log_reason(
            id,
            refusal.reason,
            &format!("gets slabs of {} KiB: {}", rings.slab.bytes() >> 10, refusal.text()),
        );
    }

    /// The number of connections.
    pub(crate) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// The number of messages that a domain has not read yet.
    pub(crate) fn backlog_of(&self, domain: DomainId) -> usize {
        let session = self.attachments.get(&domain).and_then(|attachment| self.sessions.get(&attachment.session));
        session.map_or(0, |session| session.backlog)
    }

    pub(crate) fn identity(&self, domain: DomainId) -> Option<Identity> {
        let credentials = Arc::clone(&self.attachments.get(&domain)?.credentials);
        let domain = self.directory.get(domain)?;
        Some(Identity { name: domain.name.clone(), owner: domain.owner, credentials })
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
