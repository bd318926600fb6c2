//! Another domain, as this one knows it: the path to it, what is queued for it, what is under way.
//!
//! Two paths and no third: the *channel*, once there is one, and before that (or where policy wants it) the *ordinary path* through the
//! daemon. A sender leaves one for the other at a record of its choice: it says `Switch` on the old path and numbers what
//! follows with the next epoch. The receiver takes from the new path only when it has seen that, so nothing is overtaken.

use crate::matcher::{Envelope, Posted, Token};
use isthmus_channel::{Channel, ChannelKey, Inbox, SendError};
use isthmus_layout::control::{Name, Owner, RequestSerial};
use isthmus_layout::ids::{ChannelId, EndpointIndex, RegionId};
use isthmus_layout::limits::{ORDINARY_CREDIT_BYTES, ORDINARY_FRAGMENT_BYTES_MAX, ORDINARY_RECORD_COST};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Piece, Record, Route, Serial};
use isthmus_layout::{DomainId, EndpointAddress};
use isthmus_shm::rehome::arena::Visitor;
use isthmus_shm::rehome::{PeerRegion, Use};
use isthmus_shm::{Buffer, PeerFault};
use std::collections::{HashMap, VecDeque};

/// Index of a peer in its domain's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PeerIndex(pub(crate) u32);

/// A way to a peer, or from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Ordinary,
    Channel(ChannelKey),
}

/// How far the channel with a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Making {
    /// Nobody has asked.
    Not,
    /// We have.
    Asked,
    /// It is there. The connector asked for it, and uses it once it is open: once the listener has it too.
    Made { id: ChannelId, key: ChannelKey, connector: bool, open: bool },
    /// There will be none, or none before the next try.
    Refused { reason: Reason, last: bool },
}

/// From which endpoint to which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Between {
    pub(crate) from: EndpointIndex,
    pub(crate) to: EndpointIndex,
}

/// A message on its way out.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) token: Token,
    pub(crate) between: Between,
    pub(crate) tag: u64,
    pub(crate) serial: Serial,
    pub(crate) buffer: Buffer,
    /// The receiver is to say that it has a receive for it.
    pub(crate) sync: bool,
    /// Bytes that are to be sent: fewer than there are, if the receiver has room for fewer.
    pub(crate) wanted: usize,
    /// Bytes that are in the slab already.
    pub(crate) sent: usize,
    /// Keeps the region it was announced in until the peer has taken it.
    pub(crate) held: Option<Use>,
}

/// A message on its way in.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) envelope: Envelope,
    /// Bytes that come: all, or as many as were asked for.
    pub(crate) expected: u64,
    pub(crate) received: u64,
    pub(crate) into: Into,
}

/// Where an incoming message goes.
#[derive(Debug)]
pub(crate) enum Into {
    /// Into a posted receive.
    Posted(Posted),
    /// Into memory of ours: nobody waited for it when it began.
    Own(Vec<u8>),
    /// Nowhere: its endpoint was closed.
    Nowhere,
}

/// A region of ours, as one peer may see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Granted {
    /// The daemon was asked to pass it on.
    Asked(RequestSerial),
    /// The peer has it.
    Yes,
    /// The daemon or its policy said no.
    Refused(Reason),
}

/// A record under way through the daemon.
#[derive(Debug)]
struct UnderWay {
    cost: u32,
    /// The send that is over when the peer has taken this record.
    over: Option<Outgoing>,
    /// Its send has failed already, so nobody needs to hear it again if it comes back.
    abandoned: bool,
}

/// Flow on the ordinary path, both ways.
#[derive(Debug)]
pub(crate) struct Credit {
    left: u32,
    /// Records under way, oldest first.
    flight: VecDeque<UnderWay>,
    returned: u32,
    /// Cost of what we took and did not give credit for yet.
    pub(crate) owed: u32,
}

impl Default for Credit {
    fn default() -> Self {
        Self { left: ORDINARY_CREDIT_BYTES, flight: VecDeque::new(), returned: 0, owed: 0 }
    }
}

