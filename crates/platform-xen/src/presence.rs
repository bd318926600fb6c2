//! Presence of domains: each advertises itself in XenStore, below its own `data`, for the domains that it names (docs/spec/xen.md).
//!
//! ```text
//!  guest                               store                                     backend
//!  PresenceAnnouncer ── every HEARTBEAT_INTERVAL ──► /local/domain/7/data/isthmus ── watch ──► PresenceWatcher: Appeared
//!                                                    "isthmus 1 89f3… 42 …"
//!  destroyed ──────────────────────────────────────► the node goes ──────────────── watch ──► Disappeared
//!  hangs, or is killed                   heartbeat 42, and 42, and 42 ……  after LEASE_TIMEOUT ──► Disappeared
//! ```
//!
//! An advertisement that is not renewed expires. The watch reports most disappearances at once, and the lease all others. A lease counts
//! heartbeats by the watcher's own clock, because no domain trusts the clock of another.
//!
//! The destruction of a domain raises no event, and the pages that it granted stay mapped. Presence is how others learn of it.

mod advertisement;
mod leases;

pub use advertisement::{Advertisement, AdvertisementError, OFFER_BYTES_MAX};
pub use leases::{DisappearReason, PresenceEvent};

use crate::Domid;
use crate::store::protocol::{NodeRights, Permission, StoreRefusal};
use crate::store::{Store, StoreError, StoreEvent, StoreTransport};
use leases::Leases;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The interval between two renewals.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// The time without a new heartbeat after which a domain counts as gone. It is long because emulated and overcommitted machines pause for
/// seconds.
pub const LEASE_TIMEOUT: Duration = Duration::from_secs(30);
const _: () = assert!(LEASE_TIMEOUT.as_secs() >= 4 * HEARTBEAT_INTERVAL.as_secs());

/// The maximum number of domains that one watcher follows. A store allows a guest 128 watches.
pub const FOLLOWED_MAX: usize = 512;

/// The maximum number of store events handled in one poll, because a watched domain can raise any number of them.
const EVENTS_AT_ONCE: usize = 1024;

/// The path of a domain's advertisement, relative to its own directory.
pub const NODE: &str = "data/isthmus";

/// Returns the absolute path of a domain's advertisement.
pub fn node_of(domid: Domid) -> String {
    format!("/local/domain/{domid}/{NODE}")
}

/// The periodic advertisement of this domain.
#[derive(Debug)]
pub struct PresenceAnnouncer {
    advertisement: Advertisement,
    readers: Vec<Domid>,
    due: Option<Instant>,
}

impl PresenceAnnouncer {
    /// Creates the advertisement of a daemon that has just started. Each daemon draws its `incarnation` at random. The offer is for the
    /// domains that find this one.
    pub fn new(incarnation: u64, offer: Vec<u8>, readers: &[Domid]) -> Result<Self, AdvertisementError> {
        let advertisement = Advertisement::new(incarnation, offer)?;
        Ok(Self { advertisement, readers: readers.to_vec(), due: None })
    }

    /// Sets the domains that may read the advertisement and be notified of its removal. This takes effect with the next renewal, which is
    /// due at once. Domain 0 may always read it.
    pub fn set_readers(&mut self, readers: &[Domid]) {
        self.readers = readers.to_vec();
        self.due = None;
    }

    /// Renews the advertisement if that is due; returns the time of the next renewal. Each renewal writes everything anew. It therefore
    /// does not matter if the node was removed, or if this domain has another number since it was restored on another host.
    pub fn renew<W: StoreTransport>(&mut self, store: &mut Store<W>, now: Instant) -> Result<Instant, StoreError> {
        if let Some(due) = self.due.filter(|due| now < *due) {
            return Ok(due);
        }
        let own = store.own_domid()?;
        let permission = |domid, rights| Permission { domid, rights };
        let mut permissions = vec![permission(own, NodeRights::None)];
        permissions.extend(self.readers.iter().map(|reader| permission(*reader, NodeRights::Read)));
        let value = self.advertisement.next_heartbeat().emit();
        store.transaction(|store| {
            store.write(NODE, value.as_bytes())?;
            store.set_permissions(NODE, &permissions)
        })?;
        let due = now + HEARTBEAT_INTERVAL;
        self.due = Some(due);
        Ok(due)
    }

    /// Removes the advertisement until it is renewed. Watchers are notified at once.
    pub fn remove<W: StoreTransport>(&mut self, store: &mut Store<W>) -> Result<(), StoreError> {
        self.due = None;
        store.remove(NODE)
    }
}

/// A watcher of the advertisements of other domains.
#[derive(Debug)]
pub struct PresenceWatcher<W> {
    store: Store<W>,
    leases: Leases,
    /// True if new domains are followed as they appear. Only the toolstack's domain can see all domains.
    follows_all: bool,
    /// The number of times a domain was not followed because there were [`FOLLOWED_MAX`] others.
    pub unfollowed: u64,
    /// Events that are not returned yet, because the store failed before all changes were read.
    pending_events: Vec<PresenceEvent>,
}

/// The reason why a domain is not followed.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The maximum number of domains is followed already.
    #[error("{FOLLOWED_MAX} domains are followed already")]
    Full,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

const INTRODUCED: &str = "@introduceDomain";
const RELEASED: &str = "@releaseDomain";

