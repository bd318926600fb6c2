//! A daemon that goes away, and one that comes back.
//!
//! Channels do not notice. What was under way through the daemon is lost with it, and its senders hear of it. When a daemon answers
//! again, the domain shows its ticket and what it has, gets a fresh domain ring, and everything is as before.

use crate::connect;
use crate::control::{Control, News};
use crate::core::{Core, Me};
use crate::error::Refusal;
use crate::matcher::Matcher;
use crate::news::map;
use crate::peer::{Granted, Making, Path, PeerIndex};
use isthmus_channel::{BoardIndex, Channel, Ends, Inbox};
use isthmus_layout::board;
use isthmus_layout::channel::{Direction, Geometry};
use isthmus_layout::control::{AdoptBoard, Attach, OpenEndpoint, Resume, ToClient, Welcome};
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route, Serial};
use rustix::fd::AsFd;
use std::time::{Duration, Instant};

/// How often a daemon that went away is looked for.
pub(crate) const RECONNECT: Duration = Duration::from_millis(100);

/// How long messages wait for a daemon that went away before they fail.
const GIVE_UP: Duration = Duration::from_secs(1);

impl<M: Matcher> Core<M> {
    /// The connection to the daemon broke. Channels go on. What was under way through the daemon is lost, and its senders
    /// hear of it.
    #[cold]
    pub(crate) fn daemon_lost(&mut self) {
        if self.control.take().is_none() {
            return;
        }
        self.lost_at = Some(Instant::now() - RECONNECT);
        self.alone_since = Some(Instant::now());
        if let Some(ring) = self.ring {
            self.drain(ring); // What it brought us before it died.
            self.ring = None;
            self.inbox.remove(ring);
        }
        self.owing.clear();
        self.asked.clear();
        for connecting in std::mem::take(&mut self.connecting) {
            self.matcher.mx_connected(connecting, Err(Reason::DaemonGone.into()));
        }
        for at in self.peers.indices() {
            self.lose_daemon(at);
        }
    }

    /// What was under way through the daemon, to or from a peer, is lost, and so is a channel that it was about to hand over: the
    /// daemon may have died with a word about it.
    fn lose_daemon(&mut self, at: PeerIndex) {
        let peer = &mut self.peers[at];
        if peer.id.is_remote() {
            // The way to it was the daemon's, and so was its number.
            self.fail_peer(at, Reason::DaemonGone);
            return self.forget_peer(at);
        }
        peer.granted.retain(|_, grant| !matches!(grant, Granted::Asked(_)));
        let lost = peer.credit.lose();
        lost.into_iter().for_each(|message| self.failed(message, Reason::DaemonGone));
        let peer = &self.peers[at];
        if let (Path::Channel(_), Path::Channel(_)) = (peer.out, peer.inward) {
            return;
        }
        self.give_up_channel(at);
        self.break_channel(at, Reason::DaemonGone);
        self.lose(at, Reason::DaemonGone);
        let peer = &mut self.peers[at];
        (peer.epoch_out, peer.epoch_in, peer.making, peer.tries) = (0, 0, Making::Not, 0);
    }

    /// The peer may be further than we are, and use the channel both ways: it is told by the last record in it. Otherwise it would hear of
    /// it from the next daemon, and what it sends until then would be lost.
    fn give_up_channel(&mut self, at: PeerIndex) {
        let peer = &self.peers[at];
        let (Path::Channel(key), epoch) = (peer.out, peer.epoch_out) else { return };
        let nobody = EndpointIndex::new(0).expect("the first endpoint is one");
        let route = Route { from: nobody, to: nobody, epoch, peer: None };
        if let Some(channel) = self.inbox.channel(key) {
            let over = Record::Bounce { serial: Serial(0), reason: Reason::DaemonGone as u16 };
            // A peer that spoils its side of the ring hears of it as late as any other that is not told.
            let _ = channel.send_last(route, &over);
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
            if refusal.reason == Reason::HostSilent {
                self.window_lost();
            }
            self.last_refusal = Some(refusal);
            if self.alone_since.is_some_and(|since| since.elapsed() >= GIVE_UP) {
                self.give_up();
            }
        }
    }

    /// The guest that this is has lost its host, or that was started again: what peers and we had lay in a window that is another's now.
    fn window_lost(&mut self) {
        for at in self.peers.indices() {
            let peer = self.peers[at].id;
            self.peer_gone(peer, Reason::HostSilent);
        }
    }

    /// What waits for a daemon has waited long enough.
    fn give_up(&mut self) {
        for at in self.peers.indices() {
            if self.peers[at].out == Path::Ordinary && self.peers[at].has_work() {
                self.fail_peer(at, Reason::DaemonGone);
            }
        }
    }

