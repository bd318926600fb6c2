//! Who is attached: domains, their names, endpoints and ready maps. Decides and remembers, does no I/O.
//!
//! ```text
//!   Directory ── domains by number and by name
//!     DomainEntry owner, endpoints, what it knows of its peers
//!       ReadyMaps its ready maps and their bits, one for each owner among its peers
//!   Mx ───────── MX boards, and who has which of their endpoint numbers
//!   Channels ─── which pairs have a channel, and how far it is
//! ```
//!
//! It is soft state with the socket as lease: who loses the connection disappears, with everything it had.

pub mod channels;
pub mod mx;
pub mod ready_maps;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use isthmus_config::MxBoardEntry;
use isthmus_layout::control::{Name, Owner};
use isthmus_layout::ids::{ChannelId, DomainId, EndpointAddress, EndpointIndex};
use isthmus_layout::reason::Reason;

use mx::{Mx, MxNumber};
use ready_maps::ReadyMaps;

/// How much there may be of what.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Domains.
    pub domains: usize,
    /// Domains of one owner.
    pub domains_per_owner: usize,
    /// Endpoints of one domain.
    pub endpoints: usize,
    /// MX endpoint numbers of one owner.
    pub mx_endpoints_per_owner: usize,
    /// Channels of one domain.
    pub channels: usize,
}

/// Who wants to attach.
#[derive(Clone, Debug)]
pub struct AttachRequest {
    /// The name it asked for.
    pub name: Option<Name>,
    /// What it is called without: something about its process.
    pub fallback: Name,
    /// Whose it is.
    pub owner: Owner,
    /// The number it had with the daemon before, proven by its ticket.
    pub resumed: Option<DomainId>,
}

/// What a domain knows of another one.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerState {
    /// The channel between them.
    pub channel: Option<ChannelId>,
    /// Why there was none when it was asked for last.
    pub refused: Option<Reason>,
    /// It looked the other one up or has a channel with it, and is told when that goes.
    pub is_watching: bool,
    /// Regions it offers to the other one.
    pub grants: u32,
}

/// A domain.
#[derive(Debug)]
pub struct DomainEntry {
    /// Its number.
    pub id: DomainId,
    /// Its name.
    pub name: Name,
    /// Whose it is.
    pub owner: Owner,
    /// Its open endpoints with their labels.
    pub endpoints: BTreeMap<EndpointIndex, Option<Name>>,
    /// Its ready maps.
    pub ready_maps: ReadyMaps,
    /// What it knows of others.
    pub peers: BTreeMap<DomainId, PeerState>,
    /// Those who watch it.
    watchers: BTreeSet<DomainId>,
}

impl DomainEntry {
    /// Channels it has, half made ones too.
    pub fn channels(&self) -> impl Iterator<Item = ChannelId> {
        self.peers.values().filter_map(|peer| peer.channel)
    }
}

/// The attached domains.
#[derive(Debug)]
pub struct Directory {
    domains: BTreeMap<DomainId, DomainEntry>,
    names: HashMap<Name, DomainId>,
    mx: Mx,
    next: u32,
    limits: Limits,
}

impl Directory {
    /// Nobody yet. The first domain gets the number `first`.
    pub fn new(limits: Limits, mx_boards: Vec<MxBoardEntry>, first: DomainId) -> Self {
        let (domains, names, mx) = (BTreeMap::new(), HashMap::new(), Mx::new(mx_boards));
        Self { domains, names, mx, next: first.number(), limits }
    }

    /// The limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Adds a domain.
    pub fn attach(&mut self, request: AttachRequest) -> Result<&mut DomainEntry, Reason> {
        if self.domains.len() >= self.limits.domains {
            return Err(Reason::DomainsFull);
        }
        if self.count_of_owner(request.owner) >= self.limits.domains_per_owner {
            return Err(Reason::UserDomainsFull);
        }
        let name = match request.name {
            Some(name) if name.as_number().is_some() => return Err(Reason::NameInvalid),
            Some(name) if self.names.contains_key(&name) => return Err(Reason::NameTaken),
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
            endpoints: BTreeMap::new(),
            ready_maps: ReadyMaps::new(request.owner),
            peers: BTreeMap::new(),
            watchers: BTreeSet::new(),
        };
        Ok(self.domains.entry(id).or_insert(domain))
    }

