//! A whole host in this process: domains, grants, event channels, a store. For tests without a hypervisor.
//!
//! It does what was seen on a real one, and above all what surprises there. The suite in real guests (`tests/guests`) asks the same of
//! Xen, so that the fake does not drift away from it:
//!
//! * references of one allocation come in any order;
//! * nobody is asked anything before a reference is *mapped*; a bad one is refused then, and what is refused is the whole call;
//! * binding raises one event at once; notifying a channel whose other end is gone succeeds;
//! * a mapper's or granter's end clears a byte and rings, however it comes; the destruction of a whole domain does not;
//! * what a destroyed domain granted stays mapped where it is, and cannot be mapped again;
//! * what it had mapped of others' is mapped no more;
//! * a watch on a node of its that was readable for us fires then, and reading says EACCES rather than ENOENT: the node above is not
//!   for us;
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

/// A host, cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct FakeHost {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Something happened that somebody may wait for.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    alive: BTreeSet<Domid>,
    /// How many pages a domain may grant, where that is limited.
    limits: BTreeMap<Domid, usize>,
    grants: grants::GrantTable,
    ports: ports::PortTable,
    store: store::Tree,
}

impl FakeHost {
    /// A host with a domain 0.
    pub fn new() -> Self {
        let host = Self::default();
        let mut state = host.lock();
        state.alive.insert(Domid::ZERO);
        state.store.introduce(Domid::ZERO);
        drop(state);
        host
    }

    /// A further domain, as its toolstack starts one.
    ///
    /// # Panics
    ///
    /// If there is one of that number.
    pub fn start(&self, domid: Domid) -> FakeDomain {
        let mut state = self.lock();
        assert!(state.alive.insert(domid), "domain {domid} runs already");
        state.store.introduce(domid);
        drop(state);
        self.domain(domid)
    }

    /// The kernel of a domain that runs.
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

    /// Breaks all connections that a domain has to the store; it can make others.
    pub fn disconnect_store(&self, domid: Domid) {
        self.lock().store.disconnect(domid);
        self.shared.changed.notify_all();
    }

    /// Rings the other end of a port of a domain's, as everybody can who has a descriptor of it.
    pub fn notify(&self, domid: Domid, port: EvtchnPort) {
        self.lock().ports.notify(domid, port);
        self.shared.changed.notify_all();
    }

    /// How many pages are granted, by anybody to anybody: to find leaks.
    pub fn grants(&self) -> usize {
        self.lock().grants.len()
    }

    /// How many pages of one domain are granted to others, or still mapped by them.
    pub fn grants_of(&self, domid: Domid) -> usize {
        self.lock().grants.of(domid)
    }

    /// The same of those that are granted to one other.
    pub fn grants_to(&self, domid: Domid, to: Domid) -> usize {
        self.lock().grants.between(domid, to)
    }

    /// Has a domain grant no more pages than that at once, as `xen_gntalloc` does.
    pub fn limit_grants(&self, domid: Domid, pages: usize) {
        self.lock().limits.insert(domid, pages);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One domain's kernel.
#[derive(Clone, Debug)]
pub struct FakeDomain {
    host: FakeHost,
    domid: Domid,
}

impl FakeDomain {
    /// Which domain it is.
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

    /// Of pages that were allocated together, in their order, the first ones.
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

    /// Nothing here depends on the descriptor.
    fn leak_port(&self, _port: OwnedFd) {}
}

#[cfg(test)]
mod tests;
