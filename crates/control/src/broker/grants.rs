//! Regions: the daemon checks the memory that one domain offers to another before passing it on, so that the reader can map it safely.

use isthmus_layout::Refusal;
use isthmus_layout::control::{Grant, Granted, Revoke, Revoked};
use isthmus_layout::ids::DomainId;
use isthmus_layout::reason::Reason;

use super::Broker;
use super::channels::PEERS_BACKLOG_MAX;
use crate::core::granted_memory::sealed;
use crate::fd_reaper::ReceivedFd;

impl Broker {
    pub(super) fn grant(&mut self, domain: DomainId, grant: &Grant, memory: ReceivedFd) -> Result<(), Refusal> {
        let Grant { peer, region, start, bytes } = *grant;
        if peer.is_remote() {
            return self.core.grant_remote(domain, grant, memory);
        }
        let (Some(owner), Some(reader)) = (self.core.identity(domain), self.core.identity(peer)) else {
            return Err(Reason::NoSuchDomain.into());
        };
        self.core.policy.may_grant(&owner, &reader)?;
        self.common_allocator(domain, peer)?;
        sealed(&memory, start.checked_add(bytes))?;
        let session = self.core.attachments[&peer].session;
        if self.core.sessions.get(&session).is_some_and(|session| session.backlog >= PEERS_BACKLOG_MAX) {
            return Err(Refusal::new(
                Reason::RegionsFull,
                "the reader has not taken the regions it was granted before",
            ));
        }
        self.core.directory.peer_state(domain, peer).grants += 1;
        let message = Granted { peer: domain, region, start, bytes };
        self.core.send(session, None, message.into(), vec![memory.into_fd().into()]);
        Ok(())
    }

    pub(super) fn revoke(&mut self, domain: DomainId, revoke: &Revoke) -> Result<(), Refusal> {
        let Revoke { peer, region } = *revoke;
        if peer.is_remote() {
            return self.core.revoke_remote(domain, revoke);
        }
        let known = self.core.directory.get_mut(domain).and_then(|domain| domain.peers.get_mut(&peer));
        let Some(known) = known.filter(|known| known.grants > 0) else {
            return Err(Reason::RegionNotGranted.into());
        };
        known.grants -= 1;
        self.region_revoked(domain, region, peer);
        self.core.notify(peer, Revoked { peer: domain, region }.into());
        Ok(())
    }
}
