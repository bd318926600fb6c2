//! XenStore: a tree of small values that all domains of a host can reach, each as far as it may.
//!
//! A connection handles one request at a time. Changes of watched nodes arrive as [`StoreEvent`]s, also while a reply is awaited; they are
//! queued here until the caller takes them. An event names only the place of a change. The caller has to read the current contents, which
//! may have changed again.
//!
//! A domain trusts the store as it trusts the hypervisor. It does not trust the encoding of replies or the contents of nodes, which other
//! domains write: [`protocol`] treats both as hostile.

pub mod protocol;

use crate::Domid;
use protocol::{Incoming, MalformedPacket, PacketKind, Permission, StorePacket, StoreRefusal, UnencodableRequest};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time limit of a reply. A store that takes longer counts as broken.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of times a transaction that conflicts with others is tried.
const TRANSACTION_TRIES_MAX: u32 = 100;

/// The maximum number of queued events, because a watched domain can cause any number of them.
const EVENTS_MAX: usize = 1024;

/// The maximum number of bytes taken from the kernel in one read.
const CHUNK_BYTES: usize = protocol::HEAD_BYTES + protocol::BODY_BYTES_MAX;

/// A connection to the store, as a transport of bytes.
pub trait StoreTransport {
    /// Sends a whole packet.
    fn send(&mut self, packet: &[u8]) -> Result<(), Errno>;
    /// Receives the bytes that are available, or that arrive within `limit`. Returns 0 if there are none.
    fn receive(&mut self, into: &mut [u8], limit: Duration) -> Result<usize, Errno>;
}

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store refused the request.
    #[error("the store refuses to {asked}: {why}")]
    Refused {
        /// The request, in words.
        asked: String,
        /// The reason given by the store.
        #[source]
        why: StoreRefusal,
    },
    /// The request cannot be encoded.
    #[error("cannot be asked of the store: {0}")]
    Unencodable(#[from] UnencodableRequest),
    /// The reply is malformed.
    #[error("the store answers nonsense: {0}")]
    MalformedPacket(#[from] MalformedPacket),
    /// The connection to the store broke.
    #[error("talking to the store: {0}")]
    Broken(#[source] Errno),
    /// The store did not reply in time.
    #[error("the store has not answered for {} s", REPLY_TIMEOUT.as_secs())]
    Timeout,
    /// Every attempt of the transaction conflicted with changes by others.
    #[error("a transaction met others {TRANSACTION_TRIES_MAX} times")]
    TransactionConflict,
}

impl StoreError {
    /// Returns the store's reason, if it refused the request.
    pub fn refusal(&self) -> Option<StoreRefusal> {
        match self {
            Self::Refused { why, .. } => Some(*why),
            _ => None,
        }
    }
}

/// A change, or a possible change, of a watched node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// A node changed.
    Changed {
        /// The node that changed. The first event of a watch names the node that is watched.
        path: String,
        /// The token that was passed to the watch.
        token: String,
    },
    /// More nodes changed than the queue holds: all watched nodes have to be read.
    Overflow,
}

/// A connection to the store. Its watches and transactions end with it.
#[derive(Debug)]
pub struct Store<W> {
    transport: W,
    incoming: Incoming,
    events: VecDeque<StoreEvent>,
    request: u32,
    transaction: u32,
}

impl<W: StoreTransport> Store<W> {
    /// Creates a connection over this transport.
    pub fn new(transport: W) -> Self {
        Self { transport, incoming: Incoming::default(), events: VecDeque::new(), request: 0, transaction: 0 }
    }

    /// Returns the number of this domain.
    pub fn own_domid(&mut self) -> Result<Domid, StoreError> {
        Domid::parse(&self.read("domid")?).ok_or(StoreError::MalformedPacket(MalformedPacket::Body))
    }

    /// Returns the value of a node.
    pub fn read(&mut self, path: &str) -> Result<Vec<u8>, StoreError> {
        self.request_node(PacketKind::Read, path, &[])
    }

    /// Sets the value of a node. Creates the node and its missing parents, which then belong to this domain.
    pub fn write(&mut self, path: &str, value: &[u8]) -> Result<(), StoreError> {
        self.request_node(PacketKind::Write, path, value).map(drop)
    }

    /// Creates a node without a value, if it does not exist.
    pub fn mkdir(&mut self, path: &str) -> Result<(), StoreError> {
        self.request_node(PacketKind::Mkdir, path, &[]).map(drop)
    }

    /// Removes a node and all below it. A missing node is no error.
    pub fn remove(&mut self, path: &str) -> Result<(), StoreError> {
        match self.request_node(PacketKind::Remove, path, &[]) {
            Err(StoreError::Refused { why: StoreRefusal::Missing, .. }) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Returns the names of a node's children.
    pub fn children(&mut self, path: &str) -> Result<Vec<String>, StoreError> {
        let body = self.request_node(PacketKind::Directory, path, &[])?;
        Ok(protocol::strings(&body)?.into_iter().map(str::to_owned).collect())
    }

    /// Returns the permissions of a node, the owner's first.
    pub fn permissions(&mut self, path: &str) -> Result<Vec<Permission>, StoreError> {
        let body = self.request_node(PacketKind::Permissions, path, &[])?;
        Ok(protocol::strings(&body)?.into_iter().map(Permission::parse).collect::<Result<_, _>>()?)
    }

    /// Sets the permissions of a node of this domain.
    pub fn set_permissions(&mut self, path: &str, permissions: &[Permission]) -> Result<(), StoreError> {
        protocol::check_path(path)?;
        let texts: Vec<String> = permissions.iter().map(|permission| permission.emit()).collect();
        let strings: Vec<&str> = std::iter::once(path).chain(texts.iter().map(String::as_str)).collect();
        self.request(PacketKind::SetPermissions, self.transaction, &strings, &[]).map(drop)
    }

    /// Watches `path`: one event comes at once, and one for each change at or below it. The node may be missing or unreadable; then an
    /// event comes only when that changes.
    pub fn watch(&mut self, path: &str, token: &str) -> Result<(), StoreError> {
        protocol::check_path(path)?;
        self.request(PacketKind::Watch, 0, &[path, token], &[]).map(drop)
    }

    /// Ends a watch. Events of it may be queued already.
    pub fn unwatch(&mut self, path: &str, token: &str) -> Result<(), StoreError> {
        protocol::check_path(path)?;
        self.request(PacketKind::Unwatch, 0, &[path, token], &[]).map(drop)
    }

    /// Runs `work` in a transaction: all of its changes are made or none, and no change by others comes in between. After a conflict `work`
    /// runs again, so it should have no other effects. A nested transaction is part of the outer one.
    pub fn transaction<T>(
        &mut self,
        mut work: impl FnMut(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if self.transaction != 0 {
            return work(self);
        }
        for _ in 0..TRANSACTION_TRIES_MAX {
            let begun = self.request(PacketKind::TransactionStart, 0, &[""], &[])?;
            let number = protocol::transaction(&begun)?;
            self.transaction = number;
            let result = work(self);
            self.transaction = 0;
            let commit_flag = if result.is_ok() { "T" } else { "F" };
            match (result, self.request(PacketKind::TransactionEnd, number, &[commit_flag], &[])) {
                (Err(error), _) | (Ok(_), Err(error)) if error.refusal() == Some(StoreRefusal::Conflict) => {}
                (result, ended) => return result.and_then(|done| ended.map(|_| done)),
            }
        }
        Err(StoreError::TransactionConflict)
    }

    /// Returns the next event, if one is queued or arrives within `limit`.
    pub fn event(&mut self, limit: Duration) -> Result<Option<StoreEvent>, StoreError> {
        let end = Instant::now() + limit;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            match self.packet(end)? {
                Some(packet) => self.queue_event(&packet),
                None => return Ok(None),
            }
        }
    }

    fn request_node(&mut self, kind: PacketKind, path: &str, value: &[u8]) -> Result<Vec<u8>, StoreError> {
        protocol::check_path(path)?;
        self.request(kind, self.transaction, &[path], value)
    }

    /// Sends a request and waits for its reply. Replies to requests that timed out are dropped.
    fn request(
        &mut self,
        kind: PacketKind,
        transaction: u32,
        strings: &[&str],
        rest: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        self.request = self.request.wrapping_add(1).max(1);
        let packet = protocol::emit(kind, self.request, transaction, strings, rest)?;
        self.transport.send(&packet).map_err(StoreError::Broken)?;
        let end = Instant::now() + REPLY_TIMEOUT;
        while let Some(packet) = self.packet(end)? {
            match packet.kind {
                Some(PacketKind::WatchEvent) => self.queue_event(&packet),
                _ if packet.request != self.request => {}
                Some(PacketKind::Error) => {
                    let asked = kind.describe(strings.first().unwrap_or(&""));
                    return Err(StoreError::Refused { asked, why: StoreRefusal::parse(&packet.body) });
                }
                Some(reply_kind) if reply_kind == kind => return Ok(packet.body),
                _ => return Err(StoreError::MalformedPacket(MalformedPacket::Body)),
            }
        }
        Err(StoreError::Timeout)
    }

    /// Returns the next packet that arrives before `end`. Packets that are available already are returned also after `end`.
    fn packet(&mut self, end: Instant) -> Result<Option<StorePacket>, StoreError> {
        let mut chunk = [0; CHUNK_BYTES];
        loop {
            if let Some(packet) = self.incoming.packet()? {
                return Ok(Some(packet));
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.transport.receive(&mut chunk, left).map_err(StoreError::Broken)? {
                0 => return Ok(None),
                bytes => self.incoming.push(&chunk[..bytes]),
            }
        }
    }

    /// Queues an event. A duplicate of a queued event is dropped. An event that cannot be parsed counts as an overflow, because it may
    /// concern any node.
    fn queue_event(&mut self, packet: &StorePacket) {
        if packet.kind != Some(PacketKind::WatchEvent) {
            return;
        }
        let event = match protocol::event(&packet.body) {
            Ok((path, token)) => StoreEvent::Changed { path: path.to_owned(), token: token.to_owned() },
            Err(_) => StoreEvent::Overflow,
        };
        if self.events.contains(&event) {
            return;
        }
        if event == StoreEvent::Overflow || self.events.len() == EVENTS_MAX {
            self.events.clear(); // After an overflow the caller reads all nodes.
            self.events.push_back(StoreEvent::Overflow);
        } else if self.events.front() != Some(&StoreEvent::Overflow) {
            self.events.push_back(event);
        }
    }
}

impl<W: AsFd> AsFd for Store<W> {
    /// The descriptor to poll. Before sleeping on it, take events until there are none, because some may be queued already.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.transport.as_fd()
    }
}

#[cfg(test)]
mod tests;
