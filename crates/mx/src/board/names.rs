//! The names of peers, and the indices that peers have for this board (mxoe-wire 5.5): HOST_QUERY and HOST_REPLY.
//!
//! A peer is queried until it reports its name. A peer with a known name is queried again in these cases:
//!
//! * no frame of it has arrived on a link that is up;
//! * no frame of it has arrived on one of the links that are up, for a few tries;
//! * it has restarted, or an endpoint of it does not respond;
//! * it sends frames with an index that is not its own, because it has not noticed that we restarted: the query also tells it which
//!   index to use.

use super::table::{Peer, PeerOrigin};
use super::{Board, BoardEvent, Dropped, LinkNumber, OUTGOING_MAX};
use crate::net::Time;
use crate::wire::{Header, HostQuery, HostReply, Packet, PeerIndex};

/// Queries to a peer that are also sent on links without a frame from the peer.
const EXPLORE_TRIES_MAX: u32 = 4;

/// Queries to a peer before the interval grows.
const STEADY_TRIES_MAX: u32 = 6;

/// Queries to a peer that may stay unanswered.
const FORCED_TRIES_MAX: u32 = 8;

impl Board {
    /// Queries whether a peer is present, and its index for us: soon, within the rate limit for any peer. Called when
    /// an endpoint of the peer does not respond. A reply updates the links that [`Board::link_to`] selects from.
    pub fn probe(&mut self, now: Time, peer: PeerIndex) {
        self.restart_query(now, peer);
    }

    /// Forgets the names that peers reported, and queries them again. Configured names stay.
    pub fn clear_names(&mut self, now: Time) {
        // Replies to earlier queries do not count.
        self.magic = self.magic.wrapping_add(1);
        for (_, peer) in self.table.iter_mut().filter(|(_, peer)| peer.origin != PeerOrigin::Local) {
            peer.forget_learned_name();
            peer.query.tries = 0;
        }
        self.requery_incomplete(now);
    }

    /// Restarts the queries of a peer, with the first one as soon as permitted.
    pub(super) fn restart_query(&mut self, now: Time, index: PeerIndex) {
        let ask_us = self.setup.tuning.ask_us;
        if self.table.remote(index).is_none() {
            return;
        }
        let Some(peer) = self.table.get_mut(index) else { return };
        peer.query.forced = true;
        peer.query.tries = 0;
        let soonest = peer.query.last_sent.map_or(now, |asked| now.max(asked.after_us(ask_us)));
        let due = peer.query.due.map_or(soonest, |due| due.min(soonest));
        self.schedule_query(index, Some(due));
    }

    /// Schedules a query, soon, for each peer that has unknown properties.
    pub(super) fn requery_incomplete(&mut self, now: Time) {
        let (links, queries, ask_us) = (&self.links, &mut self.queries, self.setup.tuning.ask_us);
        for (index, peer) in self.table.iter_mut() {
            let lost = !links.reaches(&peer.last_seen_by_link) || links.has_unheard_link(&peer.last_seen_by_link);
            let wanted = lost || peer.name().is_none() || peer.query.forced;
            if peer.origin == PeerOrigin::Local || peer.forgotten || !wanted {
                continue;
            }
            peer.query.tries = 0;
            let soonest = peer.query.last_sent.map_or(now, |asked| now.max(asked.after_us(ask_us)));
            if let Some(due) = peer.query.due.replace(soonest) {
                queries.remove(&(due, index));
            }
            queries.insert((soonest, index));
        }
    }

    pub(super) fn schedule_query(&mut self, index: PeerIndex, due: Option<Time>) {
        let Some(peer) = self.table.get_mut(index) else { return };
        if let Some(before) = core::mem::replace(&mut peer.query.due, due) {
            self.queries.remove(&(before, index));
        }
        if let Some(due) = due {
            self.queries.insert((due, index));
        }
    }

