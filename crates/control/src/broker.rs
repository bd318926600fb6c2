//! The broker connects domains with each other. It takes requests from connections, decides, and queues the messages to send.
//!
//! ```text
//!   connection ── packet, fds ──► Broker ──► Outgoing: packets, reports, ends
//!                                   ├── Channels, Pairs, GuestMemory   what two domains share, or the kernels of two guests
//!                                   ├── Endings, ResumableDomains      domains that leave, or may come back
//!                                   ├── Core ◄── lent ──┐              sessions, domains, policy, tickets, workers
//!                                   └── Capabilities ───┘              MX, sockets, verbs, overlay
//! ```
//!
//! The broker knows connections by number only and does no I/O on them. [`Server`](crate::server::Server) reads packets, passes them in,
//! and carries out the queue of outgoing messages afterwards. The broker itself only allocates memory and doorbells, which it passes on as
//! resources. Capabilities do not know it: it lends them the core for the length of a call.

mod adopt;
mod attach;
mod capture;
mod channels;
mod grants;
mod guests;
mod leave;
mod loops;
mod pairs;
mod regions;
mod requests;
mod resumable;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, RwLock};

use isthmus_config::Config;
use isthmus_layout::Refusal;
use isthmus_layout::control::{Name, Owner, RequestSerial, ToClient, version};
use isthmus_layout::ids::{ChannelId, DomainId, RegionId};
use isthmus_layout::reason::{Reason, ReasonKind};
use isthmus_service::{Event, SendPolicy};
use isthmus_window::{Resource, WindowRef};

use crate::capabilities::Capabilities;
use crate::core::awaited_work::{AwaitedWork, Finish};
use crate::core::types::{ControlSessionId, Outgoing, SocketPeer};
use crate::core::{Core, Session, SessionStage};
use crate::directory::Directory;
use crate::directory::channels::{Channels, Overdue};
use crate::fd_reaper::{self, PENDING_MAX, ReceivedFd};
use crate::policy::{Identity, Policy};
use crate::tickets::Tickets;
use crate::turns::Turns;
use pairs::Pairs;
use resumable::ResumableDomains;

pub use crate::core::types::{ReportFacts, Settings, StoredFds};
pub use crate::core::workers::{DataPlane, WorkerReadyMaps};
pub use guests::{GuestState, GuestView, RegionSizes};
pub use pairs::{GuestPair, PairRequest, PairState};

/// The number of items of deferred work that are done at once: of all, and of one piece of work before others have their turn.
const DEFERRED_SLICE: usize = 64;
const DEFERRED_SHARE: usize = 16;

/// The number of overdue channels that are handled at once.
const OVERDUE_SLICE: usize = 64;

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

/// The ends of domains that are under way.
#[derive(Debug, Default)]
struct Endings {
    /// Domains that have left while their worker still delivers their last messages, or some of their peers do not know.
    leaving: BTreeMap<DomainId, leave::Leaving>,
    /// The work that is done in slices, so that no user has to wait for the end of another one.
    deferred: VecDeque<DomainId>,
}

