//! Remote peers: endpoints of other hosts, with numbers by which local domains know them.
//!
//! The data plane assigns the numbers. The address of a remote peer belongs to the capability that connected to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use isthmus_layout::Refusal;
use isthmus_layout::control::{Grant, PeerGone, Revoke};
use isthmus_layout::ids::{DomainId, RegionId};
use isthmus_layout::limits::PEER_REGIONS_MAX;
use isthmus_layout::reason::Reason;
use isthmus_service::{Command, WorkerIndex};
use isthmus_shm::regcache::PeerRegion;

use super::Core;
use super::granted_memory::sealed;
use crate::fd_reaper::ReceivedFd;

/// The largest accepted size of a region in bytes, as a plausibility check.
const REGION_BYTES_MAX: u64 = 64 << 30;

/// An endpoint on another host.
#[derive(Debug)]
struct RemotePeer {
    /// The local domain that knows it.
    domain: DomainId,
    /// The worker that reaches it.
    worker: WorkerIndex,
    /// The regions that the domain has granted to it.
    regions: Vec<RegionId>,
}

/// The remote peers of all domains.
#[derive(Debug, Default)]
pub(crate) struct RemotePeers {
    peers: BTreeMap<DomainId, RemotePeer>,
    by_domain: BTreeMap<DomainId, BTreeSet<DomainId>>,
}

impl RemotePeers {
    /// Adds a remote peer of a domain.
    pub(crate) fn insert(&mut self, remote_peer: DomainId, domain: DomainId, worker: WorkerIndex) {
        self.remove(remote_peer);
        self.by_domain.entry(domain).or_default().insert(remote_peer);
        self.peers.insert(remote_peer, RemotePeer { domain, worker, regions: Vec::new() });
    }

    /// Removes and returns all remote peers of a domain.
    pub(crate) fn remove_of(&mut self, domain: DomainId) -> Vec<DomainId> {
        let removed = self.by_domain.remove(&domain).unwrap_or_default();
        removed.into_iter().filter(|remote_peer| self.peers.remove(remote_peer).is_some()).collect()
    }

    fn remove(&mut self, remote_peer: DomainId) -> bool {
        let Some(known) = self.peers.remove(&remote_peer) else { return false };
        if let Some(of_domain) = self.by_domain.get_mut(&known.domain) {
            of_domain.remove(&remote_peer);
            if of_domain.is_empty() {
                self.by_domain.remove(&known.domain);
            }
        }
        true
    }

    /// Returns a remote peer of a domain.
    fn of_domain(&mut self, remote_peer: DomainId, domain: DomainId) -> Option<&mut RemotePeer> {
        self.peers.get_mut(&remote_peer).filter(|known| known.domain == domain)
    }
}

impl Core {
    /// Removes a remote peer, and notifies its domain.
    pub(crate) fn remote_peer_removed(&mut self, remote_peer: DomainId, domain: DomainId, reason: Reason) {
        if self.remote_peers.remove(remote_peer) {
            self.notify(domain, PeerGone { peer: remote_peer, reason }.into());
        }
    }

    /// Lets messages to a remote peer be sent directly from a domain's memory. Only the data plane maps that memory.
    pub(crate) fn grant_remote(&mut self, domain: DomainId, grant: &Grant, memory: ReceivedFd) -> Result<(), Refusal> {
        let Grant { peer, region, start, bytes } = *grant;
        let known = self.remote_peers.of_domain(peer, domain).ok_or(Reason::NoSuchDomain)?;
        if known.regions.len() >= PEER_REGIONS_MAX {
            return Err(Reason::RegionsFull.into());
        }
        sealed(&memory, start.checked_add(bytes))?;
        let mapped = PeerRegion::map(&memory.into_fd(), start, bytes, REGION_BYTES_MAX);
        let memory = mapped.map_err(|error| Refusal::new(Reason::RegionNotSealed, error.to_string()))?;
        known.regions.push(region);
        let (worker, memory) = (known.worker, Arc::new(memory));
        self.workers.send(Command::GrantRemote { worker, remote_peer: peer, region, memory });
        Ok(())
    }

    pub(crate) fn revoke_remote(&mut self, domain: DomainId, revoke: &Revoke) -> Result<(), Refusal> {
        let Revoke { peer, region } = *revoke;
        let known = self.remote_peers.of_domain(peer, domain).ok_or(Reason::RegionNotGranted)?;
        let at = known.regions.iter().position(|granted| *granted == region).ok_or(Reason::RegionNotGranted)?;
        known.regions.swap_remove(at);
        let worker = known.worker;
        self.workers.send(Command::RevokeRemote { worker, remote_peer: peer, region });
        Ok(())
    }
}
