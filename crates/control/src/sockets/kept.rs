//! Ends of streams that an earlier daemon has made. Their programs name them, for reports. Nothing else depends on them.

use std::collections::BTreeMap;
use std::ops::Bound;

use isthmus_layout::Refusal;
use isthmus_layout::control::{Owner, Text};
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::StreamKept;

use super::Sockets;
use super::records::SocketName;
use super::session::SocketState;
use super::shown::ShownId;
use crate::core::types::ControlSessionId;
use crate::places::{Places, Taker};

/// The number of kept ends of all users.
const KEPT_MAX: usize = 65_536;

/// The number of kept ends of one session.
const SESSION_KEPT_MAX: usize = 4096;

/// A kept end.
#[derive(Debug)]
pub(super) struct KeptEnd {
    pub(super) name: SocketName,
    pub(super) owner: Owner,
    /// The user that it counts for.
    account: Owner,
    /// The time at which the program has named it.
    pub(super) since: u64,
}

/// All kept ends.
#[derive(Debug)]
pub(super) struct KeptEnds {
    ends: BTreeMap<ShownId, KeptEnd>,
    places: Places,
}

impl Default for KeptEnds {
    fn default() -> Self {
        Self { ends: BTreeMap::new(), places: Places::new(KEPT_MAX) }
    }
}

impl KeptEnds {
    /// The first end after another one, or of all.
    pub(super) fn next_after(&self, after: Option<ShownId>) -> Option<ShownId> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.ends.range((after, Bound::Unbounded)).next().map(|(id, _)| *id)
    }

    pub(super) fn get(&self, id: ShownId) -> Option<&KeptEnd> {
        self.ends.get(&id)
    }

    fn add(&mut self, id: ShownId, name: SocketName, (owner, taker): (Owner, Taker), now: u64) -> Result<(), Reason> {
        self.places.take(taker).map_err(|_| Reason::StreamsFull)?;
        self.ends.insert(id, KeptEnd { name, owner, account: taker.account, since: now });
        Ok(())
    }

    pub(super) fn remove(&mut self, id: ShownId) {
        if let Some(end) = self.ends.remove(&id) {
            self.places.give_back(end.account, 1);
        }
    }
}

impl Sockets {
    /// Takes the name of an end that a program has.
    pub(super) fn keep(&mut self, now: u64, id: ControlSessionId, request: &StreamKept) -> Result<(), Refusal> {
        let StreamKept { token, inode, local, peer } = request;
        let session = self.sessions.get_mut(&id).ok_or_else(super::not_attached)?;
        if session.sockets.get(*token).is_some() {
            return Err(Refusal::new(Reason::RequestInvalid, format!("there is a socket with the token {token}")));
        }
        if session.sockets.count_kept() >= SESSION_KEPT_MAX {
            return Err(Reason::StreamsFull.into());
        }
        let name = SocketName { inode: *inode, local: address(local)?, peer: Some(address(peer)?) };
        let (shown, owner) = (ShownId { session: id, token: *token }, (session.identity.owner, session.taker));
        self.kept.add(shown, name, owner, now)?;
        session.sockets.insert(*token, SocketState::Kept);
        Ok(())
    }
}

fn address(text: &Text) -> Result<std::net::SocketAddr, Refusal> {
    let text = text.to_string();
    text.parse().map_err(|_| Refusal::new(Reason::RequestInvalid, format!("{text:?} is no address of a socket")))
}
