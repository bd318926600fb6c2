//! Reports the path that two domains use, with the reason.

use std::ops::Bound;

use isthmus_layout::Refusal;
use isthmus_layout::channel::{
    BYTES, ChannelGeometry, DIRECT_ACCESSES, DOORBELLS, Direction, MESSAGES, REFUSED_ACCESSES, SERVED_ACCESSES,
    SLOW_PATH_REASONS, SlowPathReasons,
};
use isthmus_layout::control::Name;
use isthmus_layout::ids::{ChannelId, DomainId};
use isthmus_layout::limits::READY_MAPS_MAX;
use isthmus_layout::reason::Reason;

use super::NANOSECONDS;
use super::slices::Table;
use super::written::hidden;
use crate::broker::Broker;
use crate::directory::DomainEntry;
use crate::directory::channels::{ChannelEntry, ChannelStage};
use crate::viewer::{Viewer, not_yours};
use isthmus_report::{ChannelRow, Channels, DirectionRow, DomainName, PairRow, PathEnd, SCHEMA, Why};
use isthmus_window::Resource;

type KnownChannel = ChannelEntry<Resource>;

/// The path of messages from one domain to another.
struct Path<'a> {
    name: &'static str,
    reason: Option<Reason>,
    channel: Option<&'a KnownChannel>,
}

/// The pairs of domains with a channel, or of which one was refused one. A pair comes with its domain with the lower number, unless only
/// the other one knows.
pub(super) enum PairTable {}

/// A row of a pair; none of one that the viewer does not see.
type PairRows = Vec<Option<PairRow>>;

impl Table for PairTable {
    type Key = (DomainId, Option<DomainId>);
    type Row = Option<PairRow>;
    type Report = Channels;

    const SLICE: usize = 32;

    fn next(broker: &Broker, after: Option<&Self::Key>) -> Option<Self::Key> {
        let next_peer = |of: DomainId, after: Option<DomainId>| {
            let peers = &broker.core.directory.get(of)?.peers;
            let after = after.map_or(Bound::Unbounded, Bound::Excluded);
            peers.range((after, Bound::Unbounded)).next().map(|(peer, _)| *peer)
        };
        match after {
            Some(&(of, last)) => match next_peer(of, last) {
                Some(peer) => Some((of, Some(peer))),
                None => Some((broker.core.directory.next_after(Some(of))?, None)),
            },
            None => Some((broker.core.directory.next_after(None)?, None)),
        }
    }

    fn add(broker: &Broker, viewer: &Viewer, &(of, peer): &Self::Key, rows: &mut PairRows) {
        let Some((of, peer)) = broker.core.directory.get(of).zip(peer.and_then(|peer| broker.core.directory.get(peer)))
        else {
            return;
        };
        if !is_of_interest(of, peer.id) || of.id > peer.id && is_of_interest(peer, of.id) {
            return; // It comes with the other one.
        }
        let (a, b) = if of.id < peer.id { (of, peer) } else { (peer, of) };
        let is_visible = viewer.sees_domain(&broker.core, a) || viewer.sees_domain(&broker.core, b);
        rows.push(is_visible.then(|| {
            let path = path(broker, a, b);
            PairRow {
                a: viewer.peer_name(&broker.core, a, b),
                b: viewer.peer_name(&broker.core, b, a),
                path: path.name.to_owned(),
                reason: path.reason.map(Into::into),
                channel: path.channel.map(|channel| channel_row(broker, channel)),
            }
        }));
    }

    fn finish(_: &Broker, _: &Viewer, rows: PairRows) -> impl FnOnce() -> Channels + Send + 'static + use<> {
        move || {
            let all = rows.len();
            let mut pairs: Vec<PairRow> = rows.into_iter().flatten().collect();
            pairs.sort_by_key(|pair| (pair.a.id, pair.b.id));
            Channels { schema: SCHEMA, hidden: hidden(all, pairs.len()), pairs }
        }
    }
}

fn is_of_interest(of: &DomainEntry, peer: DomainId) -> bool {
    of.peers.get(&peer).is_some_and(|known| known.channel.is_some() || known.refused.is_some())
}

/// Reports the path between two domains, if the viewer sees one of them.
pub(super) fn why(broker: &Broker, viewer: &Viewer, a: &Name, b: &Name) -> Result<Why, Refusal> {
    let find = |name: &Name| {
        let refused = || Refusal::new(Reason::NoSuchDomain, format!("no domain is called {name}"));
        broker.core.directory.find(name).ok_or_else(refused)
    };
    let (one, other) = (find(a)?, find(b)?);
    if ![one, other].iter().any(|domain| viewer.sees_domain(&broker.core, domain)) {
        return Err(not_yours(format!("{a} and {b}")));
    }
    let why = why_between(broker, viewer, one, other);
    // A name that was in the question is no news.
    let named = |shown: &DomainName, domain: &DomainEntry, asked: &Name| {
        if domain.name == *asked { DomainName::from(domain) } else { shown.clone() }
    };
    Ok(Why { a: named(&why.a, one, a), b: named(&why.b, other, b), ..why })
}

/// Reports the path between two domains.
pub(crate) fn why_between(broker: &Broker, viewer: &Viewer, a: &DomainEntry, b: &DomainEntry) -> Why {
    let path = path(broker, a, b);
    let large = match (broker.core.identity(a.id), broker.core.identity(b.id)) {
        (Some(owner), Some(reader)) if a.id != b.id => broker.core.policy.may_grant(&owner, &reader).err(),
        _ => None,
    };
    Why {
        schema: SCHEMA,
        a: viewer.peer_name(&broker.core, a, b),
        b: viewer.peer_name(&broker.core, b, a),
        path: path.name.to_owned(),
        reason: path.reason.map(Into::into),
        large: large.map(Into::into),
        channel: path.channel.map(|channel| channel_row(broker, channel)),
        from_a: side_report(broker, a, b),
        from_b: side_report(broker, b, a),
    }
}

