//! Shown sockets that wait for the socket at the other end of their connection.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Bound;

use isthmus_layout::control::Owner;
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::{SocketsToClient, StreamWaiting};

use super::Sockets;
use super::pairing::{Candidate, Decision, Evidence, decide};
use crate::core::Core;
use crate::core::types::ControlSessionId;
use crate::places::{Places, Taker};

/// The number of waiting sockets of all users.
const WAITING_MAX: usize = 65_536;

/// The number of waiting sockets of one owner with the same addresses. A namespace has one connection with them, and one that was closed
/// without notice may still wait.
const SAME_ADDRESSES_MAX: usize = 16;

/// The number of waiting sockets with the same numbers that are looked at. There is one, but for a chance of 1 in 2^64.
const SAME_NUMBERS_MAX: usize = 16;

/// The number of overdue sockets that are refused at once.
const OVERDUE_SLICE: usize = 128;

/// Nanoseconds for which a shown socket waits for its peer.
pub(super) const WAIT_NS: u64 = 60_000_000_000;

/// A shown socket: the session and the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShownId {
    pub(super) session: ControlSessionId,
    pub(super) token: u32,
}

impl ShownId {
    const MIN: Self = Self { session: ControlSessionId(u64::MIN), token: u32::MIN };
    const MAX: Self = Self { session: ControlSessionId(u64::MAX), token: u32::MAX };
}

/// A shown socket that waits.
#[derive(Clone, Debug)]
pub(super) struct ShownSocket {
    pub(super) evidence: Evidence,
    pub(super) owner: Owner,
    /// The user that it counts for.
    account: Owner,
    /// The time until which it waits.
    pub(super) until: u64,
    /// The reason if no peer comes.
    pub(super) reason: Reason,
}

/// All shown sockets that wait.
#[derive(Debug)]
pub(super) struct ShownSockets {
    sockets: BTreeMap<ShownId, ShownSocket>,
    by_addresses: BTreeMap<(SocketAddr, SocketAddr), BTreeSet<(Owner, ShownId)>>,
    /// By the numbers of the kernel's record.
    by_numbers: BTreeSet<((u32, u32), ShownId)>,
    /// By the number of the socket in the kernel.
    by_socket: BTreeMap<u64, ShownId>,
    by_deadline: BTreeSet<(u64, ShownId)>,
    places: Places,
}

impl Default for ShownSockets {
    fn default() -> Self {
        Self {
            sockets: BTreeMap::new(),
            by_addresses: BTreeMap::new(),
            by_numbers: BTreeSet::new(),
            by_socket: BTreeMap::new(),
            by_deadline: BTreeSet::new(),
            places: Places::new(WAITING_MAX),
        }
    }
}

impl ShownSockets {
    /// The number of sockets.
    pub(super) fn len(&self) -> usize {
        self.sockets.len()
    }