    /// Removes a domain. Also returns who watched it.
    pub fn detach(&mut self, id: DomainId) -> Option<(DomainEntry, BTreeSet<DomainId>)> {
        let mut detached = self.domains.remove(&id)?;
        self.names.remove(&detached.name);
        self.mx.remove_domain(id);
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

    /// From now on `watcher` is told when `watched` goes.
    pub fn watch(&mut self, watcher: DomainId, watched: DomainId) {
        if watcher == watched || !self.domains.contains_key(&watcher) {
            return;
        }
        if let Some(domain) = self.domains.get_mut(&watched) {
            domain.watchers.insert(watcher);
            self.peer_state(watcher, watched).is_watching = true;
        }
    }

    /// What `of` knows of `peer`; both are attached.
    pub fn peer_state(&mut self, of: DomainId, peer: DomainId) -> &mut PeerState {
        let domain = self.domains.get_mut(&of).expect("whoever asks is attached");
        domain.peers.entry(peer).or_default()
    }

    /// The domain with this number.
    pub fn get(&self, id: DomainId) -> Option<&DomainEntry> {
        self.domains.get(&id)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, id: DomainId) -> Option<&mut DomainEntry> {
        self.domains.get_mut(&id)
    }

    /// The domain of this name, or of this number as in `d7`.
    pub fn find(&self, name: &Name) -> Option<&DomainEntry> {
        let id = name.as_number().or_else(|| self.names.get(name).copied())?;
        self.domains.get(&id)
    }

    /// All domains, by number.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &DomainEntry> {
        self.domains.values()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.domains.len()
    }

    /// True if nobody is attached.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// How many domains an owner has.
    pub fn count_of_owner(&self, owner: Owner) -> usize {
        self.domains.values().filter(|domain| domain.owner == owner).count()
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
        self.mx.close(EndpointAddress { domain: id, endpoint: index });
        Ok(())
    }

    /// MX boards and their endpoint numbers.
    pub fn mx(&self) -> &Mx {
        &self.mx
    }

    /// The same, to change what does not concern a domain that is here.
    pub fn mx_mut(&mut self) -> &mut Mx {
        &mut self.mx
    }

    /// Claims an MX endpoint number for an open endpoint: see [`Mx::open`].
    pub fn open_mx(
        &mut self,
        board: Option<u32>,
        endpoint: Option<u32>,
        key: u32,
        at: EndpointAddress,
    ) -> Result<MxNumber, Reason> {
        let domain = self.domains.get(&at.domain).ok_or(Reason::NoSuchDomain)?;
        if !domain.endpoints.contains_key(&at.endpoint) {
            return Err(Reason::EndpointClosed);
        }
        let of_owner = |claim: &mx::Claim| self.get(claim.at.domain).is_some_and(|other| other.owner == domain.owner);
        if self.mx.claims().filter(|(_, claim)| of_owner(claim)).count() >= self.limits.mx_endpoints_per_owner {
            return Err(Reason::MxUserEndpointsFull);
        }
        self.mx.open(board, endpoint, key, at)
    }

    /// The fallback, or the fallback with a number behind it.
    fn unused_name(&self, fallback: Name) -> Name {
        let free = |name: &Name| !self.names.contains_key(name) && name.as_number().is_none();
        if free(&fallback) {
            return fallback;
        }
        let room = isthmus_layout::limits::NAME_BYTES_MAX - "-4294967295".len();
        let fits = |(at, character): &(usize, char)| at + character.len_utf8() <= room;
        let stem: String = fallback.as_str().char_indices().take_while(fits).map(|(_, character)| character).collect();
        (2..u32::MAX)
            .filter_map(|number| Name::new(&format!("{}-{number}", stem.trim_end())).ok())
            .find(free)
            .expect("there are more numbers than domains")
    }

    /// A number that nobody has; numbers of domains that came back are passed over.
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
