//! The table of peers (mxoe-wire 4), which maps addresses to indices. An index is never given to another address.

use super::links::{LINKS_MAX, LinkLastSeen};
use super::{BoardEvent, LinkNumber};
use crate::net::Time;
use crate::wire::{BROADCAST, BoardName, PeerIndex};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use isthmus_layout::NicId;

/// How a peer became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PeerOrigin {
    /// A board of this host.
    Local,
    /// Added by configuration or command.
    Static,
    /// A program asked for its address.
    Requested,
    /// Discovered by its announcement.
    Announced,
}

impl PeerOrigin {
    /// Returns the word for this origin in reports.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Static => "static",
            Self::Requested => "requested",
            Self::Announced => "announced",
        }
    }
}

/// The reason why a peer or a name cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddPeerError {
    /// The table is full.
    #[error("the table has room for {max} peers and is full")]
    Full {
        /// The capacity of the table.
        max: usize,
    },
    /// No board can have this address: it is zero, or a group's.
    #[error("{0} is not the address of a board")]
    InvalidNic(NicId),
    /// The peer already has the maximum number of names.
    #[error("{0} has {NAMES_MAX} names already")]
    TooManyNames(NicId),
}

/// The maximum number of names of one peer.
const NAMES_MAX: usize = 8;

/// Returns true if a board can have this address.
pub(super) const fn is_valid_nic(nic: NicId) -> bool {
    const GROUP: u64 = 1 << 40;
    nic.number() != 0 && nic.number() & GROUP == 0 && nic.number() != BROADCAST.number()
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    pub(super) name: BoardName,
    /// A configured name. The name that the peer reports does not replace it.
    is_static: bool,
}

/// One entry.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) nic: NicId,
    pub(super) origin: PeerOrigin,
    /// Removed by command. The entry stays, because other code may hold its index.
    pub(super) forgotten: bool,
    names: Vec<Name>,
    /// The peer's number for us.
    pub(super) remote_index: Option<PeerIndex>,
    /// The serial of the last announcement.
    pub(super) serial: Option<u32>,
    pub(super) restarted: Option<Time>,
    pub(super) restarts: u64,
    pub(super) heard: Option<Time>,
    pub(super) last_seen_by_link: LinkLastSeen,
    pub(super) frames: u64,
    pub(super) query: QueryState,
    /// Pending events, a bit for each kind.
    pending_events: u8,
}

/// The state of the queries for a peer's name.
#[derive(Debug, Default)]
pub(super) struct QueryState {
    /// The due time in the board's set of queries.
    pub(super) due: Option<Time>,
    pub(super) last_sent: Option<Time>,
    pub(super) tries: u32,
    /// The peer is queried although its name is known, because the reply also tells its index for us, and that it is
    /// present.
    pub(super) forced: bool,
}

impl Peer {
    fn new(nic: NicId, origin: PeerOrigin) -> Self {
        Self {
            nic,
            origin,
            forgotten: false,
            names: Vec::new(),
            remote_index: None,
            serial: None,
            restarted: None,
            restarts: 0,
            heard: None,
            last_seen_by_link: [None; LINKS_MAX],
            frames: 0,
            query: QueryState::default(),
            pending_events: 0,
        }
    }

    #[inline]
    pub(super) fn heard(&mut self, now: Time, link: LinkNumber) {
        self.frames += 1;
        self.heard = Some(now);
        if let Some(heard) = self.last_seen_by_link.get_mut(usize::from(link.0)) {
            *heard = Some(now);
        }
    }

    pub(super) fn name(&self) -> Option<BoardName> {
        Some(self.names.first()?.name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = BoardName> + '_ {
        self.names.iter().map(|name| name.name)
    }

    /// Adds a configured name. It replaces the name that the peer reported, or joins the names that were configured before.
    pub(super) fn add_static_name(&mut self, name: BoardName) -> Result<(), AddPeerError> {
        self.names.retain(|known| known.is_static);
        if self.names.iter().all(|known| known.name != name) {
            if self.names.len() >= NAMES_MAX {
                return Err(AddPeerError::TooManyNames(self.nic));
            }
            self.names.push(Name { name, is_static: true });
        }
        Ok(())
    }

    /// Records the name that the peer reports, unless names were configured. Returns true if the name is new.
    pub(super) fn learn_name(&mut self, name: BoardName) -> bool {
        let differs = self.names.first().is_none_or(|known| !known.is_static && known.name != name);
        let is_new = differs && !name.as_bytes().is_empty();
        if is_new {
            self.names = alloc::vec![Name { name, is_static: false }];
        }
        is_new
    }

    pub(super) fn forget_learned_name(&mut self) {
        self.names.retain(|known| known.is_static);
    }

    pub(super) fn clear_names(&mut self) {
        self.names.clear();
    }
}

/// All entries.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Peer>,
    by_nic: BTreeMap<NicId, PeerIndex>,
    max: usize,
    /// The number of entries that were created by announcements alone.
    announced: usize,
}

