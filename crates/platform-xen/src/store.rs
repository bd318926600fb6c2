//! XenStore: a tree of small values that all domains of a host can reach, each as far as it may.
//!
//! One connection, one request at a time. What is watched and changes comes as [`Event`]s, also while an answer is awaited; they wait
//! here until they are asked for. An event says only where to look: what is there has to be read, and may have changed again.
//!
//! Who runs under Xen trusts the store as it does the hypervisor, but not its wording, and what values hold comes from other domains:
//! [`wire`] takes both for hostile.

pub mod wire;

use crate::Domid;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use wire::{Incoming, Kind, Malformed, Packet, Permission, Refusal, Unsayable};

/// How long an answer may take. A store that is slower is gone, or as good as.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// How often a transaction that met others is tried again.
const TRIES_MAX: u32 = 100;

/// Events that wait to be asked for. Who is watched can make as many as it likes.
const EVENTS_MAX: usize = 1024;

/// Bytes taken from the kernel at once.
const CHUNK_BYTES: usize = wire::HEAD_BYTES + wire::BODY_BYTES_MAX;

/// A connection to the store: packets out, bytes in.
pub trait Wire {
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
        why: Refusal,
    },
    /// This cannot be asked.
    #[error("cannot be asked of the store: {0}")]
    Unsayable(#[from] Unsayable),
    /// Its answer cannot be understood.
    #[error("the store answers nonsense: {0}")]
    Malformed(#[from] Malformed),
    /// The connection to it broke.
    #[error("talking to the store: {0}")]
    Broken(#[source] Errno),
    /// It does not answer.
    #[error("the store has not answered for {} s", ANSWER_LIMIT.as_secs())]
    Silent,
    /// Others change what the transaction is about all the time.
    #[error("a transaction met others {TRIES_MAX} times")]
    Contended,
}

impl StoreError {
    /// What it refused with, if it did.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Refused { why, .. } => Some(*why),
            _ => None,
        }
    }
}

/// Something that is watched has changed, or may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Look there.
    Changed {
        /// The node that changed. The first event of a watch names the node that is watched.
        path: String,
        /// What the watch was set with.
        token: String,
    },
    /// More changed than is remembered: look everywhere.
    Lost,
}

/// One connection. Its watches and transactions end with it.
#[derive(Debug)]
pub struct Store<W> {
    wire: W,
    incoming: Incoming,
    events: VecDeque<Event>,
    request: u32,
    transaction: u32,
}

impl<W: Wire> Store<W> {
    /// Speaks over `wire`.
    pub fn new(wire: W) -> Self {
        Self { wire, incoming: Incoming::default(), events: VecDeque::new(), request: 0, transaction: 0 }
    }

    /// Which domain we are.
    pub fn own_domid(&mut self) -> Result<Domid, StoreError> {
        Domid::parse(&self.read("domid")?).ok_or(StoreError::Malformed(Malformed::Body))
    }

    /// The value of a node.
    pub fn read(&mut self, path: &str) -> Result<Vec<u8>, StoreError> {
        self.about(Kind::Read, path, &[])
    }

    /// Sets the value of a node, which is made where it is not. It belongs to us then, and those above it that had to be made.
    pub fn write(&mut self, path: &str, value: &[u8]) -> Result<(), StoreError> {
        self.about(Kind::Write, path, value).map(drop)
    }

    /// Makes a node without a value, if it is not there.
    pub fn make(&mut self, path: &str) -> Result<(), StoreError> {
        self.about(Kind::Make, path, &[]).map(drop)
    }

    /// Removes a node and all below it. That it is not there is no error.
    pub fn remove(&mut self, path: &str) -> Result<(), StoreError> {
        match self.about(Kind::Remove, path, &[]) {
            Err(StoreError::Refused { why: Refusal::Missing, .. }) => Ok(()),
            other => other.map(drop),
        }
    }

    /// The names of a node's children.
    pub fn children(&mut self, path: &str) -> Result<Vec<String>, StoreError> {
        let body = self.about(Kind::Directory, path, &[])?;
        Ok(wire::strings(&body)?.into_iter().map(str::to_owned).collect())
    }

    /// Who may do what with a node: its owner first.
    pub fn permissions(&mut self, path: &str) -> Result<Vec<Permission>, StoreError> {
        let body = self.about(Kind::Permissions, path, &[])?;
        Ok(wire::strings(&body)?.into_iter().map(Permission::parse).collect::<Result<_, _>>()?)
    }

