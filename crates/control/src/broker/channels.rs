//! Making and ending channels between two attached domains.

use std::collections::BTreeSet;
use std::sync::Arc;

use isthmus_layout::RegionSize;
use isthmus_layout::border::WindowNumber;
use isthmus_layout::channel::{Direction, SlabSize};
use isthmus_layout::control::{
    ChannelClosed, ChannelOffer, ChannelOpen, ChannelRefused, RequestChannel, RequestSerial,
};
use isthmus_layout::ids::{ChannelId, DomainId};
use isthmus_layout::limits::CHANNEL_TRIES;
use isthmus_layout::reason::{Kind, Reason};

use super::home::{BoardFds, Home, NewBoard};
use super::{Broker, Refusal, SessionId};
use crate::directory::boards::Reserved;
use crate::directory::channels::{Channel, End, Stage};
use crate::ground::{CommonWindow, Ground, Item, Rings};

/// Messages that a domain has not taken yet, from which on its peers cannot put more there.
pub(super) const PEERS_BACKLOG_MAX: usize = 64;

/// What two domains have memory in common by.
pub(super) enum Common {
    /// They are on one ground.
    Ground(Ground),
    /// Their guests have a window in common.
    Window(Arc<CommonWindow>),
}

impl Common {
    fn rings(&self, most: SlabSize) -> Result<Rings, Refusal> {
        match self {
            Self::Ground(ground) => ground.rings(most),
            Self::Window(window) => Rings::of(most, |size| window.memory(size)),
        }
    }

    /// Zeroed memory.
    pub(super) fn memory(&self, size: RegionSize) -> Result<Item, Refusal> {
        match self {
            Self::Ground(ground) => ground.memory(size),
            Self::Window(window) => window.memory(size),
        }
    }

    /// Bytes of the window that it is; of what is none, as many as there may be.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Ground(Ground::Host) => u64::MAX,
            Self::Ground(Ground::Guest(estate)) => estate.bytes(),
            Self::Window(window) => window.bytes(),
        }
    }

    /// Where boards for it lie.
    fn window(&self) -> WindowNumber {
        match self {
            Self::Ground(_) => WindowNumber::OWN,
            Self::Window(window) => window.number(),
        }
    }
}

/// One end of a channel in the making.
struct Prepared {
    end: End,
    board: BoardFds,
    /// The board's listening side, if it is new.
    listener: Option<Item>,
}

impl Broker {
    pub(super) fn request_channel(
        &mut self,
        id: SessionId,
        serial: Option<RequestSerial>,
        domain: DomainId,
        request: &RequestChannel,
    ) {
        let RequestChannel { peer, attempt } = *request;
        if let Err(refusal) = self.offer(domain, peer, attempt, serial) {
            self.refuse_request(id, serial, (domain, peer), attempt, &refusal);
        }
    }

    pub(super) fn refuse_request(
        &mut self,
        id: SessionId,
        serial: Option<RequestSerial>,
        (domain, peer): (DomainId, DomainId),
        attempt: u8,
        refusal: &Refusal,
    ) {
        let reason = refusal.reason;
        self.note(id, reason, &refusal.text);
        if self.directory.get(peer).is_some() && peer != domain {
            self.directory.acquaintance(domain, peer).refused = Some(reason);
        }
        let last = !may_try_again(reason) || u32::from(attempt) >= CHANNEL_TRIES;
        self.send(id, serial, ChannelRefused { peer, reason, last }.into(), Vec::new());
    }

