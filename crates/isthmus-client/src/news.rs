//! What the daemon tells: channels offered, opened and closed, regions granted, peers gone; and the daemon itself gone and back.

use crate::connect;
use crate::control::{Control, News};
use crate::domain::Core;
use crate::error::Refusal;
use crate::peer::{Granted, Making, Path, PeerIndex};
use isthmus_channel::{BoardIndex, Channel, ChannelKey, Ends};
use isthmus_layout::channel::{Direction, Geometry};
use isthmus_layout::control::{
    AcceptChannel, Adopt, AdoptBoard, Attach, ChannelOffer, CloseChannel, OpenEndpoint, RefuseChannel, RequestChannel,
    RequestSerial, Resume, ToClient, ToDaemon, Welcome,
};
use isthmus_layout::ids::ChannelId;
use isthmus_layout::limits::CHANNEL_TRIES;
use isthmus_layout::reason::Reason;
use isthmus_layout::{DomainId, board};
use isthmus_platform::Doorbell;
use isthmus_shm::{Access, MapError, Mapping, PeerFault, Window};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How often a daemon that went away is looked for.
pub(crate) const RECONNECT: Duration = Duration::from_millis(100);

/// A channel's memory and places, kept to show them to a daemon that comes back.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) channel: Adopt,
    pub(crate) memory: OwnedFd,
}

