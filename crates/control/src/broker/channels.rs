//! Creating and ending channels between two attached domains.

use std::collections::BTreeSet;
use std::sync::Arc;

use isthmus_layout::Refusal;
use isthmus_layout::RegionSize;
use isthmus_layout::channel::{Direction, SlabSize};
use isthmus_layout::control::{
    ChannelClosed, ChannelOffer, ChannelOpen, ChannelRefused, Owner, RequestChannel, RequestSerial,
};
use isthmus_layout::ids::{ChannelId, DomainId};
use isthmus_layout::limits::CHANNEL_ATTEMPTS_MAX;
use isthmus_layout::proxy::WindowId;
use isthmus_layout::reason::{Reason, ReasonKind};

use super::Broker;
use crate::core::attachment::{NewReadyMap, ReadyMapFds};
use crate::core::types::ControlSessionId;
use crate::directory::channels::{ChannelEnd, ChannelEntry, ChannelStage};
use crate::directory::ready_maps::ReservedBit;
use crate::places::may_take;
use isthmus_window::{Allocator, PairWindow, Resource, RingMemory, WindowError};

/// The number of unread messages of a domain from which on its peers cannot queue more.
pub(super) const PEERS_BACKLOG_MAX: usize = 64;

/// The place in which two domains can share memory.
pub(super) enum SharedAllocator {
    /// The allocator of both domains.
    Same(Allocator),
    /// The pair window of their guests.
    Window(Arc<PairWindow>),
}

impl SharedAllocator {
    fn allocate_rings(&self, most: SlabSize) -> Result<RingMemory, WindowError> {
        match self {
            Self::Same(allocator) => allocator.allocate_rings(most),
            Self::Window(window) => RingMemory::of(most, |size| window.allocate(size)),
        }
    }

    /// Allocates zeroed memory.
    pub(super) fn allocate(&self, size: RegionSize) -> Result<Resource, WindowError> {
        match self {
            Self::Same(allocator) => allocator.allocate(size),
            Self::Window(window) => window.allocate(size),
        }
    }

    /// The size of the window in bytes, or `u64::MAX` if there is no window.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Same(Allocator::Host) => u64::MAX,
            Self::Same(Allocator::Guest(guest_window)) => guest_window.window().bytes(),
            Self::Window(window) => window.window().bytes(),
        }
    }

    /// The window in which ready maps for peers there lie.
    fn window(&self) -> WindowId {
        match self {
            Self::Same(_) => WindowId::OWN,
            Self::Window(window) => window.number(),
        }
    }
}

/// One end of a channel that is being created.
struct PreparedEnd {
    end: ChannelEnd,
    ready_map: ReadyMapFds,
    /// The listening end of the ready map's doorbell, if the ready map is new.
    listener: Option<Resource>,
}

impl Broker {
    pub(super) fn request_channel(
        &mut self,
        id: ControlSessionId,
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
        id: ControlSessionId,
        serial: Option<RequestSerial>,
        (domain, peer): (DomainId, DomainId),
        attempt: u8,
        refusal: &Refusal,
    ) {
        let reason = refusal.reason;
        self.core.log_reason(id, reason, refusal.text());
        if self.core.directory.get(peer).is_some() && peer != domain {
            self.core.directory.peer_state(domain, peer).refused = Some(reason);
        }
        let permanent = !is_retryable(reason) || u32::from(attempt) >= CHANNEL_ATTEMPTS_MAX;
        self.core.send(id, serial, ChannelRefused { peer, reason, permanent }.into(), Vec::new());
    }