    /// Makes a channel and offers it to both, or says why not; or has what it takes made, and does so then.
    pub(super) fn offer(
        &mut self,
        connector: DomainId,
        listener: DomainId,
        attempt: u8,
        serial: Option<RequestSerial>,
    ) -> Result<(), Refusal> {
        if connector == listener {
            return Err(Reason::SameDomain.into());
        }
        let (Some(ours), Some(theirs)) = (self.identity(connector), self.identity(listener)) else {
            return Err(Reason::NoSuchDomain.into());
        };
        self.policy.channel(&ours, &theirs)?;
        let Some(common) = self.common_memory(connector, listener)? else {
            self.wait_for_window((connector, listener), attempt, serial);
            return Ok(());
        };
        match self.channel_of(connector, listener) {
            Some(channel) if self.channels.get(channel).is_some_and(|channel| channel.stage != Stage::Open) => {
                return Ok(()); // Both asked at once, or one twice: the offer that is under way answers.
            }
            Some(channel) => self.end_channel(channel, Some(connector), Reason::Replaced),
            None => {}
        }
        if self.backlog_of(listener) >= PEERS_BACKLOG_MAX {
            return Err(Reason::ChannelNoAnswer.into());
        }
        let most = self.slab_for(connector, listener, attempt);
        let (connector, listener) = self.prepare_both(connector, listener, &common)?;
        let mut rings = match common.rings(most) {
            Ok(rings) => rings,
            Err(refusal) => {
                self.give_back(&connector.end);
                self.give_back(&listener.end);
                self.end_regions(&common); // For the next try.
                return Err(refusal);
            }
        };
        if let Some(refusal) = rings.refused.take() {
            self.note_less(self.homes[&connector.end.domain].session, &rings, &refusal);
        }
        self.offer_to_both(connector, listener, rings, (attempt, serial));
        Ok(())
    }

    /// Bytes of the slabs of a channel: less at each further try after one of the two could not map as much.
    fn slab_for(&self, connector: DomainId, listener: DomainId, attempt: u8) -> SlabSize {
        let known = self.directory.get(connector).and_then(|domain| domain.peers.get(&listener));
        let lacked = known.is_some_and(|known| known.refused == Some(Reason::OutOfAddressSpace));
        let most = self.settings.slab;
        match u32::from(attempt) {
            0..2 => most,
            _ if !lacked => most,
            2..CHANNEL_TRIES => most.half().and_then(SlabSize::half).unwrap_or(SlabSize::LEAST),
            CHANNEL_TRIES.. => SlabSize::LEAST,
        }
    }

    /// What both have memory in common by; None where it is being made. Asking has it made.
    pub(super) fn common_memory(&mut self, a: DomainId, b: DomainId) -> Result<Option<Common>, Refusal> {
        match self.common_ground(a, b) {
            Ok(ground) => Ok(Some(Common::Ground(ground))),
            Err(_) => Ok(self.common_window(a, b)?.map(Common::Window)),
        }
    }

    /// Where both have memory in common.
    pub(crate) fn common_ground(&self, a: DomainId, b: DomainId) -> Result<Ground, Refusal> {
        let (Some(a), Some(b)) = (self.homes.get(&a), self.homes.get(&b)) else {
            return Err(Reason::NoSuchDomain.into());
        };
        if a.ground.number() == b.ground.number() { Ok(a.ground.clone()) } else { Err(Reason::NoCommonMemory.into()) }
    }

    fn prepare_both(&mut self, a: DomainId, b: DomainId, common: &Common) -> Result<(Prepared, Prepared), Refusal> {
        let first = self.prepare(a, b, common)?;
        match self.prepare(b, a, common) {
            Ok(second) => Ok((first, second)),
            Err(refusal) => {
                self.give_back(&first.end);
                Err(refusal)
            }
        }
    }

    /// A place for `peer` on one of `domain`'s boards, and the board if there is none yet.
    fn prepare(&mut self, domain: DomainId, peer: DomainId, common: &Common) -> Result<Prepared, Refusal> {
        let owner = self.directory.get(peer).ok_or(Reason::NoSuchDomain)?.owner;
        let most = self.directory.limits().channels;
        let entry = self.directory.get_mut(domain).ok_or(Reason::NoSuchDomain)?;
        if entry.channels().count() >= most {
            let text = format!("{} has {most} channels, the most one domain may have", entry.name);
            return Err(Refusal::new(Reason::ChannelsFull, text));
        }
        let Reserved { board, place, new_board } = entry.boards.reserve(owner, common.window())?;
        let (end, own) = (End { domain, board, place }, entry.owner == owner);
        let room = self.has_room_for_board();
        let home = self.homes.get_mut(&domain).expect("every domain has a home");
        match home.boards.get(&board).filter(|_| !new_board) {
            Some(known) => Ok(Prepared { end, board: known.clone(), listener: None }),
            None => match match common {
                Common::Ground(ground) => NewBoard::new(own, room, ground, domain),
                Common::Window(window) => NewBoard::common(window, &home.ground, domain, home.version),
            } {
                Ok(new) => {
                    home.boards.insert(board, new.peers.clone());
                    Ok(Prepared { end, board: new.peers, listener: Some(new.listener) })
                }
                Err(refusal) => {
                    home.boards.remove(&board);
                    self.give_back(&end);
                    Err(refusal)
                }
            },
        }
    }