impl Core {
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
        match news.message {
            ToClient::ChannelOffer(ref offer) => {
                let offer = offer.clone();
                self.take_offer(&offer, &mut news);
            }
            ToClient::ChannelOpen(open) => self.channel_open(open.channel),
            ToClient::ChannelRefused(refused) => self.channel_refused(refused.peer, refused.reason, refused.last),
            ToClient::ChannelClosed(closed) => self.channel_closed(closed.channel, closed.reason),
            ToClient::Granted(granted) => {
                let fd = news.fds.pop_front().expect("the codec counted the descriptors");
                let at = self.peer(granted.peer);
                self.granted(at, granted.region, granted.start, granted.bytes, &fd);
            }
            ToClient::Revoked(revoked) => {
                if let Some(at) = self.known(revoked.peer) {
                    self.peers[at].regions.remove(&revoked.region);
                }
            }
            ToClient::PeerGone(gone) => self.peer_gone(gone.peer, gone.reason),
            ToClient::Done(_) => self.grant_answered(serial, Granted::Yes),
            ToClient::Refused(refused) => self.request_refused(serial, refused.reason),
            // The rest answers requests that were waited for.
            _ => {}
        }
    }

    /// Tells the daemon something, without waiting. None if there is no daemon.
    pub(crate) fn tell(&mut self, message: ToDaemon, fds: &[BorrowedFd<'_>]) -> Option<RequestSerial> {
        match self.control.as_mut()?.tell(message, fds) {
            Ok(serial) => Some(serial),
            Err(refusal) => {
                if refusal.reason == Reason::DaemonGone {
                    self.daemon_lost();
                }
                None
            }
        }
    }

    fn grant_answered(&mut self, serial: Option<RequestSerial>, answer: Granted) {
        let Some(serial) = serial else { return };
        let mut grants = self.peers.iter_mut().flat_map(|peer| peer.granted.values_mut());
        if let Some(grant) = grants.find(|grant| **grant == Granted::Asked(serial)) {
            *grant = answer;
        }
    }

    fn request_refused(&mut self, serial: Option<RequestSerial>, reason: Reason) {
        self.grant_answered(serial, Granted::Refused);
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
        let tries = match self.peers[at].making {
            Making::Not => 0,
            Making::Refused { tries, last: false, .. } if tries < CHANNEL_TRIES => tries,
            _ => return,
        };
        if !self.channels {
            self.peers[at].making = Making::Refused { reason: Reason::ChannelRefused, tries, last: true };
            return;
        }
        let peer = self.peers[at].id;
        let attempt = tries as u8 + 1;
        if let Some(serial) = self.tell(RequestChannel { peer, attempt }.into(), &[]) {
            self.peers[at].making = Making::Asked(tries + 1);
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
            Err(reason) => {
                self.tell(RefuseChannel { channel: offer.channel, reason }.into(), &[]);
                self.peers[at].making = Making::Refused { reason, tries: CHANNEL_TRIES, last: true };
            }
        }
    }

    fn make_channel(&mut self, at: PeerIndex, offer: &ChannelOffer, news: &mut News) -> Result<(), Reason> {
        if !self.channels {
            return Err(Reason::ChannelRefused);
        }
        if matches!(self.peers[at].making, Making::Made { .. }) {
            return Err(Reason::ChannelPending);
        }
        let (memory, peer_board, peer_doorbell) = (news.fd(), news.fd(), news.fd());
        if offer.new_board {
            let (board, doorbell) = (news.fd(), news.fd());
            self.add_board(offer.board, Some(offer.peer_owner), board, doorbell)?;
        }
        let board = self.board(offer.board).ok_or(Reason::BoardsFull)?;
        let geometry = Geometry { slab: offer.slab };
        let window = map(&memory, geometry.size())?;
        let peer_board = map(&peer_board, board::SIZE)?;
        let ends = Ends {
            window,
            geometry,
            sends: offer.direction,
            peer_board,
            place: offer.peer_place,
            peer_doorbell: Doorbell::from(peer_doorbell),
        };
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
        self.held.insert(offer.channel, Held { channel, memory });
        Ok(())
    }

    /// The listener has it too: leave the ordinary path.
    fn channel_open(&mut self, id: ChannelId) {
        if let Some((at, key)) = self.by_id(id) {
            let peer = &mut self.peers[at];
            peer.making = Making::Made { id, key, connector: true, open: true };
            peer.switch = Some(Path::Channel(key));
            self.advance(at);
        }
    }

    fn channel_refused(&mut self, peer: DomainId, reason: Reason, last: bool) {
        if let Some(at) = self.known(peer) {
            let tries = match self.peers[at].making {
                Making::Asked(tries) => tries,
                _ => CHANNEL_TRIES,
            };
            self.peers[at].making = Making::Refused { reason, tries, last };
            self.ask_for_channel(at);
        }
    }

    /// A channel is over: what lies in it is taken; what was sent by it and not taken is lost with it, if its peer is.
    fn channel_closed(&mut self, id: ChannelId, reason: Reason) {
        let Some((at, key)) = self.by_id(id) else { return };
        self.inbox.unmute(key);
        self.peers[at].inward = Path::Channel(key);
        self.drain(key);
        self.forget_channel(at, key, id, reason);
        // Whoever closes a channel in order goes on by the ordinary path; otherwise the peer's end follows.
        if !matches!(reason, Reason::ClosedByPeer | Reason::ClosedHere | Reason::Replaced | Reason::ChannelsForbidden) {
            self.fail_peer(at, reason);
        }
    }

    fn forget_channel(&mut self, at: PeerIndex, key: ChannelKey, id: ChannelId, reason: Reason) {
        self.inbox.remove(key);
        self.held.remove(&id);
        let peer = &mut self.peers[at];
        peer.making = Making::Refused { reason, tries: 0, last: false };
        (peer.out, peer.inward, peer.switch) = (Path::Ordinary, Path::Ordinary, None);
        peer.granted.clear();
        peer.regions.clear();
    }

    /// Both directions have left the channel: it can go.
    pub(crate) fn maybe_close_channel(&mut self, at: PeerIndex) {
        let peer = &self.peers[at];
        let both_left =
            peer.epoch_out > 0 && peer.epoch_in > 0 && peer.out == Path::Ordinary && peer.inward == Path::Ordinary;
        if let (true, Making::Made { id, key, .. }) = (both_left, peer.making) {
            self.forget_channel(at, key, id, Reason::ClosedHere);
            self.tell(CloseChannel { channel: id, reason: Reason::ClosedHere }.into(), &[]);
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
        self.fail_peer(at, Reason::PeerFault);
    }

    fn peer_gone(&mut self, peer: DomainId, reason: Reason) {
        let Some(at) = self.known(peer) else { return };
        if let Making::Made { id, key, .. } = self.peers[at].making {
            self.inbox.unmute(key);
            self.peers[at].inward = Path::Channel(key);
            self.drain(key);
            self.forget_channel(at, key, id, reason);
        }
        self.fail_peer(at, reason);
        self.forget_peer(at);
    }

    /// The connection to the daemon broke. Channels go on. What was under way through the daemon is lost, and its senders
    /// hear of it.
    #[cold]
    pub(crate) fn daemon_lost(&mut self) {
        if self.control.take().is_none() {
            return;
        }
        self.lost_at = Some(Instant::now() - RECONNECT);
        if let Some(ring) = self.ring.take() {
            self.inbox.remove(ring);
        }
        self.owing.clear();
        self.asked.clear();
        for at in self.peers.indices() {
            let peer = &mut self.peers[at];
            for grant in peer.granted.values_mut() {
                if matches!(grant, Granted::Asked(_)) {
                    *grant = Granted::Refused;
                }
            }
            let lost = peer.credit.lose();
            match peer.making {
                // The listener may not have it: as if it had never been offered.
                Making::Made { id, key, connector: true, open: false } => {
                    self.inbox.remove(key);
                    self.held.remove(&id);
                    peer.making = Making::Not;
                }
                Making::Made { key, connector, .. } => {
                    // Our word that we change paths may be lost; the listener thinks of it too.
                    if connector && peer.out == Path::Ordinary {
                        (peer.out, peer.switch) = (Path::Channel(key), None);
                        peer.epoch_out = peer.epoch_out.wrapping_add(1);
                    }
                    // And so may the peer's: what it sends by the channel is all that still comes.
                    if peer.inward == Path::Ordinary {
                        peer.inward = Path::Channel(key);
                        peer.epoch_in = peer.epoch_in.wrapping_add(1);
                        self.inbox.unmute(key);
                    }
                }
                Making::Asked(_) => peer.making = Making::Not,
                Making::Not | Making::Refused { .. } => {}
            }
            if peer.out == Path::Ordinary {
                peer.started = None;
            }
            lost.into_iter().for_each(|message| self.failed(message, Reason::DaemonGone));
            self.list(at);
        }
    }

    /// Looks for a daemon to resume with, now and then.
    #[cold]
    pub(crate) fn reconnect(&mut self) {
        let Some(lost_at) = self.lost_at else { return };
        if self.control.is_some() || lost_at.elapsed() < RECONNECT {
            return;
        }
        self.lost_at = Some(Instant::now());
        if let Err(refusal) = self.try_resume() {
            self.control = None;
            self.last_refusal = Some(refusal);
        }
    }

    fn try_resume(&mut self) -> Result<(), Refusal> {
        let socket = connect::reconnect(&self.socket_path)?;
        let mut control = Control::open(socket)?;
        let resume = Resume { domain: self.me.domain, ticket: self.me.ticket };
        let own = &self.boards[0];
        let attach = Attach { name: Some(self.me.name.clone()), resume: Some(resume) };
        let mut news = control.request(attach.into(), &[own.memory.as_fd(), own.doorbell.as_fd()])?;
        let ToClient::Welcome(welcome) = news.message.clone() else {
            return Err(Reason::NotIsthmus.into());
        };
        for (at, board) in self.boards.iter().enumerate().skip(1) {
            let Some(board_index) = isthmus_layout::control::BoardIndex::new(at as u8) else { continue };
            let Some(owner) = board.owner else { continue };
            let adopt = AdoptBoard { board: board_index, owner };
            control.request(adopt.into(), &[board.memory.as_fd(), board.doorbell.as_fd()])?;
        }
        for held in self.held.values() {
            control.request(held.channel.clone().into(), &[held.memory.as_fd()])?;
        }
        for (index, endpoint) in self.endpoints.all() {
            let open = OpenEndpoint { index: Some(index), label: endpoint.label.clone() };
            control.request(open.into(), &[])?;
        }
        self.take_ring(&welcome, &mut news).map_err(Refusal::from)?;
        self.control = Some(control);
        self.lost_at = None;
        self.sleeper.watch_control(self.control.as_ref().expect("set a line above"));
        Ok(())
    }

    /// Makes the domain ring out of a welcome.
    pub(crate) fn take_ring(&mut self, welcome: &Welcome, news: &mut News) -> Result<(), Reason> {
        let (ring, daemon_board, daemon_doorbell) = (news.fd(), news.fd(), news.fd());
        if welcome.fresh {
            let (board, doorbell) = (news.fd(), news.fd());
            self.add_board(isthmus_layout::control::BoardIndex::DAEMON, None, board, doorbell)?;
        }
        let geometry = Geometry { slab: welcome.slab };
        let ends = Ends {
            window: map(&ring, geometry.size())?,
            geometry,
            sends: Direction::Zero,
            peer_board: map(&daemon_board, board::SIZE)?,
            place: welcome.daemon_place,
            peer_doorbell: Doorbell::from(daemon_doorbell),
        };
        let key = self.inbox.add(Channel::new(ends), BoardIndex(0), board::Place::DOMAIN_RING);
        self.inbox.unmute(key);
        self.ring = Some(key);
        Ok(())
    }
}

pub(crate) fn map(memory: &OwnedFd, size: isthmus_layout::RegionSize) -> Result<Window, Reason> {
    Mapping::new(memory, size, Access::ReadWrite).map(Window::new).map_err(|error| match error {
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
