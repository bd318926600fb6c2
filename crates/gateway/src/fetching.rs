//! Long messages from other hosts, fetched as the domain takes them.

use crate::arriving::{Incoming, NOWHERE, PIECE_BYTES_MAX, State};
use crate::stranger::Place;
use crate::{Domain, Gateway};
use isthmus_layout::record::{Record, Serial};
use isthmus_mx::StatusCode;
use isthmus_mx::net::{IncomingId, Time};
use std::collections::BTreeMap;

/// So far ahead of what the domain has taken may a long message be fetched.
const AHEAD_BYTES: u32 = 2 << 20;

/// The same for all of them together. Those for which there is no room wait until others are over.
pub const FETCHED_BYTES_MAX: usize = 32 << 20;

/// A long message on its way.
#[derive(Debug)]
pub(crate) struct Fetching {
    serial: Serial,
    /// Bytes of it that are wanted.
    total: u32,
    /// So many the domain has been given.
    given: u32,
    /// So many beyond these may come.
    pub(crate) ahead: u32,
    /// What came too early for that, by where it belongs.
    pub(crate) early: BTreeMap<u32, Vec<u8>>,
    /// How it ended on the wire.
    pub(crate) ended: Option<StatusCode>,
}

impl Gateway {
    /// The domain wants so much of a long message; 0 when it is not interested.
    pub(crate) fn fetch(&mut self, now: Time, place: Place, serial: Serial, bytes: u64, domain: &mut impl Domain) {
        let Some(message) = self.strangers[place].offered.remove(&serial) else { return };
        let Some(incoming) = self.incoming.get_mut(&message) else { return };
        let total = u32::try_from(bytes).unwrap_or(u32::MAX).min(incoming.length);
        let pulled = self.net.pull(now, message, total, 0);
        if total == 0 {
            return self.forget(message);
        }
        let ended = pulled.is_err().then_some(StatusCode::Aborted);
        let fetching = Fetching { serial, total, given: 0, ahead: 0, early: BTreeMap::new(), ended };
        incoming.state = State::Fetching(fetching);
        self.strangers[place].fetching.push_back(message);
        self.waiting_fetches.push_back(message);
        self.start_fetches(now);
        if ended.is_some() {
            self.pump(now, place, domain);
        }
    }

    /// Fetches what there is room for.
    pub(crate) fn start_fetches(&mut self, now: Time) {
        while let Some(&message) = self.waiting_fetches.front() {
            if let Some(Incoming { state: State::Fetching(fetching), .. }) = self.incoming.get(&message)
                && self.ahead + fetching.total.min(AHEAD_BYTES) as usize > FETCHED_BYTES_MAX
            {
                return;
            }
            self.waiting_fetches.pop_front();
            self.extend(now, message);
        }
    }

    /// Lets more of a message come, after the domain has been given some.
    fn extend(&mut self, now: Time, message: IncomingId) {
        let Some(Incoming { state: State::Fetching(fetching), .. }) = self.incoming.get_mut(&message) else { return };
        let ahead = (fetching.total - fetching.given).min(AHEAD_BYTES);
        self.ahead = self.ahead - fetching.ahead as usize + ahead as usize;
        fetching.ahead = ahead;
        self.net.allow(now, message, fetching.given + ahead);
    }

    /// Bytes of a long message.
    pub(crate) fn bytes_fetched(
        &mut self,
        now: Time,
        message: IncomingId,
        at: u32,
        data: &[u8],
        domain: &mut impl Domain,
    ) {
        let Some(Incoming { from: Some(from), state: State::Fetching(fetching), .. }) = self.incoming.get_mut(&message)
        else {
            return;
        };
        let from = *from;
        let stranger = &mut self.strangers[from];
        let next = fetching.given == at && fetching.early.is_empty() && stranger.urgent.is_empty();
        if next && data.len() <= PIECE_BYTES_MAX && stranger.afford(data.len()) {
            fetching.given += data.len() as u32;
            let serial = fetching.serial;
            let route = self.route(self.strangers[from].id);
            domain.deliver(route, &Record::More { serial, piece: NOWHERE }, data);
            self.extend(now, message);
        } else {
            self.fetched += data.len();
            fetching.early.insert(at, data.to_vec());
            self.pump(now, from, domain);
        }
    }

    /// True when the message is over.
    pub(crate) fn pump_fetched(
        &mut self,
        now: Time,
        place: Place,
        message: IncomingId,
        domain: &mut impl Domain,
    ) -> bool {
        let route = self.route(self.strangers[place].id);
        let Some(Incoming { state: State::Fetching(fetching), .. }) = self.incoming.get_mut(&message) else {
            return true;
        };
        let stranger = &mut self.strangers[place];
        let before = fetching.given;
        while let Some(first) = fetching.early.first_entry()
            && *first.key() == fetching.given
        {
            let len = first.get().len().min(PIECE_BYTES_MAX);
            if !stranger.afford(len) {
                break;
            }
            let bytes = first.remove();
            let record = Record::More { serial: fetching.serial, piece: NOWHERE };
            domain.deliver(route, &record, &bytes[..len]);
            fetching.given += len as u32;
            self.fetched -= len;
            if len < bytes.len() {
                fetching.early.insert(fetching.given, bytes[len..].to_vec());
            }
        }
        let (given, serial) = (fetching.given, fetching.serial);
        let over = match fetching.ended {
            Some(StatusCode::Success) => given == fetching.total,
            Some(code) if stranger.afford(0) => {
                let reason = crate::reason_of(code).code();
                domain.deliver(route, &Record::Abort { serial, reason }, &[]);
                true
            }
            _ => false,
        };
        if over {
            self.forget(message);
        } else if given > before {
            self.extend(now, message);
        }
        over
    }
}