    /// Half of what the process may open is for channels' memory; without it only their counters are not shown.
    pub(super) fn keeps_another(&self) -> bool {
        self.channels.kept() < self.settings.fds_max / 2
    }

    /// A quarter of what the process may open stays for connections, whatever boards there are.
    fn has_room_for_board(&self) -> bool {
        let of_home = |home: &Home| 4 + 2 * home.boards.len();
        let used = self.channels.kept() + self.homes.values().map(of_home).sum::<usize>();
        used < self.settings.fds_max / 4 * 3
    }

    fn offer_to_both(
        &mut self,
        connector: Prepared,
        listener: Prepared,
        rings: Rings,
        (attempt, serial): (u8, Option<RequestSerial>),
    ) {
        let Rings { slab, memory, refused: _ } = &rings;
        let id = self.channels.number();
        let until = self.now.saturating_add(self.settings.offer_timeout);
        // A piece of a window is somebody else's once nobody keeps it.
        let keep = self.keeps_another() || memory.file().is_none();
        self.channels.insert(Channel {
            id,
            connector: connector.end,
            listener: listener.end,
            slab: *slab,
            stage: Stage::Offered { until, attempt, serial },
            since: self.now,
            memory: keep.then(|| memory.clone()),
        });
        let (a, b) = (connector.end.domain, listener.end.domain);
        for (of, peer) in [(a, b), (b, a)] {
            let acquaintance = self.directory.acquaintance(of, peer);
            acquaintance.channel = Some(id);
            acquaintance.refused = None;
            self.directory.watch(of, peer);
        }
        self.send_offer(id, &listener, &connector, Direction::One, &rings, None);
        self.send_offer(id, &connector, &listener, Direction::Zero, &rings, serial);
    }

    fn send_offer(
        &mut self,
        channel: ChannelId,
        to: &Prepared,
        peer: &Prepared,
        direction: Direction,
        rings: &Rings,
        serial: Option<RequestSerial>,
    ) {
        let identity = self.identity(peer.end.domain).expect("both are attached");
        let message = ChannelOffer {
            channel,
            peer: peer.end.domain,
            peer_name: identity.name,
            peer_owner: identity.owner,
            direction,
            slab: rings.slab,
            board: to.end.board,
            place: to.end.place,
            peer_place: peer.end.place,
            new_board: to.listener.is_some(),
        };
        let Home { session, version, .. } = self.homes[&to.end.domain];
        let mut items = vec![rings.memory.clone(), peer.board.memory.clone(), peer.board.ringer_for(version)];
        if let Some(listener) = &to.listener {
            items.extend([to.board.memory.clone(), listener.clone()]);
        }
        self.send(session, serial, message.into(), items);
    }

    pub(super) fn accept_channel(&mut self, domain: DomainId, channel: ChannelId) -> Result<(), Refusal> {
        let known = self.channels.get(channel).filter(|known| known.end(domain).is_some());
        let connector = known.ok_or(Reason::NoSuchChannel)?.connector.domain;
        if connector == domain || !self.channels.open(channel) {
            return Err(Refusal::new(Reason::OutOfTurn, "a channel is accepted once, by its listener"));
        }
        self.tell(connector, ChannelOpen { channel }.into());
        Ok(())
    }

    pub(super) fn refuse_channel(
        &mut self,
        domain: DomainId,
        channel: ChannelId,
        reason: Reason,
    ) -> Result<(), Refusal> {
        let known =
            self.channels.get(channel).filter(|known| known.end(domain).is_some()).ok_or(Reason::NoSuchChannel)?;
        match known.stage {
            Stage::Offered { attempt, serial, .. } if known.listener.domain == domain => {
                let connector = known.connector.domain;
                self.end_offer(channel, (connector, domain), reason, (attempt, serial));
            }
            _ => self.end_channel(channel, Some(domain), reason),
        }
        Ok(())
    }

    /// The listener has not answered in time.
    pub(super) fn offer_unanswered(&mut self, channel: ChannelId) {
        let Some(known) = self.channels.get(channel) else { return };
        let Stage::Offered { attempt, serial, .. } = known.stage else { return };
        let (connector, listener, reason) = (known.connector.domain, known.listener.domain, Reason::ChannelNoAnswer);
        self.tell(listener, ChannelClosed { channel, reason }.into());
        self.end_offer(channel, (connector, listener), reason, (attempt, serial));
    }

