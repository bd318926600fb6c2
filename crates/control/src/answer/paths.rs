//! Which path two domains have, and why.

use isthmus_layout::channel::{BYTES, Direction, Geometry, MESSAGES, RINGS, SLOWER, Slower};
use isthmus_layout::control::Name;
use isthmus_layout::ids::DomainId;
use isthmus_layout::limits::BOARDS_MAX;
use isthmus_layout::reason::Reason;

use super::NANOSECONDS;
use crate::broker::{Broker, Refusal};
use crate::directory::Domain;
use crate::directory::channels::{Channel, Stage};
use crate::ground::Item;
use crate::schema::{ChannelRow, Channels, DirectionRow, DomainName, PairRow, SCHEMA, Side, Why};

type Known = Channel<Item>;

/// How messages go from one domain to another.
struct Path<'a> {
    name: &'static str,
    reason: Option<Reason>,
    channel: Option<&'a Known>,
}

pub(super) fn channels(broker: &Broker) -> Channels {
    let mut pairs = Vec::new();
    for a in broker.directory.iter() {
        // Each pair once, from whichever side knows of it; the lower number first.
        let above = broker.directory.iter().filter(|b| b.id > a.id);
        let asked = above.filter(|b| of_interest(a, b.id) || of_interest(b, a.id));
        pairs.extend(asked.map(|b| {
            let path = path(broker, a, b);
            PairRow {
                a: DomainName::of(a),
                b: DomainName::of(b),
                path: path.name.to_owned(),
                reason: path.reason.map(Into::into),
                channel: path.channel.map(|channel| row(broker, channel)),
            }
        }));
    }
    Channels { schema: SCHEMA, pairs }
}

fn of_interest(of: &Domain, peer: DomainId) -> bool {
    of.peers.get(&peer).is_some_and(|known| known.channel.is_some() || known.refused.is_some())
}

pub(super) fn why(broker: &Broker, a: &Name, b: &Name) -> Result<Why, Refusal> {
    let find = |name: &Name| {
        let refused = || Refusal::new(Reason::NoSuchDomain, format!("no domain is called {name}"));
        broker.directory.find(name).ok_or_else(refused)
    };
    let (a, b) = (find(a)?, find(b)?);
    let path = path(broker, a, b);
    let large = match (broker.identity(a.id), broker.identity(b.id)) {
        (Some(owner), Some(reader)) if a.id != b.id => broker.policy.grant(&owner, &reader).err(),
        _ => None,
    };
    Ok(Why {
        schema: SCHEMA,
        a: DomainName::of(a),
        b: DomainName::of(b),
        path: path.name.to_owned(),
        reason: path.reason.map(Into::into),
        large: large.map(Into::into),
        channel: path.channel.map(|channel| row(broker, channel)),
        from_a: side(broker, a, b),
        from_b: side(broker, b, a),
    })
}

fn path<'a>(broker: &'a Broker, a: &Domain, b: &Domain) -> Path<'a> {
    let ordinary = |reason, channel| Path { name: "ordinary", reason: Some(reason), channel };
    if a.id == b.id {
        return Path { name: "inside", reason: Some(Reason::SameDomain), channel: None };
    }
    let Some((ours, theirs)) = broker.identity(a.id).zip(broker.identity(b.id)) else {
        return Path { name: "none", reason: Some(Reason::NoSuchDomain), channel: None };
    };
    if let Err(reason) = broker.policy.talk(&ours, &theirs) {
        return Path { name: "none", reason: Some(reason), channel: None };
    }
    let ours_of = a.peers.get(&b.id).copied().unwrap_or_default();
    let theirs_of = b.peers.get(&a.id).copied().unwrap_or_default();
    match ours_of.channel.and_then(|channel| broker.channels.get(channel)) {
        Some(channel) if channel.stage == Stage::Open => Path { name: "channel", reason: None, channel: Some(channel) },
        Some(channel) => ordinary(Reason::ChannelPending, Some(channel)),
        None => match broker.policy.channel(&ours, &theirs) {
            Err(reason) => ordinary(reason, None),
            Ok(()) if broker.common_ground(a.id, b.id).is_err() => {
                let refused = || ours_of.refused.or(theirs_of.refused).unwrap_or(Reason::ChannelNotAsked);
                ordinary(broker.why_no_window(a.id, b.id).unwrap_or_else(refused), None)
            }
            Ok(()) => ordinary(ours_of.refused.or(theirs_of.refused).unwrap_or(Reason::ChannelNotAsked), None),
        },
    }
}

fn side(broker: &Broker, of: &Domain, peer: &Domain) -> Side {
    let known = of.peers.get(&peer.id).copied().unwrap_or_default();
    let verdict =
        broker.identity(of.id).zip(broker.identity(peer.id)).map(|(of, peer)| broker.policy.verdict(&of, &peer));
    Side {
        may_talk: verdict.is_some_and(|verdict| verdict.talk),
        may_channel: verdict.is_some_and(|verdict| verdict.channel),
        rule: verdict.and_then(|verdict| verdict.rule).map(|rule| rule as u32),
        last: known.refused.map(Into::into),
        channels: of.channels().count() as u32,
        channels_max: broker.directory.limits().channels as u32,
        boards: of.boards.len() as u32,
        boards_max: BOARDS_MAX as u32,
        backlog: broker.backlog_of(of.id) as u32,
        grants: known.grants,
    }
}

fn row(broker: &Broker, channel: &Known) -> ChannelRow {
    let memory = channel.memory.as_ref();
    let direction = |direction, from: DomainId| counters(memory?, channel, direction, from);
    let connector = direction(Direction::Zero, channel.connector.domain);
    let listener = direction(Direction::One, channel.listener.domain);
    ChannelRow {
        id: channel.id.to_string(),
        state: if channel.stage == Stage::Open { "open" } else { "offered" }.to_owned(),
        connector: channel.connector.domain.number(),
        age_s: broker.now.saturating_sub(channel.since) / NANOSECONDS,
        slab_bytes: channel.slab.bytes(),
        memory_bytes: memory
            .and_then(Item::file)
            .and_then(|file| Some(512 * u64::try_from(rustix::fs::fstat(file).ok()?.st_blocks).ok()?)),
        directions: connector.zip(listener).map(|(connector, listener)| [connector, listener]),
    }
}

/// Reads a producer's counters. They are for display: its domain may have written anything.
fn counters(memory: &Item, channel: &Known, direction: Direction, from: DomainId) -> Option<DirectionRow> {
    let at = Geometry { slab: channel.slab }.direction(direction).producer;
    let wide = |word: u32| {
        let mut bytes = [0; 8];
        memory.look(4 * u64::from(at + word), &mut bytes).then(|| u64::from_le_bytes(bytes))
    };
    let mut word = [0; 4];
    let slower = memory.look(4 * u64::from(at + SLOWER), &mut word).then(|| Slower::parse(u32::from_le_bytes(word)))?;
    Some(DirectionRow {
        from: from.number(),
        messages: wide(MESSAGES)?,
        bytes: wide(BYTES)?,
        wake_ups: wide(RINGS)?,
        in_pieces: slower.pieces.map(Into::into),
        asked: slower.asked.map(Into::into),
    })
}
