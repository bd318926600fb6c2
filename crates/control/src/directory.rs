//! The attached domains with their names, endpoints and ready maps. The directory decides and remembers; it does no I/O.
//!
//! ```text
//!   Directory ── domains by number and by name
//!     DomainEntry owner, endpoints, what it knows of its peers
//!       ReadyMaps its ready maps and their bits, one for each owner among its peers
//!   Channels ─── which pairs have a channel, and how far it is
//! ```
//!
//! The directory is soft state, and the control connection is the lease: when a domain's connection ends, the domain disappears with
//! everything it had.

pub mod channels;
pub mod ready_maps;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher as _;
use std::ops::Bound;

use isthmus_layout::control::{Name, Owner};
use isthmus_layout::ids::{ChannelId, DomainId, EndpointIndex};
use isthmus_layout::reason::Reason;

use ready_maps::ReadyMaps;

use crate::places::{Places, PlacesFull, Taker};

/// The largest number that is appended to a name before random ones.
const SHORT_NUMBERS_MAX: u32 = 32;

/// The limits of the directory.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The number of domains.
    pub domains: usize,
    /// The number of domains of one owner.
    pub domains_per_owner: usize,
    /// The number of endpoints of one domain.
    pub endpoints: usize,
    /// The number of channels of one domain.
    pub channels: usize,
}

/// A request to attach.
#[derive(Clone, Debug)]
pub struct AttachRequest {
    /// The name that the program asked for.
    pub name: Option<Name>,
    /// The name of the domain if the program asked for none, derived from its process.
    pub fallback: Name,
    /// The owner of the domain.
    pub owner: Owner,
    /// The user that the domain counts for.
    pub taker: Taker,
    /// The number that the domain had with the previous daemon, proven by its ticket.
    pub resumed: Option<DomainId>,
}

/// The state that a domain keeps about one of its peers.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerState {
    /// The channel between them.
    pub channel: Option<ChannelId>,
    /// The reason why the last request for a channel was refused.
    pub refused: Option<Reason>,
    /// The domain looked the peer up or has a channel with it, and is notified when the peer leaves.
    pub is_watching: bool,
    /// The number of regions that the domain offers to the peer.
    pub grants: u32,
}

/// A domain.
#[derive(Debug)]
pub struct DomainEntry {
    /// Its number.
    pub id: DomainId,
    /// Its name.
    pub name: Name,
    /// Its owner.
    pub owner: Owner,
    /// The user that it counts for.
    pub account: Owner,
    /// Its open endpoints with their labels.
    pub endpoints: BTreeMap<EndpointIndex, Option<Name>>,
    /// Its ready maps.
    pub ready_maps: ReadyMaps,
    /// Its state about each of its peers.
    pub peers: BTreeMap<DomainId, PeerState>,
    /// The domains that are notified when this one leaves.
    watchers: BTreeSet<DomainId>,
}

impl DomainEntry {
    /// The channels of the domain, including those that are not established yet.
    pub fn channels(&self) -> impl Iterator<Item = ChannelId> {
        self.peers.values().filter_map(|peer| peer.channel)
    }
}

/// The attached domains.
#[derive(Debug)]
pub struct Directory {
    domains: BTreeMap<DomainId, DomainEntry>,
    /// The names of attached domains, and those reserved for domains that may resume.
    names: HashMap<Name, DomainId>,
    next: u32,
    limits: Limits,
    places: Places,
}

impl Directory {
    /// Returns an empty directory. The first domain gets the number `first`.
    pub fn new(limits: Limits, first: DomainId) -> Self {
        let places = Places::new(limits.domains);
        Self { domains: BTreeMap::new(), names: HashMap::new(), next: first.number(), limits, places }
    }

    /// The limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Adds a domain.
    pub fn attach(&mut self, request: AttachRequest) -> Result<&mut DomainEntry, Reason> {
        self.check_places(&request)?;
        let name = match request.name {
            Some(name) if name.as_number().is_some() => return Err(Reason::NameInvalid),
            Some(name) if self.is_taken(&name, request.resumed) => return Err(Reason::NameTaken),
            Some(name) => name,
            None => self.unused_name(request.fallback),
        };
        let id = match request.resumed {
            Some(id) if self.domains.contains_key(&id) => return Err(Reason::StillAttached),
            Some(id) => id,
            None => self.allocate_id(),
        };
        self.names.insert(name.clone(), id);
        let domain = DomainEntry {
            id,
            name,
            owner: request.owner,
            account: request.taker.account,
            endpoints: BTreeMap::new(),
            ready_maps: ReadyMaps::new(request.owner),
            peers: BTreeMap::new(),
            watchers: BTreeSet::new(),
        };
        self.places.add(domain.account, 1);
        Ok(self.domains.entry(id).or_insert(domain))
    }

    fn check_places(&self, request: &AttachRequest) -> Result<(), Reason> {
        if self.places.of(request.taker.account) >= self.limits.domains_per_owner {
            return Err(Reason::UserDomainsFull);
        }
        match self.places.check(request.taker) {
            Ok(()) => Ok(()),
            // It had the place before the restart.
            Err(PlacesFull::Share { .. }) if request.resumed.is_some() => Ok(()),
            Err(PlacesFull::Share { .. }) => Err(Reason::UserDomainsFull),
            Err(PlacesFull::All { .. }) => Err(Reason::DomainsFull),
        }
    }

    /// True if a domain other than `resumed` is attached under the name, or the name is reserved for one.
    fn is_taken(&self, name: &Name, resumed: Option<DomainId>) -> bool {
        self.names.get(name).is_some_and(|holder| Some(*holder) != resumed || self.domains.contains_key(holder))
    }

