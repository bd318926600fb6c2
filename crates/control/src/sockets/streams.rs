//! Streams: pairs of sockets with memory that their programs share.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Bound;

use isthmus_layout::RegionSize;
use isthmus_layout::control::Owner;
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::{STREAM_SIZE, SocketsToClient, StreamEndIndex, StreamPaired};
use isthmus_shm::{Access, Mapping, SharedMapping};

use super::Sockets;
use super::counters::counters;
use super::pairing::Evidence;
use super::records::Records;
use super::shown::ShownId;
use crate::allocator::{Allocator, Resource};
use crate::broker::{Broker, ControlSessionId};

/// The number of streams of one session.
const SESSION_STREAMS_MAX: usize = 16_384;

/// The number of streams with words that the daemon maps for reports. The kernel allows a process 65,530 mappings by default.
const MAPPED_MAX: usize = 16_384;

/// A stream.
#[derive(Debug)]
pub(super) struct Stream {
    /// The ends: connector, acceptor.
    pub(super) ends: [StreamSide; 2],
    /// The time of its creation.
    pub(super) since: u64,
    /// The words of both ends, for reports.
    pub(super) words: Option<SharedMapping>,
}

/// One end of a stream, as the daemon knows it.
#[derive(Clone, Debug)]
pub(super) struct StreamSide {
    /// The session of the program.
    pub(super) session: ControlSessionId,
    /// The owner of the program.
    pub(super) owner: Owner,
    /// The process, if the daemon can see it.
    pub(super) pid: Option<i32>,
    /// The name of the program.
    pub(super) program: String,
    /// The address of the socket.
    pub(super) address: SocketAddr,
    /// The number of the socket in the kernel.
    socket: u64,
    /// False once the program has ended its side, or has ended.
    pub(super) is_open: bool,
}

/// All streams.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: BTreeMap<u64, Stream>,
    /// By the number of the socket in the kernel.
    by_socket: BTreeMap<u64, u64>,
    by_owner: BTreeMap<Owner, usize>,
    mapped: usize,
    last: u64,
}

impl Streams {
    /// The number of streams.
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    /// The first stream with a number above another one, or of all.
    pub(super) fn next_after(&self, after: Option<u64>) -> Option<u64> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.streams.range((after, Bound::Unbounded)).next().map(|(id, _)| *id)
    }

    /// The stream with this number.
    pub(super) fn get(&self, id: u64) -> Option<&Stream> {
        self.streams.get(&id)
    }

    /// True if the socket is an open end of a stream.
    pub(super) fn has_socket(&self, socket: u64) -> bool {
        self.by_socket.contains_key(&socket)
    }

    /// Ends one side of a stream that a session has. Returns true if the session has the other side, too, and it is open. The stream is
    /// removed with its last side, and its bytes are added to the record of its user.
    pub(super) fn end(&mut self, id: u64, session: ControlSessionId, records: &mut Records) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        let own = stream.ends.iter_mut().find(|end| end.session == session && end.is_open);
        let Some(own) = own else { return false };
        own.is_open = false;
        self.by_socket.remove(&own.socket);
        let has_other = stream.ends.iter().any(|end| end.session == session && end.is_open);
        if stream.ends.iter().all(|end| !end.is_open) {
            self.remove(id, records);
        }
        has_other
    }

    fn remove(&mut self, id: u64, records: &mut Records) {
        let Some(stream) = self.streams.remove(&id) else { return };
        self.mapped -= usize::from(stream.words.is_some());
        let owner = stream.ends[0].owner; // Both ends have one.
        if let Some(words) = &stream.words {
            let [one, other] = StreamEndIndex::ALL.map(|end| counters(words, end));
            let sum = |a: u64, b: u64| a.saturating_add(b);
            records.add_ended(owner, sum(one.shared_bytes, other.shared_bytes), sum(one.tcp_bytes, other.tcp_bytes));
        }
        if let Some(count) = self.by_owner.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.by_owner.remove(&owner);
            }
        }
    }

    fn insert(&mut self, id: u64, stream: Stream) {
        *self.by_owner.entry(stream.ends[0].owner).or_default() += 1;
        self.mapped += usize::from(stream.words.is_some());
        for end in &stream.ends {
            self.by_socket.insert(end.socket, id);
        }
        self.streams.insert(id, stream);
    }

    /// Maps the words of a stream, unless too many are mapped.
    fn map_words(&self, memory: &Resource) -> Option<SharedMapping> {
        let file = memory.file().filter(|_| self.mapped < MAPPED_MAX)?;
        Mapping::new(file, RegionSize(PAGE_BYTES.into()), Access::Read).ok().map(SharedMapping::new)
    }
}

