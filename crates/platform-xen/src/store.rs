//! XenStore: a tree of small values that all domains of a host can reach, each as far as it may.
//!
//! One connection, one request at a time. What is watched and changes comes as [`StoreEvent`]s, also while an answer is awaited; they wait
//! here until they are asked for. An event says only where to look: what is there has to be read, and may have changed again.
//!
//! Who runs under Xen trusts the store as it does the hypervisor, but not its wording, and what values hold comes from other domains:
//! [`protocol`] takes both for hostile.

pub mod protocol;

use crate::Domid;
use protocol::{Incoming, MalformedPacket, PacketKind, Permission, StorePacket, StoreRefusal, UnencodableRequest};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long an answer may take. A store that is slower is gone, or as good as.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a transaction that met others is tried again.
const TRANSACTION_TRIES_MAX: u32 = 100;

/// Events that wait to be asked for. Who is watched can make as many as it likes.
const EVENTS_MAX: usize = 1024;

/// Bytes taken from the kernel at once.
const CHUNK_BYTES: usize = protocol::HEAD_BYTES + protocol::BODY_BYTES_MAX;

/// A connection to the store: packets out, bytes in.
pub trait StoreTransport {
    /// Sends a whole packet.
    fn send(&mut self, packet: &[u8]) -> Result<(), Errno>;
    /// Takes what has come, or comes within `limit`; 0 bytes if nothing does.
    fn receive(&mut self, into: &mut [u8], limit: Duration) -> Result<usize, Errno>;
}

/// Why the store did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It said no.
    #[error("the store refuses to {asked}: {why}")]
    Refused {
        /// What it was asked to do.
        asked: String,
        /// Why it does not.
        #[source]
        why: StoreRefusal,
    },
    /// This cannot be asked.
    #[error("cannot be asked of the store: {0}")]
    Unencodable(#[from] UnencodableRequest),
    /// Its answer cannot be understood.
    #[error("the store answers nonsense: {0}")]
    MalformedPacket(#[from] MalformedPacket),
    /// The connection to it broke.
    #[error("talking to the store: {0}")]
    Broken(#[source] Errno),
    /// It does not answer.
    #[error("the store has not answered for {} s", REPLY_TIMEOUT.as_secs())]
    Timeout,
    /// Others change what the transaction is about all the time.
    #[error("a transaction met others {TRANSACTION_TRIES_MAX} times")]
    TransactionConflict,
}

impl StoreError {
    /// What it refused with, if it did.
    pub fn refusal(&self) -> Option<StoreRefusal> {
        match self {
            Self::Refused { why, .. } => Some(*why),
            _ => None,
        }
    }
}

/// Something that is watched has changed, or may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// Look there.
    Changed {
        /// The node that changed. The first event of a watch names the node that is watched.
        path: String,
        /// What the watch was set with.
        token: String,
    },
    /// More changed than is remembered: look everywhere.
    Overflow,
}

/// One connection. Its watches and transactions end with it.
#[derive(Debug)]
pub struct Store<W> {
    transport: W,
    incoming: Incoming,
    events: VecDeque<StoreEvent>,
    request: u32,
    transaction: u32,
}

impl<W: StoreTransport> Store<W> {
    /// Uses this transport.
    pub fn new(transport: W) -> Self {
        Self { transport, incoming: Incoming::default(), events: VecDeque::new(), request: 0, transaction: 0 }
    }

    /// Which domain we are.
    pub fn own_domid(&mut self) -> Result<Domid, StoreError> {
        Domid::parse(&self.read("domid")?).ok_or(StoreError::MalformedPacket(MalformedPacket::Body))
    }

    /// The value of a node.
    pub fn read(&mut self, path: &str) -> Result<Vec<u8>, StoreError> {
        self.request_node(PacketKind::Read, path, &[])
    }

    /// Sets the value of a node, which is made where it is not. It belongs to us then, and those above it that had to be made.
    pub fn write(&mut self, path: &str, value: &[u8]) -> Result<(), StoreError> {
        self.request_node(PacketKind::Write, path, value).map(drop)
    }

    /// Makes a node without a value, if it is not there.
    pub fn mkdir(&mut self, path: &str) -> Result<(), StoreError> {
        self.request_node(PacketKind::Mkdir, path, &[]).map(drop)
    }

    /// Removes a node and all below it. That it is not there is no error.
    pub fn remove(&mut self, path: &str) -> Result<(), StoreError> {
        match self.request_node(PacketKind::Remove, path, &[]) {
            Err(StoreError::Refused { why: StoreRefusal::Missing, .. }) => Ok(()),
            other => other.map(drop),
        }
    }

    /// The names of a node's children.
    pub fn children(&mut self, path: &str) -> Result<Vec<String>, StoreError> {
        let body = self.request_node(PacketKind::Directory, path, &[])?;
        Ok(protocol::strings(&body)?.into_iter().map(str::to_owned).collect())
    }

    /// Who may do what with a node: its owner first.
    pub fn permissions(&mut self, path: &str) -> Result<Vec<Permission>, StoreError> {
        let body = self.request_node(PacketKind::Permissions, path, &[])?;
        Ok(protocol::strings(&body)?.into_iter().map(Permission::parse).collect::<Result<_, _>>()?)
    }

    /// Sets who may do what with a node of ours.
    pub fn set_permissions(&mut self, path: &str, permissions: &[Permission]) -> Result<(), StoreError> {
        protocol::check_path(path)?;
        let texts: Vec<String> = permissions.iter().map(|permission| permission.emit()).collect();
        let strings: Vec<&str> = std::iter::once(path).chain(texts.iter().map(String::as_str)).collect();
        self.request(PacketKind::SetPermissions, self.transaction, &strings, &[]).map(drop)
    }

    /// From now on, an event for each change at or below `path`; and one at once. Also for a node that is not there yet, or that we may
    /// not read: then only if that changes.
    pub fn watch(&mut self, path: &str, token: &str) -> Result<(), StoreError> {
        protocol::check_path(path)?;
        self.request(PacketKind::Watch, 0, &[path, token], &[]).map(drop)
    }

    /// No more of these. Some may have come before.
    pub fn unwatch(&mut self, path: &str, token: &str) -> Result<(), StoreError> {
        protocol::check_path(path)?;
        self.request(PacketKind::Unwatch, 0, &[path, token], &[]).map(drop)
    }

    /// All of `work` or nothing of it, and nothing of others in between. It is done again where others were faster, so it should do
    /// nothing else. A transaction in a transaction is that one.
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

    /// The next event, if there is one or one comes within `limit`.
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

    /// Asks, and waits for the answer to just that. Answers to what was given up before are dropped.
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

    /// The next packet that comes before `end`. What is there already comes after it, too.
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

    /// Remembers an event. One that waits already says the same; one that cannot be understood could be any.
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
            self.events.clear(); // Whoever looks everywhere looks there, too.
            self.events.push_back(StoreEvent::Overflow);
        } else if self.events.front() != Some(&StoreEvent::Overflow) {
            self.events.push_back(event);
        }
    }
}

impl<W: AsFd> AsFd for Store<W> {
    /// To poll. Ask for events until there are none before going to sleep on it: they may be here already.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.transport.as_fd()
    }
}

#[cfg(test)]
mod tests;