    /// Sets who may do what with a node of ours.
    pub fn set_permissions(&mut self, path: &str, permissions: &[Permission]) -> Result<(), StoreError> {
        wire::check_path(path)?;
        let texts: Vec<String> = permissions.iter().map(|permission| permission.emit()).collect();
        let strings: Vec<&str> = std::iter::once(path).chain(texts.iter().map(String::as_str)).collect();
        self.ask(Kind::SetPermissions, self.transaction, &strings, &[]).map(drop)
    }

    /// From now on, an event for each change at or below `path`; and one at once. Also for a node that is not there yet, or that we may
    /// not read: then only if that changes.
    pub fn watch(&mut self, path: &str, token: &str) -> Result<(), StoreError> {
        wire::check_path(path)?;
        self.ask(Kind::Watch, 0, &[path, token], &[]).map(drop)
    }

    /// No more of these. Some may have come before.
    pub fn unwatch(&mut self, path: &str, token: &str) -> Result<(), StoreError> {
        wire::check_path(path)?;
        self.ask(Kind::Unwatch, 0, &[path, token], &[]).map(drop)
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
        for _ in 0..TRIES_MAX {
            let begun = self.ask(Kind::Begin, 0, &[""], &[])?;
            let number = wire::transaction(&begun)?;
            self.transaction = number;
            let worked = work(self);
            self.transaction = 0;
            let verdict = if worked.is_ok() { "T" } else { "F" };
            match (worked, self.ask(Kind::End, number, &[verdict], &[])) {
                (Err(error), _) | (Ok(_), Err(error)) if error.refusal() == Some(Refusal::Again) => {}
                (worked, ended) => return worked.and_then(|done| ended.map(|_| done)),
            }
        }
        Err(StoreError::Contended)
    }

    /// The next event, if there is one or one comes within `limit`.
    pub fn event(&mut self, limit: Duration) -> Result<Option<Event>, StoreError> {
        let end = Instant::now() + limit;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            match self.packet(end)? {
                Some(packet) => self.take_event(&packet),
                None => return Ok(None),
            }
        }
    }

    fn about(&mut self, kind: Kind, path: &str, value: &[u8]) -> Result<Vec<u8>, StoreError> {
        wire::check_path(path)?;
        self.ask(kind, self.transaction, &[path], value)
    }

    /// Asks, and waits for the answer to just that. Answers to what was given up before are dropped.
    fn ask(&mut self, kind: Kind, transaction: u32, strings: &[&str], rest: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.request = self.request.wrapping_add(1).max(1);
        let packet = wire::emit(kind, self.request, transaction, strings, rest)?;
        self.wire.send(&packet).map_err(StoreError::Broken)?;
        let end = Instant::now() + ANSWER_LIMIT;
        while let Some(packet) = self.packet(end)? {
            match packet.kind {
                Some(Kind::Event) => self.take_event(&packet),
                _ if packet.request != self.request => {}
                Some(Kind::Refused) => {
                    let asked = kind.asked(strings.first().unwrap_or(&""));
                    return Err(StoreError::Refused { asked, why: Refusal::parse(&packet.body) });
                }
                Some(answered) if answered == kind => return Ok(packet.body),
                _ => return Err(StoreError::Malformed(Malformed::Body)),
            }
        }
        Err(StoreError::Silent)
    }

    /// The next packet that comes before `end`. What is there already comes after it, too.
    fn packet(&mut self, end: Instant) -> Result<Option<Packet>, StoreError> {
        let mut chunk = [0; CHUNK_BYTES];
        loop {
            if let Some(packet) = self.incoming.packet()? {
                return Ok(Some(packet));
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.wire.receive(&mut chunk, left).map_err(StoreError::Broken)? {
                0 => return Ok(None),
                bytes => self.incoming.push(&chunk[..bytes]),
            }
        }
    }

    /// Remembers an event. One that waits already says the same; one that cannot be understood could be any.
    fn take_event(&mut self, packet: &Packet) {
        if packet.kind != Some(Kind::Event) {
            return;
        }
        let event = match wire::event(&packet.body) {
            Ok((path, token)) => Event::Changed { path: path.to_owned(), token: token.to_owned() },
            Err(_) => Event::Lost,
        };
        if self.events.contains(&event) {
            return;
        }
        if event == Event::Lost || self.events.len() == EVENTS_MAX {
            self.events.clear(); // Whoever looks everywhere looks there, too.
            self.events.push_back(Event::Lost);
        } else if self.events.front() != Some(&Event::Lost) {
            self.events.push_back(event);
        }
    }
}

impl<W: AsFd> AsFd for Store<W> {
    /// To poll. Ask for events until there are none before going to sleep on it: they may be here already.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wire.as_fd()
    }
}

#[cfg(test)]
mod tests;
