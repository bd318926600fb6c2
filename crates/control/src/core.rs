//! The part of the control plane that every capability may borrow for the length of a call.
//!
//! ```text
//!   Broker ── Requester, &mut Core ──► capability ── Answer ──► Broker
//!                       │
//!                       ├── sessions, attachments, directory   who is connected, and as which domain
//!                       ├── policy, settings                   what they may do
//!                       ├── workers, remote_peers              the data plane, and peers on other hosts
//!                       ├── tickets                            what a later daemon has to know
//!                       └── outgoing, reason_log               messages to programs; counts and log lines
//! ```
//!
//! Nothing here knows the broker or a capability.

pub(crate) mod attachment;
pub(crate) mod awaited_work;
pub(crate) mod granted_memory;
pub(crate) mod pending_requests;
pub(crate) mod remote_peers;
pub(crate) mod requester;
pub(crate) mod types;
pub(crate) mod workers;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use isthmus_config::AttachPolicy;
use isthmus_layout::Refusal;
use isthmus_layout::control::{Name, Owner, Refused, RequestSerial, ToClient, Version};
use isthmus_layout::ids::DomainId;
use isthmus_layout::reason::Reason;
use isthmus_window::{Resource, RingMemory};

use crate::credentials::Credentials;
use crate::directory::Directory;
use crate::places::Taker;
use crate::policy::{Identity, Policy};
use crate::reason_log::ReasonLog;
use crate::tickets::Tickets;
use attachment::Attachments;
use remote_peers::RemotePeers;
use requester::Requester;
use types::{ControlSessionId, Outgoing, Settings, SocketPeer};
use workers::{DataPlane, WorkerReadyMaps};

/// A connection.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) socket_peer: SocketPeer,
    pub(crate) stage: SessionStage,
    /// The number of messages that its program has not read yet.
    pub(crate) backlog: usize,
}

/// The progress of a connection.
#[derive(Clone, Debug)]
pub(crate) enum SessionStage {
    /// The program has not sent its hello.
    Greeting,
    /// The program has sent its hello and may send requests.
    Greeted { version: Version, library: Name },
    /// The connection has attached as a domain.
    Attached { domain: DomainId },
    /// The connection is being ended.
    Closed,
}

/// The state that capabilities and the broker share.
#[derive(Debug)]
pub(crate) struct Core {
    /// The time in nanoseconds.
    pub(crate) now: u64,
    pub(crate) settings: Settings,
    pub(crate) policy: Arc<Policy>,
    pub(crate) directory: Directory,
    pub(crate) sessions: BTreeMap<ControlSessionId, Session>,
    pub(crate) attachments: Attachments,
    pub(crate) workers: WorkerReadyMaps,
    pub(crate) tickets: Tickets,
    pub(crate) remote_peers: RemotePeers,
    pub(crate) reason_log: ReasonLog,
    pub(crate) outgoing: VecDeque<Outgoing>,
    /// True if programs of guests may be connected.
    pub(crate) has_guests: bool,
    /// The number of descriptors that are open for channels.
    pub(crate) channel_fds: usize,
}

impl Core {
    pub(crate) fn new(
        settings: Settings,
        policy: Policy,
        directory: Directory,
        tickets: Tickets,
        plane: Box<dyn DataPlane>,
    ) -> Self {
        Self {
            now: 0,
            settings,
            policy: Arc::new(policy),
            directory,
            sessions: BTreeMap::new(),
            attachments: Attachments::default(),
            workers: WorkerReadyMaps::new(plane),
            tickets,
            remote_peers: RemotePeers::default(),
            reason_log: ReasonLog::default(),
            outgoing: VecDeque::new(),
            has_guests: false,
            channel_fds: 0,
        }
    }

    /// The program at the other end of a connection.
    pub(crate) fn socket_peer(&self, id: ControlSessionId) -> Option<&SocketPeer> {
        Some(&self.sessions.get(&id)?.socket_peer)
    }

    /// The protocol version in use with a program that has not attached as a domain.
    pub(crate) fn version_of(&self, id: ControlSessionId) -> Option<Version> {
        match self.sessions.get(&id)?.stage {
            SessionStage::Greeted { version, .. } => Some(version),
            SessionStage::Greeting | SessionStage::Attached { .. } | SessionStage::Closed => None,
        }
    }

    /// The user at the other end of a connection, as the taker of places.
    pub(crate) fn taker(&self, id: ControlSessionId) -> Option<Taker> {
        Some(Taker { account: Owner(self.socket_peer(id)?.account.uid), has_others: self.has_others() })
    }

    /// The user of a domain, as the taker of places.
    pub(crate) fn taker_of(&self, domain: DomainId) -> Option<Taker> {
        self.taker(self.attachments.get(&domain)?.session)
    }