    /// Sends all queries that are due.
    pub(super) fn send_due_queries(&mut self, now: Time) {
        while let Some((due, index)) = self.queries.first().copied()
            && due <= now
            && self.outgoing.len() < OUTGOING_MAX
        {
            if !self.table.remote(index).is_some_and(|peer| self.needs_query(peer)) {
                self.schedule_query(index, None);
            } else if self.rate_limiters.queries.try_acquire(now) {
                self.send_query(now, index);
            } else {
                break;
            }
        }
    }

    fn needs_query(&self, peer: &Peer) -> bool {
        let probes_links = peer.query.tries < EXPLORE_TRIES_MAX && self.links.has_unheard_link(&peer.last_seen_by_link);
        let wanted =
            peer.name().is_none() || peer.query.forced || probes_links || !self.links.reaches(&peer.last_seen_by_link);
        // Without a link, the query waits.
        wanted && self.links.is_any_up()
    }

    fn send_query(&mut self, now: Time, index: PeerIndex) {
        let Some(header) = self.header_to(index) else { return };
        let tuning = self.setup.tuning;
        let Some(peer) = self.table.get_mut(index) else { return };
        let state = &mut peer.query;
        let links = self.links.query_links(&peer.last_seen_by_link, state.tries < EXPLORE_TRIES_MAX);
        state.tries = state.tries.saturating_add(1);
        state.last_sent = Some(now);
        state.forced &= state.tries < FORCED_TRIES_MAX;
        let doublings = state.tries.saturating_sub(STEADY_TRIES_MAX).min(16);
        let pause = tuning.ask_us.saturating_mul(1 << doublings).min(tuning.ask_us_max.max(tuning.ask_us));
        let query = HostQuery { src_dst_peer_index: Some(index), magic: self.magic };
        for link in links.into_iter().flatten() {
            self.send(link, header, Packet::HostQuery(query));
        }
        self.schedule_query(index, Some(now.after_us(pause)));
    }

    /// Handles a peer's query for our name. The reply uses the link of the query, so that the peer learns that this link reaches us.
    pub(super) fn receive_query(
        &mut self,
        now: Time,
        link: LinkNumber,
        header: &Header,
        query: &HostQuery,
    ) -> Result<(), Dropped> {
        let peer = self.sender_by_address(header)?;
        let unheard = self.table.get(peer).is_some_and(|peer| peer.remote_index.is_none() && peer.name().is_none());
        self.update_peer(now, link, peer, query.src_dst_peer_index);
        if unheard {
            self.schedule_query(peer, Some(now)); // The peer did not know this board at the last query.
        }
        let own = PeerIndex::new(0).and_then(|own| self.table.get(own)?.name()).unwrap_or(self.setup.name);
        let (Some(to), true) = (self.header_to(peer), self.rate_limiters.replies.try_acquire(now)) else {
            return Err(Dropped::QueryRateLimited);
        };
        let reply = HostReply { src_dst_peer_index: Some(peer), magic: query.magic, hostname: own };
        if self.send(link, to, Packet::HostReply(reply)) { Ok(()) } else { Err(Dropped::QueryRateLimited) }
    }

    /// Handles a peer's reply with its name.
    pub(super) fn receive_reply(
        &mut self,
        now: Time,
        link: LinkNumber,
        header: &Header,
        reply: &HostReply,
    ) -> Result<(), Dropped> {
        let index = self.sender_by_address(header)?;
        let asked = self.table.get(index).is_some_and(|peer| peer.query.last_sent.is_some());
        if reply.magic != self.magic || !asked {
            return Err(Dropped::UnsolicitedReply);
        }
        self.update_peer(now, link, index, reply.src_dst_peer_index);
        let Some(peer) = self.table.get_mut(index) else { return Ok(()) };
        peer.query.forced = false;
        if peer.learn_name(reply.hostname) {
            self.push_event(BoardEvent::Named(index));
        }
        Ok(())
    }

    /// Records a frame from a peer, and the index to put into headers for the peer.
    pub(super) fn update_peer(
        &mut self,
        now: Time,
        link: LinkNumber,
        index: PeerIndex,
        remote_index: Option<PeerIndex>,
    ) {
        if let Some(peer) = self.table.get_mut(index) {
            peer.heard(now, link);
            peer.remote_index = remote_index.or(peer.remote_index);
        }
    }
}