impl Sockets {
    /// Makes a stream of a socket that was just shown and of one that waits. On an error, the caller refuses both.
    pub(super) fn pair(broker: &mut Broker, shown: (ShownId, Evidence), other: ShownId) -> Result<(), Reason> {
        let (id, evidence) = shown;
        Self::may_pair(broker, id.session, other.session)?;
        let memory = Allocator::Host.allocate(STREAM_SIZE).map_err(|refusal| {
            broker.log_reason(id.session, refusal.reason, refusal.text());
            refusal.reason
        })?;
        let now = broker.now;
        let first = broker.settings.epoch << 32;
        let sockets = &mut broker.capabilities.sockets;
        let waiting = sockets.shown.remove(other.session, other.token).ok_or(Reason::StreamPeerMissing)?.evidence;
        let ends = match evidence.is_connector() {
            true => [(id, evidence), (other, waiting)],
            false => [(other, waiting), (id, evidence)],
        };
        let [Some(connector), Some(acceptor)] = ends.clone().map(|(id, evidence)| sockets.side(id, &evidence)) else {
            return Err(Reason::PeerConnectionLost);
        };
        sockets.streams.last += 1;
        let number = first.wrapping_add(sockets.streams.last);
        let words = sockets.streams.map_words(&memory);
        sockets.streams.insert(number, Stream { ends: [connector, acceptor], since: now, words });
        sockets.counts.paired += 1;
        for (ShownId { session, token }, _) in &ends {
            if let Some(session) = sockets.sessions.get_mut(session) {
                session.sockets.remove(*token);
                session.streams.insert(number);
            }
        }
        let [connector, acceptor] = ends.map(|(id, _)| id);
        Self::send_paired(broker, connector, acceptor.session, (number, StreamEndIndex::Connector), &memory);
        Self::send_paired(broker, acceptor, connector.session, (number, StreamEndIndex::Acceptor), &memory);
        Ok(())
    }

    /// Checks limits and the policy.
    fn may_pair(broker: &Broker, a: ControlSessionId, b: ControlSessionId) -> Result<(), Reason> {
        let sockets = &broker.capabilities.sockets;
        let (Some(one), Some(other)) = (sockets.sessions.get(&a), sockets.sessions.get(&b)) else {
            return Err(Reason::PeerConnectionLost);
        };
        broker.policy.may_open_channel(&one.identity, &other.identity)?;
        let of_owner = sockets.streams.by_owner.get(&one.identity.owner).copied().unwrap_or(0);
        let is_full = one.streams.len().max(other.streams.len()) >= SESSION_STREAMS_MAX;
        if is_full || of_owner >= sockets.settings.streams_max {
            return Err(Reason::StreamsFull);
        }
        for id in [a, b] {
            broker.check_fds_queue(id).map_err(|refusal| refusal.reason)?;
        }
        Ok(())
    }

    fn side(&self, id: ShownId, evidence: &Evidence) -> Option<StreamSide> {
        let session = self.sessions.get(&id.session)?;
        Some(StreamSide {
            session: id.session,
            owner: session.identity.owner,
            pid: session.pid,
            program: session.program.clone(),
            address: evidence.local,
            socket: evidence.socket,
            is_open: true,
        })
    }

    fn send_paired(
        broker: &mut Broker,
        ShownId { session, token }: ShownId,
        peer: ControlSessionId,
        (stream, end): (u64, StreamEndIndex),
        memory: &Resource,
    ) {
        let board = Self::introduce(broker, peer, session);
        let Some(peer) = broker.capabilities.sockets.sessions.get(&peer).map(|peer| peer.number) else { return };
        let message = StreamPaired { token, stream, end, peer, new_peer: board.is_some() };
        let resources = [memory.clone()].into_iter().chain(board).collect();
        broker.send(session, None, SocketsToClient::from(message).into(), resources);
    }
}
