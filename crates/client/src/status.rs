//! What a program can ask about its paths.

use crate::peer::{Making, Path, Peer};
use isthmus_layout::DomainId;
use isthmus_layout::ids::ChannelId;
use isthmus_layout::reason::Reason;
use isthmus_shm::Counters;

/// By which path messages to a peer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// Through shared memory, past the daemon.
    Channel(ChannelId),
    /// Through the daemon, for this reason.
    Ordinary(Reason),
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
    /// Why large messages to it go in pieces, copied twice, by the last of them that could tell. None where they are copied once
    /// out of the buffer, and where there was no large message yet or no channel, of which `path` has the reason.
    pub in_pieces: Option<Reason>,
    /// Why the peer had to ask for what it last wanted of memory that is registered here. None if it never had to.
    pub asked: Option<Reason>,
    /// What was sent by the channel.
    pub sent: Counters,
    /// Messages that wait for room.
    pub queued: usize,
}

impl ChannelStatus {
    pub(crate) fn of(peer: &Peer, sent: Counters) -> Self {
        let path = match (peer.out, peer.making, peer.leaving) {
            (Path::Channel(_), Making::Made { id, .. }, _) => PathKind::Channel(id),
            (_, Making::Made { .. }, Some(reason)) => PathKind::Ordinary(reason),
            (_, Making::Not, _) => PathKind::Ordinary(Reason::ChannelNotAsked),
            (_, Making::Asked | Making::Made { .. }, _) => PathKind::Ordinary(Reason::ChannelPending),
            (_, Making::Refused { reason, .. }, _) => PathKind::Ordinary(reason),
        };
        let name = peer.name.as_ref().map(|name| name.as_str().to_owned());
        Self {
            peer: peer.id,
            peer_name: name,
            path,
            in_pieces: peer.in_pieces,
            asked: peer.asked,
            sent,
            queued: peer.queue.len() + peer.streams.len(),
        }
    }
}
