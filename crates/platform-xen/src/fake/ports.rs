//! Event channels of the fake host.

use super::{FakeDomain, FakeHost};
use crate::kernel::Port;
use crate::{Domid, EvtchnPort};
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub(super) struct PortTable {
    ends: BTreeMap<(Domid, u32), PortEnd>,
    last: u32,
}

#[derive(Debug)]
struct PortEnd {
    /// The only domain that may be at the other end.
    peer: Domid,
    other: Option<u32>,
    pending: bool,
    /// Readable while an event is pending.
    event: Arc<OwnedFd>,
}

impl PortEnd {
    fn raise(&mut self) {
        self.pending = true;
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes()); // A full counter is readable, too.
    }

    fn take_pending(&mut self) -> bool {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        std::mem::take(&mut self.pending)
    }
}

fn event() -> Result<Arc<OwnedFd>, Errno> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Arc::new)
}

impl PortTable {
    fn add(&mut self, domid: Domid, end: PortEnd) -> EvtchnPort {
        self.last += 1;
        self.ends.insert((domid, self.last), end);
        EvtchnPort(self.last)
    }

    /// Raises an event at the other end, if there is one.
    pub(super) fn notify(&mut self, domid: Domid, port: EvtchnPort) {
        let Some(&PortEnd { peer, other: Some(other), .. }) = self.ends.get(&(domid, port.0)) else { return };
        if let Some(end) = self.ends.get_mut(&(peer, other)) {
            end.raise();
        }
    }

    pub(super) fn destroy(&mut self, domid: Domid) {
        self.ends.retain(|(owner, _), _| *owner != domid);
    }
}

/// An end of an event channel, closed when dropped.
#[derive(Debug)]
pub struct FakePort {
    host: FakeHost,
    domid: Domid,
    number: EvtchnPort,
    event: Arc<OwnedFd>,
}

impl FakePort {
    pub(super) fn listen(domain: &FakeDomain, peer: Domid) -> Result<Self, Errno> {
        let event = event()?;
        let end = PortEnd { peer, other: None, pending: false, event: Arc::clone(&event) };
        let number = domain.host.lock().ports.add(domain.domid, end);
        Ok(Self { host: domain.host.clone(), domid: domain.domid, number, event })
    }

    pub(super) fn bind(domain: &FakeDomain, peer: Domid, port: EvtchnPort) -> Result<Self, Errno> {
        let event = event()?;
        let mut state = domain.host.lock();
        let free = |end: &&mut PortEnd| end.peer == domain.domid && end.other.is_none();
        state.ports.ends.get_mut(&(peer, port.0)).filter(free).ok_or(Errno::INVAL)?;
        // The peer may have notified before the binding, so an event is pending at once.
        let mut end = PortEnd { peer, other: Some(port.0), pending: false, event: Arc::clone(&event) };
        end.raise();
        let number = state.ports.add(domain.domid, end);
        state.ports.ends.get_mut(&(peer, port.0)).expect("it was there just now").other = Some(number.0);
        domain.host.shared.changed.notify_all();
        Ok(Self { host: domain.host.clone(), domid: domain.domid, number, event })
    }

    pub(super) fn domid(&self) -> Domid {
        self.domid
    }
}

impl Port for FakePort {
    fn number(&self) -> EvtchnPort {
        self.number
    }

    fn notify(&self) -> Result<(), Errno> {
        self.host.lock().ports.notify(self.domid, self.number);
        self.host.shared.changed.notify_all();
        Ok(())
    }

    fn restrict(&self, peer: Domid) -> Result<(), Errno> {
        let state = self.host.lock();
        let own = state.ports.ends.get(&(self.domid, self.number.0)).ok_or(Errno::BADF)?;
        if own.peer == peer { Ok(()) } else { Err(Errno::ACCESS) }
    }

    fn wait(&self, limit: Duration) -> Result<bool, Errno> {
        let end = Instant::now() + limit;
        let mut state = self.host.lock();
        loop {
            let own = state.ports.ends.get_mut(&(self.domid, self.number.0));
            if own.is_some_and(PortEnd::take_pending) {
                return Ok(true);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let waited = self.host.shared.changed.wait_timeout(state, left);
            state = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
    }
}

impl AsFd for FakePort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for FakePort {
    fn drop(&mut self) {
        self.host.lock().ports.ends.remove(&(self.domid, self.number.0));
    }
}