    fn end_offer(
        &mut self,
        channel: ChannelId,
        (connector, listener): (DomainId, DomainId),
        reason: Reason,
        (attempt, serial): (u8, Option<RequestSerial>),
    ) {
        self.take_channel(channel, reason);
        let last = !may_try_again(reason) || u32::from(attempt) >= CHANNEL_TRIES;
        if let Some(home) = self.homes.get(&connector) {
            let session = home.session;
            self.note(session, reason, reason.summary());
            self.send(session, serial, ChannelRefused { peer: listener, reason, last }.into(), Vec::new());
        }
    }

    pub(super) fn close_channel(
        &mut self,
        id: SessionId,
        domain: DomainId,
        channel: ChannelId,
        reason: Reason,
    ) -> Result<(), Refusal> {
        let in_guest = self.homes.get(&domain).is_some_and(|home| home.ground.guest().is_some());
        if self.has_left(channel, domain) || in_guest && self.channels.get(channel).is_none() {
            return Ok(()); // In a guest each end says so, also when the other one has ended it.
        }
        self.channels.get(channel).filter(|known| known.end(domain).is_some()).ok_or(Reason::NoSuchChannel)?;
        if reason.kind() == Kind::Fault {
            self.note(id, reason, "says that its peer broke the contract");
        }
        let told = if reason == Reason::ClosedHere { Reason::ClosedByPeer } else { reason };
        self.end_channel(channel, Some(domain), told);
        Ok(())
    }

    /// Ends a channel and tells both ends, but the one that it comes from.
    pub(super) fn end_channel(&mut self, channel: ChannelId, by: Option<DomainId>, reason: Reason) {
        let Some(ended) = self.take_channel(channel, reason) else { return };
        let told = [ended.connector, ended.listener].map(|end| end.domain).into_iter().filter(|&end| Some(end) != by);
        for end in told.clone() {
            self.tell(end, ChannelClosed { channel, reason }.into());
        }
        let until: BTreeSet<DomainId> = told.filter(|end| self.homes.contains_key(end)).collect();
        if let Some(memory) = ended.memory.filter(|memory| memory.file().is_none() && !until.is_empty()) {
            self.lingering.insert(channel, Lingering { memory, until });
        }
    }

    /// A domain of a guest says that it has taken what was left in a channel that is over; or the domain is gone.
    fn has_left(&mut self, channel: ChannelId, domain: DomainId) -> bool {
        let Some(lingering) = self.lingering.get_mut(&channel) else { return false };
        let waited = lingering.until.remove(&domain);
        if lingering.until.is_empty() {
            self.lingering.remove(&channel);
        }
        waited
    }

    /// A domain is gone: nothing is kept for it.
    pub(super) fn leave_lingering(&mut self, domain: DomainId) {
        self.lingering.retain(|_, lingering| {
            lingering.until.remove(&domain);
            !lingering.until.is_empty()
        });
    }

    /// Frees what a channel had.
    fn take_channel(&mut self, channel: ChannelId, reason: Reason) -> Option<Channel<Item>> {
        let ended = self.channels.remove(channel)?;
        self.give_back(&ended.connector);
        self.give_back(&ended.listener);
        let (a, b) = (ended.connector.domain, ended.listener.domain);
        for (of, peer) in [(a, b), (b, a)] {
            if let Some(known) = self.directory.get_mut(of).and_then(|domain| domain.peers.get_mut(&peer)) {
                known.channel = None;
                known.refused = Some(reason);
            }
        }
        Some(ended)
    }

    fn give_back(&mut self, end: &End) {
        if let Some(domain) = self.directory.get_mut(end.domain) {
            domain.boards.give_back(end.board, end.place);
        }
    }
}

/// The memory of a channel that is over, in a guest's window. What was sent last may still be in it.
#[derive(Debug)]
pub(crate) struct Lingering {
    /// Nobody else's as long as it is here.
    pub(super) memory: Item,
    /// Who has not said that it is done with it.
    until: BTreeSet<DomainId>,
}

/// Another try may do better.
fn may_try_again(reason: Reason) -> bool {
    use Reason::*;
    let passing = [ChannelNoAnswer, OutOfMemory, OutOfAddressSpace, OutOfFds, DaemonOutOfFds, FdsInFlight];
    passing.contains(&reason)
}
