//! The end of a domain: in order, by a broken connection, or because the daemon throws it out. Everything it had is freed, and
//! everybody who had to do with it hears of it.

use isthmus_layout::control::{ChannelClosed, PeerGone};
use isthmus_layout::ids::DomainId;
use isthmus_layout::reason::Reason;

use super::{Broker, Refusal, SessionId, Stage};
use crate::policy::Policy;

impl Broker {
    /// A connection has ended, or its process has, or it takes nothing any more.
    pub fn lost(&mut self, id: SessionId, reason: Reason) {
        if let Some(Stage::Attached { domain }) = self.sessions.get(&id).map(|session| session.stage.clone()) {
            self.note(id, reason, reason.summary());
            self.leave(domain, reason);
        }
        self.over(id);
    }

    /// Everything for a connection has been sent and it is closed.
    pub fn forget(&mut self, id: SessionId) {
        self.sessions.remove(&id);
    }

    pub(super) fn leave(&mut self, domain: DomainId, reason: Reason) {
        for (channel, of) in self.channels.halves_about(domain) {
            if of == domain {
                self.channels.remove_half(channel, of);
            } else {
                self.half_unanswered(channel, of);
            }
        }
        let channels: Vec<_> = self.directory.get(domain).into_iter().flat_map(|domain| domain.channels()).collect();
        for channel in channels {
            self.end_channel(channel, Some(domain), reason);
        }
        self.leave_lingering(domain);
        self.regions_left(domain);
        self.change_identities(|identities| drop(identities.remove(&domain)));
        let numbers: Vec<_> = self.directory.mx().claims().filter(|(_, claim)| claim.at.domain == domain).collect();
        let numbers: Vec<_> = numbers.into_iter().map(|(number, _)| number).collect();
        let Some((_, watchers)) = self.directory.detach(domain) else { return };
        self.leaving.insert(domain, (reason, watchers.into_iter().collect()));
        self.workers.remove(domain, reason);
        numbers.into_iter().for_each(|number| self.close_to_others(number, domain));
        self.tickets.leave(domain);
        if let Some(home) = self.homes.remove(&domain) {
            home.ground.forget(domain);
        }
        tracing::debug!(%domain, %reason, "gone");
    }

    /// A domain's worker has delivered what it had sent. Now its peers hear of its end, as the last they hear of it.
    pub(super) fn left(&mut self, domain: DomainId) {
        self.workers.removed(domain);
        let Some((reason, watchers)) = self.leaving.remove(&domain) else { return };
        for watcher in watchers {
            self.tell(watcher, PeerGone { peer: domain, reason }.into());
        }
    }

    /// A domain of the daemon before will not come back: its process has ended.
    pub fn survivor_ended(&mut self, domain: DomainId) {
        if self.expected.remove(&domain).is_some() {
            self.tickets.leave(domain);
            self.directory.mx_mut().release(domain);
            for (channel, of) in self.channels.halves_about(domain) {
                self.half_unanswered(channel, of);
            }
        }
    }

    /// The other end of a channel from before the restart has not come back.
    pub(super) fn half_unanswered(&mut self, channel: isthmus_layout::ChannelId, domain: DomainId) {
        let Some(half) = self.channels.remove_half(channel, domain) else { return };
        if let Some(domain) = self.directory.get_mut(domain) {
            domain.boards.give_back(half.end.board, half.end.place);
        }
        let is_there = self.directory.get(half.peer).is_some();
        let reason = if is_there { Reason::ClosedByPeer } else { Reason::PeerVanished };
        self.tell(domain, ChannelClosed { channel, reason }.into());
        if !is_there {
            self.tell(domain, PeerGone { peer: half.peer, reason }.into());
        }
    }

    /// The policy was changed: what it forbids now ends.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = std::sync::Arc::new(policy);
        let forbidden: Vec<SessionId> =
            self.homes.values().map(|home| home.session).filter(|&id| self.may_attach(id).is_err()).collect();
        for id in forbidden {
            self.end_session(id, &Reason::AttachForbidden.into());
        }
        let ends: Vec<_> = self
            .channels
            .iter()
            .map(|channel| (channel.id, channel.connector.domain, channel.listener.domain))
            .collect();
        for (channel, a, b) in ends {
            let (Some(a), Some(b)) = (self.identity(a), self.identity(b)) else { continue };
            if let Err(reason) = self.policy.channel(&a, &b) {
                self.end_channel(channel, None, reason);
            }
        }
        self.permit();
    }

    /// The daemon ends: everybody is told, nobody is thrown out of the tickets.
    pub fn shut_down(&mut self, reason: Reason) {
        let refusal = Refusal::from(reason);
        let sessions: Vec<SessionId> = self.sessions.keys().copied().collect();
        for id in sessions {
            self.refuse(id, None, &refusal);
            self.over(id);
        }
        if self.homes.is_empty() && self.expected.is_empty() {
            self.tickets.forget();
        }
        self.workers.shutdown();
    }
}
