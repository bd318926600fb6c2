//! From other hosts to the domain: in the order in which messages began, each whole, and no more than the domain has room for.

use crate::fetching::Fetching;
use crate::stranger::Place;
use crate::{Domain, Gateway};
use isthmus_layout::limits::{INLINE_BYTES_MAX, ORDINARY_RECORD_COST};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Piece, Record, Serial};
use isthmus_mx::StatusCode;
use isthmus_mx::net::{Address, IncomingId, Time};

/// Bytes that are kept for a domain which does not take them, before messages to it are refused for a while. Those of messages
/// before their turn do not count: the one that they wait for must not be refused because of them. Nor do announcements, of which
/// the engine takes no more than it may be told of: a domain that does not want them yet may want others.
pub const HELD_BYTES_MAX: usize = 4 << 20;

/// What a message counts for beside its bytes.
const MESSAGE_COST: usize = ORDINARY_RECORD_COST as usize;

/// Message bytes of one record: more than any frame that is usual has, so that a frame is one record.
pub const PIECE_BYTES_MAX: usize = 16 << 10;

/// Where the bytes are is the ring's business.
pub(crate) const NOWHERE: Piece = Piece { offset: 0, len: 0 };

/// A message that comes in.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// Known once it has begun.
    pub(crate) from: Option<Place>,
    match_info: u64,
    pub(crate) length: u32,
    pub(crate) state: State,
}

#[derive(Debug)]
pub(crate) enum State {
    /// A short one: what is here of it, whether that is all, and how much of it the domain has been given.
    Short { bytes: Vec<u8>, whole: bool, given: usize, serial: Option<Serial> },
    /// A long one that the domain does not know of yet.
    Long,
    /// The domain knows of it.
    Offered,
    /// The domain wants it.
    Fetching(Fetching),
}

impl Gateway {
    /// A message's turn has come.
    pub(crate) fn begun(
        &mut self,
        now: Time,
        message: IncomingId,
        source: Address,
        (match_info, length, large): (u64, u32, bool),
        domain: &mut impl Domain,
    ) {
        let Some(from) = self.introduce(source, domain) else {
            // The bytes of a short one may still come. Whoever sent a long one need not wait.
            let _ = (large && !self.closed).then(|| self.net.pull(now, message, 0, 0));
            return;
        };
        let incoming = self.incoming(message, length);
        let early = incoming.held();
        (incoming.from, incoming.match_info, incoming.length) = (Some(from), match_info, length);
        if large {
            incoming.state = State::Long;
        }
        self.early -= early;
        self.held -= if large { early } else { 0 };
        self.mind();
        self.strangers[from].turns.push_back(message);
        if large {
            self.pump(now, from, domain);
        }
    }

    /// A message that comes in, which may be new.
    fn incoming(&mut self, message: IncomingId, length: u32) -> &mut Incoming {
        self.incoming.entry(message).or_insert_with(|| {
            self.held += MESSAGE_COST;
            self.early += MESSAGE_COST;
            Incoming::short(length)
        })
    }

    /// Takes new messages, or not.
    fn mind(&mut self) {
        self.net.set_accepting(!self.closed && self.held - self.early < HELD_BYTES_MAX);
    }

    /// The stranger at an address, who may be new.
    pub(crate) fn introduce(&mut self, address: Address, domain: &mut impl Domain) -> Option<Place> {
        if self.closed {
            return None;
        }
        self.strangers.at(address).or_else(|| Some(self.strangers.add(domain.meet(address)?, address)))
    }

    /// Bytes of a message, which may not have begun.
    pub(crate) fn bytes(
        &mut self,
        now: Time,
        message: IncomingId,
        (length, at): (u32, u32),
        data: &[u8],
        domain: &mut impl Domain,
    ) {
        if self.closed || self.deliver_at_once(message, length, at, data, domain) {
            return;
        }
        let incoming = self.incoming(message, length);
        let early = incoming.from.is_none();
        match &mut incoming.state {
            State::Short { bytes, .. } => {
                let fresh = bytes.is_empty();
                if fresh {
                    bytes.resize(length as usize, 0);
                }
                if let Some(into) = bytes.get_mut(at as usize..).and_then(|rest| rest.get_mut(..data.len())) {
                    into.copy_from_slice(data);
                }
                let more = if fresh { length as usize } else { 0 };
                self.held += more;
                self.early += if early { more } else { 0 };
            }
            State::Fetching(_) => self.bytes_fetched(now, message, at, data, domain),
            State::Long | State::Offered => {}
        }
        self.mind();
    }

    /// A short message in one frame, with none before it that waits: it goes straight from the frame to the domain.
    fn deliver_at_once(
        &mut self,
        message: IncomingId,
        length: u32,
        at: u32,
        data: &[u8],
        domain: &mut impl Domain,
    ) -> bool {
        if at != 0 || data.len() != length as usize || data.len() > INLINE_BYTES_MAX {
            return false;
        }
        let Some(Incoming { from: Some(from), match_info, state: State::Short { .. }, .. }) =
            self.incoming.get(&message)
        else {
            return false;
        };
        let (from, tag) = (*from, *match_info);
        let stranger = &mut self.strangers[from];
        if stranger.turns.len() != 1 || !stranger.urgent.is_empty() || !stranger.afford(data.len()) {
            return false;
        }
        stranger.turns.clear();
        self.forget(message);
        let route = self.route(self.stranger(from).id);
        domain.deliver(route, &Record::Eager { tag, len: length, words: &[] }, data);
        true
    }