impl Table {
    /// Returns a table with the board itself as its first entry. `max` is at least 1.
    pub(super) fn with_board(nic: NicId, name: BoardName, max: usize) -> Self {
        let mut board = Peer::new(nic, PeerOrigin::Local);
        board.learn_name(name);
        let by_nic = PeerIndex::new(0).map(|first| (nic, first)).into_iter().collect();
        Self { slots: alloc::vec![board], by_nic, max, announced: 0 }
    }

    pub(super) fn get(&self, index: PeerIndex) -> Option<&Peer> {
        self.slots.get(usize::from(index.number()))
    }

    pub(super) fn get_mut(&mut self, index: PeerIndex) -> Option<&mut Peer> {
        self.slots.get_mut(usize::from(index.number()))
    }

    /// Returns a peer on another host that was not forgotten.
    pub(super) fn remote(&self, index: PeerIndex) -> Option<&Peer> {
        self.get(index).filter(|peer| !peer.forgotten && peer.origin != PeerOrigin::Local)
    }

    /// Returns the index of the peer that has or had this address.
    pub(super) fn index_of(&self, nic: NicId) -> Option<PeerIndex> {
        self.by_nic.get(&nic).copied()
    }

    /// Returns the index of the peer that has this address.
    pub(super) fn find_present(&self, nic: NicId) -> Option<PeerIndex> {
        self.index_of(nic).filter(|index| self.get(*index).is_some_and(|peer| !peer.forgotten))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PeerIndex, &Peer)> {
        (0..=u16::MAX).filter_map(PeerIndex::new).zip(&self.slots)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (PeerIndex, &mut Peer)> {
        (0..=u16::MAX).filter_map(PeerIndex::new).zip(&mut self.slots)
    }

    pub(super) fn announced(&self) -> usize {
        self.announced
    }

    /// Finds names of this host first, then configured names, then reported names.
    pub(super) fn find_by_name(&self, name: &[u8]) -> Option<PeerIndex> {
        let among = |wanted: &dyn Fn(&Peer, &Name) -> bool| {
            let mut present = self.iter().filter(|(_, peer)| !peer.forgotten);
            let is = |known: &Name, peer: &Peer| known.name.as_bytes() == name && wanted(peer, known);
            present.find(|(_, peer)| peer.names.iter().any(|known| is(known, peer))).map(|(index, _)| index)
        };
        among(&|peer, _| peer.origin == PeerOrigin::Local)
            .or_else(|| among(&|_, known| known.is_static))
            .or_else(|| among(&|_, _| true))
    }

    /// Returns the entry of an address, and adds one if there is none. Also returns whether the entry is new or was
    /// forgotten.
    pub(super) fn add(&mut self, nic: NicId, origin: PeerOrigin) -> Result<(PeerIndex, bool), AddPeerError> {
        if !is_valid_nic(nic) {
            return Err(AddPeerError::InvalidNic(nic));
        }
        if let Some(index) = self.index_of(nic) {
            return Ok((index, self.upgrade_origin(index, origin)));
        }
        let full = AddPeerError::Full { max: self.max };
        if self.slots.len() >= self.max {
            return Err(full);
        }
        let number = u16::try_from(self.slots.len()).map_err(|_| full)?;
        let index = PeerIndex::new(number).ok_or(full)?;
        self.slots.push(Peer::new(nic, origin));
        self.by_nic.insert(nic, index);
        self.announced += usize::from(origin == PeerOrigin::Announced);
        Ok((index, true))
    }

    /// Raises the origin of a peer to a more certain one. Returns whether the peer had been forgotten.
    fn upgrade_origin(&mut self, index: PeerIndex, origin: PeerOrigin) -> bool {
        let Some(peer) = self.slots.get_mut(usize::from(index.number())) else { return false };
        let forgotten = core::mem::replace(&mut peer.forgotten, false);
        let before = peer.origin;
        peer.origin = if forgotten { origin } else { before.min(origin) };
        self.announced -= usize::from(before == PeerOrigin::Announced);
        self.announced += usize::from(peer.origin == PeerOrigin::Announced);
        forgotten
    }

    /// Marks an event as pending. Returns false if it was pending already.
    pub(super) fn mark_event_pending(&mut self, event: BoardEvent) -> bool {
        let (index, bit) = event_bit(event);
        let Some(peer) = self.get_mut(index) else { return false };
        let is_new = peer.pending_events & bit == 0;
        peer.pending_events |= bit;
        is_new
    }

    pub(super) fn clear_pending_event(&mut self, event: BoardEvent) {
        let (index, bit) = event_bit(event);
        if let Some(peer) = self.get_mut(index) {
            peer.pending_events &= !bit;
        }
    }
}

const fn event_bit(event: BoardEvent) -> (PeerIndex, u8) {
    match event {
        BoardEvent::Found(peer) => (peer, 1),
        BoardEvent::Named(peer) => (peer, 2),
        BoardEvent::Restarted(peer) => (peer, 4),
    }
}
