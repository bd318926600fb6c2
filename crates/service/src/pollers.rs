//! The pollers of a worker: what it polls beside the rings of its domains. Each capability that has links or interfaces has one.
//!
//! ```text
//!   worker ──┬── poll, before_sleep ──────────► poller ── deliver, credit, events ──► Shared
//!            ├── ready ◄── sleeper: one system call for all sources
//!            └── records for remote peers, commands
//! ```
//!
//! A *source* is a descriptor that a poller watches, such as a link. The sleeper reports each change of a source once, by
//! [`Pollers::ready`]. The poller then polls the source until nothing is left in it. A poller that has no sources costs nothing.
//!
//! Bytes flow one way: the worker calls a poller with `&mut Shared`, and no poller calls the worker. This file is the only common code
//! that names pollers: a new one adds a field, and a line in each method that concerns it.

use crate::mx::MxPoller;
use crate::overlay::OverlayPoller;
use crate::shared::Shared;
use crate::sleeper::{Sleeper, SourceEvent};
use isthmus_layout::record::Record;
use isthmus_layout::{DomainId, RegionId};
use isthmus_shm::regcache::PeerRegion;
use std::sync::Arc;
use std::time::Duration;

/// The kinds of pollers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollerKind {
    Mx,
    Overlay,
}

impl PollerKind {
    /// All kinds.
    pub(crate) const ALL: [Self; 2] = [Self::Mx, Self::Overlay];
}

/// One poller of each kind.
#[derive(Debug, Default)]
pub(crate) struct Pollers {
    pub(crate) mx: MxPoller,
    pub(crate) overlay: OverlayPoller,
}

impl Pollers {
    /// Polls what is ready or due; never waits. True if anything was done.
    pub(crate) fn poll(&mut self, shared: &mut Shared) -> bool {
        self.mx.poll(shared) | self.overlay.poll(shared)
    }

    /// Returns true if a poller carries a stream. The worker then sleeps without spinning when nothing is left, because the programs at
    /// both ends of the stream need the CPU, and more frames wait after a sleep.
    pub(crate) fn carry_stream(&self) -> bool {
        self.overlay.carries_stream()
    }

    /// Asks the sleeper which sources have changed. True if any source has.
    pub(crate) fn check_sources(&mut self, sleeper: &mut Sleeper) -> bool {
        sleeper.check() && self.take_events(sleeper)
    }

    /// Passes the sleeper's events on to the pollers. True if there were any.
    pub(crate) fn take_events(&mut self, sleeper: &mut Sleeper) -> bool {
        let mut any = false;
        while let Some(event) = sleeper.pop_event() {
            any = true;
            self.ready(event);
        }
        any
    }

    fn ready(&mut self, event: SourceEvent) {
        match event.source.poller {
            PollerKind::Mx => self.mx.ready(event.source.number, event.is_readable, event.is_writable),
            PollerKind::Overlay => self.overlay.ready(event.source.number, event.is_readable, event.is_writable),
        }
    }

    /// Prepares a sleep: the sleeper watches all sources from now on. Returns the maximum duration of the sleep.
    pub(crate) fn before_sleep(&mut self, sleeper: &mut Sleeper) -> Option<Duration> {
        self.mx.before_sleep(sleeper).into_iter().chain(self.overlay.before_sleep()).min()
    }

    /// The poller of this kind, if it has remote peers.
    fn with_remote_peers(&mut self, poller: PollerKind) -> Option<&mut MxPoller> {
        match poller {
            PollerKind::Mx => Some(&mut self.mx),
            PollerKind::Overlay => None,
        }
    }

    /// Sends a record of a domain to a remote peer of this poller.
    pub(crate) fn send_to_remote(
        &mut self,
        poller: PollerKind,
        shared: &mut Shared,
        (domain, remote_peer): (DomainId, DomainId),
        record: &Record<'_>,
        bytes: &[u8],
    ) {
        if let Some(poller) = self.with_remote_peers(poller) {
            poller.send(shared, domain, remote_peer, record, bytes);
        }
    }

    /// Returns credit to a remote peer of this poller: a domain has taken `bytes` of its records.
    pub(crate) fn return_remote_credit(
        &mut self,
        poller: PollerKind,
        shared: &mut Shared,
        (domain, remote_peer): (DomainId, DomainId),
        bytes: u32,
    ) {
        if let Some(poller) = self.with_remote_peers(poller) {
            poller.return_credit(shared, domain, remote_peer, bytes);
        }
    }

    /// Lets messages to a remote peer of this poller be sent straight out of a domain's memory.
    pub(crate) fn grant(
        &mut self,
        poller: PollerKind,
        remote_peer: DomainId,
        region: RegionId,
        memory: Arc<PeerRegion>,
    ) {
        if let Some(poller) = self.with_remote_peers(poller) {
            poller.grant(remote_peer, region, memory);
        }
    }

    /// Revokes a grant of [`Self::grant`].
    pub(crate) fn revoke(&mut self, poller: PollerKind, remote_peer: DomainId, region: RegionId) {
        if let Some(poller) = self.with_remote_peers(poller) {
            poller.revoke(remote_peer, region);
        }
    }
}
