//! What the daemon tells: channels offered, opened and closed, regions granted, peers gone.

use crate::control::{Memory, News};
use crate::core::Core;
use crate::error::Refusal;
use crate::matcher::Matcher;
use crate::peer::{Granted, Making, Path, PeerIndex};
use isthmus_channel::{Channel, ChannelKey, Ends};
use isthmus_layout::arena::REGION;
use isthmus_layout::channel::{Direction, Geometry};
use isthmus_layout::control::{
    AcceptChannel, Adopt, ChannelOffer, CloseChannel, RefuseChannel, RegionMade, RequestChannel, RequestSerial,
    ToClient, ToDaemon,
};
use isthmus_layout::ids::ChannelId;
use isthmus_layout::limits::CHANNEL_TRIES;
use isthmus_layout::reason::Reason;
use isthmus_layout::{DomainId, EndpointAddress, board};
use isthmus_shm::{Access, MapError, Mapping, PeerFault, Window};
use rustix::fd::{BorrowedFd, OwnedFd};

/// A channel's memory and places, kept to show them to a daemon that comes back.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) channel: Adopt,
    pub(crate) memory: OwnedFd,
}

impl<M: Matcher> Core<M> {
    /// Takes all news that wait.
    #[cold]
    pub(crate) fn take_news(&mut self) {
        while let Some(control) = &mut self.control {
            match control.news() {
                Ok(Some(news)) => self.take(news),
                Ok(None) => return,
                Err(_) => return self.daemon_lost(),
            }
        }
    }

    fn take(&mut self, mut news: News) {
        let serial = news.serial;
        if news.lost {
            return self.take_lost(serial, &news.message);
        }
        match news.message {
            ToClient::ChannelOffer(ref offer) => {
                let offer = offer.clone();
                self.take_offer(&offer, &mut news);
            }
            ToClient::ChannelOpen(open) => self.channel_open(open.channel),
            ToClient::ChannelRefused(refused) => self.channel_refused(refused.peer, refused.reason, refused.last),
            ToClient::ChannelClosed(closed) => self.channel_closed(closed.channel, closed.reason),
            ToClient::Granted(ref granted) => {
                let (granted, fd) = (granted.clone(), news.fd());
                let at = self.peer(granted.peer);
                self.granted(at, granted.region, granted.start, granted.bytes, fd);
            }
            ToClient::Revoked(revoked) => {
                if let Some(at) = self.known(revoked.peer) {
                    if revoked.region == REGION {
                        self.peers[at].visitor = None;
                    }
                    self.peers[at].regions.remove(&revoked.region);
                }
            }
            ToClient::PeerGone(gone) => self.peer_gone(gone.peer, gone.reason),
            ToClient::RegionMade(RegionMade { region }) => {
                let fd = news.fd();
                self.region_made(serial, region, fd);
            }
            ToClient::Done(_) => self.grant_answered(serial, Granted::Yes),
            ToClient::Refused(ref refused) => {
                let refusal = || Refusal::new(refused.reason, refused.text.to_string());
                if !self.mx_connected(serial, || Err(refusal())) {
                    self.request_refused(serial, refused.reason);
                }
            }
            ToClient::MxFound(ref found) => {
                let address = EndpointAddress { domain: found.domain, endpoint: found.endpoint };
                self.mx_connected(serial, || Ok(address));
            }
            // The rest answers requests that were waited for.
            _ => {}
        }
    }

    /// We may not open more descriptors: an offer is refused, and a region that was granted stays unknown.
    fn take_lost(&mut self, serial: Option<RequestSerial>, message: &ToClient) {
        if let ToClient::RegionMade(_) = message {
            return self.region_refused(serial, Reason::BufferOutOfFds);
        }
        if let ToClient::ChannelOffer(offer) = message {
            let at = self.peer(offer.peer);
            self.refuse_offer(at, offer, Reason::OutOfFds);
        }
    }

    fn refuse_offer(&mut self, at: PeerIndex, offer: &ChannelOffer, reason: Reason) {
        self.tell(RefuseChannel { channel: offer.channel, reason }.into(), &[]);
        // Who asked for it asks again where a smaller one may do; the daemon asks the other one again.
        let last = offer.direction == Direction::One || reason != Reason::OutOfAddressSpace;
        self.peers[at].making = Making::Refused { reason, last };
        self.ask_for_channel(at);
    }

