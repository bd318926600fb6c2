//! Who is there: a domain advertises itself in XenStore, below its own `data`, for the domains that it names (docs/spec/xen.md).
//!
//! ```text
//!  guest                               store                                     backend
//!  Announcement ── every BEAT ──► /local/domain/7/data/isthmus ── watch ──► Lookout: came
//!                                   "isthmus 1 89f3… 42 …"
//!  destroyed ────────────────────► the node goes ──────────────── watch ──► went
//!  hangs, or is killed            beat 42, and 42, and 42 ……  after LEASE ──► went
//! ```
//!
//! Nothing is kept up: what is not said again is over. A watch tells of most ends at once, the lease of all others. Only beats count,
//! by the clock of whoever looks; no domain believes another one's clock.
//!
//! Who is destroyed sends no event, and its pages stay mapped where they are: this here is how one hears of it.

mod advert;
mod leases;

pub use advert::{Advert, AdvertFault, OFFER_BYTES_MAX};
pub use leases::{Gone, News};

use crate::Domid;
use crate::store::wire::{Permission, Refusal, Rights};
use crate::store::{Event, Store, StoreError, Wire};
use leases::Leases;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How often who is there says so.
pub const BEAT: Duration = Duration::from_secs(5);

/// How long somebody who says nothing is taken to be there. Emulated and overbooked machines stand still for seconds.
pub const LEASE: Duration = Duration::from_secs(30);
const _: () = assert!(LEASE.as_secs() >= 4 * BEAT.as_secs());

/// Domains that one lookout follows. A store allows a guest 128 watches.
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
pub struct Announcement {
    advert: Advert,
    readers: Vec<Domid>,
    due: Option<Instant>,
}

impl Announcement {
    /// Of a daemon that has just started: `incarnation` is drawn anew by each. The offer is whatever those who find us need.
    pub fn new(incarnation: u64, offer: Vec<u8>, readers: &[Domid]) -> Result<Self, AdvertFault> {
        let advert = Advert::new(incarnation, offer)?;
        Ok(Self { advert, readers: readers.to_vec(), due: None })
    }

    /// Who may read it and hear of our end; said with the next renewal, which is due at once. Domain 0 always may.
    pub fn set_readers(&mut self, readers: &[Domid]) {
        self.readers = readers.to_vec();
        self.due = None;
    }

    /// Says it again, if that is due; when it is due next. Everything is said anew each time, so it does not matter who removed the
    /// node, or whether this domain has another number since it was restored on another host.
    pub fn renew<W: Wire>(&mut self, store: &mut Store<W>, now: Instant) -> Result<Instant, StoreError> {
        if let Some(due) = self.due.filter(|due| now < *due) {
            return Ok(due);
        }
        let own = store.own_domid()?;
        let permission = |domid, rights| Permission { domid, rights };
        let mut permissions = vec![permission(own, Rights::None)];
        permissions.extend(self.readers.iter().map(|reader| permission(*reader, Rights::Read)));
        let value = self.advert.next_beat().emit();
        store.transaction(|store| {
            store.write(NODE, value.as_bytes())?;
            store.set_permissions(NODE, &permissions)
        })?;
        let due = now + BEAT;
        self.due = Some(due);
        Ok(due)
    }

    /// Says no more, until it is renewed; those who watch hear of it at once.
    pub fn withdraw<W: Wire>(&mut self, store: &mut Store<W>) -> Result<(), StoreError> {
        self.due = None;
        store.remove(NODE)
    }
}

/// Watches for the advertisements of others.
#[derive(Debug)]
pub struct Lookout<W> {
    store: Store<W>,
    leases: Leases,
    /// Whether domains are followed as they come. Only the toolstack's domain can know all.
    all: bool,
    /// Domains that were not followed, since there were [`FOLLOWED_MAX`] others.
    pub turned_away: u64,
    /// Not told yet, as the store broke before all was looked at.
    news: Vec<News>,
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

impl<W: Wire> Lookout<W> {
    /// Looks through a connection of its own.
    pub fn new(store: Store<W>) -> Self {
        Self { store, leases: Leases::default(), all: false, turned_away: 0, news: Vec::new() }
    }

    /// Looks through another connection from now on. What has changed in between is news, and nothing else is.
    pub fn reopen(&mut self, store: Store<W>) -> Result<(), StoreError> {
        self.store = store;
        if self.all {
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
        self.all = true;
        self.store.watch(INTRODUCED, INTRODUCED)?;
        self.store.watch(RELEASED, RELEASED)
    }

    /// Waits until something may have changed, `limit` at most, and looks; what is new.
    pub fn look(&mut self, limit: Duration) -> Result<Vec<News>, StoreError> {
        let now = Instant::now();
        let lease = self.leases.ends().map(|end| end.saturating_duration_since(now));
        let mut places = Places::default();
        let mut wait = lease.map_or(limit, |lease| lease.min(limit));
        for _ in 0..EVENTS_AT_ONCE {
            let Some(event) = self.store.event(wait)? else { break };
            wait = Duration::ZERO;
            places.add(&event);
        }
        if places.host || places.everywhere {
            places.domids.extend(self.census()?);
        }
        if places.everywhere {
            places.domids.extend(self.leases.domids());
        }
        for domid in places.domids {
            let said = self.read(domid)?;
            self.leases.heard(domid, said, Instant::now(), &mut self.news);
        }
        self.leases.expire(Instant::now(), &mut self.news);
        Ok(std::mem::take(&mut self.news))
    }

    /// What a domain says of itself; nothing if it is gone, or does not want us to read it.
    fn read(&mut self, domid: Domid) -> Result<Option<Result<Advert, AdvertFault>>, StoreError> {
        match self.store.read(&node_of(domid)) {
            Ok(value) => Ok(Some(Advert::parse(&value))),
            Err(StoreError::Refused { why: Refusal::Missing | Refusal::Forbidden, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Follows the domains that there are now; which of them are new.
    fn census(&mut self) -> Result<BTreeSet<Domid>, StoreError> {
        if !self.all {
            return Ok(BTreeSet::new());
        }
        let names = self.store.children("/local/domain")?;
        let here: BTreeSet<Domid> = names.iter().filter_map(|name| Domid::parse(name.as_bytes())).collect();
        let gone: Vec<Domid> = self.leases.domids().filter(|domid| !here.contains(domid)).collect();
        for domid in gone {
            self.leases.heard(domid, None, Instant::now(), &mut self.news);
            self.unfollow(domid)?;
        }
        let mut new = BTreeSet::new();
        for domid in here.into_iter().filter(|domid| !self.leases.follows(*domid)).collect::<Vec<_>>() {
            match self.follow(domid) {
                Ok(()) => drop(new.insert(domid)),
                Err(FollowError::Full) => self.turned_away += 1,
                Err(FollowError::Store(error)) => return Err(error),
            }
        }
        Ok(new)
    }
}

fn watch<W: Wire>(store: &mut Store<W>, domid: Domid) -> Result<(), StoreError> {
    store.watch(&node_of(domid), &domid.to_string())
}

/// Where events say to look.
#[derive(Debug, Default)]
struct Places {
    domids: BTreeSet<Domid>,
    host: bool,
    everywhere: bool,
}

impl Places {
    fn add(&mut self, event: &Event) {
        match event {
            Event::Changed { token, .. } if token == INTRODUCED || token == RELEASED => self.host = true,
            Event::Changed { token, .. } => self.domids.extend(Domid::parse(token.as_bytes())),
            Event::Lost => self.everywhere = true,
        }
    }
}

#[cfg(test)]
mod tests;
