//! Long messages from other hosts, fetched as the domain takes them. The sender is notified when the domain has returned the credit
//! of the last byte, because only then the bytes are in the buffer of the program. Bytes in the ring of the domain are not enough:
//! a message that comes by another ring could overtake them.

use crate::receiving::{FRAGMENT_BYTES_MAX, Incoming, IncomingState, NO_FRAGMENT};
#[cfg(doc)]
use crate::remote_peers::RemotePeer;
use crate::remote_peers::RemotePeerIndex;
use crate::{LocalPeer, MxTransport};
use isthmus_layout::record::{Record, Serial};
use isthmus_mx::StatusCode;
use isthmus_mx::net::{IncomingId, Time};
use std::collections::BTreeMap;

/// The maximum number of bytes by which fetching a long message may run ahead of the domain.
const FETCH_AHEAD_BYTES: u32 = 2 << 20;

/// The maximum number of bytes fetched ahead for all long messages together. Further messages wait until others are over.
pub const FETCHED_BYTES_MAX: usize = 32 << 20;

/// A long message on its way.
#[derive(Debug)]
pub(crate) struct Fetching {
    serial: Serial,
    /// The number of bytes that the domain wants.
    total: u32,
    /// The number of bytes that the domain has received.
    delivered: u32,
    /// [`RemotePeer::given`] behind the last of these bytes.
    end: u64,
    /// The number of bytes beyond `delivered` that may arrive.
    pub(crate) ahead: u32,
    /// Bytes that have arrived and are not delivered yet, by their offset in the message.
    pub(crate) undelivered: BTreeMap<u32, Vec<u8>>,
    /// The status with which the transfer ended in the MX engine.
    pub(crate) ended: Option<StatusCode>,
}

impl MxTransport {
    /// Begins to fetch the first `bytes` of a long message for the domain. 0 drops the message.
    pub(crate) fn fetch(
        &mut self,
        now: Time,
        peer: RemotePeerIndex,
        serial: Serial,
        bytes: u64,
        domain: &mut impl LocalPeer,
    ) {
        let Some(message) = self.remote_peers[peer].offered.remove(&serial) else { return };
        let Some(incoming) = self.incoming.get_mut(&message) else { return };
        let total = u32::try_from(bytes).unwrap_or(u32::MAX).min(incoming.length);
        let pulled = self.net.pull(now, message, total, 0);
        if total == 0 {
            return self.drop_incoming(message);
        }
        let ended = pulled.is_err().then_some(StatusCode::Aborted);
        let fetching = Fetching { serial, total, delivered: 0, end: 0, ahead: 0, undelivered: BTreeMap::new(), ended };
        incoming.state = IncomingState::Fetching(fetching);
        self.remote_peers[peer].fetching.push_back(message);
        self.waiting_fetches.push_back(message);
        self.start_fetches(now);
        if ended.is_some() {
            self.deliver_to_domain(now, peer, domain);
        }
    }

    /// Starts waiting fetches while there is room.
    pub(crate) fn start_fetches(&mut self, now: Time) {
        while let Some(&message) = self.waiting_fetches.front() {
            if let Some(Incoming { state: IncomingState::Fetching(fetching), .. }) = self.incoming.get(&message)
                && self.ahead + fetching.total.min(FETCH_AHEAD_BYTES) as usize > FETCHED_BYTES_MAX
            {
                return;
            }
            self.waiting_fetches.pop_front();
            self.extend_fetch(now, message);
        }
    }

    /// Permits more bytes of a message to arrive, after the domain has received some.
    fn extend_fetch(&mut self, now: Time, message: IncomingId) {
        let Some(Incoming { state: IncomingState::Fetching(fetching), .. }) = self.incoming.get_mut(&message) else {
            return;
        };
        let ahead = (fetching.total - fetching.delivered).min(FETCH_AHEAD_BYTES);
        self.ahead = self.ahead - fetching.ahead as usize + ahead as usize;
        fetching.ahead = ahead;
        self.net.allow(now, message, fetching.delivered + ahead);
    }

    /// Handles received bytes of a long message.
    pub(crate) fn receive_fetched(
        &mut self,
        now: Time,
        message: IncomingId,
        at: u32,
        data: &[u8],
        domain: &mut impl LocalPeer,
    ) {
        let Some(Incoming { from: Some(from), state: IncomingState::Fetching(fetching), .. }) =
            self.incoming.get_mut(&message)
        else {
            return;
        };
        let from = *from;
        let remote_peer = &mut self.remote_peers[from];
        let next = fetching.delivered == at && fetching.undelivered.is_empty() && remote_peer.urgent.is_empty();
        if next && data.len() <= FRAGMENT_BYTES_MAX && remote_peer.reserve_credit(data.len()) {
            fetching.delivered += data.len() as u32;
            fetching.end = remote_peer.given;
            let serial = fetching.serial;
            let route = self.route(self.remote_peers[from].id);
            domain.deliver(route, &Record::NextFragment { serial, fragment: NO_FRAGMENT }, data);
            self.extend_fetch(now, message);
        } else {
            self.fetched += data.len();
            fetching.undelivered.insert(at, data.to_vec());
            self.deliver_to_domain(now, from, domain);
        }
    }

    /// Delivers fetched bytes while the domain has credit for them. True if the message is over.
    pub(crate) fn deliver_fetched(
        &mut self,
        now: Time,
        peer: RemotePeerIndex,
        message: IncomingId,
        domain: &mut impl LocalPeer,
    ) -> bool {
        let route = self.route(self.remote_peers[peer].id);
        let Some(Incoming { state: IncomingState::Fetching(fetching), .. }) = self.incoming.get_mut(&message) else {
            return true;
        };
        let remote_peer = &mut self.remote_peers[peer];
        let before = fetching.delivered;
        while let Some(first) = fetching.undelivered.first_entry()
            && *first.key() == fetching.delivered
        {
            let len = first.get().len().min(FRAGMENT_BYTES_MAX);
            if !remote_peer.reserve_credit(len) {
                break;
            }
            let bytes = first.remove();
            let record = Record::NextFragment { serial: fetching.serial, fragment: NO_FRAGMENT };
            domain.deliver(route, &record, &bytes[..len]);
            fetching.delivered += len as u32;
            fetching.end = remote_peer.given;
            self.fetched -= len;
            if len < bytes.len() {
                fetching.undelivered.insert(fetching.delivered, bytes[len..].to_vec());
            }
        }
        let (given, serial) = (fetching.delivered, fetching.serial);
        let over = match fetching.ended {
            Some(StatusCode::Success) if given == fetching.total => {
                remote_peer.untaken.push_back((fetching.end, message));
                true
            }
            Some(StatusCode::Success) => false,
            Some(code) if remote_peer.reserve_credit(0) => {
                let reason = crate::reason_of(code).code();
                domain.deliver(route, &Record::Abort { serial, reason }, &[]);
                true
            }
            _ => false,
        };
        if over {
            self.drop_incoming(message);
        } else if given > before {
            self.extend_fetch(now, message);
        }
        over
    }
}