    /// Tells the daemon something, without waiting. None if there is no daemon.
    pub(crate) fn tell(&mut self, message: ToDaemon, fds: &[BorrowedFd<'_>]) -> Option<RequestSerial> {
        self.try_tell(message, fds).ok()
    }

    /// The same; an error is why it was not told.
    pub(crate) fn try_tell(&mut self, message: ToDaemon, fds: &[BorrowedFd<'_>]) -> Result<RequestSerial, Reason> {
        let control = self.control.as_mut().ok_or(Reason::DaemonGone)?;
        control.tell(message, fds).map_err(|refusal| {
            if refusal.reason == Reason::DaemonGone {
                self.daemon_lost();
            }
            refusal.reason
        })
    }

    /// True if it was a connect that was answered.
    fn mx_connected(
        &mut self,
        serial: Option<RequestSerial>,
        outcome: impl FnOnce() -> Result<EndpointAddress, Refusal>,
    ) -> bool {
        let at = self.connecting.iter().position(|connecting| Some(connecting.0) == serial);
        let Some(at) = at else { return false };
        let connecting = self.connecting.swap_remove(at);
        self.matcher.mx_connected(connecting, outcome());
        true
    }

    pub(crate) fn grant_answered(&mut self, serial: Option<RequestSerial>, answer: Granted) {
        let Some(serial) = serial else { return };
        let mut grants = self.peers.iter_mut().flat_map(|peer| peer.granted.values_mut());
        if let Some(grant) = grants.find(|grant| **grant == Granted::Asked(serial)) {
            *grant = answer;
        }
    }

    fn request_refused(&mut self, serial: Option<RequestSerial>, reason: Reason) {
        self.region_refused(serial, reason);
        self.grant_answered(serial, Granted::Refused(reason));
        let asked = self.asked.iter().position(|(asked, _)| Some(*asked) == serial);
        if let Some((_, at)) = asked.map(|place| self.asked.swap_remove(place)) {
            let id = self.peers[at].id;
            self.channel_refused(id, reason, true);
            if matches!(reason, Reason::NoSuchDomain | Reason::TalkForbidden) {
                self.fail_peer(at, reason);
            }
        }
    }

    /// Asks for a channel with a peer, if that makes sense.
    pub(crate) fn ask_for_channel(&mut self, at: PeerIndex) {
        let peer = &mut self.peers[at];
        let again = matches!(peer.making, Making::Not | Making::Refused { last: false, .. });
        if !again || peer.tries >= CHANNEL_TRIES {
            return;
        }
        let other_host = peer.id.is_remote().then_some(Reason::OtherHost);
        if let Some(reason) = other_host.or(self.no_channels) {
            peer.making = Making::Refused { reason, last: true };
            return;
        }
        let (id, tries) = (peer.id, peer.tries + 1);
        if let Some(serial) = self.tell(RequestChannel { peer: id, attempt: tries as u8 }.into(), &[]) {
            let peer = &mut self.peers[at];
            (peer.making, peer.tries) = (Making::Asked, tries);
            self.asked.retain(|(_, asked)| *asked != at);
            self.asked.push((serial, at));
        }
    }

    fn take_offer(&mut self, offer: &ChannelOffer, news: &mut News) {
        let at = self.peer(offer.peer);
        self.asked.retain(|(_, asked)| *asked != at);
        match self.make_channel(at, offer, news) {
            Ok(()) if offer.direction == Direction::One => {
                self.tell(AcceptChannel { channel: offer.channel }.into(), &[]);
            }
            Ok(()) => {}
            Err(reason) => self.refuse_offer(at, offer, reason),
        }
    }

    fn make_channel(&mut self, at: PeerIndex, offer: &ChannelOffer, news: &mut News) -> Result<(), Reason> {
        if self.no_channels.is_some() {
            return Err(Reason::ChannelRefused);
        }
        if matches!(self.peers[at].making, Making::Made { .. }) {
            self.break_channel(at, Reason::Replaced); // The peer has none any more, or it would not get another.
        }
        let (memory, peer_board, peer_doorbell) = (news.memory(), news.memory(), news.doorbell());
        if offer.new_board {
            let (board, doorbell) = (news.memory(), news.doorbell());
            self.add_board(offer.board, Some(offer.peer_owner), board, doorbell)?;
        }
        let board = self.board(offer.board).ok_or(Reason::BoardsFull)?;
        let geometry = Geometry { slab: offer.slab };
        let window = map(&memory, geometry.size())?;
        let peer_board = map(&peer_board, board::SIZE)?;
        let ends =
            Ends { window, geometry, sends: offer.direction, peer_board, place: offer.peer_place, peer_doorbell };
        let key = self.inbox.add(Channel::new(ends), board, offer.place);
        self.name_channel(key, at);
        let connector = offer.direction == Direction::Zero;
        let peer = &mut self.peers[at];
        (peer.name, peer.owner) = (Some(offer.peer_name.clone()), Some(offer.peer_owner));
        peer.making = Making::Made { id: offer.channel, key, connector, open: false };
        let channel = Adopt {
            channel: offer.channel,
            peer: offer.peer,
            direction: offer.direction,
            slab: offer.slab,
            board: offer.board,
            place: offer.place,
            peer_place: offer.peer_place,
        };
        self.held.insert(offer.channel, Held { channel, memory: memory.file });
        self.grant_arena(at);
        self.show_slower(at);
        Ok(())
    }

    /// The listener has it too: leave the ordinary path.
    fn channel_open(&mut self, id: ChannelId) {
        let Some((at, key)) = self.by_id(id) else { return };
        let peer = &mut self.peers[at];
        if let Making::Made { connector: true, open: false, .. } = peer.making {
            peer.making = Making::Made { id, key, connector: true, open: true };
            peer.switch = Some(Path::Channel(key));
            self.advance(at);
        }
    }

    fn channel_refused(&mut self, peer: DomainId, reason: Reason, last: bool) {
        if let Some(at) = self.known(peer) {
            // What the listener did not accept is over. The tries go on being counted.
            let tries = self.peers[at].tries;
            if let Making::Made { id, key, .. } = self.peers[at].making {
                self.forget_channel(at, key, id, reason);
            }
            let peer = &mut self.peers[at];
            (peer.making, peer.tries) = (Making::Refused { reason, last }, tries);
            self.ask_for_channel(at);
        }
    }

    /// A channel is over: what lies in it is taken; what was sent by it and not taken is lost with it.
    pub(crate) fn channel_closed(&mut self, id: ChannelId, reason: Reason) {
        let Some((at, key)) = self.by_id(id) else { return };
        match reason {
            Reason::ChannelNoAnswer => self.forget_channel(at, key, id, reason), // It never was open.
            // Both are there: each says in the channel that it leaves it, and nothing is lost.
            Reason::ChannelsForbidden => {
                let peer = &mut self.peers[at];
                peer.leaving = Some(reason);
                peer.switch = (peer.out == Path::Channel(key)).then_some(Path::Ordinary);
                self.advance(at);
                self.maybe_close_channel(at);
            }
            _ => self.break_channel(at, reason),
        }
    }

    /// A channel is over, in whatever state: both begin anew on the ordinary path.
    pub(crate) fn break_channel(&mut self, at: PeerIndex, reason: Reason) {
        let used = self.is_channel_used(at);
        if used {
            self.take_what_came(at);
        }
        if let Making::Made { id, key, .. } = self.peers[at].making {
            self.forget_channel(at, key, id, reason);
        }
        if matches!(reason, Reason::DaemonGone | Reason::Replaced | Reason::ClosedByPeer) {
            self.peers[at].making = Making::Not; // The next message may ask for another one.
        }
        if used {
            let peer = &mut self.peers[at];
            (peer.epoch_out, peer.epoch_in) = (0, 0);
            self.lose(at, reason);
        }
    }

    /// True if messages go by the channel with a peer, or wait in it.
    fn is_channel_used(&mut self, at: PeerIndex) -> bool {
        if let (Path::Ordinary, Some(ring)) = (self.peers[at].inward, self.ring) {
            self.drain(ring); // The peer's word that it uses it now may be there.
        }
        let peer = &self.peers[at];
        let Making::Made { key, .. } = peer.making else { return false };
        let waits = self.inbox.channel(key).is_some_and(|channel| !matches!(channel.look(), Ok(false)));
        waits || peer.out == Path::Channel(key) || peer.inward == Path::Channel(key)
    }

    /// Takes what a peer has sent before its channel, or the peer itself, came to its end: what came through the daemon first.
    pub(crate) fn take_what_came(&mut self, at: PeerIndex) {
        if let (Path::Ordinary, Some(ring)) = (self.peers[at].inward, self.ring) {
            self.drain(ring);
        }
        let peer = &mut self.peers[at];
        let Making::Made { key, .. } = peer.making else { return };
        if peer.inward == Path::Ordinary {
            // Its word that it changes paths did not come. What it said afterwards can all the same be in the channel.
            (peer.inward, peer.epoch_in) = (Path::Channel(key), peer.epoch_in.wrapping_add(1));
            self.inbox.unmute(key);
        }
        self.drain(key);
    }

    fn forget_channel(&mut self, at: PeerIndex, key: ChannelKey, id: ChannelId, reason: Reason) {
        let in_guest = self.is_in_guest();
        self.inbox.remove(key);
        if in_guest {
            // A piece of a window is kept for us until we say so: what was sent last may have lain in it.
            self.tell(CloseChannel { channel: id, reason: Reason::ClosedHere }.into(), &[]);
        }
        self.held.remove(&id);
        let peer = &mut self.peers[at];
        (peer.making, peer.tries) = (Making::Refused { reason, last: false }, 0);
        (peer.out, peer.inward, peer.switch, peer.leaving) = (Path::Ordinary, Path::Ordinary, None, None);
        peer.granted.clear();
        peer.regions.clear();
        peer.visitor = None;
        peer.in_pieces = None;
    }

    /// Both directions may have left the channel: then it can go. A listener that has not left cannot know that its connector never
    /// will have to: it keeps the channel until it is offered another one.
    pub(crate) fn maybe_close_channel(&mut self, at: PeerIndex) {
        let peer = &self.peers[at];
        let ordinary = peer.out == Path::Ordinary && peer.inward == Path::Ordinary && peer.epoch_out == peer.epoch_in;
        if let (true, Some(reason), Making::Made { id, key, connector, .. }) = (ordinary, peer.leaving, peer.making)
            && (connector || peer.epoch_out > 0)
        {
            self.forget_channel(at, key, id, reason);
        }
    }

    /// The peer of a channel broke the contract: that channel is over.
    pub(crate) fn channel_fault(&mut self, key: ChannelKey, fault: PeerFault) {
        if Some(key) == self.ring {
            return self.daemon_lost(); // Or our own memory is spoilt; a fresh ring is the cure for both.
        }
        if let Some(at) = self.by_channel(key) {
            self.peer_fault(at, fault);
        }
    }

    /// The same, by peer.
    pub(crate) fn peer_fault(&mut self, at: PeerIndex, fault: PeerFault) {
        let reason = reason_of(&fault);
        self.faults += 1;
        if let Making::Made { id, key, .. } = self.peers[at].making {
            if let Some(channel) = self.inbox.channel(key) {
                channel.faulted();
                self.last_flight = channel.flight().to_string();
            }
            self.forget_channel(at, key, id, reason);
            self.tell(CloseChannel { channel: id, reason }.into(), &[]);
        }
        let peer = &mut self.peers[at];
        (peer.epoch_out, peer.epoch_in) = (0, 0);
        self.fail_peer(at, Reason::PeerFault);
    }

    pub(crate) fn peer_gone(&mut self, peer: DomainId, reason: Reason) {
        let Some(at) = self.known(peer) else { return };
        self.take_what_came(at);
        if let Making::Made { id, key, .. } = self.peers[at].making {
            self.forget_channel(at, key, id, reason);
        }
        self.fail_peer(at, reason);
        self.forget_peer(at);
        if let Some(arena) = &self.arena {
            arena.forget(peer);
        }
        self.matcher.gone(peer);
    }
}

pub(crate) fn map(memory: &Memory, size: isthmus_layout::RegionSize) -> Result<Window, Reason> {
    let mapped = match memory.at {
        Some(at) => Mapping::window(&memory.file, at, size, Access::ReadWrite),
        None => Mapping::new(&memory.file, size, Access::ReadWrite),
    };
    mapped.map(Window::new).map_err(|error| match error {
        MapError::NotSealed => Reason::RegionNotSealed,
        MapError::TooSmall { .. } => Reason::RegionTooSmall,
        MapError::Refused { .. } => Reason::OutOfAddressSpace,
    })
}

fn reason_of(fault: &PeerFault) -> Reason {
    match fault {
        PeerFault::Stamp { .. } => Reason::StampFault,
        PeerFault::HeadOverrun { .. } => Reason::HeadOverrun,
        PeerFault::SlabOverrun { .. } => Reason::SlabOverrun,
        PeerFault::PieceOutside(_) => Reason::PieceOutside,
        PeerFault::RecordTooLong(_) | PeerFault::Record(_) => Reason::MalformedRecord,
    }
}