    /// Creates a channel and offers it to both domains. If they need a pair window first, the offer is made once the window is open.
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
        let (Some(ours), Some(theirs)) = (self.core.identity(connector), self.core.identity(listener)) else {
            return Err(Reason::NoSuchDomain.into());
        };
        self.core.policy.may_open_channel(&ours, &theirs)?;
        if self.channel_of(connector, listener).is_some() {
            return Ok(()); // The requester had not read the offer of this channel, which is the reply to this request too.
        }
        let Some(shared) = self.shared_allocator(connector, listener)? else {
            self.wait_for_window((connector, listener), attempt, serial);
            return Ok(());
        };
        if self.core.backlog_of(listener) >= PEERS_BACKLOG_MAX || self.has_unread_offer(listener, connector) {
            return Err(Reason::ChannelTimeout.into());
        }
        self.may_queue_fds(connector)?;
        self.may_queue_fds(listener)?;
        let most = self.slab_for(connector, listener, attempt);
        let (connector, listener) = self.prepare_both(connector, listener, &shared)?;
        let mut rings = match shared.allocate_rings(most) {
            Ok(rings) => rings,
            Err(refusal) => {
                self.discard_end(&connector);
                self.discard_end(&listener);
                self.revoke_regions(&shared); // The next attempt may find room then.
                return Err(refusal.into());
            }
        };
        if let Some(refusal) = rings.refused.take() {
            self.core.log_smaller_slabs(self.core.attachments[&connector.end.domain].session, &rings, &refusal);
        }
        self.offer_to_both(connector, listener, rings, (attempt, serial));
        Ok(())
    }

    /// The slab size of a channel. It is smaller at each further attempt after one of the two could not map the memory.
    fn slab_for(&self, connector: DomainId, listener: DomainId, attempt: u8) -> SlabSize {
        let known = self.core.directory.get(connector).and_then(|domain| domain.peers.get(&listener));
        let lacks_address_space = known.is_some_and(|known| known.refused == Some(Reason::OutOfAddressSpace));
        let most = self.core.settings.slab;
        match u32::from(attempt) {
            0..2 => most,
            _ if !lacks_address_space => most,
            2..CHANNEL_ATTEMPTS_MAX => most.half().and_then(SlabSize::half).unwrap_or(SlabSize::MIN),
            CHANNEL_ATTEMPTS_MAX.. => SlabSize::MIN,
        }
    }

    /// Returns the place in which both domains can share memory, or None while a pair window is being made. The first call requests the
    /// window.
    pub(super) fn shared_allocator(&mut self, a: DomainId, b: DomainId) -> Result<Option<SharedAllocator>, Refusal> {
        match self.common_allocator(a, b) {
            Ok(allocator) => Ok(Some(SharedAllocator::Same(allocator))),
            Err(_) => Ok(self.request_pair_window(a, b)?.map(SharedAllocator::Window)),
        }
    }

    /// Returns the allocator that both domains have.
    pub(crate) fn common_allocator(&self, a: DomainId, b: DomainId) -> Result<Allocator, Refusal> {
        let (Some(a), Some(b)) = (self.core.attachments.get(&a), self.core.attachments.get(&b)) else {
            return Err(Reason::NoSuchDomain.into());
        };
        if a.allocator.number() == b.allocator.number() {
            Ok(a.allocator.clone())
        } else {
            Err(Reason::NoSharedMemory.into())
        }
    }

    fn prepare_both(
        &mut self,
        a: DomainId,
        b: DomainId,
        shared: &SharedAllocator,
    ) -> Result<(PreparedEnd, PreparedEnd), Refusal> {
        let first = self.prepare(a, b, shared)?;
        match self.prepare(b, a, shared) {
            Ok(second) => Ok((first, second)),
            Err(refusal) => {
                self.discard_end(&first);
                Err(refusal)
            }
        }
    }

    /// Undoes [`Self::prepare`]. The domain does not know a new ready map, which an offer would have announced.
    fn discard_end(&mut self, prepared: &PreparedEnd) {
        self.release_end(&prepared.end);
        if prepared.listener.is_some() {
            self.forget_ready_map(&prepared.end);
        }
    }

    fn forget_ready_map(&mut self, end: &ChannelEnd) {
        self.core.attachments.remove_ready_map(end.domain, end.ready_map);
        if let Some(domain) = self.core.directory.get_mut(end.domain) {
            domain.ready_maps.forget(end.ready_map);
        }
    }

    /// Allocates a bit for `peer` in one of `domain`'s ready maps. Creates the ready map if there is none yet.
    fn prepare(&mut self, domain: DomainId, peer: DomainId, shared: &SharedAllocator) -> Result<PreparedEnd, Refusal> {
        let owner = self.core.directory.get(peer).ok_or(Reason::NoSuchDomain)?.owner;
        let most = self.core.directory.limits().channels;
        let entry = self.core.directory.get_mut(domain).ok_or(Reason::NoSuchDomain)?;
        if entry.channels().count() >= most {
            let text = format!("{} has {most} channels, the most one domain may have", entry.name);
            return Err(Refusal::new(Reason::ChannelsFull, text));
        }
        let ReservedBit { ready_map, ready_bit, new_ready_map } = entry.ready_maps.reserve(owner, shared.window())?;
        let (end, own) = (ChannelEnd { domain, ready_map, ready_bit }, entry.owner == owner);
        let room = self.has_room_for_fds();
        let attachment = self.core.attachments.get(&domain).expect("every domain has an attachment");
        match attachment.ready_maps.get(&ready_map).filter(|_| !new_ready_map) {
            Some(known) => Ok(PreparedEnd { end, ready_map: known.clone(), listener: None }),
            None => match match shared {
                SharedAllocator::Same(allocator) => NewReadyMap::new(own, room, allocator, domain),
                SharedAllocator::Window(window) => NewReadyMap::pair(window, &attachment.allocator, domain),
            } {
                Ok(new) => {
                    self.core.attachments.add_ready_map(domain, ready_map, new.peers.clone());
                    Ok(PreparedEnd { end, ready_map: new.peers, listener: Some(new.listener) })
                }
                Err(refusal) => {
                    self.release_end(&end);
                    self.forget_ready_map(&end);
                    Err(refusal)
                }
            },
        }
    }

    /// True if the memory of another channel of a user may be kept. Half of the process's descriptors may be used for that, and users share
    /// them; the counters of channels beyond it are not reported.
    pub(super) fn may_keep_memory(&self, account: Owner) -> bool {
        let kept = self.channels.kept_memories();
        may_take(kept.of(account), kept.total(), self.core.settings.fds_max / 2, self.core.has_others()).is_ok()
    }

    /// True if another descriptor may be kept for programs.
    pub(crate) fn has_room_for_fds(&self) -> bool {
        self.core.has_room_for_fds(self.channels.kept_memories().total() + self.capabilities.fds())
    }

    fn offer_to_both(
        &mut self,
        connector: PreparedEnd,
        listener: PreparedEnd,
        rings: RingMemory,
        (attempt, serial): (u8, Option<RequestSerial>),
    ) {
        let RingMemory { slab, memory, refused: _ } = &rings;
        let id = self.channels.allocate_id();
        let until = self.core.now.saturating_add(self.core.settings.offer_timeout);
        // An extent of a window would be reused if it were not kept.
        let account = self
            .core
            .directory
            .get(connector.end.domain)
            .map_or(Owner(self.core.settings.uid), |domain| domain.account);
        let in_window = memory.file().is_none();
        let keep = self.may_keep_memory(account) || in_window;
        let ready_maps = [&connector, &listener].into_iter().filter(|_| in_window);
        self.channels.insert(ChannelEntry {
            id,
            connector: connector.end,
            listener: listener.end,
            slab: *slab,
            stage: ChannelStage::Offered { until, attempt, serial },
            since: self.core.now,
            memory: keep.then(|| memory.clone()),
            ready_maps: ready_maps.map(|end| end.ready_map.memory.clone()).collect(),
            account,
        });
        let (a, b) = (connector.end.domain, listener.end.domain);
        for (of, peer) in [(a, b), (b, a)] {
            let peer_state = self.core.directory.peer_state(of, peer);
            peer_state.channel = Some(id);
            peer_state.refused = None;
            self.core.directory.watch(of, peer);
        }
        self.send_offer(id, &listener, &connector, Direction::One, &rings, None);
        self.send_offer(id, &connector, &listener, Direction::Zero, &rings, serial);
    }

    fn send_offer(
        &mut self,
        channel: ChannelId,
        to: &PreparedEnd,
        peer: &PreparedEnd,
        direction: Direction,
        rings: &RingMemory,
        serial: Option<RequestSerial>,
    ) {
        let identity = self.core.identity(peer.end.domain).expect("both are attached");
        let message = ChannelOffer {
            channel,
            peer: peer.end.domain,
            peer_name: identity.name,
            peer_owner: identity.owner,
            direction,
            slab: rings.slab,
            ready_map: to.end.ready_map,
            ready_bit: to.end.ready_bit,
            peer_ready_bit: peer.end.ready_bit,
            new_ready_map: to.listener.is_some(),
        };
        let session = self.core.attachments[&to.end.domain].session;
        let mut resources = vec![rings.memory.clone(), peer.ready_map.memory.clone(), peer.ready_map.rung()];
        if let Some(listener) = &to.listener {
            resources.extend([to.ready_map.memory.clone(), listener.clone()]);
        }
        self.core.send(session, serial, message.into(), resources);
    }

    pub(super) fn accept_channel(&mut self, domain: DomainId, channel: ChannelId) -> Result<(), Refusal> {
        let known = self.channels.get(channel).filter(|known| known.end(domain).is_some());
        let connector = known.ok_or(Reason::NoSuchChannel)?.connector.domain;
        if connector == domain || !self.channels.open(channel) {
            return Err(Refusal::new(Reason::UnexpectedMessageType, "a channel is accepted once, by its listener"));
        }
        self.core.notify(connector, ChannelOpen { channel }.into());
        Ok(())
    }

    pub(super) fn refuse_channel(
        &mut self,
        domain: DomainId,
        channel: ChannelId,
        reason: Reason,
    ) -> Result<(), Refusal> {
        if self.finish_lingering(channel, domain) {
            return Ok(()); // The offer was withdrawn before the domain had read it.
        }
        let known =
            self.channels.get(channel).filter(|known| known.end(domain).is_some()).ok_or(Reason::NoSuchChannel)?;
        match known.stage {
            ChannelStage::Offered { attempt, serial, .. } if known.listener.domain == domain => {
                let connector = known.connector.domain;
                self.end_offer(channel, (connector, domain), reason, (attempt, serial), [connector].into());
            }
            _ => self.end_channel(channel, Some(domain), reason),
        }
        Ok(())
    }

    /// Withdraws an offer that the listener has not replied to in time.
    pub(super) fn offer_timed_out(&mut self, channel: ChannelId) {
        let Some(known) = self.channels.get(channel) else { return };
        let ChannelStage::Offered { attempt, serial, .. } = known.stage else { return };
        let (connector, listener, reason) = (known.connector.domain, known.listener.domain, Reason::ChannelTimeout);
        self.core.notify(listener, ChannelClosed { channel, reason }.into());
        let unread = [connector, listener].into();
        self.end_offer(channel, (connector, listener), reason, (attempt, serial), unread);
    }

    /// Ends an offer that was not accepted. The domains of `unread` may not have read it.
    fn end_offer(
        &mut self,
        channel: ChannelId,
        (connector, listener): (DomainId, DomainId),
        reason: Reason,
        (attempt, serial): (u8, Option<RequestSerial>),
        unread: BTreeSet<DomainId>,
    ) {
        let Some(ended) = self.remove_channel(channel, reason) else { return };
        self.keep_memory(ended, unread);
        let permanent = !is_retryable(reason) || u32::from(attempt) >= CHANNEL_ATTEMPTS_MAX;
        if let Some(attachment) = self.core.attachments.get(&connector) {
            let session = attachment.session;
            self.core.log_reason(session, reason, reason.summary());
            self.core.send(session, serial, ChannelRefused { peer: listener, reason, permanent }.into(), Vec::new());
        }
    }

    pub(super) fn close_channel(
        &mut self,
        id: ControlSessionId,
        domain: DomainId,
        channel: ChannelId,
        reason: Reason,
    ) -> Result<(), Refusal> {
        let in_guest =
            self.core.attachments.get(&domain).is_some_and(|attachment| attachment.allocator.guest().is_some());
        if self.finish_lingering(channel, domain) || in_guest && self.channels.get(channel).is_none() {
            return Ok(()); // In a guest each end closes the channel, even after the other end has ended it.
        }
        self.channels.get(channel).filter(|known| known.end(domain).is_some()).ok_or(Reason::NoSuchChannel)?;
        if reason.kind() == ReasonKind::Fault {
            self.core.log_reason(id, reason, "says that its peer broke the contract");
        }
        let notified = if reason == Reason::ClosedLocally { Reason::ClosedByPeer } else { reason };
        self.end_channel(channel, Some(domain), notified);
        Ok(())
    }

    /// Ends a channel and notifies both ends, except the one that has ended it.
    pub(super) fn end_channel(&mut self, channel: ChannelId, by: Option<DomainId>, reason: Reason) {
        let Some(ended) = self.remove_channel(channel, reason) else { return };
        let notified =
            [ended.connector, ended.listener].map(|end| end.domain).into_iter().filter(|&end| Some(end) != by);
        for end in notified.clone() {
            self.core.notify(end, ChannelClosed { channel, reason }.into());
        }
        let until = notified.collect();
        self.keep_memory(ended, until);
    }

    /// Keeps the memory of an ended channel in a window until these domains have confirmed that they are done with it. Until then an end may
    /// still have to read messages in the channel, or even the offer, which refers to the memory and to the ready map of the other end.
    fn keep_memory(&mut self, ended: ChannelEntry<Resource>, mut until: BTreeSet<DomainId>) {
        until.retain(|domain| self.core.attachments.contains_key(domain));
        let Some(memory) = ended.memory.filter(|memory| memory.file().is_none() && !until.is_empty()) else { return };
        for domain in &until {
            if let Some(kept) = self.core.attachments.memory_of_peers(*domain) {
                kept.lingering.insert(ended.id);
            }
        }
        let offered_by = matches!(ended.stage, ChannelStage::Offered { .. }).then_some(ended.connector.domain);
        let lingering = LingeringMemory { memory, _ready_maps: ended.ready_maps, offered_by, until };
        self.guest_memory.lingering.insert(ended.id, lingering);
    }

    /// True if a withdrawn offer from `connector` still waits to be read. Each one takes room in a window.
    fn has_unread_offer(&self, listener: DomainId, connector: DomainId) -> bool {
        let kept = self.core.attachments.get(&listener).into_iter().flat_map(|known| &known.peer_memory.lingering);
        kept.filter_map(|channel| self.guest_memory.lingering.get(channel))
            .any(|lingering| lingering.offered_by == Some(connector))
    }

    /// Notes that a domain of a guest has read the remaining messages of an ended channel, or is gone.
    fn finish_lingering(&mut self, channel: ChannelId, domain: DomainId) -> bool {
        let Some(lingering) = self.guest_memory.lingering.get_mut(&channel) else { return false };
        let waited = lingering.until.remove(&domain);
        if lingering.until.is_empty() {
            self.guest_memory.lingering.remove(&channel);
        }
        if let Some(kept) = self.core.attachments.memory_of_peers(domain) {
            kept.lingering.remove(&channel);
        }
        waited
    }

    /// Releases lingering memory that was kept for a domain that is gone.
    pub(super) fn drop_lingering(&mut self, domain: DomainId) {
        let kept = self.core.attachments.memory_of_peers(domain).map(|kept| std::mem::take(&mut kept.lingering));
        for channel in kept.unwrap_or_default() {
            self.finish_lingering(channel, domain);
        }
    }

    /// Removes a channel and frees its resources.
    fn remove_channel(&mut self, channel: ChannelId, reason: Reason) -> Option<ChannelEntry<Resource>> {
        let ended = self.channels.remove(channel)?;
        self.release_end(&ended.connector);
        self.release_end(&ended.listener);
        let (a, b) = (ended.connector.domain, ended.listener.domain);
        for (of, peer) in [(a, b), (b, a)] {
            if let Some(known) = self.core.directory.get_mut(of).and_then(|domain| domain.peers.get_mut(&peer)) {
                known.channel = None;
                known.refused = Some(reason);
            }
        }
        Some(ended)
    }

    /// Refuses an offer while messages to the domain's user hold as many descriptors as they may.
    fn may_queue_fds(&self, domain: DomainId) -> Result<(), Refusal> {
        self.core.attachments.get(&domain).map_or(Ok(()), |attachment| self.core.check_fds_queue(attachment.session))
    }

    fn release_end(&mut self, end: &ChannelEnd) {
        if let Some(domain) = self.core.directory.get_mut(end.domain) {
            domain.ready_maps.release(end.ready_map, end.ready_bit);
        }
    }
}

/// The memory of an ended channel in a guest's window. The last messages, or the offer, may not have been read yet.
#[derive(Debug)]
pub(crate) struct LingeringMemory {
    /// The memory. It is not reused while it is held here.
    pub(super) memory: Resource,
    /// The ready maps of both ends, which are not reused either.
    _ready_maps: Vec<Resource>,
    /// The connector, if the channel was never open.
    offered_by: Option<DomainId>,
    /// The domains that have not confirmed that they are done with the memory.
    until: BTreeSet<DomainId>,
}

/// True if another attempt may succeed.
fn is_retryable(reason: Reason) -> bool {
    use Reason::*;
    let transient = [ChannelTimeout, OutOfMemory, OutOfAddressSpace, OutOfFds, DaemonOutOfFds, FdsInFlight];
    transient.contains(&reason)
}