/// The state of the control plane: connections, domains, channels and guests.
#[derive(Debug)]
pub struct Broker {
    /// The part that capabilities may borrow.
    pub(crate) core: Core,
    pub(crate) capabilities: Capabilities,
    pub(crate) channels: Channels<Resource>,
    guest_memory: GuestMemory,
    /// Domains of the previous daemon that may still resume.
    resumable: ResumableDomains,
    endings: Endings,
    /// The number of running captures.
    captures: usize,
    guests: BTreeMap<Name, GuestView>,
    pairs: Pairs,
    identities: Identities,
    pub(crate) turns: Turns,
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
        let mut broker = Self {
            channels: Channels::new(settings.epoch << 32),
            guest_memory: GuestMemory::default(),
            resumable: ResumableDomains::new(tickets.resumable()),
            core: Core::new(settings, policy, directory, tickets, plane),
            capabilities,
            endings: Endings::default(),
            captures: 0,
            guests: BTreeMap::new(),
            pairs: Pairs::default(),
            identities: Identities::default(),
            turns: Turns::default(),
        };
        broker.reserve_names();
        broker.send_policy();
        broker
    }

    /// Lends the core to the capabilities.
    fn lend(&mut self) -> (&mut Capabilities, &mut Core) {
        self.core.channel_fds = self.channels.kept_memories().total();
        (&mut self.capabilities, &mut self.core)
    }

    /// Applies the parts of the configuration of capabilities that may change while the daemon runs. Returns the key that could not be
    /// applied.
    pub fn reload(&mut self, config: &Config) -> Option<&'static str> {
        let (capabilities, core) = self.lend();
        capabilities.reload(core, config)
    }

    /// Returns the next work of another thread that the server has to wait for.
    pub(crate) fn next_awaited(&mut self) -> Option<AwaitedWork<Capabilities>> {
        self.capabilities.next_awaited()
    }

    /// Goes on with work of another thread.
    pub(crate) fn finish(&mut self, finish: Finish<Capabilities>) {
        let (capabilities, core) = self.lend();
        finish(capabilities, core);
    }

    /// Replaces the report facts after the configuration was read again.
    pub fn set_report_facts(&mut self, report_facts: ReportFacts) {
        self.core.settings.report_facts = report_facts;
    }

    /// Returns the next action for the server.
    pub fn next_outgoing(&mut self) -> Option<Outgoing> {
        self.core.outgoing.pop_front()
    }

    /// The attached domains.
    pub fn directory(&self) -> &Directory {
        &self.core.directory
    }

    /// Sets the time in nanoseconds. Called before anything else that happens at that time.
    pub fn set_now(&mut self, now: u64) {
        self.core.now = now;
    }

    /// The time in nanoseconds that was set last.
    pub fn now(&self) -> u64 {
        self.core.now
    }

    /// A number that is different for each start of the daemon.
    pub fn epoch(&self) -> u64 {
        self.core.settings.epoch
    }

    /// The workers.
    pub fn workers(&self) -> &WorkerReadyMaps {
        &self.core.workers
    }

    /// Adds a connection.
    pub fn connected(&mut self, id: ControlSessionId, socket_peer: SocketPeer) {
        self.core.sessions.insert(id, Session { socket_peer, stage: SessionStage::Greeting, backlog: 0 });
    }

    /// Records that a connection of a user, or a request of a guest's program, was refused before it reached a session.
    pub fn refused_outside(&mut self, uid: u32, refusal: &Refusal) {
        self.core.reason_log.record(self.core.now, Owner(uid), refusal.reason, &refusal.text());
    }

    /// Handles a packet.
    pub fn packet(&mut self, id: ControlSessionId, packet: &[u8], fds: Vec<ReceivedFd>) {
        let Some(session) = self.core.sessions.get(&id) else { return };
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
        let name = self.core.settings.name.clone();
        let (serial, reply, outcome) = version::reply_to_hello(packet, fds, self.core.settings.versions, name);
        if let Err(reason) = outcome {
            let text = match &reply {
                ToClient::Refused(refused) => refused.text.to_string(),
                _ => String::new(),
            };
            self.core.log_reason(id, reason, &text);
        }
        self.core.send(id, serial, reply, Vec::new());
        match (outcome, self.core.sessions.get_mut(&id)) {
            (Ok((version, library)), Some(session)) => session.stage = SessionStage::Greeted { version, library },
            _ => self.close_session(id),
        }
    }

    /// Ends a connection that did not send its hello in time.
    pub fn timed_out(&mut self, id: ControlSessionId) {
        if self.core.sessions.get(&id).is_some_and(|session| matches!(session.stage, SessionStage::Greeting)) {
            self.end_session(id, &Reason::HandshakeTimeout.into());
        }
    }

    /// Records that a connection sends too many packets and is read more slowly.
    pub fn throttled(&mut self, id: ControlSessionId) {
        self.core.log_reason(id, Reason::TooManyRequests, Reason::TooManyRequests.summary());
    }

    /// Records that connections wait, because the process may not open more descriptors.
    pub fn accept_paused(&mut self) {
        let text = format_args!("connections wait: {}", Reason::DaemonOutOfFds.remedy());
        self.core.reason_log.record(self.core.now, Owner(self.core.settings.uid), Reason::DaemonOutOfFds, &text);
    }

    /// Ends a connection because its program does not read its messages.
    pub fn backlog_exceeded(&mut self, id: ControlSessionId) {
        self.end_session(id, &Reason::ControlQueueFull.into());
    }

    /// Refuses a packet because this process could not open its descriptors. The sender is not at fault.
    pub fn descriptors_lost(&mut self, id: ControlSessionId, serial: Option<RequestSerial>) {
        self.core.refuse(id, serial, &Reason::DaemonOutOfFds.into());
    }

    /// Sets the number of messages that a connection's program has not read yet.
    pub fn backlog(&mut self, id: ControlSessionId, messages: usize) {
        if let Some(session) = self.core.sessions.get_mut(&id) {
            session.backlog = messages;
        }
    }

    /// Handles an event of a worker.
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Fault { domain, violation, flight } => {
                tracing::debug!(%domain, %violation, flight, "events of the ring before a violation");
                let (reason, text) = (violation.reason(), violation.to_string());
                if let Some(attachment) = self.core.attachments.get(domain) {
                    self.end_session(attachment.session, &Refusal::new(reason, text));
                }
            }
            Event::Removed { domain } => self.finish_detach(*domain),
            Event::Stopped { worker } => tracing::debug!(worker = worker.0, "worker has ended"),
            Event::RemoteAdded { worker, remote_peer, domain, .. } => {
                self.core.remote_peers.insert(*remote_peer, *domain, *worker);
            }
            Event::RemoteRemoved { remote_peer, domain, reason } => {
                self.core.remote_peer_removed(*remote_peer, *domain, *reason);
            }
            _ => {} // Events of capabilities.
        }
        let (capabilities, core) = self.lend();
        capabilities.event(core, event);
    }

    /// The time at which [`Broker::tick`] has something to do.
    pub fn deadline(&self) -> Option<u64> {
        let deferred = (!self.endings.deferred.is_empty()).then_some(0);
        let deadlines = [deferred, self.channels.deadline(), self.resumable.deadline(), self.capabilities.deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Does a part of the work that was deferred. Domains take turns with each other, and with the connections of capabilities.
    fn do_deferred(&mut self) {
        let mut left = DEFERRED_SLICE;
        while left > 0 {
            let before = left;
            if let Some(domain) = self.endings.deferred.pop_front() {
                let share = left.min(DEFERRED_SHARE);
                let unused = self.release_part(domain, share);
                if unused == 0 {
                    self.endings.deferred.push_back(domain);
                }
                left -= (share - unused).max(1);
            }
            let share = left.min(DEFERRED_SHARE);
            let (capabilities, core) = self.lend();
            left -= share - capabilities.release_part(core, share);
            if left == before {
                break;
            }
        }
    }

    /// Handles deadlines that have passed, and a part of the work that was deferred.
    pub fn tick(&mut self) {
        self.do_deferred();
        self.answer_overdue_lookups();
        let (capabilities, core) = self.lend();
        capabilities.tick(core);
        for _ in 0..OVERDUE_SLICE {
            let Some(due) = self.channels.overdue(self.core.now) else { break };
            match due {
                Overdue::Offer(channel) => self.offer_timed_out(channel),
                Overdue::Half(channel, domain) => self.half_timed_out(channel, domain),
            }
        }
    }

    /// Refuses a connection as a whole: sends the reason, removes its domain, and ends the connection.
    fn end_session(&mut self, id: ControlSessionId, refusal: &Refusal) {
        self.core.refuse(id, None, refusal);
        if let Some(SessionStage::Attached { domain }) =
            self.core.sessions.get(&id).map(|session| session.stage.clone())
        {
            let fault = refusal.reason.kind() == ReasonKind::Fault;
            self.detach(domain, if fault { Reason::PeerFault } else { refusal.reason });
        }
        self.close_session(id);
    }

    /// Ends a connection. No more packets of it are handled, and nothing more is sent to it.
    fn close_session(&mut self, id: ControlSessionId) {
        if let Some(session) =
            self.core.sessions.get_mut(&id).filter(|session| !matches!(session.stage, SessionStage::Closed))
        {
            session.stage = SessionStage::Closed;
            self.core.outgoing.push_back(Outgoing::End { to: id });
            let (capabilities, core) = self.lend();
            capabilities.session_closed(core, id);
        }
    }

    /// Passes the policy to the workers. They ask once for each pair, on their threads; the lock is held for as long as a map takes to look up
    /// or change.
    fn send_policy(&self) {
        let (policy, identities) = (Arc::clone(&self.core.policy), Arc::clone(&self.identities));
        self.core.workers.set_send_policy(SendPolicy::new(move |from, to| {
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
        self.core.directory.get(a)?.peers.get(&b)?.channel
    }
}
