//! The end of a domain: in order, by a broken connection, or because the daemon removes it. All its resources are freed, and all peers that
//! have watched it are notified.

use std::collections::BTreeSet;

use isthmus_layout::Refusal;
use isthmus_layout::control::{ChannelClosed, PeerGone, Undelivered};
use isthmus_layout::ids::{ChannelId, DomainId};
use isthmus_layout::reason::Reason;

use super::Broker;
use crate::core::SessionStage;
use crate::core::types::ControlSessionId;
use crate::policy::Policy;

/// A domain that has left, until all of its peers know.
#[derive(Debug)]
pub(super) struct Leaving {
    reason: Reason,
    channels: Vec<ChannelId>,
    watchers: BTreeSet<DomainId>,
    /// Its worker still delivers its last messages.
    has_worker: bool,
}

impl Broker {
    /// Detaches a domain because its connection or its process has ended, or because its program does not read its messages.
    pub fn connection_lost(&mut self, id: ControlSessionId, reason: Reason) {
        if let Some(SessionStage::Attached { domain }) =
            self.core.sessions.get(&id).map(|session| session.stage.clone())
        {
            self.core.log_reason(id, reason, reason.summary());
            self.detach(domain, reason);
        }
        self.close_session(id);
    }

    /// Removes a connection that is closed, after everything for it has been sent.
    pub fn remove_session(&mut self, id: ControlSessionId) {
        self.core.sessions.remove(&id);
    }

    pub(super) fn detach(&mut self, domain: DomainId, reason: Reason) {
        for (channel, of) in self.channels.halves_involving(domain) {
            if of == domain {
                self.channels.remove_half(channel, of);
            } else {
                self.half_timed_out(channel, of);
            }
        }
        let channels = self.core.directory.get(domain).into_iter().flat_map(|domain| domain.channels()).collect();
        self.drop_lingering(domain);
        self.resumable.remove_lookups_by(domain);
        self.remove_regions_of(domain);
        let Some((_, watchers)) = self.core.directory.detach(domain) else { return };
        self.endings.leaving.insert(domain, Leaving { reason, channels, watchers, has_worker: true });
        self.endings.deferred.push_back(domain);
        self.core.workers.remove(domain, reason);
        let (capabilities, core) = self.lend();
        capabilities.left(core, domain);
        self.core.tickets.remove(domain);
        if let Some(attachment) = self.core.attachments.remove(domain) {
            attachment.allocator.release_vector(domain);
        }
        tracing::debug!(%domain, %reason, "gone");
    }

    /// Logs and counts the messages that a domain is about to leave behind, and ends its channel with their receiver, which learns the reason
    /// by that.
    pub(super) fn undelivered(&mut self, id: ControlSessionId, domain: DomainId, report: &Undelivered) {
        let &Undelivered { peer, messages } = report;
        let count = &mut self.core.reason_log.undelivered_messages;
        *count = count.saturating_add(messages.into());
        let name = |id: DomainId| {
            self.core.directory.get(id).map_or_else(|| id.to_string(), |of| format!("{} ({id})", of.name))
        };
        let text = format!("{} leaves with {messages} messages that {} has not taken", name(domain), name(peer));
        let channel = self.core.directory.get(domain).and_then(|of| of.peers.get(&peer)?.channel);
        self.core.log_reason(id, Reason::MessagesUndelivered, &text);
        if let Some(channel) = channel {
            self.end_channel(channel, Some(domain), Reason::MessagesUndelivered);
        }
    }

    /// Notes that the worker of a domain has delivered its messages. What its peers are told after this is the last they receive of it.
    pub(super) fn finish_detach(&mut self, domain: DomainId) {
        // Until here the worker asked whether the domain may send, because messages that it had sent were still delivered.
        self.change_identities(|identities| drop(identities.remove(&domain)));
        match self.endings.leaving.get_mut(&domain) {
            Some(leaving) => leaving.has_worker = false,
            None => return self.core.workers.release_slot(domain),
        }
        self.endings.deferred.push_back(domain);
    }

    /// Ends the channels of a domain that has left, once its worker has delivered its messages, then notifies those that have watched it:
    /// `count` of them at most. Returns the rest of
    /// `count`, which is not 0 if there is nothing left to do now. The number of the domain is not given out again before the end.
    pub(super) fn release_part(&mut self, domain: DomainId, count: usize) -> usize {
        for rest in (1..=count).rev() {
            let Some(leaving) = self.endings.leaving.get_mut(&domain) else { return rest };
            let reason = leaving.reason;
            if leaving.has_worker {
                return rest; // What it sent by its worker precedes what it sent by its channels.
            } else if let Some(channel) = leaving.channels.pop() {
                self.end_channel(channel, Some(domain), reason);
            } else if let Some(watcher) = leaving.watchers.pop_first() {
                self.core.notify(watcher, PeerGone { peer: domain, reason }.into());
            } else {
                self.endings.leaving.remove(&domain);
                self.core.workers.release_slot(domain);
            }
        }
        0
    }

    /// Ends a channel from before the restart because its other end has not resumed.
    pub(super) fn half_timed_out(&mut self, channel: ChannelId, domain: DomainId) {
        let Some(half) = self.channels.remove_half(channel, domain) else { return };
        if let Some(domain) = self.core.directory.get_mut(domain) {
            domain.ready_maps.release(half.end.ready_map, half.end.ready_bit);
        }
        let is_there = self.core.directory.get(half.peer).is_some();
        let reason = if is_there { Reason::ClosedByPeer } else { Reason::PeerConnectionLost };
        self.core.notify(domain, ChannelClosed { channel, reason }.into());
        if !is_there {
            self.core.notify(domain, PeerGone { peer: half.peer, reason }.into());
        }
    }

    /// Replaces the policy, and ends the domains and channels that it forbids.
    pub fn set_policy(&mut self, policy: Policy) {
        self.core.policy = std::sync::Arc::new(policy);
        let forbidden: Vec<(ControlSessionId, Refusal)> = self
            .core
            .attachments
            .iter()
            .filter_map(|(&domain, attachment)| {
                let identity = self.core.identity(domain)?;
                let allowed =
                    self.core.may_attach(attachment.session).and_then(|()| self.core.policy.may_be_domain(&identity));
                Some((attachment.session, allowed.err()?))
            })
            .collect();
        for (id, refusal) in forbidden {
            self.end_session(id, &refusal);
        }
        let ends: Vec<_> = self
            .channels
            .iter()
            .map(|channel| (channel.id, channel.connector.domain, channel.listener.domain))
            .collect();
        for (channel, a, b) in ends {
            let (Some(a), Some(b)) = (self.core.identity(a), self.core.identity(b)) else { continue };
            if let Err(reason) = self.core.policy.may_open_channel(&a, &b) {
                self.end_channel(channel, None, reason);
            }
        }
        self.send_policy();
    }

    /// Ends all connections with the reason. Attached domains stay in the tickets, so that they can resume.
    pub fn shut_down(&mut self, reason: Reason) {
        let refusal = Refusal::from(reason);
        let sessions: Vec<ControlSessionId> = self.core.sessions.keys().copied().collect();
        for id in sessions {
            self.core.refuse(id, None, &refusal);
            self.close_session(id);
        }
        if self.core.attachments.is_empty() && self.resumable.is_empty() {
            self.core.tickets.delete_file();
        }
        self.core.workers.shutdown();
    }
}
