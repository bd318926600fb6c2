//! The state of a domain's paths, as a program can query it.

use crate::peer::{ChannelState, Path, Peer};
use isthmus_layout::DomainId;
use isthmus_layout::ids::ChannelId;
use isthmus_layout::reason::Reason;
use isthmus_shm::RingCounters;

/// The path of messages to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// The direct path: a channel in shared memory.
    Channel(ChannelId),
    /// The daemon path, for this reason.
    Daemon(Reason),
}

/// The path to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelStatus {
    /// The peer.
    pub peer: DomainId,
    /// The name of the peer, if it is known from the offer of a channel.
    pub peer_name: Option<String>,
    /// The current path of messages to the peer.
    pub path: PathKind,
    /// Why large messages to it go in fragments, copied twice, by the last of them that could tell. None where they are copied once
    /// out of the buffer, and where there was no large message yet or no channel, of which `path` has the reason.
    pub fragmented: Option<Reason>,
    /// Why the peer last needed this domain's help for an access to memory registered here. None if it never did.
    /// [`Reason::MemoryNotReady`] does not replace another reason, because it says least.
    pub assisted: Option<Reason>,
    /// Counters of the records sent by the channel.
    pub sent: RingCounters,
    /// Messages that wait for room.
    pub queued: usize,
}

impl ChannelStatus {
    pub(crate) fn of(peer: &Peer, sent: RingCounters) -> Self {
        let path = match (peer.path_out, peer.channel_state, peer.fallback_reason) {
            (Path::Channel(_), ChannelState::Made { id, .. }, _) => PathKind::Channel(id),
            (_, ChannelState::Made { .. }, Some(reason)) => PathKind::Daemon(reason),
            (_, ChannelState::Absent, _) => PathKind::Daemon(Reason::ChannelNotRequested),
            (_, ChannelState::Asked | ChannelState::Made { .. }, _) => PathKind::Daemon(Reason::ChannelPending),
            (_, ChannelState::Refused { reason, .. }, _) => PathKind::Daemon(reason),
        };
        let name = peer.name.as_ref().map(|name| name.as_str().to_owned());
        Self {
            peer: peer.id,
            peer_name: name,
            path,
            fragmented: peer.fragmented,
            assisted: peer.assisted,
            sent,
            queued: peer.queue.len() + peer.streams.len(),
        }
    }
}
