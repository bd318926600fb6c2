//! Notifications of the daemon: channels offered, opened and closed, regions granted, peers gone.

use crate::control::Notification;
use crate::core::Core;
use crate::matcher::Matcher;
use crate::peer::{ChannelState, GrantState, Path, PeerIndex};
use isthmus_channel::{Channel, ChannelKey, ChannelParts};
use isthmus_layout::arena::REGION;
use isthmus_layout::channel::{ChannelGeometry, Direction};
use isthmus_layout::control::{
    AcceptChannel, AdoptChannel, ChannelOffer, CloseChannel, RefuseChannel, RegionCreated, RequestChannel,
    RequestSerial, ToClient, ToDaemon,
};
use isthmus_layout::ids::ChannelId;
use isthmus_layout::limits::CHANNEL_ATTEMPTS_MAX;
use isthmus_layout::reason::Reason;
use isthmus_layout::{DomainId, ready_map};
use isthmus_shm::{Access, MapError, Mapping, PeerFault, SharedMapping};
use rustix::fd::{BorrowedFd, OwnedFd};

/// A channel's memory and ready bits, kept to present them to the next daemon.
#[derive(Debug)]
pub(crate) struct ResumableChannel {
    pub(crate) channel: AdoptChannel,
    pub(crate) memory: OwnedFd,
}

impl<M: Matcher> Core<M> {
    /// Processes all notifications that wait.
    #[cold]
    pub(crate) fn process_notifications(&mut self) {
        while let Some(control) = &mut self.control {
            match control.notification() {
                Ok(Some(notification)) => self.process_notification(notification),
                Ok(None) => return,
                Err(_) => return self.daemon_lost(),
            }
        }
    }

    fn process_notification(&mut self, notification: Notification) {
        let Some(mut notification) = self.pass_reply(notification) else { return };
        let serial = notification.serial;
        if notification.descriptors_lost {
            return self.process_without_descriptors(serial, &notification.message);
        }
        match notification.message {
            ToClient::ChannelOffer(ref offer) => {
                let offer = offer.clone();
                self.handle_channel_offer(&offer, &mut notification);
            }
            ToClient::ChannelOpen(open) => self.handle_channel_open(open.channel),
            ToClient::ChannelRefused(refused) => {
                self.handle_channel_refused(refused.peer, refused.reason, refused.permanent)
            }
            ToClient::ChannelClosed(closed) => self.handle_channel_closed(closed.channel, closed.reason),
            ToClient::Granted(ref granted) => {
                let (granted, fd) = (granted.clone(), notification.fd());
                let at = self.peer(granted.peer);
                self.map_granted_region(at, granted.region, granted.start, granted.bytes, fd);
            }
            ToClient::Revoked(revoked) => {
                if let Some(at) = self.find_peer(revoked.peer) {
                    if revoked.region == REGION {
                        self.peers[at].arena_mapping = None;
                    }
                    self.peers[at].regions.remove(&revoked.region);
                }
            }
            ToClient::PeerGone(gone) => self.handle_peer_gone(gone.peer, gone.reason),
            ToClient::RegionCreated(RegionCreated { region }) => {
                let fd = notification.fd();
                self.handle_region_created(serial, region, fd);
            }
            ToClient::Done(_) => self.handle_grant_reply(serial, GrantState::Yes),
            ToClient::Refused(refused) => self.handle_refused(serial, refused.reason),
            // The rest answers requests that were waited for.
            _ => {}
        }
    }

    /// Handles a message after this process could not open its descriptors. An offer is refused; a granted region stays unknown.
    fn process_without_descriptors(&mut self, serial: Option<RequestSerial>, message: &ToClient) {
        if let ToClient::RegionCreated(_) = message {
            return self.handle_region_refused(serial, Reason::BufferOutOfFds);
        }
        if let ToClient::ChannelOffer(offer) = message {
            let at = self.peer(offer.peer);
            self.refuse_offer(at, offer, Reason::OutOfFds);
        }
    }

    fn refuse_offer(&mut self, at: PeerIndex, offer: &ChannelOffer, reason: Reason) {
        self.send_request(RefuseChannel { channel: offer.channel, reason }.into(), &[]);
        // The domain that asked for the channel asks again if a smaller one may do; the daemon asks the other one again.
        let last = offer.direction == Direction::One || reason != Reason::OutOfAddressSpace;
        self.peers[at].channel_state = ChannelState::Refused { reason, last };
        self.request_channel(at);
    }

