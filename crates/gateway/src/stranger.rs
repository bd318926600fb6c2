//! Endpoints of other hosts, as one endpoint of ours knows them.

use isthmus_layout::DomainId;
use isthmus_layout::limits::ORDINARY_RECORD_COST;
use isthmus_layout::record::{Record, Serial};
use isthmus_mx::net::{Address, IncomingId, SendId};
use std::collections::{HashMap, VecDeque};
use std::ops::{Index, IndexMut};

/// A message of the domain's that is not whole yet.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) serial: Serial,
    pub(crate) tag: u64,
    pub(crate) len: u32,
    pub(crate) bytes: Vec<u8>,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Stranger {
    /// What the domain calls it.
    pub(crate) id: DomainId,
    pub(crate) address: Address,
    /// It is nobody any more, but the domain does not have everything of it yet.
    pub(crate) gone: bool,
    /// From the domain to it: what comes in pieces.
    pub(crate) begun: Option<Begun>,
    /// Cost of what is not acknowledged.
    pub(crate) under_way: u32,
    /// Credit that the domain gets back when less is under way.
    pub(crate) owed: u32,
    /// Announced messages of the domain, by its serials.
    pub(crate) announced: HashMap<Serial, SendId>,
    /// From it to the domain: messages whose turn has come, and the long ones that the domain wants.
    pub(crate) turns: VecDeque<IncomingId>,
    pub(crate) fetching: VecDeque<IncomingId>,
    /// Long messages of it that the domain knows of.
    pub(crate) offered: HashMap<Serial, IncomingId>,
    /// Short records that wait for room.
    pub(crate) urgent: VecDeque<Record<'static>>,
    pub(crate) next_serial: u32,
    /// What the domain takes of it before it gives credit back, and how much of that is left.
    pub(crate) credit: u32,
    pub(crate) left: u32,
}

impl Stranger {
    fn new(id: DomainId, address: Address, credit: u32) -> Self {
        Self {
            id,
            address,
            gone: false,
            begun: None,
            under_way: 0,
            owed: 0,
            announced: HashMap::new(),
            turns: VecDeque::new(),
            fetching: VecDeque::new(),
            offered: HashMap::new(),
            urgent: VecDeque::new(),
            next_serial: 1,
            credit,
            left: credit,
        }
    }

    /// Takes room for a record with so many bytes, if there is.
    pub(crate) fn afford(&mut self, bytes: usize) -> bool {
        let cost = ORDINARY_RECORD_COST as usize + bytes;
        let affordable = cost <= self.left as usize;
        if affordable {
            self.left -= cost as u32;
        }
        affordable
    }

    /// The domain has taken so much, but never more than it was given.
    pub(crate) fn give(&mut self, bytes: u32) {
        self.left = self.left.saturating_add(bytes).min(self.credit);
    }

    /// What the domain was given and has not given credit back for.
    pub(crate) fn unread(&self) -> u64 {
        (self.credit - self.left).into()
    }

    /// A name for a message, that none has which the domain still knows.
    pub(crate) fn serial(&mut self) -> Serial {
        loop {
            let serial = Serial(self.next_serial);
            self.next_serial = self.next_serial.wrapping_add(1).max(1);
            if !self.offered.contains_key(&serial) {
                return serial;
            }
        }
    }
}

/// Where a stranger is in the list; for as long as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place(u32);

/// All of them.
#[derive(Debug)]
pub(crate) struct Strangers {
    /// What the domain takes of each.
    credit: u32,
    list: Vec<Option<Box<Stranger>>>,
    free: Vec<Place>,
    by_id: HashMap<DomainId, Place>,
    by_address: HashMap<Address, Place>,
}

impl Strangers {
    pub(crate) fn new(credit: u32) -> Self {
        Self { credit, list: Vec::new(), free: Vec::new(), by_id: HashMap::new(), by_address: HashMap::new() }
    }

    pub(crate) fn find(&self, id: DomainId) -> Option<Place> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn at(&self, address: Address) -> Option<Place> {
        self.by_address.get(&address).copied()
    }

