//! The state of a domain's paths, as a program can query it.

use crate::peer::{ChannelState, Path, Peer};
use isthmus_layout::DomainId;
use isthmus_layout::ids::ChannelId;
use isthmus_layout::reason::Reason;
use isthmus_shm::RingCounters;

/// By which path messages to a peer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// Through shared memory, past the daemon.
    Channel(ChannelId),
    /// Through the daemon, for this reason.
    Daemon(Reason),
}

/// The path to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelStatus {
    /// The peer.
    pub peer: DomainId,
    /// Its name, where a channel's offer told it.
    pub peer_name: Option<String>,
    /// By which path messages to it go now.
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