impl<W: StoreTransport> PresenceWatcher<W> {
    /// Creates a watcher with a connection of its own.
    pub fn new(store: Store<W>) -> Self {
        Self { store, leases: Leases::default(), follows_all: false, unfollowed: 0, pending_events: Vec::new() }
    }

    /// Replaces the connection. Changes that happened in between are reported; unchanged domains are not.
    pub fn reconnect(&mut self, store: Store<W>) -> Result<(), StoreError> {
        self.store = store;
        if self.follows_all {
            self.follow_all()?;
        }
        self.leases.domids().try_for_each(|domid| watch(&mut self.store, domid))
    }

    /// Follows this domain, too.
    pub fn follow(&mut self, domid: Domid) -> Result<(), FollowError> {
        if self.leases.follows(domid) {
            return Ok(());
        }
        if self.leases.len() == FOLLOWED_MAX {
            return Err(FollowError::Full);
        }
        self.leases.follow(domid);
        Ok(watch(&mut self.store, domid)?)
    }

    /// Follows these domains and no others. Of more than [`FOLLOWED_MAX`], it follows the first ones.
    pub fn follow_only(&mut self, domids: &BTreeSet<Domid>) -> Result<(), StoreError> {
        for domid in self.leases.domids().filter(|domid| !domids.contains(domid)).collect::<Vec<_>>() {
            self.unfollow(domid)?;
        }
        for domid in domids {
            match self.follow(*domid) {
                Err(FollowError::Full) => break,
                Err(FollowError::Store(error)) => return Err(error),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Stops following a domain.
    pub fn unfollow(&mut self, domid: Domid) -> Result<(), StoreError> {
        if self.leases.unfollow(domid) {
            self.store.unwatch(&node_of(domid), &domid.to_string())?;
        }
        Ok(())
    }

    /// Follows all domains of the host as they come and go. The store does not tell guests about other domains: a guest uses
    /// [`Self::follow`].
    pub fn follow_all(&mut self) -> Result<(), StoreError> {
        self.follows_all = true;
        self.store.watch(INTRODUCED, INTRODUCED)?;
        self.store.watch(RELEASED, RELEASED)
    }

    /// Waits for changes, at most `limit`, and returns the new events.
    pub fn poll(&mut self, limit: Duration) -> Result<Vec<PresenceEvent>, StoreError> {
        let now = Instant::now();
        let lease = self.leases.next_expiry().map(|end| end.saturating_duration_since(now));
        let mut changed = ChangedNodes::default();
        let mut wait = lease.map_or(limit, |lease| lease.min(limit));
        for _ in 0..EVENTS_AT_ONCE {
            let Some(event) = self.store.event(wait)? else { break };
            wait = Duration::ZERO;
            changed.add(&event);
        }
        if changed.host || changed.every_domain {
            changed.domids.extend(self.follow_present()?);
        }
        if changed.every_domain {
            changed.domids.extend(self.leases.domids());
        }
        for domid in changed.domids {
            let advertisement = self.read(domid)?;
            self.leases.update(domid, advertisement, Instant::now(), &mut self.pending_events);
        }
        self.leases.expire(Instant::now(), &mut self.pending_events);
        Ok(std::mem::take(&mut self.pending_events))
    }

    /// Reads the advertisement of a domain. Returns `None` if it does not exist or this domain may not read it.
    fn read(&mut self, domid: Domid) -> Result<Option<Result<Advertisement, AdvertisementError>>, StoreError> {
        match self.store.read(&node_of(domid)) {
            Ok(value) => Ok(Some(Advertisement::parse(&value))),
            Err(StoreError::Refused { why: StoreRefusal::Missing | StoreRefusal::Forbidden, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Follows the domains that exist now; returns the new ones.
    fn follow_present(&mut self) -> Result<BTreeSet<Domid>, StoreError> {
        if !self.follows_all {
            return Ok(BTreeSet::new());
        }
        let names = self.store.children("/local/domain")?;
        let present: BTreeSet<Domid> = names.iter().filter_map(|name| Domid::parse(name.as_bytes())).collect();
        let gone: Vec<Domid> = self.leases.domids().filter(|domid| !present.contains(domid)).collect();
        for domid in gone {
            self.leases.update(domid, None, Instant::now(), &mut self.pending_events);
            self.unfollow(domid)?;
        }
        let mut new = BTreeSet::new();
        for domid in present.into_iter().filter(|domid| !self.leases.follows(*domid)).collect::<Vec<_>>() {
            match self.follow(domid) {
                Ok(()) => drop(new.insert(domid)),
                Err(FollowError::Full) => self.unfollowed += 1,
                Err(FollowError::Store(error)) => return Err(error),
            }
        }
        Ok(new)
    }
}

fn watch<W: StoreTransport>(store: &mut Store<W>, domid: Domid) -> Result<(), StoreError> {
    store.watch(&node_of(domid), &domid.to_string())
}

/// The places that changed according to store events.
#[derive(Debug, Default)]
struct ChangedNodes {
    domids: BTreeSet<Domid>,
    host: bool,
    every_domain: bool,
}

impl ChangedNodes {
    fn add(&mut self, event: &StoreEvent) {
        match event {
            StoreEvent::Changed { token, .. } if token == INTRODUCED || token == RELEASED => self.host = true,
            StoreEvent::Changed { token, .. } => self.domids.extend(Domid::parse(token.as_bytes())),
            StoreEvent::Overflow => self.every_domain = true,
        }
    }
}

#[cfg(test)]
mod tests;