impl Credit {
    /// The peer has taken so much: the sends that are over.
    pub(crate) fn give_back(&mut self, bytes: u32) -> Vec<Outgoing> {
        self.left = self.left.saturating_add(bytes).min(ORDINARY_CREDIT_BYTES);
        self.returned = self.returned.saturating_add(bytes);
        let mut over = Vec::new();
        while let Some(record) = self.flight.pop_front_if(|record| record.cost <= self.returned) {
            self.returned -= record.cost;
            over.extend(record.over);
        }
        over
    }

    /// A record came back. True if its send has failed before: then this says nothing of what was sent later.
    pub(crate) fn came_back(&mut self) -> bool {
        let abandoned = self.flight.iter_mut().find(|record| record.abandoned);
        abandoned.is_some_and(|record| std::mem::take(&mut record.abandoned))
    }

    /// The way is gone and its account with it: the sends that fail.
    pub(crate) fn lose(&mut self) -> Vec<Outgoing> {
        let sends = self.abandon();
        *self = Self::default();
        sends
    }

    /// What is under way will not be taken: the sends that fail. The daemon's account goes on.
    pub(crate) fn abandon(&mut self) -> Vec<Outgoing> {
        let abandon = |record: &mut UnderWay| {
            record.abandoned = true;
            record.over.take()
        };
        self.flight.iter_mut().filter_map(abandon).collect()
    }

    /// The sends that are over when the peer has taken what is under way.
    pub(crate) fn sends(&mut self) -> impl Iterator<Item = &mut Outgoing> {
        self.flight.iter_mut().filter_map(|record| record.over.as_mut())
    }

    /// True while something is under way.
    pub(crate) fn in_flight(&self) -> bool {
        !self.flight.is_empty()
    }
}

/// Another domain.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: DomainId,
    pub(crate) name: Option<Name>,
    pub(crate) owner: Option<Owner>,
    pub(crate) making: Making,
    /// How often we have asked since the peer was heard of last.
    pub(crate) tries: u32,
    pub(crate) out: Path,
    pub(crate) epoch_out: u16,
    pub(crate) inward: Path,
    pub(crate) epoch_in: u16,
    /// Leave the path we send on for the other one, before anything else is sent.
    pub(crate) switch: Option<Path>,
    /// Why both sides are on their way back to the ordinary path.
    pub(crate) leaving: Option<Reason>,
    /// Short records that overtake messages.
    pub(crate) urgent: VecDeque<(Between, Record<'static>)>,
    pub(crate) queue: VecDeque<Outgoing>,
    pub(crate) streams: VecDeque<Outgoing>,
    pub(crate) announced: HashMap<Serial, Outgoing>,
    pub(crate) started: Option<(Serial, Incoming)>,
    pub(crate) pulled: HashMap<Serial, Incoming>,
    pub(crate) credit: Credit,
    /// Regions of the peer that we have mapped, and when each was used last.
    pub(crate) regions: HashMap<RegionId, (PeerRegion, u64)>,
    /// Its arena, if it has granted one.
    pub(crate) visitor: Option<Visitor>,
    /// How often it was looked for.
    pub(crate) visitor_looks: u32,
    /// Regions of ours that the peer may map.
    pub(crate) granted: HashMap<RegionId, Granted>,
    /// Why large messages to it go in pieces, if they do.
    pub(crate) in_pieces: Option<Reason>,
    /// Why it had to ask for what it last wanted of memory of ours.
    pub(crate) asked: Option<Reason>,
    /// Stands in the domain's list of peers with something to send.
    pub(crate) listed: bool,
}

impl Peer {
    pub(crate) fn new(id: DomainId) -> Self {
        Self {
            id,
            name: None,
            owner: None,
            making: Making::Not,
            tries: 0,
            out: Path::Ordinary,
            epoch_out: 0,
            inward: Path::Ordinary,
            epoch_in: 0,
            switch: None,
            leaving: None,
            urgent: VecDeque::new(),
            queue: VecDeque::new(),
            streams: VecDeque::new(),
            announced: HashMap::new(),
            started: None,
            pulled: HashMap::new(),
            credit: Credit::default(),
            regions: HashMap::new(),
            visitor: None,
            visitor_looks: 0,
            granted: HashMap::new(),
            in_pieces: None,
            asked: None,
            listed: false,
        }
    }