fn path<'a>(broker: &'a Broker, a: &DomainEntry, b: &DomainEntry) -> Path<'a> {
    let daemon_path = |reason, channel| Path { name: "daemon", reason: Some(reason), channel };
    if a.id == b.id {
        return Path { name: "local", reason: Some(Reason::SameDomain), channel: None };
    }
    let Some((ours, theirs)) = broker.core.identity(a.id).zip(broker.core.identity(b.id)) else {
        return Path { name: "none", reason: Some(Reason::NoSuchDomain), channel: None };
    };
    if let Err(reason) = broker.core.policy.may_send(&ours, &theirs) {
        return Path { name: "none", reason: Some(reason), channel: None };
    }
    let our_state = a.peers.get(&b.id).copied().unwrap_or_default();
    let their_state = b.peers.get(&a.id).copied().unwrap_or_default();
    match our_state.channel.and_then(|channel| broker.channels.get(channel)) {
        Some(channel) if channel.stage == ChannelStage::Open => {
            Path { name: "channel", reason: None, channel: Some(channel) }
        }
        Some(channel) => daemon_path(Reason::ChannelPending, Some(channel)),
        None => match broker.core.policy.may_open_channel(&ours, &theirs) {
            Err(reason) => daemon_path(reason, None),
            Ok(()) if broker.common_allocator(a.id, b.id).is_err() => {
                let refused = || our_state.refused.or(their_state.refused).unwrap_or(Reason::ChannelNotRequested);
                daemon_path(broker.pair_window_refusal(a.id, b.id).unwrap_or_else(refused), None)
            }
            Ok(()) => {
                daemon_path(our_state.refused.or(their_state.refused).unwrap_or(Reason::ChannelNotRequested), None)
            }
        },
    }
}

fn side_report(broker: &Broker, of: &DomainEntry, peer: &DomainEntry) -> PathEnd {
    let known = of.peers.get(&peer.id).copied().unwrap_or_default();
    let verdict = broker
        .core
        .identity(of.id)
        .zip(broker.core.identity(peer.id))
        .map(|(of, peer)| broker.core.policy.verdict(&of, &peer));
    PathEnd {
        may_talk: verdict.is_some_and(|verdict| verdict.talk),
        may_channel: verdict.is_some_and(|verdict| verdict.channel),
        rule: verdict.and_then(|verdict| verdict.rule).map(|rule| rule as u32),
        last: known.refused.map(Into::into),
        channels: of.channels().count() as u32,
        channels_max: broker.core.directory.limits().channels as u32,
        ready_maps: of.ready_maps.len() as u32,
        ready_maps_max: READY_MAPS_MAX as u32,
        backlog: broker.core.backlog_of(of.id) as u32,
        grants: known.grants,
    }
}

/// The directions of a channel, as their senders count them.
pub(crate) fn directions(broker: &Broker, channel: ChannelId) -> impl Iterator<Item = DirectionRow> {
    let channel = broker.channels.get(channel).map(|channel| channel_row(broker, channel));
    channel.and_then(|channel| channel.directions).into_iter().flatten()
}

fn channel_row(broker: &Broker, channel: &KnownChannel) -> ChannelRow {
    let memory = channel.memory.as_ref();
    let direction = |direction, from: DomainId| counters(memory?, channel, direction, from);
    let connector = direction(Direction::Zero, channel.connector.domain);
    let listener = direction(Direction::One, channel.listener.domain);
    ChannelRow {
        id: channel.id.to_string(),
        state: if channel.stage == ChannelStage::Open { "open" } else { "offered" }.to_owned(),
        connector: channel.connector.domain.number(),
        age_s: broker.core.now.saturating_sub(channel.since) / NANOSECONDS,
        slab_bytes: channel.slab.bytes(),
        memory_bytes: memory
            .and_then(Resource::file)
            .and_then(|file| Some(512 * u64::try_from(rustix::fs::fstat(file).ok()?.st_blocks).ok()?)),
        directions: connector.zip(listener).map(|(connector, listener)| [connector, listener]),
    }
}

/// Reads a producer's counters. They are for display only, because the domain may have written anything there.
fn counters(memory: &Resource, channel: &KnownChannel, direction: Direction, from: DomainId) -> Option<DirectionRow> {
    let at = ChannelGeometry { slab: channel.slab }.direction(direction).producer;
    let read_u64 = |word: u32| {
        let mut bytes = [0; 8];
        memory.read_at(4 * u64::from(at + word), &mut bytes).then(|| u64::from_le_bytes(bytes))
    };
    let mut word = [0; 4];
    let slower = memory
        .read_at(4 * u64::from(at + SLOW_PATH_REASONS), &mut word)
        .then(|| SlowPathReasons::parse(u32::from_le_bytes(word)))?;
    Some(DirectionRow {
        from: from.number(),
        messages: read_u64(MESSAGES)?,
        bytes: read_u64(BYTES)?,
        wakeups: read_u64(DOORBELLS)?,
        fragmented: slower.fragmented.map(Into::into),
        assisted: slower.assisted.map(Into::into),
        direct: Some(read_u64(DIRECT_ACCESSES)?),
        served: Some(read_u64(SERVED_ACCESSES)?),
        refused: Some(read_u64(REFUSED_ACCESSES)?),
    })
}