    /// The first socket after another one, or of all.
    pub(super) fn next_after(&self, after: Option<ShownId>) -> Option<ShownId> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.sockets.range((after, Bound::Unbounded)).next().map(|(id, _)| *id)
    }

    /// A socket.
    pub(super) fn get(&self, id: ShownId) -> Option<&ShownSocket> {
        self.sockets.get(&id)
    }

    /// The time at which the first of them has waited for too long.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.by_deadline.first().map(|(until, _)| *until)
    }

    /// Removes a socket that has waited for too long. Returns it with the reason.
    pub(super) fn remove_overdue(&mut self, now: u64) -> Option<(ShownId, Reason)> {
        let (_, id) = *self.by_deadline.first().filter(|(until, _)| *until <= now)?;
        let socket = self.remove(id.session, id.token)?;
        Some((id, socket.reason))
    }

    /// Removes a socket.
    pub(super) fn remove(&mut self, session: ControlSessionId, token: u32) -> Option<ShownSocket> {
        let id = ShownId { session, token };
        let socket = self.sockets.remove(&id)?;
        self.places.give_back(socket.account, 1);
        self.by_deadline.remove(&(socket.until, id));
        self.by_socket.remove(&socket.evidence.socket);
        if let Ok(record) = &socket.evidence.record {
            self.by_numbers.remove(&(record.numbers(), id));
        }
        if let Some(ids) = self.by_addresses.get_mut(&socket.evidence.addresses()) {
            ids.remove(&(socket.owner, id));
            if ids.is_empty() {
                self.by_addresses.remove(&socket.evidence.addresses());
            }
        }
        Some(socket)
    }

    /// Lets a socket wait from now on. `reason` holds if no peer comes. Refuses the socket if too many wait.
    pub(super) fn add(
        &mut self,
        id: ShownId,
        evidence: Evidence,
        (owner, taker): (Owner, Taker),
        now: u64,
        reason: Reason,
    ) -> Result<(), Reason> {
        let same = self.by_addresses.get(&evidence.addresses());
        let of_owner = same.map_or(0, |ids| ids.range((owner, ShownId::MIN)..=(owner, ShownId::MAX)).count());
        if of_owner >= SAME_ADDRESSES_MAX {
            return Err(Reason::StreamAmbiguous);
        }
        self.places.take(taker).map_err(|_| Reason::StreamsFull)?;
        let socket =
            ShownSocket { evidence, owner, account: taker.account, until: now.saturating_add(WAIT_NS), reason };
        self.by_deadline.insert((socket.until, id));
        self.by_socket.insert(socket.evidence.socket, id);
        if let Ok(record) = &socket.evidence.record {
            self.by_numbers.insert((record.numbers(), id));
        }
        self.by_addresses.entry(socket.evidence.addresses()).or_default().insert((owner, id));
        self.sockets.insert(id, socket);
        Ok(())
    }

    /// Returns the waiting socket with this number in the kernel.
    pub(super) fn with_socket(&self, socket: u64) -> Option<ShownId> {
        self.by_socket.get(&socket).copied()
    }

    /// Decides about a socket. The numbers of the decision are those of the returned sockets.
    pub(super) fn decide(&self, evidence: &Evidence, owner: Owner, across: bool) -> (Decision, Vec<ShownId>) {
        let shown = Candidate { evidence, owner };
        let of_numbers = evidence.record.iter().flat_map(|record| {
            let numbers = record.mirrored();
            self.by_numbers.range((numbers, ShownId::MIN)..=(numbers, ShownId::MAX)).map(|(_, id)| *id)
        });
        let mut ids: Vec<ShownId> = of_numbers.take(SAME_NUMBERS_MAX).collect();
        let is_recorded = !ids.is_empty();
        let of_addresses = self.by_addresses.get(&evidence.mirrored()).into_iter().flatten();
        ids.extend(of_addresses.map(|(_, id)| *id).filter(|_| !is_recorded));
        let sockets = ids.iter().filter_map(|id| self.sockets.get(id));
        let candidates = sockets.map(|socket| Candidate { evidence: &socket.evidence, owner: socket.owner });
        (decide(shown, &candidates.collect::<Vec<_>>(), across), ids)
    }

    /// Sets the reason that holds if no peer comes.
    fn set_reason(&mut self, id: ShownId, reason: Reason) {
        if let Some(socket) = self.sockets.get_mut(&id) {
            socket.reason = reason;
        }
    }
}

impl Sockets {
    /// Pairs a socket, or lets it wait. Its state is that of a shown socket already.
    pub(super) fn show(&mut self, core: &mut Core, session: ControlSessionId, token: u32, evidence: Evidence) {
        let Some(shower) = self.sessions.get(&session) else { return };
        let (owner, taker) = (shower.identity.owner, shower.taker);
        let id = ShownId { session, token };
        if let Some(other) = self.shown.with_socket(evidence.socket) {
            self.refuse_all(core, [id, other], Reason::StreamSocketTwice);
            return;
        }
        if self.streams.has_socket(evidence.socket) {
            return self.refuse_socket(core, session, token, None, Reason::StreamSocketTwice);
        }
        let (decision, others) = self.shown.decide(&evidence, owner, self.settings.across);
        match decision {
            Decision::Pair(other) => {
                let other = others[other];
                if let Err(reason) = self.pair(core, (id, evidence), other) {
                    self.refuse_all(core, [id, other], reason);
                }
            }
            Decision::Refuse(reason, which) => {
                let all: Vec<_> = which.into_iter().map(|number| others[number]).chain([id]).collect();
                self.refuse_all(core, all, reason);
            }
            Decision::Wait(hint) => {
                let mut reason = Reason::StreamPeerMissing;
                if let Some((hinted, which)) = hint {
                    reason = hinted;
                    which.into_iter().for_each(|number| self.shown.set_reason(others[number], hinted));
                }
                match self.shown.add(id, evidence, (owner, taker), core.now, reason) {
                    Ok(()) => {
                        core.send(session, None, SocketsToClient::from(StreamWaiting { token }).into(), Vec::new());
                    }
                    Err(reason) => self.refuse_socket(core, session, token, None, reason),
                }
            }
        }
    }

    /// Refuses some of the shown sockets that have waited for too long.
    pub(super) fn refuse_overdue(&mut self, core: &mut Core) {
        for _ in 0..OVERDUE_SLICE {
            let Some((shown, reason)) = self.shown.remove_overdue(core.now) else { return };
            self.refuse_socket(core, shown.session, shown.token, None, reason);
        }
    }

    fn refuse_all(&mut self, core: &mut Core, all: impl IntoIterator<Item = ShownId>, reason: Reason) {
        for ShownId { session, token } in all {
            self.shown.remove(session, token);
            self.refuse_socket(core, session, token, None, reason);
        }
    }
}
