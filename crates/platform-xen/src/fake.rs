//! A simulated Xen host in this process: domains, grants, event channels, a store. For tests without a hypervisor.
//!
//! The simulation reproduces observed behaviour of a real host, above all the surprising parts. The suite in real guests (`tests/guests`)
//! runs the same checks on Xen, so that the two cannot diverge:
//!
//! * the references of one allocation come in any order;
//! * a reference is checked only when it is *mapped*; one bad reference makes the whole call fail;
//! * binding raises one event at once; notifying a channel after its other end is gone succeeds;
//! * when a mapper or granter ends for any reason, a byte is cleared and an event is raised; the destruction of a whole domain does
//!   neither;
//! * pages that a destroyed domain granted stay mapped where they are, and cannot be mapped again;
//! * pages of others that a destroyed domain had mapped are no longer mapped;
//! * the destruction fires watches on nodes of the domain that the watcher could read; reading them returns EACCES rather than ENOENT,
//!   because the watcher may not read the nearest node above that is left;
//! * a domain writes below `data/` of its own directory only.

mod grants;
mod ports;
mod store;

pub use grants::FakePages;
pub use ports::FakePort;
pub use store::FakeStoreTransport;

use crate::kernel::{Kernel, UnmapNotify};
use crate::{Domid, EvtchnPort, GrantRef};
use isthmus_shm::{Access, Mapping};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A simulated host; clones share it.
#[derive(Clone, Debug, Default)]
pub struct FakeHost {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Signalled after each change of the state, for waiting threads.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    alive: BTreeSet<Domid>,
    /// The maximum number of pages that a domain may grant, if limited.
    limits: BTreeMap<Domid, usize>,
    grants: grants::GrantTable,
    ports: ports::PortTable,
    store: store::Tree,
}

impl FakeHost {
    /// Creates a host with a domain 0.
    pub fn new() -> Self {
        let host = Self::default();
        let mut state = host.lock();
        state.alive.insert(Domid::ZERO);
        state.store.introduce(Domid::ZERO);
        drop(state);
        host
    }

    /// Starts a further domain, as the toolstack does.
    ///
    /// # Panics
    ///
    /// Panics if a domain with this number runs already.
    pub fn start(&self, domid: Domid) -> FakeDomain {
        let mut state = self.lock();
        assert!(state.alive.insert(domid), "domain {domid} runs already");
        state.store.introduce(domid);
        drop(state);
        self.domain(domid)
    }

    /// Returns the kernel of a running domain.
    pub fn domain(&self, domid: Domid) -> FakeDomain {
        assert!(self.lock().alive.contains(&domid), "domain {domid} does not run");
        FakeDomain { host: self.clone(), domid }
    }

    /// Ends a domain as `xl destroy` does: none of its code runs any more.
    pub fn destroy(&self, domid: Domid) {
        let mut state = self.lock();
        state.alive.remove(&domid);
        state.grants.destroy(domid);
        state.ports.destroy(domid);
        state.store.release(domid);
        self.shared.changed.notify_all();
    }

    /// Breaks all store connections of a domain. The domain can open others.
    pub fn disconnect_store(&self, domid: Domid) {
        self.lock().store.disconnect(domid);
        self.shared.changed.notify_all();
    }

    /// Notifies the other end of a domain's port, as every holder of its descriptor can.
    pub fn notify(&self, domid: Domid, port: EvtchnPort) {
        self.lock().ports.notify(domid, port);
        self.shared.changed.notify_all();
    }

    /// Returns the number of granted pages of the whole host, for finding leaks.
    pub fn grants(&self) -> usize {
        self.lock().grants.len()
    }

    /// Returns the number of pages that one domain has granted, including those that are only still mapped.
    pub fn grants_of(&self, domid: Domid) -> usize {
        self.lock().grants.of(domid)
    }

    /// Returns the number of pages that one domain has granted to one other.
    pub fn grants_to(&self, domid: Domid, to: Domid) -> usize {
        self.lock().grants.between(domid, to)
    }

    /// Limits the number of pages that a domain grants at once, as `xen_gntalloc` does.
    pub fn limit_grants(&self, domid: Domid, pages: usize) {
        self.lock().limits.insert(domid, pages);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kernel of one domain.
#[derive(Clone, Debug)]
pub struct FakeDomain {
    host: FakeHost,
    domid: Domid,
}

impl FakeDomain {
    /// Returns the number of this domain.
    pub fn domid(&self) -> Domid {
        self.domid
    }
}

impl Kernel for FakeDomain {
    type Pages = FakePages;
    type Port = FakePort;
    type StoreTransport = FakeStoreTransport;

    fn offer(&self, to: Domid, pages: u32, access: Access) -> Result<FakePages, Errno> {
        FakePages::new(self, to, pages, access)
    }

    fn map(
        &self,
        from: Domid,
        refs: &[GrantRef],
        access: Access,
        unmap_notify: Option<UnmapNotify<'_, FakePort>>,
    ) -> Result<Mapping, Errno> {
        grants::map(self, from, refs, access, unmap_notify)
    }

    /// Works only for the first pages of one allocation, in their order.
    fn lend_fd(&self, from: Domid, refs: &[GrantRef]) -> Result<OwnedFd, Errno> {
        grants::lend_fd(self, from, refs)
    }

    fn listen(&self, peer: Domid) -> Result<FakePort, Errno> {
        FakePort::listen(self, peer)
    }

    fn bind(&self, peer: Domid, port: EvtchnPort) -> Result<FakePort, Errno> {
        FakePort::bind(self, peer, port)
    }

    fn store(&self) -> Result<FakeStoreTransport, Errno> {
        Ok(FakeStoreTransport::new(self))
    }

    /// Does nothing, because closing the descriptor is harmless here.
    fn leak_port(&self, _port: OwnedFd) {}
}

#[cfg(test)]
mod tests;
