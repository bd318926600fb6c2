//! The end of a domain: in order, by a broken connection, or because the daemon removes it. All its resources are freed, and all peers that
//! have watched it are notified.

use isthmus_layout::Refusal;
use isthmus_layout::control::{ChannelClosed, PeerGone};
use isthmus_layout::ids::DomainId;
use isthmus_layout::reason::Reason;

use super::{Broker, ControlSessionId, SessionStage};
use crate::capabilities::Capabilities;
use crate::policy::Policy;

impl Broker {
    /// Detaches a domain because its connection or its process has ended, or because its program does not read its messages.
    pub fn connection_lost(&mut self, id: ControlSessionId, reason: Reason) {
        if let Some(SessionStage::Attached { domain }) = self.sessions.get(&id).map(|session| session.stage.clone()) {
            self.log_reason(id, reason, reason.summary());
            self.detach(domain, reason);
        }
        self.close_session(id);
    }

    /// Removes a connection that is closed, after everything for it has been sent.
    pub fn remove_session(&mut self, id: ControlSessionId) {
        self.sessions.remove(&id);
    }

    pub(super) fn detach(&mut self, domain: DomainId, reason: Reason) {
        for (channel, of) in self.channels.halves_involving(domain) {
            if of == domain {
                self.channels.remove_half(channel, of);
            } else {
                self.half_timed_out(channel, of);
            }
        }
        let channels: Vec<_> = self.directory.get(domain).into_iter().flat_map(|domain| domain.channels()).collect();
        for channel in channels {
            self.end_channel(channel, Some(domain), reason);
        }
        self.drop_lingering(domain);
        self.resumable.remove_lookups_by(domain);
        self.remove_regions_of(domain);
        self.change_identities(|identities| drop(identities.remove(&domain)));
        let Some((_, watchers)) = self.directory.detach(domain) else { return };
        self.leaving.insert(domain, (reason, watchers.into_iter().collect()));
        self.workers.remove(domain, reason);
        Capabilities::left(self, domain);
        self.tickets.remove(domain);
        if let Some(attachment) = self.attachments.remove(&domain) {
            attachment.allocator.release_vector(domain);
        }
        tracing::debug!(%domain, %reason, "gone");
    }

    /// Notifies the peers of a domain that it is gone. Called once its worker has delivered its messages, so that this is the last its
    /// peers receive of it.
    pub(super) fn finish_detach(&mut self, domain: DomainId) {
        self.workers.release_slot(domain);
        let Some((reason, watchers)) = self.leaving.remove(&domain) else { return };
        for watcher in watchers {
            self.notify(watcher, PeerGone { peer: domain, reason }.into());
        }
    }

    /// Ends a channel from before the restart because its other end has not resumed.
    pub(super) fn half_timed_out(&mut self, channel: isthmus_layout::ChannelId, domain: DomainId) {
        let Some(half) = self.channels.remove_half(channel, domain) else { return };
        if let Some(domain) = self.directory.get_mut(domain) {
            domain.ready_maps.release(half.end.ready_map, half.end.ready_bit);
        }
        let is_there = self.directory.get(half.peer).is_some();
        let reason = if is_there { Reason::ClosedByPeer } else { Reason::PeerConnectionLost };
        self.notify(domain, ChannelClosed { channel, reason }.into());
        if !is_there {
            self.notify(domain, PeerGone { peer: half.peer, reason }.into());
        }
    }

    /// Replaces the policy, and ends the domains and channels that it forbids.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = std::sync::Arc::new(policy);
        let forbidden: Vec<(ControlSessionId, Refusal)> = self
            .attachments
            .iter()
            .filter_map(|(&domain, attachment)| {
                let identity = self.identity(domain)?;
                let allowed = self.may_attach(attachment.session).and_then(|()| self.policy.may_be_domain(&identity));
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
            let (Some(a), Some(b)) = (self.identity(a), self.identity(b)) else { continue };
            if let Err(reason) = self.policy.may_open_channel(&a, &b) {
                self.end_channel(channel, None, reason);
            }
        }
        self.send_policy();
    }

    /// Ends all connections with the reason. Attached domains stay in the tickets, so that they can resume.
    pub fn shut_down(&mut self, reason: Reason) {
        let refusal = Refusal::from(reason);
        let sessions: Vec<ControlSessionId> = self.sessions.keys().copied().collect();
        for id in sessions {
            self.refuse(id, None, &refusal);
            self.close_session(id);
        }
        if self.attachments.is_empty() && self.resumable.is_empty() {
            self.tickets.delete_file();
        }
        self.workers.shutdown();
    }
}