    pub(crate) fn add(&mut self, id: DomainId, address: Address) -> Place {
        let place = self.free.pop().unwrap_or_else(|| {
            self.list.push(None);
            Place((self.list.len() - 1) as u32) // No more than partners of an endpoint.
        });
        self.list[place.0 as usize] = Some(Box::new(Stranger::new(id, address, self.credit)));
        self.by_id.insert(id, place);
        self.by_address.insert(address, place);
        place
    }

    /// Whoever comes from its address is somebody else.
    pub(crate) fn leave(&mut self, place: Place) {
        self[place].gone = true;
        let address = self[place].address;
        self.by_address.remove(&address);
    }

    /// One that has left.
    pub(crate) fn remove(&mut self, place: Place) -> Option<Box<Stranger>> {
        let stranger = self.list[place.0 as usize].take()?;
        self.by_id.remove(&stranger.id);
        self.free.push(place);
        Some(stranger)
    }
}

impl Strangers {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// All that there are.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Place, &Stranger)> {
        let places = self.list.iter().enumerate();
        // No more than partners of an endpoint.
        places.filter_map(|(place, stranger)| Some((Place(place as u32), stranger.as_deref()?)))
    }
}

impl Index<Place> for Strangers {
    type Output = Stranger;

    fn index(&self, place: Place) -> &Stranger {
        self.list[place.0 as usize].as_deref().expect("places name strangers that are there")
    }
}

impl IndexMut<Place> for Strangers {
    fn index_mut(&mut self, place: Place) -> &mut Stranger {
        self.list[place.0 as usize].as_deref_mut().expect("places name strangers that are there")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_layout::limits::ORDINARY_CREDIT_BYTES;
    use isthmus_mx::wire::{EndpointNumber, PeerIndex};

    fn address() -> Address {
        Address { peer: PeerIndex::new(1).expect("a peer"), endpoint: EndpointNumber(2) }
    }

    fn id(number: u32) -> DomainId {
        DomainId::remote(number).expect("a number")
    }

    #[test]
    fn credit_is_spent_to_the_last_byte_and_not_beyond() {
        let mut stranger = Stranger::new(id(1), address(), ORDINARY_CREDIT_BYTES);
        let most = (ORDINARY_CREDIT_BYTES - ORDINARY_RECORD_COST) as usize;
        assert!(!stranger.afford(most + 1) && stranger.left == ORDINARY_CREDIT_BYTES);
        assert!(stranger.afford(most) && !stranger.afford(0));
        stranger.give(ORDINARY_RECORD_COST - 1);
        assert!(!stranger.afford(0));
        stranger.give(1);
        assert!(stranger.afford(0));
        stranger.give(u32::MAX);
        stranger.give(u32::MAX);
        assert_eq!(stranger.left, ORDINARY_CREDIT_BYTES);
    }

    #[test]
    fn names_that_the_domain_knows_are_not_given_again() {
        let mut stranger = Stranger::new(id(1), address(), ORDINARY_CREDIT_BYTES);
        stranger.next_serial = u32::MAX;
        let [last, first] = [stranger.serial(), stranger.serial()];
        assert_eq!([last, first], [Serial(u32::MAX), Serial(1)], "0 is none");
        assert_eq!(stranger.serial(), Serial(2));
    }

    #[test]
    fn whoever_comes_after_one_who_left_is_another() {
        let mut strangers = Strangers::new(ORDINARY_CREDIT_BYTES);
        let one = strangers.add(id(1), address());
        strangers.leave(one);
        assert_eq!((strangers.at(address()), strangers.find(id(1))), (None, Some(one)));
        let other = strangers.add(id(2), address());
        assert!(strangers.remove(one).is_some_and(|gone| gone.gone && gone.id == id(1)));
        assert_eq!((strangers.at(address()), strangers.find(id(1))), (Some(other), None));
        assert_eq!(strangers.all().map(|(_, stranger)| stranger.id).collect::<Vec<_>>(), [id(2)]);
        assert_eq!(
            strangers.add(id(3), Address { endpoint: EndpointNumber(3), ..address() }),
            one,
            "its place is free"
        );
    }
}
