//! Counts of what peers ask for of memory here. A peer that performs its operations itself asks for nothing.

use crate::engine::Engine;
use crate::types::Key;
use isthmus_layout::DomainId;

/// Peers that are counted before [`Engine::next_accesses`] takes the counts, at most.
const PEERS_MAX: usize = 64;

/// Requests of a peer for memory, since [`Engine::next_accesses`] took the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAccesses {
    /// The peer.
    pub peer: DomainId,
    /// Writes, reads and atomic operations that this device has accepted. Writes with immediate data are not counted, because they
    /// always come by packets.
    pub served: u64,
    /// The key, the address and the length in bytes that the last one of these names.
    pub last: Option<(Key, u64, u64)>,
    /// Requests that were refused for their key, range or rights.
    pub refused: u64,
}

impl Engine {
    /// Counts a request that was accepted. The peer may perform such a request itself; one without a byte never.
    pub(crate) fn count_served(&mut self, slot: u32, named: (Key, u64, u64)) {
        if named.2 > 0
            && let Some(counted) = self.accesses_of_peer(slot)
        {
            counted.served += 1;
            counted.last = Some(named);
            self.accesses_pending += 1;
        }
    }

    /// Counts a request that was refused.
    pub(crate) fn count_refused(&mut self, slot: u32) {
        if let Some(counted) = self.accesses_of_peer(slot) {
            counted.refused += 1;
            self.accesses_pending += 1;
        }
    }

    /// The counts of the peer of a queue pair.
    fn accesses_of_peer(&mut self, slot: u32) -> Option<&mut PeerAccesses> {
        let peer = self.qp(slot)?.peer?.domain;
        let at = self.accesses.iter().position(|counted| counted.peer == peer).unwrap_or(self.accesses.len());
        if at == self.accesses.len() && at < PEERS_MAX {
            self.accesses.push(PeerAccesses { peer, served: 0, last: None, refused: 0 });
        }
        self.accesses.get_mut(at)
    }

    /// The number of requests of peers for memory since the last call of [`Self::next_accesses`].
    #[inline]
    pub fn accesses_pending(&self) -> u64 {
        self.accesses_pending
    }

    /// Takes the counts of one peer's requests for memory.
    pub fn next_accesses(&mut self) -> Option<PeerAccesses> {
        self.accesses_pending = 0;
        self.accesses.pop()
    }
}