    /// False if the daemon serves one user alone.
    pub(crate) fn has_others(&self) -> bool {
        self.policy.settings().attach != AttachPolicy::SameUser || self.has_guests
    }

    /// The program at the other end of a connection, as the sender of this request.
    pub(crate) fn requester(&self, session: ControlSessionId, serial: Option<RequestSerial>) -> Option<Requester> {
        let Session { socket_peer, stage, .. } = self.sessions.get(&session)?;
        let domain = match stage {
            SessionStage::Attached { domain } => Some(*domain),
            _ => None,
        };
        Some(Requester { session, serial, domain, owner: Owner(socket_peer.uid) })
    }

    /// The number of connections.
    pub(crate) fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// The number of messages that a domain has not read yet.
    pub(crate) fn backlog_of(&self, domain: DomainId) -> usize {
        let session = self.attachments.get(&domain).and_then(|attachment| self.sessions.get(&attachment.session));
        session.map_or(0, |session| session.backlog)
    }

    /// The identity of a domain, to which the policy is applied.
    pub(crate) fn identity(&self, domain: DomainId) -> Option<Identity> {
        let credentials = Arc::clone(&self.attachments.get(&domain)?.credentials);
        let domain = self.directory.get(domain)?;
        Some(Identity { name: domain.name.clone(), owner: domain.owner, credentials })
    }

    /// Returns the identity of a program that is not attached as a domain, if the policy allows it to attach. Its name is the one that its
    /// domain would get.
    pub(crate) fn identity_of_session(&self, id: ControlSessionId) -> Result<Identity, Refusal> {
        self.may_attach(id)?;
        let peer = &self.sessions[&id].socket_peer;
        let credentials = Arc::new(Credentials::of_peer(peer, self.settings.overflow_uid.is_some()));
        let identity = Identity { name: peer.fallback_name(), owner: Owner(peer.uid), credentials };
        self.policy.may_be_domain(&identity)?;
        Ok(identity)
    }

    /// Checks whether the policy allows a connection's user to attach.
    pub(crate) fn may_attach(&self, id: ControlSessionId) -> Result<(), Refusal> {
        let uid = self.sessions[&id].socket_peer.uid;
        if self.settings.overflow_uid == Some(uid) {
            let text = format!("users without a number in the daemon's user namespace are all shown as {uid}");
            return Err(Refusal::new(Reason::AttachForbidden, text));
        }
        self.policy.may_attach(uid).map_err(|reason| Refusal::new(reason, format!("user {uid}: {}", reason.summary())))
    }

    /// Refuses more descriptors for a user while messages to it hold as many as they may.
    pub(crate) fn check_fds_queue(&self, id: ControlSessionId) -> Result<(), Refusal> {
        match self.socket_peer(id) {
            Some(peer) if peer.account.is_queue_full() => {
                let text =
                    format!("programs of user {} do not read their messages; let them call the library", peer.uid);
                Err(Refusal::new(Reason::FdsInFlight, text))
            }
            _ => Ok(()),
        }
    }

    /// True if another descriptor may be kept for programs, beside those of domains and `others`. A quarter of the process's descriptors
    /// is reserved for connections.
    pub(crate) fn has_room_for_fds(&self, others: usize) -> bool {
        self.attachments.fds() + others < self.settings.fds_max / 4 * 3
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
    pub(crate) fn notify(&mut self, domain: DomainId, message: ToClient) {
        if let Some(attachment) = self.attachments.get(&domain) {
            self.send(attachment.session, None, message, Vec::new());
        }
    }

    /// Refuses a request, and logs the refusal.
    pub(crate) fn refuse(&mut self, id: ControlSessionId, serial: Option<RequestSerial>, refusal: &Refusal) {
        self.log_reason(id, refusal.reason, refusal.text());
        self.send(id, serial, Refused::from(refusal).into(), Vec::new());
    }

    /// Counts a reason that a connection has given, and logs it if the reason was not logged lately.
    pub(crate) fn log_reason(&mut self, id: ControlSessionId, reason: Reason, text: &str) {
        if let Some(session) = self.sessions.get(&id) {
            let SocketPeer { uid, pid, program, .. } = &session.socket_peer;
            let about = format_args!("{program} (pid {}): {text}", pid.unwrap_or(0));
            self.reason_log.record(self.now, Owner(*uid), reason, &about);
        }
    }

    /// Records that a domain or channel gets smaller slabs than usual.
    pub(crate) fn log_smaller_slabs(&mut self, id: ControlSessionId, rings: &RingMemory, refusal: &Refusal) {
        let text = format!("gets slabs of {} KiB: {}", rings.slab.bytes() >> 10, refusal.text());
        self.log_reason(id, refusal.reason, &text);
    }
}
