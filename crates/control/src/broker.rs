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
mod capture;
mod channels;
mod grants;
mod guests;
mod home;
mod leave;
mod mx;
mod pairs;
mod refusal;
mod regions;
mod requests;
mod strangers;
mod types;
mod workers;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, RwLock};

use isthmus_layout::control::{Name, Owner, Refused, RequestSerial, Text, ToClient, Version, version};
use isthmus_layout::ids::{ChannelId, DomainId, RegionId};
use isthmus_layout::reason::{Kind, Reason};
use isthmus_service::{Event, MxView, Permit};

use crate::directory::Directory;
use crate::directory::channels::{Channels, Due};
use crate::disposal::{self, Given, WAITING_MAX};
use crate::ground::{Item, Rings};
use crate::journal::Journal;
use crate::policy::{Identity, Policy};
use crate::tickets::{Survivor, Tickets};
use pairs::Pairs;
use strangers::Strangers;

pub(crate) use guests::{GuestState, GuestView};
pub use home::Home;
pub(crate) use pairs::{Look, Wanted};
pub(crate) use refusal::Refusal;
pub use types::{Facts, Outgoing, Peer, SessionId, Settings};
pub use workers::DataPlane;
pub(crate) use workers::WorkerBoards;

/// A connection.
#[derive(Debug)]
struct Session {
    peer: Peer,
    stage: Stage,
    /// Messages that it has not taken yet.
    backlog: usize,
}

#[derive(Clone, Debug)]
enum Stage {
    /// Has not said hello.
    Greeting,
    /// Has, and may ask.
    Greeted { version: Version, library: Name },
    /// Is a domain.
    Attached { domain: DomainId },
    /// Is being ended.
    Over,
}

/// The identities of all domains, where the workers read them.
type Identities = Arc<RwLock<BTreeMap<DomainId, Identity>>>;

