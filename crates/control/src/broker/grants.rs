//! Regions: the daemon checks the memory that one domain offers to another before passing it on, so that the reader can map it safely.

use isthmus_layout::Refusal;
use isthmus_layout::control::{Grant, Granted, Revoke, Revoked};
use isthmus_layout::ids::DomainId;
use isthmus_layout::reason::Reason;

use super::Broker;
use super::channels::PEERS_BACKLOG_MAX;
use crate::fd_reaper::ReceivedFd;

impl Broker {
    pub(super) fn grant(&mut self, domain: DomainId, grant: &Grant, memory: ReceivedFd) -> Result<(), Refusal> {
        let Grant { peer, region, start, bytes } = *grant;
        if peer.is_remote() {
            return self.grant_remote(domain, grant, memory);
        }
        let (Some(owner), Some(reader)) = (self.identity(domain), self.identity(peer)) else {
            return Err(Reason::NoSuchDomain.into());
        };
        self.policy.may_grant(&owner, &reader)?;
        self.common_allocator(domain, peer)?;
        sealed(&memory, start.checked_add(bytes))?;
        let session = self.attachments[&peer].session;
        if self.sessions.get(&session).is_some_and(|session| session.backlog >= PEERS_BACKLOG_MAX) {
            return Err(Refusal::new(
                Reason::RegionsFull,
                "the reader has not taken the regions it was granted before",
            ));
        }
        self.directory.peer_state(domain, peer).grants += 1;
        let message = Granted { peer: domain, region, start, bytes };
        self.send(session, None, message.into(), vec![memory.into_fd().into()]);
        Ok(())
    }

    pub(super) fn revoke(&mut self, domain: DomainId, revoke: &Revoke) -> Result<(), Refusal> {
        let Revoke { peer, region } = *revoke;
        if peer.is_remote() {
            return self.revoke_remote(domain, revoke);
        }
        let known = self.directory.get_mut(domain).and_then(|domain| domain.peers.get_mut(&peer));
        let Some(known) = known.filter(|known| known.grants > 0) else {
            return Err(Reason::RegionNotGranted.into());
        };
        known.grants -= 1;
        self.region_revoked(domain, region, peer);
        self.notify(peer, Revoked { peer: domain, region }.into());
        Ok(())
    }
}

/// The kernel's magic number of the file system of memory files with plain pages.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Refuses memory that could shrink under its reader, or that ends before `end`.
pub(super) fn sealed(memory: &ReceivedFd, end: Option<u64>) -> Result<(), Refusal> {
    let seals = rustix::fs::fcntl_get_seals(memory).unwrap_or(rustix::fs::SealFlags::empty());
    if !seals.contains(rustix::fs::SealFlags::SHRINK) {
        return Err(Reason::RegionNotSealed.into());
    }
    if rustix::fs::fstatfs(memory).is_ok_and(|system| system.f_type != TMPFS_MAGIC) {
        let text = "huge pages, sealed or not, may be missing when they are touched";
        return Err(Refusal::new(Reason::RegionNotSealed, text));
    }
    let have = rustix::fs::fstat(memory).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
    match end {
        Some(end) if end <= have => Ok(()),
        _ => Err(Refusal::new(Reason::RegionTooSmall, format!("the memory has {have} bytes, more were offered"))),
    }
}