    /// Sends a request to the daemon without waiting for a reply. None if there is no daemon.
    pub(crate) fn send_request(&mut self, message: ToDaemon, fds: &[BorrowedFd<'_>]) -> Option<RequestSerial> {
        self.try_send_request(message, fds).ok()
    }

    /// Sends a request to the daemon, without waiting. The error is the reason why it was not sent.
    pub(crate) fn try_send_request(
        &mut self,
        message: ToDaemon,
        fds: &[BorrowedFd<'_>],
    ) -> Result<RequestSerial, Reason> {
        let control = self.control.as_mut().ok_or(Reason::DaemonConnectionLost)?;
        control.send_request(message, fds).map_err(|refusal| {
            if refusal.reason == Reason::DaemonConnectionLost {
                self.daemon_lost();
            }
            refusal.reason
        })
    }

    pub(crate) fn handle_grant_reply(&mut self, serial: Option<RequestSerial>, answer: GrantState) {
        let Some(serial) = serial else { return };
        for peer in self.peers.iter_mut() {
            if let Some(grant) = peer.granted.values_mut().find(|grant| **grant == GrantState::Asked(serial)) {
                *grant = answer;
                if let GrantState::Refused(reason @ (Reason::GrantsForbidden | Reason::DifferentContainer)) = answer {
                    peer.grants_refused = Some(reason);
                }
                return;
            }
        }
    }

    fn handle_refused(&mut self, serial: Option<RequestSerial>, reason: Reason) {
        self.handle_region_refused(serial, reason);
        self.handle_grant_reply(serial, GrantState::Refused(reason));
        let asked = self.channel_requests.iter().position(|(asked, _)| Some(*asked) == serial);
        if let Some((_, at)) = asked.map(|place| self.channel_requests.swap_remove(place)) {
            let id = self.peers[at].id;
            self.handle_channel_refused(id, reason, true);
            if matches!(reason, Reason::NoSuchDomain | Reason::TalkForbidden) {
                self.fail_peer(at, reason);
            }
        }
    }

    /// Requests a channel with a peer, if this domain may have one now.
    pub(crate) fn request_channel(&mut self, at: PeerIndex) {
        let peer = &mut self.peers[at];
        let again = matches!(peer.channel_state, ChannelState::Absent | ChannelState::Refused { last: false, .. });
        if !again || peer.channel_attempts >= CHANNEL_ATTEMPTS_MAX {
            return;
        }
        let other_host = peer.id.is_remote().then_some(Reason::OtherHost);
        if let Some(reason) = other_host.or(self.no_channels) {
            peer.channel_state = ChannelState::Refused { reason, last: true };
            return;
        }
        let (id, tries) = (peer.id, peer.channel_attempts + 1);
        if let Some(serial) = self.send_request(RequestChannel { peer: id, attempt: tries as u8 }.into(), &[]) {
            let peer = &mut self.peers[at];
            (peer.channel_state, peer.channel_attempts) = (ChannelState::Asked, tries);
            self.channel_requests.retain(|(_, asked)| *asked != at);
            self.channel_requests.push((serial, at));
        }
    }

    fn handle_channel_offer(&mut self, offer: &ChannelOffer, notification: &mut Notification) {
        let at = self.peer(offer.peer);
        self.channel_requests.retain(|(_, asked)| *asked != at);
        match self.open_channel(at, offer, notification) {
            Ok(()) if offer.direction == Direction::One => {
                self.send_request(AcceptChannel { channel: offer.channel }.into(), &[]);
            }
            Ok(()) => {}
            Err(reason) => self.refuse_offer(at, offer, reason),
        }
    }

    fn open_channel(
        &mut self,
        at: PeerIndex,
        offer: &ChannelOffer,
        notification: &mut Notification,
    ) -> Result<(), Reason> {
        if self.no_channels.is_some() {
            return Err(Reason::ChannelRefused);
        }
        if matches!(self.peers[at].channel_state, ChannelState::Made { .. }) {
            self.abort_channel(at, Reason::ChannelReplaced); // The peer has none any more, or it would not get another.
        }
        let (memory, peer_ready_map, peer_doorbell) = (notification.fd(), notification.fd(), notification.doorbell());
        if offer.new_ready_map {
            let (ready_map, doorbell) = (notification.fd(), notification.doorbell());
            self.add_ready_map(offer.ready_map, Some(offer.peer_owner), ready_map, doorbell)?;
        }
        let ready_map = self.ready_map(offer.ready_map).ok_or(Reason::ReadyMapsFull)?;
        let geometry = ChannelGeometry { slab: offer.slab };
        let mapping = map(&memory, geometry.size())?;
        let peer_ready_map = map(&peer_ready_map, ready_map::SIZE)?;
        let parts = ChannelParts {
            memory: mapping,
            geometry,
            send_direction: offer.direction,
            peer_ready_map,
            ready_bit: offer.peer_ready_bit,
            peer_doorbell,
        };
        let key = self.add_to_inbox(Channel::new(parts), ready_map, offer.ready_bit)?;
        self.assign_channel(key, at);
        let connector = offer.direction == Direction::Zero;
        let peer = &mut self.peers[at];
        (peer.name, peer.owner) = (Some(offer.peer_name.clone()), Some(offer.peer_owner));
        peer.channel_state = ChannelState::Made { id: offer.channel, key, connector, open: false };
        let channel = AdoptChannel {
            channel: offer.channel,
            peer: offer.peer,
            direction: offer.direction,
            slab: offer.slab,
            ready_map: offer.ready_map,
            ready_bit: offer.ready_bit,
            peer_ready_bit: offer.peer_ready_bit,
        };
        self.resumable_channels.insert(offer.channel, ResumableChannel { channel, memory });
        self.grant_arena(at);
        self.publish_slow_path_reasons(at);
        Ok(())
    }

    /// The listener has the channel too: leave the daemon path.
    fn handle_channel_open(&mut self, id: ChannelId) {
        let Some((at, key)) = self.channel_by_id(id) else { return };
        let peer = &mut self.peers[at];
        if let ChannelState::Made { connector: true, open: false, .. } = peer.channel_state {
            peer.channel_state = ChannelState::Made { id, key, connector: true, open: true };
            peer.switch = Some(Path::Channel(key));
            self.advance(at);
        }
    }

    fn handle_channel_refused(&mut self, peer: DomainId, reason: Reason, last: bool) {
        let Some(at) = self.find_peer(peer) else { return };
        let attempts = self.peers[at].channel_attempts;
        match self.peers[at].channel_state {
            // The listener did not accept the offer. The attempts go on being counted.
            ChannelState::Made { id, key, connector: true, open: false } => self.remove_channel(at, key, id, reason),
            // The refused request is older than this channel, which only a message with its number ends.
            ChannelState::Made { .. } => return,
            ChannelState::Absent | ChannelState::Asked | ChannelState::Refused { .. } => {}
        }
        let peer = &mut self.peers[at];
        (peer.channel_state, peer.channel_attempts) = (ChannelState::Refused { reason, last }, attempts);
        self.request_channel(at);
    }

    /// A channel is over: what lies in it is taken; what was sent by it and not taken is lost with it.
    pub(crate) fn handle_channel_closed(&mut self, id: ChannelId, reason: Reason) {
        let Some((at, key)) = self.channel_by_id(id) else { return };
        match reason {
            Reason::ChannelTimeout => self.remove_channel(at, key, id, reason), // It never was open.
            // Both are there: each says in the channel that it leaves it, and nothing is lost.
            Reason::ChannelsForbidden => {
                let peer = &mut self.peers[at];
                peer.fallback_reason = Some(reason);
                peer.switch = (peer.path_out == Path::Channel(key)).then_some(Path::Daemon);
                self.advance(at);
                self.close_channel_if_unused(at);
            }
            _ => self.abort_channel(at, reason),
        }
    }

    /// A channel is over, in whatever state: both begin anew on the daemon path.
    pub(crate) fn abort_channel(&mut self, at: PeerIndex, reason: Reason) {
        let used = self.is_channel_used(at);
        if used {
            self.drain_paths_from(at);
        }
        if let ChannelState::Made { id, key, .. } = self.peers[at].channel_state {
            self.remove_channel(at, key, id, reason);
        }
        if matches!(reason, Reason::DaemonConnectionLost | Reason::ChannelReplaced | Reason::ClosedByPeer) {
            self.peers[at].channel_state = ChannelState::Absent; // The next message may ask for another one.
        }
        if used {
            let peer = &mut self.peers[at];
            (peer.epoch_out, peer.epoch_in) = (0, 0);
            self.fail_path(at, reason);
        }
    }

    /// True if messages use the channel with a peer, or wait in it.
    fn is_channel_used(&mut self, at: PeerIndex) -> bool {
        if let (Path::Daemon, Some(ring)) = (self.peers[at].path_in, self.ring) {
            self.drain(ring); // The peer's word that it uses it now may be there.
        }
        let peer = &self.peers[at];
        let ChannelState::Made { key, .. } = peer.channel_state else { return false };
        let waits = self.inbox.channel(key).is_some_and(|channel| !matches!(channel.has_record(), Ok(false)));
        waits || peer.path_out == Path::Channel(key) || peer.path_in == Path::Channel(key)
    }

    /// Takes what a peer has sent before its channel, or the peer itself, came to its end: what came through the daemon first.
    pub(crate) fn drain_paths_from(&mut self, at: PeerIndex) {
        if let (Path::Daemon, Some(ring)) = (self.peers[at].path_in, self.ring) {
            self.drain(ring);
        }
        let peer = &mut self.peers[at];
        let ChannelState::Made { key, .. } = peer.channel_state else { return };
        if peer.path_in == Path::Daemon {
            // Its word that it changes paths did not come. What it said afterwards can all the same be in the channel.
            (peer.path_in, peer.epoch_in) = (Path::Channel(key), peer.epoch_in.wrapping_add(1));
            self.inbox.unmute(key);
        }
        self.drain(key);
    }

    fn remove_channel(&mut self, at: PeerIndex, key: ChannelKey, id: ChannelId, reason: Reason) {
        let in_guest = self.is_in_guest();
        self.remove_from_inbox(key);
        if in_guest {
            // An extent of a window is kept for us until we say so: what was sent last may have lain in it.
            self.send_request(CloseChannel { channel: id, reason: Reason::ClosedLocally }.into(), &[]);
        }
        self.resumable_channels.remove(&id);
        let peer = &mut self.peers[at];
        (peer.channel_state, peer.channel_attempts) = (ChannelState::Refused { reason, last: false }, 0);
        (peer.path_out, peer.path_in, peer.switch, peer.fallback_reason) = (Path::Daemon, Path::Daemon, None, None);
        peer.granted.clear();
        peer.grants_refused = None;
        peer.regions.clear();
        peer.arena_mapping = None;
        peer.fragmented = None;
    }

    /// Both directions may have left the channel: then it can go. A listener that has not left cannot know that its connector never
    /// will have to: it keeps the channel until it is offered another one.
    pub(crate) fn close_channel_if_unused(&mut self, at: PeerIndex) {
        let peer = &self.peers[at];
        let via_daemon =
            peer.path_out == Path::Daemon && peer.path_in == Path::Daemon && peer.epoch_out == peer.epoch_in;
        if let (true, Some(reason), ChannelState::Made { id, key, connector, .. }) =
            (via_daemon, peer.fallback_reason, peer.channel_state)
            && (connector || peer.epoch_out > 0)
        {
            self.remove_channel(at, key, id, reason);
        }
    }

    /// The peer of a channel broke the contract: that channel is over.
    pub(crate) fn channel_fault(&mut self, key: ChannelKey, fault: PeerFault) {
        if Some(key) == self.ring {
            return self.daemon_lost(); // Or our own memory is spoilt; a fresh ring is the cure for both.
        }
        if let Some(at) = self.peer_of_channel(key) {
            self.peer_fault(at, fault);
        }
    }

    /// Like [`Self::channel_fault`], for a peer: the channel to the peer is over.
    pub(crate) fn peer_fault(&mut self, at: PeerIndex, fault: PeerFault) {
        let reason = reason_of(&fault);
        self.faults += 1;
        if let ChannelState::Made { id, key, .. } = self.peers[at].channel_state {
            if let Some(channel) = self.inbox.channel(key) {
                channel.record_fault();
                self.last_flight = channel.flight_recorder().to_string();
            }
            self.remove_channel(at, key, id, reason);
            self.send_request(CloseChannel { channel: id, reason }.into(), &[]);
        }
        let peer = &mut self.peers[at];
        (peer.epoch_out, peer.epoch_in) = (0, 0);
        self.fail_peer(at, Reason::PeerFault);
    }

    pub(crate) fn handle_peer_gone(&mut self, peer: DomainId, reason: Reason) {
        let Some(at) = self.find_peer(peer) else { return };
        self.drain_paths_from(at);
        if let ChannelState::Made { id, key, .. } = self.peers[at].channel_state {
            self.remove_channel(at, key, id, reason);
        }
        self.fail_peer(at, reason);
        self.forget_peer(at);
        if let Some(arena) = &self.arena {
            arena.remove_peer(peer);
        }
        self.matcher.peer_gone(peer);
    }
}

pub(crate) fn map(memory: &OwnedFd, size: isthmus_layout::RegionSize) -> Result<SharedMapping, Reason> {
    Mapping::new(memory, size, Access::ReadWrite).map(SharedMapping::new).map_err(|error| match error {
        MapError::NotSealed => Reason::RegionNotSealed,
        MapError::TooSmall { .. } => Reason::RegionTooSmall,
        MapError::Refused { .. } => Reason::OutOfAddressSpace,
    })
}

fn reason_of(fault: &PeerFault) -> Reason {
    match fault {
        PeerFault::Stamp { .. } => Reason::CellStampInvalid,
        PeerFault::HeadOverrun { .. } => Reason::RingHeadInvalid,
        PeerFault::SlabOverrun { .. } => Reason::SlabHeadInvalid,
        PeerFault::FragmentOutside(_) => Reason::FragmentOutsideSlab,
        PeerFault::RecordTooLong(_) | PeerFault::Record(_) => Reason::MalformedRecord,
    }
}

#[cfg(test)]
mod tests;
