//! Who is there: a domain advertises itself in XenStore, below its own `data`, for the domains that it names (docs/spec/xen.md).
//!
//! ```text
//!  guest                               store                                     backend
//!  PresenceAnnouncer ── every HEARTBEAT_INTERVAL ──► /local/domain/7/data/isthmus ── watch ──► PresenceWatcher: Appeared
//!                                                    "isthmus 1 89f3… 42 …"
//!  destroyed ──────────────────────────────────────► the node goes ──────────────── watch ──► Disappeared
//!  hangs, or is killed                   heartbeat 42, and 42, and 42 ……  after LEASE_TIMEOUT ──► Disappeared
//! ```
//!
//! Nothing is kept up: what is not said again is over. A watch tells of most ends at once, the lease of all others. Only heartbeats count,
//! by the clock of whoever looks; no domain believes another one's clock.
//!
//! Who is destroyed sends no event, and its pages stay mapped where they are: this here is how one hears of it.

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

/// How often who is there says so.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// How long somebody who says nothing is taken to be there. Emulated and overbooked machines stand still for seconds.
pub const LEASE_TIMEOUT: Duration = Duration::from_secs(30);
const _: () = assert!(LEASE_TIMEOUT.as_secs() >= 4 * HEARTBEAT_INTERVAL.as_secs());

/// Domains that one watcher follows. A store allows a guest 128 watches.
pub const FOLLOWED_MAX: usize = 512;

/// Events that are looked at before the answer, however many there are: who is watched can make as many as it likes.
const EVENTS_AT_ONCE: usize = 1024;

/// Where a domain advertises itself, as it names the node itself.
pub const NODE: &str = "data/isthmus";

/// The same node, as others name it.
pub fn node_of(domid: Domid) -> String {
    format!("/local/domain/{domid}/{NODE}")
}

/// What we say of ourselves, again and again.
#[derive(Debug)]
pub struct PresenceAnnouncer {
    advertisement: Advertisement,
    readers: Vec<Domid>,
    due: Option<Instant>,
}

impl PresenceAnnouncer {
    /// Of a daemon that has just started: `incarnation` is drawn anew by each. The offer is whatever those who find us need.
    pub fn new(incarnation: u64, offer: Vec<u8>, readers: &[Domid]) -> Result<Self, AdvertisementError> {
        let advertisement = Advertisement::new(incarnation, offer)?;
        Ok(Self { advertisement, readers: readers.to_vec(), due: None })
    }

    /// Who may read it and hear of our end; said with the next renewal, which is due at once. Domain 0 always may.
    pub fn set_readers(&mut self, readers: &[Domid]) {
        self.readers = readers.to_vec();
        self.due = None;
    }

    /// Says it again, if that is due; when it is due next. Everything is said anew each time, so it does not matter who removed the
    /// node, or whether this domain has another number since it was restored on another host.
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

    /// Says no more, until it is renewed; those who watch hear of it at once.
    pub fn remove<W: StoreTransport>(&mut self, store: &mut Store<W>) -> Result<(), StoreError> {
        self.due = None;
        store.remove(NODE)
    }
}

/// Watches for the advertisements of others.
#[derive(Debug)]
pub struct PresenceWatcher<W> {
    store: Store<W>,
    leases: Leases,
    /// Whether domains are followed as they come. Only the toolstack's domain can know all.
    follows_all: bool,
    /// Domains that were not followed, since there were [`FOLLOWED_MAX`] others.
    pub unfollowed: u64,
    /// Not told yet, as the store broke before all was looked at.
    pending_events: Vec<PresenceEvent>,
}

/// No more domains can be followed, or the store does not want to.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// There are as many as there may be.
    #[error("{FOLLOWED_MAX} domains are followed already")]
    Full,
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

const INTRODUCED: &str = "@introduceDomain";
const RELEASED: &str = "@releaseDomain";

impl<W: StoreTransport> PresenceWatcher<W> {
    /// Looks through a connection of its own.
    pub fn new(store: Store<W>) -> Self {
        Self { store, leases: Leases::default(), follows_all: false, unfollowed: 0, pending_events: Vec::new() }
    }

    /// Looks through another connection from now on. What has changed in between is news, and nothing else is.
    pub fn reconnect(&mut self, store: Store<W>) -> Result<(), StoreError> {
        self.store = store;
        if self.follows_all {
            self.follow_all()?;
        }
        self.leases.domids().try_for_each(|domid| watch(&mut self.store, domid))
    }

    /// Looks for this domain, too.
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

    /// Looks for these from now on, of more than [`FOLLOWED_MAX`] for the first ones, and for nobody else.
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

    /// Looks for it no more.
    pub fn unfollow(&mut self, domid: Domid) -> Result<(), StoreError> {
        if self.leases.unfollow(domid) {
            self.store.unwatch(&node_of(domid), &domid.to_string())?;
        }
        Ok(())
    }

    /// Looks for all domains of the host, as they come and go. Guests are not told of others by the store: there, use [`Self::follow`].
    pub fn follow_all(&mut self) -> Result<(), StoreError> {
        self.follows_all = true;
        self.store.watch(INTRODUCED, INTRODUCED)?;
        self.store.watch(RELEASED, RELEASED)
    }

    /// Waits until something may have changed, `limit` at most, and looks; what is new.
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

    /// What a domain says of itself; nothing if it is gone, or does not want us to read it.
    fn read(&mut self, domid: Domid) -> Result<Option<Result<Advertisement, AdvertisementError>>, StoreError> {
        match self.store.read(&node_of(domid)) {
            Ok(value) => Ok(Some(Advertisement::parse(&value))),
            Err(StoreError::Refused { why: StoreRefusal::Missing | StoreRefusal::Forbidden, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Follows the domains that there are now; which of them are new.
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

/// Where events say to look.
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