    fn try_resume(&mut self) -> Result<(), Refusal> {
        let socket = connect::reconnect(&self.socket_path)?;
        let mut control = Control::open(socket)?;
        let resume = Resume { domain: self.me.domain, ticket: self.me.ticket };
        let own = &self.boards[0];
        let attach = Attach { name: Some(self.me.name.clone()), resume: Some(resume) };
        let answer = control.request(attach.into(), &[own.memory.as_fd(), own.doorbell.as_fd()]);
        if answer.as_ref().is_err_and(|refusal| refusal.reason == Reason::TicketInvalid) {
            return self.attach_anew();
        }
        let mut news = answer?;
        let ToClient::Welcome(welcome) = news.message.clone() else {
            return Err(Reason::NotIsthmus.into());
        };
        for (at, board) in self.boards.iter().enumerate().skip(1) {
            let Some(board_index) = isthmus_layout::control::BoardIndex::new(at as u8) else { continue };
            let Some(owner) = board.owner else { continue };
            let adopt = AdoptBoard { board: board_index, owner };
            unless_refused(control.request(adopt.into(), &[board.memory.as_fd(), board.doorbell.as_fd()]))?;
        }
        let mut over = Vec::new();
        for held in self.held.values() {
            let answer = control.request(held.channel.clone().into(), &[held.memory.as_fd()]);
            over.extend(unless_refused(answer)?.map(|reason| (held.channel.clone(), reason)));
        }
        self.open_again(&mut control)?;
        self.take_ring(&welcome, &mut news).map_err(Refusal::from)?;
        self.connected(control);
        for at in self.peers.indices() {
            self.grant_arena(at); // Where the old daemon has not passed it on.
        }
        for (channel, reason) in over {
            match reason {
                Reason::PeerVanished => self.peer_gone(channel.peer, reason),
                reason => self.channel_closed(channel.channel, reason),
            }
        }
        Ok(())
    }

    /// The daemon does not believe that we are who we were: its key was removed, or what we had lay in a window of before. Then nobody knows
    /// us by our old number any more, so we get a new one, if any, and everything that was under way with others is over.
    fn attach_anew(&mut self) -> Result<(), Refusal> {
        for at in self.peers.indices() {
            let peer = self.peers[at].id;
            self.peer_gone(peer, Reason::TicketInvalid);
        }
        let mut control = Control::open(connect::reconnect(&self.socket_path)?)?;
        let attach = Attach { name: Some(self.me.name.clone()), resume: None };
        let mut news = control.request(attach.into(), &[])?;
        let ToClient::Welcome(welcome) = news.message.clone() else {
            return Err(Reason::NotIsthmus.into());
        };
        (self.inbox, self.ring) = (Inbox::new(), None);
        self.boards.clear();
        self.sleeper.forget_doorbells();
        self.held.clear();
        self.me = Me::of(&welcome);
        self.open_again(&mut control)?;
        self.take_ring(&welcome, &mut news).map_err(Refusal::from)?;
        self.connected(control);
        Ok(())
    }

    /// Tells a daemon what is open here.
    fn open_again(&self, control: &mut Control) -> Result<(), Refusal> {
        for (index, label) in self.endpoints.all() {
            let open = OpenEndpoint { index: Some(index), label: label.cloned() };
            unless_refused(control.request(open.into(), &[]))?;
        }
        for claim in self.endpoints.claims() {
            unless_refused(control.request(claim.clone().into(), &[]))?;
        }
        Ok(())
    }

    fn connected(&mut self, control: Control) {
        self.sleeper.watch_control(&control);
        self.control = Some(control);
        (self.lost_at, self.alone_since) = (None, None);
    }

    /// Makes the domain ring out of a welcome.
    pub(crate) fn take_ring(&mut self, welcome: &Welcome, news: &mut News) -> Result<(), Reason> {
        let (ring, daemon_board, daemon_doorbell) = (news.memory(), news.memory(), news.doorbell());
        if welcome.fresh {
            let (board, doorbell) = (news.memory(), news.doorbell());
            self.add_board(isthmus_layout::control::BoardIndex::DAEMON, None, board, doorbell)?;
        }
        let geometry = Geometry { slab: welcome.slab };
        let ends = Ends {
            window: map(&ring, geometry.size())?,
            geometry,
            sends: Direction::Zero,
            peer_board: map(&daemon_board, board::SIZE)?,
            place: welcome.daemon_place,
            peer_doorbell: daemon_doorbell,
        };
        let key = self.inbox.add(Channel::new(ends), BoardIndex(0), board::Place::DOMAIN_RING);
        self.inbox.unmute(key);
        self.ring = Some(key);
        Ok(())
    }
}

/// Why a daemon does not take over what we have; an error only if it is gone itself.
fn unless_refused(answer: Result<News, Refusal>) -> Result<Option<Reason>, Refusal> {
    match answer {
        Ok(_) => Ok(None),
        Err(refusal) if refusal.reason == Reason::DaemonGone => Err(refusal),
        Err(refusal) => Ok(Some(refusal.reason)),
    }
}