    /// Nothing more comes of a message.
    pub(crate) fn received(&mut self, now: Time, message: IncomingId, code: StatusCode, domain: &mut impl Domain) {
        let Some(incoming) = self.incoming.get_mut(&message) else { return };
        let from = incoming.from;
        let success = code == StatusCode::Success;
        match &mut incoming.state {
            State::Short { whole, .. } if success && from.is_some() => *whole = true,
            State::Fetching(fetching) => fetching.ended = Some(code),
            // The domain hears of it when it asks for it.
            State::Offered if !success => {}
            State::Short { .. } | State::Long | State::Offered => {
                self.forget(message);
                if let Some(from) = from {
                    self.strangers[from].turns.retain(|turn| *turn != message);
                }
            }
        }
        if let Some(from) = from {
            self.pump(now, from, domain);
        }
    }

    pub(crate) fn forget(&mut self, message: IncomingId) {
        let Some(incoming) = self.incoming.remove(&message) else { return };
        let held = incoming.held();
        self.held -= held;
        match (incoming.from, incoming.state) {
            (None, _) => self.early -= held,
            (_, State::Fetching(fetching)) => {
                self.ahead -= fetching.ahead as usize;
                self.fetched -= fetching.early.values().map(Vec::len).sum::<usize>();
            }
            _ => {}
        }
        self.mind();
    }

    /// Tells the domain something short.
    pub(crate) fn tell(&mut self, place: Place, record: Record<'static>, domain: &mut impl Domain) {
        if self.closed {
            return;
        }
        let stranger = &mut self.strangers[place];
        if stranger.urgent.is_empty() && stranger.afford(0) {
            return domain.deliver(self.route(self.strangers[place].id), &record, &[]);
        }
        stranger.urgent.push_back(record);
    }

    /// Gives the domain what it has room for.
    pub(crate) fn pump(&mut self, now: Time, place: Place, domain: &mut impl Domain) {
        if self.closed {
            return;
        }
        while !self.strangers[place].urgent.is_empty() && self.strangers[place].afford(0) {
            if let Some(record) = self.strangers[place].urgent.pop_front() {
                domain.deliver(self.route(self.strangers[place].id), &record, &[]);
            }
        }
        for _ in 0..self.strangers[place].fetching.len() {
            let Some(message) = self.strangers[place].fetching.pop_front() else { break };
            if !self.pump_fetched(now, place, message, domain) {
                self.strangers[place].fetching.push_back(message);
            }
        }
        while let Some(&message) = self.strangers[place].turns.front() {
            if !self.pump_turn(place, message, domain) {
                break;
            }
            self.strangers[place].turns.pop_front();
        }
        self.mind();
        self.start_fetches(now);
        let stranger = &self.strangers[place];
        if stranger.gone && stranger.turns.is_empty() && stranger.fetching.is_empty() {
            self.part(place, domain);
        }
    }

    /// True when the next message may have its turn.
    fn pump_turn(&mut self, place: Place, message: IncomingId, domain: &mut impl Domain) -> bool {
        let route = self.route(self.strangers[place].id);
        let Some(incoming) = self.incoming.get_mut(&message) else { return true };
        let (tag, length) = (incoming.match_info, incoming.length);
        let stranger = &mut self.strangers[place];
        match &mut incoming.state {
            State::Short { whole: false, .. } => return false,
            State::Short { bytes, given, serial, .. } => {
                if bytes.len() <= INLINE_BYTES_MAX {
                    if !stranger.afford(bytes.len()) {
                        return false;
                    }
                    domain.deliver(route, &Record::Eager { tag, len: length, words: &[] }, bytes);
                    self.forget(message);
                    return true;
                }
                while *given < bytes.len() {
                    let piece = &bytes[*given..bytes.len().min(*given + PIECE_BYTES_MAX)];
                    if !stranger.afford(piece.len()) {
                        return false;
                    }
                    let record = match *serial {
                        Some(serial) => Record::More { serial, piece: NOWHERE },
                        None => {
                            let name = stranger.serial();
                            *serial = Some(name);
                            Record::Start { tag, len: length, serial: name, piece: NOWHERE }
                        }
                    };
                    domain.deliver(route, &record, piece);
                    *given += piece.len();
                }
                self.forget(message);
            }
            State::Long => {
                if !stranger.afford(0) {
                    return false;
                }
                let serial = stranger.serial();
                stranger.offered.insert(serial, message);
                incoming.state = State::Offered;
                let len = length.into();
                domain.deliver(route, &Record::Announce { tag, len, serial, piece: NOWHERE, mapped: None }, &[]);
            }
            State::Offered | State::Fetching(_) => {}
        }
        true
    }

    /// A stranger is nobody any more. What is whole of it is still delivered: its sender was told that it arrived.
    pub(crate) fn sever(&mut self, now: Time, place: Place, domain: &mut impl Domain) {
        self.strangers.leave(place);
        let stranger = &mut self.strangers[place];
        // Each has ended with an event of its own.
        stranger.announced.clear();
        let id = stranger.id;
        self.regions.retain(|(owner, _), _| *owner != id);
        match self.closed {
            true => self.part(place, domain),
            false => self.pump(now, place, domain),
        }
    }

    /// Nothing comes of a stranger any more.
    fn part(&mut self, place: Place, domain: &mut impl Domain) {
        let Some(stranger) = self.strangers.remove(place) else { return };
        stranger.offered.values().for_each(|message| self.forget(*message));
        domain.part(stranger.id, Reason::MxSevered);
    }
}

impl Incoming {
    fn short(length: u32) -> Self {
        let state = State::Short { bytes: Vec::new(), whole: false, given: 0, serial: None };
        Self { from: None, match_info: 0, length, state }
    }

    /// What a short one counts for.
    fn held(&self) -> usize {
        if let State::Short { bytes, .. } = &self.state { MESSAGE_COST + bytes.len() } else { 0 }
    }
}
