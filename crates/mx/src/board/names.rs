//! Who is called what, and who numbers us how (mxoe-wire 5.5): HOST_QUERY and HOST_REPLY.
//!
//! A peer is asked for its name until it says it. It is also asked when its name is known and something else is not: by which link
//! it can be reached; or, when it sends frames with an index that is not its own, as one does that has not noticed that we started
//! anew, what it is to put there instead: a question says that, too.

use super::table::{Known, Peer};
use super::{Board, Dropped, Event, LinkNumber, OUTGOING_MAX};
use crate::net::Time;
use crate::wire::{Header, HostQuery, HostReply, Packet, PeerIndex};

/// Questions to a peer that also go by links on which it was not heard.
const EXPLORING_TRIES: u32 = 4;

/// Questions to a peer before they become rarer.
const STEADY_TRIES: u32 = 6;

/// Questions to a peer that need not be answered.
const ANYWAY_TRIES: u32 = 8;

impl Board {
    /// Asks a peer whether it is there, and what its number for us is: soon, and not more often than any peer is asked. For when
    /// an endpoint there does not answer. Who answers is heard, which [`Board::link_to`] takes note of.
    pub fn probe(&mut self, now: Time, peer: PeerIndex) {
        self.ask_anew(now, peer);
    }

    /// Forgets the names that peers told, and asks for them anew. Names that were given by hand stay.
    pub fn clear_names(&mut self, now: Time) {
        // Answers that are under way do not count.
        self.magic = self.magic.wrapping_add(1);
        for (_, peer) in self.table.iter_mut().filter(|(_, peer)| peer.known != Known::Local) {
            peer.unlearn_name();
            peer.question.tries = 0;
        }
        self.seek_all(now);
    }

    /// From the first question on, as soon as may be.
    pub(super) fn ask_anew(&mut self, now: Time, index: PeerIndex) {
        let ask_us = self.setup.tuning.ask_us;
        if self.table.remote(index).is_none() {
            return;
        }
        let Some(peer) = self.table.get_mut(index) else { return };
        peer.question.anyway = true;
        peer.question.tries = 0;
        let soonest = peer.question.asked.map_or(now, |asked| now.max(asked.after_us(ask_us)));
        let due = peer.question.due.map_or(soonest, |due| due.min(soonest));
        self.schedule(index, Some(due));
    }

    /// Peers of whom something is not known are asked, soon.
    pub(super) fn seek_all(&mut self, now: Time) {
        let (ways, questions, ask_us) = (&self.ways, &mut self.questions, self.setup.tuning.ask_us);
        for (index, peer) in self.table.iter_mut() {
            let lost = !ways.reaches(&peer.heard_on) || ways.is_unexplored(&peer.heard_on);
            let wanted = lost || peer.name().is_none() || peer.question.anyway;
            if peer.known == Known::Local || peer.forgotten || !wanted {
                continue;
            }
            peer.question.tries = 0;
            let soonest = peer.question.asked.map_or(now, |asked| now.max(asked.after_us(ask_us)));
            if let Some(due) = peer.question.due.replace(soonest) {
                questions.remove(&(due, index));
            }
            questions.insert((soonest, index));
        }
    }

    pub(super) fn schedule(&mut self, index: PeerIndex, due: Option<Time>) {
        let Some(peer) = self.table.get_mut(index) else { return };
        if let Some(before) = core::mem::replace(&mut peer.question.due, due) {
            self.questions.remove(&(before, index));
        }
        if let Some(due) = due {
            self.questions.insert((due, index));
        }
    }

    /// All whose turn it is.
    pub(super) fn ask_all(&mut self, now: Time) {
        while let Some((due, index)) = self.questions.first().copied()
            && due <= now
            && self.outgoing.len() < OUTGOING_MAX
        {
            if !self.table.remote(index).is_some_and(|peer| self.wants_to_ask(peer)) {
                self.schedule(index, None);
            } else if self.meters.asking.take(now) {
                self.ask_one(now, index);
            } else {
                break;
            }
        }
    }

    fn wants_to_ask(&self, peer: &Peer) -> bool {
        let explores = peer.question.tries < EXPLORING_TRIES && self.ways.is_unexplored(&peer.heard_on);
        let wanted = peer.name().is_none() || peer.question.anyway || explores || !self.ways.reaches(&peer.heard_on);
        // Without a link it waits for one.
        wanted && self.ways.any_is_up()
    }

    fn ask_one(&mut self, now: Time, index: PeerIndex) {
        let Some(header) = self.header_to(index) else { return };
        let tuning = self.setup.tuning;
        let Some(peer) = self.table.get_mut(index) else { return };
        let question = &mut peer.question;
        let links = self.ways.to_ask(&peer.heard_on, question.tries < EXPLORING_TRIES);
        question.tries = question.tries.saturating_add(1);
        question.asked = Some(now);
        question.anyway &= question.tries < ANYWAY_TRIES;
        let doublings = question.tries.saturating_sub(STEADY_TRIES).min(16);
        let pause = tuning.ask_us.saturating_mul(1 << doublings).min(tuning.ask_us_max.max(tuning.ask_us));
        let query = HostQuery { src_dst_peer_index: Some(index), magic: self.magic };
        for link in links.into_iter().flatten() {
            self.send(link, header, Packet::HostQuery(query));
        }
        self.schedule(index, Some(now.after_us(pause)));
    }

    /// A peer asks for our name. It is answered by the link on which it asked, so that it learns that this is a way.
    pub(super) fn receive_query(
        &mut self,
        now: Time,
        link: LinkNumber,
        header: &Header,
        query: &HostQuery,
    ) -> Result<(), Dropped> {
        let peer = self.sender_by_address(header)?;
        let unheard = self.table.get(peer).is_some_and(|peer| peer.reverse.is_none() && peer.name().is_none());
        self.learn(now, link, peer, query.src_dst_peer_index);
        if unheard {
            self.schedule(peer, Some(now)); // It did not know us when it was asked before.
        }
        let own = PeerIndex::new(0).and_then(|own| self.table.get(own)?.name()).unwrap_or(self.setup.name);
        let (Some(to), true) = (self.header_to(peer), self.meters.answering.take(now)) else {
            return Err(Dropped::QueriedTooOften);
        };
        let reply = HostReply { src_dst_peer_index: Some(peer), magic: query.magic, hostname: own };
        if self.send(link, to, Packet::HostReply(reply)) { Ok(()) } else { Err(Dropped::QueriedTooOften) }
    }

    /// A peer has said its name.
    pub(super) fn receive_reply(
        &mut self,
        now: Time,
        link: LinkNumber,
        header: &Header,
        reply: &HostReply,
    ) -> Result<(), Dropped> {
        let index = self.sender_by_address(header)?;
        let asked = self.table.get(index).is_some_and(|peer| peer.question.asked.is_some());
        if reply.magic != self.magic || !asked {
            return Err(Dropped::NotAsked);
        }
        self.learn(now, link, index, reply.src_dst_peer_index);
        let Some(peer) = self.table.get_mut(index) else { return Ok(()) };
        peer.question.anyway = false;
        if peer.learn_name(reply.hostname) {
            self.tell(Event::Named(index));
        }
        Ok(())
    }

    /// A peer was heard, and says what to put into headers for it.
    pub(super) fn learn(&mut self, now: Time, link: LinkNumber, index: PeerIndex, reverse: Option<PeerIndex>) {
        if let Some(peer) = self.table.get_mut(index) {
            peer.heard(now, link);
            peer.reverse = reverse.or(peer.reverse);
        }
    }
}