    /// True if something waits to be sent.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !(self.queue.is_empty() && self.urgent.is_empty() && self.streams.is_empty() && self.switch.is_none())
    }

    /// Gives memory that callers have lent back to them: what goes out goes on from copies, what comes in goes nowhere.
    pub(crate) fn disown(&mut self) {
        let sends = self.queue.iter_mut().chain(&mut self.streams).chain(self.announced.values_mut());
        sends.chain(self.credit.sends()).for_each(|message| message.buffer.keep());
        let begun = self.started.iter_mut().map(|(_, incoming)| incoming);
        for incoming in begun.chain(self.pulled.values_mut()) {
            if let Into::Posted(_) = incoming.into {
                incoming.into = Into::Nowhere;
            }
        }
    }

    pub(crate) fn address(&self, endpoint: EndpointIndex) -> EndpointAddress {
        EndpointAddress { domain: self.id, endpoint }
    }

    /// The path that records go by now. `ring` is the domain ring.
    #[inline]
    pub(crate) fn lane<'a>(&'a mut self, inbox: &'a mut Inbox, ring: Option<ChannelKey>) -> Option<Lane<'a>> {
        let (key, ordinary) = match self.out {
            Path::Channel(key) => (key, false),
            Path::Ordinary => (ring?, true),
        };
        let channel = inbox.channel(key)?;
        let peer = ordinary.then_some(self.id);
        Some(Lane { channel, peer, epoch: self.epoch_out, credit: &mut self.credit })
    }
}

/// The path to a peer, ready to send on.
pub(crate) struct Lane<'a> {
    pub(crate) channel: &'a mut Channel,
    peer: Option<DomainId>,
    epoch: u16,
    credit: &'a mut Credit,
}

impl Lane<'_> {
    /// Sends a record of `bytes` message bytes, of which `message` are in the record itself.
    #[inline]
    pub(crate) fn send(
        &mut self,
        between: Between,
        record: &Record<'_>,
        message: &[u8],
        bytes: u32,
    ) -> Result<(), SendError> {
        let route = Route { from: between.from, to: between.to, epoch: self.epoch, peer: self.peer };
        if self.peer.is_none() {
            return self.channel.send(route, record, message);
        }
        let cost = ORDINARY_RECORD_COST + bytes;
        if cost > self.credit.left {
            return Err(SendError::Full);
        }
        self.channel.send(route, record, message)?;
        self.credit.left -= cost;
        self.credit.flight.push_back(UnderWay { cost, over: None, abandoned: false });
        Ok(())
    }

    /// The last record of this message is out. Answers it if its send is over with that; on the ordinary path it is over
    /// when the peer has taken it, because the daemon could die with it. For somebody on another host a message that is out `whole` is the
    /// daemon's: if that dies, so does the way there, which is told.
    #[inline]
    pub(crate) fn finish(&mut self, message: Outgoing, whole: bool) -> Option<Outgoing> {
        match (self.peer, self.credit.flight.back_mut()) {
            (Some(peer), _) if whole && peer.is_remote() => Some(message),
            (Some(_), Some(record)) => {
                record.over = Some(message);
                None
            }
            _ => Some(message),
        }
    }

    /// Room for message bytes: `want`, or less but no less than `least`.
    pub(crate) fn reserve(&mut self, least: u32, want: u32) -> Result<Option<Piece>, PeerFault> {
        if self.peer.is_none() {
            return self.channel.reserve(least, want);
        }
        let affordable = self.credit.left.saturating_sub(ORDINARY_RECORD_COST).min(ORDINARY_FRAGMENT_BYTES_MAX);
        if affordable < least.min(ORDINARY_FRAGMENT_BYTES_MAX) || affordable == 0 {
            return Ok(None);
        }
        self.channel.reserve(least.min(affordable), want.min(affordable))
    }
}