/// See the module.
#[derive(Debug)]
pub struct Broker {
    pub(crate) settings: Settings,
    pub(crate) policy: Arc<Policy>,
    pub(crate) directory: Directory,
    pub(crate) channels: Channels<Item>,
    lingering: BTreeMap<ChannelId, channels::Lingering>,
    /// In guests' windows, by their owner.
    regions: BTreeMap<(DomainId, RegionId), regions::Region>,
    pub(crate) tickets: Tickets,
    /// Domains of the daemon before, which may still come back.
    expected: BTreeMap<DomainId, Survivor>,
    pub(crate) homes: BTreeMap<DomainId, Home>,
    /// Domains that are gone but for what their worker still delivers: why they went, and who has to hear of it.
    leaving: BTreeMap<DomainId, (Reason, Vec<DomainId>)>,
    sessions: BTreeMap<SessionId, Session>,
    pub(crate) workers: WorkerBoards,
    pub(crate) strangers: Strangers,
    /// Captures that are under way.
    captures: usize,
    guests: BTreeMap<Name, GuestView>,
    pairs: Pairs,
    identities: Identities,
    pub(crate) journal: Journal,
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
            directory.mx_mut().keep(number, domain);
        }
        let expected = tickets.survivors().iter().map(|survivor| (survivor.domain, *survivor)).collect();
        let broker = Self {
            channels: Channels::new(settings.epoch << 32),
            lingering: BTreeMap::new(),
            regions: BTreeMap::new(),
            settings,
            policy: Arc::new(policy),
            directory,
            tickets,
            expected,
            homes: BTreeMap::new(),
            leaving: BTreeMap::new(),
            sessions: BTreeMap::new(),
            workers: WorkerBoards::new(plane),
            strangers: Strangers::default(),
            guests: BTreeMap::new(),
            pairs: Pairs::default(),
            captures: 0,
            identities: Identities::default(),
            journal: Journal::default(),
            outgoing: VecDeque::new(),
            now: 0,
        };
        broker.permit();
        broker
    }

    /// Some boards have links: this is to be seen of each that has.
    pub fn set_views(&mut self, views: Vec<Option<Arc<Mutex<MxView>>>>) {
        self.strangers = Strangers::new(views);
    }

    /// The configuration was read again.
    pub fn set_facts(&mut self, facts: Facts) {
        self.settings.facts = facts;
    }

    /// What is to be sent next.
    pub fn outgoing(&mut self) -> Option<Outgoing> {
        self.outgoing.pop_front()
    }

    /// The attached domains.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Domains of the daemon before that have not come back yet.
    pub fn expected(&self) -> impl Iterator<Item = &Survivor> {
        self.expected.values()
    }

    /// Nanoseconds as they pass; called before anything else that happens then.
    pub fn at(&mut self, now: u64) {
        self.now = now;
    }

    /// Somebody has connected. A connection that is refused gets its `Refused` and ends.
    pub fn connected(&mut self, id: SessionId, peer: Peer) {
        let owner = peer.uid;
        let of_owner = self.sessions.values().filter(|session| session.peer.uid == owner).count();
        self.sessions.insert(id, Session { peer, stage: Stage::Greeting, backlog: 0 });
        if self.sessions.len() > self.settings.sessions_max || of_owner >= self.settings.sessions_per_owner_max {
            self.end_session(id, &Reason::ConnectionsFull.into());
        }
    }

    /// A packet has come.
    pub fn packet(&mut self, id: SessionId, packet: &[u8], fds: Vec<Given>) {
        let Some(session) = self.sessions.get(&id) else { return };
        if !fds.is_empty() && disposal::waiting(session.peer.uid) > WAITING_MAX {
            let text = format!("{WAITING_MAX} file descriptors that this user has sent take too long to close");
            return self.end_session(id, &Refusal::new(Reason::RequestInvalid, text));
        }
        match session.stage {
            Stage::Over => {}
            Stage::Greeting => self.greet(id, packet, fds.len()),
            _ => self.request(id, packet, fds),
        }
    }

    fn greet(&mut self, id: SessionId, packet: &[u8], fds: usize) {
        let name = self.settings.name.clone();
        let (serial, answer, outcome) = version::greet(packet, fds, self.settings.spoken, name);
        if let Err(reason) = outcome {
            let text = match &answer {
                ToClient::Refused(refused) => refused.text.to_string(),
                _ => String::new(),
            };
            self.note(id, reason, &text);
        }
        self.send(id, serial, answer, Vec::new());
        match (outcome, self.sessions.get_mut(&id)) {
            (Ok((version, library)), Some(session)) => session.stage = Stage::Greeted { version, library },
            _ => self.over(id),
        }
    }

    /// The connection did not do in time what it should.
    pub fn timed_out(&mut self, id: SessionId) {
        if self.sessions.get(&id).is_some_and(|session| matches!(session.stage, Stage::Greeting)) {
            self.end_session(id, &Reason::HandshakeTimeout.into());
        }
    }

    /// The connection sends so much that it is read more slowly.
    pub fn throttled(&mut self, id: SessionId) {
        self.note(id, Reason::TooManyRequests, Reason::TooManyRequests.summary());
    }

    /// Connections wait, because the process may not open more descriptors.
    pub fn accepts_no_more(&mut self) {
        let text = format_args!("connections wait: {}", Reason::DaemonOutOfFds.remedy());
        self.journal.note(self.now, Owner(self.settings.uid), Reason::DaemonOutOfFds, &text);
    }

    /// The connection takes nothing any more.
    pub fn choked(&mut self, id: SessionId) {
        self.end_session(id, &Reason::NotReading.into());
    }

    /// A packet came without its descriptors: this process could not open as many. It is no fault of who sent it.
    pub fn descriptors_lost(&mut self, id: SessionId, serial: Option<RequestSerial>) {
        self.refuse(id, serial, &Reason::DaemonOutOfFds.into());
    }

    /// How many messages a connection has not taken yet.
    pub fn backlog(&mut self, id: SessionId, messages: usize) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.backlog = messages;
        }
    }

    /// A worker has something to say.
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Fault { domain, breach } => {
                let (reason, text) = (breach.reason(), breach.to_string());
                if let Some(home) = self.homes.get(domain) {
                    self.end_session(home.session, &Refusal::new(reason, text));
                }
            }
            Event::Removed { domain } => self.left(*domain),
            Event::Stopped { worker } => tracing::debug!(worker = worker.0, "worker has ended"),
            Event::MxConnected { .. } | Event::MxMet { .. } | Event::MxParted { .. } => self.event_of_others(event),
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
                Due::Offer(channel) => self.offer_unanswered(channel),
                Due::Half(channel, domain) => self.half_unanswered(channel, domain),
            }
        }
    }

    /// A message to a connection, if it is still one.
    fn send(&mut self, to: SessionId, serial: Option<RequestSerial>, message: ToClient, items: Vec<Item>) {
        if self.sessions.get(&to).is_some_and(|session| !matches!(session.stage, Stage::Over)) {
            assert_eq!(message.descriptors(), items.len()); // Ours.
            self.outgoing.push_back(Outgoing::Packet { to, packet: message.emit(serial), items });
        }
    }

    /// News to a domain.
    fn tell(&mut self, domain: DomainId, message: ToClient) {
        if let Some(home) = self.homes.get(&domain) {
            self.send(home.session, None, message, Vec::new());
        }
    }

    fn refuse(&mut self, id: SessionId, serial: Option<RequestSerial>, refusal: &Refusal) {
        self.note(id, refusal.reason, &refusal.text);
        let message = Refused { reason: refusal.reason, text: Text::clip(&refusal.text) };
        self.send(id, serial, message.into(), Vec::new());
    }

    /// Refuses a connection as a whole: says why, lets its domain go, ends it.
    fn end_session(&mut self, id: SessionId, refusal: &Refusal) {
        self.refuse(id, None, refusal);
        if let Some(Stage::Attached { domain }) = self.sessions.get(&id).map(|session| session.stage.clone()) {
            let fault = refusal.reason.kind() == Kind::Fault;
            self.leave(domain, if fault { Reason::PeerFault } else { refusal.reason });
        }
        self.over(id);
    }

    /// Nothing is taken from the connection and nothing more is sent.
    fn over(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id).filter(|session| !matches!(session.stage, Stage::Over)) {
            session.stage = Stage::Over;
            self.outgoing.push_back(Outgoing::End { to: id });
        }
    }

    fn note(&mut self, id: SessionId, reason: Reason, text: &str) {
        if let Some(session) = self.sessions.get(&id) {
            let Peer { uid, pid, program, .. } = &session.peer;
            let about = format_args!("{program} (pid {}): {text}", pid.unwrap_or(0));
            self.journal.note(self.now, Owner(*uid), reason, &about);
        }
    }

    /// Somebody gets less memory than is usual.
    fn note_less(&mut self, id: SessionId, rings: &Rings, refusal: &Refusal) {
        self.note(id, refusal.reason, &format!("gets slabs of {} KiB: {}", rings.slab.bytes() >> 10, refusal.text));
    }

    /// How many connections there are.
    pub(crate) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// How many messages a domain has not taken yet.
    pub(crate) fn backlog_of(&self, domain: DomainId) -> usize {
        let session = self.homes.get(&domain).and_then(|home| self.sessions.get(&home.session));
        session.map_or(0, |session| session.backlog)
    }

    pub(crate) fn identity(&self, domain: DomainId) -> Option<Identity> {
        let domain = self.directory.get(domain)?;
        Some(Identity { name: domain.name.clone(), owner: domain.owner })
    }

    /// Passes the policy to the workers. They ask once for each pair, on their threads; the lock is held for as long as a map takes to look up or change.
    fn permit(&self) {
        let (policy, identities) = (Arc::clone(&self.policy), Arc::clone(&self.identities));
        self.workers.permit(Permit::new(move |from, to| {
            let identities = identities.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            match (identities.get(&from), identities.get(&to)) {
                (Some(from), Some(to)) => policy.talk(from, to),
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