    /// Reserves a name for a domain that may resume. No other domain can take it until then.
    pub fn reserve_name(&mut self, name: Name, domain: DomainId) {
        self.names.entry(name).or_insert(domain);
    }

    /// Releases a name that was reserved for a domain that will not resume.
    pub fn release_name(&mut self, name: &Name, domain: DomainId) {
        if self.names.get(name) == Some(&domain) && !self.domains.contains_key(&domain) {
            self.names.remove(name);
        }
    }

    /// The number of the domain of this name, or the number that the name means as in `d7`. The domain may not have resumed yet.
    pub fn id_of(&self, name: &Name) -> Option<DomainId> {
        name.as_number().or_else(|| self.names.get(name).copied())
    }

    /// Removes a domain. Also returns the domains that watched it.
    pub fn detach(&mut self, id: DomainId) -> Option<(DomainEntry, BTreeSet<DomainId>)> {
        let mut detached = self.domains.remove(&id)?;
        self.names.remove(&detached.name);
        self.places.give_back(detached.account, 1);
        for peer in detached.peers.keys() {
            if let Some(peer) = self.domains.get_mut(peer) {
                peer.watchers.remove(&id);
            }
        }
        let watchers = std::mem::take(&mut detached.watchers);
        for watcher in &watchers {
            if let Some(watcher) = self.domains.get_mut(watcher) {
                watcher.peers.remove(&id);
            }
        }
        Some((detached, watchers))
    }

    /// Has `watcher` notified from now on when `watched` leaves.
    pub fn watch(&mut self, watcher: DomainId, watched: DomainId) {
        if watcher == watched || !self.domains.contains_key(&watcher) {
            return;
        }
        if let Some(domain) = self.domains.get_mut(&watched) {
            domain.watchers.insert(watcher);
            self.peer_state(watcher, watched).is_watching = true;
        }
    }

    /// Returns the state that `of` keeps about `peer`; both are attached.
    pub fn peer_state(&mut self, of: DomainId, peer: DomainId) -> &mut PeerState {
        let domain = self.domains.get_mut(&of).expect("requests come from attached domains");
        domain.peers.entry(peer).or_default()
    }

    /// The domain with this number.
    pub fn get(&self, id: DomainId) -> Option<&DomainEntry> {
        self.domains.get(&id)
    }

    /// Returns the domain with this number, mutably.
    pub fn get_mut(&mut self, id: DomainId) -> Option<&mut DomainEntry> {
        self.domains.get_mut(&id)
    }

    /// The domain of this name, or of this number as in `d7`.
    pub fn find(&self, name: &Name) -> Option<&DomainEntry> {
        self.domains.get(&self.id_of(name)?)
    }

    /// All domains, by number.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &DomainEntry> {
        self.domains.values()
    }

    /// The first domain with a number above another one, or of all.
    pub fn next_after(&self, after: Option<DomainId>) -> Option<DomainId> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.domains.range((after, Bound::Unbounded)).next().map(|(id, _)| *id)
    }

    /// The number of attached domains.
    pub fn len(&self) -> usize {
        self.domains.len()
    }

    /// True if no domain is attached.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// The number the next new domain gets.
    pub fn next_number(&self) -> u32 {
        self.next
    }

    /// Opens an endpoint: that one, or the lowest that is free.
    pub fn open_endpoint(
        &mut self,
        id: DomainId,
        index: Option<EndpointIndex>,
        label: Option<Name>,
    ) -> Result<EndpointIndex, Reason> {
        let most = self.limits.endpoints;
        let endpoints = &mut self.domains.get_mut(&id).ok_or(Reason::NoSuchDomain)?.endpoints;
        if endpoints.len() >= most {
            return Err(Reason::EndpointsFull);
        }
        let free = || (0..=u8::MAX).map_while(EndpointIndex::new).find(|index| !endpoints.contains_key(index));
        let index = index.or_else(free).ok_or(Reason::EndpointsFull)?;
        if endpoints.contains_key(&index) {
            return Err(Reason::EndpointTaken);
        }
        endpoints.insert(index, label);
        Ok(index)
    }

    /// Closes an endpoint.
    pub fn close_endpoint(&mut self, id: DomainId, index: EndpointIndex) -> Result<(), Reason> {
        let domain = self.domains.get_mut(&id).ok_or(Reason::NoSuchDomain)?;
        domain.endpoints.remove(&index).ok_or(Reason::EndpointClosed)?;
        Ok(())
    }

    /// Returns the fallback, with a number appended if the fallback is taken.
    fn unused_name(&self, fallback: Name) -> Name {
        let free = |name: &Name| !self.names.contains_key(name) && name.as_number().is_none();
        if free(&fallback) {
            return fallback;
        }
        let room = isthmus_layout::limits::NAME_BYTES_MAX - "-4294967295".len();
        let fits = |(at, character): &(usize, char)| at + character.len_utf8() <= room;
        let stem: String = fallback.as_str().char_indices().take_while(fits).map(|(_, character)| character).collect();
        let numbered = |number: u32| Name::new(&format!("{}-{number}", stem.trim_end())).ok();
        // A few short numbers, then random ones: with many domains of one name most short numbers are taken.
        let random = (0_u64..).map(|attempt| self.names.hasher().hash_one((self.next, attempt)) as u32);
        let mut numbers = (2..=SHORT_NUMBERS_MAX).chain(random).filter_map(numbered);
        numbers.find(free).expect("there are more numbers than domains")
    }

    /// Returns a number that no domain has. Numbers of resumed domains are skipped.
    fn allocate_id(&mut self) -> DomainId {
        loop {
            let number = self.next;
            self.next = self.next.checked_add(1).unwrap_or(1);
            if let Some(id) = DomainId::new(number).filter(|id| !self.domains.contains_key(id)) {
                return id;
            }
        }
    }
}

#[cfg(test)]
mod tests;
