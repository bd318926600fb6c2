//! Streams: pairs of sockets with memory that their programs share.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Bound;

use isthmus_layout::control::Owner;
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::{STREAM_SIZE, SocketsToClient, StreamEndIndex, StreamPaired};
use isthmus_layout::{Refusal, RegionSize};
use isthmus_shm::{Access, Mapping, SharedMapping};

use super::Sockets;
use super::counters::counters;
use super::pairing::Evidence;
use super::records::Records;
use super::session::StreamSession;
use super::shown::ShownId;
use crate::core::Core;
use crate::core::types::ControlSessionId;
use isthmus_window::{Allocator, Resource};

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
    /// The address of the other end, as the socket has it.
    pub(super) peer_address: SocketAddr,
    /// The number of the socket in the kernel.
    socket: u64,
    /// False once the program has ended its side, or has ended.
    pub(super) is_open: bool,
}

impl Stream {
    /// The owners of its programs: one, or two.
    pub(super) fn owners(&self) -> impl Iterator<Item = Owner> + use<> {
        let [one, other] = [self.ends[0].owner, self.ends[1].owner];
        std::iter::once(one).chain((other != one).then_some(other))
    }
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
    /// removed with its last side, and its bytes are added to the records of its users.
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
        let bytes = stream.words.as_ref().map(|words| StreamEndIndex::ALL.map(|end| counters(words, end)));
        for owner in stream.owners() {
            if let Some([one, other]) = &bytes {
                let sum = |a: u64, b: u64| a.saturating_add(b);
                let (shared, tcp) = (sum(one.shared_bytes, other.shared_bytes), sum(one.tcp_bytes, other.tcp_bytes));
                records.add_ended(owner, owner != stream.ends[0].owner, shared, tcp);
            }
            if let Some(count) = self.by_owner.get_mut(&owner) {
                *count -= 1;
                if *count == 0 {
                    self.by_owner.remove(&owner);
                }
            }
        }
    }

    fn insert(&mut self, id: u64, stream: Stream) {
        for owner in stream.owners() {
            *self.by_owner.entry(owner).or_default() += 1;
        }
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
    pub(super) fn pair(&mut self, core: &mut Core, shown: (ShownId, Evidence), other: ShownId) -> Result<(), Reason> {
        let (id, evidence) = shown;
        self.may_pair(core, id.session, other.session)?;
        let memory = Allocator::Host.allocate(STREAM_SIZE).map_err(|error| {
            let refusal = Refusal::from(error);
            core.log_reason(id.session, refusal.reason, refusal.text());
            refusal.reason
        })?;
        let now = core.now;
        let first = core.settings.epoch << 32;
        let waiting = self.shown.remove(other.session, other.token).ok_or(Reason::StreamPeerMissing)?.evidence;
        let ends = match evidence.is_connector() {
            true => [(id, evidence), (other, waiting)],
            false => [(other, waiting), (id, evidence)],
        };
        let [Some(connector), Some(acceptor)] = ends.clone().map(|(id, evidence)| self.side(id, &evidence)) else {
            return Err(Reason::PeerConnectionLost);
        };
        let boards = self.introduce_both(core, [connector.session, acceptor.session])?;
        self.streams.last += 1;
        let number = first.wrapping_add(self.streams.last);
        let words = self.streams.map_words(&memory);
        self.streams.insert(number, Stream { ends: [connector, acceptor], since: now, words });
        self.counts.paired += 1;
        for (ShownId { session, token }, _) in &ends {
            if let Some(session) = self.sessions.get_mut(session) {
                session.sockets.remove(*token);
                session.streams.insert(number);
            }
        }
        let [connector, acceptor] = ends.map(|(id, _)| id);
        let [first, second] = boards;
        let (one, other) = (StreamEndIndex::Connector, StreamEndIndex::Acceptor);
        self.send_paired(core, connector, acceptor.session, (number, one), [Some(memory.clone()), first]);
        self.send_paired(core, acceptor, connector.session, (number, other), [Some(memory), second]);
        Ok(())
    }

    /// Checks limits and the policy.
    fn may_pair(&self, core: &Core, a: ControlSessionId, b: ControlSessionId) -> Result<(), Reason> {
        let (Some(one), Some(other)) = (self.sessions.get(&a), self.sessions.get(&b)) else {
            return Err(Reason::PeerConnectionLost);
        };
        core.policy.may_open_channel(&one.identity, &other.identity)?;
        let of_owner = |of: &StreamSession| self.streams.by_owner.get(&of.identity.owner).copied().unwrap_or(0);
        let is_full = one.streams.len().max(other.streams.len()) >= SESSION_STREAMS_MAX;
        if is_full || of_owner(one).max(of_owner(other)) >= self.settings.streams_max {
            return Err(Reason::StreamsFull);
        }
        for id in [a, b] {
            core.check_fds_queue(id).map_err(|refusal| refusal.reason)?;
        }
        self.may_share_boards(core, [a, b])
    }

    fn side(&self, id: ShownId, evidence: &Evidence) -> Option<StreamSide> {
        let session = self.sessions.get(&id.session)?;
        Some(StreamSide {
            session: id.session,
            owner: session.identity.owner,
            pid: session.pid,
            program: session.program.clone(),
            address: evidence.local,
            peer_address: evidence.peer,
            socket: evidence.socket,
            is_open: true,
        })
    }

    fn send_paired(
        &self,
        core: &mut Core,
        ShownId { session, token }: ShownId,
        peer: ControlSessionId,
        (stream, end): (u64, StreamEndIndex),
        [memory, board]: [Option<Resource>; 2],
    ) {
        let Some(peer) = self.sessions.get(&peer).map(|peer| peer.number) else { return };
        let message = StreamPaired { token, stream, end, peer, new_peer: board.is_some() };
        let resources = memory.into_iter().chain(board).collect();
        core.send(session, None, SocketsToClient::from(message).into(), resources);
    }
}
